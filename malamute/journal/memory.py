"""The store in memory: the same interface and the same answers as the store on the disk.

The ring is that of the disk, since the chunks that leave are part of the answers. Queues and values are
dictionaries, so that the log of the disk is tested against a simpler model. Chunks are stored encoded: their
sizes are those of the disk.

No message survives the process. The object survives the core that used it: `recover` returns the state for
a new core, which is how a simulation restarts a broker. A lock makes the store safe for the same threads as
the store on the disk.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from malamute.errors import StorageFull, StoreError
from malamute.journal import format as codec
from malamute.journal.format import StreamMeta
from malamute.journal.log import present
from malamute.journal.message_deletion import Replacement, add_item, replace_chunks
from malamute.journal.plan import OfStream, encode_streams
from malamute.journal.ring import Counted, Dropped, Ring, RingTransaction
from malamute.journal.states import noted
from malamute.journal.store import (
    Checked,
    Copied,
    Progress,
    QueueStatus,
    Status,
    next_incarnations,
    no_progress,
    stream_state,
    verify_stream,
)
from malamute.journal.subjects import Collector, SubjectSearch
from malamute.journal.values import Records
from malamute.store.commit import KEEPING, QUEUED
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    Damage,
    Defect,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteStreamMessages,
    DeleteValue,
    ForgetIdentities,
    Frame,
    GapRange,
    Key,
    MarkDelivered,
    NoteRefused,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueKind,
    QueueState,
    ReadResult,
    Recovered,
    SetAttempts,
    SetCounters,
    StoredMessage,
    SubjectTest,
    Value,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import OF_STREAMS, RETENTIONS, SESSIONS


class MemoryStore:
    """A store that forgets everything when the process ends.

    `size` bounds the bytes of chunks, records and values; `streams_budget` those of chunks.
    """

    def __init__(
        self,
        *,
        size: int = 1 << 30,
        streams_budget: int | None = None,
        broker_id: bytes = b"\0" * 16,
        counted: Counted | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._size = size
        self._broker_id = broker_id
        self.copied = False
        """Whether the store is a copy, and no broker has begun on it."""
        self._incarnations: tuple[int, ...] = ()
        budget = int(size * 0.7) if streams_budget is None else streams_budget
        self._ring = Ring((), budget, counted)
        self._chunks = _MemoryChunks()
        self._queues: dict[tuple[QueueKind, str], _MemoryQueue] = {}
        self._lsn = 0
        self._values: dict[str, dict[Key, Value]] = {}
        self._refused: dict[str, list[NoteRefused]] = {}
        self._collector = Collector()
        self._queues_bytes = 0
        self._values_bytes = 0
        self._appliers: dict[type[Any], Any] = {
            PutMessages: self._put_messages,
            DeleteMessages: self._delete_messages,
            MarkDelivered: self._mark_delivered,
            DeleteQueue: self._delete_queue,
            PutValue: self._put_value,
            DeleteValue: self._delete_value,
            DeleteStream: self._delete_stream,
            SetCounters: self._set_counters,
            SetAttempts: self._set_attempts,
            PutIdentity: self._put_identity,
            ForgetIdentities: self._forget_identities,
        }

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """Return the state for the next core, with at most `records_bytes` bytes of records; None for all."""
        with self._open():
            records = Records(records_bytes)
            for name, queue in self._queues.items():
                records.put(name, queue.messages.values())
            self._collector.clear()
            self._ring.restore(self._values.get(RETENTIONS, {}), now)
            is_restored = now is not None and self.copied
            if now is not None and is_restored:
                used = [self._ring.used, *(queue.next for queue in self._queues.values())]
                self._incarnations = next_incarnations(now, self._incarnations, used, self._ring.newest)
                self.copied = False
            return Recovered(
                broker_id=self._broker_id,
                streams={s.name: stream_state(s) for s in self._ring.streams.values()},
                queues={name: queue.state(*records.of(name)) for name, queue in self._queues.items()},
                values={table: dict(values) for table, values in self._values.items() if values},
                incarnations=self._incarnations,
                restored=is_restored,
                refused=dict(self._refused),
                lsn=self._lsn,
            )

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations, or none. Raises StorageFull."""
        with self._open():
            streams = encode_streams(operations, self._collector, self._ring.era)
            try:
                self._refuse_if_full(operations, [value for _, value in streams])
                if streams or self._ring.is_behind():
                    self._change_streams(streams)
            except BaseException:
                self._collector.clear()
                raise
            for operation in operations:
                if type(operation) in self._appliers:
                    self._appliers[type(operation)](operation)
            for note in self._ring.clipped([o for o in operations if type(o) is NoteRefused], {}):
                self._refused[note.stream] = noted(self._refused.get(note.stream, ()), note)
            self._lsn += 1

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """Return the chunk that holds `start`, and the chunks after it, until `bytes_max` is reached."""
        with self._open():
            state = self._ring.streams.get(stream)
            if state is None:
                return ReadResult((), 1)
            found: list[Chunk | Damage] = []
            size = 0
            for first, value, following in self._chunks.walk(state, start):
                item = codec.item_of(value, first) or Damage(first, following - 1, "corrupt")
                if item.last < start:
                    continue
                add_item(found, item)
                size += len(value)
                if size >= bytes_max:
                    break
            return ReadResult(found, state.first)

    def pop_firsts(self) -> Mapping[str, int]:
        """Return the first sequences of streams whose oldest messages were dropped since the last call."""
        firsts, self._ring.firsts = self._ring.firsts, {}
        return firsts

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence stored at or after a broker time; last + 1 if there is none."""
        with self._open():
            state = self._ring.streams.get(stream)
            if state is None:
                return 1
            for first, value, _ in self._chunks.walk(state, state.first):
                header = codec.header_of(value)
                if header and header.time_ns >= time_ns:
                    return first
            return state.last + 1

    def find_gap(self, stream: str, sequence: int) -> GapRange | None:
        """Return the gap around a sequence; None if it is stored, or outside of the stored range."""
        with self._open():
            state = self._ring.streams.get(stream)
            if state is None or not state.first <= sequence <= state.last:
                return None
            first, value, following = next(self._chunks.walk(state, sequence))
            header = codec.header_of(value)
            if header is None or first > sequence or header.last >= sequence:
                return None
            return GapRange(header.last + 1, following - 1)

    def last_per_subject(
        self, stream: str, *, limit: int, takes: SubjectTest | None = None
    ) -> Mapping[str, int]:
        """Return the sequence of the last message of each subject, newest first, for `limit` subjects.

        Subjects that `takes` refuses are skipped.
        """
        search = SubjectSearch(limit, takes)
        with self._open():
            state = self._ring.streams.get(stream, StreamMeta(0, stream))
            for first, value, _ in reversed(list(self._chunks.walk(state, state.first))):
                chunk = codec.chunk_of(value, first)
                if chunk and not search.is_done:
                    search.add(chunk)
        return search.found

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """Return the records of messages by their sequences, without missing ones."""
        with self._open():
            messages = self._queues.get((kind, queue), _MemoryQueue()).messages
            return {sequence: messages[sequence].record for sequence in sequences if sequence in messages}

    def retention(self, stream: str) -> StreamRetention:
        """Return the retention of a stream: set at run time, or else given with its chunks."""
        return self._ring.retention(stream)

    def next_too_old(self, time_ns: int) -> float | None:
        """Return the seconds until some stream is over its limit by age; None if none has such a limit."""
        with self._open():
            return self._ring.next_too_old(time_ns)

    def status(self) -> Status:
        """Return the usage of the store."""
        with self._open():
            used = self._used()
            return Status(
                lsn=self._lsn,
                size=self._size,
                used=used,
                high_water=used,
                streams_budget=self._ring.budget,
                streams_bytes=self._ring.bytes,
                leaving_bytes=sum(stream.bytes for stream in self._ring.leaving.values()),
                log_bytes=used - self._ring.bytes,
                log_blocks=0,
                log_unreadable=0,
                sessions=len({key[0] for key in self._values.get(SESSIONS, {})}),
                reader_pid=0,
                reader_lag=0,
                defects=(),
                streams=dict(self._ring.streams),
                queues={n: QueueStatus(len(q.messages), q.bytes) for n, q in self._queues.items()},
            )

    def pop_defects(self) -> Sequence[Defect]:
        """Return no defect: memory is never damaged."""
        return ()

    def verify(self, stream: str | None = None) -> Iterator[Checked]:
        """Read the whole store, or one stream, in steps, and yield the result of each."""
        for name in [stream] if stream is not None else sorted(self._ring.streams):
            yield from verify_stream(self.read, name)

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Raise StoreError: a store in memory has no file to copy."""
        raise StoreError("no backup of a store in memory: expected one on the disk")

    def copy(self) -> MemoryStore:
        """Return a copy as a backup would make it, for a simulation."""
        with self._open():
            ring = self._ring
            twin = MemoryStore(
                size=self._size,
                streams_budget=ring.budget,
                broker_id=self._broker_id,
            )
            twin._ring = Ring(
                [*ring.streams.values(), *ring.leaving.values()],
                ring.budget,
                ring.counted,
            )
            for name in _CONTENTS:
                setattr(twin, name, deepcopy(getattr(self, name)))
            twin.copied = True
            return twin

    take_over_at = None
    """Nothing is in a log only."""

    def take_over(self) -> None:
        """Do nothing: a write is complete on return."""

    def close(self) -> None:
        """Refuse further calls."""
        with self._lock:
            self._closed = True

    def _open(self) -> _Opened:
        return _Opened(self._lock, self)

    def _used(self) -> int:
        return self._ring.bytes + self._queues_bytes + self._values_bytes

    def _refuse_if_full(self, operations: Sequence[Operation], values: Sequence[bytes]) -> None:
        added = sum(map(len, values))
        promised = 0
        for operation in operations:
            if type(operation) is PutMessages:
                added += sum(map(len, operation.records))
            elif type(operation) is PutValue:
                added += _size_of(operation.value)
            if type(operation) in QUEUED or type(operation) in KEEPING:
                promised = max(0, self._ring.budget - self._ring.bytes)
        if added and self._used() + added + promised > self._size:
            raise StorageFull(
                f"store is full: {added} bytes do not fit, {self._used()} of {self._size} are used"
            )

    def _change_streams(self, streams: Sequence[tuple[OfStream, bytes]]) -> None:
        changes = self._ring.begin()
        appended = []
        for operation, value in streams:
            if isinstance(operation, AppendChunk):
                appended.append((changes.append(operation, len(value)), operation.chunk.first, value))
            elif not isinstance(operation, DeleteStreamMessages):
                changes.apply(operation)
        for place in appended:
            self._chunks.put(*place)
        for operation, _ in streams:
            if isinstance(operation, DeleteStreamMessages):
                self._delete_stream_messages(changes, operation)
        changes.trim(self._chunks)
        self._ring.commit(changes)

    def _delete_stream_messages(self, changes: RingTransaction, operation: DeleteStreamMessages) -> None:
        stream = changes.stream(operation.stream)
        if stream is not None:
            found = [(first, value) for first, value, _ in self._chunks.walk(stream, stream.first)]
            replacement = replace_chunks(found, operation.ranges)
            self._chunks.replace(stream.identifier, replacement)
            changes.replace(stream, replacement)

    def _queue(self, operation: PutMessages | PutIdentity | SetCounters) -> _MemoryQueue:
        return self._queues.setdefault((operation.kind, operation.queue), _MemoryQueue())

    def _put_messages(self, operation: PutMessages) -> None:
        queue = self._queue(operation)
        for message in operation.messages():
            self._remove(queue, message.sequence)
            queue.messages[message.sequence] = message._replace(record=bytes(message.record))
            queue.bytes += len(message.record)
            self._queues_bytes += len(message.record)
        queue.next = max(queue.next, operation.last + 1)

    def _delete_messages(self, operation: DeleteMessages) -> None:
        queue = self._queues.get((operation.kind, operation.queue), _MemoryQueue())
        for first, last in operation.ranges:
            for sequence in present(queue.messages, first, last):
                self._remove(queue, sequence)

    def _remove(self, queue: _MemoryQueue, sequence: int) -> None:
        message = queue.messages.pop(sequence, None)
        if message:
            queue.attempts.pop(sequence, None)
            queue.bytes -= len(message.record)
            self._queues_bytes -= len(message.record)

    def _mark_delivered(self, operation: MarkDelivered) -> None:
        queue = self._queues.get((operation.kind, operation.queue), _MemoryQueue())
        queue.delivered = max(queue.delivered, operation.sequence)

    def _set_attempts(self, operation: SetAttempts) -> None:
        queue = self._queues.get((operation.kind, operation.queue), _MemoryQueue())
        if operation.sequence in queue.messages:
            queue.attempts[operation.sequence] = operation.attempts, operation.due_ns

    def _put_identity(self, operation: PutIdentity) -> None:
        self._queue(operation).identities[operation.identity] = operation.sequence, operation.until_ns

    def _forget_identities(self, operation: ForgetIdentities) -> None:
        queue = self._queues.get((operation.kind, operation.queue), _MemoryQueue())
        queue.identities = {i: known for i, known in queue.identities.items() if known[1] > operation.time_ns}

    def _delete_queue(self, operation: DeleteQueue) -> None:
        queue = self._queues.pop((operation.kind, operation.queue), _MemoryQueue())
        self._queues_bytes -= queue.bytes

    def _set_counters(self, operation: SetCounters) -> None:
        queue = self._queue(operation)
        queue.next = max(queue.next, operation.next)
        queue.delivered = max(queue.delivered, operation.delivered)

    def _put_value(self, operation: PutValue) -> None:
        values = self._values.setdefault(operation.table, {})
        self._values_bytes += _size_of(operation.value) - _size_of(values.get(operation.key))
        values[operation.key] = operation.value

    def _delete_value(self, operation: DeleteValue) -> None:
        values, wanted = self._values.get(operation.table, {}), operation.key
        deleted = [key for key in values if key[:1] == wanted] if len(wanted) == 1 else [wanted]
        for key in deleted:
            self._values_bytes -= _size_of(values.pop(key, None))

    def _delete_stream(self, operation: DeleteStream) -> None:
        self._refused.pop(operation.stream, None)
        for table in OF_STREAMS:
            self._delete_value(DeleteValue(table, (operation.stream,)))


