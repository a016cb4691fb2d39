"""When the messages of a stream expire: so long after they came, in time that is counted.

What a message has of time is what the wall clock said when it came. So that no step of that clock ends a
message, a stream remembers how far ahead of the counted time it was, from which message on. There is one such
note for each step, and a few more while the times of the stream wait for a clock that was set back.

What came before the broker started has nothing to be counted by: there the wall clock of the start is
believed, until it turns out within the grace period (`grace_period.py`) that it was wrong.
"""

from __future__ import annotations

from collections import deque
from math import inf

from malamute.protocol.batch import Columns
from malamute.protocol.time_units import to_ns, to_seconds

NOTES_MAX = 1_000
"""Notes of a stream. Those of its oldest messages go when there are more."""

PRECISION_NS = to_ns(0.1)
"""By how much a time to live may be wrong for the sake of fewer notes."""


class TimesBefore:
    """The times of what came before the broker started, as they are counted since."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._ahead_ns = 0

    def give_back(self, seconds: float) -> None:
        """The wall clock was so far ahead when the broker started: all that came before came later."""
        self._ahead_ns += to_ns(seconds)

    def counted(self, time_ns: int) -> float:
        """When something came, in seconds. If the clock says that it comes yet, it came at the start."""
        return to_seconds(min(time_ns + self._ahead_ns, self._began_ns))


class BirthTimes:
    """When the messages of one stream came, in seconds that are counted."""

    __slots__ = ("_before", "_first", "_notes")

    def __init__(self, first: int, before: TimesBefore) -> None:
        """`first` is the first message that comes after the start."""
        self._first = first
        self._before = before
        self._notes: deque[tuple[int, int]] = deque(maxlen=NOTES_MAX)
        """From which message on the times are ahead of the counted ones, and by how much, in ns."""

    def note(self, sequence: int, time_ns: int, now: float) -> None:
        """A chunk comes now that begins with this message, and has this time."""
        ahead_ns = time_ns - to_ns(now)
        if not self._notes or abs(ahead_ns - self._notes[-1][1]) > PRECISION_NS:
            self._notes.append((sequence, ahead_ns))

    def counted(self, sequence: int, time_ns: int) -> float:
        """When the chunk came that begins with this message, and has this time."""
        if sequence < self._first or not self._notes:
            return self._before.counted(time_ns)
        later = (ahead_ns for first, ahead_ns in reversed(self._notes) if first <= sequence)
        return to_seconds(time_ns - next(later, self._notes[0][1]))


def first_expiry(columns: Columns, born: float) -> float:
    """When the first of some messages expires that came at a time; infinite if none does."""
    ttl = columns.ttls if isinstance(columns.ttls, int) else min(filter(None, columns.ttls), default=0)
    return born + ttl / 1000 if ttl else inf
