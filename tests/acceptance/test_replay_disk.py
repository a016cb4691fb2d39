"""The disk is slow, or full: what is live flows, in the order of the journal, and nothing is promised early.

For the slow disk a gate stands between a broker in the process of the test and its store on a real directory.
For the full one, the system lets the file of a broker grow no more.
"""

import json
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig_daemon import MIB, Daemon, small
from rig_peer import Peer, peer
from rig_waiting import PATIENCE

import malamute
from malamute.client.events import Event, Gap
from malamute.errors import TryLater
from malamute.journal.disk import DiskStore
from malamute.journal.store import Store
from malamute.protocol.batch import unpack_payload
from malamute.protocol.messages import Error, Publish, Send, Stored
from malamute.server import daemon as server
from malamute.store.operations import Chunk, Operation
from malamute.testing import Broker

Connect = Callable[..., malamute.Client]

RECORD = b"\x92\xc0\xc4\x00"


class Gate:
    """A store whose writes wait while it is shut."""

    def __init__(self, store: Store) -> None:
        self.waiting = threading.Event()
        self._store = store
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def write(self, operations: Sequence[Operation]) -> None:
        if not self._open.is_set():
            self.waiting.set()
            assert self._open.wait(PATIENCE)
        self._store.write(operations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Slow:
    """A broker behind a gate, and the clients that are closed before it ends."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.directory = directory
        self.gates: list[Gate] = []
        self._clients = ExitStack()
        open_store = server.open_store
        patch.setattr(server, "open_store", lambda *a, **o: self._behind_a_gate(open_store(*a, **o)))
        self.broker = stack.enter_context(Broker(directory, config=small(16 * MIB)))

    def close_clients(self) -> None:
        self._clients.close()

    def _behind_a_gate(self, store: Store) -> Gate:
        self.gates.append(Gate(store))
        return self.gates[-1]

    @property
    def gate(self) -> Gate:
        return self.gates[-1]

    def connect(self) -> malamute.Client:
        client = malamute.connect(self.broker.url, timeout=PATIENCE)
        client.on_event = lambda event: None
        self._clients.callback(client.close)
        return client

    def peer(self) -> Peer:
        found = self._clients.enter_context(peer(self.broker.url))
        found.open()
        return found

    def stored(self) -> list[tuple[int, str]]:
        """What the journal has, in its order, read from the file when the broker has ended."""
        store = DiskStore.open_existing(self.directory)
        found = store.read("s", 1, bytes_max=16 * MIB).found
        store.close()
        assert all(isinstance(chunk, Chunk) for chunk in found)
        return [
            row
            for chunk in found
            if isinstance(chunk, Chunk)
            for row in rows_of(unpack_payload(chunk.payload, chunk.large))
        ]


def rows_of(columns: Any) -> Iterator[tuple[int, str]]:
    return zip(columns.each_sequence(), columns.subjects, strict=True)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    with ExitStack() as stack:
        made = Slow(tmp_path, monkeypatch, stack)
        yield made
        made.gate.open()
        made.close_clients()


def stall(slow: Slow, publishers: Sequence[Peer], rounds: int) -> None:
    """Shut the gate, and have each publisher publish in each round, until a commit hangs behind the gate."""
    slow.gate.shut()
    for number in range(1, rounds + 1):
        for place, publisher in enumerate(publishers):
            publisher.send(Publish("s", number, [f"{place}.{number}"], [RECORD]))
    assert slow.gate.waiting.wait(PATIENCE)


def settled(publisher: Peer, rounds: int) -> dict[int, int]:
    """The sequence of each number, from the confirmations up to the last number."""
    sequences: dict[int, int] = {}
    while len(sequences) < rounds:
        answer = publisher.receive()
        assert isinstance(answer, Stored), answer
        for first, last, sequence in answer.ranges:
            sequences.update((number, sequence + number - first) for number in range(first, last + 1))
    return sequences


def test_wp36_while_a_commit_hangs_all_is_delivered_nothing_is_confirmed_and_the_orders_are_one(
    slow: Slow,
) -> None:
    """WP36: three publishers with 100 commands each; a fast subscriber, and one with little credit."""
    rounds = 100
    publishers = [slow.peer() for _ in range(3)]
    fast, tight = (slow.connect().subscribe("s", credit=credit) for credit in (1_000, 10))
    first = slow.connect().publish("s", "first", b"", assurance="stored")
    stall(slow, publishers, rounds)
    count = first + 3 * rounds
    live = [(m.sequence, m.subject) for m in (fast.receive(PATIENCE) for _ in range(count))]
    # It is in replay, out of what is accepted and not committed, and live again.
    assert [(m.sequence, m.subject) for m in (tight.receive(PATIENCE) for _ in range(count))] == live
    assert [m.answers() for m in publishers] == [[], [], []]

    slow.gate.open()
    reported = [settled(publisher, rounds) for publisher in publishers]
    assert [sequence for sequence, _ in live] == list(range(1, count + 1))
    expected = {f"{place}.{n}": reported[place][n] for place in range(3) for n in range(1, rounds + 1)}
    assert {subject: sequence for sequence, subject in live[first:]} == expected
    slow.close_clients()
    slow.broker.stop()
    assert slow.stored() == live


def test_wp36_wp39_while_a_commit_hangs_a_new_reader_gets_the_history_and_what_is_not_in_it_yet(
    slow: Slow,
) -> None:
    """WP7, WP36, WP39: the head is beyond the disk."""
    publisher, client = slow.peer(), slow.connect()
    with client.publisher("s") as out:
        for _ in range(100):
            out.publish("before", b"")
    stall(slow, [publisher], 100)
    assert publisher.answers() == []
    for start, first in ((1, 1), ("first", 1), (150, 150), ("last", 200), ("since:1d", 1)):
        messages = client.subscribe("s", start=start, credit=20)
        expected = list(range(first, 201))
        assert [messages.receive(PATIENCE).sequence for _ in expected] == expected
    assert publisher.answers() == []
    slow.gate.open()
    assert settled(publisher, 100) == {number: 100 + number for number in range(1, 101)}


@pytest.fixture
def full(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker whose file has not all of its size yet."""
    config = small(8 * MIB)
    return new_daemon(replace(config, storage=replace(config.storage, preallocate=False))).start()


def fill_disk(daemon: Daemon) -> None:
    """From now on no file of the broker may grow past the size of its store."""
    size = (daemon.config.storage.directory / "data.mdb").stat().st_size
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def empty_disk(daemon: Daemon) -> None:
    """There is room again."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def outcomes(peer: Peer, last: int) -> dict[int, int]:
    """The outcome of each number up to the last: 0, or the code of its error."""
    found: dict[int, int] = {}
    while len(found) < last:
        answer = peer.receive()
        if isinstance(answer, Stored):
            found.update((n, 0) for first, end, _ in answer.ranges for n in range(first, end + 1))
        elif isinstance(answer, Error):
            found[answer.ref] = answer.code
    return {number: found[number] for number in range(1, last + 1)}


def test_on_a_full_disk_live_messages_existing_data_and_acks_continue_and_refusals_have_their_numbers(
    full: Daemon, connect_to: Connect
) -> None:
    """WP28, WP36: real errors of the file system; a gap tells what was not stored, and the log says so."""
    alice, bob, subscriber = connect_to(full.url, "alice"), connect_to(full.url, "bob"), connect_to(full.url)
    for number in range(5):
        alice.send("bob", "hello", b"%d" % number)
    kept = alice.publish("s", "kept", b"kept", assurance="stored")
    live = subscriber.subscribe("s")
    fill_disk(full)
    assert connect_to(full.url).subscribe("s", start=1).receive(PATIENCE).body == b"kept"
    body = b"\x92\xc0\xc5\xea\x60" + bytes(60_000)
    with peer(full.url) as publisher:
        publisher.open()
        for number in range(1, 6):
            publisher.send(Publish("s", number, ["big"] * 8, [body] * 8))
        publisher.send(Send("bob", 6, ["lost"], [body]))
        assert outcomes(publisher, 6) == dict.fromkeys(range(1, 7), 507)
    assert [live.receive(PATIENCE).sequence for _ in range(40)] == list(range(kept + 1, kept + 41))

    mail = bob.mailbox()
    assert [mail.receive(PATIENCE).body for _ in range(5)] == [b"%d" % n for n in range(5)]
    mail.acknowledge()
    bob.flush(PATIENCE)
    empty_disk(full)
    end = alice.publish("s", "again", b"", assurance="stored")
    late, missing = connect_to(full.url), []
    late.on_event = lambda event: missing.extend(sequences(event))
    replay = late.subscribe("s", start=1)
    had = [replay.receive(PATIENCE).sequence]
    while had[-1] < end:
        had.append(replay.receive(PATIENCE).sequence)
    assert sorted(had + missing) == list(range(1, end + 1))
    assert set(had) <= {kept, end}
    assert {entry["code"] for entry in logged(full, "not stored")} == {507}
    full.restart()
    assert [row["messages"] for row in alice.query("mailboxes") if row["name"] == "bob"] == [0]


def sequences(event: Event) -> Sequence[int]:
    """What is missing by an event."""
    return range(event.first, event.last + 1) if isinstance(event, Gap) else ()


def logged(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    """What the broker's log says of one kind of event."""
    entries = map(json.loads, daemon.log.splitlines())
    return [entry for entry in entries if entry["event"] == event]


def test_with_full_queues_senders_are_notified_to_try_later_and_streams_and_acks_continue(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP28: every refusal is reported by its command's own number, and what is acknowledged makes room."""
    daemon = new_daemon(small(4 * MIB)).start()
    alice, bob = connect_to(daemon.url, "alice"), connect_to(daemon.url, "bob")
    live = bob.subscribe("s")
    with peer(daemon.url) as sender:
        sender.open()
        for number in range(1, 201):
            sender.send(Send("bob", number, ["a"], [b"\x92\xc0\xc5\x27\x10" + bytes(10_000)]))
        codes = list(outcomes(sender, 200).values())
    assert set(codes) == {0, 503}
    assert codes == sorted(codes)
    with pytest.raises(TryLater):
        alice.send("bob", "a", bytes(10_000))
    end = alice.publish("s", "a", b"", assurance="stored")
    assert live.receive(PATIENCE).sequence == end
    mail = bob.mailbox()
    for _ in range(20):
        mail.receive(PATIENCE)
    mail.acknowledge()
    bob.flush(PATIENCE)
    alice.send("bob", "a", bytes(10_000))
