"""What can be written to the store and read from it, as values, and what is found there at the start.

The core never sees a disk. It hands out the operations below, in order, and learns by `Core.stored(token)`
that they are committed and fsynced, or by `Core.store_failed` that they are not. Its reads are answered by
`Core.answered`. `malamute.journal` implements the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any, Literal, NamedTuple

from malamute.store.policies import KEEP_ALL, StreamRetention

Key = tuple[str | bytes | int, ...]
"""What a value of a table is known by; the first of it is the owner."""

Value = Any
"""A plain value: None, a truth value, a number, a text, bytes, or a tuple of such."""

Frame = bytes | memoryview
"""A body of bytes that travels without being copied."""

QueueKind = Literal["mailbox", "service", "mailbox-dead", "service-dead"]
"""The dead letters of a mailbox or a service are a queue of their own, by the same name."""


class Chunk(NamedTuple):
    """A run of messages of one stream, as it is sent and as it is stored.

    `first` is the sequence of the first message, and `count` says how many follow without a gap.
    `time_ns` is the broker's clock in nanoseconds UTC, the same for all of them. `payload` is the
    encoded columns of `protocol.batch`; `large` are the records too large to be inside it.
    """

    first: int
    count: int  # type: ignore[assignment]  # no tuple here is searched by its `count` method
    time_ns: int
    payload: bytes
    large: tuple[Frame, ...] = ()

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.first + self.count - 1


class StoredMessage(NamedTuple):
    """One message of a mailbox or a service queue, as it is stored."""

    sequence: int
    time_ns: int
    sender: str
    subject: str
    record: Frame
    properties: Mapping[str, Any] | None = None


class AppendChunk(NamedTuple):
    """Append to a stream, creating it if needed; the ring drops its oldest chunks in the same commit.

    `reserved` is the highest sequence that may be in use before the next commit: after a crash the
    stream continues behind it. `subjects` are those of the messages in order, for the store's index; it
    may be left out, which makes finding the last message of each subject slower. `retention` is what holds
    for the stream from now on, unless another one was set for it at run time.
    """

    stream: str
    chunk: Chunk
    reserved: int
    subjects: Sequence[str] = ()
    retention: StreamRetention = KEEP_ALL


class Reserve(NamedTuple):
    """Set the reserved sequence of a stream without appending, creating the stream if needed.

    So a stream without a journal reserves its numbers, and a broker that shuts down cleanly gives back those
    that it has not used: it may be lower than before, though never below the last message.
    """

    stream: str
    reserved: int


class Retain(NamedTuple):
    """Hold a stream to a retention, as its next chunk would. It is not stored: each start gives it again."""

    stream: str
    retention: StreamRetention


class TrimByAge(NamedTuple):
    """Drop what is too old by now, as much as one transaction does, of all streams that have a limit by age.

    `time_ns` is what the wall clock says, in nanoseconds UTC.
    """

    time_ns: int


class PutMessages(NamedTuple):
    """Add messages to a queue, creating the queue if needed.

    They have one sender and one time, and consecutive sequences from `first` on. The columns have one item
    for each; `properties` is None if no message has any.
    """

    kind: QueueKind
    queue: str
    first: int
    time_ns: int
    sender: str
    subjects: Sequence[str]
    records: Sequence[Frame]
    properties: Sequence[Mapping[str, Any] | None] | None = None

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.first + len(self.records) - 1

    def messages(self) -> Iterator[StoredMessage]:
        """The messages in order."""
        rows = zip(count(self.first), self.subjects, self.records, self.properties or repeat(None))
        for sequence, subject, record, properties in rows:
            yield StoredMessage(sequence, self.time_ns, self.sender, subject, record, properties)

    def part(self, start: int, end: int) -> PutMessages:
        """Those from one place to before another, counted from 0."""
        return self._replace(
            first=self.first + start,
            subjects=self.subjects[start:end],
            records=self.records[start:end],
            properties=self.properties and self.properties[start:end],
        )


class DeleteMessages(NamedTuple):
    """Remove the messages of these sequence ranges (first, last), both included."""

    kind: QueueKind
    queue: str
    ranges: Sequence[tuple[int, int]]


class MarkDelivered(NamedTuple):
    """Remember that messages up to `sequence` may have been delivered once."""

    kind: QueueKind
    queue: str
    sequence: int


class SetAttempts(NamedTuple):
    """Remember how often a message was delivered, more exactly than `MarkDelivered` does.

    `due_ns` is when it is redelivered, in nanoseconds UTC, or 0. All this goes with its message, and when
    that is put again.
    """

    kind: QueueKind
    queue: str
    sequence: int
    attempts: int
    due_ns: int = 0


class PutIdentity(NamedTuple):
    """Remember that a message with this identity was accepted, until a time in nanoseconds UTC.

    The queue is made if needed. The identity stays when the message leaves.
    """

    kind: QueueKind
    queue: str
    identity: str
    sequence: int
    until_ns: int


class ForgetIdentities(NamedTuple):
    """Forget the identities of a queue whose `until_ns` is at or before a time."""

    kind: QueueKind
    queue: str
    time_ns: int


class DeleteQueue(NamedTuple):
    """Remove a queue with all that is in it, and its identities. Feeds stay, and so do its dead letters."""

    kind: QueueKind
    queue: str


class NoteRefused(NamedTuple):
    """Remember that a range of a stream was refused by the disk, though subscribers may have had it.

    `sent` is the last sequence that may have been sent to anybody before that was reported; 0 is not known.
    """

    stream: str
    first: int
    last: int
    sent: int = 0


class DeleteStream(NamedTuple):
    """Remove a stream with its history and all values that belong to it.

    Its numbers stay known, so that no sequence is used twice, until `ForgetStream`.
    """

    stream: str


class ForgetStream(NamedTuple):
    """Forget the name and the numbers of a stream that was deleted, in the same commit or an earlier one.

    When a stream of this name is created again, it has to be known where it begins (`FLOOR`).
    """

    stream: str


FLOOR = "$floor"
"""A stream without messages: what it has reserved is the highest sequence of all streams that are no more.
Streams that are new begin behind it."""


class PutValue(NamedTuple):
    """Set a value of a table (`store.tables`), in place of what it was.

    The key begins with the owner of the value. A value is plain: None, a truth value, a number, a text,
    bytes, or a tuple of such.
    """

    table: str
    key: Key
    value: Value


class DeleteValue(NamedTuple):
    """Forget a value of a table; by the owner alone, all that the table has of it."""

    table: str
    key: Key


class SetCounters(NamedTuple):
    """Set what a queue remembers beside its messages, creating the queue if needed. None of it goes back.

    `next` is the sequence of the next message, and messages up to `delivered` may have been delivered. The
    store writes this by itself when the message that said it leaves.
    """

    kind: QueueKind
    queue: str
    next: int
    delivered: int


Operation = (
    AppendChunk
    | Reserve
    | Retain
    | TrimByAge
    | PutMessages
    | DeleteMessages
    | MarkDelivered
    | SetAttempts
    | PutIdentity
    | ForgetIdentities
    | DeleteQueue
    | NoteRefused
    | DeleteStream
    | ForgetStream
    | PutValue
    | DeleteValue
    | SetCounters
)


class ReadChunks(NamedTuple):
    """Read chunks of a stream, from the one that holds sequence `start` on. Answered with a `ReadResult`."""

    stream: str
    start: int
    size_bytes_max: int
    store: str = ""


class FindTime(NamedTuple):
    """Find the first sequence of a stream at or after a time in nanoseconds; 1 past the last if none.

    `stored` is the last sequence that the answer is sure to know of: who shares an answer agrees on it.
    """

    stream: str
    time_ns: int
    stored: int
    store: str = ""


SubjectTest = Callable[[str], object]
"""Whether a subject is one of those that are looked for. A thread of the store asks it."""


class LastPerSubject(NamedTuple):
    """Find the sequence of the last message of each subject, for so many subjects at the most.

    `stored` is as for `FindTime`. With `takes` other subjects are passed over.
    """

    stream: str
    limit: int
    stored: int
    store: str = ""
    takes: SubjectTest | None = None


class FindGap(NamedTuple):
    """Find the `GapRange` of a stream in which a sequence lies; None if it is stored, or too old."""

    stream: str
    sequence: int
    store: str = ""


class NextTooOld(NamedTuple):
    """Find in how many seconds `TrimByAge` has something to drop: 0 if it has now, None if it never has.

    `time_ns` is what the wall clock says, in nanoseconds UTC.
    """

    time_ns: int
    store: str = ""


class FetchRecords(NamedTuple):
    """Fetch records of a queue, by sequence. Answered with a map of those that can be read."""

    kind: QueueKind
    queue: str
    sequences: tuple[int, ...]


class StoreStats(NamedTuple):
    """Measure how full the store is: a `protocol.admin.StoreUsage`."""

    store: str = ""


class StreamStats(NamedTuple):
    """Measure the streams behind a name, or one: `limit` values of `protocol.admin.StoredStream`."""

    stream: str
    after: str
    limit: int
    store: str = ""


class Backup(NamedTuple):
    """Copy the store into a directory, however long it takes; a `protocol.admin.BackupMade`, or an error.

    The directory has to be below another one, which the links on the way are followed for.
    """

    directory: str
    below: str
    store: str = ""


StoreRead = (
    ReadChunks
    | FindTime
    | LastPerSubject
    | FindGap
    | NextTooOld
    | FetchRecords
    | StoreStats
    | StreamStats
    | Backup
)
"""What a store is asked: the one that is named, or the broker's own.

