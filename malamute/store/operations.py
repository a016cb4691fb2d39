"""What can be written to the store and read from it, as values, and what is found there at the start.

The core never sees a disk. It hands out the operations below, in order, and learns by `Core.stored(token)`
that they are committed and fsynced, or by `Core.unstored` that they are not. Its reads are answered by
`Core.answered`. `malamute.journal` implements the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any, Literal, NamedTuple

Frame = bytes | memoryview
"""A body of bytes that travels without being copied."""

QueueKind = Literal["mailbox", "service", "mailbox-dead", "service-dead"]
"""The dead letters of a mailbox or a service are a queue of their own, by the same name."""


class Chunk(NamedTuple):
    """A run of messages of one stream, as it is sent and as it is stored.

    `first` is the sequence of the first message, and `count` says how many follow without a hole.
    `time` is the broker's clock in nanoseconds UTC, the same for all of them. `payload` is the
    encoded columns of `protocol.batch`; `large` are the records too large to be inside it.
    """

    first: int
    count: int  # type: ignore[assignment]  # no tuple here is searched by its `count` method
    time: int
    payload: bytes
    large: tuple[Frame, ...] = ()

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.first + self.count - 1


class StoredMessage(NamedTuple):
    """One message of a mailbox or a service queue, as it is stored."""

    sequence: int
    time: int
    sender: str
    subject: str
    record: Frame
    properties: Mapping[str, Any] | None = None


class AppendChunk(NamedTuple):
    """Append to a stream, creating it if needed; the ring drops its oldest chunks in the same commit.

    `reserved` is the highest sequence that may be in use before the next commit: after a crash the
    stream goes on behind it. `subjects` are those of the messages in order, for the store's index; it
    may be left out, which makes finding the last message of each subject slower.
    """

    stream: str
    chunk: Chunk
    reserved: int
    subjects: Sequence[str] = ()


class Reserve(NamedTuple):
    """Set the reserved sequence of a stream without appending, creating the stream if needed.

    So a stream without a journal reserves its numbers, and a broker that ends in good order gives back those
    that it has not used: it may be lower than before, though never below the last message.
    """

    stream: str
    reserved: int


class PutMessages(NamedTuple):
    """Add messages to a queue, creating the queue if needed.

    They have one sender and one time, and consecutive sequences from `first` on. The columns have one item
    for each; `properties` is None if no message has any.
    """

    kind: QueueKind
    queue: str
    first: int
    time: int
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
            yield StoredMessage(sequence, self.time, self.sender, subject, record, properties)

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

    `due` is when it comes again, in nanoseconds UTC, or 0. All this goes with its message, and when that is
    put again.
    """

    kind: QueueKind
    queue: str
    sequence: int
    attempts: int
    due: int = 0


class PutIdentity(NamedTuple):
    """Remember that a message with this identity was accepted, until a time in nanoseconds UTC.

    The queue is made if needed. The identity stays when the message leaves.
    """

    kind: QueueKind
    queue: str
    identity: str
    sequence: int
    until: int


class ForgetIdentities(NamedTuple):
    """Forget the identities of a queue whose `until` is at or before a time."""

    kind: QueueKind
    queue: str
    time: int


class DeleteQueue(NamedTuple):
    """Remove a queue with all that is in it, and its identities. Feeds stay, and so do its dead letters."""

    kind: QueueKind
    queue: str


class PutCursor(NamedTuple):
    """Set a named position of a stream: `sequence` is the last one that its reader is done with."""

    stream: str
    cursor: str
    sequence: int


class DeleteCursor(NamedTuple):
    """Forget a named position."""

    stream: str
    cursor: str


class PutRetention(NamedTuple):
    """Set how much of a stream is kept, in place of what the configuration says; 0 is no limit.

    `age` is in seconds. It holds from this commit on, over restarts.
    """

    stream: str
    bytes: int
    count: int  # type: ignore[assignment]  # no tuple here is searched by its `count` method
    age: float


class NoteRefused(NamedTuple):
    """Remember that a range of a stream was refused by the disk, though subscribers may have had it.

    `sent` is the last sequence that may have been sent to anybody before that was told; 0 is not known.
    """

    stream: str
    first: int
    last: int
    sent: int = 0


class DeleteStream(NamedTuple):
    """Remove a stream with its history, its cursors, its retention and the feeds from it.

    Its numbers stay known, so that no sequence is used twice, until `ForgetStream`.
    """

    stream: str


class ForgetStream(NamedTuple):
    """Forget the name and the numbers of a stream that was deleted, in the same commit or an earlier one.

    Whoever makes a stream of this name again has to know where it begins (`FLOOR`).
    """

    stream: str


FLOOR = "$floor"
"""A stream without messages: what it has reserved is the highest sequence of all streams that are no more.
Streams that are new begin behind it."""


class PutFeed(NamedTuple):
    """Feed a service from a stream. `value` is the core's own, opaque. Its position is a cursor."""

    service: str
    stream: str
    value: bytes


class DeleteFeed(NamedTuple):
    """Feed a service from a stream no longer."""

    service: str
    stream: str


NUMBERS, REFUSALS, OUTCOMES = 0, 1, 2
"""The parts of what is stored of a session."""

SESSION_PARTS = (NUMBERS, REFUSALS, OUTCOMES)


class PutSession(NamedTuple):
    """Remember one part of a session, in place of what that was. `value` is the core's own, opaque."""

    session: bytes
    value: bytes
    part: int = NUMBERS


class DeleteSession(NamedTuple):
    """Forget a session with all its parts."""

    session: bytes


