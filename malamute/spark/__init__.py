"""The data pipeline on Spark: history exported to Parquet, a data source, and what is computed from them.

Nothing here is loaded before it is used: pyarrow and pyspark belong to the extra `malamute[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_export", "register"]


CHECK_PAGES = "parquet.page.verify-checksum.enabled"
"""The option of Spark's reader to look at the checksums of pages, which it does not do by itself."""


def register(session: SparkSession) -> None:
    """Make `spark.read.format("malamute")`, and writing and streams of that format, known to a session."""
    from malamute.spark.source import MalamuteSource

    session.dataSource.register(MalamuteSource)


def read_export(session: SparkSession, path: str, stream: str = "") -> DataFrame:
    """An exported directory or URL, or one stream of it, as Spark reads Parquet by itself.

    The columns are those of the data source `malamute`. Spark's own reader is several times as fast and reads
    no column that a query does not need; but a file that is damaged ends the query, unless
    `spark.sql.files.ignoreCorruptFiles` is set, and only contents of pages are looked at: what is wrong in
    footers and heads of pages, or a file that is missing, it does not notice. Raises `NotFound` when nothing
    was exported there.
    """
    from malamute.spark.export_location import ExportLocation
    from malamute.spark.manifest import exported_streams
    from malamute.spark.native import plain_reader, read_files
    from malamute.spark.options import SourceOptions

    promoted = SourceOptions(path=path, stream=stream).promoted()
    streams = [stream] if stream else exported_streams(ExportLocation(path))
    reader = plain_reader(session).option(CHECK_PAGES, "true")
    return read_files(reader, path, streams, promoted, stream)
