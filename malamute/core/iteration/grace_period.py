"""The grace period of a start: nothing expires while the wall clock may be wrong.

While a broker runs its durations are counted (`malamute/server/clock.py`), and no step of the clock ends any.
Over a restart there is nothing to count by: the stored times are compared with the clock. If it is far ahead
of the newest of them, either no message came for long, or the clock is wrong. The operator who set it
wrongly, or the daemon that keeps the time, needs a while to mend that. So no earlier message expires during a
grace period: expired ones are held back, undelivered. If the clock was set back meanwhile, all get the time
back that they had lost.

The newest message does not tell when the last broker ran if a clock was ahead once and was set right: it has
a time that is still to come. So the clock is noted with each commit, and the note counts in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from malamute.core.iteration.effects import ClockStep, Effects
from malamute.core.iteration.timers import Timers
from malamute.errors import MalamuteError
from malamute.protocol.time_units import to_ns, to_seconds
from malamute.store.operations import PutValue, Recovered
from malamute.store.tables import CLOCK

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery

GRACE_SECONDS = 600.0
"""Seconds of a grace period, and the limit for a clock ahead of the last stored time without one."""

NOTE_AGAIN_SECONDS = 10.0
"""How long after the disk has refused a note of the clock the next one is stored."""

KEY = ("",)
"""The only key of the table."""

CLOCK_WORDS = {
    "stepped": "the wall clock was set; the times of messages follow when it has stood for a while",
    "returned": "the wall clock was set back to where it was",
    "corrected": "the wall clock was wrong at the start: what had ended by it goes on",
    "followed": "the times of messages follow the wall clock from now on",
}


def report_step(effects: Effects, what: str, seconds: float) -> None:
    """Report a change of the wall clock by an offset in seconds."""
    effects.notice(CLOCK_WORDS[what], seconds=seconds)
    effects.event(f"clock.{what}", seconds=seconds)


def newest_time(recovered: Recovered) -> int:
    """The newest time that was stored, in nanoseconds UTC; 0 if there is none."""
    streams = (state.time_ns for state in recovered.streams.values())
    queues = (state.messages[-1].time_ns for state in recovered.queues.values() if state.messages)
    return max((*streams, *queues), default=0)


def note_seconds() -> float:
    """For how long a note of the clock counts: the newest message may be later than the note by so much."""
    return GRACE_SECONDS / 2


def noted_time(recovered: Recovered) -> int:
    """The note of the clock, in nanoseconds UTC; 0 if an older version of Malamute has written all."""
    noted: int = recovered.table(CLOCK).get(KEY, 0)
    return noted


def last_time(recovered: Recovered) -> int:
    """When something was stored last, by the clock of then, in nanoseconds UTC; 0 if there is nothing."""
    newest, noted = newest_time(recovered), noted_time(recovered)
    return newest if not noted or 0 <= newest - noted <= to_ns(note_seconds()) else noted


class GracePeriod:
    """The grace period of one start, over at `until`, in seconds; 0 if there was none."""

    def __init__(self, effects: Effects, timers: Timers, over: Callable[[float], None]) -> None:
        """`over` gets the seconds by which `now` was wrong."""
        self.until = 0.0
        self._effects = effects
        self._timers = timers
        self.began = effects.time_ns
        self._over = over
        self._stepped = 0.0
        """The step of the clock that is not believed yet."""

    def begin(self, last: int) -> None:
        """Begin it if there is to be one: something was stored last at `last`, or never if that is 0."""
        if last and self._effects.now - to_seconds(last) > GRACE_SECONDS:
            self.until = self._effects.now + GRACE_SECONDS
            self._timers.at(self.until, self._end)

    def holds(self, time_ns: int) -> bool:
        """Whether nothing ends yet that was stored at a time in ns."""
        return self.until > 0 and time_ns < self.began

    @property
    def is_doubtful(self) -> bool:
        """Whether the clock of this start may still turn out to be wrong, or has and is followed later."""
        return self.until > 0 or self._stepped < 0

    def note(self, step: ClockStep) -> None:
        """The wall clock was set."""
        self._stepped = step.seconds if step.what == "stepped" else 0.0

    def _end(self) -> None:
        self.until = 0.0
        wrong = -(self._effects.ahead + self._stepped)
        if wrong > 0:
            self._over(wrong)


class ClockNote:
    """The note of the clock, which is stored with all else of an iteration that is `due` or later.

    So after any crash the note is as late as the last commit, but for `note_seconds`. While the clock is
    doubtful the note stays, but is no later than the start: the next start is to doubt it, too.
    """

    def __init__(self, effects: Effects, grace_period: GracePeriod) -> None:
        self._effects = effects
        self._grace_period = grace_period
        self._believed = effects.time_ns
        self.due = 0.0
        """In seconds since the epoch."""
        self.last = 0
        """When something was stored last before the start, as `last_time` has it."""

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Read the note of the clock, and begin a grace period if the clock may be wrong now."""
        self.last = last_time(recovered)
        self._grace_period.begin(self.last)
        start = self._effects.time_ns
        # A message of a later time was stored while the clock was ahead, or the clock is behind now.
        self._believed = min(self.last or start, start)
        noted = to_seconds(noted_time(recovered))
        self.due = noted + note_seconds() if noted <= self._effects.now else 0.0

    def store(self) -> None:
        """Store the note with this iteration."""
        if not self._grace_period.is_doubtful:
            self._believed = self._effects.time_ns
        self.due = self._effects.now + note_seconds()
        self._effects.stage.store(PutValue(CLOCK, KEY, self._believed))
        self._effects.stage.when_stored(self._stored, awaited=False)

    def _stored(self, error: MalamuteError | None) -> None:
        if error is not None:
            self.due = min(self.due, self._effects.now + NOTE_AGAIN_SECONDS)
