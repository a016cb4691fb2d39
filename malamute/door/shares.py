"""A limit for all that has a share for each."""

from __future__ import annotations

from collections.abc import Hashable


class Shares:
    """So many of something for all. Each may have as much of it as is left to the others then.

    One alone gets half of it, two get a third each, and so on: whoever comes next finds as much as any other
    has. Who has none gets some as long as there is any.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[Hashable, int] = {}

    def held(self, who: Hashable) -> int:
        """How much one has."""
        return self._held.get(who, 0)

    def has_room(self, who: Hashable, count: int = 1) -> bool:
        """Whether one may have so much more."""
        left, own = self.limit - self.total - count, self.held(who)
        return left >= 0 and (not own or own + count <= left)

    def take(self, who: Hashable, count: int = 1) -> bool:
        """Take so much more. Returns whether there was room; else nothing is taken."""
        if not self.has_room(who, count):
            return False
        self._held[who] = self.held(who) + count
        self.total += count
        return True

    def give_back(self, who: Hashable, count: int = 1) -> None:
        """Give back so much of what one has."""
        left = self._held[who] - count
        self.total -= count
        if left:
            self._held[who] = left
        else:
            del self._held[who]
