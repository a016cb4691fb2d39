"""The last message of each subject: a sparse index of subjects, and the search that uses it. Pure.

Theory. The index is the set of the subjects of a range of chunks, and nothing more. The last chunk of the
range carries the index behind its records, so the index needs no keys, no accounts and no cleaning of its
own: it is written, checked, dropped and copied with its chunk. Ranges follow each other without overlap. A
range is closed after 4 MiB or 1,024 chunks, or later, so that the index never exceeds 2 % of the bytes.

The search goes backwards. An index has the beginning of its range; if the search knows all of its subjects
already, it continues in front of the range, and otherwise through its chunks one by one. So a search reads
the newest range and the ranges with the last message of a rare subject, instead of the whole stream.

The index is only a help: chunks of no range are read one by one. So the collector, in the memory of
the process, starts empty after a restart or an error, and no index has to be rebuilt when a store is opened.
For a stream with too many different subjects the collector pauses for a while; its memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from malamute.errors import Malformed
from malamute.journal import format as codec
from malamute.journal.format import Damaged
from malamute.protocol.batch import unpack_payload
from malamute.store.operations import AppendChunk, Chunk, SubjectTest

RANGE_BYTES, RANGE_CHUNKS = 4 * 1024 * 1024, 1024
"""The bytes or chunks after which a range is closed, if its index is small enough."""

SHARE = 50
"""The least ratio of the bytes of a range to the bytes of its index."""

SUBJECTS_MAX = 16_384
"""The most subjects of one range. A range with more gets no index, and the collector pauses."""

PAUSE = 16
"""The chunks of a pause, for each chunk of the range that had too many subjects."""

SUBJECT_BYTES_MIN = 4
"""The estimated least bytes of a subject in an index."""

HELD_MAX = 262_144
"""The most subjects that the collector holds for all streams together; with one more it is cleared."""


class _Range:
    """The open range of one stream."""

    __slots__ = ("bytes", "bytes_due", "chunks", "chunks_due", "first", "pause", "subjects")

    def __init__(self, first: int) -> None:
        self.first = first
        self.bytes = 0
        self.chunks = 0
        self.bytes_due = RANGE_BYTES
        self.chunks_due = RANGE_CHUNKS
        self.pause = 0
        self.subjects: set[str] = set()


class Collector:
    """Gathers the subjects of each stream's open range while chunks are written."""

    def __init__(self) -> None:
        self._ranges: dict[str, _Range] = {}
        self._held = 0

    def take(self, operation: AppendChunk) -> bytes:
        """Add the subjects of a chunk; return the index that the chunk has to carry, mostly none."""
        name, chunk, _, subjects, _ = operation
        if len(subjects) != chunk.count:
            self.forget(name)
            return b""
        open_range = self._ranges.get(name)
        if open_range is None:
            open_range = self._ranges[name] = _Range(chunk.first)
            self._held += 1
        if open_range.pause:
            open_range.pause -= 1
            if not open_range.pause:
                self.forget(name)
            return b""
        self._collect(open_range, chunk, subjects)
        if open_range.bytes >= open_range.bytes_due or open_range.chunks >= open_range.chunks_due:
            return self._close(name, open_range)
        return b""

    def _collect(self, to: _Range, chunk: Chunk, subjects: Sequence[str]) -> None:
        held = to.subjects
        before = len(held)
        held.update(subjects)
        self._held += len(held) - before
        to.bytes += len(chunk.payload) + sum(map(len, chunk.large))
        to.chunks += 1
        if len(held) > SUBJECTS_MAX:
            self._held -= len(held)
            to.subjects = set()
            to.pause = PAUSE * to.chunks
        if self._held > HELD_MAX:
            self.clear()

    def _close(self, name: str, due: _Range) -> bytes:
        if not due.pause and len(due.subjects) * SUBJECT_BYTES_MIN * SHARE <= due.bytes:
            index = codec.encode_index(due.first, due.subjects)
            if len(index) * SHARE <= due.bytes:
                self.forget(name)
                return index
        due.bytes_due = 2 * due.bytes
        due.chunks_due = 2 * due.chunks
        return b""

    def forget(self, stream: str) -> None:
        """Begin a new range with the stream's next chunk."""
        dropped = self._ranges.pop(stream, None)
        if dropped:
            self._held -= 1 + len(dropped.subjects)

    def clear(self) -> None:
        """Begin a new range in every stream: the chunks added last may not have been stored."""
        self._ranges.clear()
        self._held = 0


class SubjectSearch:
    """A search for the last message of each subject, in chunks given to it from the newest on.

    `found` has the sequences by subject, the newest first; `is_done` is true once there are `limit`. Subjects
    that `takes` refuses are skipped; without `takes` none is.
    """

    def __init__(self, limit: int, takes: SubjectTest | None = None) -> None:
        self._takes = takes
        self.found: dict[str, int] = {}
        self.is_done = limit <= 0
        self._limit = limit
        self._range: codec.SubjectIndex | None = None

    def visit(self, value: Any, first: int) -> int:
        """Add the chunk at `first`; return the sequence in front of which the search continues."""
        try:
            index = codec.decode_index(value)
            if index is not None:
                self._range = index
                if not self._is_wanted(index.subjects):
                    return min(first, index.first)
            is_new = self.add(codec.decode_chunk(value))
        except Damaged:
            return first
        index = self._range
        if is_new and index is not None and not self._is_wanted(index.subjects):
            return min(first, index.first)
        return first

    def add(self, chunk: Chunk) -> bool:
        """Add the new subjects of a chunk; return False without any."""
        subjects = subjects_in(chunk)
        if not self._is_wanted(subjects):
            return False
        takes = self._takes
        for place in range(min(len(subjects), chunk.count) - 1, -1, -1):
            subject = subjects[place]
            if subject not in self.found and (takes is None or takes(subject)):
                self.found[subject] = chunk.first + place
                if len(self.found) == self._limit:
                    self.is_done = True
                    break
        return True

    def _is_wanted(self, subjects: Iterable[str]) -> bool:
        """Return whether the search still lacks any of these subjects."""
        unknown = set(subjects) - self.found.keys()
        return bool(unknown) if self._takes is None else any(map(self._takes, unknown))


def subjects_in(chunk: Chunk) -> Sequence[str]:
    """Return the column of subjects of a chunk; empty if its payload is not that of a stream."""
    try:
        return unpack_payload(chunk.payload, chunk.large).subjects
    except Malformed:
        return ()
