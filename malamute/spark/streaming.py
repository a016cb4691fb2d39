"""A stream of a broker as a stream of Spark.

The offset is the next sequence. Spark writes the offsets of a micro-batch to its checkpoint before it runs
it, and a sequence always means the same message; so a micro-batch that is run again, after a failure of
either side, reads the same messages again. With a sink that takes a micro-batch once, that is exactly once.

What the journal has dropped meanwhile ends the query, unless `lost` says `report`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from malamute.errors import InvalidValue, StoreError
from malamute.protocol.start import NEW
from malamute.spark.history import range_of, sequence_at
from malamute.spark.options import MESSAGES, SourceOptions
from malamute.spark.reading import Slice, cut
from malamute.spark.tasks import Tasks

NEXT = "next"
"""The key of the offset: the sequence of the next message."""

Offset = dict[str, int]


class StreamReader(Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of a broker as it grows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if not (options.url and options.stream) or options.table != MESSAGES or options.until:
            raise InvalidValue("invalid options of a stream of Spark: expected url and stream, and no end")
        self._since = options.since
        super().__init__(options._replace(since=""), schema)
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # these are Spark's names
        """Where a new query begins: at `since`, which may be `new`, or at the oldest message."""
        with self.options.history() as history:
            kept = range_of(history, self.options.stream)
            if self._since == NEW:
                return {NEXT: kept.last + 1}
            if not self._since:
                return {NEXT: kept.first}
            return {NEXT: sequence_at(history, self.options.stream, self._since, time.time_ns())}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the next micro-batch ends.

        Raises:
            StoreError: the checkpoint lies behind the end of the stream.
        """
        end = self._end() if self._target is None else self._target
        if end < start[NEXT]:
            raise StoreError(
                f"checkpoint is at {start[NEXT]}, and the stream {self.options.stream!r} ends with {end - 1}:"
                " the broker has lost its store, or is another one; begin with a new checkpoint"
            )
        if isinstance(limit, ReadMaxRows):
            end = min(end, start[NEXT] + limit.max_rows)
        return {NEXT: max(end, start[NEXT])}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `rows`."""
        return ReadMaxRows(self.options.rows) if self.options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on belongs to the next run."""
        self._target = self._end()

    def _end(self) -> int:
        with self.options.history() as history:
            return range_of(history, self.options.stream).last + 1

    def partitions(self, start: Offset, end: Offset) -> list[Slice]:
        """The slices of a micro-batch."""
        return cut(self.options.stream, start[NEXT], end[NEXT] - 1, 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice."""
        return self.batches(partition)
