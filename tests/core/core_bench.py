"""The core on a bench: a clock in hand, a store that is worked step by step, and peers with names.

A `Bench` does what the loop does, one step at a time and only when told. Messages go through the codec
in both directions, so a peer sees what a client would see.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

from malamute.core.broker import Core
from malamute.core.iteration.effects import Notice
from malamute.core.iteration.settings import Settings
from malamute.core.queue.limits import KEY, RESERVE
from malamute.core.queue.source import QueueSource
from malamute.errors import MalamuteError, StorageFull
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import pack_record, unpack_payload, unpack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    VERSION,
    Ack,
    Credit,
    Deliver,
    Gap,
    Hello,
    Message,
    Offer,
    Publish,
    Reply,
    Request,
    Send,
    Subscribe,
)
from malamute.server.worker import ANSWERS
from malamute.store.commit import Append, done_anyway
from malamute.store.operations import Damage, PutValue, ReadChunks
from malamute.store.policies import KEEP_ALL, QueuePolicy, StreamPolicy, StreamRetention
from malamute.store.tables import SEQUENCES

START = 1_700_000_000.0


def peer_id(name: str) -> bytes:
    """The routing id of the peer with this name."""
    return (b"\x01" + name.encode()).ljust(16, b".")


class Item(NamedTuple):
    """One delivered message."""

    sequence: int
    subject: str
    body: bytes
    sender: str = ""
    attempt: int = 1
    properties: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None


def items(delivery: Deliver) -> list[Item]:
    """The messages of a delivery."""
    columns = unpack_payload(delivery.payload, delivery.large)
    found = []
    for sequence, _, sender, subject, record, attempts, properties in columns.rows():
        headers, body = unpack_record(record)
        found.append(Item(sequence, subject, b"".join(body), sender, attempts, properties, headers or None))
    return found


class Bench:
    """A broker without net, disk and time. `no_journal` are the streams that are not journaled."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        retention: StreamRetention | None = None,
        no_journal: tuple[str, ...] = (),
        expiry: float = 600.0,
        store_bytes: int = 1 << 30,
        queues: QueuePolicy | None = None,
        lifecycle: bool = False,
        settled: bool = False,
        audit: bool = False,
        unjournaled: bool = False,
        reserved: bool = True,
    ) -> None:
        """`reserved` is whether the sequences of queues are, as they are once the first one was stored."""
        self.now = START
        self.settings = Settings(
            limits=limits or Limits(),
            session_expiry=expiry,
            streams=lambda stream: StreamPolicy(
                journal=stream not in no_journal, retention=retention or KEEP_ALL
            ),
            unjournaled=unjournaled,
            queues=lambda kind, name: queues or QueuePolicy(),
            lifecycle_events=lifecycle,
            settled_events=settled,
            audit=audit,
            software="bench",
            backups="/backups",
        )
        self._reserved = reserved
        self.set_by = 0.0
        """Seconds by which the clock was set while no broker ran; all others were counted."""
        self.store = MemoryStore(
            size=store_bytes,
            counted=lambda: self.now - self.set_by,
        )
        self.appends: deque[Append] = deque()
        self._failed: set[int] = set()
        """The tokens of what was not stored."""
        self.reads: deque[ReadChunks] = deque()
        self.notices: list[Notice] = []
        self.faulty = False
        """Whether a test makes the core raise."""
        self.events: list[str] = []
        """The subjects of the broker's own events."""
        self.log: list[tuple[str, Message]] = []
        self._names: dict[bytes, str] = {}
        self._start()

    def make_core(self) -> Core:
        """A broker on what was stored."""
        records_bytes = self.settings.limits.queues_memory_bytes // 2
        return Core(self.now, self.settings, self.store.recover(records_bytes=records_bytes, now=self.now))

    def _start(self) -> None:
        self.core = self.make_core()
        if self._reserved:
            sequences = self.core.queue_limits.sequences
            sequences.reserved = sequences.floor + RESERVE
            self.store.write([PutValue(SEQUENCES, KEY, sequences.reserved)])
        tell = self.core.effects.event

        def event(subject: str, body: bytes = b"", /, **details: Any) -> None:
            self.events.append(subject)
            tell(subject, body, **details)

        self.core.effects.event = event
        self.appends.clear()
        self._failed.clear()
        self.reads.clear()

    # What peers do

    def receive(self, name: str, *messages: Message) -> None:
        """Take in messages from a peer; the iteration goes on."""
        for message in messages:
            self.receive_frames(name, [bytes(frame) for frame in encode(message)])

    def receive_frames(self, name: str, frames: list[bytes]) -> None:
        """Take in any bytes from a peer; the iteration goes on."""
        peer = peer_id(name)
        self._names[peer] = name
        try:
            message = decode(frames)
        except MalamuteError as error:
            self.core.refuse(peer, error, self.now)
        else:
            self.core.receive(peer, message, self.now)

    def tell(self, name: str, *messages: Message) -> None:
        """Take in messages from a peer in an iteration of their own."""
        self.receive(name, *messages)
        self.iterate()

    def ask(self, name: str, *messages: Message) -> list[Message]:
        """The same, and what the peer is sent in this iteration."""
        self.sent(name)
        self.tell(name, *messages)
        return self.sent(name)

    def open(self, *names: str) -> None:
        """Let peers say HELLO with their names as addresses."""
        for name in names:
            self.ask(name, Hello([VERSION], name))

    def lost(self, name: str) -> None:
        """The peer cannot be reached any more."""
        self.core.lost(peer_id(name), self.now)
        self.iterate()

    def block(self, name: str) -> None:
        """The peer's pipe is full."""
        self.core.blocked(peer_id(name))

    def unblock(self, name: str) -> None:
        """The peer's pipe has room again."""
        self.core.unblocked(peer_id(name), self.now)
        self.iterate()

    # What the loop does

    def iterate(self) -> None:
        """End the iteration: note what is to be stored, read and sent."""
        ready = self.core.ready()
        if not self.faulty:
            assert not self.core.effects.faults.by_place, [n.details for n in ready.notices]
        self.appends += ready.appends
        self.reads += ready.reads
        self.notices += ready.notices
        for peer, message in ready.sends:
            frames = [bytes(frame) for frame in encode(message)]
            self.log.append((self._names.get(peer, ""), decode(frames)))

    def wait(self, seconds: float) -> None:
        """Let time go by, and tell the core."""
        self.now += seconds
        self.core.tick(self.now)
        self.iterate()

    def commit(self) -> None:
        """Store what was handed out first, and tell the core."""
        if self.appends[0].fault or self.appends[0].needs & self._failed:
            self.fail(self.appends[0].fault)
            return
        append = self.appends.popleft()
        self.store.write(append.operations)
        if firsts := self.store.pop_firsts():
            self.core.streams.trimmed(firsts)
        self.core.stored(append.token, self.now)
        self.iterate()

    def fail(self, error: MalamuteError | None = None) -> None:
        """Fail what was handed out first, as the writer does: what gives room back is done."""
        append = self.appends.popleft()
        self._failed.add(append.token)
        self.store.write(done_anyway(append))
        self.core.store_failed(append.token, error or StorageFull("the disk is full"), self.now)
        self.iterate()

    def read(self) -> None:
        """Do the read that was asked for first."""
        question = self.reads.popleft()
        self.core.answered(question, ANSWERS[type(question)](self.store, question), self.now)
        self.iterate()

    def read_all(self) -> None:
        """Read until nothing more is asked for, without storing anything."""
        while self.reads:
            self.read()

    def settle(self) -> None:
        """Store and read until there is nothing left to do. What is held to be stored later is stored too."""
        if (hold := self.core.queue_limits.hold).holding:
            hold.end()
        self.iterate()
        while self.appends or self.reads or self.core.effects.chores or self.core.streams.active:
            if self.appends or self.reads:
                self.commit() if self.appends else self.read()
            else:
                self.iterate()

    def crash(self) -> None:
        """Kill the broker and start another one on what was committed."""
        self._start()

    def restart(self) -> None:
        """Stop the broker cleanly and start another one."""
        self.core.close()
        self.settle()
        self._start()

    def restart_at(self, seconds: float) -> None:
        """The same with a clock that was set by so many seconds meanwhile."""
        self.core.close()
        self.settle()
        self.now += seconds
        self.set_by += seconds
        self._start()

    # What peers see

    def sent(self, name: str) -> list[Message]:
        """What a peer was sent since the last time."""
        sent = [message for peer, message in self.log if peer == name]
        self.log = [entry for entry in self.log if entry[0] != name]
        return sent

    def got(self, name: str) -> list[Item]:
        """The messages delivered to a peer since the last time; whatever else it was sent is dropped."""
        return [
            item for message in self.sent(name) if isinstance(message, Deliver) for item in items(message)
        ]

    def bodies(self, name: str) -> list[bytes]:
        """The bodies of these messages."""
        return [item.body for item in self.got(name)]


