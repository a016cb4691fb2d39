"""What the pipeline does on this machine, beside plain Spark and, if it is installed, DuckDB.

The history is made directly as an exported directory: one stream, a thousand subjects, twenty senders, three
headers, ten messages each 5 ms. A round does each thing once; shown are the median of the rounds and their
extent. The session has been started before, and the first round, in which Java compiles, is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from malamute.matching import Selector
from malamute.protocol.time_units import NS_PER_SECOND, to_ns
from malamute.spark import analyze, read_export
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.export import ExportFile
from malamute.spark.export_location import ExportLocation
from malamute.spark.layout import date_of
from malamute.spark.manifest import File, Manifest, save
from malamute.spark.match import MatchSubscription, match
from malamute.spark.scan import ExportedHistory, HistoryBounds
from malamute.spark.schema import arrow_schema, ddl
from malamute.spark.session import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "bench"
KINDS = ("temp", "wind", "rain", "sun", "snow", "fog", "hail", "ice", "dew", "sea")
PLACES = ("oslo", "bergen", "rome", "paris", "lima", "cairo", "tokyo", "delhi", "perth", "quito")
SUBJECTS = [f"{kind}.{number}.{place}" for kind in KINDS for number in range(10) for place in PLACES]
UNITS = ("C", "F", "K")
SENDERS = 20
FILE_ROWS = 1_000_000
GROUP_ROWS = 131_072
BEGIN = to_ns(1_704_067_200)
TEN_NS = 5_000_000
"""How long ten messages take."""

MINUTE_SECONDS = 60

FEW = ("subject", "sequence", "time", "size")
"""Columns that are narrow."""

WHOLE = 0.25
"""The share of the history whose rows are read whole."""

PLAIN = "plain "
"""What is in the name of that which the others after it are held to."""

WARM = 4
"""Rounds of plain Spark that are not measured: Java compiles in them what all others are held to."""


SHUFFLES = "2"
"""Partitions of the shuffles of the session."""

MEMORY = "4g"
"""Memory of the driver of the session."""


@contextmanager
def session_of(cores: int) -> Iterator[SparkSession]:
    """Open a session on so many cores of this machine."""
    session = open_session(
        "malamute-bench",
        f"local[{cores}]",
        spark__ui__enabled="false",
        spark__log__level="ERROR",
        spark__driver__memory=MEMORY,
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions=SHUFFLES,
    )
    try:
        yield session
    finally:
        close_session(session)


class SparkBenchOptions(NamedTuple):
    """How much, how often, and where."""

    messages: int
    size_bytes: int
    subscriptions: int
    rounds: int
    cores: int
    directory: Path


class SparkBenchRow(NamedTuple):
    """What was measured: messages a second, the median of the rounds, and the least and the most.

    `of_plain_spark` is how many times as many as plain Spark counts in the same run, or reads of the same
    columns where rows are read: machines differ by more than code does.
    """

    what: str
    messages: int
    seconds: float
    per_second: float
    extent: list[float]
    of_plain_spark: float | None = None


# The history


def make(directory: Path, messages: int, size_bytes: int) -> None:
    """Write the history, with its manifest. It is the same each time."""
    rows = min(FILE_ROWS, messages)
    columns = _columns(np.random.default_rng(1), rows, size_bytes)
    files = []
    for first in range(1, messages + 1, rows):
        count = min(rows, messages - first + 1)
        numbers = np.arange(first, first + count)
        times = BEGIN + (numbers - 1) // 10 * TEN_NS
        days = times // (86_400 * NS_PER_SECOND)
        for start in np.flatnonzero(np.diff(days, prepend=-1)).tolist():
            end = int(np.searchsorted(days, days[start], "right"))
            files.append(_write(directory, columns, numbers[start:end], times[start:end], start))
    save(ExportLocation(str(directory)), Manifest(STREAM, {}, tuple(files)))


def _write(directory: Path, columns: dict[str, pa.Array], numbers: Any, times: Any, start: int) -> File:
    count = len(numbers)
    given = {
        "sequence": pa.array(numbers),
        "time": pa.array(times // 1000, pa.timestamp("us", "UTC")),
        "time_ns": pa.array(times),
        "expires": pa.nulls(count, pa.timestamp("us", "UTC")),
        **{name: column.slice(start, count) for name, column in columns.items()},
    }
    schema = arrow_schema()
    whole = pa.RecordBatch.from_arrays([given[name] for name in schema.names], schema=schema)
    file = ExportFile(
        ExportLocation(str(directory)), Manifest(STREAM, {}), date_of(int(times[0])), whole.slice(0, 1)
    )
    for row in range(0, count, GROUP_ROWS):
        file.write(whole.slice(row, GROUP_ROWS))
    return file.finish((), limited=False)


def _columns(chance: np.random.Generator, rows: int, size_bytes: int) -> dict[str, pa.Array]:
    schema = arrow_schema()
    subjects = chance.integers(0, len(SUBJECTS), rows)
    names = [f"sensor-{number}" for number in range(SENDERS)]
    parts = pa.array([subject.split(".") for subject in SUBJECTS], schema.field("parts").type)
    bodies = pa.py_buffer(chance.bytes(rows * size_bytes))
    ends = pa.py_buffer((np.arange(rows + 1) * size_bytes).astype(np.int32))
    return {
        "sender": pa.array(names).take(pa.array(chance.integers(0, SENDERS, rows))),
        "subject": pa.array(SUBJECTS).take(pa.array(subjects)),
        "parts": parts.take(pa.array(subjects)),
        "headers": _headers(chance, rows),
        "body": pa.Array.from_buffers(pa.binary(), rows, [None, ends, bodies]),
        "frames": pa.nulls(rows, schema.field("frames").type),
        "size": pa.array(np.full(rows, size_bytes, np.int32)),
    }


def _headers(chance: np.random.Generator, rows: int) -> pa.MapArray:
    """A unit, a price and a level for each message."""
    kind = arrow_schema().field("headers").type
    place = np.arange(3 * rows) % 3
    level = np.repeat(chance.integers(0, 100, rows), 3)
    price = np.repeat(np.round(chance.gamma(2, 50, rows), 2), 3)
    unit = pa.array(UNITS).take(pa.array(np.repeat(chance.integers(0, 3, rows), 3)))
    values = {
        "text": pa.compute.if_else(pa.array(place == 0), unit, None),
        "integer": pa.array(level, mask=place != 2),
        "number": pa.array(np.where(place == 1, price, level.astype(float)), mask=place == 0),
        "flag": pa.nulls(3 * rows, pa.bool_()),
    }
    fields = list(kind.item_type)
    items = pa.StructArray.from_arrays([values[field.name] for field in fields], fields=fields)
    keys = pa.array(["unit", "price", "level"]).take(pa.array(place))
    return pa.MapArray.from_arrays(pa.array(np.arange(rows + 1) * 3, pa.int32()), keys, items).cast(kind)


def subscriptions(count: int, *, by_headers: bool) -> list[MatchSubscription]:
    """Subscriptions to single subjects and to groups of them; with a condition on two headers, if wanted."""
    chance = Random(1)
    found = []
    for number in range(count):
        kind, place, digit = chance.choice(KINDS), chance.choice(PLACES), str(chance.randrange(10))
        parts = (f"{kind}.{digit}.{place}", f"{kind}.{digit}.*", f"{kind}.*.{place}", f"*.{digit}.{place}")
        where = f"price > {50 + number % 300} and unit = '{UNITS[number % 3]}'" if by_headers else ""
        found.append(MatchSubscription(str(number), Selector.parse([["topic", chance.choice(parts)]], where)))
    return found


# The measurements

Measurement = Callable[[int], object]


def measure(spark: SparkSession, options: SparkBenchOptions) -> Iterator[SparkBenchRow]:
    """Measure everything."""
    with TemporaryDirectory(prefix="malamute-bench-", dir=options.directory) as place:
        directory, out = Path(place) / "history", Path(place) / "out"
        begun = time.perf_counter()
        make(directory, options.messages, options.size_bytes)
        yield _row("the history written, not measured", options.messages, [time.perf_counter() - begun])
        plain = 0.0
        for what, share, run in _runs(spark, options, str(directory), str(out)):
            count = max(1, int(options.messages * share))
            is_plain = PLAIN in what
            for _ in range(WARM if is_plain else 1):
                run(count)
            seconds = [_timed(run, count) for _ in range(options.rounds)]
            row = _row(what, count, seconds)
            plain = row.per_second if is_plain else plain
            yield row._replace(of_plain_spark=round(row.per_second / plain, 3))


def _timed(run: Measurement, count: int) -> float:
    begun = time.perf_counter()
    run(count)
    return time.perf_counter() - begun


def _row(what: str, messages: int, seconds: list[float]) -> SparkBenchRow:
    rates = sorted(round(messages / one, 1) for one in seconds)
    return SparkBenchRow(what, messages, round(median(seconds), 3), median(rates), [rates[0], rates[-1]])


def _runs(
    spark: SparkSession, options: SparkBenchOptions, directory: str, out: str
) -> Iterator[tuple[str, float, Measurement]]:
    """What is measured, over which part of the history; plain Spark first, for the others to be held to."""
    plain = spark.read.schema(ddl()).parquet(directory)

    def history(count: int) -> ExportedHistory:
        return ExportedHistory(
            directory, HistoryBounds() if count == options.messages else HistoryBounds(last=count)
        )

    def matched(count: int, wanted: list[MatchSubscription]) -> None:
        match(spark, history(count), wanted, 1).release()

    subjects = subscriptions(options.subscriptions, by_headers=False)
    headers = subscriptions(options.subscriptions, by_headers=True)
    yield "counts and bytes by subject and minute, plain Spark", 1, lambda count: _plain_counts(plain).count()
    if (duckdb := _duckdb()) is not None:
        yield "the same, DuckDB", 1, lambda count: _duckdb_counts(duckdb, directory, options.cores)
    yield (
        "analyze, all of it",
        1,
        lambda count: analyze.analyze(
            spark, history(count), out, AnalyzeOptions(window_seconds=MINUTE_SECONDS)
        ),
    )
    yield f"match {options.subscriptions} subjects", 1, lambda count: matched(count, subjects)
    yield f"match {options.subscriptions} with headers", 0.1, lambda count: matched(count, headers)
    few, exported, source = [*FEW], read_export(spark, directory), "malamute"
    narrow_source = spark.read.format(source).option("columns", ",".join(few)).load(directory)
    tables = (
        ("plain spark.read.parquet", plain, plain.select(few)),
        ("read_export", exported, exported.select(few)),
        ("the data source", spark.read.format(source).load(directory), narrow_source),
    )
    for name, whole, _ in tables:
        yield f"{name}: all columns", WHOLE, partial(_drain, whole)
    for name, _, narrow in tables:
        yield f"{name}: {', '.join(few)}", 1, partial(_drain, narrow)


def _plain_counts(frame: Any) -> Any:
    from pyspark.sql import functions as f

    minute = f.expr("time_ns div 60000000000").alias("minute")
    return frame.groupBy("subject", minute).agg(f.count("*"), f.sum("size"))


def _drain(frame: Any, count: int) -> None:
    """Read the first messages."""
    frame.where(f"sequence <= {count}").write.format("noop").mode("overwrite").save()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        return None
    return duckdb


def _duckdb_counts(duckdb: Any, directory: str, cores: int) -> int:
    with duckdb.connect(config={"threads": cores}) as database:
        query = (
            "select subject, time_ns // 60000000000 as minute, count(*), sum(size)"
            f" from read_parquet('{directory}/*/*/*.parquet') group by all"
        )
        return len(database.execute(query).fetchall())
