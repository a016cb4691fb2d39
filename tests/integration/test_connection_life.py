"""The life of a connection: other URLs, outages, slow consumers, and handlers that take their time."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

import malamute
import malamute.aio
from malamute import errors
from malamute.client.events import Connected, Event, Gap, Lost, Recalled, Refusal, Slow, Switched
from malamute.client.link import connection as link_connection
from malamute.config import Config
from malamute.server.daemon import open_broker
from malamute.testing import Broker, small_config

PATIENCE = 60.0
DEAD = "tcp://127.0.0.1:1"
FAST = {"heartbeat": 0.5}

Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        count = 0

        def make(**options: Any) -> Broker:
            nonlocal count
            count += 1
            return stack.enter_context(Broker(tmp_path / str(count), **options))

        yield make


def connect(*urls: str, events: list[Event] | None = None, **options: Any) -> malamute.Client:
    client = malamute.connect(urls, **{"timeout": PATIENCE, **options})
    client.on_event = (events if events is not None else []).append
    return client


def outlast(url: str, ack_timeout: float) -> None:
    """Return when whoever took a request now and reported nothing has lost it, and the next one as well."""
    with connect(url) as holder, connect(url) as heir:
        for service in ("one", "two"):
            holder.request(service, "a", timeout=PATIENCE)
            holder.work(service, ack_timeout=ack_timeout).receive(PATIENCE)
            assert heir.work(service).receive(PATIENCE).attempts == 2


def test_the_first_url_that_answers_is_taken(start: Start) -> None:
    broker, other = start(), start()
    with connect(DEAD, broker.url, other.url) as client:
        assert client.url == broker.url
        assert client.publish("s", "a", b"", assurance="stored") == 1
    with malamute.connect(f"{DEAD},{broker.url}", timeout=PATIENCE) as client:
        assert client.url == broker.url


def test_a_listener_that_takes_the_connection_and_never_answers_is_passed_over(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker whose loop hangs: libzmq goes on shaking hands for it."""
    monkeypatch.setattr(link_connection, "ATTEMPT_SECONDS", 0.5)
    broker = start()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as mute:
        mute.bind("tcp://127.0.0.1:*")
        url = mute.getsockopt_string(zmq.LAST_ENDPOINT)
        with connect(url, broker.url) as client:
            assert client.url == broker.url
            assert client.publish("s", "a", b"", assurance="stored") == 1
        assert mute.poll(PATIENCE * 1000), "it was asked"


def test_when_a_broker_is_gone_the_next_one_is_taken_and_what_was_open_goes_there(start: Start) -> None:
    first, second = start(), start()
    events: list[Event] = []
    with connect(first.url, second.url, events=events, address="alice") as client:
        messages = client.subscribe("s")
        work = client.work("svc")
        client.publish("s", "a", b"1", assurance="stored")
        assert messages.receive(PATIENCE).body == b"1"
        first.stop()
        with client.publisher("s") as out:
            out.publish_many(["a"] * 3, [b"2", b"3", b"4"])
        assert client.url == second.url
        assert [messages.receive(PATIENCE).body for _ in range(3)] == [b"2", b"3", b"4"]
        with malamute.connect(second.url) as asker:
            replies = asker.request("svc", "a", b"?")
            asker.flush()
            work.receive(PATIENCE).reply(b"!")
            client.flush()
            assert next(replies).body == b"!"
        assert [type(event) for event in events if isinstance(event, Lost | Connected)] == [Lost, Connected]


def test_the_first_url_is_preferred_when_the_connection_breaks_again(start: Start) -> None:
    first, second = start(), start()
    with connect(first.url, second.url) as client:
        first.stop()
        client.flush()
        assert client.url == second.url
        first.start()
        second.stop()
        client.flush()
        assert client.url == first.url


def test_an_invalid_url_ends_the_client_when_it_is_tried(start: Start) -> None:
    broker = start()
    with pytest.raises(errors.InvalidValue):
        malamute.connect(("no://sense", broker.url))
    client = connect(broker.url, "no://sense")
    broker.stop()
    with pytest.raises(errors.InvalidValue, match="no://sense"):
        client.flush()
    client.close()


