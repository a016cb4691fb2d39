"""Operations that are in the write-ahead log only, for readings that LMDB answers without them.

Theory. Deletions of streams and of their messages are never in the log (`ahead_writer`). So its chunks are
behind those that LMDB has of their streams, its messages of queues are further ones, and each answer is that
of LMDB with something added. A chunk that LMDB has taken over meanwhile is recognized by its sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from malamute.journal import format as codec
from malamute.journal.format import StreamMeta
from malamute.journal.ring import Ring
from malamute.journal.subjects import SubjectSearch
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    Damage,
    Frame,
    GapRange,
    Operation,
    PutMessages,
    PutValue,
    QueueKind,
    Reserve,
    Retain,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import RETENTIONS


class Overlay:
    """The additions to the answers of LMDB, whose states of the streams are given."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._chunks: dict[str, list[Chunk]] = {}
        self._reserved: dict[str, int] = {}
        self._records: dict[tuple[QueueKind, str], dict[int, Frame]] = {}
        self._overrides: dict[str, StreamRetention] = {}
        self._given: dict[str, StreamRetention] = {}
        for operation in operations:
            if type(operation) is AppendChunk:
                self._chunks.setdefault(operation.stream, []).append(operation.chunk)
                self._reserve(operation.stream, operation.reserved)
                self._given[operation.stream] = operation.retention
            elif type(operation) is Reserve:
                self._reserve(*operation)
            elif type(operation) is Retain:
                self._given[operation.stream] = operation.retention
            elif type(operation) is PutValue and operation.table == RETENTIONS:
                self._overrides[str(operation.key[0])] = StreamRetention.of(operation.value)
            elif type(operation) is PutMessages:
                records = self._records.setdefault((operation.kind, operation.queue), {})
                records |= dict(enumerate(operation.records, operation.first))

    def _reserve(self, stream: str, reserved: int) -> None:
        self._reserved[stream] = max(self._reserved.get(stream, 0), reserved)

    def state(self, known: StreamMeta) -> StreamMeta:
        """Return the state of a stream; its eras are those of LMDB."""
        if known.name not in self._reserved:
            return known
        chunks = self._behind(known)
        reserved = max(known.reserved, self._reserved[known.name], chunks[-1].last if chunks else 0)
        if not chunks:
            return known._replace(reserved=reserved)
        return known._replace(
            first=known.first if known.chunks else chunks[0].first,
            last=chunks[-1].last,
            reserved=reserved,
            bytes=known.bytes + sum(map(_size, chunks)),
            count=known.count + sum(chunk.count for chunk in chunks),
            chunks=known.chunks + len(chunks),
            first_time=known.first_time if known.chunks else chunks[0].time_ns,
            last_time=chunks[-1].time_ns,
        )

    def states(self, known: Mapping[str, StreamMeta]) -> dict[str, StreamMeta]:
        """Return the states of all streams."""
        changed = {name: self.state(known.get(name, StreamMeta(0, name))) for name in self._reserved}
        return {**known, **changed}

    def chunks(
        self, known: StreamMeta, start: int, *, bytes_max: int, found: Sequence[Chunk | Damage]
    ) -> list[Chunk | Damage]:
        """Return the chunks that LMDB has found to its end, and those behind it until `bytes_max`."""
        together = [*found]
        behind = [chunk for chunk in self._behind(known) if chunk.last >= start]
        size = sum(_size(item) for item in found if isinstance(item, Chunk)) if behind else 0
        for chunk in behind:
            if together and size >= bytes_max:
                break
            together.append(chunk)
            size += _size(chunk)
        return together

    def headers(self, known: StreamMeta, start: int) -> Iterator[codec.ChunkHeader]:
        """Yield the headers of the chunks from the one that holds `start` on."""
        for chunk in self._behind(known):
            if chunk.last >= start:
                yield codec.decode_chunk_header(codec.encode_chunk(chunk))

    def find_time(self, known: StreamMeta, time_ns: int) -> int:
        """Return the first sequence at or after a time, which LMDB has none of."""
        firsts = (chunk.first for chunk in self._behind(known) if chunk.time_ns >= time_ns)
        return next(firsts, self.state(known).last + 1)

    def find_gap(self, known: StreamMeta, sequence: int) -> GapRange | None:
        """Return the gap around a sequence behind those of LMDB."""
        before = known.last if known.chunks else 0
        for chunk in self._behind(known):
            if before < sequence < chunk.first:
                return GapRange(before + 1, chunk.first - 1) if before else None
            before = chunk.last
        return None

    def search(self, known: StreamMeta, search: SubjectSearch) -> None:
        """Give a search the chunks, backwards."""
        for chunk in reversed(self._behind(known)):
            if search.is_done:
                return
            search.add(chunk)

    def records(self, kind: QueueKind, queue: str, sequences: Collection[int]) -> dict[int, Frame]:
        """Return the records of messages by their sequences."""
        known = self._records.get((kind, queue))
        return {n: known[n] for n in sequences if n in known} if known else {}

    def retention(self, ring: Ring, stream: str) -> StreamRetention:
        """Return the retention of a stream."""
        override = self._overrides.get(stream) or ring.overrides.get(stream)
        return override or self._given.get(stream) or ring.retention(stream)

    def _behind(self, known: StreamMeta) -> Sequence[Chunk]:
        chunks = self._chunks.get(known.name, ())
        return [chunk for chunk in chunks if chunk.first > known.last]


def _size(chunk: Chunk) -> int:
    return len(codec.encode_chunk(chunk))


NOTHING = Overlay()
"""The overlay of a log that LMDB has taken over."""
