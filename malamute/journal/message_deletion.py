"""The deletion of single messages of a stream. Pure.

Theory. A chunk with deleted messages is replaced by chunks of the messages left, and by *deleted chunks*,
which have sequences and a time and nothing else. So the sequences of a stream have no new kind of gap, and
each reader of chunks, in the broker or of a directory, meets the deleted ones in their place.

Replaced chunks have no index of subjects: the subject may be that of a deleted message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from malamute.errors import Malformed
from malamute.journal import format as codec
from malamute.protocol.batch import Columns, pack_stream_payload, unpack_payload
from malamute.protocol.messages import DELETED
from malamute.store.operations import Chunk, Damage

Ranges = Sequence[tuple[int, int]]


class _Piece(NamedTuple):
    """A part of a chunk: messages, or only the sequences of deleted ones."""

    first: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    time_ns: int
    era: int
    value: bytes | None

    def encoded(self) -> bytes:
        return self.value or codec.encode_deleted(self.first, self.count, self.time_ns, self.era)


class Replacement(NamedTuple):
    """The chunks without deleted messages: the keys to drop, the values to put, and the differences."""

    dropped: Sequence[int]
    put: Sequence[tuple[int, bytes]]
    size_bytes: int
    messages: int
    """The number of messages deleted."""


def replace_chunks(chunks: Iterable[tuple[int, Any]], ranges: Ranges) -> Replacement:
    """Return the replacement of chunks, in order, by ranges in order. Unreadable chunks stay."""
    dropped: list[int] = []
    pieces: list[_Piece] = []
    size_bytes = 0
    for first, value in chunks:
        found = _pieces(first, value, ranges)
        if found:
            dropped.append(first)
            size_bytes -= len(value)
            pieces += found
    merged = _merged(pieces)
    put = [(piece.first, piece.encoded()) for piece in merged]
    deleted = sum(piece.count for piece in merged if piece.value is None)
    return Replacement(dropped, put, size_bytes + sum(len(value) for _, value in put), deleted)


def _merged(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Return the pieces with deleted ones that touch as one, which has the time of the last."""
    merged: list[_Piece] = []
    for piece in pieces:
        before = merged[-1] if merged and piece.value is merged[-1].value is None else None
        if before is not None and before.first + before.count == piece.first:
            merged[-1] = piece._replace(first=before.first, count=before.count + piece.count)
        else:
            merged.append(piece)
    return merged


def _pieces(first: int, value: Any, ranges: Ranges) -> list[_Piece]:
    """Return the pieces of a chunk; none if nothing of it is deleted."""
    chunk, header = codec.chunk_of(value, first), codec.header_of(value)
    if chunk is None or header is None or header.deleted:
        return []
    runs = [*_runs(chunk, ranges)]
    if all(not is_deleted for *_, is_deleted in runs):
        return []
    columns = _columns(chunk) if len(runs) > 1 else None
    if len(runs) > 1 and columns is None:
        return []
    time_ns, era = chunk.time_ns, header.era
    return [
        _Piece(
            start, stop - start, time_ns, era, None if is_deleted else _part(chunk, columns, start, stop, era)
        )
        for start, stop, is_deleted in runs
    ]


def _runs(chunk: Chunk, ranges: Ranges) -> Iterator[tuple[int, int, bool]]:
    """Yield the runs of sequences of a chunk, each up to before a stop, and whether it is deleted."""
    at, end = chunk.first, chunk.last + 1
    for first, last in ranges[bisect_left(ranges, at, key=lambda one: one[1]) :]:
        if first >= end:
            break
        if at < first:
            yield at, first, False
        yield max(at, first), min(last + 1, end), True
        at = min(last + 1, end)
    if at < end:
        yield at, end, False


def _columns(chunk: Chunk) -> Columns | None:
    """Return the columns of a chunk; None if it has no messages of a stream."""
    try:
        columns = unpack_payload(chunk.payload, chunk.large)
    except Malformed:
        return None
    return columns if len(columns) == chunk.count else None


def _part(chunk: Chunk, columns: Columns | None, start: int, stop: int, era: int) -> bytes:
    assert columns is not None
    part = columns.take(range(start - chunk.first, stop - chunk.first))
    run = Columns(start, *part[1:])
    return codec.encode_chunk(Chunk(start, stop - start, chunk.time_ns, *pack_stream_payload(run)), era=era)


def add_item(found: list[Chunk | Damage], item: Chunk | Damage) -> None:
    """Add an item to the result of a read; deleted messages that follow deleted ones are one range."""
    before = found[-1] if found else None
    if (
        isinstance(item, Damage)
        and isinstance(before, Damage)
        and before.reason == item.reason == DELETED
        and before.last + 1 == item.first
    ):
        found[-1] = before._replace(last=item.last)
    else:
        found.append(item)
