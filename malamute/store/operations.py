"""Values that are exchanged with a store: writes, reads, and the state that is found at the start.

The core never sees a disk. The core hands out the operations below, in order, and is notified by
`Core.stored(token)` that they are committed and fsynced, or by `Core.store_failed` that they are not. Reads
are answered by `Core.answered`. `malamute.journal` implements the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any, Literal, NamedTuple

from malamute.store.policies import KEEP_ALL, StreamRetention

Key = tuple[str | bytes | int, ...]
"""The key of a value in a table; its first item is the owner."""

Value = Any
"""A plain value: None, a truth value, a number, a text, bytes, or a tuple of such."""

Frame = bytes | memoryview
"""A body of bytes that is passed on without a copy."""

QueueKind = Literal["mailbox", "service", "mailbox-dead", "service-dead"]
"""The dead letters of a mailbox or a service are a queue of their own, by the same name."""


class Chunk(NamedTuple):
    """A run of messages of one stream, as it is sent and as it is stored.

    `first` is the sequence of the first message; `count` is the number of messages, without a gap.
    `time_ns` is the broker's clock in nanoseconds UTC, the same for all messages. `payload` has the
    encoded columns of `protocol.batch`; `large` are the records too large for the payload.
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
    """One stored message of a mailbox or a service queue."""

    sequence: int
    time_ns: int
    sender: str
    subject: str
    record: Frame
    properties: Mapping[str, Any] | None = None


class AppendChunk(NamedTuple):
    """Append to a stream, creating it if needed; the ring drops its oldest chunks in the same commit.

    `reserved` is the highest sequence that may be in use before the next commit: after a crash the
    stream continues behind it. `subjects` has the subject of each message in order, for the store's index;
    without it, finding the last message of each subject is slower. `retention` holds for the stream from
    now on, unless another retention was set for the stream at run time.
    """

    stream: str
    chunk: Chunk
    reserved: int
    subjects: Sequence[str] = ()
    retention: StreamRetention = KEEP_ALL


class Reserve(NamedTuple):
    """Set the reserved sequence of a stream without appending, creating the stream if needed.

    A stream without a journal reserves its sequences by this. A broker that shuts down cleanly gives unused
    sequences back: `reserved` may be lower than before, though never below the last message.
    """

    stream: str
    reserved: int


class Retain(NamedTuple):
    """Set the retention of a stream in memory, as its next chunk would; each start repeats the operation."""

    stream: str
    retention: StreamRetention


class TrimByAge(NamedTuple):
    """Drop chunks over the limit by age from all streams, as many as one transaction may drop.

    `time_ns` is the wall clock in nanoseconds UTC.
    """

    time_ns: int


class PutMessages(NamedTuple):
    """Add messages to a queue, creating the queue if needed.

    The messages have one sender and one time, and consecutive sequences from `first` on. Each column has one
    item for each message; `properties` is None if no message has any.
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
        """Yield the messages in order."""
        rows = zip(count(self.first), self.subjects, self.records, self.properties or repeat(None))
        for sequence, subject, record, properties in rows:
            yield StoredMessage(sequence, self.time_ns, self.sender, subject, record, properties)

    def part(self, start: int, end: int) -> PutMessages:
        """Return an operation with the messages from index `start` up to, not including, `end`."""
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
    """Advance the delivery watermark: messages up to `sequence` may have been delivered once."""

    kind: QueueKind
    queue: str
    sequence: int


class SetAttempts(NamedTuple):
    """Set the attempts of a message, more exactly than `MarkDelivered` does.

    `due_ns` is the time of the next attempt, in nanoseconds UTC, or 0. The attempts are deleted with the
    message, and when the message is put once more.
    """

    kind: QueueKind
    queue: str
    sequence: int
    attempts: int
    due_ns: int = 0


class PutIdentity(NamedTuple):
    """Remember the identity of an accepted message until a time in nanoseconds UTC, for deduplication.

    The queue is created if needed. The identity outlives its message.
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
    """Remove a queue with its messages and identities. Its feeds and its dead letters stay."""

    kind: QueueKind
    queue: str


class NoteRefused(NamedTuple):
    """Remember a range of a stream that the disk refused, though subscribers may have received messages.

    `sent` is the last sequence that may have been sent before the refusal was reported; 0 is unknown.
    """

    stream: str
    first: int
    last: int
    sent: int = 0


class DeleteStream(NamedTuple):
    """Remove a stream with its history and all values that it owns.

    The sequences stay reserved, so that none is used twice, until `ForgetStream`.
    """

    stream: str


class DeleteStreamMessages(NamedTuple):
    """Delete the messages of a stream with sequences in some ranges (first, last), both included.

    The sequences stay, as a `Damage` with the reason `deleted`. Sequences without messages, and unreadable
    chunks, stay as they are.
    """

    stream: str
    ranges: Sequence[tuple[int, int]]


class ForgetStream(NamedTuple):
    """Forget the name and the sequences of a stream that was deleted, in the same commit or an earlier one.

    A new stream of this name begins behind `FLOOR`.
    """

    stream: str


FLOOR = "$floor"
"""A stream without messages: its reserved sequence is the highest one of all forgotten streams. New streams
begin behind it."""


class PutValue(NamedTuple):
    """Set a value of a table (`store.tables`). The key begins with the owner of the value."""

    table: str
    key: Key
    value: Value


class DeleteValue(NamedTuple):
    """Delete a value of a table; with the owner alone as the key, all values of that owner."""

    table: str
    key: Key


