"""When the messages of a stream expire: so long after they came, in time that is counted.

The time of a message is the wall clock at its arrival. So that no step of that clock ends a message, a stream
notes the difference between message times and the counted time. There is one such note for each step. After a
clock was set back the times of a stream wait for it, and advance at half its pace: that is in the note, and
there is another one when they have met.

Earlier messages than the start cannot be counted: there the wall clock of the start is believed, until it
turns out within the grace period (`grace_period.py`) that it was wrong.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from malamute.protocol.batch import Columns
from malamute.protocol.time_units import to_ns, to_seconds

NOTES_MAX = 1_000
"""Notes of a stream at most; those of its oldest messages are dropped."""

PRECISION_SECONDS = 0.001
"""By how much a time to live may be wrong for the sake of fewer notes: its own unit."""

WAITING_PACE = 2
"""How much faster than the times of a stream the counted time is while they wait for a clock."""


class TimesBefore:
    """The times of messages from before the start, counted since."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._ahead_ns = 0

    def give_back(self, seconds: float) -> None:
        """The wall clock was so far ahead when the broker started: all that came before came later."""
        self._ahead_ns += to_ns(seconds)

    def counted(self, time_ns: int) -> float:
        """When something came, in seconds. If the clock says that it comes yet, it came at the start."""
        return to_seconds(min(time_ns + self._ahead_ns, self._began_ns))


class _Note(NamedTuple):
    """When a chunk came by the wall clock and in counted time, and how fast the latter is from there on."""

    sequence: int
    time_ns: int
    born: float
    pace: int

    def counted(self, time_ns: int) -> float:
        """When a later chunk came that has this time."""
        return self.born + self.pace * to_seconds(time_ns - self.time_ns)


class BirthTimes:
    """When the messages of one stream came, in seconds that are counted."""

    __slots__ = ("_before", "_first", "_notes")

    def __init__(self, first: int, before: TimesBefore) -> None:
        """`first` is the first message that comes after the start."""
        self._first = first
        self._before = before
        self._notes: deque[_Note] = deque(maxlen=NOTES_MAX)

    def note(self, sequence: int, time_ns: int, now: float, *, waits: bool) -> None:
        """Note a new chunk, its first message and its time, which `waits` for the clock."""
        pace, last = WAITING_PACE if waits else 1, self._notes[-1] if self._notes else None
        if last is None or last.pace != pace or abs(last.counted(time_ns) - now) > PRECISION_SECONDS:
            self._notes.append(_Note(sequence, time_ns, now, pace))

    def counted(self, sequence: int, time_ns: int) -> float:
        """When the chunk came that begins with this message, and has this time."""
        if sequence < self._first or not self._notes:
            return self._before.counted(time_ns)
        earlier = (note for note in reversed(self._notes) if note.sequence <= sequence)
        return next(earlier, self._notes[0]).counted(time_ns)


def first_expiry(columns: Columns, born: float) -> float:
    """When the first of some messages expires that came at a time; infinite if none does."""
    ttl = columns.ttls if isinstance(columns.ttls, int) else min(filter(None, columns.ttls), default=0)
    return born + ttl / 1000 if ttl else inf
