"""The tables of an analysis: volume, order, senders, headers and queues.

Every table is a query in SQL that Spark and DuckDB both run (an `Engine`), over the rows of
`final_aggregates`:

    streams         messages, bytes, rates, gaps, duplicates, and how far apart messages are
    volume          messages and bytes of each window and subject prefix
    subjects        messages and bytes of each subject, and when there were any
    growth          subjects that are new in each window, and how many there are then
    senders         the same of each sender, how far apart its messages are, and its longest silence
    sender_volume   messages and bytes of each window and sender
    intervals       how often messages were how far apart: the buckets behind the percentiles
    gaps            ranges of sequences that are not there
    headers         how many of which type; minimum, maximum, mean and deviation of numbers
    header_values   the most frequent values
    schema          types of each header, and when there were any
    changes         types of headers that came later than the stream, or are there no longer
    queues          services and mailboxes: how often which outcome, and redeliveries    ┐
    queue_times     queue time, processing time, and the total of both                   │ from `$sys`
    settlements     messages settled in each window, and how long they waited and lasted │
    consumers       subscriptions that fell behind or missed something                   │
    lag             the same in each window                                              │
    events          counts of events                                                     ┘
    damage          unreadable parts
    measures        numbers that the caller has asked for, each by groups of its own

A type of a header is a *change* when its stream had none before, or after, for a window and `LATE` times as
long as there was from one to the next. A sender is *late* when its longest silence, the one that lasts to the
end of its stream included, is `LATE` times as long as 99 of 100 others of its silences, and a window long at
least: silences too short for the report are not late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from malamute.errors import InvalidValue
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark import analyze_events, partial_aggregates
from malamute.spark.final_aggregates import PERCENTS, TYPES, Known
from malamute.spark.scan import ExportedHistory, Function, HistoryBounds, Piece

LATE = 10


class Engine(Protocol):
    """A runner of SQL: Spark or DuckDB. A query has the names of its tables in braces."""

    @property
    def div(self) -> str:
        """Return the operator that divides integers."""

    def sql(self, query: str, /, **tables: Any) -> Any:
        """Return the result of a query, as a table. Raises `InvalidValue` for a wrong one."""

    def rows(self, table: Any) -> list[dict[str, Any]]:
        """Return the rows of a small table."""

    def messages(self, streams: Sequence[str] = ()) -> Any:
        """Return the messages of some streams, or of all, as a table."""


class AnalyzeOptions(NamedTuple):
    """The selection and resolution of an analysis. `depth` is in parts of a subject."""

    bounds: HistoryBounds = HistoryBounds()
    window_seconds: int = 60
    depth: int = 1
    measures: tuple[str, ...] = ()


class Measure(NamedTuple):
    """A number to be summed by groups: expressions in SQL on the columns of the history."""

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

Tables = Mapping[str, Any]
"""The tables of an engine, by name."""


def seconds(column: str, name: str) -> str:
    """Return a column of nanoseconds as a time."""
    return f"timestamp_micros({column} {{div}} 1000) as {name}"


_EXTENT = (seconds("first_time", "begin"), seconds("last_time", "end"))
_SUMS = ("messages", "bytes")
_PER_SECOND = f"messages * {NS_PER_SECOND} / (last_time - first_time)"


def _sum(column: str, name: str = "") -> str:
    return f"cast(sum({column}) as bigint) as {name or column}"


_BEHIND = (_sum("first", "fell_behind"), _sum("last", "gaps"), _sum("messages", "missed"))
_MEANS = (("first", "mean_wait"), ("last", "mean_total"))
_SILENCE = f"silence / {NS_PER_SECOND}"

TABLES = {
    "streams": (
        "kind = 'stream'",
        *("stream", *_SUMS, "first", "last", "most / {window} as peak_per_second"),
        *("gaps", "missing", "duplicates", *PERCENTS),
        f"if(last_time > first_time, {_PER_SECOND}, null) as per_second",
        *_EXTENT,
    ),
    "volume": ("kind = 'prefix'", "stream", seconds("slot", "window"), "name as prefix", *_SUMS),
    "subjects": ("kind = 'subject'", "stream", "name as subject", *_SUMS, *_EXTENT),
    "senders": (
        "kind = 'sender_total'",
        *("stream", "name as sender", *_SUMS, *_EXTENT, *PERCENTS),
        *(f"{_SILENCE} as longest_silence", seconds("slot", "silent_since")),
        f"coalesce({_SILENCE} > {LATE} * p99 and {_SILENCE} >= {{window}}, false) as late",
    ),
    "sender_volume": ("kind = 'sender'", "stream", seconds("slot", "window"), "name as sender", *_SUMS),
    "intervals": ("kind = 'interval'", "stream", "name as sender", "slot as bucket", "messages"),
    "gaps": ("kind = 'gap'", "stream", "first", "last", "last - first + 1 as messages"),
    "headers": (
        "kind = 'header'",
        *("stream", "name as header", "messages", "count as numbers"),
        *("low", "high", "mean", "deviation", "total", *TYPES),
    ),
    "header_values": ("kind = 'value'", "stream", "name as header", "value", "messages", "within"),
    "schema": ("kind = 'type'", "stream", "name as header", "value as type", "messages", *_EXTENT),
    "queues": (
        "kind = 'queue' group by name, value",
        *("name as queue", "value as outcome", _sum("messages"), _sum("bytes", "redeliveries")),
    ),
    "settlements": (
        "kind = 'queue' group by name, value, slot",
        *("name as queue", seconds("slot", "window"), "value as outcome", _sum("messages")),
        *(f"cast(sum({at}) as double) / 1000 / sum(messages) as {name}" for at, name in _MEANS),
    ),
    "queue_times": (
        "kind in ('queue_time', 'processing_time', 'total_time')",
        "name as queue",
        "kind as time",
        *PERCENTS,
    ),
    "consumers": (
        "kind = 'consumer' group by name, value",
        *("name as stream", "value as consumer", *_BEHIND),
    ),
    "lag": (
        "kind = 'consumer' group by name, value, slot",
        *("name as stream", seconds("slot", "window"), "value as consumer", *_BEHIND),
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

GROWTH = f"""
    select stream, {seconds("slot", "window")}, new,
        cast(sum(new) over (partition by stream order by slot) as bigint) as subjects
    from (
        select stream, first_time - first_time % {{window_ns}} as slot, count(*) as new
        from {{rows}} where kind = 'subject' group by 1, 2
    ) as begun
