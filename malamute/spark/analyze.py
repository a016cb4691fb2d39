"""Analysis of exported history by Spark.

Tasks make partial sums of every row group (`partial_aggregates`, `analyze_events`), Spark groups them, and
tasks make the rows of all tables from the groups (`final_aggregates`), of which `analyze_tables` are queries.
A query over little data costs as much as its planning, so Spark's part is small. A table is a directory of
Parquet in the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.errors import InvalidValue
from malamute.spark import partial_aggregates
from malamute.spark.analyze_tables import AnalyzeOptions, Tables, folds, known, tables
from malamute.spark.final_aggregates import SPREAD, WHOLE, whole
from malamute.spark.native import plain_reader, read_files
from malamute.spark.scan import ExportedHistory, fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOGETHER = 4
"""Tables made at the same time."""

ROWS_EACH = 250_000
"""Approximate rows of partial sums merged by one task."""


class SparkEngine(NamedTuple):
    """SQL run by Spark."""

    session: SparkSession
    history: ExportedHistory

    @property
    def div(self) -> str:
        """Return the operator that divides integers."""
        return "div"

    def sql(self, query: str, /, **tables: Any) -> DataFrame:
        """Return the result of a query. Raises: InvalidValue."""
        from pyspark.errors import AnalysisException, ParseException

        try:
            return self.session.sql(query, **tables)
        except (AnalysisException, ParseException) as error:
            raise InvalidValue(error.getMessage() or str(error)) from error

    def rows(self, table: DataFrame) -> list[dict[str, Any]]:
        """Return the rows of a table, with times in UTC: those of Spark's rows are in that of the machine."""
        return [
            {k: v.astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.asDict().items()}
            for row in table.collect()
        ]

    def messages(self, streams: Sequence[str] = ()) -> DataFrame:
        """Return the messages within the bounds."""
        return messages(self.session, self.history, streams)


@contextmanager
def analysed(spark: SparkSession, history: ExportedHistory, options: AnalyzeOptions) -> Iterator[Tables]:
    """Return the tables, by name. Common data is read once and kept during the block."""
    from pyspark import StorageLevel

    engine = SparkEngine(spark, history)
    parts = _parts(spark, history, options).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = _whole(engine, parts).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield tables(engine, rows, options)
        finally:
            rows.unpersist()
    finally:
        parts.unpersist()


def _parts(spark: SparkSession, history: ExportedHistory, options: AnalyzeOptions) -> DataFrame:
    found = (fold(spark, history, *work, partial_aggregates.SCHEMA) for work in folds(history, options))
    return reduce(lambda one, other: one.union(other), found)


def _whole(engine: SparkEngine, parts: DataFrame) -> DataFrame:
    """Return the rows of `final_aggregates`."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    facts, rows = known(engine, parts)
    parts = parts.where("not kind <=> 'window'")  # `!=` would make it another schema, without nulls
    count = -(-rows // ROWS_EACH)
    if count > 1:
        place = f.when(f.col("kind").isin(*SPREAD), f.hash("value", "slot", "first"))
        parts = parts.repartition(count, "stream", "name", place)
    else:
        parts = parts.coalesce(1)  # without an exchange
    return parts.mapInArrow(lambda batches: whole(batches, facts), from_arrow_schema(WHOLE))


def messages(spark: SparkSession, history: ExportedHistory, streams: Sequence[str] = ()) -> DataFrame:
    """Return the messages within the bounds, as Spark reads them."""
    from pyspark.sql import functions as f

    bounds = history.bounds
    files = read_files(plain_reader(spark), history.location, history.streams, {})
    files = files.where(f.col("stream").isin(list(streams) or history.streams))
    if bounds.whole:
        return files
    inside = f.col("sequence").between(bounds.first, bounds.last)
    return files.where(inside & (f.col("time_ns") >= bounds.since) & (f.col("time_ns") < bounds.until))


def analyze(spark: SparkSession, history: ExportedHistory, target: str, options: AnalyzeOptions) -> Tables:
    """Write each table as a directory of Parquet in `target`, in place of one that is there.

    Returns the written tables.
    """
    target = target.rstrip("/")
    with analysed(spark, history, options) as made, ThreadPoolExecutor(TOGETHER) as threads:
        # Each table is little work and some waiting, so several are made at the same time.
        list(threads.map(lambda name: _write(made[name], f"{target}/{name}"), made))
        return {
            name: plain_reader(spark).schema(t.schema).parquet(f"{target}/{name}") for name, t in made.items()
        }


def _write(table: DataFrame, path: str) -> None:
    table.write.mode("overwrite").parquet(path)
