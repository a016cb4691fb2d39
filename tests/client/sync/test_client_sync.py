"""The blocking edge against a scripted broker: a ROUTER on a thread that says what the test wants."""

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import zmq

import malamute
from malamute import errors
from malamute.client.events import Connected, Refusal
from malamute.client.link.link import SOCKETS_MAX, Link
from malamute.client.session.session import State
from malamute.protocol import messages as wire
from malamute.protocol.batch import Columns, pack_queue_payload, pack_record, pack_stream_payload
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Ok, Stored, Welcome

RECORD = pack_record({"n": 1}, b"body")
Answer = Callable[[wire.Message], list[wire.Message]]


def stream(source: int, after: int, count: int) -> wire.Deliver:
    columns = Columns(after + 1, 1, "alice", ["a"] * count, [RECORD] * count)
    return wire.Deliver(source, after, *pack_stream_payload(columns))


def queued(source: int, first: int, count: int, properties: object = None) -> wire.Deliver:
    rows = None if properties is None else [properties] * count
    columns = Columns(first, 1, "bob", ["a"] * count, [RECORD] * count, 1, rows)
    return wire.Deliver(source, 0, *pack_queue_payload(columns))


DEFAULTS: dict[type, Answer] = {
    wire.Hello: lambda m: [Welcome(2, b"id", b"broker", False, "scripted", {})],
    wire.Subscribe: lambda m: [Ok(6, m.source, 1)],
    wire.Offer: lambda m: [Ok(7, m.source)],
    wire.Publish: lambda m: [Stored([[m.number, m.number, 1]])] if m.number else [],
    wire.Send: lambda m: [Stored([[m.number, m.number, 0]])] if m.number else [],
    wire.Request: lambda m: [Stored([[m.number, m.number, 0]])] if m.number else [],
    wire.Reply: lambda m: [Stored([[m.number, m.number, 0]])] if m.number else [],
    wire.Query: lambda m: [wire.Answer(m.ref, m.topic)],
    wire.Ping: lambda m: [wire.Pong()],
    wire.Drain: lambda m: [Ok(21, m.source)],
    wire.Bye: lambda m: [Ok(13, 0)],
}


class Scripted:
    """Answers by the table, which a test may change, and remembers what it heard."""

    def __init__(self) -> None:
        self.answers = dict(DEFAULTS)
        self.heard: queue.Queue[wire.Message] = queue.Queue()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"tcp://127.0.0.1:{port}"
        self._door = self._context.socket(zmq.PAIR)
        self._inside = self._context.socket(zmq.PAIR)
        self._door.bind("inproc://door")
        self._inside.connect("inproc://door")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._inside, zmq.POLLIN)
        peer = b""
        while True:
            ready = dict(poller.poll())
            if self._inside in ready:
                frames = self._inside.recv_multipart()
                if frames == [b""]:
                    return
                self._socket.send_multipart([peer, *frames])
                continue
            peer, *frames = self._socket.recv_multipart()
            message = decode(frames)
            for answer in self.answers.get(type(message), lambda m: [])(message):
                self._socket.send_multipart([peer, *encode(answer)])
            self.heard.put(message)

    def say(self, message: wire.Message) -> None:
        """Say something to the client that spoke last."""
        self._door.send_multipart(encode(message))

    def hears(self, kind: type) -> wire.Message:
        """The next message of this kind."""
        while not isinstance(message := self.heard.get(timeout=10), kind):
            pass
        return message

    def stop(self) -> None:
        self._door.send(b"")
        self._thread.join()
        self._context.destroy(0)


@pytest.fixture
def broker() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.stop()


@pytest.fixture
def client(broker: Scripted) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="alice") as client:
        client.on_event = lambda event: None
        yield client


def test_connecting_says_who_it_is_and_closing_says_bye(broker):
    client = malamute.connect(broker.url, address="alice")
    hello = broker.hears(wire.Hello)
    assert (hello.address, hello.unsettled) == ("alice", 1)
    assert hello.software.startswith("malamute-python/")
    assert client.connected
    assert client.broker == b"broker".hex()
    client.close()
    client.close()
    assert isinstance(broker.hears(wire.Bye), wire.Bye)
    with pytest.raises(errors.Closed):
        client.publish("s", "a", b"")


@pytest.fixture
def other() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.stop()


def not_primary(*urls: str, ref: int = 0) -> Error:
    return Error(509, "standby", 1, ref, 0, {"urls": [*urls], "role": "standby"})


