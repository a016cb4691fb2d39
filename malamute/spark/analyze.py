"""Analysis of exported history as tables: volume, order, senders, headers and queues.

Tasks make partial sums of every row group (`partial_aggregates`, `analyze_events`), Spark groups them, and
tasks make the rows of all tables from the groups (`final_aggregates`). A query over little data costs as much
as its planning, so Spark's part is small:

    streams         messages, bytes, rates, gaps, duplicates, and how far apart messages are
    volume          messages and bytes of each window and subject prefix
    subjects        messages and bytes of each subject
    senders         the same of each sender, how far apart its messages are, and its longest silence
    sender_volume   messages and bytes of each window and sender
    intervals       how often messages were how far apart: the buckets behind the percentiles
    gaps            ranges of sequences that are not there
    headers         how many of which type; minimum, maximum, mean and deviation of numbers
    header_values   the most frequent values
    queues          services and mailboxes: how often which outcome, and redeliveries    ┐
    queue_times     queue time, processing time, and the total of both                   │ from `$sys`
    consumers       subscriptions that fell behind or missed something                   │
    events          counts of events                                                     ┘
    damage          unreadable parts
    measures        numbers that the caller has asked for, each by groups of its own

A table is a directory of Parquet in the target. A sender is *late* when its longest silence, the one that
lasts to the end of its stream included, is `LATE` times as long as 99 of 100 others of its silences, and
a window long at least: silences too short for the report are not late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from malamute.errors import InvalidValue
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark import analyze_events, partial_aggregates
from malamute.spark.final_aggregates import PERCENTS, SPREAD, TYPES, WHOLE, Known, whole
from malamute.spark.native import plain_reader, read_files
from malamute.spark.scan import ExportDamage, ExportedHistory, HistoryBounds, HistoryPart, fold

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

LATE = 10
TOGETHER = 4
"""Tables made at the same time."""

ROWS_EACH = 250_000
"""Approximate rows of partial sums merged by one task."""


class AnalyzeOptions(NamedTuple):
    """The selection and resolution of an analysis. `depth` is in parts of a subject."""

    bounds: HistoryBounds = HistoryBounds()
    window_seconds: int = 60
    depth: int = 1
    measures: tuple[str, ...] = ()


class Measure(NamedTuple):
    """A number to be summed by groups: expressions in Spark's SQL on the columns of the history."""

    name: str
    number: str
    groups: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, words: str) -> Measure:
        """Read `NAME = EXPRESSION by NAME = EXPRESSION, …`. Raises `InvalidValue`."""
        found = _MEASURE.fullmatch(words)
        if found is None:
            raise InvalidValue(f"invalid measure {words!r}: expected NAME=EXPRESSION by NAME=EXPRESSION; …")
        groups = [_GROUP.fullmatch(group) for group in found["groups"].split(";")]
        if not all(groups):
            raise InvalidValue(f"invalid group in {words!r}: expected NAME=EXPRESSION")
        return cls(found["name"], found["number"], tuple((g["name"], g["of"]) for g in groups if g))


_MEASURE = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<number>.+?)\s+by\s+(?P<groups>.+)")
_GROUP = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<of>.+?)\s*")

Tables = Mapping[str, "DataFrame"]


def _seconds(column: str, name: str) -> str:
    return f"timestamp_micros({column} div 1000) as {name}"


_EXTENT = (_seconds("first_time", "begin"), _seconds("last_time", "end"))
_SUMS = ("messages", "bytes")
_PER_SECOND = f"messages * {NS_PER_SECOND} / (last_time - first_time)"
_SILENCE = f"silence / {NS_PER_SECOND}"

