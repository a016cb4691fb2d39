"""A limit for all that has a share for each."""

from __future__ import annotations


def share_of(limit: int, total: int, own: int, *, named: bool) -> int:
    """How much more one may have that has its `own` of a `total`; it is below 1 if that is nothing.

    Whoever is not `named` is everybody there is, and may have all of it.
    """
    left = limit - total
    return min(left, max((left - own) // 2, not own)) if named else left


class Shares:
    """So many of something for all. Each may have as much of it as is left to the others then.

    One alone gets half of it, two get a third each, and so on: whoever comes next finds as much as any other
    has. Who has none gets some as long as there is any. Without a name one is everybody there is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[str, int] = {}

    def held(self, who: str) -> int:
        """How much one has."""
        return self._held.get(who, 0)

    def take(self, who: str, count: int = 1) -> bool:
        """Take so much more. Returns whether there was room; else nothing is taken."""
        left, own = self.limit - self.total - count, self.held(who)
        if left < 0 or (who and own and own + count > left):
            return False
        self._held[who] = own + count
        self.total += count
        return True

    def give_back(self, who: str, count: int = 1) -> None:
        """Give back so much of what one has."""
        left = self._held[who] - count
        self.total -= count
        if left:
            self._held[who] = left
        else:
            del self._held[who]
