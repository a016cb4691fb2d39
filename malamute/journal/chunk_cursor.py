"""Cursors over stored values, and over the chunks of a stream: reading, searching by time, dropping.

A cursor is valid within its transaction only, so these objects live as long as one call of the store.
Values may be views into the mapped file; returned chunks are checked copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lmdb

from malamute.journal import format as codec
from malamute.journal.format import CHUNK, StreamMeta, key
from malamute.journal.lmdb_pages.cursor import Cursor, size_and_head
from malamute.journal.message_deletion import Ranges, add_item
from malamute.journal.ring import Dropped
from malamute.journal.subjects import SubjectSearch
from malamute.store.operations import Chunk, Damage, GapRange

_Cursor = lmdb.Cursor


def keys_of(cursor: Cursor, kind: int, identifier: int = 0, sequence: int = 0) -> Iterator[bytes]:
    """Yield the keys of a kind, from one key on; the cursor stays at the yielded key."""
    found = cursor.set_range(key(kind, identifier, sequence))
    while found and cursor.key()[0] == kind:
        yield bytes(cursor.key())
        found = cursor.next()


def values_of(cursor: Cursor, kind: int, sequence: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the sequences and values of a kind of keys without identifiers, from one sequence on."""
    for place in keys_of(cursor, kind, 0, sequence):
        yield codec.split_key(place)[2], cursor.value()


class DiskChunkDeleter:
    """Drops chunks through a cursor of the write transaction."""

    def __init__(self, cursor: _Cursor) -> None:
        self._cursor = cursor

    def drop(self, stream: StreamMeta) -> Dropped | None:
        """Delete the oldest chunk, even with a damaged header."""
        cursor = self._cursor
        wanted = key(CHUNK, stream.identifier, stream.first)
        if cursor.key() != wanted and not cursor.set_range(wanted):
            return None
        place, value = cursor.item()
        kind, identifier, first = codec.split_key(place)
        if kind != CHUNK or identifier != stream.identifier:
            return None
        size, header = len(value), codec.header_of(value)
        cursor.delete()
        following, time_ns, era = self._following(stream)
        after = stream.last + 1 if following is None else following
        return Dropped(header.messages if header else after - first, size, following, time_ns, era)

    def _following(self, stream: StreamMeta) -> tuple[int | None, int, int]:
        place, value = self._cursor.item()
        if len(place) == 0:
            return None, 0, 0
        kind, identifier, first = codec.split_key(place)
        if kind != CHUNK or identifier != stream.identifier:
            return None, 0, 0
        header = codec.header_of(value)
        return (first, header.time_ns, header.era) if header else (first, stream.first_time, stream.first_era)


def chunks_in(cursor: _Cursor, stream: StreamMeta, ranges: Ranges) -> Iterator[tuple[int, Any]]:
    """Yield the chunks of a stream with a sequence in ranges that are in order: first sequence and value."""
    chunks = ChunkCursor(cursor, stream)
    yielded = 0
    for first, last in ranges:
        if first > stream.last:
            break
        chunks.seek_holder(first)
        while chunks.first is not None and chunks.first <= last:
            if chunks.first > yielded:
                yielded = chunks.first
                yield yielded, cursor.value()
            chunks.next()