def test_an_outage_is_bridged_up_to_a_limit_and_then_publishing_says_so(start: Start) -> None:
    async def program() -> None:
        broker = start()
        events: list[Event] = []
        async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
            client.on_event = events.append
            messages = await client.subscribe("s")
            await client.publish("s", "a", b"first", assurance="stored")
            broker.stop()
            while client.connected:
                await asyncio.sleep(0)
            client._session.outbox.window_bytes = 1000
            sent = [b"first"]

            async def publish_on() -> None:
                while True:
                    await client.publish_nowait("s", "a", b"%20d" % len(sent), timeout=0.01)
                    sent.append(b"%20d" % len(sent))

            with pytest.raises(errors.ConnectionLost, match="no more commands can be kept"):
                await publish_on()
            out = client.publisher("s", batch=5, timeout=0.05)
            confirmed: list[bytes] = []

            async def publish_confirmed() -> None:
                while True:
                    await out.publish("a", b"%30d" % len(confirmed))
                    confirmed.append(b"%30d" % len(confirmed))

            with pytest.raises(errors.ConnectionLost):
                await publish_confirmed()
            assert 30 <= len(sent) <= 50
            assert 20 <= len(confirmed) <= 80
            broker.start()
            await client.flush()
            out._timeout = PATIENCE
            await out.close()
            seen: list[bytes] = []
            while len(seen) < len(sent) + len(confirmed):
                seen += [message.body for message in await messages.take(1000, PATIENCE)]
            # Each once; those with numbers first, since they are sent again in order.
            assert sorted(seen) == sorted(sent + confirmed)
            assert not any(isinstance(event, Gap) for event in events)

    asyncio.run(program())


def test_a_slow_subscriber_is_notified_and_again_when_it_has_caught_up(start: Start) -> None:
    events: list[Event] = []
    broker = start()
    with connect(broker.url, events=events) as client, connect(broker.url) as publisher:
        messages = client.subscribe("s", credit=10)
        with publisher.publisher("s") as out:
            out.publish_many(["a"] * 100, [b""] * 100)
        client.flush()
        assert Slow("s", 10) in events
        assert [messages.receive(PATIENCE).sequence for _ in range(100)] == list(range(1, 101))
        states: list[str] = []
        while states[-1:] != ["live"]:
            client.flush()
            states = [event.state for event in events if isinstance(event, Switched)]
        assert states[0] == "replay"


HEARTBEAT_TIMEOUT = 1.5


