"""What one write is to do, put into bytes before its transaction begins.

Theory. The transaction is what others wait for, so nothing is encoded inside it. Operations on streams keep
their order among themselves, and so do those of the log; the two never depend on each other. What concerns
both, such as deleting a stream, is in both. The entries of the log go into blocks of bounded size, some
hundreds in each, so that a transaction costs a few calls of LMDB whatever it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from malamute.core.storage import (
    AppendChunk,
    DeleteStream,
    Operation,
    PutMessage,
    PutRetention,
    Reserve,
)
from malamute.journal import entries as log_codec
from malamute.journal import format as codec
from malamute.journal.directory import PAGE
from malamute.journal.entries import Entry
from malamute.journal.log import BLOCK_ENTRIES_MAX
from malamute.journal.subjects import Collector

OfStream = AppendChunk | Reserve | PutRetention | DeleteStream
"""The operations that change the ring."""

_OF_STREAMS = frozenset((AppendChunk, Reserve, PutRetention, DeleteStream))
_NOT_OF_LOG = frozenset((AppendChunk, Reserve))


class Plan(NamedTuple):
    """What one write is to do.

    `streams` are the operations on streams, each with the value of the chunk that it appends. `added` bounds
    the bytes of pages that all adds; `appending` says that chunks are among it, and `queued` that messages of
    queues are. Sessions and cursors are not counted as such: they replace what was there.
    """

    streams: Sequence[tuple[OfStream, bytes]]
    blocks: Sequence[tuple[Sequence[Entry], bytes]]
    added: int
    appending: bool
    queued: bool


def make_plan(operations: Sequence[Operation], collector: Collector, block_bytes_max: int) -> Plan:
    """Encode the operations. The collector takes note of the chunks, as if they were already stored."""
    entries: Any = operations
    streams: Sequence[tuple[OfStream, bytes]] = ()
    kinds = set(map(type, operations))
    if not kinds.isdisjoint(_OF_STREAMS):
        streams = encode_streams(operations, collector)
        entries = [operation for operation in operations if type(operation) not in _NOT_OF_LOG]
    blocks = encode_blocks(entries, block_bytes_max)
    added = sum(len(value) + 2 * PAGE for _, value in streams if value)
    added += sum(len(value) + 2 * PAGE for _, value in blocks)
    return Plan(streams, blocks, added, AppendChunk in kinds, PutMessage in kinds)


def encode_streams(operations: Sequence[Operation], collector: Collector) -> list[tuple[OfStream, bytes]]:
    """The operations on streams in order, each with the value of the chunk that it appends."""
    streams: list[tuple[OfStream, bytes]] = []
    for operation in operations:
        if type(operation) is AppendChunk:
            streams.append((operation, codec.encode_chunk(operation.chunk, collector.take(operation))))
        elif isinstance(operation, Reserve | PutRetention):
            streams.append((operation, b""))
        elif type(operation) is DeleteStream:
            collector.forget(operation.stream)
            streams.append((operation, b""))
    return streams


def encode_blocks(entries: Sequence[Entry], bytes_max: int) -> list[tuple[Sequence[Entry], bytes]]:
    """The entries in blocks, each of a bounded number and, unless one alone is larger, of bounded size."""
    if not entries:
        return []
    blocks: list[tuple[Sequence[Entry], bytes]] = []
    for start in range(0, len(entries), BLOCK_ENTRIES_MAX):
        part = entries[start : start + BLOCK_ENTRIES_MAX]
        size = sum(len(entry.message.record) for entry in part if type(entry) is PutMessage)
        if size <= bytes_max or len(part) == 1:
            blocks.append((part, log_codec.encode_block(part)))
        else:
            half = len(part) // 2
            blocks += encode_blocks(part[:half], bytes_max) + encode_blocks(part[half:], bytes_max)
    return blocks
