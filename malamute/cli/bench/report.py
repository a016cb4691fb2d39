"""One row for each benchmark, and the columns in which rows are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from malamute.cli.bench.machine import Watch
from malamute.cli.bench.stage import Measured
from malamute.cli.tables import show_table

MEBIBYTE = 1 << 20


class Row(NamedTuple):
    """What was measured. None is what does not apply, or is not known.

    `per_second` counts deliveries where there are any. Latencies are in milliseconds, processor time in
    microseconds a message (of the broker, and of whoever sends and receives), memory in MiB.
    """

    what: str
    messages: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    broker_cpu_us: float | None
    sender_cpu_us: float | None
    receiver_cpu_us: float | None
    rss_anon_max_mib: float | None
    missing: int


def row_of(
    what: str, messages: int, deliveries: int, watch: Watch, sender: Measured, receiver: Measured
) -> Row:
    """The row for what a sender and a receiver measured; they are the same where there is no receiver."""
    seconds = (receiver["end_ns"] - sender["start_ns"]) / 1e9
    latencies = sorted(receiver.get("latencies", ()))
    memory = watch.anonymous_bytes
    return Row(
        what=what,
        messages=messages,
        per_second=round(deliveries / seconds, 1),
        p50_ms=percentile_ms(latencies, 0.50),
        p99_ms=percentile_ms(latencies, 0.99),
        broker_cpu_us=each_us(watch.cpu_seconds, messages),
        sender_cpu_us=each_us(sender.get("cpu_seconds"), messages),
        receiver_cpu_us=None if receiver is sender else each_us(receiver.get("cpu_seconds"), messages),
        rss_anon_max_mib=None if memory is None else round(memory / MEBIBYTE, 1),
        missing=deliveries - receiver.get("received", deliveries),
    )


def each_us(seconds: float | None, messages: int) -> float | None:
    """Processor time in microseconds a message."""
    return None if seconds is None else round(seconds / messages * 1e6, 2)


def percentile_ms(latencies: Sequence[int], share: float) -> float | None:
    """The latency, in order and in nanoseconds, that this share of them does not go past."""
    if not latencies:
        return None
    return round(latencies[min(len(latencies) - 1, int(len(latencies) * share))] / 1e6, 3)


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    columns = (
        "",
        "messages",
        "msg/s",
        "p50 ms",
        "p99 ms",
        "broker µs",
        "sender µs",
        "receiver µs",
        "MiB",
        "missing",
    )
    cells = [[row.what, *map(_cell, row[1:])] for row in rows]
    show_table(columns, cells, [False] + [True] * (len(columns) - 1))


def middle(values: Iterable[float]) -> float:
    """The median of several rounds, as it is shown."""
    return round(median(values), 3)


def extent(values: Iterable[float]) -> list[float]:
    """The least and the most of several rounds, as they are shown."""
    ordered = sorted(values)
    return [round(ordered[0], 3), round(ordered[-1], 3)]


def show_figures(rows: Sequence[Any]) -> None:
    """Print rows of a kind of their own, named tuples, as a table: its columns are their fields."""
    columns = rows[0]._fields
    right = [not isinstance(value, str) for value in rows[0]]
    show_table(["" if name == "what" else name for name in columns], [[*map(_cell, r)] for r in rows], right)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " to ".join(map(_cell, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"
