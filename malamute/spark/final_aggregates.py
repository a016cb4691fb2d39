"""Final aggregates: rows of partial sums become rows of the tables.

A task gets rows of `partial_aggregates` and `analyze_events` that belong together: all of a name in a stream,
except of kinds that are only added up (`SPREAD`), of which equal rows are enough. Facts about all rows are in
`Known`. The task makes rows of these kinds:

    stream    -          messages, bytes, first, last, first_time, last_time, gaps, missing, duplicates,
                         crossed, most: messages of the fullest window; p50, p95, p99: from one message to
                         the next
    sender_total  sender messages, bytes, first_time, last_time, silence: the longest, slot: since when;
                         p50, p95, p99: from one message of the sender to the next
    header    header     messages, count, low, high, total, mean, deviation, and messages of each type
    value     header     messages; within: how many more there may be
    queue_time  queue    p50, p95, p99; and so `processing_time` and `total_time`
    gap       -          first, last, between row groups as well

and `prefix`, `sender`, `subject`, `interval`, `type`, `queue`, `event` and `consumer` added up, and `damage`
as it was. A stream is `crossed` when row groups hold the same sequences; then its gaps and duplicates are to
be found otherwise. Percentiles are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark.partial_aggregates import ADDED, EACH_DOUBLING, SCHEMA, buckets
from malamute.spark.schema import KINDS

PERCENTILES = (0.50, 0.95, 0.99)
TYPES = (*KINDS, "none")

TIMES = ("queue_time", "processing_time", "total_time")
SPREAD = ("prefix", "sender", "subject", "value", "queue", "event", "consumer", "gap")
"""Kinds of which the rows of a name may be divided among tasks by their `value`, `slot` and `first`."""

COUNTED = (*SPREAD[:-1], "interval", "type")
SUMMED = (*COUNTED, *TIMES)

PERCENTS = tuple(f"p{round(100 * share)}" for share in PERCENTILES)
_INTEGERS = ("gaps", "missing", "duplicates", "most", "silence", "within", *TYPES)
WHOLE = pa.schema(
    [
        *SCHEMA,
        *((name, pa.int64()) for name in _INTEGERS),
        *((name, pa.float64()) for name in ("mean", "deviation", *PERCENTS)),
        ("crossed", pa.bool_()),
    ]
)

Numbers = np.ndarray[Any, Any]


class Known(NamedTuple):
    """Of each stream its end and the messages of its fullest window; how many more of a header's values."""

    ends: Mapping[str, int]
    most: Mapping[str, int]
    within: Mapping[tuple[str, str], int]


