"""The data source `malamute`: history as a table, a stream of a broker as a stream of Spark, and a sink.

    spark.read.format("malamute").load("/data/history")
    spark.read.format("malamute").option("url", "tcp://…").option("stream", "weather").load()
    spark.readStream.format("malamute").option("url", "tcp://…").option("stream", "weather").load()
    frame.write.format("malamute").option("url", "tcp://…").option("stream", "weather").mode("append").save()

`options` has the options, `reading` and `streaming` and `writing` what is done. Between Spark's Java and this
Python go batches of Arrow, never rows. But Java copies them row by row, whatever source gave them, and cannot
say which columns it needs. Where whole rows are read, that is within 1.3 times what Spark's own reader takes;
where columns are few and narrow, Spark's hands them over as they are, and this takes two to four times as
long. So `read_export` is there for exported directories: the same table, as Spark reads it by itself.

The plan of a reader stays with the frame, and every query of the frame reads that. So it depends on the
options alone: conditions of queries are not taken (`filters` says why).
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
        """What it is called."""
        return "malamute"

    def schema(self) -> StructType:
        """The columns that are read."""
        # In words it could not be said that lists and maps hold no null, and Java would look at each place.
        return from_arrow_schema(pa.schema(to_arrow(SourceOptions.parse(self.options).read_columns())))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what there is."""
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Reads what comes."""
        from malamute.spark.streaming import StreamReader

        return StreamReader(SourceOptions.parse(self.options, lost=FAIL), schema)

    def writer(self, schema: StructType, overwrite: bool) -> FrameWriter:
        """Publishes a frame."""
        from malamute.spark.writing import FrameWriter, Target

        return FrameWriter(Target.parse(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Publishes a stream of Spark."""
        from malamute.spark.writing import StreamWriter, Target

        return StreamWriter(Target.parse(self.options, schema, overwrite=False))


class BatchReader(Tasks, DataSourceReader):
    """Reads what there is when Spark first plans a query of the frame."""

    def partitions(self) -> list[Slice]:
        """A task for each slice."""
        return slices(self.query)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice."""
        return self.batches(partition)