def test_a_client_of_a_pair_follows_the_primary_with_its_numbers(broker, other):
    other.answers[wire.Hello] = lambda m: [not_primary(ref=m.attempt)]
    events: list[object] = []
    with malamute.connect([other.url, broker.url]) as client:
        client.on_event = events.append
        assert broker.hears(wire.Hello).heartbeat == other.hears(wire.Hello).heartbeat == 1500
        assert client.publish("s", "a", b"") == 1
        broker.answers[wire.Publish] = lambda m: []
        other.answers[wire.Hello] = DEFAULTS[wire.Hello]
        publisher = client.publisher("s")
        publisher.publish("a", b"2")
        with pytest.raises(errors.TimedOut):
            publisher.flush(timeout=0.05)
        broker.hears(wire.Publish)
        assert broker.hears(wire.Publish).number == 2
        broker.say(not_primary(other.url))
        publisher.flush(timeout=10)
        assert client.url == other.url
        assert other.hears(wire.Hello).unsettled == 2
        assert other.hears(wire.Publish).number == 2
        publisher.close()
    assert [type(event).__name__ for event in events] == ["Lost", "Moved", "Connected"]


def test_a_client_learns_the_urls_of_a_pair_and_drops_one_that_cannot_be_used(broker, other):
    other.answers[wire.Hello] = lambda m: [not_primary(broker.url, ref=m.attempt)]
    broker.answers[wire.Hello] = lambda m: [
        Welcome(2, b"id", b"broker", False, "", {}, m.attempt, 0, "", ["tcp://a;b:1", other.url, broker.url])
    ]
    with malamute.connect(broker.url) as client:
        assert broker.hears(wire.Hello).heartbeat == 5000
        for url in ("tcp://a;b:1", other.url):
            events: list[object] = []
            client.on_event = events.append
            broker.say(not_primary(url))
            while not any(isinstance(event, Connected) for event in events):
                client.ping(timeout=10)
            assert client.url == broker.url
        assert other.hears(wire.Hello).attempt


def test_a_standby_without_a_primary_is_the_reason_why_there_is_no_connection(broker):
    broker.answers[wire.Hello] = lambda m: [not_primary("tcp://other:9999", ref=m.attempt)]
    with pytest.raises(errors.NotPrimary, match="standby") as found:
        malamute.connect(broker.url, timeout=0.3)
    assert found.value.urls == ["tcp://other:9999"]


def test_no_broker_is_a_connect_timeout():
    with pytest.raises(errors.ConnectTimeout, match=r"no broker answered at tcp://127\.0\.0\.1:1"):
        malamute.connect("tcp://127.0.0.1:1", timeout=0.05)