@pytest.fixture
def hearts() -> Iterator[Broker]:
    """Heartbeats in both directions, faster than by default, and as slow as a busy machine may be."""
    config = Config()
    listen = replace(config.listen, heartbeat_interval=0.5, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    with Broker(config=replace(config, listen=listen)) as broker:
        yield broker


def test_a_handler_that_blocks_for_long_loses_neither_connection_nor_request(hearts: Broker) -> None:
    """The handler takes twice the time of the heartbeats, and of the ack timeout."""
    events: list[Event] = []
    with connect(hearts.url) as asker, connect(hearts.url, events=events, **FAST) as worker:
        replies = asker.request("svc", "a", b"?", timeout=PATIENCE)
        asker.flush()
        seen: list[int] = []

        @worker.service("svc", ack_timeout=HEARTBEAT_TIMEOUT)
        def slowly(request: malamute.Request) -> bytes:
            seen.append(request.attempts)
            outlast(hearts.url, HEARTBEAT_TIMEOUT)
            worker.stop()
            return b"!"

        worker.run()
        assert [reply.body for reply in replies] == [b"!"]
        assert seen == [1]
        assert not any(isinstance(event, Lost | Recalled) for event in events)


def test_an_asyncio_handler_that_takes_long_is_reported_and_not_tried_again(hearts: Broker) -> None:
    async def program() -> None:
        events: list[Event] = []
        async with (
            malamute.aio.connect(hearts.url) as asker,
            malamute.aio.connect(hearts.url, **FAST) as worker,
        ):
            worker.on_event = events.append
            replies = await asker.request("svc", "a", b"?", timeout=PATIENCE)
            seen: list[int] = []

            @worker.service("svc", ack_timeout=HEARTBEAT_TIMEOUT)
            async def slowly(request: malamute.aio.Request) -> bytes:
                seen.append(request.attempts)
                await asyncio.to_thread(outlast, hearts.url, HEARTBEAT_TIMEOUT)
                worker.stop()
                return b"!"

            await worker.run()
            assert [reply.body async for reply in replies] == [b"!"]
            assert seen == [1]
            assert not any(isinstance(event, Lost | Recalled) for event in events)

    asyncio.run(program())


@pytest.fixture
def drain_on_signal() -> Iterator[Callable[[malamute.Client], None]]:
    """As a program has it that is asked to end."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda client: signal.signal(signal.SIGUSR1, lambda *_: client.drain()) and None
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("moment", ["in the hands of the program", "in the midst of sending"])
def test_a_signal_handler_may_drain_the_client(
    hearts: Broker,
    monkeypatch: pytest.MonkeyPatch,
    drain_on_signal: Callable[[malamute.Client], None],
    moment: str,
) -> None:
    events: list[Event] = []
    with connect(hearts.url) as asker, connect(hearts.url, events=events) as worker:
        drain_on_signal(worker)
        pending = [asker.request("svc", "a", b"%d" % n, timeout=PATIENCE) for n in range(3)]
        asker.flush()
        work = worker.work("svc", credit=3)
        while work.waiting < 3:
            worker.flush()
        send = worker._driver.link.send

        def sending(frames: Any) -> bool:
            sent = send(frames)
            monkeypatch.undo()
            signal.raise_signal(signal.SIGUSR1)
            return sent

        done = []
        for request in work:
            done.append(request.body)
            if moment == "in the midst of sending":
                monkeypatch.setattr(worker._driver.link, "send", sending)
            else:
                signal.raise_signal(signal.SIGUSR1)
            request.reply(b"!")
        assert done == [b"0"]
        worker.flush()
        assert not any(isinstance(event, Lost | Refusal) for event in events)
        assert [reply.body for reply in pending[0]] == [b"!"]

        with connect(hearts.url) as other, other.work("svc") as rest:
            for _ in range(2):
                # The broker may use up what credit it had left, and then gets back what it delivers so.
                while not rest.waiting:
                    worker.flush()
                    other.flush()
                request = rest.receive(PATIENCE)
                assert request.attempts == 1
                request.reply(request.body)
            assert [[reply.body for reply in replies] for replies in pending[1:]] == [[b"1"], [b"2"]]
    worker.drain()


def test_a_signal_handler_may_drain_a_client_on_an_event_loop(hearts: Broker) -> None:
    async def program() -> None:
        async with malamute.aio.connect(hearts.url) as asker, malamute.aio.connect(hearts.url) as worker:
            before = signal.signal(signal.SIGUSR1, lambda *_: worker.drain())
            try:
                work = await worker.work("svc")
                timer = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
                timer.start()
                assert [_ async for _ in work] == []
                timer.join()
                messages = await worker.subscribe("s")
                await asker.publish("s", "a", b"", assurance="stored")
                assert (await messages.receive(PATIENCE)).subject == "a"
            finally:
                signal.signal(signal.SIGUSR1, before)

    asyncio.run(program())


ACK_TIMEOUT = 2.0


@pytest.fixture
def strict() -> Iterator[Broker]:
    """A broker that is configured for handlers of two seconds."""
    config = Config()
    with Broker(config=replace(config, queues=replace(config.queues, ack_timeout=ACK_TIMEOUT))) as broker:
        yield broker


def test_handlers_report_as_often_as_the_broker_is_configured_for(strict: Broker) -> None:
    events: list[Event] = []
    with connect(strict.url) as asker, connect(strict.url, address="bob", events=events) as worker:
        replies = asker.request("svc", "a", b"?", timeout=PATIENCE)
        asker.send("bob", "hello", b"")
        both = threading.Barrier(2)
        seen: list[tuple[str, int]] = []

        def slowly(mail: malamute.Mail) -> None:
            seen.append((mail.subject, mail.attempts))
            if both.wait(PATIENCE) == 0:
                outlast(strict.url, ACK_TIMEOUT)
            if both.wait(PATIENCE) == 0:
                worker.stop()

        worker.service("svc")(slowly)
        worker.on_mail()(slowly)
        worker.run()
        assert [reply.body for reply in replies] == [b""]
        assert sorted(seen) == [("a", 1), ("hello", 1)]
        assert not any(isinstance(event, Recalled) for event in events)


def test_handlers_on_an_event_loop_report_as_often_as_the_broker_is_configured_for(strict: Broker) -> None:
    async def program() -> None:
        events: list[Event] = []
        async with (
            malamute.aio.connect(strict.url) as asker,
            malamute.aio.connect(strict.url, address="bob") as worker,
        ):
            worker.on_event = events.append
            await asker.send("bob", "hello", b"")
            seen: list[int] = []

            @worker.on_mail()
            async def slowly(mail: malamute.Mail) -> None:
                seen.append(mail.attempts)
                await asyncio.to_thread(outlast, strict.url, ACK_TIMEOUT)
                worker.stop()

            await worker.run()
            assert seen == [1]
            assert not any(isinstance(event, Recalled) for event in events)

    asyncio.run(program())


ATTEMPTS = 3


@pytest.fixture
def impatient(start: Start) -> Broker:
    """A broker that gives a message out three times, without a pause."""
    return start(config=replace(Config(), queues=replace(Config().queues, backoff=(), max_deliver=ATTEMPTS)))


def test_a_handler_that_fails_is_tried_again_until_its_request_is_a_dead_letter(impatient: Broker) -> None:
    with connect(impatient.url, address="asker") as asker, connect(impatient.url) as worker:
        asked = asker.request("svc", "a", assurance="confirmed", timeout=PATIENCE)
        seen: list[int] = []

        @worker.service("svc")
        def fail(request: malamute.Request) -> None:
            seen.append(request.attempts)
            if len(seen) == ATTEMPTS:
                worker.stop()
            raise ValueError("no paper")

        worker.run()
        assert seen == [1, 2, 3]
        assert asked.wait(PATIENCE) == "dead-lettered"


def test_a_handler_on_an_event_loop_that_fails_is_tried_again_too(impatient: Broker) -> None:
    async def program() -> None:
        async with (
            malamute.aio.connect(impatient.url, address="asker") as asker,
            malamute.aio.connect(impatient.url, address="worker") as worker,
        ):
            sent = await asker.send("worker", "a", b"", assurance="confirmed")
            seen: list[int] = []

            @worker.on_mail()
            async def fail(mail: malamute.Mail) -> None:
                seen.append(mail.attempts)
                if len(seen) == ATTEMPTS:
                    worker.stop()
                raise ValueError("no paper")

            await worker.run()
            assert seen == [1, 2, 3]
            assert await sent.wait(PATIENCE) == "dead-lettered"

    asyncio.run(program())


def test_a_request_that_nobody_reports_on_is_recalled(start: Start) -> None:
    events: list[Event] = []
    # The request may be redelivered at once, and as often as this worker takes too long.
    queues = replace(Config().queues, backoff=(), max_deliver=0)
    broker = start(config=replace(Config(), queues=queues))
    with connect(broker.url) as asker, connect(broker.url, events=events) as worker:
        replies = asker.request("svc", "a", b"?", timeout=PATIENCE)
        asker.flush()
        work = worker.work("svc", ack_timeout=0.2)
        request = work.receive(PATIENCE)
        while not events:
            worker.flush()
        assert events[0] == Recalled("svc", (request.sequence,), "timeout")
        # The request is still in the hands of this worker: when it is redelivered, its reply is good.
        while True:
            try:
                request.reply(b"!", assurance="stored").wait(PATIENCE)
                break
            except errors.NotOutstanding:
                request = work.receive(PATIENCE)
        assert [reply.body for reply in replies] == [b"!"]


def test_handlers_run_beside_each_other_and_what_they_ask_is_done_by_the_owner(hearts: Broker) -> None:
    """Two calls of one handler wait for each other: neither could end if they came one after the other."""
    with connect(hearts.url, address="asker") as asker, connect(hearts.url, address="worker") as worker:
        meeting = threading.Barrier(2)
        threads: set[int] = set()

        @worker.service("svc", concurrency=2)
        def meet(request: malamute.Request) -> bytes:
            meeting.wait(PATIENCE)
            threads.add(threading.get_ident())
            (reply,) = worker.request("inner", "a", request.body, timeout=PATIENCE)
            with worker.publisher("log") as out:
                out.publish("a", reply.body).wait(PATIENCE)
            return reply.body

        @worker.service("inner", concurrency=2)
        def inner(request: malamute.Request) -> bytes:
            return request.body.upper()

        pending = [asker.request("svc", "a", body, timeout=PATIENCE) for body in (b"a", b"b")]
        asker.flush()
        messages = asker.subscribe("log", start="first")

        @worker.subscription("log", start="first")
        def enough(message: malamute.Message) -> None:
            if message.sequence == 2:
                worker.drain()

        worker.run()
        assert sorted(m.body for m in (messages.receive(PATIENCE), messages.receive(PATIENCE))) == [
            b"A",
            b"B",
        ]
        assert [[reply.body for reply in replies] for replies in pending] == [[b"A"], [b"B"]]
        assert len(threads) == 2


def test_another_thread_is_refused_while_handlers_run(hearts: Broker) -> None:
    with connect(hearts.url, address="alice") as client:
        caught: list[Exception] = []

        def use() -> None:
            try:
                client.query("status")
            except errors.LinkError as error:
                caught.append(error)

        @client.on_mail()
        def handle(mail: malamute.Mail) -> None:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            client.stop()

        client.send("alice", "a", b"")
        client.run()
        assert "another thread" in str(caught[0])


def test_what_a_handler_asks_in_vain_comes_out_there(hearts: Broker) -> None:
    with connect(hearts.url, address="alice") as client:
        caught: list[Exception] = []

        @client.on_mail()
        def handle(mail: malamute.Mail) -> None:
            for call in (
                lambda: next(client.request("nobody", "a", timeout=0.05)),
                lambda: client.query("weather"),
                lambda: client.publish_nowait("s", "a" * 300, b""),
            ):
                try:
                    call()
                except errors.MalamuteError as error:
                    caught.append(error)
            client.stop()

        client.send("alice", "a", b"")
        client.run()
        assert [type(error) for error in caught] == [errors.TimedOut, errors.InvalidValue, errors.TooLarge]


KILLED = """
import sys, malamute
client = malamute.connect(sys.argv[1], address="killed")
for number in range(int(sys.argv[2])):
    client.publish("s", "a", b"%d" % number)
client.publish("s", "a", b"last", assurance="stored")
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_who_is_killed_has_left_at_once_where_the_system_says_so(tmp_path: Path, scheme: str) -> None:
    """No probe finds it out: it would come within hours. The messages that were sent before are there."""
    config = small_config()
    listen = replace(config.listen, endpoints=(f"ipc://{tmp_path}/socket", "tcp://127.0.0.1:*"))
    config = replace(config, listen=listen, overrides={"probe_interval": 3600.0})
    context: zmq.Context[Any] = zmq.Context()
    loop = open_broker(replace(config, storage=replace(config.storage, kind="memory")), context)
    thread = threading.Thread(target=loop.run)
    thread.start()
    url = next(endpoint for endpoint in loop.endpoints if endpoint.startswith(scheme))
    try:
        with malamute.connect(url) as watcher, watcher.subscribe("$sys", "client.#") as events:
            program = subprocess.Popen(
                [sys.executable, "-c", KILLED, url, "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            with program:
                assert program.stdout is not None
                assert program.stdout.readline() == b"up\n"
                program.kill()
            left = next(e for e in iter(lambda: events.receive(PATIENCE), None) if "left" in e.subject)
            assert (left.subject, left.headers["reason"]) == ("client.left.killed", "lost")
            with watcher.subscribe("s", start="first") as stream:
                assert [stream.receive(PATIENCE).body for _ in range(101)][-1] == b"last"
    finally:
        loop.stop()
        thread.join()
        context.term()
