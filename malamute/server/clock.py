"""Clock of the broker: seconds since the epoch, UTC, that are counted and never step.

A clock has two uses: durations, and the time of day. Durations (time to live, ack deadlines, the expiry of
sessions) are seconds counted since the start, also while the host is suspended; the count begins with the
wall clock at the start. The time of day is that of the wall clock, which an operator may set, and may set
wrong. So a step of the wall clock is reported at once and believed after `HOLD_SECONDS`; from then on the
times of messages follow it. A wrong step that is corrected before has no effect. No step ends a duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from malamute.core.iteration.effects import ClockStep

STEP_MAX = 1.0
"""Difference of the wall clock, in seconds, that is a step."""

HOLD_SECONDS = 600.0
"""Time until a step is believed."""

_COUNTED = getattr(time, "CLOCK_BOOTTIME", None)
"""Clock that counts while the host is suspended, where there is one."""


counted: Callable[[], float] = time.monotonic if _COUNTED is None else partial(time.clock_gettime, _COUNTED)
"""Return seconds since some moment, by a clock that cannot be set."""


class Clock:
    """Counted time; call it for the time now, and `look` now and then at the wall clock."""

    def __init__(self) -> None:
        self._offset = time.time() - counted()
        self._ahead = 0.0
        self._seen: float | None = None
        """Step that is not believed yet, in seconds."""
        self._seen_at = 0.0

    def __call__(self) -> float:
        """Return the time now."""
        return counted() + self._offset

    def look(self, now: float) -> ClockStep | None:
        """Return a step of the wall clock to report."""
        # An iteration of the loop may have taken long since `now`, and that is no step.
        differs = time.time() - self() - self._ahead
        if abs(differs) <= STEP_MAX:
            if self._seen is None:
                return None
            gone, self._seen = self._seen, None
            return ClockStep("returned", -gone, self._ahead)
        if self._seen is None or abs(differs - self._seen) > STEP_MAX:
            self._seen, self._seen_at = differs, now
            return ClockStep("stepped", differs, self._ahead)
        if now < self._seen_at + HOLD_SECONDS:
            return None
        self._seen = None
        self._ahead += differs
        return ClockStep("followed", differs, self._ahead)
