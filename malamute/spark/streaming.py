"""A stream of a broker as a stream of Spark.

The offset is the next sequence. Spark writes the offsets of a micro-batch to its checkpoint before it runs
it, and a sequence always means the same message of a stream in a store; so a micro-batch that is run again,
after a failure of either side, reads the same messages again. With a sink that stores a micro-batch once,
that is exactly once. The offset names the stream and the store: in another one it means nothing, and is
refused.

Messages dropped from the journal meanwhile end the query, unless `lost` is `report`; those that have expired
do not.

With the option `cursor` the query moves a cursor of the broker behind the messages that it has processed, so
the broker shows its lag as that of any reader. The query itself goes on from its checkpoint alone.
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
from malamute.spark.history import HistorySource, counts_in, range_of, sequence_at
from malamute.spark.options import MESSAGES, SourceOptions
from malamute.spark.reading import Slice, cut
from malamute.spark.tasks import Tasks

NEXT, STREAM, STORE = "next", "stream", "store"
"""The keys of an offset: the sequence of the next message, and its stream and store. Earlier versions wrote
the first alone."""

Offset = dict[str, Any]

ANEW = "begin with a new checkpoint"


class StreamReader(Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of a broker as it grows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if not (options.url and options.stream) or options.table != MESSAGES or options.until:
            raise InvalidValue("invalid options of a stream of Spark: expected url and stream, and no end")
        self._since = options.since
        super().__init__(options._replace(since=""), schema)
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # these are Spark's names
        """Return the start of a new query: `since`, which may be `new`, or the oldest message."""
        with self.options.history() as history:
            kept = range_of(history, self.options.stream)
            if self._since == NEW:
                return self._offset(history, kept.last + 1)
            if not self._since:
                return self._offset(history, kept.first)
            return self._offset(
                history, sequence_at(history, self.options.stream, self._since, time.time_ns())
            )

    def _offset(self, history: HistorySource, sequence: int) -> Offset:
        return {NEXT: sequence, STREAM: self.options.stream, STORE: history.store()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch.

        Raises:
            StoreError: the checkpoint is of another stream or store, or lies behind the end of the stream.
        """
        latest = self._end() if self._target is None else self._target
        self._check(start)
        if not counts_in(start.get(STORE, ""), latest[STORE]):
            raise StoreError(
                f"checkpoint is of the store {start[STORE]}, and the broker has {latest[STORE]}: {ANEW}"
            )
        end = latest[NEXT]
        if end < start[NEXT]:
            raise StoreError(
                f"checkpoint is at {start[NEXT]}, and the stream {self.options.stream!r} ends with {end - 1}:"
                f" the broker has lost its store, or is another one; {ANEW}"
            )
        if isinstance(limit, ReadMaxRows):
            end = min(end, start[NEXT] + limit.max_rows)
        return {**latest, NEXT: max(end, start[NEXT])}

    def _check(self, offset: Offset) -> None:
        """Raise `StoreError` for an offset of another stream."""
        stream = offset.get(STREAM, self.options.stream)
        if stream != self.options.stream:
            raise StoreError(
                f"checkpoint is of the stream {stream!r}, and {self.options.stream!r} is read: {ANEW}"
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the option `rows`."""
        return ReadMaxRows(self.options.rows) if self.options.rows else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the end of the stream, for the progress of the query."""
        return self._end()

    def commit(self, end: Offset) -> None:
        """Move the cursor behind the messages that the query has processed."""
        if self.options.cursor:
            with self.options.history() as history:
                history.mark(self.options.stream, self.options.cursor, end[NEXT] - 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of this run: later messages belong to the next one."""
        self._target = self._end()

    def _end(self) -> Offset:
        with self.options.history() as history:
            return self._offset(history, range_of(history, self.options.stream).last + 1)

    def partitions(self, start: Offset, end: Offset) -> list[Slice]:
        """Return the slices of a micro-batch. Its tasks check the store that they read."""
        self._check(end)
        return cut(self.options.stream, start[NEXT], end[NEXT] - 1, 0, end.get(STORE, ""))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice."""
        return self.batches(partition)
