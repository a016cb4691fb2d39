"""The faults that the simulation has found, each in the fewest words that show it."""

from __future__ import annotations

from typing import Any

from malamute.client.session.outbox import Command
from malamute.client.session.session import ClientSession
from malamute.core.broker import Core
from malamute.core.iteration.settings import Settings
from malamute.errors import StorageFull
from malamute.journal.memory import MemoryStore
from malamute.protocol import messages as wire
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.protocol.codec import encode
from malamute.server.worker import ANSWERS, WriterThread
from malamute.store.commit import Append, Written
from malamute.store.operations import PutMessages, PutValue
from malamute.store.policies import KEEP_ALL, StreamPolicy, StreamRetention
from malamute.store.tables import NUMBERS, SESSIONS

ANN, BOB = b"\x01ann".ljust(16, b"."), b"\x01bob".ljust(16, b".")
START = 1_700_000_000.0
ALL = [["all", ""]]


class Broker:
    """A core and its store. `sent` gathers what it sends."""

    def __init__(self, retention: StreamRetention | None = None) -> None:
        self.store = MemoryStore()
        settings = Settings(streams=lambda stream: StreamPolicy(retention=retention or KEEP_ALL))
        self.core = Core(START, settings, self.store.recover())
        self.sent: list[Any] = []
        self.questions: list[Any] = []
        for peer in (ANN, BOB):
            self.tell(peer, wire.Hello([2], peer[1:4].decode()))

    def tell(self, peer: bytes, *messages: Any) -> None:
        for message in messages:
            self.core.receive(peer, message, START)
        self.iterate()

    def iterate(self) -> None:
        while True:
            ready = self.core.ready()
            self.sent += [message for _, message in ready.sends]
            self.questions += ready.reads
            for append in ready.appends:
                self.store.write(append.operations)
                self.core.stored(append.token, START)
            if not ready.appends:
                return

    def answer(self) -> None:
        while self.questions:
            question = self.questions.pop(0)
            self.core.answered(question, ANSWERS[type(question)](self.store, question), START)
            self.iterate()

    def sequences(self) -> list[int]:
        found = [message for message in self.sent if isinstance(message, wire.Delivery)]
        return [s for d in found for s in d.part.columns.each_sequence()]


def records(count: int) -> list[bytes]:
    return [pack_record(None, b"%d" % place) for place in range(count)]


def publish(*subjects: str) -> wire.Publish:
    return wire.Publish("s", 0, [*subjects], records(len(subjects)))


