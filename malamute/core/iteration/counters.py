"""Counts of a broker since its start, which `status` shows."""

from __future__ import annotations

from collections import Counter

from malamute.core.iteration.metrics import DurationTotal, RecentCount
from malamute.errors import StorageFull, TooMany, TryLater

NO_ROOM = frozenset({TryLater.code, TooMany.code, StorageFull.code})
"""Errors of commands that a limit refuses."""


class Counters:
    """The counts, each added to where it happens."""

    def __init__(self) -> None:
        self.iterations = DurationTotal()
        """Durations of iterations of the loop, without its waiting: the delay of all others."""
        self.switches: Counter[str] = Counter()
        """Switches of readers to live or to replay, by the state."""
        self.delivered: Counter[str] = Counter()
        """Messages sent to subscribers and consumers, by the kind of their source."""
        self.gaps: Counter[str] = Counter()
        """Gaps sent to readers, by the reason."""
        self.refusals: Counter[int] = Counter()
        """ERRORs sent to clients, by code."""
        self.refused_lately = RecentCount()
        """Recent ERRORs for want of room."""
        self.family_failures: Counter[str] = Counter()
        """Failures of families of patterns that are plug-ins, by name."""

    def refuse(self, code: int, now: float) -> None:
        """Count an ERROR that a client is sent."""
        self.refusals[code] += 1
        if code in NO_ROOM:
            self.refused_lately.add(now)
