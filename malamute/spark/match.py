"""What subscriptions would have received: the broker's own index, run over history in the executors.

A file names the subscriptions, in TOML or JSON:

    [[subscription]]
    name = "frost in the north"
    stream = "weather"                              # without it: all streams
    criteria = [["topic", "temp.oslo"], ["topic", "temp.bergen"]]
    where = "value < 0"

A subject is matched once for each row group, however many messages have it; headers are only decoded when a
subscription looks at them, and then only those that one names. Equal results of the index are one object, so
messages are counted by result, and the subscriptions behind each result are looked at once for each task.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.errors import InvalidSelector, InvalidValue
from malamute.matching import FAMILIES, Groups, Index, Selector, load_plugins, parse
from malamute.matching.fields import ExpressionFamily
from malamute.spark.analyze import messages
from malamute.spark.scan import Damage, History, Part, fold
from malamute.spark.schema import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from malamute.spark.scan import Function

EXAMPLES = 3
SUBSCRIPTIONS_MAX = 100_000

SCHEMA = pa.schema(
    [
        ("subscription", pa.int64()),  # its place in the file; null for damage
        ("stream", pa.string()),
        ("date", pa.string()),
        ("messages", pa.int64()),
        ("examples", pa.list_(pa.int64())),
        ("path", pa.string()),
        ("row_group", pa.int64()),
        ("reason", pa.string()),
    ]
)

Numbers = np.ndarray[Any, Any]


class Wanted(NamedTuple):
    """A subscription of the file; an empty stream is all of them."""

    name: str
    selector: Selector
    stream: str = ""


class Matched(NamedTuple):
    """`hits` by subscription, stream and day; `examples` are messages; `damage` is what could not be read."""

    hits: DataFrame
    examples: DataFrame
    damage: DataFrame
    kept: tuple[DataFrame, ...]

    def release(self) -> None:
        """Let Spark forget what it keeps of them."""
        for frame in self.kept:
            frame.unpersist()


# The file


def load(path: Path) -> list[Wanted]:
    """Read a file of subscriptions. Raises `InvalidValue` and `InvalidSelector`, which name what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidValue(f"{path} is neither TOML nor JSON: {error}") from error
    if isinstance(given, Mapping):
        given = given.get("subscription")
    if not isinstance(given, list) or not 0 < len(given) <= SUBSCRIPTIONS_MAX:
        raise InvalidValue(f"{path} has no list of 1 to {SUBSCRIPTIONS_MAX:,} subscriptions")
    load_plugins()
    found = [_wanted(number, item) for number, item in enumerate(given, 1)]
    if len({wanted.name for wanted in found}) < len(found):
        raise InvalidValue(f"{path} has two subscriptions of one name")
    return found


def _wanted(number: int, item: Any) -> Wanted:
    if not isinstance(item, Mapping) or set(item) - {"name", "stream", "criteria", "where"}:
        raise InvalidValue(f"subscription {number} has name, stream, criteria and where, not {item!r}")
    name, stream = item.get("name", str(number)), item.get("stream", "")
    if not (isinstance(name, str) and isinstance(stream, str)):
        raise InvalidValue(f"subscription {number}: name and stream are text")
    try:
        return Wanted(
            name, Selector.parse(item.get("criteria", [["all", None]]), item.get("where", "")), stream
        )
    except InvalidSelector as error:
        raise InvalidSelector(f"subscription {name!r}: {error.text}") from error


# On the driver


