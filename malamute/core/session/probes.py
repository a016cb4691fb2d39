"""Probes: which silent sessions are asked for a sign of life, and when."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from malamute.core.session.session import Session

if TYPE_CHECKING:
    pass

PROBES_TOGETHER = 1 / 64
"""Sessions due within this part of the interval are probed together: with thousands of them, waking up for
each would cost several times as much as its probe."""

IDLE_PROBES = 30
"""A session that holds no work is probed so many times as seldom as one that holds some."""


class Probes:
    """Sessions in the order in which they are to be probed; one interval for all of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.next_deadline = inf
        """When the next probe is due; infinity for never."""
        # A plain dict finds its first entry by passing all that were taken out before it.
        self._deadlines: OrderedDict[bytes, tuple[float, Session]] = OrderedDict()

    def start(self, session: Session, now: float) -> None:
        """Probe a session one interval from now, unless it waits for a probe already."""
        if session.peer not in self._deadlines:
            self._deadlines[session.peer] = (now + self._interval, session)
            self._look()

    def cancel(self, session: Session) -> None:
        """Do not probe it."""
        if self._deadlines.pop(session.peer, None) is not None:
            self._look()

    def due(self, now: float) -> list[Session]:
        """The sessions whose time has come, with those for which it is about to; they no longer wait."""
        due: list[Session] = []
        if self.next_deadline > now:
            return due
        last = now + self._interval * PROBES_TOGETHER
        while self._deadlines and (first := next(iter(self._deadlines.values())))[0] <= last:
            due.append(first[1])
            del self._deadlines[first[1].peer]
        self._look()
        return due

    def _look(self) -> None:
        """Note when the first of them is due."""
        self.next_deadline = next(iter(self._deadlines.values()))[0] if self._deadlines else inf
