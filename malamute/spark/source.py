"""The data source `malamute`: history as a table, a stream of a broker as a stream of Spark, and a sink.

    spark.read.format("malamute").load("/data/history")
    spark.read.format("malamute").option("url", "tcp://…").option("stream", "weather").load()
    spark.readStream.format("malamute").option("url", "tcp://…").option("stream", "weather").load()
    frame.write.format("malamute").option("url", "tcp://…").option("stream", "weather").mode("append").save()

`options` has the options, `reading`, `streaming` and `writing` the work. Between Spark's Java and this Python
go batches of Arrow, never rows. But Java copies the batches of any source row by row, and does not name the
columns that it needs. For whole rows that takes up to 1.3 times as long as Spark's own reader; for few and
narrow columns, which Spark's reader does not copy, two to four times. So `read_export` is there for exported
directories: the same table, as Spark reads it by itself.

The plan of a reader stays with the frame, and every query of the frame reads that. So the plan depends on the
options alone: conditions of queries are not used (`filters` has the reason).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from malamute.errors import InvalidValue
from malamute.spark.options import FAIL, SourceOptions
from malamute.spark.reading import Slice, slices
from malamute.spark.schema import to_arrow
from malamute.spark.tasks import Tasks

if TYPE_CHECKING:
    from malamute.spark.writing import FrameWriter


class MalamuteSource(DataSource):
    """`format("malamute")`. Wrong options raise `InvalidValue` and the other errors."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "malamute"

    def schema(self) -> StructType:
        """Return the columns."""
        # Words could not express that lists and maps hold no null, and Java would look at each place.
        return from_arrow_schema(pa.schema(to_arrow(SourceOptions.parse(self.options).read_columns())))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the present history. Raises InvalidValue for an option of streams."""
        options = SourceOptions.parse(self.options)
        if options.cursor:
            raise InvalidValue("option cursor for a table: expected none, because only readStream moves it")
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return a reader of new messages."""
        from malamute.spark.streaming import StreamReader

        return StreamReader(SourceOptions.parse(self.options, lost=FAIL), schema)

    def writer(self, schema: StructType, overwrite: bool) -> FrameWriter:
        """Return a writer of a frame."""
        from malamute.spark.writing import FrameWriter, Target

        return FrameWriter(Target.parse(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer of a stream of Spark."""
        from malamute.spark.writing import StreamWriter, Target

        return StreamWriter(Target.parse(self.options, schema, overwrite=False))


class BatchReader(Tasks, DataSourceReader):
    """Reads the history at the time when Spark first plans a query of the frame."""

    def partitions(self) -> list[Slice]:
        """Return a task for each slice."""
        return slices(self.query)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice."""
        return self.batches(partition)