class ChunkCursor:
    """A cursor over the chunks of one stream, in one read transaction."""

    def __init__(self, cursor: Cursor, state: StreamMeta) -> None:
        self._cursor = cursor
        self._state = state
        self.first: int | None = None

    def seek(self, sequence: int) -> None:
        """Move to the first chunk whose key is at or after `sequence`; `first` is None at the end."""
        self._land(self._cursor.set_range(key(CHUNK, self._state.identifier, max(0, sequence))))

    def seek_holder(self, sequence: int) -> None:
        """Move to the chunk that holds `sequence`, or may hold it, or else to the one after."""
        if sequence <= self._state.first:
            return self.seek(self._state.first)
        if sequence > self._state.last:
            return None
        self.seek(sequence)
        if self.first != sequence:
            cursor = self._cursor
            self._land(cursor.prev() if len(cursor.key()) else cursor.last())
        return None

    def next(self) -> None:
        """Move to the next chunk."""
        self._land(self._cursor.next())

    def previous(self) -> None:
        """Move to the previous chunk."""
        self._land(self._cursor.prev())

    def search(self, search: SubjectSearch, start: int, chunks_max: int) -> int | None:
        """Give a search the chunks from the one that holds `start` backwards.

        Returns the sequence to continue with; None at the beginning, and when the search is done.
        """
        self.seek_holder(start)
        for _ in range(chunks_max):
            first = self.first
            if first is None or first > start:
                return None
            start = search.visit(self._cursor.value(), first) - 1
            if search.is_done or start < self._state.first:
                return None
            if start == first - 1:
                self.previous()
            else:
                self.seek_holder(start)
        return start

    def headers(self, start: int, count_max: int) -> list[codec.ChunkHeader | Damage]:
        """Return the headers of the chunks from here on, without chunks that end before `start`."""
        found: list[codec.ChunkHeader | Damage] = []
        while self.first is not None and len(found) < count_max:
            first = self.first
            header = codec.header_of(self._cursor.value())
            self.next()
            following = self._state.last + 1 if self.first is None else self.first
            item = header if header and header.first == first else Damage(first, following - 1, "corrupt")
            if item.last >= start:
                found.append(item)
        return found

    def backwards(self, start: int, bytes_max: int) -> Iterator[tuple[int, Any]]:
        """Yield first sequences and values backwards from the chunk that holds `start`, up to `bytes_max`."""
        self.seek_holder(start)
        size = 0
        while self.first is not None and self.first <= start and size < bytes_max:
            value = self._cursor.value()
            size += len(value)
            yield self.first, value
            self.previous()

    def collect(self, start: int, bytes_max: int) -> list[Chunk | Damage]:
        """Return the chunks and damages from here on, without those that end before `start`.

        A stream begins with its oldest chunk. If no chunk has the first sequence, that key is damaged.
        """
        found: list[Chunk | Damage] = []
        size, oldest = 0, self._state.first
        if start <= oldest <= self._state.last and self.first != oldest:
            found.append(
                Damage(oldest, self._state.last if self.first is None else self.first - 1, "corrupt")
            )
        while self.first is not None and not (found and size >= bytes_max):
            value = self._cursor.value()
            size_here = len(value)
            item = self._decode(value, self.first)
            if item.last >= start:
                add_item(found, item)
                size += size_here
        return found

    def _decode(self, value: Any, first: int) -> Chunk | Damage:
        """Return the chunk here, or a damage, and move on."""
        item = codec.item_of(value, first)
        self.next()
        return item or Damage(first, self._state.last if self.first is None else self.first - 1, "corrupt")

    def find_time(self, time_ns: int) -> int:
        """Return the first sequence at or after a time, by binary search: times rise with sequences."""
        low, high = self._state.first, self._state.last + 1
        while low < high:
            middle = (low + high) // 2
            header = self._header_from(middle)
            if header is None or header.time_ns >= time_ns:
                high = middle
            else:
                low = header.last + 1
        self._header_from(low)
        return self._state.last + 1 if self.first is None else self.first

    def find_gap(self, sequence: int) -> GapRange | None:
        """Return the gap around a sequence; None if it is stored, or in an unreadable chunk."""
        if not self._state.first <= sequence <= self._state.last:
            return None
        self.seek_holder(sequence)
        header = codec.header_of(self._cursor.value()) if self.first is not None else None
        if header is None or not header.last < sequence:
            return None
        self.next()
        return None if self.first is None else GapRange(header.last + 1, self.first - 1)

    def _header_from(self, sequence: int) -> codec.ChunkHeader | None:
        """Return the first readable header of a chunk at or after a sequence."""
        self.seek(sequence)
        while self.first is not None:
            header = codec.header_of(size_and_head(self._cursor)[1])
            if header:
                return header
            self.next()
        return None

    def _land(self, found: bool) -> None:
        self.first = None
        if found:
            kind, identifier, sequence = codec.split_key(self._cursor.key())
            if kind == CHUNK and identifier == self._state.identifier:
                self.first = sequence
