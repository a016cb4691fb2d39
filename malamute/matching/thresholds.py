"""Rows of ranges: the intervals that contain a value.

`price > 100` cannot be a term, since a message would need a term for each number below its price.
But the intervals that contain a value v are those that have started at v, without
those that have ended by v, and both are rows that a sorted list can return:

    held(v) = (unbounded below | started(v)) - ended(v)

`Thresholds` files numbers under sorted keys and returns the row of all keys up to a place. The keys
are cut into blocks of about the square root of their number, and each block has the row of all
blocks before it. A look-up is two binary searches, a short list, and one union, without visiting the
keys one by one. A change inserts into one block and sets one bit in each later one: 10 µs at 10,000
ranges. The bounds' open and closed ends are the two sides of a value (`Bound`).
"""

from __future__ import annotations

from bisect import bisect_right
from math import isqrt

from malamute.matching.bitmap import Bitmap
from malamute.matching.expression import Bound

BLOCK_MAX = 64
"""The least size of a block that is cut."""


class _Block:
    __slots__ = ("before", "keys", "numbers")

    def __init__(self, keys: list[Bound], numbers: list[int], before: Bitmap) -> None:
        self.keys = keys
        self.numbers = numbers  # numbers[i] is filed under keys[i]
        self.before = before  # all numbers of the blocks before this one


class Thresholds:
    """Numbers in order of their keys."""

    def __init__(self) -> None:
        self._blocks = [_Block([], [], Bitmap())]
        self._firsts: list[Bound] = []  # of every block but the first: no key of it is lower
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def passed(self, place: Bound) -> tuple[Bitmap, Bitmap]:
        """Return the numbers with keys up to `place`, in two sets: of whole blocks, and the others.

        The first set belongs to this object, and must not be changed.
        """
        block = self._blocks[bisect_right(self._firsts, place)]
        return block.before, Bitmap(block.numbers[: bisect_right(block.keys, place)])

    def add(self, key: Bound, number: int) -> None:
        """File a number under a key."""
        at = bisect_right(self._firsts, key)
        block = self._blocks[at]
        index = bisect_right(block.keys, key)
        block.keys.insert(index, key)
        block.numbers.insert(index, number)
        self._size += 1
        for later in self._blocks[at + 1 :]:
            later.before.add(number)
        if len(block.keys) > max(BLOCK_MAX, isqrt(self._size)):
            self._split(at)

    def remove(self, key: Bound, number: int) -> None:
        """Undo one `add`."""
        at = bisect_right(self._firsts, key)
        # Equal keys may fill several blocks, so go back from the last that can hold it.
        while True:
            block = self._blocks[at]
            index = next((i for i, n in enumerate(block.numbers) if n == number and block.keys[i] == key), -1)
            if index >= 0:
                break
            at -= 1
        del block.keys[index], block.numbers[index]
        self._size -= 1
        for later in self._blocks[at + 1 :]:
            later.before.discard(number)
        if not block.keys and len(self._blocks) > 1:
            del self._blocks[at]
            del self._firsts[max(0, at - 1)]

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        half = len(block.keys) // 2
        before = block.before | Bitmap(block.numbers[:half])
        self._blocks.insert(at + 1, _Block(block.keys[half:], block.numbers[half:], before))
        self._firsts.insert(at, block.keys[half])
        del block.keys[half:], block.numbers[half:]


class Intervals:
    """Numbers by their intervals, all of one kind (numbers, or text)."""

    def __init__(self) -> None:
        self._size = 0
        self._unbounded = Bitmap()  # no lower bound
        self._lows = Thresholds()
        self._highs = Thresholds()

    def __len__(self) -> int:
        return self._size

    def add(self, low: Bound | None, high: Bound | None, number: int) -> None:
        """File a number under an interval; None is no bound."""
        self._size += 1
        if low is None:
            self._unbounded.add(number)
        else:
            self._lows.add(low, number)
        if high is not None:
            self._highs.add(high, number)

    def remove(self, low: Bound | None, high: Bound | None, number: int) -> None:
        """Undo `add`."""
        self._size -= 1
        if low is None:
            self._unbounded.discard(number)
        else:
            self._lows.remove(low, number)
        if high is not None:
            self._highs.remove(high, number)

    def holding(self, value: str | int | float) -> Bitmap:
        """Return the numbers whose intervals contain the value; a new bitmap."""
        here = Bound(value, 0)
        started, started_last = self._lows.passed(here)
        ended, ended_last = self._highs.passed(here)
        # The two large sets are joined once, and the result is usually small.
        held = started - ended
        held |= started_last - ended
        if self._unbounded:
            held |= self._unbounded - ended
        held -= ended_last
        return held
