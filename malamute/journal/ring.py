"""The ring: the choice of old chunks to drop for new ones. Pure: a `ChunkDeleter` deletes them.

Theory. Every stream has a state record (first, last, bytes, count, ...), so the bytes of a stream are
known without reading it. Appending adds to the state; then, in the same transaction,

1. the stream drops its oldest chunks while it is over its own retention, and
2. all streams together drop the oldest chunk among them while they are over the budget.

A transaction therefore drops about as much as it appends, and the store never needs a cleaner in the
background. The oldest chunk among all is found by a heap of (order of the oldest chunk, stream) with
one entry for each stream that has chunks. The entries are lazy: an append or a drop does not touch the
heap, and an outdated entry is corrected when it comes to the top. So the cost is O(log streams) for a
dropped chunk and nothing for an appended one. Chunks are ordered by their times, within an *era*: each start
with a clock behind the newest stored time begins another era, which each chunk has in its header. Within an
era, chunks from before the start are older than chunks since the start.

A stream never loses its newest chunk to its own limits by bytes and messages. The limit by age compares the
time of the oldest message with the newest message at an append, and with the clock for an idle stream
(`TrimByAge`), which may lose all its chunks. The budget is stricter, as it protects the file: it may empty
the stream with the oldest chunks (the stream keeps its sequences). Only the chunks appended in the same
transaction are spared, and the audit stream while it is a small part of the budget: a publisher must not
displace the records about itself.

The cost of dropping grows with the chunks, so it is divided into steps where many may leave at once: after a
smaller retention, and after the deletion of a stream. A transaction drops `STEP_CHUNKS` for these reasons and
two for each chunk that it appends; the streams of further chunks wait in `late` or `leaving` for the next
one. A deleted stream disappears at once, since its name moves on to a new identifier. Its chunks stay under
the old identifier, count against the budget, and are the first to leave. Every transaction meets the budget.

The age of a chunk follows from the times of its stream, by a clock that may be wrong by years, even while no
broker runs. So for the limit by age, time passes at most `PACE` times as fast as the counted seconds: a chunk
keeps at least half of its remaining time. A limit that an operator sets at run time holds at once.

A transaction may fail, so its changes are gathered in a `RingTransaction`, which `Ring.commit` applies
or `Ring.abandon` forgets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple, Protocol

from malamute.journal.format import ERA_MAX, StreamMeta
from malamute.journal.message_deletion import Replacement
from malamute.protocol.limits import AGE_SECONDS_MAX
from malamute.protocol.names import AUDIT
from malamute.protocol.time_units import to_ns, to_seconds
from malamute.store.operations import (
    AppendChunk,
    DeleteStream,
    ForgetStream,
    Key,
    NoteRefused,
    PutValue,
    Reserve,
    Retain,
    TrimByAge,
    Value,
)
from malamute.store.policies import KEEP_ALL, StreamRetention

STEP_CHUNKS = 64
"""Chunks that one transaction may drop besides two for each that it appends, unless the budget needs more."""

SPARED_SHARE = 1 / 8
"""The share of the budget up to which the audit stream loses no chunk to other streams."""

HEAP_SLACK = 1_000
"""Outdated entries of the heap, beyond one for each stream, before the heap is rebuilt. No entry comes to the
top as long as the budget is not reached."""

PACE = 2
"""The highest ratio of the time that passes for a limit by age to the counted time."""

Order = tuple[int, bool, int]
"""The era of a chunk, whether it was appended since the start, and its time in nanoseconds UTC."""

Counted = Callable[[], float]
"""Returns the seconds of a monotonic clock, which no operator can set."""


class Dropped(NamedTuple):
    """A dropped chunk, and the first sequence, time and era of the next one; `first` is None without one."""

    count: int  # type: ignore[assignment]  # tuple.count is not used
    size: int
    first: int | None
    time_ns: int
    era: int


class ChunkDeleter(Protocol):
    """Deletes chunks where they are stored."""

    def drop(self, stream: StreamMeta) -> Dropped | None:
        """Delete the oldest chunk of a stream; None if it has no chunk at all."""


class Ring:
    """The committed states of all streams, and the order in which their chunks leave.

    Without `counted` seconds the times of the streams are believed as they are.
    """

    def __init__(
        self,
        streams: Iterable[StreamMeta],
        budget: int,
        counted: Counted | None = None,
    ) -> None:
        found = list(streams)
        self.streams: dict[str, StreamMeta] = {stream.name: stream for stream in found if stream.name}
        self.leaving: dict[int, StreamMeta] = {s.identifier: s for s in found if not s.name}
        self.bytes = sum(stream.bytes for stream in found)
        self.budget = budget
        self.identifier_next = max((s.identifier for s in found), default=0) + 1
        self.overrides: dict[str, StreamRetention] = {}
        """Retentions set at run time."""
        self.given: dict[str, StreamRetention] = {}
        """Retentions given with the last chunk of a stream, which hold unless overridden."""
        self.firsts: dict[str, int] = {}
        """The first sequences of streams whose oldest messages were dropped since the last `pop_firsts`."""
        self.late: set[str] = set()
        self.era = max((stream.last_era for stream in found), default=0)
        """The era of new chunks."""
        self._last_at_start = {name: stream.last for name, stream in self.streams.items()}
        self.heap: list[tuple[Order, str]] = []
        self.in_heap: set[str] = set()
        self.counted = counted
        self.began = 0.0
        self.passed: dict[str, tuple[int, float]] = {}
        """The time up to which a stream has aged, and the counted seconds at that moment."""
        self._rebuild()

    @property
    def used(self) -> int:
        """The highest sequence of any stream that may have been used."""
        return max((stream.reserved for stream in self.streams.values()), default=0)

    @property
    def newest(self) -> int:
        """The time of the newest chunk of all, in nanoseconds UTC."""
        return max((stream.last_time for stream in self.streams.values()), default=0)

    def retention(self, name: str) -> StreamRetention:
        """Return the retention of a stream: set at run time, or else given with its chunks."""
        return self.overrides.get(name) or self.given.get(name) or KEEP_ALL

    def restore(self, overrides: Mapping[Key, Value], now: float | None = None) -> None:
        """Restore retentions that were set at run time, and find the streams over a limit.

        A broker begins `now`, by its clock; None is an inspection without a broker.
        """
        if now is not None and to_ns(now) < self.newest:
            self.era = min(self.era + 1, ERA_MAX)
        self.began = self.counted() if self.counted else 0.0
        self.passed.clear()
        self.overrides = {str(key[0]): StreamRetention.of(value) for key, value in overrides.items()}
        self.late = {
            s.name for s in self.streams.values() if _is_over(s, self.retention(s.name), s.last_time)
        }

    def time_passed(self, stream: StreamMeta, age: int, time_ns: int) -> tuple[int, float]:
        """Return the time up to which a stream has aged, at most `time_ns`, and the counted seconds now."""
        if self.counted is None:
            return time_ns, 0.0
        now = self.counted()
        until_ns, then = self.passed.get(stream.name) or self._time_at_start(stream, age)
        return min(time_ns, until_ns + to_ns((now - then) * PACE)), now

    def too_old(self, time_ns: int) -> Iterator[tuple[str, float]]:
        """Yield the streams with a limit by age, and the least seconds until they are over it."""
        for name, stream in self.streams.items():
            age = _age_ns(self.retention(name)) if stream.chunks else 0
            if age:
                end, until = stream.first_time + age + 1, max(time_ns, stream.last_time)
                until_ns, _ = self.time_passed(stream, age, until)
                yield name, to_seconds(max(end - until, (end - until_ns) / PACE))

    def next_too_old(self, time_ns: int) -> float | None:
        """Return the seconds until a chunk is to be dropped: 0 if one is due now, None if never."""
        if self.is_behind():
            return 0.0
        seconds = min((seconds for _, seconds in self.too_old(time_ns)), default=None)
        return seconds if seconds is None else max(0.0, seconds)

    def _time_at_start(self, stream: StreamMeta, age: int) -> tuple[int, float]:
        """Return the time up to which a stream had aged at the start, and the counted seconds of the start.

        If its times are further apart than `age`, the clock has jumped, or the limit is new: the stream
        begins to age with its first time.
        """
        found = self.streams.get(stream.name)
        if found is None or not found.chunks or found.last_time - found.first_time > age:
            return stream.first_time, self.began
        return found.last_time, self.began

    def clipped(self, operations: Iterable[Any], changed: Mapping[str, StreamMeta]) -> list[Any]:
        """Return the operations, with refused ranges cut off at the reserved sequences.

        No sequence beyond the reserved ones was sent to a subscriber, so it may be used again. The states
        that the transaction has `changed` count: a chunk behind a refused range reserves the whole range.
        """
        kept = []
        for operation in operations:
            if type(operation) is NoteRefused:
                stream = changed.get(operation.stream) or self.streams.get(operation.stream)
                last = min(operation.last, stream.reserved if stream else 0)
                if last < operation.first:
                    continue
                operation = operation._replace(last=last)
            kept.append(operation)
        return kept

    def order(self, stream: StreamMeta) -> Order:
        """Return the order in which the oldest chunk of a stream leaves; the least leaves first."""
        return stream.first_era, stream.first > self._last_at_start.get(stream.name, 0), stream.first_time

    def is_behind(self) -> bool:
        """Return whether chunks wait to be dropped by any transaction."""
        return bool(self.late or self.leaving)

    def begin(self) -> RingTransaction:
        """Gather the changes of one transaction."""
        return RingTransaction(self)

    def commit(self, changes: RingTransaction) -> None:
        """Apply the changes of a durable transaction."""
        for name in changes.forgotten:
            self.streams.pop(name, None)
            self.given.pop(name, None)
            self.passed.pop(name, None)
        self.given |= changes.given
        for name, stream in changes.changed.items():
            before = self.streams.get(name)
            if before is None or before.first != stream.first:
                self.firsts[name] = stream.first
        self.streams.update(changes.changed)
        self.leaving = {number: stream for number, stream in changes.leaving.items() if stream.chunks}
        self.bytes = changes.bytes
        self.identifier_next = changes.identifier_next
        self.overrides = changes.overrides
        self.late = changes.late
        self.passed |= {name: passed for name, passed in changes.passed.items() if name in self.streams}
        for name, stream in changes.changed.items():
            if stream.chunks and name not in self.in_heap:
                self.in_heap.add(name)
                heapq.heappush(self.heap, (self.order(stream), name))
        if len(self.heap) > 2 * len(self.streams) + HEAP_SLACK:
            self._rebuild()

    def abandon(self) -> None:
        """Forget the changes of a transaction that failed. Only the heap was touched by it."""
        self._rebuild()

    def _rebuild(self) -> None:
        self.heap = [(self.order(s), s.name) for s in self.streams.values() if s.chunks]
        self.in_heap = {name for _, name in self.heap}
        heapq.heapify(self.heap)


class RingTransaction:
    """The changes that one transaction makes to the ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.changed: dict[str, StreamMeta] = {}
        self.forgotten: dict[str, StreamMeta | None] = {}
        """The names that are free now, and their streams before this transaction."""
        self.leaving = dict(ring.leaving)
        self.overrides = ring.overrides
        self.given: dict[str, StreamRetention] = {}
        self.late = set(ring.late)
        self.passed: dict[str, tuple[int, float]] = {}
        self._wanted: set[str] = set()
        """Streams with a retention that an operator has set in this transaction."""
        self.bytes = ring.bytes
        self.identifier_next = ring.identifier_next
        self._steps = STEP_CHUNKS
        self._time_ns = 0
        """The time by the clock, if streams at rest are to age by it."""

    def append(self, operation: AppendChunk, size: int) -> int:
        """Add a chunk of `size` stored bytes to its stream; returns the stream's identifier."""
        name, chunk, reserved, _, retention = operation
        stream = self.stream(name) or self._create(name)
        assert chunk.count > 0, f"a chunk of {name} without messages"
        assert chunk.first > stream.last, f"{name} goes from {stream.last} back to {chunk.first}"
        empty = not stream.chunks
        self.changed[name] = StreamMeta(
            stream.identifier,
            name,
            chunk.first if empty else stream.first,
            chunk.last,
            max(stream.reserved, reserved, chunk.last),
            stream.bytes + size,
            stream.count + chunk.count,
            stream.chunks + 1,
            chunk.time_ns if empty else stream.first_time,
            chunk.time_ns,
            self._ring.era if empty else stream.first_era,
            self._ring.era,
        )
        if name in self.forgotten or retention is not self._ring.given.get(name):
            self.given[name] = retention
        self.bytes += size
        self._steps += 2
        return stream.identifier

    def replace(self, stream: StreamMeta, replacement: Replacement) -> None:
        """Replace chunks of a stream by the chunks without deleted messages."""
        self.changed[stream.name] = stream._replace(
            bytes=stream.bytes + replacement.size_bytes,
            count=max(0, stream.count - replacement.messages),
            chunks=stream.chunks + len(replacement.put) - len(replacement.dropped),
        )
        self.bytes += replacement.size_bytes

    def apply(self, operation: Reserve | Retain | TrimByAge | PutValue | DeleteStream | ForgetStream) -> None:
        """Carry out an operation that is no append."""
        if type(operation) is TrimByAge:
            self._time_ns = operation.time_ns
            self.late.update(name for name, seconds in self._ring.too_old(self._time_ns) if seconds <= 0)
        elif type(operation) is Reserve:
            name, reserved = operation
            stream = self.stream(name) or self._create(name)
            self.changed[name] = stream._replace(reserved=max(stream.last, reserved))
        elif type(operation) is Retain:
            name, retention = operation
            self.given[name] = retention
            known = self.stream(name)
            if known is not None and _is_over(known, retention, known.last_time):
                self.late.add(name)
        elif type(operation) is PutValue:
            name = str(operation.key[0])
            self._own_overrides()[name] = StreamRetention.of(operation.value)
            self.late.add(name)
            self._wanted.add(name)
        elif type(operation) is DeleteStream:
            self._delete(operation.stream)
        elif type(operation) is ForgetStream:
            self._forget(operation.stream)

    def _forget(self, name: str) -> None:
        stream = self.stream(name)
        assert stream is None or not stream.chunks, f"{name} is forgotten, and was not deleted"
        self.changed.pop(name, None)
        self.forgotten[name] = self._ring.streams.get(name)

    def _delete(self, name: str) -> None:
        if name in self.overrides:
            del self._own_overrides()[name]
        self.late.discard(name)
        stream = self.stream(name)
        if stream is None:
            return
        identifier = stream.identifier
        if stream.chunks:
            self.leaving[identifier] = stream._replace(name="")
            identifier = self._new_identifier()
        self.changed[name] = StreamMeta(identifier, name, stream.last + 1, stream.last, stream.reserved)

    def _own_overrides(self) -> dict[str, StreamRetention]:
        if self.overrides is self._ring.overrides:
            self.overrides = dict(self.overrides)
        return self.overrides

    def trim(self, deleter: ChunkDeleter) -> None:
        """Drop chunks over the retention, then chunks of deleted streams, then chunks over the budget."""
        for name in dict.fromkeys((*self.changed, *sorted(self.late))):
            self._trim_stream(name, deleter)
        for identifier in sorted(self.leaving) if self._steps > 0 else ():
            while self._steps > 0 and self.leaving[identifier].chunks:
                self._drop_deleted(identifier, deleter)
        self.trim_to(self._ring.budget, deleter)

    def _trim_stream(self, name: str, deleter: ChunkDeleter) -> None:
        self.late.discard(name)
        retention = self.overrides.get(name) or self.given.get(name) or self._ring.given.get(name) or KEEP_ALL
        age_ns = _age_ns(retention)
        until_ns = self._time_passed(name, age_ns) if age_ns else 0
        while (stream := self.stream(name)) and _is_over(stream, retention, until_ns):
            if self._steps <= 0:
                self.late.add(name)
                break
            self._steps -= 1
            self._drop(name, deleter)

    def _time_passed(self, name: str, age: int) -> int:
        stream = self.stream(name)
        if stream is None or not stream.chunks:
            return 0
        until = max(self._time_ns, stream.last_time)
        until_ns, now = self._ring.time_passed(stream, age, until)
        if name in self._wanted:
            until_ns = until
        self.passed[name] = until_ns, now
        return until_ns

    def trim_to(self, budget: int, deleter: ChunkDeleter) -> None:
        """Drop the oldest chunks while all take more than `budget` bytes; those of deleted streams first."""
        for identifier in sorted(self.leaving) if self.bytes > budget else ():
            while self.bytes > budget and self.leaving[identifier].chunks:
                self._drop_deleted(identifier, deleter)
        self._trim_oldest(budget, deleter)

    def _trim_oldest(self, budget: int, deleter: ChunkDeleter) -> None:
        heap = self._ring.heap
        spared = []
        while self.bytes > budget and heap:
            order, name = heap[0]
            stream = self.stream(name)
            if stream is None or not stream.chunks:
                heapq.heappop(heap)
                self._ring.in_heap.discard(name)
            elif self._is_spared(name, stream):
                spared.append(heapq.heappop(heap))
            elif self._ring.order(stream) != order:
                heapq.heapreplace(heap, (self._ring.order(stream), name))
            else:
                self._drop(name, deleter)
        for entry in spared:
            heapq.heappush(heap, entry)

    def _is_spared(self, name: str, stream: StreamMeta) -> bool:
        if name == AUDIT and stream.bytes <= self._ring.budget * SPARED_SHARE:
            return True
        return stream.first > self._last_before(name)  # all its chunks are of this transaction

    def _drop(self, name: str, deleter: ChunkDeleter) -> None:
        stream = self.stream(name)
        assert stream is not None
        self.changed[name] = self._without_oldest(stream, deleter)

    def _drop_deleted(self, identifier: int, deleter: ChunkDeleter) -> None:
        self._steps -= 1
        self.leaving[identifier] = self._without_oldest(self.leaving[identifier], deleter)

    def _without_oldest(self, stream: StreamMeta, deleter: ChunkDeleter) -> StreamMeta:
        dropped = deleter.drop(stream)
        if dropped is None or dropped.first is None:
            left = stream._replace(first=stream.last + 1, bytes=0, count=0, chunks=0)
        else:
            left = stream._replace(
                first=dropped.first,
                first_time=dropped.time_ns,
                first_era=dropped.era,
                bytes=stream.bytes - dropped.size,
                count=max(0, stream.count - dropped.count),
                chunks=stream.chunks - 1,
            )
        self.bytes -= stream.bytes - left.bytes
        return left

    def changed_leaving(self) -> list[StreamMeta]:
        """Return the deleted streams that have changed; one without chunks is complete."""
        before = self._ring.leaving
        return [stream for number, stream in self.leaving.items() if before.get(number) is not stream]

    def _last_before(self, name: str) -> int:
        before = self._ring.streams.get(name)
        return before.last if before else 0

    def stream(self, name: str) -> StreamMeta | None:
        """Return the state of a stream after the changes so far."""
        if name in self.changed:
            return self.changed[name]
        return None if name in self.forgotten else self._ring.streams.get(name)

    def _create(self, name: str) -> StreamMeta:
        return StreamMeta(self._new_identifier(), name)

    def _new_identifier(self) -> int:
        self.identifier_next += 1
        return self.identifier_next - 1


def _is_over(stream: StreamMeta, retention: StreamRetention, until_ns: int) -> bool:
    """Return whether a stream that has aged up to `until_ns` is over its retention."""
    size, count, _ = retention
    if stream.chunks > 1 and (0 < size < stream.bytes or 0 < count < stream.count):
        return True
    return stream.chunks > 0 and 0 < _age_ns(retention) < until_ns - stream.first_time


def _age_ns(retention: StreamRetention) -> int:
    """Return the limit by age in nanoseconds; 0, no limit, for an invalid one from any source."""
    age_seconds = retention.age_seconds
    if not age_seconds or not isfinite(age_seconds):
        return 0
    return to_ns(min(age_seconds, AGE_SECONDS_MAX))
