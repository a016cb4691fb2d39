"""Partial aggregates of one row group: rows of sums, which Spark adds up.

All kinds of rows have the same columns, so that one reading of the files feeds all tables. A task adds up its
row groups as far as their sums can be added, and yields the others:

    kind      name       slot             the others
    prefix    prefix     window's start   messages, bytes
    sender    sender     window's start   messages, bytes
    subject   subject    -                messages, bytes, first_time, last_time
    window    -          window's start   messages
    run       -          duplicates       messages, bytes, first, last, first_time, last_time, count: of gaps
    gap       -          -                first, last: sequences that are not there
    span      sender     silent since     as `run`, and high: the longest silence; no count
    interval  sender     bucket           messages; for the whole stream, the name is null
    header    header     -                messages; of finite numbers: count, low, high, total, squares
    type      header     -                messages, first_time, last_time; value: text, integer, number, flag
                                          or none
    value     header     -                messages; value: as text
    rest      header     -                messages, of other values; high: the most that one of them has
    damage    path       row group        messages, as far as known; value: the reason

Doubles are sequences that are there again. Times and silences are in nanoseconds. `squares` is the sum of the
squared distances from the mean of these rows. Durations are counted in *buckets*, 16 to each doubling, so a
percentile is right to within 2.2 %, and a thousand numbers are enough however many durations there are (as in
HdrHistogram and DDSketch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.spark.scan import ExportDamage, HistoryPart, places_by, sorted_places
from malamute.spark.schema import KINDS

COLUMNS = ("sequence", "time_ns", "sender", "subject", "headers", "size")

_INTEGERS = ("slot", "messages", "bytes", "count", "first", "last", "first_time", "last_time")
_NUMBERS = ("low", "high", "total", "squares")
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("kind", "stream", "name", "value")]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in _NUMBERS]
)

EACH_DOUBLING = 16
"""Buckets of durations from one power of two to the next."""

VALUES_MAX = 250
"""Values of a header that one row group lists; others are only counted."""

SUMS = ("prefix", "sender", "subject", "window", "interval", "type", "value")
"""Kinds of rows of which those of several row groups can be added: messages and bytes, in an extent."""

ADDED = (("messages", "sum"), ("bytes", "sum"), ("first_time", "min"), ("last_time", "max"))

ROWS_MAX = 50_000
"""Maximum rows that a task holds before it yields them."""

Numbers = np.ndarray[Any, Any]


def partial_tables(
    parts: Iterator[HistoryPart | ExportDamage], window_ns: int, depth: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all row groups, added up. Prefixes of subjects have `depth` parts."""
    return added(_of_each(parts, window_ns, depth))


def _of_each(
    parts: Iterator[HistoryPart | ExportDamage], window_ns: int, depth: int
) -> Iterator[pa.RecordBatch]:
    for part in parts:
        if isinstance(part, ExportDamage):
            yield damage_row(part)
            continue
        part = _in_order(part)
        yield from _volumes(part, window_ns, depth)
        yield from _order(part)
        yield from _senders(part)
        yield from _headers(part)


def _in_order(part: HistoryPart) -> HistoryPart:
    """Sort by sequence; only overlapping files are out of order."""
    numbers = _ints(part.batch, "sequence")
    if (numbers[1:] >= numbers[:-1]).all():
        return part
    order = np.argsort(numbers, kind="stable")
    return part._replace(batch=part.batch.take(pa.array(order)))