"""
CHANGES = f"""
    select stream, header, type, change, {seconds("moment", "time")} from (
        select typed.stream as stream, typed.name as header, typed.value as type, change,
            if(change = 'came', typed.first_time, typed.last_time) as moment,
            if(change = 'came', typed.first_time - whole.first_time, whole.last_time - typed.last_time)
                as away,
            (typed.last_time - typed.first_time) / typed.messages as step
        from {{rows}} as typed join {{rows}} as whole on whole.stream = typed.stream
        cross join (select 'came' as change union all select 'left' as change) as both_ways
        where typed.kind = 'type' and whole.kind = 'stream'
    ) as found
    where away >= {{window_ns}} and away > {LATE} * step
"""
DERIVED = {"growth": GROWTH, "changes": CHANGES}
"""Tables that are more than a choice of rows."""

KNOWN = """
    select kind, stream, name, cast(sum(many) as bigint) as many, max(till) as till, max(high) as high,
        max(messages) as most
    from (
        select kind, stream, if(kind = 'rest', name, null) as name, if(kind = 'window', slot, null) as place,
            count(*) as many, max(last_time) as till, sum(high) as high,
            cast(sum(messages) as bigint) as messages
        from {parts} group by 1, 2, 3, 4
    ) as found
    group by kind, stream, name
"""

# With the same sequences in two files, a gap in one may be filled by the other.
NUMBERS = "select stream, sequence, count(*) - 1 as copies from {messages} group by stream, sequence"
MISSED = """
    select stream, sequence + 1 as first, after - 1 as last, after - sequence - 1 as messages
    from (
        select stream, sequence, lead(sequence) over (partition by stream order by sequence) as after
        from {numbers}
    ) as steps
    where after > sequence + 1
"""
COUNTS = """
    select copied.stream as whose, copies, coalesce(found, 0) as found, coalesce(lost, 0) as lost
    from (select stream, cast(sum(copies) as bigint) as copies from {numbers} group by stream) as copied
    left join (
        select stream, count(*) as found, cast(sum(messages) as bigint) as lost from {missed} group by stream
    ) as counted on counted.stream = copied.stream