TABLES = {
    "streams": (
        "kind = 'stream'",
        *("stream", *_SUMS, "first", "last", "most / {window} as peak_per_second"),
        *("gaps", "missing", "duplicates", *PERCENTS),
        f"if(last_time > first_time, {_PER_SECOND}, null) as per_second",
        *_EXTENT,
    ),
    "volume": ("kind = 'prefix'", "stream", _seconds("slot", "window"), "name as prefix", *_SUMS),
    "subjects": ("kind = 'subject'", "stream", "name as subject", *_SUMS),
    "senders": (
        "kind = 'sender_total'",
        *("stream", "name as sender", *_SUMS, *_EXTENT, *PERCENTS),
        *(f"{_SILENCE} as longest_silence", _seconds("slot", "silent_since")),
        f"coalesce({_SILENCE} > {LATE} * p99 and {_SILENCE} >= {{window}}, false) as late",
    ),
    "sender_volume": ("kind = 'sender'", "stream", _seconds("slot", "window"), "name as sender", *_SUMS),
    "intervals": ("kind = 'interval'", "stream", "name as sender", "slot as bucket", "messages"),
    "gaps": ("kind = 'gap'", "stream", "first", "last", "last - first + 1 as messages"),
    "headers": (
        "kind = 'header'",
        *("stream", "name as header", "messages", "count as numbers"),
        *("low", "high", "mean", "deviation", "total", *TYPES),
    ),
    "header_values": ("kind = 'value'", "stream", "name as header", "value", "messages", "within"),
    "queues": ("kind = 'queue'", "name as queue", "value as outcome", "messages", "bytes as redeliveries"),
    "queue_times": (
        "kind in ('queue_time', 'processing_time', 'total_time')",
        "name as queue",
        "kind as time",
        *PERCENTS,
    ),
    "consumers": (
        "kind = 'consumer'",
        *(
            "name as stream",
            "value as consumer",
            "first as fell_behind",
            "last as gaps",
            "messages as missed",
        ),
    ),
    "events": ("kind = 'event'", "name as event", "value as name", "messages as times"),
    "damage": (
        "kind = 'damage'",
        "stream",
        "name as path",
        "slot as row_group",
        "messages",
        "value as reason",
    ),
}
"""The tables: their kinds of rows of `final_aggregates`, and their columns."""


@contextmanager
def analysed(spark: SparkSession, history: ExportedHistory, options: AnalyzeOptions) -> Iterator[Tables]:
    """Return the tables, by name. Common data is read once and kept during the block."""
    from pyspark import StorageLevel

    parts = _parts(spark, history, options).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = _whole(parts).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield _tables(spark, history, rows, options)
        finally:
            rows.unpersist()
    finally:
        parts.unpersist()


def _parts(spark: SparkSession, history: ExportedHistory, options: AnalyzeOptions) -> DataFrame:
    window_ns = options.window_seconds * NS_PER_SECOND
    parts = fold(
        spark,
        history,
        history.pieces,
        partial_aggregates.COLUMNS,
        lambda found: partial_aggregates.partial_tables(found, window_ns, options.depth),
        partial_aggregates.SCHEMA,
    )
    system = history.of(analyze_events.STREAM)
    if not system:
        return parts
    columns, function = analyze_events.COLUMNS, analyze_events.partial_tables
    return parts.union(fold(spark, history, system, columns, function, partial_aggregates.SCHEMA))