def whole(batches: Iterable[pa.RecordBatch], known: Known) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tables."""
    table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    spans = _Grouped(_of(table, "run", "span"), ("stream", "name"), ("first", "last"))
    summed = _summed(pa.concat_tables([_of(table, *SUMMED), _steps(spans)]))
    times = _percentiles(_Grouped(_of(summed, "interval", *TIMES), ("kind", "stream", "name"), ("slot",)))
    apart = _of(times, "interval").select(["stream", "name", *PERCENTS])
    found = [
        _within(_of(summed, *COUNTED), known),
        _of(times, *TIMES),
        _of(table, "gap", "damage"),
        *_streams(table, apart, known),
        _senders(spans, apart, known),
        _headers(_of(table, "header", "type")),
    ]
    joined = pa.concat_tables([WHOLE.empty_table(), *found], promote_options="default")
    yield from joined.combine_chunks().to_batches()


class _Grouped:
    """Rows in order, those with equal keys side by side; where each group begins."""

    def __init__(self, table: pa.Table, keys: tuple[str, ...], order: tuple[str, ...] = ()) -> None:
        codes = np.zeros(table.num_rows, np.int64)
        for key in keys:
            column = table.column(key).combine_chunks().dictionary_encode()
            most = len(column.dictionary)
            codes = codes * (most + 1) + column.indices.fill_null(most).to_numpy(zero_copy_only=False)
        places = np.lexsort([*(_numbers(table, name) for name in reversed(order)), codes])
        self.rows = table.take(pa.array(places))
        self.starts = np.flatnonzero(np.diff(codes[places], prepend=-1))
        self.ends = np.append(self.starts, len(places))[1:] - 1

    def __getitem__(self, name: str) -> Numbers:
        return _numbers(self.rows, name)

    def each(self, function: np.ufunc, values: Numbers) -> Numbers:
        """Return the sum, the least, or the most of each group."""
        found: Numbers = function.reduceat(values, self.starts) if len(self.starts) else values[:0]
        return found

    def spread(self, values: Numbers) -> Numbers:
        """Return a value of each group for each of its rows."""
        return np.repeat(values, self.ends - self.starts + 1)

    def table(self, kind: str, keys: tuple[str, ...], columns: Mapping[str, Any]) -> pa.Table:
        """Return a row for each group."""
        firsts = self.rows.select(keys).take(pa.array(self.starts))
        kinds = pa.array([kind] * len(self.starts), pa.string())
        return pa.table({"kind": kinds, **dict(zip(keys, firsts.columns, strict=True)), **columns})


def _of(table: pa.Table, *kinds: str) -> pa.Table:
    return table.filter(pc.is_in(table.column("kind"), pa.array(kinds)))


def _numbers(table: pa.Table, name: str) -> Numbers:
    column: Numbers = table.column(name).combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    return column


def _summed(table: pa.Table) -> pa.Table:
    by, sums = ["kind", "stream", "name", "value", "slot"], [*ADDED, ("first", "sum"), ("last", "sum")]
    grouped = table.group_by(by, use_threads=False).aggregate(sums)
    return grouped.rename_columns([*by, *(name for name, _ in sums)])


def _within(table: pa.Table, known: Known) -> pa.Table:
    keys = zip(table.column("stream").to_pylist(), table.column("name").to_pylist(), strict=True)
    more = [known.within.get(key, 0) for key in keys] if known.within else np.zeros(table.num_rows, np.int64)
    return table.append_column("within", pa.array(more, pa.int64()))


# Durations


def _steps(spans: _Grouped) -> pa.Table:
    """Return the times between messages of a stream, or of a sender, from one row group to the next."""
    places = np.delete(np.arange(spans.rows.num_rows), spans.starts)
    steps = spans["first_time"][places] - spans["last_time"][places - 1]
    columns = {
        "kind": pa.repeat("interval", len(places)),
        **{name: spans.rows.column(name).take(pa.array(places)) for name in ("stream", "name")},
        "slot": buckets(steps),
        "messages": np.ones(len(places), np.int64),
    }
    table = pa.concat_tables([SCHEMA.empty_table(), pa.table(columns)], promote_options="default")
    return table.select(SCHEMA.names)


def _percentiles(counted: _Grouped) -> pa.Table:
    """Return percentiles in seconds, of durations in buckets."""
    messages = counted["messages"]
    up_to = np.cumsum(messages)
    up_to -= counted.spread((up_to - messages)[counted.starts])
    total = counted.spread(counted.each(np.add, messages))
    slots = counted["slot"]
    seconds = np.where(slots > 0, 2.0 ** ((slots - 0.5) / EACH_DOUBLING) / NS_PER_SECOND, 0.0)
    places = np.arange(len(slots))
    found = {
        name: seconds[counted.each(np.minimum, np.where(up_to >= share * total, places, len(places)))]
        for name, share in zip(PERCENTS, PERCENTILES, strict=True)
    }
    kinds = counted.rows.column("kind").take(pa.array(counted.starts))
    return counted.table("", ("stream", "name"), found).set_column(0, "kind", kinds)


# Streams and senders


def _streams(table: pa.Table, apart: pa.Table, known: Known) -> Iterator[pa.Table]:
    """Yield the streams, and the gaps between their row groups."""
    runs = _Grouped(_of(table, "run"), ("stream",), ("first", "last"))
    firsts, lasts = runs["first"], runs["last"]
    reached = np.concatenate(
        [
            np.maximum.accumulate(lasts[start : end + 1])
            for start, end in zip(runs.starts, runs.ends, strict=True)
        ]
        or [lasts]
    )
    later = np.delete(np.arange(len(firsts)), runs.starts)
    steps = np.ones(len(firsts), np.int64)
    steps[later] = firsts[later] - reached[later - 1]
    gaps = np.flatnonzero(steps > 1)
    yield pa.table(
        {
            "kind": pa.repeat("gap", len(gaps)),
            "stream": runs.rows.column("stream").take(pa.array(gaps)),
            "first": reached[gaps - 1] + 1,
            "last": firsts[gaps] - 1,
        }
    )
    messages, duplicates = (runs.each(np.add, runs[name]) for name in ("messages", "slot"))
    first, last = runs.each(np.minimum, firsts), runs.each(np.maximum, lasts)
    columns = {
        "messages": messages,
        "bytes": runs.each(np.add, runs["bytes"]),
        "first": first,
        "last": last,
        "first_time": runs.each(np.minimum, runs["first_time"]),
        "last_time": runs.each(np.maximum, runs["last_time"]),
        "gaps": runs.each(np.add, runs["count"] + (steps > 1)),
        "missing": last - first + 1 - (messages - duplicates),
        "duplicates": duplicates,
        "crossed": runs.each(np.minimum, steps) < 1,
    }
    names = runs.rows.column("stream").take(pa.array(runs.starts)).to_pylist()
    columns["most"] = pa.array([known.most[name] for name in names], pa.int64())
    streams = runs.table("stream", ("stream",), columns)
    apart = apart.filter(apart.column("name").is_null()).drop_columns("name")
    yield streams.join(apart, "stream", use_threads=False)


def _senders(spans: _Grouped, apart: pa.Table, known: Known) -> pa.Table:
    """Return the senders."""
    before, begins = spans["last_time"], spans["first_time"]
    following = np.roll(begins, -1)
    streams = spans.rows.column("stream").take(pa.array(spans.starts)).to_pylist()
    following[spans.ends] = [known.ends[stream] for stream in streams]
    within, since = spans["high"].astype(np.int64), spans["slot"]
    behind = following - before
    outside = (behind > within) | ((behind == within) & (before > since))
    lengths, since = np.where(outside, behind, within), np.where(outside, before, since)
    longest = spans.each(np.maximum, lengths)
    columns = {
        **{name: spans.each(np.add, spans[name]) for name in ("messages", "bytes")},
        "first_time": spans.each(np.minimum, begins),
        "last_time": spans.each(np.maximum, before),
        "silence": longest,
        "slot": spans.each(np.maximum, np.where(lengths == spans.spread(longest), since, 0)),
    }
    totals = spans.table("sender_total", ("stream", "name"), columns)
    senders = totals.filter(totals.column("name").is_valid())
    return senders.join(apart, ["stream", "name"], use_threads=False)


# Headers


def _headers(table: pa.Table) -> pa.Table:
    found = _Grouped(table, ("stream", "name"))
    kinds, values = (found.rows.column(name).to_numpy(zero_copy_only=False) for name in ("kind", "value"))
    messages, count, total = found["messages"], found["count"], found["total"]
    counts, totals = found.each(np.add, count), found.each(np.add, total)
    none = counts == 0
    means = totals / np.where(none, 1, counts)
    # The squares of all are those within each row group, and those of the distances between their means.
    own = total / np.where(count > 0, count, 1)
    squares = found.each(np.add, found["squares"] + count * (own - found.spread(means)) ** 2)
    some = pc.is_valid(found.rows.column("low")).to_numpy(zero_copy_only=False)
    columns = {
        "messages": found.each(np.add, np.where(kinds == "header", messages, 0)),
        "count": counts,
        "low": pa.array(found.each(np.minimum, np.where(some, found["low"], np.inf)), mask=none),
        "high": pa.array(found.each(np.maximum, np.where(some, found["high"], -np.inf)), mask=none),
        "total": pa.array(totals, mask=none),
        "mean": pa.array(means, mask=none),
        "deviation": pa.array(np.sqrt(squares / np.where(none, 1, counts)), mask=none),
        **{name: found.each(np.add, np.where(values == name, messages, 0)) for name in TYPES},
    }
    return found.table("header", ("stream", "name"), columns)
