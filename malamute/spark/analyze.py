"""What happened: volume, order, senders, headers and queues of exported history, as tables.

Tasks make partial sums of every row group (`analyze_parts`, `analyze_events`), and here Spark adds them up:

    streams         messages, bytes, rates, what is missing or there twice, and how far apart messages are
    volume          messages and bytes of each window and subject prefix
    subjects        messages and bytes of each subject
    senders         the same of each sender, how far apart its messages are, and its longest silence
    sender_volume   messages and bytes of each window and sender
    intervals       how often messages were how far apart: the buckets behind the percentiles
    gaps            ranges of sequences that are not there
    headers         how many of which type; minimum, maximum, mean and deviation of numbers
    header_values   the most frequent values
    queues          services and mailboxes: how often which outcome, and redeliveries    ┐
    queue_times     how long messages waited and were held                               │ from `$sys`
    consumers       subscriptions that fell behind or missed something                   │
    events          how often what happened                                              ┘
    damage          what could not be read
    measures        numbers that the caller has asked for, each by groups of its own

A table is a directory of Parquet in the target. A sender is *late* when its longest silence, the one that
lasts to the end of its stream included, is `LATE` times as long as 99 of 100 others of its silences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from malamute.errors import InvalidValue
from malamute.spark import analyze_events, analyze_parts
from malamute.spark.analyze_parts import EACH_DOUBLING
from malamute.spark.scan import Bounds, Damage, History, Part, fold
from malamute.spark.schema import ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

LATE = 10
TOGETHER = 4
"""Tables that are made at the same time."""

FEW_ROWS = 1_000_000
"""So many rows of partial sums are added up by one task for each table."""

PERCENTILES = (0.50, 0.95, 0.99)
SECOND = 1_000_000_000


class Options(NamedTuple):
    """What is analysed, and how finely. A window is in seconds, `depth` in parts of a subject."""

    bounds: Bounds = Bounds()
    window: int = 60
    depth: int = 1
    measures: tuple[str, ...] = ()


class Measure(NamedTuple):
    """A number that is summed up by groups: expressions in Spark's SQL on the columns of the history."""

    name: str
    number: str
    groups: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, words: str) -> Measure:
        """Read `NAME = EXPRESSION by NAME = EXPRESSION, …`. Raises `InvalidValue`."""
        found = _MEASURE.fullmatch(words)
        if found is None:
            raise InvalidValue(f"a measure is NAME=EXPRESSION by NAME=EXPRESSION; …, not {words!r}")
        groups = [_GROUP.fullmatch(group) for group in found["groups"].split(";")]
        if not all(groups):
            raise InvalidValue(f"a group is NAME=EXPRESSION, in {words!r}")
        return cls(found["name"], found["number"], tuple((g["name"], g["of"]) for g in groups if g))


_MEASURE = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<number>.+?)\s+by\s+(?P<groups>.+)")
_GROUP = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<of>.+?)\s*")

Tables = Mapping[str, "DataFrame"]


@contextmanager
def analysed(spark: SparkSession, history: History, options: Options) -> Iterator[Tables]:
    """The tables, by name. What they share is read once and kept during the block."""
    from pyspark import StorageLevel

    window_ns = options.window * SECOND
    parts = fold(
        spark,
        history,
        history.pieces,
        analyze_parts.COLUMNS,
        lambda found: analyze_parts.partial_tables(found, window_ns, options.depth),
        analyze_parts.SCHEMA,
    )
    system = history.of(analyze_events.STREAM)
    if system:
        parts = parts.union(
            fold(
                spark,
                history,
                system,
                analyze_events.COLUMNS,
                analyze_events.partial_tables,
                analyze_parts.SCHEMA,
            )
        )
    parts = parts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        # What is in one partition needs no exchange, and that is most of what a small query costs.
        few = parts.count() <= FEW_ROWS
        yield _tables(spark, history, parts.coalesce(1) if few else parts, options)
    finally:
        parts.unpersist()


