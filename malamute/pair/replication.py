"""Replication: which log sequence numbers are on whose disk, confirmed, and next.

Theory. Everything durable has a log sequence number. A primary sends each record of its write-ahead log and
each write set of LMDB in their order, and a standby answers with the number up to which its own disk has all.
A number is released, so that its outcomes may be reported, once every member that counts has it. A history
is the list of timelines with the first number of each: two directories agree up to where these part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import NamedTuple

from malamute.errors import Malformed
from malamute.pair.state import Lsn, Timeline

WINDOW_BYTES = 64 * 1024 * 1024
"""Bytes that may be under way to a standby."""

NOBODY = ""
"""A member that never has anything: where it counts, nothing is confirmed."""


class Began(NamedTuple):
    """A timeline, and the first log sequence number in it."""

    timeline: Timeline
    lsn: Lsn


class History(NamedTuple):
    """How far a directory has come: its timelines, oldest first, and its last log sequence number."""

    timelines: tuple[Began, ...] = ()
    lsn: int = 0

    @property
    def timeline(self) -> int:
        """The last timeline, or 0."""
        return self.timelines[-1].timeline if self.timelines else 0


def common(one: History, other: History) -> int:
    """Return the log sequence number up to which two directories have one history; 0 for none.

    A timeline has one primary, which began it behind all that its directory had. So where both have the same
    beginning of a timeline, they have the same history before it.
    """
    shared = {*one.timelines} & {*other.timelines}
    if not shared:
        return 0
    last = max(shared)
    return min(_end(one, last), _end(other, last))


def _end(history: History, began: Began) -> int:
    later = [one.lsn - 1 for one in history.timelines if one.timeline > began.timeline]
    return min([history.lsn, *later])


def is_behind(own: History, other: History) -> bool:
    """Return whether the other directory has all of this one, and more."""
    return common(own, other) == own.lsn < other.lsn


class _Sent(NamedTuple):
    lsn: int
    size: int
    at: float


class Shipment:
    """The primary's side in one timeline; `name` is the primary, whose own disk counts as well.

    `lsn` is the last number in its directory at the start. A member in sync may lack some of it, and no
    program may find it stored yet: clients are let in once `began` is released.
    """

    def __init__(self, name: str, lsn: int, window: int = WINDOW_BYTES) -> None:
        self._name = name
        self._window = window
        self._synced: dict[str, int] = {name: lsn}
        self._released = 0
        self._under_way: deque[_Sent] = deque()
        self._bytes = 0
        self.began = lsn
        self.lsn = lsn
        """The last number that was sent, or committed without a standby."""

    def sent(self, lsn: int, size: int, now: float) -> None:
        """Note a part for the standby; once it is on the own disk, it is `acked` with the own name."""
        self.lsn = max(self.lsn, lsn)
        self._under_way.append(_Sent(lsn, size, now))
        self._bytes += size

    def acked(self, member: str, synced: int) -> None:
        """Note up to where a member's disk has all. Raises: Malformed for a number never sent."""
        if member == self._name:
            self.lsn = max(self.lsn, synced)
        elif synced > self.lsn:
            raise Malformed(
                f"{member} says that it has {synced}: expected at most {self.lsn}, which was sent"
            )
        self._synced[member] = max(synced, self._synced.get(member, 0))
        if member != self._name:
            while self._under_way and self._under_way[0].lsn <= synced:
                self._bytes -= self._under_way.popleft().size

    def joined(self, member: str, lsn: int) -> None:
        """Note that a standby begins, or begins again, behind `lsn`; nothing is under way to it."""
        self._synced[member] = lsn
        self._under_way.clear()
        self._bytes = 0

    def synced(self, member: str) -> int:
        """Return up to where the disk of a member has all, as far as is known."""
        return self._synced.get(member, 0)

    def released(self, counts: Set[str]) -> int:
        """Return the number up to which outcomes may be reported, where these members count."""
        if counts:
            self._released = max(self._released, min(self._synced.get(one, 0) for one in counts))
        return self._released

    @property
    def is_full(self) -> bool:
        """Whether nothing more is sent to the standby for now."""
        return self._bytes >= self._window

    @property
    def unsynced_since(self) -> float | None:
        """The time when the oldest part under way was sent."""
        return self._under_way[0].at if self._under_way else None