_CONTENTS = (
    "_incarnations",
    "_chunks",
    "_queues",
    "_values",
    "_refused",
    "_queues_bytes",
    "_values_bytes",
    "_lsn",
)
"""The attributes of a copy, besides the ring."""


class _MemoryQueue:
    """One queue as dictionaries."""

    def __init__(self) -> None:
        self.next = 1
        self.delivered = 0
        self.messages: dict[int, StoredMessage] = {}
        self.attempts: dict[int, tuple[int, int]] = {}
        self.identities: dict[str, tuple[int, int]] = {}
        self.bytes = 0

    def state(self, messages: list[StoredMessage], paged_out: Mapping[int, int]) -> QueueState:
        attempts = {sequence: count for sequence, (count, _) in self.attempts.items()}
        due = {sequence: due for sequence, (_, due) in self.attempts.items() if due}
        return QueueState(
            self.next, self.delivered, messages, attempts, dict(self.identities), paged_out, due
        )


def _size_of(value: Value) -> int:
    return len(value) if type(value) is bytes else 0


class _MemoryChunks:
    """The encoded chunks of each stream, and their first sequences in order."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._values: dict[tuple[int, int], bytes] = {}

    def put(self, identifier: int, first: int, value: bytes) -> None:
        self._firsts.setdefault(identifier, []).append(first)
        self._values[identifier, first] = value

    def replace(self, identifier: int, replacement: Replacement) -> None:
        for first in replacement.dropped:
            del self._values[identifier, first]
        self._values |= {(identifier, first): value for first, value in replacement.put}
        firsts = self._firsts.get(identifier, [])
        added = [first for first, _ in replacement.put]
        self._firsts[identifier] = sorted({*firsts} - {*replacement.dropped} | {*added})

    def drop(self, stream: StreamMeta) -> Dropped | None:
        firsts = self._firsts[stream.identifier]
        dropped = self._values.pop((stream.identifier, firsts.pop(0)))
        count = codec.decode_chunk_header(dropped).messages
        if not firsts:
            return Dropped(count, len(dropped), None, 0, 0)
        header = codec.decode_chunk_header(self._values[stream.identifier, firsts[0]])
        return Dropped(count, len(dropped), header.first, header.time_ns, header.era)

    def walk(self, stream: StreamMeta, start: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield first sequence, value and following sequence, from the chunk that may hold `start`."""
        firsts = self._firsts.get(stream.identifier, [])
        for index in range(max(0, bisect_right(firsts, start) - 1), len(firsts)):
            first = firsts[index]
            following = firsts[index + 1] if index + 1 < len(firsts) else stream.last + 1
            yield first, self._values[stream.identifier, first], following


class _Opened:
    """Holds the lock of an open store."""

    def __init__(self, lock: threading.Lock, store: MemoryStore) -> None:
        self._lock = lock
        self._store = store

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._store._closed:
            self._lock.release()
            raise StoreError("store is closed")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