def _tables(spark: SparkSession, history: History, parts: DataFrame, options: Options) -> Tables:
    order = _Order(spark, history, parts)
    senders = _senders(parts)
    return {
        "streams": _streams(parts, order, options.window),
        "volume": _by_window(parts, "prefix"),
        "subjects": _totals(parts, "subject"),
        "senders": senders,
        "sender_volume": _by_window(parts, "sender"),
        "intervals": _intervals(parts),
        "gaps": order.gaps,
        "headers": _headers(parts),
        "header_values": _header_values(parts),
        # Spark leaves out what it has to do with no rows, so long as it is told before.
        **analyze_events.tables(parts if history.of(analyze_events.STREAM) else parts.limit(0), percentiles),
        "damage": _damage(parts),
        **{
            f"measure_{measure.name}": _measure(spark, history, measure)
            for measure in map(Measure.parse, options.measures)
        },
    }


def _of(parts: DataFrame, kind: str) -> DataFrame:
    return parts.where(parts.kind == kind)


# Volume


def _window() -> Column:
    from pyspark.sql import functions as f

    return f.timestamp_micros(f.expr("slot div 1000")).alias("window")


def _by_window(parts: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as f

    grouped = _of(parts, kind).groupBy("stream", f.col("slot"), f.col("name").alias(kind))
    summed = grouped.agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    return summed.select("stream", _window(), kind, "messages", "bytes")


def volume(spark: SparkSession, history: History, window: int) -> DataFrame:
    """Messages and bytes by stream, window of so many seconds, and subject, and nothing else."""
    window_ns = window * SECOND

    def task(found: Iterator[Part | Damage]) -> Iterator[pa.RecordBatch]:
        for part in found:
            if isinstance(part, Damage):
                yield analyze_parts.damage_row(part)
            else:
                yield analyze_parts.volumes(part, window_ns)

    columns = ("time_ns", "subject", "size")
    parts = fold(spark, history, history.pieces, columns, task, analyze_parts.SCHEMA)
    return _by_window(parts, "subject")


def _totals(parts: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as f

    grouped = _of(parts, kind).groupBy("stream", f.col("name").alias(kind))
    return grouped.agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))


def _streams(parts: DataFrame, order: _Order, window: int) -> DataFrame:
    from pyspark.sql import functions as f

    runs = _of(parts, "run").groupBy("stream")
    ends = runs.agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.min("first_time").alias("begin_ns"),
        f.max("last_time").alias("end_ns"),
    )
    volume = _of(parts, "sender").groupBy("stream", "slot").agg(f.sum("messages").alias("messages"))
    peaks = volume.groupBy("stream").agg((f.max("messages") / window).alias("peak_per_second"))
    gaps = order.gaps.groupBy("stream").agg(f.count("*").alias("gaps"), f.sum("messages").alias("missing"))
    times = percentiles(_intervals(parts).where("sender is null"), "stream")
    seconds = f.col("end_ns") - f.col("begin_ns")
    return (
        ends.join(peaks, "stream")
        .join(gaps, "stream", "left")
        .join(order.doubles, "stream", "left")
        .join(times, "stream", "left")
        .na.fill(0, ["gaps", "missing", "doubles"])
        .withColumn("per_second", f.when(seconds > 0, f.col("messages") * SECOND / seconds))
        .withColumn("begin", f.timestamp_micros(f.expr("begin_ns div 1000")))
        .withColumn("end", f.timestamp_micros(f.expr("end_ns div 1000")))
        .drop("begin_ns", "end_ns")
    )


# Order


class _Order:
    """Gaps and doubles. Row groups tell their own; between them they follow from first and last.

    That is all there is to it unless files hold the same sequences twice. Then what is missing in one may be
    in the other, and the sequences of these streams themselves are looked at, once more and exactly.
    """

    def __init__(self, spark: SparkSession, history: History, parts: DataFrame) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        before = Window.partitionBy("stream").orderBy("first", "last")
        reached = f.max("last").over(before.rowsBetween(Window.unboundedPreceding, -1))
        runs = _of(parts, "run").select("stream", "first", "last", reached.alias("reached"))
        crossed = runs.where("first <= reached").select("stream").distinct().collect()
        exact = [row.stream for row in crossed]
        between = runs.where("first > reached + 1").selectExpr("stream", "reached + 1", "first - 1 as last")
        gaps = _of(parts, "hole").select("stream", "first", "last").union(between)
        within = _of(parts, "double").groupBy("stream").agg(f.sum("messages").alias("doubles"))
        if exact:
            numbers = _sequences(spark, history, exact)
            gaps = gaps.where(~f.col("stream").isin(exact)).union(_holes(numbers))
            others = within.where(~f.col("stream").isin(exact))
            within = others.union(numbers.groupBy("stream").agg(f.sum("copies").alias("doubles")))
        self.gaps = gaps.selectExpr("stream", "first", "last", "last - first + 1 as messages")
        self.doubles = within


