"""What was computed for a subject, kept for a bounded number of subjects.

Subjects come from clients, so a table of all subjects ever seen could be grown at will from
outside. This one holds at most `size` entries. An exact least-recently-used list would have to move
an entry at every look-up; the hot path cannot pay for that. So there are two generations:

    young   a dict; every look-up tries it first, at the cost of one dict look-up
    old     the young generation before this one

A new entry goes into the young one. When the young one holds half of the size, it becomes the old
one, and what was old is forgotten. A look-up that finds its subject in the old generation moves it
to the young one. So an entry that is used at least once in each `size / 2` new subjects stays, and
one that is not used goes: the effect of an LRU without its bookkeeping ("second chance").

The class *is* its young generation: `cache[subject]` of a known subject never enters Python code,
and `[cache[s] for s in subjects]` is as fast as a list comprehension over a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class SubjectCache(dict[str, Value], Generic[Value]):
    """A bounded memo of `compute(subject)`. Values must not be None."""

    __slots__ = ("_compute", "_half", "_old")

    def __init__(self, compute: Callable[[str], Value], size: int) -> None:
        super().__init__()
        self._compute = compute
        self._half = max(1, size // 2)
        self._old: dict[str, Value] = {}

    def __missing__(self, subject: str) -> Value:
        value = self._old.get(subject)
        if value is None:
            value = self._compute(subject)
        if len(self) >= self._half:
            self._old = dict(self)
            self.clear()
        self[subject] = value
        return value

    def forget(self) -> None:
        """Drop everything: what was computed is no longer true."""
        self.clear()
        self._old = {}

    @property
    def held(self) -> int:
        """How many entries are kept, of both generations; one in both counts twice."""
        return len(self) + len(self._old)