Operation = (
    AppendChunk
    | Reserve
    | PutMessages
    | DeleteMessages
    | MarkDelivered
    | SetAttempts
    | PutIdentity
    | ForgetIdentities
    | DeleteQueue
    | PutCursor
    | DeleteCursor
    | PutRetention
    | NoteRefused
    | DeleteStream
    | ForgetStream
    | PutFeed
    | DeleteFeed
    | PutSession
    | DeleteSession
)


class ReadChunks(NamedTuple):
    """Read chunks of a stream, from the one that holds sequence `start` on. Answered with a `ReadResult`."""

    stream: str
    start: int
    size_bytes_max: int


class FindTime(NamedTuple):
    """Find the first sequence of a stream at or after a time in nanoseconds; 1 past the last if none.

    `stored` is the last sequence that the answer is sure to know of: who shares an answer agrees on it.
    """

    stream: str
    time: int
    stored: int


class LastPerSubject(NamedTuple):
    """Find the sequence of the last message of each subject, for so many subjects at the most.

    `stored` is as for `FindTime`.
    """

    stream: str
    limit: int
    stored: int


class FindHole(NamedTuple):
    """Find the `Hole` of a stream in which a sequence lies; None if it is stored, or too old."""

    stream: str
    sequence: int


class FetchRecords(NamedTuple):
    """Fetch records of a queue, by sequence. Answered with a map of those that can be read."""

    kind: QueueKind
    queue: str
    sequences: tuple[int, ...]


class StoreStats(NamedTuple):
    """Measure how full the store is: a map for people."""


class Backup(NamedTuple):
    """Copy the store into a directory, however long it takes; a map of what was copied, or an error.

    The directory has to be below another one, which the links on the way are followed for.
    """

    directory: str
    below: str


StoreRead = ReadChunks | FindTime | LastPerSubject | FindHole | FetchRecords | StoreStats | Backup
"""What the store is asked. Each is answered by `Core.answered`, in any order."""


class Damage(NamedTuple):
    """A range of a stream (both ends included) that is on the disk and cannot be read."""

    first: int
    last: int
    reason: str


class Stranded(NamedTuple):
    """What is nowhere but in a block that cannot be read: whoever knows it is to store it again."""

    messages: Mapping[tuple[QueueKind, str], Sequence[int]]
    sessions: Sequence[bytes]
    cursors: Sequence[tuple[str, str]]


OPENED_AGAIN = "store"
"""The kind of a defect that is mended: a write has broken the store, which was opened anew."""


class Defect(NamedTuple):
    """Something of the store that is damaged.

    `kind` is `chunk`, `stream`, `card`, `cursor`, `block`, `meta` or `aside`, `name` that of its stream if it
    has one. The range is of sequences, or of the numbers of blocks. `outcome` tells what has become of it.
    """

    kind: str
    name: str
    first: int
    last: int
    outcome: str
    stranded: Stranded | None = None


class Hole(NamedTuple):
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

    `time` is that of its newest chunk, in nanoseconds UTC.
    """

    first: int
    last: int
    reserved: int
    time: int = 0


class QueueState(NamedTuple):
    """A queue as it was found, with its messages in order of sequence.

    There may be so many that they must not be in memory twice: who takes them up may empty the list.
    `next` is the sequence of the next message. Messages up to `delivered` may have been delivered;
    `attempts` tells of some how often. `identities` are those of accepted messages, each with the sequence
    and the time until which to remember it. `cold` are the sequences whose records were left on the disk,
    with their size in bytes; their messages here have an empty record, and `FetchRecords` brings it. `due`
    tells of some messages when they come again, in nanoseconds UTC. The records of `damaged` ones cannot be
    read.
    """

    next: int
    delivered: int
    messages: list[StoredMessage]
    attempts: Mapping[int, int] = {}
    identities: Mapping[str, tuple[int, int]] = {}
    cold: Mapping[int, int] = {}
    due: Mapping[int, int] = {}
    damaged: Sequence[int] = ()


class Recovered(NamedTuple):
    """All that the core needs to go on from where the last process ended.

    `sessions` are the numbers of each, `session_parts` its other parts. `cursors` are by stream and name,
    `retentions` those that were set at run time, `feeds` by service and stream. Where something was
    damaged, `lost_cursors` are those whose positions are not known, and of the sessions that are `doubtful`
    newer numbers may be lost. `incarnations` has a number for each time that the store was restored from a
    backup: nothing that is new since then has a sequence up to it. The newest begins now if it `restored`.
    """

    broker_id: bytes
    streams: Mapping[str, StreamState]
    queues: Mapping[tuple[QueueKind, str], QueueState]
    sessions: Mapping[bytes, bytes]
    cursors: Mapping[tuple[str, str], int] = {}
    retentions: Mapping[str, PutRetention] = {}
    feeds: Mapping[tuple[str, str], bytes] = {}
    session_parts: Mapping[tuple[bytes, int], bytes] = {}
    lost_cursors: frozenset[tuple[str, str]] = frozenset()
    doubtful: frozenset[bytes] = frozenset()
    defects: Sequence[Defect] = ()
    incarnations: Sequence[int] = ()
    restored: bool = False
    refused: Mapping[str, Sequence[NoteRefused]] = {}
    """What the disk has refused of each stream, and is told to who comes back."""

    @property
    def incarnation(self) -> int:
        """The newest of them, or 0."""
        return self.incarnations[-1] if self.incarnations else 0


EMPTY = Recovered(b"\0" * 16, {}, {}, {})
