"""The part of a chunk that subscriptions with the same selector get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from malamute.core.stream.expiry import first_expiry
from malamute.protocol.batch import Columns, Frame
from malamute.protocol.part import DeliveryPart


class ChunkPart(DeliveryPart):
    """The messages of a chunk that one set of subscriptions gets."""

    __slots__ = ("_born", "_runs", "count", "expires", "size_bytes", "time_ns")

    def __init__(self, columns: Columns, stored: Sequence[Frame] | None = None, born: float = 0.0) -> None:
        """`born` is when the messages came, in counted seconds: it matters if one of them expires."""
        super().__init__(columns, stored)
        if columns.ttls:
            self.expires = first_expiry(columns, born)
            """When the first of them expires, if any does."""
            self._born = born
            self._runs: tuple[float, Sequence[tuple[ChunkPart, bool]]] = (0.0, ())
        self.count = len(columns.subjects)
        self.time_ns = columns.times if isinstance(columns.times, int) else columns.times[-1]
        self.size_bytes = sum(map(len, columns.subjects)) + sum(map(len, columns.records))

    def runs(self, now: float) -> Sequence[tuple[ChunkPart, bool]]:
        """The messages in order, in runs of expired ones (True) and others.

        The runs are the same for all readers of this part now.
        """
        if self._runs[0] != now:
            self._runs = now, [*self._split(now)]
        return self._runs[1]

    def _split(self, now: float) -> Iterator[tuple[ChunkPart, bool]]:
        columns, born = self.columns, self._born
        over = [
            ttl > 0 and born + ttl / 1000 <= now
            for ttl, _ in zip(columns.each_ttl(), columns.subjects, strict=False)
        ]
        for expired, places in groupby(range(self.count), over.__getitem__):
            yield ChunkPart(columns.take([*places]), None, born), expired

    def sizes(self) -> list[int]:
        """The bytes of credit that each message takes."""
        return [*map(int.__add__, map(len, self.columns.subjects), map(len, self.columns.records))]
