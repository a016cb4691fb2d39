"""The data pipeline on Spark: history exported to Parquet, a data source, and jobs over history.

Libraries are imported when they are used: pyarrow and pyspark belong to the extra `malamute[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_export", "register"]


CHECK_PAGES = "parquet.page.verify-checksum.enabled"
"""The option of Spark's reader to verify the checksums of pages, which is off by default."""


def register(session: SparkSession) -> None:
    """Register the format `malamute` for `spark.read`, for writing and for streams of a session."""
    from malamute.spark.source import MalamuteSource

    session.dataSource.register(MalamuteSource)


def read_export(session: SparkSession, path: str, stream: str = "") -> DataFrame:
    """Return an exported directory or URL, or one stream of it, as Spark reads Parquet by itself.

    The columns are those of the data source `malamute`. Spark's own reader is several times as fast and reads
    no column that a query does not need; but a file that is damaged ends the query, unless
    `spark.sql.files.ignoreCorruptFiles` is set, and only contents of pages are verified: faults in footers
    and heads of pages, or missing files, pass unnoticed. Raises `NotFound` for a place without an export.
    """
    from malamute.spark.export_location import ExportLocation
    from malamute.spark.manifest import exported_streams
    from malamute.spark.native import plain_reader, read_files
    from malamute.spark.options import SourceOptions

    promoted = SourceOptions(path=path, stream=stream).promoted()
    streams = [stream] if stream else exported_streams(ExportLocation(path))
    reader = plain_reader(session).option(CHECK_PAGES, "true")
    return read_files(reader, path, streams, promoted, stream)
