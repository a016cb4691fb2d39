"""Matching of subscriptions against history: the broker's own index, run in the executors.

A file names the subscriptions, in TOML or JSON:

    [[subscription]]
    name = "frost in the north"
    stream = "weather"                              # without it: all streams
    criteria = [["topic", "temp.oslo"], ["topic", "temp.bergen"]]
    where = "value < 0"

A subject is matched once for each row group. Equal results of the index are one object, so messages are
counted by result, and the subscriptions behind each result are looked at once for each task. For
subscriptions with conditions on headers there are two ways:

- by columns: the index finds the subscriptions of each subject, and each condition is evaluated over the
  columns of those rows (`conditions`). This costs some microseconds for each subscription and row group.
- by message: headers are decoded, those alone that one names, and the index is asked about each message. This
  costs some microseconds for each message, so it is the way for few messages and very many subscriptions; and
  the only one for a family from outside that looks at headers.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.errors import InvalidSelector, InvalidValue
from malamute.matching import FAMILIES, Groups, Index, Selector, load_plugins, parse_normal
from malamute.matching.expression import And, Expression, Or
from malamute.matching.fields import ExpressionFamily
from malamute.spark.analyze import messages
from malamute.spark.conditions import Rows
from malamute.spark.scan import ExportDamage, ExportedHistory, HistoryPart, fold, places_by
from malamute.spark.schema import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from malamute.spark.scan import Function

EXAMPLES = 3
MESSAGES_EACH = 8
"""Messages in a row group for each selector from which columns are faster."""

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


class MatchSubscription(NamedTuple):
    """A subscription of the file; an empty stream means all of them."""

    name: str
    selector: Selector
    stream: str = ""


class Matched(NamedTuple):
    """`hits` by subscription, stream and day; `examples` are messages; `damage` are unreadable parts."""

    hits: DataFrame
    examples: DataFrame
    damage: DataFrame
    kept: tuple[DataFrame, ...]

    def release(self) -> None:
        """Release the data that Spark keeps."""
        for frame in self.kept:
            frame.unpersist()


# The file


def load(path: Path) -> list[MatchSubscription]:
    """Read a file of subscriptions. Raises `InvalidValue` and `InvalidSelector`, which name the fault."""
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"invalid file {path}: expected TOML or JSON: {error}") from error
    if isinstance(given, Mapping):
        given = given.get("subscription")
    if not isinstance(given, list) or not 0 < len(given) <= SUBSCRIPTIONS_MAX:
        raise InvalidValue(f"{path}: invalid subscriptions: expected a list of 1 to {SUBSCRIPTIONS_MAX:,}")
    load_plugins()
    found = [_wanted(number, item) for number, item in enumerate(given, 1)]
    if len({wanted.name for wanted in found}) < len(found):
        raise InvalidValue(f"{path}: two subscriptions of one name: expected a name for each")
    return found


def _wanted(number: int, item: Any) -> MatchSubscription:
    if not isinstance(item, Mapping) or set(item) - {"name", "stream", "criteria", "where"}:
        raise InvalidValue(
            f"invalid subscription {number} {item!r}: expected name, stream, criteria and where"
        )
    name, stream = item.get("name", str(number)), item.get("stream", "")
    if not (isinstance(name, str) and isinstance(stream, str)):
        raise InvalidValue(f"invalid subscription {number}: expected name and stream as text")
    try:
        return MatchSubscription(
            name, Selector.parse(item.get("criteria", [["all", None]]), item.get("where", "")), stream
        )
    except InvalidSelector as error:
        raise InvalidSelector(f"subscription {name!r}: {error.text}") from error


# On the driver


def match(
    spark: SparkSession,
    history: ExportedHistory,
    subscriptions: Sequence[MatchSubscription],
    examples: int = EXAMPLES,
) -> Matched:
    """Match all messages. The work is done at the return, and Spark keeps the result."""
    from pyspark.sql import functions as f

    plan = MatchPlan.of(subscriptions, examples)
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


def _examples(spark: SparkSession, history: ExportedHistory, found: Sequence[Any]) -> DataFrame:
    """Return the messages of the found sequences."""
    from pyspark.sql import functions as f

    pairs = [(row["name"], row["stream"], number) for row in found for number in row["examples"]]
    wanted = spark.createDataFrame(pairs, "name string, stream string, sequence bigint")
    # Spark can skip files and row groups without any of them.
    low, high = min((p[2] for p in pairs), default=0), max((p[2] for p in pairs), default=0)
    history_rows = messages(spark, history).where(f.col("sequence").between(low, high))
    columns = ("name", "stream", "sequence", "time", "sender", "subject", "headers", "body")
    joined = history_rows.join(f.broadcast(wanted), ["stream", "sequence"]).select(*columns)
    # A duplicate sequence is one example.
    return joined.dropDuplicates(["name", "stream", "sequence"]).orderBy("name", "stream", "sequence")


# In the executors


class MatchPlan(NamedTuple):
    """The plan of the tasks. `headers` are the names in conditions; None means all."""

    subscriptions: tuple[MatchSubscription, ...]
    examples: int
    needs_headers: bool
    headers: tuple[str, ...] | None

    @classmethod
    def of(cls, subscriptions: Sequence[MatchSubscription], examples: int) -> MatchPlan:
        """Return the plan for some subscriptions."""
        index = index_of(subscriptions)
        return cls(tuple(subscriptions), examples, index.needs_headers, header_names(subscriptions))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns to read."""
        return ("sequence", "subject", *(("sender", "headers") if self.needs_headers else ()))

    def function(self) -> Function:
        """Return the function of a task."""
        return lambda parts: _matches(self, parts)