def bench_with_stream() -> Bench:
    """A bench with a stream `s` that has one message and a reservation, its publisher alice, and bob."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"0"))
    bench.settle()
    return bench


def check_accounts(core: Core) -> None:
    """Hold what the core has counted against what there is."""
    queues = [queue for table in (core.mailboxes, core.services) for queue in table.by_name.values()]
    dead = [entry for queue in queues for entry in queue.dead_letters.entries.values()]
    assert core.queue_limits.queues == len(queues)
    assert core.queue_limits.bytes == sum(q.usage.bytes for q in queues) + sum(e.size_bytes for e in dead)
    held = sum(len(queue.entries) + queue.usage.reserved for queue in queues)
    assert core.queue_limits.messages == held + len(dead)
    for queue in queues:
        assert queue.states.counts["ready"] == sum(entry.state == "ready" for entry in queue.entries.values())
        assert queue.usage.bytes >= sum(entry.size_bytes for entry in queue.entries.values())
    for session in core.sessions.by_peer.values():
        sources = [source for source in session.sources.values() if isinstance(source, QueueSource)]
        assert session.holding == sum(len(source.consumer.outstanding) for source in sources)
        assert session.open or not session.sources


def gaps(messages: Iterable[Message]) -> list[Gap]:
    """The gaps among some messages."""
    return [message for message in messages if isinstance(message, Gap)]


def sequences(messages: Iterable[Message]) -> list[int]:
    """The sequences of what some messages deliver."""
    return [item.sequence for m in messages if isinstance(m, Deliver) for item in items(m)]


def _columns(*bodies: bytes) -> list[bytes]:
    return [pack_record(None, body) for body in bodies]


def publish(*bodies: bytes, number: int = 0, stream: str = "s", subject: str = "a") -> Publish:
    return Publish(stream, number, [subject] * len(bodies), _columns(*bodies))


def send(address: str, *bodies: bytes, number: int = 0, **options: Any) -> Send:
    """A SEND, with the same options for each message."""
    properties = [options] * len(bodies) if options else None
    return Send(address, number, ["a"] * len(bodies), _columns(*bodies), properties)


def request(
    *bodies: bytes, number: int = 0, service: str = "w", subject: str = "a", **options: Any
) -> Request:
    """A REQUEST, with the same options for each message beside its correlation."""
    properties = [{"correlation": place, **options} for place in range(len(bodies))]
    return Request(service, number, [subject] * len(bodies), _columns(*bodies), properties)


def reply(source: int, *sequences: int, number: int = 0, final: bool = True, body: bytes = b"done") -> Reply:
    count = len(sequences)
    return Reply(source, number, list(sequences), [final] * count, _columns(*repeat(body, count)))


def subscribe(source: int = 1, credit: int = -1, **fields: Any) -> Subscribe:
    subscription = Subscribe(source, "s", [["all", ""]], credit=credit)
    return subscription._replace(**fields)


def offer(source: int = 1, credit: int = -1, pattern: str = "#", **fields: Any) -> Offer:
    return Offer(source, "w", [["topic", pattern]], credit=credit)._replace(**fields)


def mail_credit(messages: int = -1) -> Credit:
    return Credit(0, messages, -1)


def ack(source: int, *ranges: tuple[int, int]) -> Ack:
    return Ack(source, [list(pair) for pair in ranges])


def chunks(store: MemoryStore, stream: str = "s") -> Iterator[tuple[int, bytes]]:
    """Each stored message of a stream: its sequence and its body."""
    start = 1
    while found := store.read(stream, start, bytes_max=1 << 20).found:
        for chunk in found:
            if isinstance(chunk, Damage):
                continue
            columns = unpack_payload(chunk.payload, chunk.large)
            bodies = (b"".join(unpack_record(record)[1]) for record in columns.records)
            yield from zip(columns.each_sequence(), bodies, strict=True)
        start = found[-1].last + 1
