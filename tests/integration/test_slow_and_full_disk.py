"""The disk is slow, full, or broken: what is live goes on, and nothing is confirmed that is not stored.

The broker is the real one, on its real store; only between the two stands a gate.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from types import NoneType
from typing import Any

import pytest
from structlog.testing import capture_logs

import malamute
from malamute.client.events import Event, Gap, Refusal
from malamute.config import Config, LimitsConfig, StorageConfig, StreamRule, StreamsConfig
from malamute.errors import InternalError, StorageFull, StoreError, TimedOut, TryLater
from malamute.journal.store import Store
from malamute.protocol.limits import Limits
from malamute.server import daemon
from malamute.server.transport import INTAKE_BYTES
from malamute.store.operations import Operation
from malamute.testing import Broker

PATIENCE = 40.0
MIB = 1024 * 1024
SILENCE = 0.1
"""Seconds in which nothing comes, where nothing is to come. Too short a time would only hide a fault."""

LIMITS = Limits(message_bytes=2 * MIB, queue_bytes=4 * MIB, queues_bytes=4 * MIB, backlog_bytes=8 * MIB)

Connect = Callable[..., malamute.Client]


class Gate:
    """A store whose writes wait while it is shut, or fail while it has a fault."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Event()
        self.fault: StoreError | StorageFull | None = None

    def shut(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def write(self, operations: Sequence[Operation]) -> None:
        if not self._open.is_set():
            self.waiting.set()
            assert self._open.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault
        self._store.write(operations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Rig:
    """A broker whose store has a gate."""

    def __init__(self, broker: Broker, gates: list[Gate]) -> None:
        self.broker = broker
        self._gates = gates

    @property
    def gate(self) -> Gate:
        """That of the broker's present life."""
        return self._gates[-1]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    gates: list[Gate] = []
    open_store = daemon.open_store

    def gated(config: Config, **options: Any) -> Store:
        gates.append(Gate(open_store(config, **options)))
        return gates[-1]

    monkeypatch.setattr(daemon, "open_store", gated)
    streams = StreamsConfig(rule=(StreamRule("live*", journal=False),))
    limits = LimitsConfig(message_bytes=LIMITS.message_bytes)
    overrides = {"backlog_bytes": LIMITS.backlog_bytes, "queue_bytes": LIMITS.queue_bytes}
    config = Config(storage=StorageConfig(size=32 * MIB), limits=limits, streams=streams, overrides=overrides)
    with Broker(tmp_path, config=config) as broker:
        yield Rig(broker, gates)
        gates[-1].fault = None
        gates[-1].open()


@pytest.fixture
def connect(rig: Rig) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(address: str = "") -> malamute.Client:
            client = malamute.connect(rig.broker.url, address=address, timeout=PATIENCE)
            client.on_event = lambda event: None
            stack.callback(client.close)
            return client

        yield make
        rig.gate.fault = None
        rig.gate.open()


def test_while_a_write_hangs_live_messages_flow_and_nothing_is_confirmed(rig: Rig, connect: Connect) -> None:
    """WP28, WP36: also for more than a subscriber's credit, and in the order in which it will be stored."""
    client, subscriber = connect(), connect()
    client.publish("s", "a", b"0", assurance="stored")
    live = subscriber.subscribe("s", credit=50)
    rig.gate.shut()
    out = client.publisher("s", batch=1)
    receipts = [out.publish("a", b"%d" % number) for number in range(1, 201)]
    client.send("bob", "hello", b"unconfirmed", assurance="none")
    with pytest.raises(TimedOut):
        receipts[-1].wait(SILENCE)
    assert rig.gate.waiting.wait(PATIENCE)
    had = [live.receive(PATIENCE) for _ in range(200)]
    assert [(message.sequence, int(message.body)) for message in had] == [(n + 1, n) for n in range(1, 201)]
    assert client.query("status")["backlog_bytes"] > 0
    with pytest.raises(TimedOut):
        receipts[0].wait(SILENCE)
    assert not any(receipt.done for receipt in receipts)

    rig.gate.open()
    out.close()
    assert [receipt.sequence for receipt in receipts] == list(range(2, 202))
    stored = connect().subscribe("s", start="first")
    assert [int(stored.receive(PATIENCE).body) for _ in range(201)] == list(range(201))


def test_while_a_write_hangs_a_stream_without_a_journal_is_delivered_and_nothing_is_held(
    rig: Rig, connect: Connect
) -> None:
    """Also when it is made while the disk hangs."""
    client = connect()
    client.publish("live.1", "a", b"0", assurance="stored")
    rig.gate.shut()
    client.publish_nowait("s", "a", b"held")
    assert rig.gate.waiting.wait(PATIENCE)
    for stream in ("live.1", "live.2"):
        live = connect().subscribe(stream)
        out = client.publisher(stream, batch=1, assurance="none")
        body = bytes(LIMITS.backlog_bytes // 80)
        for _ in range(60):
            out.publish("a", body)
        out.flush()
        had = [live.receive(PATIENCE).sequence for _ in range(60)]
        assert had == list(range(had[0], had[0] + 60))
        assert client.query("status")["backlog_bytes"] < len(body)


def test_wp36_only_the_first_messages_of_a_new_stream_wait_for_a_commit(rig: Rig, connect: Connect) -> None:
    """WP36: without a journal the first one does not, either, not even while its subscriber waits."""
    client = connect()
    client.publish("s", "a", b"0", assurance="stored")
    new, live = client.subscribe("new"), client.subscribe("live.new")
    client.flush()
    rig.gate.shut()
    client.publish_nowait("s", "a", b"held")
    assert rig.gate.waiting.wait(PATIENCE)
    for body in (b"1", b"2"):
        client.publish_nowait("new", "a", body)
        client.publish_nowait("live.new", "a", body)
    client.query("status")  # the broker has dealt with all that came before
    assert [live.receive(PATIENCE).body for _ in range(2)] == [b"1", b"2"]
    with pytest.raises(TimedOut):
        new.receive(SILENCE)
    rig.gate.open()
    assert [new.receive(PATIENCE).sequence for _ in range(2)] == [1, 2]
    client.publish("new", "a", b"3", assurance="stored")
    rig.gate.shut()
    client.publish_nowait("new", "a", b"4")
    assert rig.gate.waiting.wait(PATIENCE)
    assert [new.receive(PATIENCE).sequence for _ in range(2)] == [3, 4]


def test_while_a_write_hangs_no_mail_and_no_request_is_confirmed_or_delivered(
    rig: Rig, connect: Connect
) -> None:
    """WP36, WP43, WP45: what was confirmed must not be lost, and what was delivered must not be unstored."""
    alice, bob, worker = connect("alice"), connect("bob"), connect("worker")
    mail, requests = bob.mailbox(), worker.work("svc")
    bob.flush()
    rig.gate.shut()
    out = alice.sender("bob")
    receipt = out.publish("hello", b"mail")
    replies = alice.request("svc", "do", b"request", timeout=PATIENCE)
    with pytest.raises(TimedOut):
        receipt.wait(SILENCE)
    for taker in (mail, requests):
        with pytest.raises(TimedOut):
            taker.receive(SILENCE)

    rig.gate.open()
    out.close()
    assert mail.receive(PATIENCE).body == b"mail"
    requests.receive(PATIENCE).reply(b"reply")
    assert [reply.body for reply in replies] == [b"reply"]


def test_behind_a_hanging_write_no_more_than_the_backlog_is_accepted(rig: Rig, connect: Connect) -> None:
    """WP4, WP10, WP28: what is accepted is stored, what is refused is reported, and nothing is in between."""
    client = connect()
    client.publish("s", "a", b"first", assurance="stored")
    rig.gate.shut()
    body = bytes(64 * 1024)
    with client.publisher("s", batch=1) as out:
        receipts = [out.publish("a", body) for _ in range(100)]
        client.query("status")  # the broker has dealt with all that the window let out before
        assert {type(receipt.error) for receipt in receipts if receipt.done} == {TryLater}
        # Messages of the iteration that passed the limit are accepted, too.
        assert client.query("status")["backlog_bytes"] < LIMITS.backlog_bytes + INTAKE_BYTES + 2 * len(body)
        rig.gate.open()
        with pytest.raises(TryLater):
            out.flush(PATIENCE)
    assert {type(receipt.error) for receipt in receipts} == {TryLater, NoneType}
    stored = [receipt.sequence for receipt in receipts if receipt.error is None]
    assert stored == list(range(2, 2 + len(stored)))
    # The other half is left to others.
    assert len(stored) * len(body) >= LIMITS.backlog_bytes / 2 - 2 * len(body)
    assert client.publish("s", "a", body, assurance="stored") == 2 + len(stored)


def test_who_floods_a_hanging_disk_is_refused_before_others(rig: Rig, connect: Connect) -> None:
    """Large messages that nobody waits for: what others send with confirmation gets through."""
    hog, alice, worker = connect("hog"), connect("alice"), connect("worker")
    alice.publish("s", "a", b"first", assurance="stored")
    requests = worker.work("svc")
    reported: list[Event] = []
    hog.on_event = reported.append
    rig.gate.shut()
    flood = hog.publisher("flood", batch=1, assurance="none")
    body = bytes(LIMITS.message_bytes // 8)
    for _ in range(100):
        flood.publish("a", body)
    hog.query("status")  # the broker has dealt with all that came before
    assert {type(event.error) for event in reported if isinstance(event, Refusal)} == {TryLater}
    out, mail = alice.publisher("s", batch=1), alice.sender("bob", batch=1)
    receipts = [out.publish("a", bytes(1_000)) for _ in range(100)]
    receipts += [mail.publish("hello", bytes(1_000)) for _ in range(100)]
    replies = alice.request("svc", "do", b"request", timeout=PATIENCE)
    for _ in range(100):
        flood.publish("a", body)
    assert alice.query("status")["backlog_bytes"] > LIMITS.backlog_bytes / 4
    assert not any(receipt.done for receipt in receipts)

    rig.gate.open()
    for receipt in receipts:
        receipt.wait(PATIENCE)
    requests.receive(PATIENCE).reply(b"reply")
    assert [reply.body for reply in replies] == [b"reply"]


def test_when_writes_fail_senders_are_notified_live_messages_flow_and_a_gap_shows_what_was_not_stored(
    rig: Rig, connect: Connect
) -> None:
    """WP28."""
    events: list[Event] = []
    client, late = connect(), connect()
    late.on_event = events.append
    live = client.subscribe("s")
    assert client.publish("s", "a", b"1", assurance="stored") == 1
    rig.gate.fault = StorageFull("the disk is full")
    with pytest.raises(StorageFull):
        client.publish("s", "a", b"2", assurance="stored")
    with pytest.raises(StorageFull):
        client.send("bob", "hello", b"lost", assurance="stored")
    rig.gate.fault = StoreError("the disk is broken")
    with pytest.raises(InternalError):
        client.publish("s", "a", b"3", assurance="stored")
    rig.gate.fault = None
    assert client.publish("s", "a", b"4", assurance="stored") == 4
    client.send("bob", "hello", b"kept")

    assert [live.receive(PATIENCE).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    replayed = late.subscribe("s", start="seq:1")
    assert [replayed.receive(PATIENCE).sequence for _ in range(2)] == [1, 4]
    gaps = [event for event in events if isinstance(event, Gap)]
    assert [(gap.first, gap.last, gap.reason) for gap in gaps] == [(2, 3, "not-stored")]
    assert connect("bob").receive(PATIENCE).body == b"kept"


def test_a_reply_that_cannot_be_stored_leaves_its_request_in_the_queue(rig: Rig, connect: Connect) -> None:
    """WP31: over a restart, too."""
    client, worker = connect("client"), connect("worker")
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    request = worker.work("svc").receive(PATIENCE)
    rig.gate.fault = StorageFull("the disk is full")
    with pytest.raises(StorageFull):
        request.reply(b"lost", assurance="stored").wait(PATIENCE)
    rig.gate.fault = None
    worker.close()
    rig.broker.restart()
    again = connect("again").work("svc").receive(PATIENCE)
    assert (again.body, again.redelivered) == (b"this", True)
    again.reply(b"kept")
    assert [reply.body for reply in replies] == [b"kept"]


def test_when_the_queues_budget_is_used_up_streams_flow_and_nothing_accepted_is_lost(
    rig: Rig, connect: Connect
) -> None:
    """WP4, WP10, WP28, WP37: mail up to the last byte, then five times the ring through the streams."""
    alice = connect("alice")
    receipts = []
    with alice.sender("bob", batch=1) as out:
        for number in range(600):
            receipts.append(out.publish("hello", b"%d" % number, {"filling": "x" * 10_000}))
            if number % 20 == 19:
                with suppress(TryLater):
                    out.flush(PATIENCE)
    accepted = [number for number, receipt in enumerate(receipts) if receipt.error is None]
    assert {type(receipt.error) for receipt in receipts} == {type(None), TryLater}
    assert 0.98 < len(accepted) * 10_100 / LIMITS.queue_bytes < 1

    subscriber = connect()
    live = subscriber.subscribe("s")
    with alice.publisher("s", timeout=PATIENCE) as out:
        for number in range(10_000):
            receipt = out.publish("a", b"%d" % number, {"filling": "x" * 10_000})
            if number % 100 == 99:
                receipt.wait(PATIENCE)
                assert [int(live.receive(PATIENCE).body) for _ in range(100)][-1] == number
    rig.broker.restart()
    mail = connect("bob").mailbox()
    assert [int(mail.receive(PATIENCE).body) for _ in accepted] == accepted


def test_clients_that_ask_a_full_store_for_room_do_not_fill_the_log(rig: Rig, connect: Connect) -> None:
    """A line a second says how often."""
    client = connect()
    rig.gate.fault = StorageFull("the disk is full")
    begun = monotonic()
    with capture_logs() as log:
        for _ in range(200):
            with suppress(StorageFull):
                client.send("bob", "a", b"1", assurance="stored")
    lines = [line for line in log if line["event"] == "not stored"]
    assert 1 <= len(lines) <= monotonic() - begun + 2
