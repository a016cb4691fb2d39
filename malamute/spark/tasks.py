"""The common part of a task for either kind of reader: it reads slices, as batches of Arrow."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from malamute.errors import StoreCorrupt
from malamute.protocol.messages import EXPIRED, HARMLESS
from malamute.spark.options import FAIL, GAPS, SourceOptions
from malamute.spark.reading import LostRange, ReadQuery, RequestedColumns, Slice, read
from malamute.spark.schema import arrow_schema

NO_LOSS = HARMLESS | {EXPIRED}
"""Reasons of gaps that end no query: a publisher who lets messages expire wants that."""

_log = logging.getLogger("malamute")


class Tasks:
    """The common part of both kinds of readers in a task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.shape = RequestedColumns(schema, options.all_columns())
        promoted = options.promoted()
        bounds = options.bounds(time.time_ns())
        # Damage is found by reading everything.
        needed = tuple(arrow_schema(promoted).names) if options.table == GAPS else self.shape.needed
        self.query = ReadQuery(options, promoted, bounds, needed)

    def batches(self, piece: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a slice. Raises `StoreCorrupt` for a lost range, if that is to fail."""
        if not isinstance(piece, Slice):
            return  # Spark's own partition, for a source that has none
        for item in read(self.query, piece):
            if not isinstance(item, LostRange):
                if self.options.table != GAPS:
                    yield self.shape.of(item, piece.stream)
            elif self.options.table == GAPS:
                yield self.shape.of_lost(item)
            elif self.options.lost == FAIL and item.reason not in NO_LOSS:
                raise StoreCorrupt(words(item))
            else:
                _log.warning("%s", words(item))


def words(lost: LostRange) -> str:
    """Return a lost range and its place in words."""
    where = f" in {lost.path}" if lost.path else ""
    if lost.last < lost.first:
        return f"damage of the stream {lost.stream!r}{where}: {lost.reason}"
    return f"no {lost.first} to {lost.last} of the stream {lost.stream!r}{where}: {lost.reason}"