def index_of(subscriptions: Sequence[MatchSubscription], stream: str | None = None) -> Index:
    """Return the index of the subscriptions to a stream, or of all. Members are places in the list."""
    index = Index()
    for number, wanted in enumerate(subscriptions):
        if stream is None or wanted.stream in ("", stream):
            index.add(number, wanted.selector)
    return index


def header_names(subscriptions: Sequence[MatchSubscription]) -> tuple[str, ...] | None:
    """Return the headers in conditions; None if a family from outside may use any."""
    names: set[str] = set()
    for wanted in subscriptions:
        expressions = _header_criteria(wanted.selector)
        if expressions is None:
            return None
        if wanted.selector.where:
            expressions = [*expressions, parse_normal(wanted.selector.where)]
        for expression in expressions:
            names |= {attribute for attribute in expression.attributes() if isinstance(attribute, str)}
    return tuple(sorted(names))


def _header_criteria(selector: Selector) -> list[Expression] | None:
    """Return the criteria on headers, as expressions; None if one of them has no such form."""
    found = []
    for name, pattern in selector.criteria:
        family = FAMILIES[name]
        if issubclass(family, ExpressionFamily):
            found.append(family.expression(pattern))
        elif family.needs_headers:
            return None
    return found


class _Hits:
    """The hits of one task for one stream and day: messages by subscription, and examples."""

    def __init__(self, plan: MatchPlan) -> None:
        self._most = plan.examples
        self._counts: dict[int, int] = {}
        self._examples: dict[int, list[int]] = {}

    def add(self, keys: Iterable[int], sequences: Numbers, rows: Numbers) -> None:
        """Count the messages of these rows for some subscriptions."""
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + len(rows)
            known = self._examples.setdefault(key, [])
            if len(known) < self._most:
                known += sequences[np.sort(rows)[: self._most - len(known)]].tolist()

    def table(self, stream: str, date: str) -> pa.RecordBatch:
        """Return a row for each subscription that was hit."""
        found = {
            "subscription": list(self._counts),
            "stream": [stream] * len(self._counts),
            "date": [date] * len(self._counts),
            "messages": list(self._counts.values()),
            "examples": list(self._examples.values()),
        }
        return _table(len(self._counts), found)


