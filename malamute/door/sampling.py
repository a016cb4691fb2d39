"""One line of the log a second for each kind of thing: peers must not fill a disk with lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic

KINDS_MAX = 1_000
"""Different kinds that are counted."""


class Sampler:
    """Counts of frequent events, each reported once a second."""

    def __init__(self, timer: Callable[[], float] = monotonic) -> None:
        self._timer = timer
        self._waiting: Counter[str] = Counter()
        self._at: dict[str, float] = {}

    def count(self, kind: str) -> int:
        """Add an event. Returns the count to report now: 0 within a second of the last report."""
        now = self._timer()
        if kind not in self._at and len(self._at) >= KINDS_MAX:
            return 0
        self._waiting[kind] += 1
        if now < self._at.get(kind, now):
            return 0
        self._at[kind] = now + 1.0
        return self._waiting.pop(kind)
