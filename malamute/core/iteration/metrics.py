"""How long things take and how often they happen, in fixed memory.

A `Histogram` counts durations in buckets whose limits grow by the same factor, so a quantile is right to
within 5 % of itself wherever it lies. A bucket that is not used takes nothing, and there are fewer than
300 of them. Two histograms take turns, so that the figures are of the last minutes, not of all time.

A `DurationTotal` sums durations since the start, for a reader that looks now and then and takes the
difference.

A `Rate` weighs the window before with its remaining part, which needs no list of times.

Sources: the log-spaced buckets are those of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable
quantile sketch with relative-error guarantees", VLDB 2019); the rate is the usual sliding window counter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log
from typing import Any, Protocol

from malamute.protocol.time_units import to_seconds

ERROR = 0.05
"""How far a quantile may be off, as a part of itself."""

SHORTEST, LONGEST = 1e-6, 1e6
"""Seconds; shorter or longer durations count as these."""

WINDOW_SECONDS = 60.0
"""Quantiles are of the last one to two windows."""

RATE_SECONDS = 10.0
"""The window of a rate."""

SAMPLES = 32
"""Of more messages than this that are settled at once, some are measured for all."""

_GAMMA = (1 + ERROR) / (1 - ERROR)
_LOG_GAMMA = log(_GAMMA)


class Histogram:
    """Durations in seconds, of the last one or two windows."""

    __slots__ = ("_buckets", "_former", "_until")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._former: Counter[int] = Counter()
        self._until = 0.0

    def add(self, seconds: float, count: int, now: float) -> None:
        """Count a duration, `count` times."""
        if now >= self._until:
            self._turn_over(now)
        seconds = min(max(seconds, SHORTEST), LONGEST)
        self._buckets[ceil(log(seconds) / _LOG_GAMMA)] += count

    def quantiles(self, *shares: float, now: float) -> list[float | None]:
        """For each share the duration that so many of all do not exceed; None when nothing was counted."""
        if now >= self._until:
            self._turn_over(now)
        if not (self._buckets or self._former):
            return [None] * len(shares)
        buckets = sorted((self._buckets + self._former).items())
        below = [*accumulate(count for _, count in buckets)]
        ranks = (share * (below[-1] - 1) for share in shares)
        return [2 * _GAMMA ** buckets[bisect_right(below, rank)][0] / (_GAMMA + 1) for rank in ranks]

    def _turn_over(self, now: float) -> None:
        recent = now < self._until + WINDOW_SECONDS
        self._former = self._buckets if recent else Counter()
        self._buckets = Counter()
        self._until = now + WINDOW_SECONDS


class DurationTotal:
    """Durations in seconds: how many, their sum since the start, and the longest of one or two windows."""

    __slots__ = ("_former", "_longest", "_until", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._longest = self._former = 0.0
        self._until = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Count a duration. Less than none, as by a clock that was set, counts as none."""
        if now >= self._until:
            self._turn_over(now)
        self.count += 1
        if seconds > 0:
            self.seconds += seconds
            if seconds > self._longest:
                self._longest = seconds

    def row(self, now: float) -> dict[str, Any]:
        """All of it; the longest is 0 when nothing was measured."""
        if now >= self._until:
            self._turn_over(now)
        longest = max(self._longest, self._former)
        return {"count": self.count, "seconds": self.seconds, "longest_seconds": longest}

    def _turn_over(self, now: float) -> None:
        self._former = self._longest if now < self._until + WINDOW_SECONDS else 0.0
        self._longest = 0.0
        self._until = now + WINDOW_SECONDS


class RecentCount:
    """How often something happened in the last one or two windows."""

    __slots__ = ("_count", "_former", "_until")

    def __init__(self) -> None:
        self._count = self._former = 0
        self._until = 0.0

    def add(self, now: float) -> None:
        """Count one more."""
        if now >= self._until:
            self._turn_over(now)
        self._count += 1

    def count(self, now: float) -> int:
        """The number of times."""
        if now >= self._until:
            self._turn_over(now)
        return self._count + self._former

    def _turn_over(self, now: float) -> None:
        self._former = self._count if now < self._until + WINDOW_SECONDS else 0
        self._count = 0
        self._until = now + WINDOW_SECONDS


class Rate:
    """How often something happens, in times a second over about the last window."""

    __slots__ = ("_count", "_former", "_since")

    def __init__(self) -> None:
        self._count = self._former = 0
        self._since = 0.0

    def add(self, count: int, now: float) -> None:
        """Add `count` occurrences."""
        if now >= self._since + RATE_SECONDS:
            self._turn_over(now)
        self._count += count

    def each_second(self, now: float) -> float:
        """Times a second."""
        if now >= self._since + RATE_SECONDS:
            self._turn_over(now)
        left = 1 - (now - self._since) / RATE_SECONDS
        return (self._former * left + self._count) / RATE_SECONDS

    def _turn_over(self, now: float) -> None:
        recent = now < self._since + 2 * RATE_SECONDS
        self._former = self._count if recent else 0
        self._count = 0
        # Windows follow each other without a gap while something happens.
        self._since = self._since + RATE_SECONDS if recent else now


class Timed(Protocol):
    """A message, as far as its times go: 0 if it was not delivered."""

    time_ns: int
    first_delivered_at: float
    last_delivered_at: float


class QueueMetrics:
    """The metrics of one queue: messages in and out a second, and their durations."""

    __slots__ = ("arrivals", "processing_time", "queue_time", "settlements")

    def __init__(self) -> None:
        self.arrivals = Rate()
        self.settlements = Rate()
        self.queue_time = Histogram()
        """From when a message came to its first delivery."""
        self.processing_time = Histogram()
        """From its last delivery to the end."""

    def settled(self, messages: Sequence[Timed], now: float, ahead: float) -> None:
        """Messages have left for good, `now` in seconds; their `time_ns` is of a clock that is `ahead`."""
        self.settlements.add(len(messages), now)
        if len(messages) == 1:
            (message,) = messages
            self._add(message.time_ns, message.first_delivered_at, message.last_delivered_at, 1, now, ahead)
            return
        step = 1 + len(messages) // SAMPLES
        # All that was dispatched in one iteration has one time, so there are few different ones.
        times: dict[tuple[int, float, float], int] = {}
        for message in messages[::step]:
            key = (message.time_ns, message.first_delivered_at, message.last_delivered_at)
            times[key] = times.get(key, 0) + 1
        for (queued_ns, first, last), count in times.items():
            self._add(queued_ns, first, last, count, now, ahead)

    def _add(self, queued_ns: int, first: float, last: float, count: int, now: float, ahead: float) -> None:
        if last:
            self.processing_time.add(now - last, count, now)
        if first:
            self.queue_time.add(max(0.0, first + ahead - to_seconds(queued_ns)), count, now)

    def row(self, now: float) -> dict[str, Any]:
        """All of it: rates are of a second, and the quantiles None when nothing was measured."""
        row: dict[str, Any] = {
            "arrival_rate": self.arrivals.each_second(now),
            "settled_rate": self.settlements.each_second(now),
        }
        for name, histogram in (
            ("queue_time", self.queue_time),
            ("processing_time", self.processing_time),
        ):
            p50, p99 = histogram.quantiles(0.5, 0.99, now=now)
            row[f"{name}_p50_ms"] = p50 * 1000 if p50 is not None else None
            row[f"{name}_p99_ms"] = p99 * 1000 if p99 is not None else None
        return row