class SetCounters(NamedTuple):
    """Advance the counters of a queue, creating the queue if needed. No counter goes back.

    `next` is the sequence of the next message, `delivered` the delivery watermark. The store writes this by
    itself when the last message that implied a counter is deleted.
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
    | DeleteStreamMessages
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


class FindTime(NamedTuple):
    """Find the first sequence of a stream at or after a time in nanoseconds; 1 past the last if none.

    `stored` is the last sequence that the answer includes for certain: requests that share an answer agree
    on it.
    """

    stream: str
    time_ns: int
    stored: int


SubjectTest = Callable[[str], object]
"""Returns whether a subject is searched for. Called by a thread of the store."""


class LastPerSubject(NamedTuple):
    """Find the sequence of the last message of each subject, for at most `limit` subjects.

    `stored` is as for `FindTime`. Subjects that `takes` refuses are skipped.
    """

    stream: str
    limit: int
    stored: int
    takes: SubjectTest | None = None


class FindGap(NamedTuple):
    """Find the `GapRange` of a stream in which a sequence lies; None if it is stored, or too old."""

    stream: str
    sequence: int


class NextTooOld(NamedTuple):
    """Find the seconds until `TrimByAge` has chunks to drop: 0 if it has some now, None if it never has.

    `time_ns` is the wall clock in nanoseconds UTC.
    """

    time_ns: int


class FetchRecords(NamedTuple):
    """Fetch records of a queue. Answered with a map of sequences to the readable records."""

    kind: QueueKind
    queue: str
    sequences: tuple[int, ...]


class StoreStats(NamedTuple):
    """Measure the usage of the store: a `protocol.admin.StoreUsage`."""


class StreamStats(NamedTuple):
    """Measure one stream, or the streams after a name: `limit` values of `protocol.admin.StoredStream`."""

    stream: str
    after: str
    limit: int


class Backup(NamedTuple):
    """Copy the store into a directory; answered with a `protocol.admin.BackupMade`, or an error.

    The directory has to lie in `below` after all links are resolved.
    """

    directory: str
    below: str


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
"""The reads of a store: the one that is named, or the broker's own.

Each is answered by `Core.answered`, in any order."""


class Damage(NamedTuple):
    """A range of a stream (both ends included) whose chunks on the disk are unreadable, or were `deleted`."""

    first: int
    last: int
    reason: str


class Stranded(NamedTuple):
    """The live entries of an unreadable block: the core stores again the ones that it has in memory."""

    messages: Mapping[tuple[QueueKind, str], Sequence[int]]
    values: Sequence[tuple[str, tuple[Any, ...]]] = ()
    identities: Mapping[tuple[QueueKind, str], Sequence[str]] = {}

    def keys(self, table: str) -> list[Any]:
        """Return the keys of a table whose values were in the block."""
        return [key for name, key in self.values if name == table]


OPENED_AGAIN = "store"
"""The kind of a repaired defect: a write has broken the environment, which was opened anew."""


class Defect(NamedTuple):
    """A damaged value of the store.

    `kind` is `chunk`, `stream`, `card`, `cursor`, `block`, `log`, `meta`, `aside` or `store`; `name` is the
    stream, if the value has one. The range has sequences, numbers of blocks, or a byte of the log. `outcome`
    is the consequence, in words.
    """

    kind: str
    name: str
    first: int
    last: int
    outcome: str
    stranded: Stranded | None = None


class GapRange(NamedTuple):
    """Sequences of a stream (both ends included) between two chunks, without messages."""

    first: int
    last: int


class ReadResult(NamedTuple):
    """The result of a read: chunks and damages in order, and the first sequence still stored.

    The first chunk may begin before the requested sequence. `found` is empty if no message at or after that
    sequence is stored.
    """

    found: Sequence[Chunk | Damage]
    first: int


class StreamState(NamedTuple):
    """A recovered stream: the stored range, and the last sequence that may have been used.

    `time_ns` is the time of the newest chunk, in nanoseconds UTC.
    """

    first: int
    last: int
    reserved: int
    time_ns: int = 0


class QueueState(NamedTuple):
    """A recovered queue, with its messages in order of sequence.

    Large queues must not be in memory twice: the consumer of `messages` may empty the list.
    `next` is the sequence of the next message. Messages up to `delivered` may have been delivered;
    `attempts` has the exact number for some of them. `identities` has the identity of each accepted message,
    with its sequence and the time until which it is remembered. `paged_out` has the sequences whose records
    stay on the disk, with the sizes in bytes; the messages have an empty record, and `FetchRecords` fetches
    it. `due_ns` has the time of the next attempt, UTC, for some messages. The records of `damaged` sequences
    are unreadable.
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
    """The state from which the core continues after the last process has ended.

    `values` has the values of each table. After damage, `lost` has the keys of values that are unknown, and
    `doubtful` the keys of values that may be outdated. `incarnations` has a number for each restore from a
    backup: all sequences given out since that restore are greater. The newest incarnation begins now if the
    store is `restored`. `refused` has the ranges of each stream that the disk refused: readers that return
    get a gap for them. `lsn` is the log sequence number of the last transaction.
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
        """Return the values of a table by their keys."""
        return self.values.get(name, {})

    def lost_keys(self, name: str) -> list[Any]:
        """Return the keys of a table whose values are lost."""
        return [key for table, key in self.lost if table == name]

    @property
    def incarnation(self) -> int:
        """The newest incarnation, or 0."""
        return self.incarnations[-1] if self.incarnations else 0


EMPTY = Recovered(b"\0" * 16, {}, {})