def _table(count: int, found: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [
        pa.array(found[field.name], field.type) if field.name in found else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _matches(plan: MatchPlan, parts: Iterator[HistoryPart | ExportDamage]) -> Iterator[pa.RecordBatch]:
    load_plugins()
    stream, date = "", ""
    matcher, hits = _Matcher(plan, stream), _Hits(plan)
    for part in parts:
        if isinstance(part, ExportDamage):
            yield _table(1, {name: [value] for name, value in part._asdict().items()})
            continue
        if (part.stream, part.date) != (stream, date):
            yield hits.table(stream, date)
            if part.stream != stream:
                matcher = _Matcher(plan, part.stream)
            stream, date, hits = part.stream, part.date, _Hits(plan)
        matcher.match(part.batch, hits)
    yield hits.table(stream, date)


class _Matcher:
    """The subscriptions to one stream."""

    def __init__(self, plan: MatchPlan, stream: str) -> None:
        self._names = plan.headers
        self._index = index_of(plan.subscriptions, stream)
        by_columns = self._index.needs_headers and plan.headers is not None
        self._columns = _Columns(plan, stream) if by_columns else None

    def match(self, batch: pa.RecordBatch, hits: _Hits) -> None:
        """Note the matching messages of a row group."""
        if self._columns is not None and batch.num_rows >= MESSAGES_EACH * len(self._index):
            self._columns.match(batch, hits)
            return
        results = self._by_message(batch) if self._index.needs_headers else self._by_subject(batch)
        sequences = batch.column("sequence").to_numpy()
        for groups, rows in results:
            keys = (key for group in groups for key in group.members)
            hits.add(keys, sequences, rows)  # type: ignore[arg-type]

    def _by_subject(self, batch: pa.RecordBatch) -> Iterator[tuple[Groups, Numbers]]:
        codes, subjects = _coded(batch)
        return _by_result(self._index.match_many(subjects), codes)

    def _by_message(self, batch: pa.RecordBatch) -> Iterator[tuple[Groups, Numbers]]:
        subjects, senders = (batch.column(name).to_pylist() for name in ("subject", "sender"))
        headers = decoded(batch.column("headers"), self._names)
        return _by_result(self._index.match_many(subjects, headers, senders), np.arange(batch.num_rows))


def _coded(batch: pa.RecordBatch) -> tuple[Numbers, list[str]]:
    column = batch.column("subject")
    return column.indices.to_numpy(), column.dictionary.to_pylist()


def _by_result(results: Sequence[Groups], codes: Numbers) -> Iterator[tuple[Groups, Numbers]]:
    """Yield each result with its rows, when a row has the result of its code."""
    distinct = list({id(result): result for result in results}.values())
    numbers = {id(result): number for number, result in enumerate(distinct)}
    of_codes = np.fromiter((numbers[id(result)] for result in results), np.int64, len(results))
    for number, rows in places_by(of_codes[codes], len(distinct)):
        if distinct[number]:
            yield distinct[number], rows


class _Columns:
    """The subscriptions to one stream, for row groups that are matched by columns.

    Selectors are filed in an index by those of their criteria that look at the subject alone, so selectors
    with the same ones get their rows together, and each evaluates its condition on them. Criteria on headers
    are evaluated on all rows.
    """

    def __init__(self, plan: MatchPlan, stream: str) -> None:
        self._index = Index()
        self._keys: dict[Selector, list[int]] = {}
        self._by_headers: dict[Selector, Expression] = {}
        for key, wanted in enumerate(plan.subscriptions):
            if wanted.stream in ("", stream):
                keys = self._keys.setdefault(wanted.selector, [])
                if not keys:
                    self._file(wanted.selector)
                keys.append(key)

    def _file(self, selector: Selector) -> None:
        by_subject = tuple(c for c in selector.criteria if not FAMILIES[c.family].needs_headers)
        by_headers = tuple(_header_criteria(selector) or ())
        where = parse_normal(selector.where) if selector.where else None
        if by_subject:
            self._index.add(selector, Selector(by_subject), where)
        if by_headers:
            self._by_headers[selector] = And((Or(by_headers), where)) if where else Or(by_headers)

    def match(self, batch: pa.RecordBatch, hits: _Hits) -> None:
        """Note the matching messages of a row group."""
        sequences = batch.column("sequence").to_numpy()
        for selector, found in self._found(batch):
            if len(found):
                hits.add(self._keys[selector], sequences, found)

    def _found(self, batch: pa.RecordBatch) -> Iterator[tuple[Selector, Numbers]]:
        """Yield selectors, and the rows of each."""
        rows = Rows(batch)
        by_subject: dict[Selector, Numbers] = {}
        for group, found in self._of_subjects(batch):
            for selector, where in group.members.items():
                held = found if where is None else found[rows.holding(where, found)]
                if selector in self._by_headers:
                    by_subject[selector] = held
                else:
                    yield selector, held
        everywhere = np.arange(batch.num_rows)
        for selector, expression in self._by_headers.items():
            mask = rows.holding(expression, everywhere)
            mask[by_subject.get(selector, _NOWHERE)] = True
            yield selector, np.flatnonzero(mask)

    def _of_subjects(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, Numbers]]:
        """Yield groups of the index, and the rows of each."""
        codes, subjects = _coded(batch)
        results = self._index.match_many(subjects)
        of: dict[int, list[Numbers]] = {}
        groups = {}
        for code, rows in places_by(codes, len(subjects)):
            for group in results[code]:
                groups[group.number] = group
                of.setdefault(group.number, []).append(rows)
        for number, pieces in of.items():
            yield groups[number], np.concatenate(pieces)


_NOWHERE = np.zeros(0, np.int64)


def decoded(headers: pa.MapArray, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return headers as maps, as the broker sees them; only those with the given names, if any."""
    keys, items = headers.keys, headers.items
    ends = headers.offsets.to_numpy()
    if names is not None:
        known = pc.is_in(keys.dictionary, pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
        mask = known[keys.indices.to_numpy()]
        kept = np.concatenate([[0], np.cumsum(mask)])
        keys, items, ends = keys.filter(pa.array(mask)), items.filter(pa.array(mask)), kept[ends]
    values = np.empty(len(keys), object)
    # Integers stand in two fields, and the later one counts.
    for kind in ("number", *(kind for kind in KINDS if kind != "number")):
        column = items.field(kind)
        there = column.is_valid()
        if column.null_count < len(column):
            values[there.to_numpy(zero_copy_only=False)] = _listed(column.filter(there))
    pairs = list(zip(_listed(keys), values.tolist(), strict=True))
    ends = ends.tolist()
    # A malformed record has no map, and so no headers.
    found = [dict(pairs[start:end]) for start, end in pairwise(ends)]
    for place in np.flatnonzero(headers.is_null().to_numpy(zero_copy_only=False)).tolist():
        found[place] = {}
    return found


def _listed(column: pa.Array) -> Any:
    """Return the values, as Python's; those of a dictionary are one object each."""
    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()
    return np.array(column.dictionary.to_pylist(), object)[column.indices.to_numpy()]