def _whole(parts: DataFrame) -> DataFrame:
    """Return the rows of `final_aggregates`."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    name = f.when(f.col("kind") == "rest", f.col("name")).alias("name")
    window = f.when(f.col("kind") == "window", f.col("slot")).alias("window")
    sums = (f.count("*").alias("rows"), f.max("last_time").alias("end"), f.sum("high").alias("high"))
    found = parts.groupBy("kind", "stream", name, window).agg(*sums, f.sum("messages").alias("messages"))
    most = (f.sum("rows").alias("rows"), f.max("end").alias("end"), f.max("high").alias("high"))
    counted = found.groupBy("kind", "stream", "name").agg(*most, f.max("messages").alias("most")).collect()
    of = {kind: [row for row in counted if row["kind"] == kind] for kind in ("run", "window", "rest")}
    known = Known(
        {row["stream"]: row["end"] for row in of["run"]},
        {row["stream"]: row["most"] for row in of["window"]},
        {(row["stream"], row["name"]): int(row["high"]) for row in of["rest"]},
    )
    parts = parts.where("not kind <=> 'window'")  # `!=` would make it another schema, without nulls
    count = -(-sum(row["rows"] for row in counted if row["kind"] != "window") // ROWS_EACH)
    if count > 1:
        place = f.when(f.col("kind").isin(*SPREAD), f.hash("value", "slot", "first"))
        parts = parts.repartition(count, "stream", "name", place)
    else:
        parts = parts.coalesce(1)  # without an exchange
    return parts.mapInArrow(lambda batches: whole(batches, known), from_arrow_schema(WHOLE))


def _tables(
    spark: SparkSession, history: ExportedHistory, rows: DataFrame, options: AnalyzeOptions
) -> Tables:
    from pyspark.sql import functions as f

    crossed = [row["stream"] for row in rows.where("crossed").select("stream").collect()]
    tables = {
        name: rows.where(condition).selectExpr(
            *(column.format(window=options.window_seconds) for column in columns)
        )
        for name, (condition, *columns) in TABLES.items()
    }
    if crossed:
        tables |= _exact(tables, _sequences(spark, history, crossed), ~f.col("stream").isin(crossed))
    return tables | {
        f"measure_{measure.name}": _measure(spark, history, measure)
        for measure in map(Measure.parse, options.measures)
    }


# Volume


def volume(spark: SparkSession, history: ExportedHistory, window_seconds: int) -> DataFrame:
    """Return messages and bytes by stream, window and subject, and nothing else."""
    from pyspark.sql import functions as f

    window_ns = window_seconds * NS_PER_SECOND

    def task(found: Iterator[HistoryPart | ExportDamage]) -> Iterator[pa.RecordBatch]:
        for part in found:
            if isinstance(part, ExportDamage):
                yield partial_aggregates.damage_row(part)
            else:
                yield partial_aggregates.volumes(part, window_ns)

    columns = ("time_ns", "subject", "size")
    parts = fold(spark, history, history.pieces, columns, task, partial_aggregates.SCHEMA)
    grouped = parts.where("kind = 'subject'").groupBy("stream", "slot", f.col("name").alias("subject"))
    summed = grouped.agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    return summed.selectExpr("stream", _seconds("slot", "window"), "subject", *_SUMS)


# Order: with the same sequences in two files, a gap in one may be filled by the other


def _exact(tables: Tables, numbers: DataFrame, others: Column) -> dict[str, DataFrame]:
    """Return the tables with exact gaps and duplicates of some streams, computed from all their sequences."""
    from pyspark.sql import functions as f

    gaps = _gaps(numbers).selectExpr("stream", "first", "last", "last - first + 1 as messages")
    missing = gaps.groupBy("stream").agg(f.count("*").alias("gaps"), f.sum("messages").alias("missing"))
    duplicates = numbers.groupBy("stream").agg(f.sum("copies").alias("duplicates"))
    streams = tables["streams"]
    counted = (
        streams.drop("gaps", "missing", "duplicates")
        .join(duplicates, "stream")
        .join(missing, "stream", "left")
    )
    counted = counted.na.fill(0, ["gaps", "missing"]).select(*streams.columns)
    return {
        "streams": streams.where(others).unionByName(counted),
        "gaps": tables["gaps"].where(others).union(gaps),
    }


def _sequences(spark: SparkSession, history: ExportedHistory, streams: Sequence[str]) -> DataFrame:
    """Return every sequence of these streams once, with the number of further copies."""
    from pyspark.sql import functions as f

    files = messages(spark, history, streams)
    return files.groupBy("stream", "sequence").agg((f.count("*") - 1).alias("copies"))


def _gaps(numbers: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    follows = f.lead("sequence").over(Window.partitionBy("stream").orderBy("sequence"))
    steps = numbers.select("stream", "sequence", follows.alias("next")).where("next > sequence + 1")
    return steps.selectExpr("stream", "sequence + 1 as first", "next - 1 as last")


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


# The rest


def _measure(spark: SparkSession, history: ExportedHistory, measure: Measure) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    groups = [f.expr(of).alias(name) for name, of in measure.groups]
    try:
        counted = messages(spark, history).select(*groups, f.expr(measure.number).alias("number"))
    except (AnalysisException, ParseException) as error:
        raise InvalidValue(f"invalid measure {measure.name!r}: {error.getMessage() or error}") from error
    numbers = counted.where("number is not null").groupBy(*(name for name, _ in measure.groups))
    return numbers.agg(
        f.count("*").alias("messages"),
        f.sum("number").alias("total"),
        f.mean("number").alias("mean"),
        f.min("number").alias("low"),
        f.max("number").alias("high"),
        f.stddev_pop("number").alias("deviation"),
    ).orderBy(*(name for name, _ in measure.groups))


def analyze(spark: SparkSession, history: ExportedHistory, target: str, options: AnalyzeOptions) -> Tables:
    """Write each table as a directory of Parquet in `target`, in place of one that is there.

    Returns the written tables.
    """
    target = target.rstrip("/")
    with analysed(spark, history, options) as tables, ThreadPoolExecutor(TOGETHER) as threads:
        # Each table is little work and some waiting, so several are made at the same time.
        list(threads.map(lambda name: _write(tables[name], f"{target}/{name}"), tables))
        return {
            name: plain_reader(spark).schema(t.schema).parquet(f"{target}/{name}")
            for name, t in tables.items()
        }


def _write(table: DataFrame, path: str) -> None:
    table.write.mode("overwrite").parquet(path)
