"""The plan of one write: its operations, encoded before the transaction begins.

Theory. Readers and the next write wait for the transaction, so nothing is encoded inside it. Operations on
streams keep their order among themselves, and so do those of the log; the two never depend on each other. An
operation on both, such as deleting a stream, is in both. The entries of the log go into blocks of bounded
size, some hundreds in each, so that a transaction costs few calls of LMDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from malamute.journal import format as codec
from malamute.journal.blocks import encode_block
from malamute.journal.directory import PAGE
from malamute.journal.log import BLOCK_ENTRIES_MAX, MESSAGE_WEIGHT, messages_in
from malamute.journal.states import Setting
from malamute.journal.subjects import Collector
from malamute.store.commit import APPENDING, KEEPING, QUEUED
from malamute.store.operations import (
    AppendChunk,
    DeleteStream,
    DeleteStreamMessages,
    DeleteValue,
    ForgetStream,
    NoteRefused,
    Operation,
    PutMessages,
    PutValue,
    Reserve,
    Retain,
    TrimByAge,
)
from malamute.store.tables import OF_STREAMS, RETENTIONS

OfStream = (
    AppendChunk | Reserve | Retain | TrimByAge | PutValue | DeleteStream | DeleteStreamMessages | ForgetStream
)
"""The operations that change the ring; of values only the retention of a stream does."""

_OF_RING = frozenset(
    (AppendChunk, Reserve, Retain, TrimByAge, DeleteStream, DeleteStreamMessages, ForgetStream)
)
_OF_VALUES: frozenset[type[Any]] = frozenset((PutValue, DeleteValue))
_OF_CARDS: frozenset[type[Any]] = frozenset((NoteRefused, DeleteStream))
_MAY_SET = _OF_CARDS | _OF_VALUES
_NOT_OF_LOG = frozenset(
    (AppendChunk, Reserve, Retain, TrimByAge, DeleteStreamMessages, ForgetStream, NoteRefused)
)


class Plan(NamedTuple):
    """The encoded operations of one write.

    `streams` are the operations on streams, each with the value of the chunk that it appends; `settings` are
    the operations that may change a card. `added` bounds the bytes of the added pages. The plan is
    `appending` if it has chunks, `queued` if it has messages of queues, and `keeping` if it has values, such
    as sessions and cursors, most of which replace others. `lsn` is the transaction's log sequence number. A
    plan that `takes_over` stores all that is in the write-ahead log.
    """

    streams: Sequence[tuple[OfStream, bytes]]
    settings: Sequence[Setting]
    blocks: Sequence[tuple[Sequence[Operation], bytes]]
    added: int
    appending: bool
    queued: bool
    keeping: bool
    lsn: int
    takes_over: bool = False

    def renumbered(self, lsn: int) -> Plan:
        """Return the plan of a transaction with another number."""
        blocks = [(entries, encode_block(entries, lsn)) for entries, _ in self.blocks]
        return self._replace(blocks=blocks, lsn=lsn)


def make_plan(
    operations: Sequence[Operation], collector: Collector, block_bytes_max: int, lsn: int, era: int = 0
) -> Plan:
    """Encode the operations for the transaction of a log sequence number, in an era of the ring.

    The collector counts the chunks as stored already.
    """
    entries: Any = operations
    streams: Sequence[tuple[OfStream, bytes]] = ()
    kinds = set(map(type, operations))
    settings: Sequence[Any] = ()
    if not kinds.isdisjoint(_MAY_SET):
        settings = [
            o for o in entries if type(o) in _OF_CARDS or (type(o) in _OF_VALUES and o.table in OF_STREAMS)
        ]
    if not kinds.isdisjoint(_OF_RING) or (settings and any(map(is_retention, settings))):
        streams = encode_streams(operations, collector, era)
    if not kinds.isdisjoint(_NOT_OF_LOG):
        entries = [operation for operation in operations if type(operation) not in _NOT_OF_LOG]
    blocks = encode_blocks(entries, block_bytes_max, lsn)
    added = sum(len(value) + 2 * PAGE for _, value in streams if value)
    added += sum(len(value) + 2 * PAGE for _, value in blocks)
    appending, queued = not kinds.isdisjoint(APPENDING), not kinds.isdisjoint(QUEUED)
    return Plan(streams, settings, blocks, added, appending, queued, not kinds.isdisjoint(KEEPING), lsn)


def encode_streams(
    operations: Sequence[Operation], collector: Collector, era: int
) -> list[tuple[OfStream, bytes]]:
    """Return the operations on streams in order, each with the value of the chunk that it appends."""
    streams: list[tuple[OfStream, bytes]] = []
    for operation in operations:
        if type(operation) is AppendChunk:
            streams.append((operation, codec.encode_chunk(operation.chunk, collector.take(operation), era)))
        elif isinstance(operation, Reserve | Retain | TrimByAge | ForgetStream) or is_retention(operation):
            streams.append((operation, b""))
        elif isinstance(operation, DeleteStream | DeleteStreamMessages):
            collector.forget(operation.stream)
            streams.append((operation, b""))
    return streams


def is_retention(operation: Operation) -> TypeGuard[PutValue]:
    """Return whether an operation sets the retention of a stream."""
    return type(operation) is PutValue and operation.table == RETENTIONS


def encode_blocks(
    entries: Sequence[Operation], bytes_max: int, lsn: int
) -> list[tuple[Sequence[Operation], bytes]]:
    """Return the entries in blocks of a bounded number and size; one larger entry has a block of its own."""
    blocks: list[list[Operation]] = []
    room = room_bytes = 0
    for entry in entries:
        for piece in _pieces(entry, bytes_max) if type(entry) is PutMessages else (entry,):
            number, size_bytes = messages_in(piece), _bytes_in(piece)
            if number > room or size_bytes > room_bytes:
                blocks.append([])
                room, room_bytes = BLOCK_ENTRIES_MAX, bytes_max
            blocks[-1].append(piece)
            room, room_bytes = room - number, room_bytes - size_bytes
    return [(block, encode_block(block, lsn)) for block in blocks]


def _pieces(entry: PutMessages, bytes_max: int) -> Iterator[PutMessages]:
    """Yield the messages of an entry in parts that fit into a block."""
    number = messages_in(entry)
    if number == 1 or (number <= BLOCK_ENTRIES_MAX and _bytes_in(entry) <= bytes_max):
        yield entry
    else:
        yield from _pieces(entry.part(0, number // 2), bytes_max)
        yield from _pieces(entry.part(number // 2, number), bytes_max)


def weight_of(entry: Operation) -> int:
    """Return the estimated bytes of an entry in a block."""
    return _bytes_in(entry) + MESSAGE_WEIGHT * messages_in(entry)


def _bytes_in(entry: Operation) -> int:
    if type(entry) is PutMessages:
        return sum(map(len, entry.records))
    return len(entry.value) if type(entry) is PutValue and type(entry.value) is bytes else 0
