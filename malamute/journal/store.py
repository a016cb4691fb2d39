"""The interface of a store, and what is said about one.

Two classes implement it and pass the same tests: `disk.DiskStore`, on LMDB, and
`memory.MemoryStore`, for tests and for simulating a broker. Who uses a store keeps three rules:

1. `recover` comes before the first `write`.
2. `write` is called from one thread at a time. What only reads (and `backup`) may be called from any
   other thread while it runs, and `close` from any thread: it waits for calls under way.
3. What `write` has returned for is durable. After an exception of `write` nothing of it was stored, and
   the store continues; deleting works on a store that is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from malamute.journal.format import StreamMeta
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
    """How many messages a queue holds, and the bytes of their records."""

    count: int  # type: ignore[assignment]  # tuple.count is not used
    bytes: int


class Status(NamedTuple):
    """How full a store is; sizes in bytes.

    `lsn` is the log sequence number of the last transaction: they count up, over restarts too.
    `used` counts pages that hold data and `high_water` the pages ever used; neither goes over
    `size`. `streams_bytes` is what the ring holds against `streams_budget`; `leaving_bytes` of it are chunks
    of deleted streams, which leave with the next writes. `log_bytes` is what the
    log of queues and sessions takes, in `log_blocks` blocks; `log_unreadable` of them are damaged.
    `reader_pid` is the process that reads the oldest state, `reader_lag` transactions behind the newest: the
    pages since then cannot be used again. Both are 0 if nobody reads. `defects` are what was found damaged.
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
    """One step of `verify`: what was read of one stream, or of the queues if `stream` is None.

    `chunks` and `bytes` count what was good (of the queues: all blocks); `last` is the last sequence, or
    block, that this step has reached. The damages of queues are ranges of blocks.
    """

    stream: str | None
    last: int
    chunks: int
    bytes: int
    damages: Sequence[Damage] = ()


def checked(stream: str, found: Sequence[Chunk | Damage]) -> Checked:
    """What one step of reading a stream, never an empty one, says about it."""
    chunks = [item for item in found if isinstance(item, Chunk)]
    size = sum(len(chunk.payload) + sum(map(len, chunk.large)) for chunk in chunks)
    damages = tuple(item for item in found if isinstance(item, Damage))
    return Checked(stream, found[-1].last, len(chunks), size, damages)


INCARNATION_EPOCH = 1_577_836_800
"""2020, UTC, in seconds since 1970."""

INCARNATION_BITS = 12
"""Sequences of one millisecond, as a power of 2: more than four million a second."""

INCARNATIONS_MAX = 100
"""Incarnations that a store remembers; the oldest are forgotten first."""


def next_incarnation(now: float, used: int, newest: int = 0) -> int:
    """The number of an incarnation that begins now, when nothing in its store goes beyond `used`.

    `newest` is the newest time in the store, in nanoseconds UTC.

    Nobody knows what was given out after the backup was made, or by another broker that was begun on it. But
    no broker gives out more than four million sequences a second for years on end: so a number that grows as
    fast by the clock is beyond all of them. It stays below 2**53, which every program can count to, until
    2089.
    """
    # What the store has used may be ahead of that already. By how much only the store knows: so of two
    # brokers that begin on copies of it, the later one has the greater number.
    then = _by_clock(to_seconds(newest))
    ahead = max(0, used + 1 - then) if then else 0
    number = _by_clock(now) + ahead
    # A clock that is wrong by years must not lead back.
    return number if number > used else used + (1 << 32)


def _by_clock(now: float) -> int:
    return max(0, int((now - INCARNATION_EPOCH) * 1000)) << INCARNATION_BITS


Progress = Callable[[int, int], None]
"""Called with how many bytes are done, and about how many there are."""


def no_progress(done: int, total: int) -> None:
    """Nobody wants to know."""


class Copied(NamedTuple):
    """What a backup has copied. What was damaged is in it as it was found: (stream, range)."""

    streams: int
    chunks: int
    bytes: int
    blocks: int
    damages: Sequence[tuple[str, Damage]] = ()


def stream_state(stream: StreamMeta) -> StreamState:
    """What the core has to know of a stream."""
    return StreamState(stream.first, stream.last, stream.reserved, stream.last_time)


class Store(Protocol):
    """What the server asks of a store."""

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """All that the core needs to go on. Costs the number of streams and of queued messages.

        With `now`, in seconds since the epoch, a broker begins on it: if the store is a copy, that is another
        incarnation, which is stored.

        No more than `records_bytes` bytes of the records of all queues are brought into memory; None is no
        limit. The others are `paged_out`: their messages have an empty record, and `fetch` brings them.
        """

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations, in order, and return when they are durable; or none.

        Raises StorageFull when there is no room, StoreError for other faults of the disk. A stream
        going backwards is a programming error (AssertionError).
        """

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """The chunks that hold `start` and what follows, in order.

        It stops once `bytes_max` bytes of values were read, but gives one chunk if there is any. What
        cannot be read is a Damage in its place. An unknown stream is an empty one.
        """

    def pop_firsts(self) -> Mapping[str, int]:
        """The streams whose oldest messages were dropped since the last call, with their first sequences now.

        To be called by the thread that writes.
        """

    def find_time(self, stream: str, time_ns: int) -> int:
        """The first sequence stored at or after a broker time; last + 1 if there is none."""

    def find_gap(self, stream: str, sequence: int) -> GapRange | None:
        """The gap in which a sequence lies; None if it is stored, or outside of what is kept."""

    def last_per_subject(
        self, stream: str, *, limit: int, takes: SubjectTest | None = None
    ) -> Mapping[str, int]:
        """The sequence of the last message kept of each subject; of `limit` subjects, newest first.

        Subjects that `takes` refuses are passed over.

        What cannot be read is left out.
        """

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """The records of stored messages by their sequences, without those that are not there.

        What cannot be read is left out. Costs least when the sequences are near each other.
        """

    def retention(self, stream: str) -> StreamRetention:
        """What is in force for a stream: set at run time, or else given with its chunks."""

    def next_too_old(self, time_ns: int) -> float | None:
        """In how many seconds some stream has messages that are too old, given what the wall clock says.

        0 if one has now, None if none has a limit by age. Costs the number of streams.
        """

    def status(self) -> Status:
        """How full the store is, at a moment between two writes. Costs the number of streams and queues."""

    def pop_defects(self) -> Sequence[Defect]:
        """What was found damaged since the last time, each thing once."""

    def verify(self, stream: str | None = None) -> Iterator[Checked]:
        """Read everything (or one stream) in small steps, and report each one."""

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Copy the store, as it is at one moment, into a new directory, while it is in use.

        `progress` is called with the bytes copied and an estimate of all. Raises StoreError if there is a
        store in `directory` already, or if this one has none on a disk.
        """

    def close(self) -> None:
        """Release everything. Calls under way are waited for; a second close does nothing."""
