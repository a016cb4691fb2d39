"""The grace period of a start: nothing expires while the wall clock may be wrong.

While a broker runs its durations are counted (`malamute/server/clock.py`), and no step of the clock ends any.
Over a restart there is nothing to count by: the times that were stored are compared with what the clock says.
If it is far ahead of the newest of them, either no message came for long, or the clock is wrong. Whoever set
it wrongly, or the daemon that keeps the time, needs a while to mend that. So nothing that was stored before
expires during a grace period: what would be over is kept back, and delivered to nobody. If the clock was set
back meanwhile, all get the time back that they had lost.
"""

from __future__ import annotations

from collections.abc import Callable

from malamute.core.effects import ClockStep, Effects
from malamute.core.timers import Timers
from malamute.protocol.time_units import to_seconds
from malamute.store.operations import Recovered

GRACE_SECONDS = 600.0
"""How long a grace period lasts, and how far the clock may be ahead of the newest message without any."""


def newest_time(recovered: Recovered) -> int:
    """The newest time that was stored, in nanoseconds UTC; 0 if there is none."""
    streams = (state.time_ns for state in recovered.streams.values())
    queues = (state.messages[-1].time_ns for state in recovered.queues.values() if state.messages)
    return max((*streams, *queues), default=0)


class GracePeriod:
    """The grace period of one start. It is over at `until`, in seconds; 0 if there was none."""

    def __init__(self, effects: Effects, timers: Timers, newest: int, over: Callable[[float], None]) -> None:
        """`newest` is the newest time that was stored; `over` gets the seconds by which it was wrong."""
        self.until = 0.0
        self._effects = effects
        self.began = effects.time_ns
        self._over = over
        self._stepped = 0.0
        """The step of the clock that is not believed yet."""
        if newest and effects.now - to_seconds(newest) > GRACE_SECONDS:
            self.until = effects.now + GRACE_SECONDS
            timers.at(self.until, self._end)

    def holds(self, time: int) -> bool:
        """Whether nothing ends yet that was stored at a time in ns."""
        return self.until > 0 and time < self.began

    def note(self, step: ClockStep) -> None:
        """The wall clock was set."""
        self._stepped = step.seconds if step.what == "stepped" else 0.0

    def _end(self) -> None:
        self.until = 0.0
        wrong = -(self._effects.ahead + self._stepped)
        if wrong > 0:
            self._over(wrong)
