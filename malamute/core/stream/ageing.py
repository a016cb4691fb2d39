"""Retention by age, of streams to which nothing comes: the store is notified when there is something to drop.

A published chunk drops the old messages of its stream, in its own transaction. Of a stream at rest the store
knows when its oldest chunk is too old, and the core has the clock. So the core asks the store how long that
is, waits, and has the writer drop as much as one transaction does; and then it asks again. There is one timer
for all streams of a store, and none if no stream of it has a limit by age.
"""

from __future__ import annotations

from math import inf

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timer, Timers
from malamute.errors import MalamuteError
from malamute.store.operations import NextTooOld, TrimByAge

STEP_SECONDS = 0.05
"""Seconds between two transactions that drop old messages, so that others come between, and the delay of
each."""

PAUSE_SECONDS = 1.0
"""Seconds between two transactions of which the later one drops messages that get too old meanwhile."""

RETRY_SECONDS = 10.0
"""After which it is tried again if the disk refuses that."""


class Ageing:
    """The schedule of dropping old messages in a store."""

    def __init__(self, effects: Effects, timers: Timers) -> None:
        self._effects = effects
        self._timers = timers
        self._timer: Timer | None = None
        self._due = inf

    def stored(self, age_seconds: float) -> None:
        """A chunk is in the store now, of a stream that keeps its messages for so long."""
        if self._effects.now + age_seconds < self._due:
            self._set(max(age_seconds, PAUSE_SECONDS))

    def look(self) -> None:
        """Ask the store when the first chunk is too old."""
        self._effects.ask(NextTooOld(self._effects.time_ns), self._found, self._retry)

    def look_when_stored(self) -> None:
        """The same when this iteration is stored: it sets how much is kept of a stream."""
        self._effects.stage.when_stored(lambda error: self.look(), awaited=False)

    def _found(self, seconds: float | None) -> None:
        if seconds is not None:
            wait = max(seconds, PAUSE_SECONDS) if seconds > 0 else 0.0
            if self._effects.now + wait < self._due:
                self._set(wait)

    def _retry(self, error: MalamuteError) -> None:
        self._set(RETRY_SECONDS)

    def _set(self, seconds: float) -> None:
        self._timers.cancel(self._timer)
        # A moment too early would be a transaction for nothing.
        self._due = self._effects.now + seconds + STEP_SECONDS
        self._timer = self._timers.at(self._due, self._trim)

    def _trim(self) -> None:
        self._due = inf
        self._effects.stage.store(TrimByAge(self._effects.time_ns))
        self._effects.stage.when_stored(self._trimmed, awaited=False)

    def _trimmed(self, error: MalamuteError | None) -> None:
        if error is None:
            self.look()
        else:
            self._retry(error)
