"""The model of a standby: which part that arrives is next. `journal/standby.py` is the real one."""

from __future__ import annotations

from enum import Enum, auto


class Next(Enum):
    """The use of a record or a write set that arrived."""

    TAKE = auto()
    REPEATED = auto()
    """Part that is there already: only acknowledged again."""
    MISSING = auto()
    """Part behind a gap: the link begins again from `synced`."""
    OTHER_TIMELINE = auto()
    """Part of a primary that this node does not follow."""


class Arrival:
    """The standby's side: it follows one timeline.

    `applied` is the last write set in LMDB; `synced` is that or a later record in the log. Both are durable.
    Several parts may be taken before they are made durable together.
    """

    def __init__(self, timeline: int, applied: int, synced: int) -> None:
        self.timeline = timeline
        self.applied = self._write_set = applied
        self.synced = self._record = max(applied, synced)

    def record(self, timeline: int, after: int, lsn: int) -> Next:
        """Return the use of a record of the log, which follows `after`."""
        verdict = self._next(timeline, after, lsn, self._record)
        if verdict is Next.TAKE:
            self._record = lsn
        return verdict

    def write_set(self, timeline: int, after: int, lsn: int) -> Next:
        """Return the use of a write set, which follows the write set `after`."""
        verdict = self._next(timeline, after, lsn, self._write_set)
        if verdict is Next.TAKE:
            self._write_set, self._record = lsn, max(lsn, self._record)
        return verdict

    def durable(self, *, applied: int, synced: int) -> None:
        """Note the last numbers that the disk has."""
        self.applied, self.synced = applied, max(applied, synced)

    def _next(self, timeline: int, after: int, lsn: int, has: int) -> Next:
        if timeline != self.timeline:
            return Next.OTHER_TIMELINE
        if lsn <= has:
            return Next.REPEATED
        return Next.TAKE if after == has else Next.MISSING
