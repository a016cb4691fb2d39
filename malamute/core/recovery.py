"""Taking up what the store kept: all of it that can be, whatever the rest is like.

A start is never refused for one thing that cannot be taken up: a session whose value nobody can decode, a
feed whose family is not installed any more. It is skipped, stays in the store as it is, and is reported: in
the log, by `status`, and by `malamute broker check`. What is past a limit that was lowered since is taken up
all the same, as it was promised something; only new ones are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from malamute.core.ready import Turn

TOLD_MAX = 20
"""Skipped things that are logged one by one."""


class Recovery:
    """What became of the things that the store kept."""

    def __init__(self, turn: Turn) -> None:
        self.skipped = 0
        self._turn = turn

    def take_up(self, kind: str, name: str, action: Callable[..., object], *arguments: Any) -> None:
        """Take up one thing, or skip it."""
        try:
            action(*arguments)
        except Exception as error:  # whatever is wrong with this one, the others are taken up
            self.skip(kind, name, error)

    def skip(self, kind: str, name: str, error: Exception) -> None:
        """Leave one thing in the store as it is, and report it."""
        self.skipped += 1
        if self.skipped <= TOLD_MAX:
            reason = f"{type(error).__name__}: {error}"
            self._turn.notice("not recovered, left in the store", kind=kind, name=name, reason=reason)

    def report(self, counts: dict[str, tuple[int, int]]) -> None:
        """Tell how many were skipped, and what is past its limit: `counts` are those there, and the limit."""
        if self.skipped > TOLD_MAX:
            self._turn.notice("more was not recovered", count=self.skipped - TOLD_MAX)
        for what, (there, limit) in counts.items():
            if there > limit:
                self._turn.notice("more than the limit was recovered", what=what, count=there, limit=limit)
