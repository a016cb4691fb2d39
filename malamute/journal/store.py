"""The interface of a store, its status, and the numbers of its incarnations.

Two classes implement the interface and pass the same tests: `disk.DiskStore`, on LMDB, and
`memory.MemoryStore`. Three rules hold for callers:

1. `recover` comes before the first `write`.
2. `write` is called from one thread at a time. Reads and `backup` may be called from any other thread
   meanwhile, and `close` from any thread: `close` waits for calls under way.
3. Operations are durable once `write` has returned. After an exception of `write` none of them is stored,
   and the store continues; deletions work on a full store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from malamute.journal.format import StreamMeta
from malamute.protocol.messages import DELETED
from malamute.protocol.time_units import to_seconds
from malamute.store.operations import (
    Chunk,
    Damage,
    Defect,
    Frame,
    GapRange,
    Operation,
    QueueKind,
    ReadResult,
    Recovered,
    StreamState,
    SubjectTest,
)
from malamute.store.policies import StreamRetention


class QueueStatus(NamedTuple):
    """The number of messages of a queue, and the bytes of their records."""

    count: int  # type: ignore[assignment]  # tuple.count is not used
    bytes: int


class Status(NamedTuple):
    """The usage of a store; sizes in bytes.

    `lsn` is the log sequence number of the last transaction; the numbers rise, over restarts, too.
    `used` counts pages that hold data and `high_water` the pages ever used; neither exceeds `size`.
    `streams_bytes` are the bytes of chunks, of at most `streams_budget`; `leaving_bytes` of them belong to
    deleted streams, and leave with the next writes. `log_bytes` is the size of the log of queues and
    sessions, in `log_blocks` blocks; `log_unreadable` of them are damaged. `reader_pid` is the process that
    reads the oldest state, `reader_lag` transactions behind the newest: pages freed since then cannot be
    reused. Both are 0 without a reader. `defects` are the damaged values found so far.
    """

    lsn: int
    size: int
    used: int
    high_water: int
    streams_budget: int
    streams_bytes: int
    leaving_bytes: int
    log_bytes: int
    log_blocks: int
    log_unreadable: int
    sessions: int
    reader_pid: int
    reader_lag: int
    defects: Iterable[Defect]
    streams: Mapping[str, StreamMeta]
    queues: Mapping[tuple[QueueKind, str], QueueStatus]


class Checked(NamedTuple):
    """The result of one step of `verify`, in one stream, or in the log of queues if `stream` is None.

    `chunks` and `bytes` count intact chunks (of the log: all blocks); `last` is the last sequence, or block,
    of this step. The damages of the log are ranges of blocks.
    """

    stream: str | None
    last: int
    chunks: int
    bytes: int
    damages: Sequence[Damage] = ()


VERIFY_STEP_BYTES = 8 * 1024 * 1024
"""Bytes that one step of `verify` reads."""


def verify_stream(read: Callable[..., ReadResult], stream: str) -> Iterator[Checked]:
    """Read a stream in steps of a bounded size, and yield the result of each."""
    start = 0
    while found := read(stream, start, bytes_max=VERIFY_STEP_BYTES).found:
        chunks = [item for item in found if isinstance(item, Chunk)]
        size = sum(len(chunk.payload) + sum(map(len, chunk.large)) for chunk in chunks)
        damages = tuple(item for item in found if isinstance(item, Damage) and item.reason != DELETED)
        yield Checked(stream, found[-1].last, len(chunks), size, damages)
        start = found[-1].last + 1


INCARNATION_EPOCH = 1_577_836_800
"""2020, UTC, in seconds since 1970."""

INCARNATION_BITS = 12
"""Sequences of one millisecond, as the exponent of 2: more than four million a second."""

INCARNATIONS_MAX = 100
"""Incarnations that a store remembers; the oldest are forgotten first."""


def next_incarnation(now: float, used: int, newest: int = 0) -> int:
    """Return the number of an incarnation that begins `now`; `used` is the highest sequence of its store.

    `newest` is the newest time in the store, in nanoseconds UTC.

    The sequences given out after the backup, or by another broker on a copy of it, are unknown. No broker
    gives out more than four million sequences a second for years on end, so a number that grows as fast by
    the clock exceeds all of them. The number stays below 2**53, the largest integer of every program, until
    2089.
    """
    # The used sequences may be ahead of the clock already. The lead is kept: of two brokers that begin on
    # copies of one store, the later one has the greater number.
    then = _by_clock(to_seconds(newest))
    ahead = max(0, used + 1 - then) if then else 0
    number = _by_clock(now) + ahead
    # A clock that is wrong by years must not lead back.
    return number if number > used else used + (1 << 32)


def next_incarnations(
    now: float, known: tuple[int, ...], used: Iterable[int], newest: int
) -> tuple[int, ...]:
    """Return the newest incarnations of a store: the `known` ones, and one that begins `now`."""
    return (*known, next_incarnation(now, max([*used, *known]), newest))[-INCARNATIONS_MAX:]


def _by_clock(now: float) -> int:
    return max(0, int((now - INCARNATION_EPOCH) * 1000)) << INCARNATION_BITS


Progress = Callable[[int, int], None]
"""Called with the bytes done so far, and an estimate of all bytes."""


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


class Copied(NamedTuple):
    """The contents of a backup. Damaged values are copied as they are; `damages` has (stream, range)."""

    streams: int
    chunks: int
    bytes: int
    blocks: int
    damages: Sequence[tuple[str, Damage]] = ()


def stream_state(stream: StreamMeta) -> StreamState:
    """Return the state of a stream for the core."""
    return StreamState(stream.first, stream.last, stream.reserved, stream.last_time)


class Store(Protocol):
    """The interface of a store for the server."""

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """Return the state of the core. Costs the number of streams and of queued messages.

        With `now`, in seconds since the epoch, a broker begins on the store: on a copy, another incarnation
        begins and is stored. Without `now`, the store is only inspected.

        At most `records_bytes` bytes of records are read into memory; None is no limit. Other records are
        `paged_out`: their messages have an empty record, and `fetch` reads it.
        """

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations, in order, and return when they are durable; or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk. A stream
        going backwards is a programming error (AssertionError).
        """

    @property
    def take_over_at(self) -> float | None:
        """The time of the monotonic clock at which the writing thread has to call `take_over`; or None."""

    def take_over(self) -> None:
        """Move what is durable in a log only to its place. Raises StoreError; the log keeps it then."""

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """Return the chunk that holds `start`, and the chunks after it, in order.

        The read stops once `bytes_max` bytes of values were read, but returns one chunk if there is any. An
        unreadable chunk is a Damage in its place. An unknown stream is an empty one.
        """

    def pop_firsts(self) -> Mapping[str, int]:
        """Return the first sequences of streams whose oldest messages were dropped since the last call.

        Called by the writing thread.
        """

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence stored at or after a broker time; last + 1 if there is none."""

    def find_gap(self, stream: str, sequence: int) -> GapRange | None:
        """Return the gap around a sequence; None if it is stored, or outside of the stored range."""

    def last_per_subject(
        self, stream: str, *, limit: int, takes: SubjectTest | None = None
    ) -> Mapping[str, int]:
        """Return the sequence of the last message of each subject, newest first, for `limit` subjects.

        Subjects that `takes` refuses are skipped, and so are unreadable chunks.
        """

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """Return the records of messages by their sequences, without missing and unreadable ones.

        Costs least when the sequences are near each other.
        """

    def retention(self, stream: str) -> StreamRetention:
        """Return the retention of a stream: set at run time, or else given with its chunks."""

    def next_too_old(self, time_ns: int) -> float | None:
        """Return the seconds until some stream is over its limit by age, by the wall clock `time_ns`.

        0 if one is over it now, None if none has a limit by age. Costs the number of streams.
        """

    def status(self) -> Status:
        """Return the usage at a moment between two writes. Costs the number of streams and queues."""

    def pop_defects(self) -> Sequence[Defect]:
        """Return the defects found since the last call, each once."""

    def verify(self, stream: str | None = None) -> Iterator[Checked]:
        """Read the whole store (or one stream) in small steps, and yield the result of each."""

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Copy the store, as it is at one moment, into a new directory, while it is in use.

        `progress` is called with the bytes copied and an estimate of all. Raises StoreError if `directory`
        has a store already, or if this store is in memory.
        """

    def close(self) -> None:
        """Release the store after the calls under way; a second close does nothing."""