"""
EXACT = {"gaps": "found", "missing": "lost", "duplicates": "copies"}
EXACT_GAPS = """
    select * from {gaps} where stream not in (select whose from {counts}) union all select * from {missed}
"""

MEASURE = """
    select {names}, count(*) as messages, sum(number) as total, mean(number) as mean, min(number) as low,
        max(number) as high, stddev_pop(number) as deviation
    from (select {groups}, cast({number} as double) as number from {{messages}}) as measured
    where number is not null group by {names} order by {names}
"""


def folds(
    history: ExportedHistory, options: AnalyzeOptions
) -> Iterator[tuple[Sequence[Piece], Sequence[str], Function]]:
    """Yield the work of the tasks: files, the columns to read, and the function of their row groups."""
    window_ns = options.window_seconds * NS_PER_SECOND
    yield (
        history.pieces,
        partial_aggregates.COLUMNS,
        lambda found: partial_aggregates.partial_tables(found, window_ns, options.depth),
    )
    if system := history.of(analyze_events.STREAM):
        work = partial(analyze_events.partial_tables, window_ns=window_ns)
        yield system, analyze_events.COLUMNS, work


def known(engine: Engine, parts: Any) -> tuple[Known, int]:
    """Return the facts about all rows of `partial_aggregates`, and the number of those for `whole`."""
    rows = engine.rows(engine.sql(KNOWN, parts=parts))
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in ("run", "window", "rest")}
    facts = Known(
        {row["stream"]: row["till"] for row in of["run"]},
        {row["stream"]: row["most"] for row in of["window"]},
        {(row["stream"], row["name"]): int(row["high"]) for row in of["rest"]},
    )
    return facts, sum(row["many"] for row in rows if row["kind"] != "window")


def tables(engine: Engine, rows: Any, options: AnalyzeOptions) -> Tables:
    """Return all tables, by name, from the rows of `final_aggregates`. Raises `InvalidValue`."""
    made = {}
    for name, (condition, *columns) in TABLES.items():
        shown = ", ".join(columns).format(window=options.window_seconds, div=engine.div)
        made[name] = engine.sql(f"select {shown} from {{rows}} where {condition}", rows=rows)
    for name, query in DERIVED.items():
        shown = query.format(window_ns=options.window_seconds * NS_PER_SECOND, div=engine.div, rows="{rows}")
        made[name] = engine.sql(shown, rows=rows)
    crossed = engine.rows(engine.sql("select stream from {rows} where crossed", rows=rows))
    if crossed:
        made |= _exact(engine, made, [row["stream"] for row in crossed])
    measures = map(Measure.parse, options.measures)
    return made | {f"measure_{measure.name}": measured(engine, measure) for measure in measures}


def _exact(engine: Engine, made: Tables, crossed: Sequence[str]) -> Tables:
    """Return the tables with exact gaps and duplicates of some streams, out of all their sequences."""
    numbers = engine.sql(NUMBERS, messages=engine.messages(crossed))
    missed = engine.sql(MISSED, numbers=numbers)
    counts = engine.sql(COUNTS, numbers=numbers, missed=missed)
    names = [column.split()[-1] for column in TABLES["streams"][1:]]
    columns = (
        f"coalesce({EXACT[name]}, {name}) as {name}" if name in EXACT else f"`{name}`" for name in names
    )
    joined = f"select {', '.join(columns)} from {{streams}} left join {{counts}} on whose = stream"
    return {
        "streams": engine.sql(joined, streams=made["streams"], counts=counts),
        "gaps": engine.sql(EXACT_GAPS, gaps=made["gaps"], counts=counts, missed=missed),
    }


def measured(engine: Engine, measure: Measure) -> Any:
    """Return the table of a measure. Raises `InvalidValue`."""
    names = ", ".join(name for name, _ in measure.groups)
    groups = ", ".join(f"{of} as {name}" for name, of in measure.groups)
    query = MEASURE.format(names=names, groups=groups, number=measure.number)
    try:
        return engine.sql(query, messages=engine.messages())
    except InvalidValue as error:
        raise InvalidValue(f"invalid measure {measure.name!r}: {error.text}") from error
