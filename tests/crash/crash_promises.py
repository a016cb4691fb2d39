"""The promises of a broker by a moment, and their check against a store.

The record is of the frames that came and left: by commands, confirmations and
deliveries, not by what the store was asked to write.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
from crash_broker import TAKEN
from crash_load import KEPT

from malamute.core.broker import Core
from malamute.core.bucket.entry import unpack_entry
from malamute.journal.disk import DiskStore
from malamute.protocol.batch import unpack_payload
from malamute.protocol.codec import decode
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Ack,
    Add,
    Bye,
    Change,
    Commit,
    Delete,
    Deliver,
    Hello,
    Message,
    Offer,
    Ok,
    Publish,
    Put,
    Reject,
    Reply,
    Request,
    Send,
    Stored,
    Subscribe,
)
from malamute.protocol.names import AUDIT
from malamute.store.operations import AppendChunk, Chunk, PutMessages, PutValue, Recovered
from malamute.store.tables import ACCOUNTS, BUCKETS, CURSORS, FEEDS, GROUPS, RETENTIONS

Key = tuple[str, str]
Queue = tuple[str, str]
_OF_KEYS = {BY_TYPE[kind].opcode for kind in (Put, Delete, Add)}
_CHANGE, _SUBSCRIBE = BY_TYPE[Change].opcode, BY_TYPE[Subscribe].opcode


class Broken(AssertionError):
    """A promise that a state does not keep."""


class Published(NamedTuple):
    """A message of a stream that was confirmed."""

    stream: str
    sequence: int
    subject: str
    record: bytes


class Confirmed(NamedTuple):
    """A command that was confirmed, with what was answered."""

    number: int
    command: Any
    answer: Any


class Promises:
    """All that was promised so far. `take` goes on by one mark, `settle` allows what was asked for so far."""

    def __init__(self) -> None:
        self.count = 0
        """Confirmations."""
        self._asked: dict[bytes, dict[int, Any]] = defaultdict(dict)
        self._hellos: dict[bytes, Hello] = {}
        self._ended: set[bytes] = set()
        self._confirmed: dict[bytes, dict[int, Confirmed]] = defaultdict(dict)
        self._published: list[Published] = []
        self._queued: dict[bytes, Queue] = {}
        self._cursors: dict[tuple[str, str], int] = {}
        self._changes: list[tuple[str, Mapping[str, Any]]] = []
        self._seen: dict[str, int] = {}
        self._sources: dict[tuple[bytes, int], Queue] = {}
        self._held: dict[tuple[bytes, int, int], bytes] = {}
        self._gone: set[bytes] = set()
        """Records that somebody who had them has settled."""
        self._purged: set[Queue] = set()
        self._deleted: set[str] = set()
        self._keys: dict[Key, tuple[int, bytes]] = {}
        """The last confirmed revision and value of each key."""
        self._sums: dict[Key, int] = {}
        self._keys_gone: set[Key] = set()
        self._results: list[tuple[bytes, Key]] = []
        """Messages that were to be acknowledged together with a put, and its key."""

    def take(self, packed: bytes) -> None:
        """Take note of what went in or out."""
        way, peer, frames = msgpack.unpackb(packed)
        message = decode(frames)
        (self._take_command if way == TAKEN else self._take_answer)(peer, message)

    # --- what comes in

    def _take_command(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Publish | Send | Request | Reply | Commit | Change | Put | Delete | Add):
            self._asked[peer][message.number] = message
        take = _COMMANDS.get(type(message))
        if take is not None:
            take(self, peer, message)

    def _hello(self, peer: bytes, hello: Hello) -> None:
        self._hellos[peer] = hello

    def _bye(self, peer: bytes, bye: Bye) -> None:
        self._ended.add(peer)

    def _subscribe(self, peer: bytes, subscribe: Subscribe) -> None:
        self._sources[peer, subscribe.source] = ("stream", subscribe.stream)

    def _offer(self, peer: bytes, offer: Offer) -> None:
        self._sources[peer, offer.source] = ("service", offer.service)

    def _settled(self, peer: bytes, settled: Ack | Reject) -> None:
        for first, last in settled.ranges:
            self._settle(peer, settled.source, range(first, last + 1))

    def _request(self, peer: bytes, request: Request) -> None:
        for first, last in request.acks:
            self._settle(peer, MAILBOX, range(first, last + 1))

    def _reply(self, peer: bytes, reply: Reply) -> None:
        self._settle(peer, reply.source, reply.sequences)

    def _change(self, peer: bytes, change: Change) -> None:
        if change.topic in ("queue.purge", "queue.redrive"):
            self._purged.add((change.arguments["kind"], change.arguments["name"]))
        elif change.topic in ("stream.delete", "stream.purge"):
            self._deleted.add(change.arguments["stream"])

    def _put(self, peer: bytes, put: Put) -> None:
        for first, last in put.ranges:
            self._settle(peer, put.source, range(first, last + 1))
            record = self._held.get((peer, put.source, first), b"")
            self._results.append((record, (put.bucket, put.key)))

    def _delete(self, peer: bytes, delete: Delete) -> None:
        self._keys_gone.add((delete.bucket, delete.key))

    def _settle(self, peer: bytes, source: int, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._gone.add(self._held.get((peer, source, sequence), b""))

    # --- what leaves

    def _take_answer(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Stored):
            for first, last, sequence in message.ranges:
                for number in range(first, last + 1):
                    sequence = self._confirm(peer, number, message, sequence)
        elif isinstance(message, Ok) and message.about == _CHANGE:
            self._confirm(peer, message.ref, message, 0)
            change = self._asked[peer][message.ref]
            self._changes.append((change.topic, change.arguments))
        elif isinstance(message, Ok) and message.about in _OF_KEYS:
            self._confirm(peer, message.ref, message, 0)
            self._confirm_key(self._asked[peer][message.ref], message.value)
        elif isinstance(message, Deliver):
            self._deliver(peer, message)

    def _confirm(self, peer: bytes, number: int, answer: Message, sequence: int) -> int:
        command = self._asked[peer][number]
        self.count += 1
        self._confirmed[peer][number] = Confirmed(number, command, answer)
        if isinstance(command, Publish):
            for subject, record in zip(command.subjects, command.records, strict=True):
                if sequence:
                    self._published.append(Published(command.stream, sequence, subject, bytes(record)))
                    self._see(command.stream, sequence)
                    sequence += 1
        elif isinstance(command, Send):
            self._queued |= dict.fromkeys(map(bytes, command.records), ("mailbox", command.address))
        elif isinstance(command, Request):
            self._queued |= dict.fromkeys(map(bytes, command.records), ("service", command.service))
        elif isinstance(command, Commit):
            place = command.stream, command.cursor
            self._cursors[place] = max(self._cursors.get(place, 0), command.sequence)
        return sequence

    def _confirm_key(self, command: Put | Delete | Add, outcome: Any) -> None:
        place = command.bucket, command.key
        if isinstance(command, Put):
            self._keys[place] = outcome, bytes(command.value)
        elif isinstance(command, Add):
            self._sums[place] = outcome[0]

    def _deliver(self, peer: bytes, message: Deliver) -> None:
        columns = unpack_payload(message.payload, message.large)
        kind, name = self._sources.get((peer, message.source), ("mailbox", ""))
        if kind == "stream":
            self._see(name, columns.each_sequence()[-1])
            return
        for sequence, record in zip(columns.each_sequence(), columns.records, strict=True):
            self._held[peer, message.source, sequence] = bytes(record)

    def _see(self, stream: str, sequence: int) -> None:
        self._seen[stream] = max(self._seen.get(stream, 0), sequence)

    # --- keeping

    def check(self, store: DiskStore, asked: Asked) -> None:
        """Check that a store keeps all of it.

        `asked` is what clients had asked for when the store was as it is, and what may be gone for it.

        Raises:
            Broken: it does not.
        """
        found = store.recover()
        if found.defects or found.lost:
            raise Broken(f"damage without a fault of the disk: {found.defects} {found.lost}")
        for step in store.verify():
            if step.damages:
                raise Broken(f"damage without a fault of the disk: {step}")
        self._check_streams(store, found, asked)
        self._check_queues(found, asked)
        self._check_values(store, found)
        self._check_keys(found, asked)
        self._check_sessions(found, asked)

    def asked(self) -> Asked:
        """The requests up to now."""
        return Asked(
            frozenset(self._gone),
            frozenset(self._purged),
            frozenset(self._deleted),
            frozenset(self._ended),
            frozenset(self._keys_gone),
        )

    def _check_streams(self, store: DiskStore, found: Recovered, asked: Asked) -> None:
        for stream, sequence in self._seen.items():
            if stream not in asked.deleted and found.streams[stream].reserved < sequence:
                raise Broken(f"{stream} {sequence} would be used again: {found.streams[stream]}")
        stored = {name: dict(_messages(store, name)) for name in found.streams}
        for stream, sequence, subject, record in self._published:
            if stream in asked.deleted:
                continue
            is_short = stream != KEPT and sequence < found.streams[stream].first
            if not is_short and stored[stream].get(sequence) != (subject, record):
                raise Broken(f"{stream} {sequence} was confirmed and is {stored[stream].get(sequence)}")

    def _check_queues(self, found: Recovered, asked: Asked) -> None:
        places: dict[bytes, list[Queue]] = defaultdict(list)
        for (kind, name), queue in found.queues.items():
            for message in queue.messages:
                places[bytes(message.record)].append((kind.removesuffix("-dead"), name))
        for record, queue in self._queued.items():
            held = places[record]
            if held not in ([], [queue]):
                raise Broken(f"{record!r} of {queue} is in {held}")
            if not held and record not in asked.gone and queue not in asked.purged:
                raise Broken(f"{record!r} of {queue} was confirmed and is gone")

    def _check_values(self, store: DiskStore, found: Recovered) -> None:
        for place, sequence in self._cursors.items():
            if found.values[CURSORS].get(place, 0) < sequence:
                raise Broken(
                    f"cursor {place} was committed at {sequence}: {found.values[CURSORS].get(place)}"
                )
        audit = Counter(subject for _, (subject, _) in _messages(store, AUDIT))
        if missing := Counter(topic for topic, _ in self._changes) - audit:
            raise Broken(f"changes that were confirmed and are not in the audit: {missing}")
        for topic, arguments in self._changes:
            if not _is_in_force(topic, arguments, found):
                raise Broken(f"{topic} {arguments} was confirmed and is not in force")

    def _check_keys(self, found: Recovered, asked: Asked) -> None:
        stored = {place: unpack_entry(packed) for place, packed in found.values.get(BUCKETS, {}).items()}
        for place, (revision, value) in self._keys.items():
            entry = stored.get(place)
            if entry is None:
                if place not in asked.keys:
                    raise Broken(f"key {place} was confirmed at {revision} and is gone")
            elif entry.revision < revision or (entry.revision == revision and entry.value != value):
                raise Broken(f"key {place} was confirmed at {revision} with {value!r} and is {entry}")
        for place, total in self._sums.items():
            if place not in stored or int(stored[place].value) < total:
                raise Broken(f"sum {place} was confirmed at {total} and is {stored.get(place)}")
        queued = {bytes(message.record) for queue in found.queues.values() for message in queue.messages}
        for record, place in self._results:
            if record in self._queued and (record in queued) == (place in stored):
                raise Broken(f"{record!r} and its result {place} are not one commit: {place in stored}")

    def _check_sessions(self, found: Recovered, asked: Asked) -> None:
        """Each session that comes back sends its last confirmed command again, and it is not done again."""
        now = max(state.time_ns for state in found.streams.values()) / 1e9 + 0.001 if found.streams else 1.0
        core = Core(now, None, found)
        core.ready()
        for peer, confirmed in self._confirmed.items():
            if peer not in asked.ended:
                last = confirmed[max(confirmed)]
                if max(confirmed) == len(confirmed):
                    _send_again(core, peer, self._hellos[peer], last, now)
        if core.effects.faults.count:
            raise Broken(f"faults: {core.effects.notices}")


class Asked(NamedTuple):
    """Requests of clients, which may be gone."""

    gone: frozenset[bytes]
    purged: frozenset[Queue]
    deleted: frozenset[str]
    ended: frozenset[bytes]
    keys: frozenset[Key]


def _messages(store: DiskStore, stream: str) -> Iterator[tuple[int, tuple[str, bytes]]]:
    for chunk in store.read(stream, 0, bytes_max=1 << 30).found:
        assert isinstance(chunk, Chunk)
        columns = unpack_payload(chunk.payload, chunk.large)
        for place, record in enumerate(columns.records):
            yield chunk.first + place, (columns.subjects[place], bytes(record))


def _is_in_force(topic: str, arguments: Mapping[str, Any], found: Recovered) -> bool:
    if topic == "user.add":
        return (arguments["name"],) in found.values.get(ACCOUNTS, {})
    if topic == "group.add":
        return (arguments["name"],) in found.values.get(GROUPS, {})
    if topic == "feed.set":
        return (arguments["source"].removeprefix("stream/"), arguments["feed"]) in found.values.get(FEEDS, {})
    if topic == "stream.create":
        return arguments["stream"] in found.streams
    if topic == "stream.retain":
        return (arguments["stream"],) in found.values.get(RETENTIONS, {})
    if topic == "cursor.set":
        return (arguments["stream"], arguments["cursor"]) in found.values.get(CURSORS, {})
    return True


def _send_again(core: Core, peer: bytes, hello: Hello, last: Confirmed, now: float) -> None:
    core.receive(peer, hello._replace(unsettled=last.number, settled=[]), now)
    core.receive(peer, last.command, now)
    ready = core.ready()
    answers = [message for to, message in ready.sends if to == peer]
    is_answered = any(
        message == last.answer
        if isinstance(message, Ok)
        else isinstance(message, Stored) and message.ranges[0][:2] == [last.number] * 2
        for message in answers
    )
    if not is_answered:
        raise Broken(f"{last} was confirmed, was sent again, and has the answers {answers}")
    records = {bytes(record) for record in getattr(last.command, "records", ())}
    for append in ready.appends:
        for operation in append.operations:
            again = isinstance(operation, PutMessages) and records & set(map(bytes, operation.records))
            stored = isinstance(operation, AppendChunk) and operation.stream == getattr(
                last.command, "stream", ""
            )
            changed = isinstance(operation, PutValue) and operation.table == BUCKETS
            if again or stored or changed:
                raise Broken(f"{last} was confirmed, was sent again, and is stored again: {operation}")


_COMMANDS: Mapping[type[Any], Callable[[Promises, bytes, Any], None]] = {
    Hello: Promises._hello,
    Bye: Promises._bye,
    Subscribe: Promises._subscribe,
    Offer: Promises._offer,
    Ack: Promises._settled,
    Reject: Promises._settled,
    Request: Promises._request,
    Reply: Promises._reply,
    Change: Promises._change,
    Put: Promises._put,
    Delete: Promises._delete,
}
