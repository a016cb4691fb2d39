"""Recovery of the stored state: everything readable, beside any damage.

A start is never refused for one unusable thing: a session that cannot be decoded, a feed whose family is
missing. Such a thing is skipped, stays in the store as it is, and is reported: in the log, by `status`, and
by `malamute broker check`. Things over a limit that was lowered since are restored all the same, as they were
promised; only new ones are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects

REPORTED_MAX = 20
"""Skipped things that are logged one by one."""


class Excess(Protocol):
    """Dead letters, as far as they may be too many."""

    @property
    def entries(self) -> Sized:
        """All of them."""

    @property
    def excess(self) -> int:
        """How many more there are than configured."""


class Recovery:
    """The recovery of the stored things, with its counts."""

    def __init__(self, effects: Effects) -> None:
        self.skipped = 0
        self._effects = effects
        self._for_operators: set[tuple[str, str]] = set()
        """The kinds that an operator can set or remove."""
        self._dead: list[Excess] = []

    def take_up(self, kind: str, name: str, action: Callable[..., object], *arguments: Any) -> None:
        """Take up one thing, or skip it."""
        try:
            action(*arguments)
        except Exception as error:  # any fault of this one leaves the others
            self.skip(kind, name, error)

    def skip(self, kind: str, name: str, error: Exception) -> None:
        """Leave one thing in the store as it is, and report it."""
        self.skipped += 1
        if kind in ("feed", "link", "account", "group"):
            self._for_operators.add((kind, name))
        if self.skipped <= REPORTED_MAX:
            reason = f"{type(error).__name__}: {error}"
            self._effects.notice("not recovered, left in the store", kind=kind, name=name, reason=reason)

    def settled(self, kind: str, name: str) -> None:
        """An operator has set or removed a thing, which may be one that was skipped."""
        if (kind, name) in self._for_operators:
            self._for_operators.discard((kind, name))
            self.skipped -= 1

    def look_at_dead(self, kind: str, name: str, dead: Excess) -> None:
        """Report dead letters that are more than configured: the limit was lowered."""
        if not dead.excess:
            return
        self._dead.append(dead)
        if len(self._dead) <= REPORTED_MAX:
            what = "more dead letters than dead_letters allows: the oldest leave with the next one"
            self._effects.notice(what, kind=kind, name=name, count=len(dead.entries), excess=dead.excess)

    @property
    def dead_excess(self) -> int:
        """Dead letters that leave with the next one of their queue, since the limit was lowered."""
        return sum(dead.excess for dead in self._dead)

    def report(self, counts: dict[str, tuple[int, int]]) -> None:
        """Report the skipped things, and those over a limit: `counts` are (present ones, the limit)."""
        if self.skipped > REPORTED_MAX:
            self._effects.notice("more was not recovered", count=self.skipped - REPORTED_MAX)
        for what, (there, limit) in counts.items():
            if there > limit:
                self._effects.notice("more than the limit was recovered", what=what, count=there, limit=limit)
