"""The numbers of a session: the outcome of each numbered command.

Numbers are stored in the same transaction as the messages of the commands, so each command is executed once
over a crash of the broker, too.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING

from malamute.core.session.change_outcomes import Outcomes
from malamute.core.session.refusals import Refusals
from malamute.errors import (
    Malformed,
)
from malamute.protocol.batch import pack, unpack
from malamute.protocol.fields import Number, Ranges, rule_of
from malamute.protocol.messages import (
    Error,
)
from malamute.store.operations import Recovered
from malamute.store.tables import NUMBERS, OUTCOMES, REFUSALS, SESSIONS

if TYPE_CHECKING:
    pass


class Numbers:
    """The outcomes of a session's numbered commands, and the user whose session it is.

    If another one acts as that user, it is that of both: `by` is the other one.

    Numbers come without gaps, so `next` tells which were executed; those above `stored` wait for the disk.
    `refused` has the refusals back to `floor`, below which a client cannot ask any more.
    """

    def __init__(self, next_number: int = 1, user: str = "", by: str = "") -> None:
        self.user = user
        self.by = by
        self.next = next_number
        self.stored = next_number - 1
        self.unstored = 0
        """The last number that waits for the disk, or 0 if none does."""
        self._ahead: list[tuple[int, int]] = []
        """Runs of numbers that were confirmed before others in front of them, which wait for the disk."""
        self.floor = 1
        self.settled = array("Q")
        """Runs of numbers, each by its first and last, whose answers the client had when it said HELLO."""
        self.refused = Refusals()
        self.refused_changed = False
        """Whether the store does not know of all that were refused."""
        self._outcomes: Outcomes | None = None

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes of its changes, made when first needed, as few sessions have any."""
        if self._outcomes is None:
            self._outcomes = Outcomes()
        return self._outcomes

    @property
    def outcomes_changed(self) -> bool:
        """Whether the store does not know of all of them."""
        return self._outcomes is not None and self._outcomes.changed

    def refuse(self, number: int, error: Error) -> None:
        """Remember that a number was refused, and how. Many alike in a row take no more than one."""
        self.floor = max(self.floor, self.refused.add(number, number, error.code, error.about) + 1)
        self.refused_changed = True

    def forget_before(self, number: int) -> None:
        """Drop refusals that the client can no longer ask for."""
        self.floor = max(self.floor, number)
        self.refused.forget_before(self.floor)
        if self._outcomes is not None:
            self._outcomes.forget_before(self.floor)

    def skip_to(self, number: int) -> None:
        """The client has its answers to all before `number`, even if the store was set back since."""
        self.forget_before(number)
        if self.next < number:
            self.next, self.stored = number, number - 1

    def settle(self, ranges: Ranges) -> None:
        """The client has its answers to these, in order, even if the store was set back since."""
        self.settled = array("Q", chain.from_iterable(r for r in ranges if r[1] >= self.next))

    def skip_settled(self) -> None:
        """Go on behind those that come next and are settled."""
        for first, last in zip(self.settled[::2], self.settled[1::2], strict=True):
            if first <= self.next <= last:
                self.next = last + 1

    def is_settled(self, number: int) -> bool:
        """Whether the outcome of a number before the next one is known, and it was not refused."""
        return number <= self.stored or any(first <= number <= last for first, last in self._ahead)

    def confirm_at_once(self, first: int, last: int) -> None:
        """Note that numbers are confirmed that nothing is stored of."""
        if not self.unstored:
            self.stored = last
        elif self._ahead and self._ahead[-1][1] == first - 1:
            self._ahead[-1] = self._ahead[-1][0], last
        else:
            self._ahead.append((first, last))

    def decide(self, last: int, *, stored: bool) -> None:
        """Note that the disk has taken, or has refused, what waited for it up to a number."""
        if stored:
            self.stored = last
        if last >= self.unstored:
            self.unstored = 0
            if self._ahead:
                self.stored = max(self.stored, self._ahead[-1][1])
                self._ahead.clear()

    def pack(self) -> bytes:
        """The form that is stored with each command. New refusals and outcomes are stored apart."""
        # The third is empty: earlier versions had other things there.
        names = (self.user, self.by) if self.by else (self.user,) if self.user else ()
        value: bytes = pack((self.next, self.floor, (), *names) if names else (self.next, self.floor))
        return value

    @classmethod
    def unpack(cls, value: bytes, refused: bytes = b"", outcomes: bytes = b"") -> Numbers:
        """Read the stored form: all that is in it is durable.

        Raises:
            Malformed: they are no numbers.
        """
        next_number, floor, *later = unpack(value)
        if not rule_of(Number).holds(next_number) or not rule_of(Number).holds(floor):
            raise Malformed("invalid numbers of a session: expected integers")
        numbers = cls(next_number, *later[1:])
        if later and later[0]:
            raise Malformed("invalid numbers of a session: some of them went to stores of an earlier version")
        if refused:
            numbers.refused = Refusals.unpack(refused)
        if outcomes:
            numbers._outcomes = Outcomes.unpack(outcomes)
        numbers.forget_before(floor)
        return numbers


def numbers_in(recovered: Recovered, peer: bytes) -> Numbers:
    """The numbers of a session as one store has them."""
    values = recovered.table(SESSIONS)
    return Numbers.unpack(*(values.get((peer, part), b"") for part in (NUMBERS, REFUSALS, OUTCOMES)))
