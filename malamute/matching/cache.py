"""Caches of results by subject, for a bounded number of subjects.

Subjects come from clients, so clients could grow a table of all subjects ever seen at will. A cache holds at
most `size` entries, and all caches of a broker together at most the bytes of their `CacheBudget`. Beyond
those, the caches without growth for the longest time are emptied.

An exact least-recently-used list would move an entry at every look-up, too expensive for the hot path. So
there are two generations:

    young   a dict; every look-up tries it first, at the cost of one dict look-up
    old     the young generation before this one

A new entry is added to the young generation. When that holds half of the size, it becomes the old
one, and the entries of the old one are dropped. A look-up that finds its subject in the old generation
moves it to the young one. So an entry that is used at least once in each `size / 2` new subjects stays, and
an unused one is dropped: the effect of an LRU without its bookkeeping ("second chance").

The class *is* its young generation: `cache[subject]` of a known subject never enters Python code,
and `[cache[s] for s in subjects]` is as fast as a list comprehension over a dict.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)

CACHES_BYTES_MAX = 64 << 20
"""Bytes that the caches of one budget hold by default."""

ENTRY_BYTES = 200
"""The bytes of an entry beyond the text of its subject."""

UNCHARGED_BYTES = 4_096
"""The growth of a cache before it charges its budget, in bytes."""

SPARED = 0.75
"""The part of the budget that stays in use when caches are emptied."""


class CacheOwner(Protocol):
    """An object with caches."""

    def forget(self) -> None:
        """Empty the caches."""


class CacheBudget:
    """The bytes that many caches may hold together."""

    def __init__(self, size_bytes_max: int = CACHES_BYTES_MAX) -> None:
        self.size_bytes_max = size_bytes_max
        self.used_bytes = 0
        # Ordered by the last growth. A collected owner disappears with its bytes.
        self._held: weakref.WeakKeyDictionary[CacheOwner, int] = weakref.WeakKeyDictionary()

    def charge(self, owner: CacheOwner, size_bytes: int) -> None:
        """Add the growth of an owner's caches; empty the caches of others if the budget is exceeded."""
        self._held[owner] = self._held.pop(owner, 0) + size_bytes
        self.used_bytes += size_bytes
        if self.used_bytes > self.size_bytes_max:
            self._reclaim()

    def release(self, owner: CacheOwner) -> None:
        """Remove an owner, whose caches are empty."""
        self.used_bytes -= self._held.pop(owner, 0)

    def _reclaim(self) -> None:
        self.used_bytes = sum(self._held.values())
        for owner in list(self._held):
            if self.used_bytes <= self.size_bytes_max * SPARED:
                return
            owner.forget()


class Memo(dict[Key, Value], Generic[Key, Value]):
    """A memo of `compute(text)` in two generations, for texts of at most `characters_max` together."""

    def __init__(self, compute: Callable[[Key], Value], characters_max: int) -> None:
        super().__init__()
        self._compute = compute
        self._half = characters_max // 2
        self._old: dict[Key, Value] = {}
        self._young = 0

    def __missing__(self, text: Key) -> Value:
        value = self._old.get(text)
        if value is None:
            value = self._compute(text)
        characters = len(str(text))
        if self._young + characters > self._half:
            self._old = dict(self)
            self.clear()
            self._young = 0
        self._young += characters
        self[text] = value
        return value


class SubjectCache(dict[str, Value], Generic[Value]):
    """A bounded memo of `compute(subject)`, without None. `charge` is called with its growth in bytes."""

    __slots__ = ("_charge", "_compute", "_half", "_old", "_old_bytes", "_uncharged", "_young_bytes")

    def __init__(
        self, compute: Callable[[str], Value], size: int, charge: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self._compute = compute
        self._half = max(1, size // 2)
        self._old: dict[str, Value] = {}
        self._charge = charge
        self._young_bytes = self._old_bytes = self._uncharged = 0

    def __missing__(self, subject: str) -> Value:
        value = self._old.get(subject)
        if value is None:
            value = self._compute(subject)
        if len(self) >= self._half:
            self._old = dict(self)
            self.clear()
            self._uncharged -= self._old_bytes
            self._old_bytes, self._young_bytes = self._young_bytes, 0
        size_bytes = len(subject) + ENTRY_BYTES
        self._young_bytes += size_bytes
        self._uncharged += size_bytes
        self[subject] = value
        if self._uncharged > UNCHARGED_BYTES and self._charge is not None:
            grown, self._uncharged = self._uncharged, 0
            self._charge(grown)
        return value

    def forget(self) -> None:
        """Drop all entries: the results are outdated."""
        self.clear()
        self._old = {}
        self._young_bytes = self._old_bytes = self._uncharged = 0

    @property
    def held(self) -> int:
        """How many entries are kept, of both generations; one in both counts twice."""
        return len(self) + len(self._old)
