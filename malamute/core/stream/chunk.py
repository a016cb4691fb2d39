"""Chunks in memory, and the parts of them that subscriptions get.

A chunk is encoded once, when it is made. A reader that takes all of it is sent that very payload; for each
distinct set of places in it one more is encoded, however many subscriptions get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malamute.core.stream.chunk_part import ChunkPart
from malamute.matching import CompiledSelector
from malamute.protocol.batch import (
    Columns,
    Frame,
    Headers,
    headers_of,
    unpack_payload,
)
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.store.operations import Chunk

if TYPE_CHECKING:
    from malamute.core.stream.audience import Audience, SharedPlaces
    from malamute.core.stream.subscription import Reader


PARTS_MAX = 16
"""Parts of a chunk that are kept for others that take the same."""

ENCODE_WORK = 10
"""Microseconds that encoding a part takes, beside one for two messages."""

MESSAGE_BYTES = 128
"""Bytes of memory of a message beside its content: its subject and its record are objects."""


def chunk_bytes(count: int, size_bytes: int, large: Sequence[Frame]) -> int:
    """Return the memory of a chunk with a number of messages and bytes of records.

    Small records are there twice: by themselves, and in the payload.
    """
    return 2 * size_bytes - sum(map(len, large)) + MESSAGE_BYTES * count


def large_bytes(records: Sequence[Frame]) -> int:
    """Return the bytes of the large records."""
    return sum(size for size in map(len, records) if size >= RECORD_LARGE_BYTES)


class Loaded:
    """A chunk with its columns: on its way in, or read back from the journal."""

    __slots__ = (
        "_headers",
        "_parts",
        "_places",
        "_shared",
        "_spent",
        "_whole",
        "born",
        "chunk",
        "columns",
        "later",
        "size_bytes",
    )

    def __init__(self, chunk: Chunk, columns: Columns, born: float = 0.0) -> None:
        self.chunk = chunk
        self.columns = columns
        self.size_bytes = len(chunk.payload) + sum(map(len, chunk.large))
        """The bytes of its frames."""
        self.born = born
        """When it came, in seconds that are counted; it matters if any of its messages expires."""
        self.later: dict[int, tuple[Reader, ChunkPart]] = {}
        """The readers that are to get a part of it when it is on the disk, and which."""
        self._whole: ChunkPart | None = None
        self._parts: dict[tuple[int, ...], ChunkPart] = {}
        self._spent = 0
        self._places: dict[tuple[CompiledSelector, int, int], Sequence[int]] = {}
        self._headers: dict[tuple[int, int], Sequence[Headers]] = {}
        """Decoded for the first selector that asked for all of them, from one place to before another."""
        self._shared: dict[tuple[int, int], SharedPlaces] = {}

    @classmethod
    def read(cls, chunk: Chunk) -> Loaded:
        """A chunk as it comes from the journal."""
        return cls(chunk, unpack_payload(chunk.payload, chunk.large))

    def places(self, selector: CompiledSelector, start: int, stop: int) -> Sequence[int]:
        """The places from one to before another of the messages that a selector takes.

        The places are found once for all subscriptions with it.
        """
        places = self._places.get((selector, start, stop))
        if places is None:
            places = self._places[selector, start, stop] = self._find(selector, start, stop)
        return places

    def _find(self, selector: CompiledSelector, start: int, stop: int) -> Sequence[int]:
        columns, records = self.columns, self.columns.records
        subjects, senders = columns.subjects, columns.all_senders()
        if stop - start < self.chunk.count:
            subjects, records, senders = subjects[start:stop], records[start:stop], senders[start:stop]

        def headers(places: Sequence[int]) -> Sequence[Headers]:
            known = self._headers.get((start, stop))
            if len(places) == len(records):
                if known is None:
                    known = self._headers[start, stop] = headers_of(records)
                return known
            if known is not None:
                return [known[place] for place in places]
            return headers_of([records[place] for place in places])

        found = selector.places(subjects, senders, headers)
        return [start + place for place in found] if start else found

    def shared(self, audience: Audience, start: int, stop: int) -> SharedPlaces:
        """The places that each plain group of an audience takes, found once."""
        found = self._shared.get((start, stop))
        if found is None:
            found = self._shared[start, stop] = audience.places(self.columns, start, stop)
            self._spent += audience.pop_work()
        return found

    def part(self, places: Sequence[int] | None = None) -> ChunkPart:
        """The messages at these places; all of them is the chunk as it is. Equal parts are one."""
        if places is not None and len(places) < self.chunk.count:
            return self._encoded(tuple(places))
        if self._whole is None:
            self._whole = ChunkPart(self.columns, (self.chunk.payload, *self.chunk.large), self.born)
        return self._whole

    def _encoded(self, places: tuple[int, ...]) -> ChunkPart:
        part = self._parts.get(places)
        if part is None:
            if len(self._parts) >= PARTS_MAX:
                self._parts.clear()
            part = self._parts[places] = ChunkPart(self.columns.take(places), None, self.born)
            self._spent += ENCODE_WORK + len(places) // 2
        return part

    def pop_spent(self) -> int:
        """Return the work of matching and encoding since the last call, in about µs."""
        spent, self._spent = self._spent, 0
        return spent
