"""The part of a chunk that subscriptions with the same selector get."""

from __future__ import annotations

from collections.abc import Sequence

from malamute.protocol.batch import Columns, Frame
from malamute.protocol.part import DeliveryPart


class ChunkPart(DeliveryPart):
    """The messages of a chunk that one set of subscriptions gets."""

    __slots__ = ("count", "size_bytes", "time_ns")

    def __init__(self, columns: Columns, stored: Sequence[Frame] | None = None) -> None:
        super().__init__(columns, stored)
        self.count = len(columns.subjects)
        self.time_ns = columns.times if isinstance(columns.times, int) else columns.times[-1]
        self.size_bytes = sum(map(len, columns.subjects)) + sum(map(len, columns.records))

    def sizes(self) -> list[int]:
        """What each message takes of the credit in bytes."""
        return [*map(int.__add__, map(len, self.columns.subjects), map(len, self.columns.records))]
