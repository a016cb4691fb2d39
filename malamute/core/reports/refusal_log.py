"""Refusals on their way into a stream of the broker's own: some of each principal, and how many in all.

A program that is refused tries again, and one that means harm tries a thousand times. So a principal has
`REFUSALS_MAX` reports in `PERIOD_SECONDS`. The last refusal beyond that is reported when the time is over,
and stands for the others: its `count` is their number. The counts of all reports together are the refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timers

REFUSALS_MAX = 10
"""Refusals of one principal that are reported as they are, in each period."""

PERIOD_SECONDS = 10.0

PRINCIPALS_MAX = 1_000
"""Principals with counts of their own. Further ones share one count."""

ADDRESSES_MAX = 100
"""The same of addresses from which connections were refused. A flood may come from as many as it likes."""

_OTHERS = None

Details = Mapping[str, Any]


class _Period:
    """The refusals of one principal since its period began."""

    count = 0
    left_out = 0
    last: Details = {}
    """The details of the last one that was left out."""


class RefusalLog:
    """Counts the refusals of each principal, and reports them: the details, and the number they stand for."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        report: Callable[[Details, int], None],
        principals_max: int = PRINCIPALS_MAX,
    ) -> None:
        self._principals_max = principals_max
        self._effects = effects
        self._timers = timers
        self._report = report
        self._periods: dict[str | None, _Period] = {}

    def note(self, user: str, details: Details) -> None:
        """A user was refused something: it is reported now, or counts for a later report."""
        who = user if user in self._periods or len(self._periods) < self._principals_max else _OTHERS
        period = self._periods.get(who)
        if period is None:
            period = self._periods[who] = _Period()
            self._timers.at(self._effects.now + PERIOD_SECONDS, partial(self._end, who))
        period.count += 1
        if period.count > REFUSALS_MAX:
            period.left_out, period.last = period.left_out + 1, details
        else:
            self._report(details, 1)

    def close(self) -> None:
        """Report the omitted refusals at the shutdown."""
        for who in [*self._periods]:
            self._end(who)

    def _end(self, who: str | None) -> None:
        period = self._periods.pop(who, None)
        if period is not None and period.left_out:
            self._report(period.last, period.left_out)
