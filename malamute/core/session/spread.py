"""The numbers of a session that stores in more than one store, and what the records of them are worth.

Each store has a record of the session: the next number, and the *gaps* below it, for which the record does
not vouch. It vouches for a number if that is stored there with it or before it, if the broker knew that it is
stored elsewhere, or if it was refused and the record says so. Numbers on their way to other stores are gaps.
So a record is right by itself, whichever of the others is lost, refused or not there.

After a start, `next` is the greatest of all records, and settled is what any of them vouches for. The
numbers below `next` that are not settled were *lost* on their way: no store has them, so each is executed if
the client sends it again. What one store has done was not refused, whatever another one says: that one may
have been away while the client asked again.

A session that stores in one store has none of this (`Numbers.spread` is None), and its record has no gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

from malamute.core.iteration.stage import NamedStage
from malamute.errors import Malformed
from malamute.protocol.fields import Ranges

NUMBERS_MAX = 1 << 20
"""Numbers that a record may leave out: many times what a client may have unconfirmed."""


class Spread:
    """What is known of the numbers of one session, beyond the next one.

    Those that are `lost` are executed when they come, though they are not the next. `stages` are those of the
    stores with names that have a record of the session.
    """

    def __init__(self, lost: Iterable[int] = (), own: Iterable[int] = ()) -> None:
        """`own` are those on their way to the broker's own store."""
        self.lost = set(lost)
        self.stages: set[NamedStage] = set()
        self._under_way: dict[str, set[int]] = {"": set(own)}

    def begin(self, number: int, store: str) -> None:
        """A command is on its way to a store."""
        self.lost.discard(number)
        self._under_way.setdefault(store, set()).add(number)

    def end(self, first: int, last: int, store: str) -> None:
        """The outcome of these is known."""
        self._under_way[store].difference_update(range(first, last + 1))

    def is_under_way(self, number: int) -> bool:
        """Whether the outcome of a command is not known yet."""
        return any(number in numbers for numbers in self._under_way.values())

    def gaps(self, store: str) -> tuple[int, ...]:
        """What a record in this store does not vouch for: runs of numbers, each by its first and last."""
        others = (numbers for name, numbers in self._under_way.items() if name != store)
        return runs_of(self.lost.union(*others))

    def forget_before(self, number: int) -> None:
        """Drop what the client does not ask for any more."""
        self.lost = {one for one in self.lost if one >= number}

    def settle(self, ranges: Ranges) -> None:
        """The client has its answers to these."""
        self.lost = without(self.lost, ranges)


def without(numbers: set[int], ranges: Iterable[Sequence[int]]) -> set[int]:
    """Those that are in none of some ranges, which may be of any length."""
    ordered = sorted(numbers)
    for first, last, *_ in ranges:
        numbers = numbers.difference(ordered[bisect_left(ordered, first) : bisect_right(ordered, last)])
    return numbers


def runs_of(numbers: Iterable[int]) -> tuple[int, ...]:
    """Numbers as runs in order, each by its first and last."""
    runs: list[int] = []
    for number in sorted(numbers):
        if runs and runs[-1] == number - 1:
            runs[-1] = number
        else:
            runs += (number, number)
    return tuple(runs)


def numbers_of(runs: Sequence[int]) -> set[int]:
    """The numbers in runs. Raises `Malformed` for more than any session has under way."""
    pairs = [*zip(runs[::2], runs[1::2], strict=True)]
    if sum(last + 1 - first for first, last in pairs) > NUMBERS_MAX:
        raise Malformed(f"invalid gaps in the numbers of a session: expected at most {NUMBERS_MAX} numbers")
    return set(chain.from_iterable(range(first, last + 1) for first, last in pairs))
