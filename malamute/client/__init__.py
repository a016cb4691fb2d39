"""The client: publish, subscribe, send, receive, request and work, over one connection.

    import malamute

    with malamute.connect("tcp://127.0.0.1:9999", address="alice", timeout=5.0) as client:
        client.publish("weather", "temp.oslo", b"-3.5", {"unit": "C"})       # returns its sequence, on disk
        client.publish_nowait("weather", "temp.oslo", b"-3.5")               # fire and forget

        with client.publisher("weather", assurance="stored") as out:         # pipelined, batched, confirmed
            receipt = out.publish("temp.oslo", b"-3.4", {"unit": "C"})       # .done .wait(timeout) .sequence
            out.publish_many(subjects, bodies, headers_list)
        # leaving flushes, waits for every confirmation, and raises the first refusal

        with client.subscribe("weather", "temp.*", start="new") as messages:
            messages.receive(timeout=1.0)            # one Message, or raises TimedOut
            messages.take(100, timeout=1.0)          # up to 100, [] when none came in time
            for batch in messages.batches(100): ...  # lists
            for message in messages: ...             # .sequence .subject .headers .body .sender .time

        client.send("bob", "hello", b"...")                   # stored in bob's mailbox when it returns
        sent = client.send("bob", "hello", b"...", assurance="confirmed", ttl=60, priority=5)
        sent.wait(timeout=90)                    # acknowledged, expired, rejected, dead-lettered, ...
        with client.sender("bob") as out: ...                 # many: as a publisher, to one mailbox
        message = client.receive(timeout=1.0)                 # acknowledged when the next is asked for
        for message in client.mailbox(auto_ack=False): message.ack()
        # or .nak(delay) to have it redelivered, .reject(reason), .release(), .in_progress()

        for reply in client.request("printer", "bw.A4", b"...", timeout=5): ...   # ends after the final one
        with client.work("printer", "bw.*", credit=1) as requests:
            for request in requests: request.reply(b"done")   # or .reply(part, final=False), .ack()
                                                             # assurance="stored" gives a receipt to wait for

        @client.service("printer", "bw.*")
        def printer(request): return b"done"         # in a thread of its own; redelivered if it raises
        client.run()                                 # until client.stop(), or KeyboardInterrupt

        client.enqueue("printer", "bw.A4", b"...")               # a job that wants no reply

        for message in client.history("weather", since="first"): ...     # ends with what is there now
        client.admin.status()                        # the state of the broker, typed
        client.query("status")                       # the same, as a map
        client.flush(timeout=5.0)                    # until everything numbered has its answer
        client.drain()                               # graceful shutdown: consume no more
        client.on_event = print                      # Connected, Lost, Gap, Recalled and others

A client belongs to the thread that made it, and reconnects by itself: subscriptions go on where they
were, confirmed commands are retried and stored once. Every error is one of `malamute.errors`.

`malamute.aio` has the same names for asyncio programs.

The packages, each of which imports only those before it:

    session/     the state and the decisions of a client, pure: commands, sources, replies, reconnecting
    link/        the socket, one connection after the other, and all that waits, written once as coroutines
    sync/, aio/  the two edges, with equal file names: signatures, and the one method by which each waits

`events` and `options` have the values of a program; `tracing` is for OpenTelemetry, and `frames` makes tables
of messages.
"""
