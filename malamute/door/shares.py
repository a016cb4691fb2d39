"""A limit shared by all users."""

from __future__ import annotations


def share_of(limit: int, total: int, own: int, *, named: bool) -> int:
    """Return how much more a user with `own` of a `total` may have; below 1 if nothing.

    A user that is not `named` is the only one, and may have all of it.
    """
    left = limit - total
    return min(left, max((left - own) // 2, not own)) if named else left


class Shares:
    """Limit for all users; each may have as much as it leaves to the others.

    One alone gets half of it, two get a third each, and so on: the next user finds as much as any other has.
    A user with none gets some as long as there is any. A user without a name is the only one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[str, int] = {}

    def held(self, who: str) -> int:
        """Return the part of a user."""
        return self._held.get(who, 0)

    def take(self, who: str, count: int = 1) -> bool:
        """Acquire so much more. Returns whether there was room; else nothing is acquired."""
        left, own = self.limit - self.total - count, self.held(who)
        if left < 0 or (who and own and own + count > left):
            return False
        self._held[who] = own + count
        self.total += count
        return True

    def give_back(self, who: str, count: int = 1) -> None:
        """Return so much of the part of a user."""
        left = self._held[who] - count
        self.total -= count
        if left:
            self._held[who] = left
        else:
            del self._held[who]