def match(
    spark: SparkSession, history: History, subscriptions: Sequence[Wanted], examples: int = EXAMPLES
) -> Matched:
    """Match all messages. It has been done when it returns, and what it found is kept by Spark."""
    from pyspark.sql import functions as f

    plan = Plan.of(subscriptions, examples)
    found = fold(spark, history, history.pieces, plan.columns, plan.function(), SCHEMA).persist()
    named = spark.createDataFrame(
        [(number, wanted.name) for number, wanted in enumerate(subscriptions)],
        "subscription bigint, name string",
    )
    kept = found.join(named, "subscription").groupBy("name", "stream", "date")
    flat = f.array_sort(f.flatten(f.collect_list("examples")))
    summed = kept.agg(f.sum("messages").alias("messages"), f.slice(flat, 1, examples).alias("examples"))
    hits = summed.persist()
    first = f.slice(f.array_sort(f.flatten(f.collect_list("examples"))), 1, examples)
    numbers = hits.groupBy("name", "stream").agg(first.alias("examples")).collect()
    damage = found.where("subscription is null").select("stream", "path", "row_group", "messages", "reason")
    return Matched(hits.drop("examples"), _examples(spark, history, numbers), damage, (found, hits))


def _examples(spark: SparkSession, history: History, found: Sequence[Any]) -> DataFrame:
    """The messages of the sequences that were found."""
    from pyspark.sql import functions as f

    pairs = [(row["name"], row["stream"], number) for row in found for number in row["examples"]]
    wanted = spark.createDataFrame(pairs, "name string, stream string, sequence bigint")
    # So Spark need not look into files and row groups in which none of them is.
    low, high = min((p[2] for p in pairs), default=0), max((p[2] for p in pairs), default=0)
    history_rows = messages(spark, history).where(f.col("sequence").between(low, high))
    columns = ("name", "stream", "sequence", "time", "sender", "subject", "headers", "body")
    joined = history_rows.join(f.broadcast(wanted), ["stream", "sequence"]).select(*columns)
    # A sequence that is there twice is one example.
    return joined.dropDuplicates(["name", "stream", "sequence"]).orderBy("name", "stream", "sequence")


# In the executors


class Plan(NamedTuple):
    """What tasks need to know. `headers` are the names that conditions look at; None is all."""

    subscriptions: tuple[Wanted, ...]
    examples: int
    needs_headers: bool
    headers: tuple[str, ...] | None

    @classmethod
    def of(cls, subscriptions: Sequence[Wanted], examples: int) -> Plan:
        """Find out what the subscriptions need."""
        index = index_of(subscriptions)
        return cls(tuple(subscriptions), examples, index.needs_headers, header_names(subscriptions))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return ("sequence", "subject", *(("sender", "headers") if self.needs_headers else ()))

    def function(self) -> Function:
        """What a task does."""
        return lambda parts: _matches(self, parts)


def index_of(subscriptions: Sequence[Wanted], stream: str | None = None) -> Index:
    """The index of the subscriptions to a stream, or of all. Its members are their places in the list."""
    index = Index()
    for number, wanted in enumerate(subscriptions):
        if stream is None or wanted.stream in ("", stream):
            index.add(number, wanted.selector)
    return index


def header_names(subscriptions: Sequence[Wanted]) -> tuple[str, ...] | None:
    """The headers that any of them looks at; None if a family from outside may look at any."""
    names: set[str] = set()
    for wanted in subscriptions:
        expressions = [parse(wanted.selector.where)] if wanted.selector.where else []
        for name, pattern in wanted.selector.criteria:
            family = FAMILIES[name]
            if issubclass(family, ExpressionFamily):
                expressions.append(family.expression(pattern))
            elif family.needs_headers:
                return None
        for expression in expressions:
            names |= {attribute for attribute in expression.attributes() if isinstance(attribute, str)}
    return tuple(sorted(names))