def _sequences(spark: SparkSession, history: History, streams: Sequence[str]) -> DataFrame:
    """Every sequence of these streams once, and how many copies there are besides."""
    from pyspark.sql import functions as f

    files = messages(spark, history, streams)
    return files.groupBy("stream", "sequence").agg((f.count("*") - 1).alias("copies"))


def _holes(numbers: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    follows = f.lead("sequence").over(Window.partitionBy("stream").orderBy("sequence"))
    steps = numbers.select("stream", "sequence", follows.alias("next")).where("next > sequence + 1")
    return steps.selectExpr("stream", "sequence + 1 as first", "next - 1 as last")


def messages(spark: SparkSession, history: History, streams: Sequence[str] = ()) -> DataFrame:
    """The messages themselves, within the bounds, as Spark reads them."""
    from pyspark.sql import functions as f

    bounds = history.bounds
    files = spark.read.schema(ddl()).parquet(history.location)
    files = files.where(f.col("stream").isin(list(streams) or history.streams))
    if bounds.whole:
        return files
    inside = f.col("sequence").between(bounds.first, bounds.last)
    return files.where(inside & (f.col("time_ns") >= bounds.since) & (f.col("time_ns") < bounds.until))


# Durations


def _intervals(parts: DataFrame) -> DataFrame:
    """How far apart messages are, of each stream and of each sender: within row groups, and between them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    within = _of(parts, "interval").selectExpr("stream", "name as sender", "slot as bucket", "messages")
    ends = _of(parts, "run").union(_of(parts, "span"))
    order = Window.partitionBy("stream", "name").orderBy("first")
    step = (f.col("first_time") - f.lag("last_time").over(order)).alias("step")
    between = ends.select("stream", f.col("name").alias("sender"), step).where("step is not null")
    bucket = f.when(
        f.col("step") > 0, f.floor(f.log2(f.col("step").cast("double")) * EACH_DOUBLING) + 1
    ).otherwise(f.lit(0))
    between = between.select("stream", "sender", bucket.cast("bigint").alias("bucket"), f.lit(1))
    both = within.union(between).groupBy("stream", "sender", "bucket")
    return both.agg(f.sum("messages").alias("messages"))


def percentiles(counted: DataFrame, *groups: str) -> DataFrame:
    """The 50th, 95th and 99th percentile of durations in buckets, in seconds, as p50, p95 and p99."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy(*groups).orderBy("bucket")
    total = f.sum("messages").over(Window.partitionBy(*groups))
    up_to = f.sum("messages").over(order).alias("up_to")
    ranked = counted.select(*groups, "bucket", up_to, total.alias("total"))
    seconds = f.when(
        f.col("bucket") > 0, f.pow(f.lit(2.0), (f.col("bucket") - 0.5) / EACH_DOUBLING) / SECOND
    ).otherwise(0.0)
    found = [
        f.min(f.when(f.col("up_to") >= share * f.col("total"), seconds)).alias(f"p{round(100 * share)}")
        for share in PERCENTILES
    ]
    return ranked.groupBy(*groups).agg(*found)


def _senders(parts: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    spans = _of(parts, "span")
    order = Window.partitionBy("stream", "name").orderBy("first")
    ended = _of(parts, "run").groupBy("stream").agg(f.max("last_time").alias("end"))
    following = f.coalesce(f.lead("first_time").over(order), f.col("end"))
    silences = spans.join(ended, "stream").select(
        "stream",
        f.col("name").alias("sender"),
        f.greatest(
            f.struct(f.col("high").cast("bigint").alias("length"), f.col("slot").alias("since")),
            f.struct((following - f.col("last_time")).alias("length"), f.col("last_time").alias("since")),
        ).alias("silence"),
        "first_time",
        "last_time",
    )
    heard = silences.groupBy("stream", "sender").agg(
        f.max("silence").alias("silence"),
        f.min("first_time").alias("begin_ns"),
        f.max("last_time").alias("end_ns"),
    )
    times = percentiles(_intervals(parts).where("sender is not null"), "stream", "sender")
    joined = _totals(parts, "sender").join(heard, ["stream", "sender"])
    return joined.join(times, ["stream", "sender"], "left").select(
        "stream",
        "sender",
        "messages",
        "bytes",
        f.timestamp_micros(f.expr("begin_ns div 1000")).alias("begin"),
        f.timestamp_micros(f.expr("end_ns div 1000")).alias("end"),
        *(f"p{round(100 * share)}" for share in PERCENTILES),
        (f.col("silence.length") / SECOND).alias("longest_silence"),
        f.timestamp_micros(f.expr("silence.since div 1000")).alias("silent_since"),
        f.coalesce(f.col("silence.length") / SECOND > LATE * f.col("p99"), f.lit(False)).alias("late"),
    )


# Headers


def _headers(parts: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # The squares of all are those within each part, and those of the distances between their means.
    group = Window.partitionBy("stream", "name")
    mean = f.sum("total").over(group) / f.sum("count").over(group)
    apart = f.col("count") * f.pow(f.col("total") / f.col("count") - mean, 2)
    numbers = _of(parts, "header").withColumn("apart", f.col("squares") + apart)
    summary = numbers.groupBy("stream", f.col("name").alias("header")).agg(
        f.sum("messages").alias("messages"),
        f.sum("count").alias("numbers"),
        f.min("low").alias("low"),
        f.max("high").alias("high"),
        (f.sum("total") / f.sum("count")).alias("mean"),
        f.sqrt(f.sum("apart") / f.sum("count")).alias("deviation"),
        f.sum("total").alias("total"),
    )
    kinds = _of(parts, "type").groupBy("stream", f.col("name").alias("header"))
    types = kinds.pivot("value", ["text", "integer", "number", "flag", "none"]).agg(f.sum("messages"))
    return summary.join(types.na.fill(0), ["stream", "header"])


def _header_values(parts: DataFrame) -> DataFrame:
    """Exact where `within` is 0; else a value may occur so many times more, and others not told as often."""
    from pyspark.sql import functions as f

    header = f.col("name").alias("header")
    cut = _of(parts, "cut").groupBy("stream", header).agg(f.sum("high").cast("bigint").alias("within"))
    grouped = _of(parts, "value").groupBy("stream", header, "value")
    counted = grouped.agg(f.sum("messages").alias("messages"))
    return counted.join(cut, ["stream", "header"], "left").na.fill(0, ["within"])


# The rest


def _damage(parts: DataFrame) -> DataFrame:
    told = _of(parts, "damage")
    columns = ("stream", "name as path", "slot as row_group", "messages", "value as reason")
    return told.selectExpr(*columns).dropDuplicates(["path", "row_group"])


def _measure(spark: SparkSession, history: History, measure: Measure) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    groups = [f.expr(of).alias(name) for name, of in measure.groups]
    try:
        counted = messages(spark, history).select(*groups, f.expr(measure.number).alias("number"))
    except (AnalysisException, ParseException) as error:
        raise InvalidValue(f"the measure {measure.name!r}: {error.getMessage() or error}") from error
    numbers = counted.where("number is not null").groupBy(*(name for name, _ in measure.groups))
    return numbers.agg(
        f.count("*").alias("messages"),
        f.sum("number").alias("total"),
        f.mean("number").alias("mean"),
        f.min("number").alias("low"),
        f.max("number").alias("high"),
        f.stddev_pop("number").alias("deviation"),
    ).orderBy(*(name for name, _ in measure.groups))


def analyze(spark: SparkSession, history: History, target: str, options: Options) -> Tables:
    """Write each table as a directory of Parquet in `target`, in place of one that is there.

    Returns the tables as they were written.
    """
    target = target.rstrip("/")
    with analysed(spark, history, options) as tables, ThreadPoolExecutor(TOGETHER) as threads:
        # Each table is little work and some waiting, so several are made at the same time.
        list(threads.map(lambda name: _write(tables[name], f"{target}/{name}"), tables))
    return {name: spark.read.parquet(f"{target}/{name}") for name in tables}


def _write(table: DataFrame, path: str) -> None:
    table.write.mode("overwrite").parquet(path)
