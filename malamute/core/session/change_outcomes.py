"""The outcomes of a session's changes.

A CHANGE has a number of its session, as a PUBLISH has, and is executed once, over lost connections and
crashes. The answer is a value, so it is kept until the client has it:

    begin ──▶ undecided ──decide──▶ decided, stored with what it changed ──▶ the answer
                  └─────drop──────▶ refused, and nothing was changed

A change may take more than one iteration, since it may have to ask the store. Meanwhile others behind it are
executed. So an undecided change is stored, too: after a crash it is executed, though its number is not the
next one. A change of several commits has an outcome from the first of them on, which grows.
"""

from __future__ import annotations

from typing import Any

from malamute.protocol.batch import pack, unpack
from malamute.protocol.limits import CHANGES_MAX


class Outcomes:
    """The undecided changes of one session, and the outcomes of the last ones, by their numbers."""

    __slots__ = ("changed", "decided", "running", "undecided")

    def __init__(self) -> None:
        self.undecided: set[int] = set()
        self.running: set[int] = set()
        """The changes that this broker executes, until the disk has their outcome."""
        self.decided: dict[int, Any] = {}
        self.changed = False
        """Whether the store does not know all of this."""

    def begin(self, number: int) -> None:
        """A change is executed."""
        self.undecided.add(number)
        self.running.add(number)
        self.changed = True

    def decide(self, number: int, value: Any) -> None:
        """The outcome of a change, at the end or so far, stored with it."""
        self.undecided.discard(number)
        self.decided[number] = value
        self.changed = True
        while len(self.decided) > CHANGES_MAX:
            del self.decided[min(self.decided)]

    def drop(self, number: int) -> bool:
        """A change was refused. Returns whether there was any under this number."""
        known = number in self.undecided or number in self.decided
        self.undecided.discard(number)
        self.running.discard(number)
        self.decided.pop(number, None)
        self.changed |= known
        return known

    def forget_before(self, number: int) -> None:
        """Drop outcomes that the client can no longer ask for."""
        self.undecided = {n for n in self.undecided if n >= number or n in self.running}
        self.decided = {n: value for n, value in self.decided.items() if n >= number}

    def pack(self) -> bytes:
        """The form that is stored."""
        value: bytes = pack((sorted(self.undecided), [*self.decided.items()]))
        return value

    @classmethod
    def unpack(cls, value: bytes) -> Outcomes:
        """Read the stored form: none of them is executed now."""
        outcomes = cls()
        undecided, decided = unpack(value)
        outcomes.undecided, outcomes.decided = set(undecided), dict(decided)
        return outcomes