class Fails(MemoryStore):
    """A store that fails its first writes."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def write(self, operations: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageFull("the disk is full")
        super().write(operations)


def test_what_reports_a_failed_number_as_stored_is_not_stored() -> None:
    put = PutMessages("mailbox", "bob", 1, 1, "", ["a"], [b"x"])
    store, results = Fails(2), []
    results_of = type("Results", (), {"put": lambda self, result: results.append(result)})()
    writer = WriterThread("writer", store, results_of)
    writer.work([Append(1, [put, PutValue(SESSIONS, (ANN, NUMBERS), b"2")])])
    writer.work(
        [
            Append(2, [PutValue(SESSIONS, (ANN, NUMBERS), b"3")]),
            Append(3, [PutValue(SESSIONS, (BOB, NUMBERS), b"2")]),
        ]
    )
    # Now the core knows, so this one tells the truth.
    writer.work([Append(4, [PutValue(SESSIONS, (ANN, NUMBERS), b"4")], known=1)])
    told = [(written.tokens, written.error is None) for written in results if isinstance(written, Written)]
    assert told == [([1], False), ([2], False), ([3], True), ([4], False)]
    writer.work([Append(5, [PutValue(SESSIONS, (ANN, NUMBERS), b"5")], known=4)])
    assert store.recover().table(SESSIONS) == {(ANN, NUMBERS): b"5", (BOB, NUMBERS): b"2"}


def test_what_needs_a_failed_append_is_not_stored() -> None:
    store, results = Fails(2), []
    results_of = type("Results", (), {"put": lambda self, result: results.append(result)})()
    writer = WriterThread("writer", store, results_of)
    writer.work([Append(1, [PutValue(SESSIONS, (ANN, NUMBERS), b"1")])])
    # The core has learned of the failure in the iteration that needs it, so it knows of it when that is over.
    writer.work([Append(2, [PutValue(SESSIONS, (BOB, NUMBERS), b"2")], known=1, needs=frozenset((1,)))])
    writer.work([Append(3, [PutValue(SESSIONS, (BOB, NUMBERS), b"3")], known=2)])
    told = [(written.tokens, written.error is None) for written in results if isinstance(written, Written)]
    assert told == [([1], False), ([2], False), ([3], True)]
    assert store.recover().table(SESSIONS) == {(BOB, NUMBERS): b"3"}
    assert not writer._committer._failures


def test_a_request_that_is_answered_before_it_is_sent_again_is_not_sent() -> None:
    broker = Broker()
    broker.tell(ANN, wire.Offer(1, "w", ALL, -1, -1))
    broker.tell(BOB, wire.Request("w", 1, ["a"], records(1)))
    assert broker.sequences() == [1]
    broker.sent.clear()
    reply = wire.Reply(1, 0, [1], [True], records(1))
    broker.tell(ANN, wire.Hello([2], "ann"), wire.Offer(1, "w", ALL, 5, -1), reply)
    assert broker.sequences() == []
    broker.tell(BOB, wire.Request("w", 2, ["a"] * 6, records(6)))
    assert len(broker.sequences()) == 5


def test_what_follows_single_messages_comes_if_the_ring_has_passed_them() -> None:
    broker = Broker(StreamRetention(messages_max=3))
    broker.tell(ANN, publish("a", "b", "a"))
    broker.tell(ANN, wire.Subscribe(1, "s", ALL, start="last-per-subject", credit=-1))
    question = broker.questions.pop()
    broker.core.answered(question, ANSWERS[type(question)](broker.store, question), START)
    broker.tell(BOB, publish("c", "c", "c"))
    broker.answer()
    assert broker.sequences() == [4, 5, 6]


def opened() -> ClientSession:
    session = ClientSession(ANN)
    session.connected()
    give(session, wire.Welcome(2, ANN, b"b", False, "", {}))
    return session


def give(session: ClientSession, *messages: Any) -> None:
    for message in messages:
        session.receive([bytes(frame) for frame in encode(message)])


def delivery(after: int, *sequences: int) -> wire.Deliver:
    columns = Columns([*sequences], 1, "", ["a"] * len(sequences), records(len(sequences)))
    return wire.Deliver(1, after, *pack_stream_payload(columns))


def test_a_commit_that_is_refused_is_settled() -> None:
    session, command = opened(), Command()
    session.sending.commit("s", "blue", 7, command)
    give(session, wire.Error(416, "beyond the head", 14, 1))
    assert command.done
    assert command.error is not None
    assert not len(session.outbox)


def subscribed(session: ClientSession) -> Any:
    return session.inbox.subscribe("s", [("all", "")], where="", start="first", credit=9, credit_bytes=-1)


def test_what_is_left_of_an_older_connection_is_not_taken_before_ok() -> None:
    session = opened()
    source = subscribed(session)
    give(session, wire.Ok(6, 1, 1), delivery(0, 1, 2))
    session.connected()
    give(session, wire.Welcome(2, ANN, b"b", True, "", {}))
    # The session has asked for 3 and what follows. This was sent before.
    give(session, delivery(2, 3, 4), wire.Gap(1, 5, 6, "overwritten"))
    assert source.last == 2
    give(session, wire.Ok(6, 1, 3), delivery(2, 3, 4))
    assert (source.last, source.waiting, source.gaps) == (4, 4, 0)


def test_an_older_ok_does_not_take_a_subscription_back() -> None:
    session = opened()
    source = subscribed(session)
    give(session, wire.Ok(6, 1, 1), delivery(0, 1, 2), wire.Ok(6, 1, 1))
    assert source.last == 2


def test_a_broker_that_lost_its_store_takes_a_subscription_back() -> None:
    session = opened()
    source = subscribed(session)
    give(session, wire.Ok(6, 1, 1), delivery(0, 1, 2))
    session.connected()
    give(session, wire.Welcome(2, ANN, b"c", False, "", {}), wire.Ok(6, 1, 1), delivery(0, 1))
    assert (source.last, source.waiting) == (1, 3)
