"""Figures of measurements: medians, extents, percentiles, and processor time a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from malamute.bench.processes import Measured
from malamute.protocol.time_units import to_ms, to_seconds

MEBIBYTE = 1 << 20


def elapsed_seconds(first: Measured, last: Measured) -> float:
    """The time from the start of one workload to the end of another, or of the same."""
    return to_seconds(last["end_ns"] - first["start_ns"])


def us_each(seconds: float, count: int) -> float:
    """Microseconds for each of so many."""
    return seconds / count * 1e6


def cpu_us(seconds: float | None, messages: int) -> float | None:
    """Processor time in microseconds a message."""
    return None if seconds is None else round(us_each(seconds, messages), 2)


def percentile_ms(latencies: Sequence[int], share: float) -> float | None:
    """The latency, in order and in nanoseconds, that this share of them does not go past."""
    if not latencies:
        return None
    return round(to_ms(latencies[min(len(latencies) - 1, int(len(latencies) * share))]), 3)


def middle(values: Iterable[float]) -> float:
    """The median of several rounds, as it is shown."""
    return round(median(values), 3)


def extent(values: Iterable[float]) -> list[float]:
    """The least and the most of several rounds, as they are shown."""
    ordered = sorted(values)
    return [round(ordered[0], 3), round(ordered[-1], 3)]