Each is answered by `Core.answered`, in any order."""


class Damage(NamedTuple):
    """A range of a stream (both ends included) that is on the disk and cannot be read."""

    first: int
    last: int
    reason: str


class Stranded(NamedTuple):
    """What is nowhere but in a block that cannot be read: if it is known, it is to be stored again."""

    messages: Mapping[tuple[QueueKind, str], Sequence[int]]
    values: Sequence[tuple[str, tuple[Any, ...]]] = ()
    identities: Mapping[tuple[QueueKind, str], Sequence[str]] = {}

    def keys(self, table: str) -> list[Any]:
        """The keys of a table whose values it has."""
        return [key for name, key in self.values if name == table]


OPENED_AGAIN = "store"
"""The kind of a defect that is repaired: a write has broken the store, which was opened anew."""


class Defect(NamedTuple):
    """Something of the store that is damaged.

    `kind` is `chunk`, `stream`, `card`, `cursor`, `block`, `meta` or `aside`, `name` that of its stream if it
    has one. The range is of sequences, or of the numbers of blocks. `outcome` says what became of it.
    """

    kind: str
    name: str
    first: int
    last: int
    outcome: str
    stranded: Stranded | None = None


class GapRange(NamedTuple):
    """Sequences of a stream (both ends included) between two chunks, which hold nothing."""

    first: int
    last: int


class ReadResult(NamedTuple):
    """What a read found: chunks and damages in order, and the first sequence still kept.

    The first chunk may begin before the sequence asked for. An empty `found` means that nothing
    at or after that sequence is stored.
    """

    found: Sequence[Chunk | Damage]
    first: int


class StreamState(NamedTuple):
    """A stream as it was found: the kept range, and the last sequence that may have been used.

    `time_ns` is that of its newest chunk, in nanoseconds UTC.
    """

    first: int
    last: int
    reserved: int
    time_ns: int = 0


class QueueState(NamedTuple):
    """A queue as it was found, with its messages in order of sequence.

    There may be so many that they must not be in memory twice: who takes them up may empty the list.
    `next` is the sequence of the next message. Messages up to `delivered` may have been delivered;
    `attempts` says of some how often. `identities` are those of accepted messages, each with the
    sequence and the time until which to remember it. `paged_out` are the sequences whose records were
    left on the disk, with their size in bytes; their messages here have an empty record, and
    `FetchRecords` brings it. `due_ns` says of some messages when they are redelivered, UTC.
    The records of `damaged` ones cannot be read.
    """

    next: int
    delivered: int
    messages: list[StoredMessage]
    attempts: Mapping[int, int] = {}
    identities: Mapping[str, tuple[int, int]] = {}
    paged_out: Mapping[int, int] = {}
    due_ns: Mapping[int, int] = {}
    damaged: Sequence[int] = ()


class Recovered(NamedTuple):
    """All that the core needs to go on from where the last process ended.

    `values` are those of each table. Where something was damaged, `lost` are those of which only the name is
    known, and of those that are `doubtful` newer ones may be lost. `incarnations` has a number for each time
    that the store was restored from a backup: nothing that is new since then has a sequence up to it. The
    newest begins now if it `restored`. `refused` is what the disk has refused of each stream: readers that
    come back get a gap for it. `lsn` is the log sequence number of the last transaction.
    """

    broker_id: bytes
    streams: Mapping[str, StreamState]
    queues: Mapping[tuple[QueueKind, str], QueueState]
    values: Mapping[str, Mapping[Key, Value]] = {}
    lost: frozenset[tuple[str, Key]] = frozenset()
    doubtful: frozenset[tuple[str, Key]] = frozenset()
    defects: Sequence[Defect] = ()
    incarnations: Sequence[int] = ()
    restored: bool = False
    refused: Mapping[str, Sequence[NoteRefused]] = {}
    lsn: int = 0

    def table(self, name: str) -> Mapping[Any, Value]:
        """The values of a table by their keys."""
        return self.values.get(name, {})

    def lost_keys(self, name: str) -> list[Any]:
        """The keys of a table whose values are lost."""
        return [key for table, key in self.lost if table == name]

    @property
    def incarnation(self) -> int:
        """The newest of them, or 0."""
        return self.incarnations[-1] if self.incarnations else 0


EMPTY = Recovered(b"\0" * 16, {}, {})