class _Hits:
    """What was found in one task for one stream and day: counts by result, and examples."""

    def __init__(self, plan: Plan) -> None:
        self._most = plan.examples
        self._numbers: dict[int, int] = {}
        self._results: list[Groups] = []
        self.counts: list[int] = []
        self.examples: dict[int, list[int]] = {}

    def number(self, result: Groups) -> int:
        """The number of a result, which is kept and so has its identity for good."""
        number = self._numbers.get(id(result))
        if number is None:
            number = self._numbers[id(result)] = len(self._results)
            self._results.append(result)
            self.counts.append(0)
        return number

    def add(self, numbers: Numbers, sequences: Numbers) -> None:
        """Count a row group: the number of the result of each message, and its sequence."""
        counts = np.bincount(numbers, minlength=len(self._results))
        for number in np.flatnonzero(counts).tolist():
            self.counts[number] += int(counts[number])
            lacking = [k for k in self._keys(number) if len(self.examples.get(k, ())) < self._most]
            if lacking:
                found = sequences[np.flatnonzero(numbers == number)[: self._most]].tolist()
                for key in lacking:
                    known = self.examples.setdefault(key, [])
                    known += found[: self._most - len(known)]

    def _keys(self, number: int) -> Iterator[int]:
        return (key for group in self._results[number] for key in group.members)  # type: ignore[misc]

    def table(self, stream: str, date: str) -> pa.RecordBatch:
        """A row for each subscription that was hit."""
        totals: dict[int, int] = {}
        for number, count in enumerate(self.counts):
            for key in self._keys(number):
                totals[key] = totals.get(key, 0) + count
        found = {
            "subscription": list(totals),
            "stream": [stream] * len(totals),
            "date": [date] * len(totals),
            "messages": list(totals.values()),
            "examples": [self.examples.get(key, []) for key in totals],
        }
        return _table(len(totals), found)


def _table(count: int, found: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [
        pa.array(found[field.name], field.type) if field.name in found else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _matches(plan: Plan, parts: Iterator[Part | Damage]) -> Iterator[pa.RecordBatch]:
    load_plugins()
    stream, date = "", ""
    index, hits = Index(), _Hits(plan)
    for part in parts:
        if isinstance(part, Damage):
            yield _table(1, {name: [value] for name, value in part._asdict().items()})
            continue
        if (part.stream, part.date) != (stream, date):
            yield hits.table(stream, date)
            if part.stream != stream:
                index = index_of(plan.subscriptions, part.stream)
            stream, date, hits = part.stream, part.date, _Hits(plan)
        find = _by_message if index.needs_headers else _by_subject
        hits.add(find(plan, index, hits, part.batch), part.batch.column("sequence").to_numpy())
    yield hits.table(stream, date)


def _by_subject(plan: Plan, index: Index, hits: _Hits, batch: pa.RecordBatch) -> Numbers:
    subjects = batch.column("subject")
    results = index.match_many(subjects.dictionary.to_pylist())
    numbers: Numbers = np.array([hits.number(result) for result in results], np.int64)
    found: Numbers = numbers.take(subjects.indices.to_numpy())
    return found


def _by_message(plan: Plan, index: Index, hits: _Hits, batch: pa.RecordBatch) -> Numbers:
    subjects, senders = (batch.column(name).to_pylist() for name in ("subject", "sender"))
    results = index.match_many(subjects, decoded(batch.column("headers"), plan.headers), senders)
    return np.fromiter(map(hits.number, results), np.int64, len(results))


def decoded(headers: pa.MapArray, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The headers of messages as maps, as the broker sees them; of those named alone, if any are."""
    keys, items = headers.keys, headers.items
    ends = headers.offsets.to_numpy()
    if names is not None:
        mask = pc.is_in(keys, pa.array(names, pa.string()))
        kept = np.concatenate([[0], np.cumsum(mask.to_numpy(zero_copy_only=False))])
        keys, items, ends = keys.filter(mask), items.filter(mask), kept[ends]
    values = np.empty(len(keys), object)
    # Integers stand in two fields, and the later one counts.
    for kind in ("number", *(kind for kind in KINDS if kind != "number")):
        column = items.field(kind)
        there = column.is_valid()
        if column.null_count < len(column):
            values[there.to_numpy(zero_copy_only=False)] = column.filter(there).to_pylist()
    pairs = list(zip(keys.to_pylist(), values.tolist(), strict=True))
    ends = ends.tolist()
    # Where a record is none there is no map, and so there are no headers.
    found = [dict(pairs[start:end]) for start, end in pairwise(ends)]
    for place in np.flatnonzero(headers.is_null().to_numpy(zero_copy_only=False)).tolist():
        found[place] = {}
    return found
