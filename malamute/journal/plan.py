"""What one write is to do, put into bytes before its transaction begins.

Theory. The transaction is what others wait for, so nothing is encoded inside it. Operations on streams keep
their order among themselves, and so do those of the log; the two never depend on each other. What concerns
both, such as deleting a stream, is in both. The entries of the log go into blocks of bounded size, some
hundreds in each, so that a transaction costs a few calls of LMDB whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from malamute.journal import entries as log_codec
from malamute.journal import format as codec
from malamute.journal.directory import PAGE
from malamute.journal.entries import Entry
from malamute.journal.log import BLOCK_ENTRIES_MAX, messages_in
from malamute.journal.states import SETTINGS, Setting
from malamute.journal.subjects import Collector
from malamute.store.operations import (
    AppendChunk,
    DeleteStream,
    ForgetStream,
    NoteRefused,
    Operation,
    PutCursor,
    PutFeed,
    PutIdentity,
    PutMessages,
    PutRetention,
    PutSession,
    Reserve,
)

OfStream = AppendChunk | Reserve | PutRetention | DeleteStream | ForgetStream
"""The operations that change the ring."""

_OF_STREAMS = frozenset((AppendChunk, Reserve, PutRetention, DeleteStream, ForgetStream))
_NOT_OF_LOG = frozenset((AppendChunk, Reserve, ForgetStream, NoteRefused))
_KEPT = frozenset((PutCursor, PutFeed, PutIdentity, PutRetention, PutSession))
"""The operations that keep something in the log which is no message."""


class Plan(NamedTuple):
    """What one write is to do.

    `streams` are the operations on streams, each with the value of the chunk that it appends, and `settings`
    those that may change a card. `added` bounds
    the bytes of pages that all adds; `appending` says that chunks are among it, and `queued` that messages of
    queues are. `keeping` says that sessions, cursors or the like are; most of them replace what was there.
    """

    streams: Sequence[tuple[OfStream, bytes]]
    settings: Sequence[Setting]
    blocks: Sequence[tuple[Sequence[Entry], bytes]]
    added: int
    appending: bool
    queued: bool
    keeping: bool = False


def make_plan(operations: Sequence[Operation], collector: Collector, block_bytes_max: int) -> Plan:
    """Encode the operations. The collector takes note of the chunks, as if they were already stored."""
    entries: Any = operations
    streams: Sequence[tuple[OfStream, bytes]] = ()
    kinds = set(map(type, operations))
    if not kinds.isdisjoint(_OF_STREAMS):
        streams = encode_streams(operations, collector)
    if not kinds.isdisjoint(_NOT_OF_LOG):
        entries = [operation for operation in operations if type(operation) not in _NOT_OF_LOG]
    settings: Sequence[Any] = ()
    if not kinds.isdisjoint(SETTINGS):
        settings = [operation for operation in operations if type(operation) in SETTINGS]
    blocks = encode_blocks(entries, block_bytes_max)
    added = sum(len(value) + 2 * PAGE for _, value in streams if value)
    added += sum(len(value) + 2 * PAGE for _, value in blocks)
    keeping = not kinds.isdisjoint(_KEPT)
    return Plan(streams, settings, blocks, added, AppendChunk in kinds, PutMessages in kinds, keeping)


def encode_streams(operations: Sequence[Operation], collector: Collector) -> list[tuple[OfStream, bytes]]:
    """The operations on streams in order, each with the value of the chunk that it appends."""
    streams: list[tuple[OfStream, bytes]] = []
    for operation in operations:
        if type(operation) is AppendChunk:
            streams.append((operation, codec.encode_chunk(operation.chunk, collector.take(operation))))
        elif isinstance(operation, Reserve | PutRetention | ForgetStream):
            streams.append((operation, b""))
        elif type(operation) is DeleteStream:
            collector.forget(operation.stream)
            streams.append((operation, b""))
    return streams


def encode_blocks(entries: Sequence[Entry], bytes_max: int) -> list[tuple[Sequence[Entry], bytes]]:
    """The entries in blocks, each of a bounded number and, unless one alone is larger, of bounded size."""
    blocks: list[list[Entry]] = []
    room = room_bytes = 0
    for entry in entries:
        for piece in _pieces(entry, bytes_max) if type(entry) is PutMessages else (entry,):
            number, size_bytes = messages_in(piece), _bytes_in(piece)
            if number > room or size_bytes > room_bytes:
                blocks.append([])
                room, room_bytes = BLOCK_ENTRIES_MAX, bytes_max
            blocks[-1].append(piece)
            room, room_bytes = room - number, room_bytes - size_bytes
    return [(block, log_codec.encode_block(block)) for block in blocks]


def _pieces(entry: PutMessages, bytes_max: int) -> Iterator[PutMessages]:
    """The messages of an entry in parts that fit into a block."""
    number = messages_in(entry)
    if number == 1 or (number <= BLOCK_ENTRIES_MAX and _bytes_in(entry) <= bytes_max):
        yield entry
    else:
        yield from _pieces(entry.part(0, number // 2), bytes_max)
        yield from _pieces(entry.part(number // 2, number), bytes_max)


def _bytes_in(entry: Entry) -> int:
    return sum(map(len, entry.records)) if type(entry) is PutMessages else 0