def added(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, with those of `SUMS` and equal keys added up, in few batches."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count > ROWS_MAX:
            table = _sum(held)
            held, count = table.to_batches(), table.num_rows
            if count > ROWS_MAX // 2:
                yield from held
                held, count = [], 0
    if held:
        yield from _sum(held).to_batches()


def _sum(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    mask = pc.is_in(table.column("kind"), pa.array(SUMS))
    by = ["kind", "stream", "name", "value", "slot"]
    sums = table.filter(mask).group_by(by, use_threads=False)
    summed = sums.aggregate(ADDED).rename_columns([*by, *(name for name, _ in ADDED)])
    return pa.concat_tables(
        [table.filter(pc.invert(mask)), summed], promote_options="default"
    ).combine_chunks()


def damage_row(damage: ExportDamage) -> pa.RecordBatch:
    """Return a row for an unreadable part."""
    found = {"name": damage.path, "value": damage.reason, "slot": damage.row_group}
    columns = {column: [value] for column, value in found.items()}
    return rows("damage", damage.stream, 1, messages=[damage.messages], **columns)


def rows(kind: str, stream: str, many: int, /, **columns: Any) -> pa.RecordBatch:
    """Return rows of one kind; omitted columns are null."""
    given = {"kind": pa.repeat(kind, many), "stream": pa.repeat(stream, many), **columns}
    arrays = []
    for field in SCHEMA:
        array = given.get(field.name)
        if array is None:
            array = pa.nulls(many, field.type)
        elif not isinstance(array, pa.Array):
            array = pa.array(array, field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def buckets(durations: Numbers) -> Numbers:
    """Return the bucket of each duration: 0 for none, and then 16 for each doubling."""
    found = np.zeros(len(durations), np.int64)
    some = durations > 0
    found[some] = 1 + np.floor(np.log2(durations[some]) * EACH_DOUBLING).astype(np.int64)
    return found


def _ints(batch: pa.RecordBatch, name: str) -> Numbers:
    column: Numbers = batch.column(name).to_numpy(zero_copy_only=False)
    return column


def _codes(batch: pa.RecordBatch, name: str) -> tuple[Numbers, pa.Array]:
    column = batch.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.indices.to_numpy(), column.dictionary


def _tally(keys: Numbers, most: int, *weights: Numbers) -> tuple[Numbers, list[Numbers]]:
    """Return the occurring keys, their counts, and the sums of their weights; keys are below `most`."""
    if most > 4 * len(keys) + 1024:
        found, keys = np.unique(keys, return_inverse=True)
        return found, [_counts(keys, len(found), weight) for weight in (None, *weights)]
    counts = _counts(keys, most, None)
    found = np.flatnonzero(counts)
    return found, [counts[found], *(_counts(keys, most, weight)[found] for weight in weights)]


def _counts(keys: Numbers, most: int, weights: Numbers | None) -> Numbers:
    # Sums of sizes are exact: a row group is far from 2**53 bytes.
    return np.bincount(keys, weights, most).astype(np.int64)


def _volumes(part: HistoryPart, window_ns: int, depth: int) -> Iterator[pa.RecordBatch]:
    """Yield messages and bytes, by window and prefix, by window and sender, and by subject."""
    codes, names = _codes(part.batch, "subject")
    prefixes = pa.array([".".join(name.split(".", depth)[:depth]) for name in names.to_pylist()], pa.string())
    prefixes = prefixes.dictionary_encode()
    of_codes = prefixes.indices.to_numpy()
    yield _by_window(part, window_ns, "prefix", of_codes[codes], prefixes.dictionary)
    senders = _by_window(part, window_ns, "sender", *_codes(part.batch, "sender"))
    yield senders
    windows = {name: senders.column(name) for name in ("slot", "messages")}
    yield rows("window", part.stream, senders.num_rows, **windows)
    found, (counts, size_bytes) = _tally(codes, len(names), _ints(part.batch, "size"))
    times, first, last = _ints(part.batch, "time_ns"), *np.zeros((2, len(names)), np.int64)
    # Of several values for one place the last one stays.
    first[codes[::-1]], last[codes] = times[::-1], times
    columns = {"name": names.take(pa.array(found)), "messages": counts, "bytes": size_bytes}
    columns |= {"first_time": first[found], "last_time": last[found]}
    yield rows("subject", part.stream, len(found), **columns)


def _by_window(
    part: HistoryPart, window_ns: int, kind: str, codes: Numbers, names: pa.Array
) -> pa.RecordBatch:
    windows = _ints(part.batch, "time_ns") // window_ns
    begin = int(windows.min())
    keys = (windows - begin) * len(names) + codes
    most = (int(windows.max()) - begin + 1) * len(names)
    found, (counts, size_bytes) = _tally(keys, most, _ints(part.batch, "size"))
    columns = {
        "name": names.take(pa.array(found % len(names))),
        "slot": (found // len(names) + begin) * window_ns,
        "messages": counts,
        "bytes": size_bytes,
    }
    return rows(kind, part.stream, len(found), **columns)


def _order(part: HistoryPart) -> Iterator[pa.RecordBatch]:
    """Yield gaps in the sequences, and the times between messages."""
    batch, stream = part.batch, part.stream
    numbers, times = _ints(batch, "sequence"), _ints(batch, "time_ns")
    steps = np.diff(numbers)
    gaps = np.flatnonzero(steps > 1)
    ends = {
        "slot": [int((steps == 0).sum())],
        "messages": [len(numbers)],
        "bytes": [int(_ints(batch, "size").sum())],
        "first": numbers[:1],
        "last": numbers[-1:],
        "first_time": times[:1],
        "last_time": times[-1:],
        "count": [len(gaps)],
    }
    yield rows("run", stream, 1, **ends)
    if len(gaps):
        yield rows("gap", stream, len(gaps), first=numbers[gaps] + 1, last=numbers[gaps + 1] - 1)
    found, counts = np.unique(buckets(np.diff(times)), return_counts=True)
    if len(found):
        yield rows("interval", stream, len(found), slot=found, messages=counts)


def _senders(part: HistoryPart) -> Iterator[pa.RecordBatch]:
    """Yield the span of each sender, the times between its messages, and its longest silence."""
    batch = part.batch
    codes, names = _codes(batch, "sender")
    order = sorted_places(codes, len(names))
    codes, times, numbers = codes[order], _ints(batch, "time_ns")[order], _ints(batch, "sequence")[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = np.append(starts[1:], len(codes)) - 1
    steps = np.diff(times, append=times[-1:])
    steps[ends] = -1  # from the last message of a sender there is no step
    longest = np.maximum.reduceat(steps, starts)
    at = [start + int(steps[start : end + 1].argmax()) for start, end in zip(starts, ends, strict=True)]
    columns = {
        "name": names.take(pa.array(codes[starts])),
        "slot": times[at],
        "messages": ends - starts + 1,
        "bytes": np.add.reduceat(_ints(batch, "size")[order], starts, dtype=np.int64),
        "first": numbers[starts],
        "last": numbers[ends],
        "first_time": times[starts],
        "last_time": times[ends],
        "high": np.maximum(longest, 0).astype(float),
    }
    yield rows("span", part.stream, len(starts), **columns)
    inner = np.ones(len(codes), bool)
    inner[ends] = False
    places = buckets(steps[inner])
    if not len(places):
        return
    width = int(places.max()) + 1
    found, (counts,) = _tally(codes[inner] * np.int64(width) + places, width * len(names))
    names = names.take(pa.array(found // width))
    yield rows("interval", part.stream, len(found), name=names, slot=found % width, messages=counts)


def _headers(part: HistoryPart) -> Iterator[pa.RecordBatch]:
    """Yield the headers, with their types and values."""
    headers = part.batch.column("headers").drop_null()
    if not len(headers.keys):
        return
    fields: dict[str, pa.Array] = {kind: headers.items.field(kind) for kind in KINDS}
    # An integer stands as a number as well.
    fields["alone"] = pc.if_else(fields["integer"].is_null(), fields["number"], None)
    used = {kind: column for kind, column in fields.items() if column.null_count < len(column)}
    names = headers.keys.dictionary.to_pylist()
    of_rows = _ints(part.batch, "time_ns")[part.batch.column("headers").is_valid().to_numpy(False)]
    times = np.repeat(of_rows, np.diff(headers.offsets.to_numpy()))
    for code, places in places_by(headers.keys.indices.to_numpy(), len(names)):
        found = {kind: column.take(pa.array(places)) for kind, column in used.items()}
        extents = {kind: _extent(column, times[places]) for kind, column in found.items()}
        taken = {kind: column.drop_null() for kind, column in found.items()}
        yield from _header(part.stream, names[code], len(places), taken, extents)


def _extent(column: pa.Array, times: Numbers) -> tuple[int, int] | None:
    """Return the times of the first and the last value; None without one."""
    if not column.null_count:
        return int(times[0]), int(times[-1])
    places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    return (int(times[places[0]]), int(times[places[-1]])) if len(places) else None


def _header(
    stream: str,
    name: str,
    count: int,
    taken: dict[str, pa.Array],
    extents: dict[str, tuple[int, int] | None],
) -> Iterator[pa.RecordBatch]:
    summary = _summary(taken["number"]) if "number" in taken else {"count": [0]}
    yield rows("header", stream, 1, name=[name], messages=[count], **summary)
    typed: dict[str, Any] = {kind: taken.get("alone" if kind == "number" else kind, ()) for kind in KINDS}
    counts = {kind: len(values) for kind, values in typed.items()}
    counts["none"] = count - sum(counts.values())
    kinds = [kind for kind, count in counts.items() if count]
    columns = {"name": [name] * len(kinds), "value": kinds, "messages": [counts[kind] for kind in kinds]}
    extent = [extents.get("alone" if kind == "number" else kind) or (None, None) for kind in kinds]
    columns |= dict(zip(("first_time", "last_time"), zip(*extent, strict=True), strict=True))
    yield rows("type", stream, len(kinds), **columns)
    for values in filter(len, typed.values()):
        yield from _values(stream, name, values)


def _summary(column: pa.Array) -> dict[str, Any]:
    """Return the count, minimum, maximum, sum and squares of finite numbers."""
    numbers = column.to_numpy()
    if not np.isfinite(numbers).all():
        numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return {"count": [0]}
    return {
        "count": [len(numbers)],
        "low": [numbers.min()],
        "high": [numbers.max()],
        "total": [numbers.sum()],
        "squares": [float(numbers.var()) * len(numbers)],
    }


def _values(stream: str, name: str, column: pa.Array) -> Iterator[pa.RecordBatch]:
    found = column.value_counts()
    values, counts = found.field("values"), found.field("counts").to_numpy(zero_copy_only=False)
    if len(counts) > VALUES_MAX:
        order = np.argpartition(counts, -VALUES_MAX)
        listed, others = order[-VALUES_MAX:], counts[order[:-VALUES_MAX]]
        yield rows("rest", stream, 1, name=[name], messages=[int(others.sum())], high=[float(others.max())])
        values, counts = values.take(pa.array(listed)), counts[listed]
    columns = {"name": pa.repeat(name, len(counts)), "value": values.cast(pa.string()), "messages": counts}
    yield rows("value", stream, len(counts), **columns)