@pytest.mark.parametrize("timeout", [0.5, 4.0])
def test_a_listener_that_does_not_answer_is_another_connect_timeout_than_no_listener(timeout):
    """In this attempt, or in the one before it: after three seconds the client tries again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(errors.ConnectTimeout, match=f"a listener at {url} took the connection"):
            malamute.connect(url, timeout=timeout)


def test_a_url_that_is_none_is_refused():
    with pytest.raises(errors.InvalidValue, match="invalid URL"):
        malamute.connect("nonsense://a")
    with pytest.raises(errors.InvalidName):
        malamute.connect(address="a\nb")


@pytest.mark.parametrize("sockets", [3, 4, 5])
def test_a_context_that_is_full_raises_a_numbered_error_and_keeps_nothing(broker, sockets):
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, sockets)
        with malamute.connect(broker.url, context=context) as first:
            for _ in range(2):
                with pytest.raises(errors.OutOfSockets, match="604"):
                    malamute.connect(broker.url, context=context)
            assert first.query("status") == "status"


def test_clients_without_a_context_have_room_for_more_sockets_than_libzmq_gives(broker, monkeypatch):
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 3)
        monkeypatch.setattr(zmq.Context, "instance", lambda: context)
        with malamute.connect(broker.url), malamute.connect(broker.url) as second:
            assert context.get(zmq.MAX_SOCKETS) == SOCKETS_MAX
            assert second.query("status") == "status"


def test_a_context_with_more_sockets_is_left_alone(broker, monkeypatch):
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, SOCKETS_MAX + 1)
        monkeypatch.setattr(zmq.Context, "instance", lambda: context)
        with malamute.connect(broker.url):
            assert context.get(zmq.MAX_SOCKETS) == SOCKETS_MAX + 1


def test_a_client_that_finds_no_socket_to_connect_again_says_so_and_tries_again(broker, monkeypatch):
    full = True

    class Full(Link):
        def __init__(self, *arguments):
            if full:
                raise errors.OutOfSockets("none left")
            super().__init__(*arguments)

    first = Scripted()
    with malamute.connect([first.url, broker.url]) as client:
        client.on_event = lambda event: None
        monkeypatch.setattr("malamute.client.link.connection.Link", Full)
        first.stop()
        with pytest.raises(errors.OutOfSockets, match="none left"):
            client.query("status", timeout=30)
        full = False
        assert client.query("status", timeout=30) == "status"


def test_a_refused_hello_is_raised_by_connect(broker):
    broker.answers[wire.Hello] = lambda m: [Error(401, "no", 1)]
    with pytest.raises(errors.AccessRefused):
        malamute.connect(broker.url, address="$x")


def test_publish_stored_returns_the_sequence_and_plain_publish_does_not_wait(broker, client):
    broker.answers[wire.Publish] = lambda m: [Stored([[m.number, m.number, 42]])] if m.number else []
    assert client.publish("s", "a", b"1", assurance="stored") == 42
    assert client.publish("s", "b", b"2", {"x": 1}, assurance="none") == 0
    client.publish_nowait("s", "c", b"3")
    # A message without an answer may join others in one command.
    heard: list[tuple[int, str]] = []
    while len(heard) < 3:
        publish = broker.hears(wire.Publish)
        heard += [(publish.number, subject) for subject in publish.subjects]
    assert heard == [(1, "a"), (0, "b"), (0, "c")]


def test_an_unknown_assurance_is_refused(client):
    with pytest.raises(errors.InvalidValue, match="none or stored"):
        client.publish("s", "a", b"", assurance="confirmed")


def test_a_refused_publish_raises(broker, client):
    broker.answers[wire.Publish] = lambda m: [Error(503, "full", 2, m.number)]
    with pytest.raises(errors.TryLater):
        client.publish("s", "a", b"", assurance="stored")


def test_a_publisher_batches_and_its_receipts_know_their_sequences(broker, client):
    broker.answers[wire.Publish] = lambda m: [Stored([[m.number, m.number, m.number * 100]])]
    with client.publisher("s", batch=3, linger=60) as out:
        receipts = [out.publish("a", b"%d" % n) for n in range(5)]
    heard = [broker.hears(wire.Publish) for _ in range(3)]
    # The first goes at once: nothing was sent a linger ago.
    assert [len(publish.subjects) for publish in heard] == [1, 3, 1]
    assert [receipt.sequence for receipt in receipts] == [100, 200, 201, 202, 300]
    with pytest.raises(errors.Closed):
        out.publish("a", b"")


def test_one_refused_batch_is_raised_at_the_end_and_by_its_receipts(broker, client):
    broker.answers[wire.Publish] = lambda m: [
        Error(503, "full", 2, 2) if m.number == 2 else Stored([[m.number, m.number, m.number]])
    ]
    out = client.publisher("s", batch=2, linger=60)
    receipts = [out.publish("a", b"") for _ in range(5)]
    with pytest.raises(errors.TryLater):
        out.close()
    assert [receipt.error is None for receipt in receipts] == [True, False, False, True, True]


def test_single_messages_that_wait_go_as_one_command_and_each_has_its_sequence(broker, client):
    broker.answers[wire.Publish] = lambda m: [Stored([[m.number, m.number, 10 * m.number]])]
    with client.publisher("s", batch=1, linger=60) as out:
        receipts = [out.publish("a", b"") for _ in range(4)]
    heard = [broker.hears(wire.Publish) for _ in range(2)]
    assert [len(publish.records) for publish in heard] == [1, 3], "the first does not wait"
    assert [receipt.sequence for receipt in receipts] == [10, 20, 21, 22]


def test_waiting_for_a_receipt_ships_its_batch(broker, client):
    with client.publisher("s", linger=60) as out:
        out.publish("a", b"")
        assert out.publish("a", b"").wait(10) == 2 - 1


def test_any_wait_ships_what_a_publisher_holds(broker, client):
    with client.publisher("s", linger=60) as out:
        out.publish("a", b"")
        receipt = out.publish("a", b"")
        assert client.query("status") == "status"
        client.flush()
        assert receipt.done


@pytest.mark.parametrize("assurance", ["none", "stored"])
def test_a_flush_ships_what_a_publisher_holds_for_want_of_room(broker, client, assurance):
    broker.answers[wire.Ping] = lambda m: []
    out = client.publisher("s", assurance=assurance, timeout=0.05)
    published = 0
    with suppress(errors.TryLater):
        while True:
            out.publish("a", bytes(10_000))
            published += 1
    broker.answers[wire.Ping] = lambda m: [wire.Pong()]
    broker.say(wire.Pong())
    broker.say(wire.Pong())
    client.close()
    heard = 0
    while not isinstance(message := broker.heard.get(timeout=10), wire.Bye):
        heard += len(message.records) if isinstance(message, wire.Publish) else 0
    assert heard == published


@pytest.fixture
def narrow(broker: Scripted) -> Iterator[malamute.Client]:
    """A client of a broker that takes 100,000 bytes at once."""
    limits = {"message_bytes": 100_000}
    broker.answers[wire.Hello] = lambda m: [Welcome(2, b"id", b"broker", False, "scripted", limits)]
    with malamute.connect(broker.url) as client:
        yield client


def test_a_message_that_is_too_large_takes_none_of_those_with_it_that_wait(narrow):
    with narrow.publisher("s", linger=60) as out:
        receipts = [out.publish("a", b"") for _ in range(3)]
        with pytest.raises(errors.TooLarge):
            out.publish("a", bytes(100_001))
        receipts.append(out.publish("a", b""))
        with pytest.raises(errors.TooLarge):
            out.publish_many(["a"] * 2, [bytes(70_000), bytes(100_001)])
        out.publish_many(["a"] * 3, [bytes(60_000)] * 3)
    assert all(receipt.done and receipt.error is None for receipt in receipts)


@pytest.mark.parametrize("assurance", ["none", "stored"])
def test_small_messages_and_one_just_below_the_limit_are_two_commands(broker, narrow, assurance):
    bodies = [b"small"] * 3 + [bytes(99_990)] + [b"small"] * 2
    with narrow.publisher("s", assurance=assurance, linger=60) as out:
        receipts = [out.publish("a", body) for body in bodies]
    assert all(receipt.done and receipt.error is None for receipt in receipts)
    # The first does not wait.
    assert [len(broker.hears(wire.Publish).records) for _ in range(4)] == [1, 2, 1, 2]


def test_large_messages_that_wait_for_room_go_one_by_one(broker, narrow):
    broker.answers[wire.Publish] = lambda m: []
    narrow._session.outbox.window_commands = 1
    out = narrow.publisher("s", linger=60)
    receipts = [out.publish("a", bytes(90_000)) for _ in range(2)]
    broker.answers[wire.Publish] = lambda m: [Stored([[m.number, m.number, m.number]])]
    broker.say(Stored([[1, 1, 1]]))
    receipts.append(out.publish("a", bytes(90_000)))
    out.close()
    assert [receipt.sequence for receipt in receipts] == [1, 2, 3]


def test_publish_many_refuses_columns_that_differ(client):
    with client.publisher("s") as out, pytest.raises(errors.InvalidValue, match="expected lists of subjects"):
        out.publish_many(["a"], [b"1", b"2"])


def test_publish_many_ships_batches(broker, client):
    with client.publisher("s", batch=2) as out:
        out.publish_many(["a", "b", "c"], [b"1", b"2", b"3"], [None, {}, {"x": 1}])
    assert [broker.hears(wire.Publish).subjects for _ in range(2)] == [["a", "b"], ["c"]]


def test_a_broker_that_never_confirms_is_try_later(broker, client):
    broker.answers[wire.Publish] = lambda m: []
    client._session.outbox.window_commands = 1
    out = client.publisher("s", batch=1, timeout=0.05)
    receipt = out.publish("a", b"")
    with pytest.raises(errors.TryLater, match="1 commands wait"):
        out.publish("a", b"")
    with pytest.raises(errors.TimedOut):
        receipt.wait(0.01)
    broker.say(Stored([[1, 1, 1]]))
    out.flush(10)
    out.close()


def test_messages_come_out_of_a_filled_buffer_and_credit_goes_back(broker, client):
    subscription = client.subscribe("s", "a.*", credit=8)
    assert broker.hears(wire.Subscribe).criteria == [["topic", "a.*"]]
    broker.say(stream(1, 0, 8))
    assert subscription.receive(10).sequence == 1
    assert [m.sequence for m in subscription.take(4, 10)] == [2, 3, 4, 5]
    broker.say(stream(1, 8, 2))
    assert [m.headers for m in subscription.take(5, 10)] == [{"n": 1}] * 3
    assert [m.sequence for m in subscription.take(5, 10)] == [9, 10]
    assert broker.hears(wire.Credit).messages == 4
    assert subscription.last == 10
    with pytest.raises(errors.TimedOut):
        subscription.receive(0)
    assert subscription.take(1, 0) == []


def test_an_iterator_ends_when_its_subscription_is_cancelled(broker, client):
    with client.subscribe("s") as subscription:
        broker.say(stream(1, 0, 3))
        for message in subscription:
            subscription.cancel()
            assert message.body == b"body"
    assert [*subscription.batches(2)] == []
    with pytest.raises(errors.Closed):
        subscription.receive()
    assert broker.hears(wire.Cancel).source == 1


def test_a_refused_subscription_raises(broker, client):
    broker.answers[wire.Subscribe] = lambda m: [Error(415, "bad", 6, m.source)]
    with pytest.raises(errors.InvalidSelector):
        client.subscribe("s", "[")


def test_a_subscription_without_an_answer_is_given_up(broker, client):
    broker.answers[wire.Subscribe] = lambda m: []
    with pytest.raises(errors.TimedOut):
        client.subscribe("s", timeout=0.01)
    assert broker.hears(wire.Cancel).source == 1


@pytest.mark.parametrize("credit", [0, -2])
def test_a_window_holds_one_message_at_least(client, credit):
    with pytest.raises(errors.InvalidValue):
        client.subscribe("s", credit=credit)


def test_a_gap_is_reported_to_the_handler(broker, client):
    events: list[object] = []
    client.on_event = events.append
    subscription = client.subscribe("s", start="seq:1")
    broker.say(wire.Gap(1, 1, 4, "overwritten"))
    broker.say(stream(1, 4, 1))
    assert subscription.receive(10).sequence == 5
    assert str(events[0]) == "Gap(stream='s', first=1, last=4, reason='overwritten')"
    assert subscription.gaps == 1


def test_an_event_handler_that_fails_is_told_of_the_other_events_still(broker, client):
    seen: list[wire.Gap] = []

    def fail_first(event: wire.Gap) -> None:
        seen.append(event)
        if len(seen) == 1:
            raise ValueError("no gaps here")

    client.subscribe("s", start="seq:1")
    client.on_event = fail_first
    broker.answers[wire.Ping] = lambda m: [wire.Gap(1, 1, 4, "x"), wire.Gap(1, 7, 9, "x"), wire.Pong()]
    with pytest.raises(ValueError, match="no gaps here"):
        client.flush()
    client.query("status")
    assert [event.first for event in seen] == [1, 7]


def test_mail_is_acknowledged_when_the_next_is_asked_for(broker, client):
    mailbox = client.mailbox()
    broker.hears(wire.Credit)
    broker.say(queued(0, 1, 2))
    assert client.receive(10).sequence == 1
    assert client.receive(10).sequence == 2
    assert broker.hears(wire.Ack).ranges == [[1, 1]]
    with pytest.raises(errors.TimedOut):
        mailbox.receive(0)
    assert broker.hears(wire.Ack).ranges == [[2, 2]]


def test_mail_of_a_block_that_failed_is_not_acknowledged(broker):
    def fail() -> None:
        with malamute.connect(broker.url, address="alice") as client:
            client.mailbox()
            broker.hears(wire.Credit)
            broker.say(queued(0, 1, 1))
            client.receive(10)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    while not isinstance(message := broker.heard.get(timeout=10), wire.Bye):
        assert not isinstance(message, wire.Ack)


def test_an_anonymous_client_has_no_mailbox(broker):
    with malamute.connect(broker.url) as client, pytest.raises(errors.InvalidValue):
        client.mailbox()


def test_replies_come_in_order_and_end_with_the_final_one(broker, client):
    def answer(request: wire.Request) -> list[wire.Message]:
        part = {**request.properties[0], "service": "svc", "final": False}
        return [queued(0, 1, 2, part), queued(0, 3, 1, {**part, "final": True})]

    broker.answers[wire.Request] = answer
    replies = [*client.request("svc", "a", b"?", assurance="none")]
    assert [(reply.sequence, reply.final) for reply in replies] == [(1, False), (2, False), (3, True)]


def test_a_request_without_a_final_reply_times_out_once(broker, client):
    replies = client.request("svc", "a", b"?", timeout=0.01)
    with pytest.raises(errors.TimedOut, match=r"within 0\.01 s"):
        next(replies)
    assert [*replies] == []


def test_a_refused_request_raises_when_its_replies_are_asked_for(broker, client):
    broker.answers[wire.Request] = lambda m: [Error(503, "full", 4, m.number)]
    with pytest.raises(errors.TryLater):
        next(client.request("svc", "a", b"?"))


def test_a_handler_answers_and_one_that_raises_says_so(broker, client, caplog):
    broker.answers[wire.Offer] = lambda m: [Ok(7, m.source), queued(m.source, 1, 3)]
    seen: list[int] = []

    @client.service("svc", "a.*", credit=3, on_error="reply")
    def handle(request: malamute.Request) -> bytes | None:
        seen.append(request.sequence)
        if request.sequence == 2:
            raise ValueError("no paper")
        if request.sequence == 3:
            client.stop()
            return None
        return b"done"

    client.run()
    assert seen == [1, 2, 3]
    replies = [broker.hears(wire.Reply) for _ in range(3)]
    assert [reply.records[0] for reply in replies] == [
        pack_record(None, b"done"),
        pack_record({"malamute.error": "ValueError: no paper"}, b""),
        pack_record(None, b""),
    ]
    assert "no paper" in caplog.text


def test_a_cursor_that_the_broker_does_not_move_for_a_handler_is_reported(broker, client):
    """The commit is not waited for: handled messages are redelivered to the next reader."""
    events: list[object] = []
    client.on_event = events.append
    broker.answers[wire.Subscribe] = lambda m: [Ok(6, m.source, 1), stream(m.source, 0, 1)]
    broker.answers[wire.Commit] = lambda m: [Error(507, "disk is full", 14, m.number)]

    @client.subscription("s", start="seq:1", cursor="c")
    def handle(message: malamute.Message) -> None:
        client.stop()

    client.run()
    client.flush()
    (event,) = events
    assert isinstance(event, Refusal)
    assert isinstance(event.error, errors.StorageFull)


def test_a_taken_address_ends_every_call(broker):
    client = malamute.connect(broker.url, address="alice")
    subscription = client.subscribe("s")
    broker.say(stream(1, 0, 1))
    broker.say(Error(409, "a newer session", 1))
    assert subscription.receive(10).sequence == 1
    for call in (subscription.receive, lambda: client.query("status"), lambda: client.send("bob", "a", b"")):
        with pytest.raises(errors.AddressTaken):
            call()
    subscription.cancel()
    client.close()


def test_another_thread_is_refused(client):
    caught: list[Exception] = []

    def use() -> None:
        try:
            client.query("status")
        except errors.LinkError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])


@pytest.mark.parametrize("verb", ["ack", "nak", "reject", "release"])
def test_what_another_thread_was_refused_to_settle_can_be_settled_still(broker, client, verb):
    broker.answers[wire.Credit] = lambda m: [queued(0, 1, 1)]
    mail = client.mailbox(auto_ack=False).receive(timeout=5)
    caught: list[Exception] = []

    def use() -> None:
        try:
            getattr(mail, verb)()
        except errors.LinkError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert caught
    assert not mail.settled
    mail.ack()
    client.flush()
    assert broker.hears(wire.Ack).ranges == [[1, 1]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(client):
    pid = os.fork()
    if pid == 0:
        try:
            client.query("status")
        except errors.LinkError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.query("status") == "status"


def test_a_broker_that_does_not_say_goodbye_is_a_timeout_and_the_socket_is_closed(broker):
    broker.answers[wire.Bye] = lambda m: []
    client = malamute.connect(broker.url)
    with pytest.raises(errors.TimedOut):
        client.close(0.01)
    assert client._session.state is State.ENDED
    assert "ended" in repr(client)


def test_an_interrupt_ends_a_wait(broker, client):
    broker.answers[wire.Query] = lambda m: []

    def interrupt() -> None:
        broker.hears(wire.Query)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.query("status", timeout=60)
    thread.join()
    broker.answers[wire.Query] = DEFAULTS[wire.Query]
    assert client.query("status") == "status"
