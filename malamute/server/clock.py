"""The broker's clock: seconds since the epoch, UTC, that never go back."""

from __future__ import annotations

import time

STEP_MAX = 1.0
"""Seconds that the wall clock may differ before it is followed."""


class Clock:
    """The monotonic clock, set to UTC. A step of the wall clock is followed if it goes forward."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """The time now."""
        monotonic, wall = time.monotonic(), time.time()
        if wall - monotonic > self._offset + STEP_MAX:
            self._offset = wall - monotonic
        return monotonic + self._offset
