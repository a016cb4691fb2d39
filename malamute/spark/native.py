"""Exported files as Spark reads them by itself: for `read_export`, and for jobs in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from malamute.spark.layout import SHORTENED, stream_directory, value_of
from malamute.spark.schema import Promoted, ddl, promoted_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

GLOB_PATHS = "__globPaths__"
"""The option of Spark's reader to take a path for a pattern, unless it is `false`."""


def plain_reader(session: SparkSession) -> DataFrameReader:
    """Return a reader of files for a literal path, with any characters."""
    return session.read.option(GLOB_PATHS, "false")


def read_files(
    reader: DataFrameReader, path: str, streams: Iterable[str], promoted: Promoted, stream: str = ""
) -> DataFrame:
    """Return the messages of an export that has these streams, or of one of them.

    Statistics of a row group leave out NaN, and earlier versions wrote them for numbers, too. So Spark gets
    these columns as an expression, which it does not compare with statistics.
    """
    from pyspark.sql import functions as f

    files = (
        reader.schema(ddl(promoted))
        .option("basePath", path)
        .parquet(f"{path}/{stream_directory(stream)}" if stream else path)
    )
    nothing = f.lit(float("nan"))
    changed = {
        column.name: f.nanvl(f.col(f"`{column.name.replace('`', '``')}`"), nothing)
        for column in promoted_columns(promoted)
        if column.ddl == "double"
    }
    whole = f.col("stream")
    for name in streams:
        if SHORTENED in (directory := stream_directory(name)):
            whole = f.when(f.col("stream") == value_of(directory), name).otherwise(whole)
            changed["stream"] = whole
    return files.withColumns(changed) if changed else files
