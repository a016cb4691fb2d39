"""Holdings of users: streams and cursors, each of which counts for its owner.

The owner is in the store, so a restart changes nothing. A user whose quota says nothing of them may have as
much as is left to all others: the one who has least always gets more. Clients without a user's name are one
user, and alone where nobody has a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from malamute.access.quota import USER
from malamute.core.identity.quotas import add_all, check_all
from malamute.core.iteration.stored_values import StoredValues
from malamute.errors import QuotaExceeded

if TYPE_CHECKING:
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.iteration.stage import StoreStage

QuotasOf = Callable[[str], "QuotaUsages"]

NONE: QuotasOf = lambda user: ()  # noqa: E731  # there are no quotas


class Holdings:
    """The number and cost of each user's things of one kind, under the name of their quota."""

    def __init__(
        self, name: str, quotas_of: QuotasOf = NONE, has_users: Callable[[], bool] = lambda: False
    ) -> None:
        self.name = name
        self.costs: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._quotas_of = quotas_of
        self._has_users = has_users
        self._quotas: dict[str, QuotaUsages] = {}
        """The quotas that those count for who have any."""

    def check(self, user: str, cost: int, left: int, beside: int | None = None, *, count: int = 1) -> None:
        """Check that a user may have `count` more, at a cost out of the amount `left` to all.

        `beside` is the user's part of that; by default, the cost of all that the user has.

        Raises:
            QuotaExceeded: that is more than a quota allows, or than the user leaves to others.
        """
        usages = self._quotas.get(user) or self._quotas_of(user)
        check_all(usages, self.name, count)
        has = self.costs[user] if beside is None else beside
        given = any(getattr(usage.quota, self.name) is not None for usage in usages)
        if given or has + cost <= left - cost or not has or not (user or self._has_users()):
            return
        who = f"user {user!r}" if user else "clients without a user's name"
        raise QuotaExceeded(
            f"share of {who} is used up: {self.name}: expected no more than is left to others; "
            "a quota of one's own replaces it",
            owner=(USER, user),
            limit=self.name,
        )

    def add(self, user: str, count: int, cost: int) -> None:
        """A user has so many more, or less if negative."""
        if user not in self._quotas:
            self._quotas[user] = self._quotas_of(user)
        self._counts[user] += count
        self.costs[user] += cost
        add_all(self._quotas[user], self.name, count)
        if not self._counts[user]:
            del self._counts[user], self.costs[user], self._quotas[user]

    def configure(self) -> None:
        """Count for the quotas of now."""
        for user, count in self._counts.items():
            add_all(self._quotas[user], self.name, -count)
            self._quotas[user] = self._quotas_of(user)
            add_all(self._quotas[user], self.name, count)


class Owners(StoredValues[str, str]):
    """The users of the cursors of a stream, which count in `holdings` and, for their share of it, here."""

    __slots__ = ("_cost_of", "_holdings", "counts")

    def __init__(self, stage: StoreStage, holdings: Holdings, cost_of: Callable[[str], int]) -> None:
        super().__init__(stage)
        self.counts: Counter[str] = Counter()
        self._holdings = holdings
        self._cost_of = cost_of

    def __setitem__(self, name: str, user: str) -> None:
        self.pop(name, None)
        super().__setitem__(name, user)
        self._add(user, 1, name)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove the owner of a cursor that may have one."""
        if (user := self.get(name)) is not None:
            self._add(user, -1, name)
        return super().pop(name, *default)

    def _add(self, user: str, count: int, name: str) -> None:
        self._holdings.add(user, count, count * self._cost_of(name))
        self.counts[user] += count
        if not self.counts[user]:
            del self.counts[user]

    def stored(self) -> Iterator[tuple[str, str]]:
        """The cursors with an owner that has a name."""
        return ((name, user) for name, user in self.items() if user)
