"""The broker's clock: seconds since the epoch, UTC, that are counted and never step.

Two things are asked of a clock: how long something takes, and what time it is. Durations (time to live, ack
deadlines, the expiry of sessions) go by seconds that are counted since the start, also while the host is
suspended; they begin with what the wall clock says then. What time it is says the wall clock, which somebody
may set, and may set wrong. So a step of it is reported at once and believed when it has stood for
`HOLD_SECONDS`; from then on the times of messages go by it. A wrong step that is mended before changes
nothing. No step, wrong or right, ends a duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from malamute.core.iteration.effects import ClockStep

STEP_MAX = 1.0
"""Seconds that the wall clock may differ before that is a step."""

HOLD_SECONDS = 600.0
"""How long a step must stand before it is believed."""

_COUNTED = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock that goes on while the host is suspended, where there is one."""


counted: Callable[[], float] = time.monotonic if _COUNTED is None else partial(time.clock_gettime, _COUNTED)
"""Seconds since some moment, which nobody can set."""


class Clock:
    """Call it for the time now; `look` now and then at the wall clock."""

    def __init__(self) -> None:
        self._offset = time.time() - counted()
        self._ahead = 0.0
        self._seen: float | None = None
        """The step that is not believed yet, in seconds."""
        self._seen_at = 0.0

    def __call__(self) -> float:
        """The time now."""
        return counted() + self._offset

    def look(self, now: float) -> ClockStep | None:
        """What there is to report of the wall clock."""
        # A turn of the loop may have taken long since `now`, and that is no step.
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
