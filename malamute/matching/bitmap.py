"""Sets of selector numbers as compressed bitmaps: one bit for each selector.

The engine is an *inverted* bitmap index (OpenAMQ RFC 003). The naive way tests every subscription
against a message. The inverted way has, for each possible property of a message (a *term*: "the
second part is eur", "currency is USD"), the set of the subscriptions that ask for it. Matching
is then a handful of look-ups and set operations, for any number of subscriptions.

The sets are Roaring bitmaps (Chambi, Lemire, Kaser, Godin: "Better bitmap performance with Roaring
bitmaps", 2016): sparse ranges are sorted arrays, dense ones words of 64 bits, long runs stay runs.
Bitmaps need no declared size, and their operations work on whole words, never on one bit.

The twenty methods of RFC 003, and their names here:

    new          Bitmap(), Bitmap(numbers)      AND, OR, XOR        &, |, ^ and &=, |=, ^=
    set, clear   add(n), discard(n)             NOT                 complement(size)
    test         n in bitmap                    first, last         first(), last()
    reset        clear()                        next, previous      next(n), previous(n)
    count        len(bitmap)                    the same for clear  first_clear(), last_clear(size),
    serialise    write(stream), read(stream)    bits                next_clear(n), previous_clear(n)

A bitmap has no size of its own, so the methods with an infinite result take a size: a bitmap of
`size` bits has the bits 0 to size - 1.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, chain
from struct import Struct
from typing import Any, BinaryIO, Self

from pyroaring import BitMap

_LENGTH = Struct("<Q")


class Bitmap(BitMap):
    """A set of whole numbers from 0 to 2**32 - 1, iterated in rising order."""

    __slots__ = ()

    def complement(self, size: int) -> Self:
        """Return the numbers below `size` that are not in this set."""
        return self.__class__(self[: self.rank(size - 1)]).flip(0, size) if size > 0 else self.__class__()

    def first(self) -> int | None:
        """Return the lowest number in the set; None for an empty set."""
        return self.min() if self else None

    def last(self) -> int | None:
        """Return the highest number in the set; None for an empty set."""
        return self.max() if self else None

    def next(self, number: int) -> int | None:
        """Return the lowest number in the set above `number`, or None."""
        return self.next_set_bit(number + 1) if self and number < self.max() else None

    def previous(self, number: int) -> int | None:
        """Return the highest number in the set below `number`, or None."""
        below = self.rank(number - 1) if number > 0 else 0
        return self[below - 1] if below else None

    def first_clear(self) -> int:
        """Return the lowest number that is not in the set."""
        return self.next_clear(-1)

    def last_clear(self, size: int) -> int | None:
        """Return the highest number below `size` that is not in the set, or None."""
        return self.previous_clear(size)

    def next_clear(self, number: int) -> int:
        """Return the lowest number above `number` that is not in the set."""
        start = number + 1
        width = 1
        while self.contains_range(start, start + width):
            start, width = start + width, width * 2
        # The first clear bit is now in [start, start + width): halve until one is left.
        while width > 1:
            width //= 2
            if self.contains_range(start, start + width):
                start += width
        return start

    def previous_clear(self, number: int) -> int | None:
        """Return the highest number below `number` that is not in the set, or None."""
        end, width = number, 1
        while end > 0 and self.contains_range(max(0, end - width), end):
            end, width = max(0, end - width), width * 2
        width = min(width, end)
        while width > 1:
            half = width // 2
            if self.contains_range(end - half, end):
                end, width = end - half, width - half
            else:
                width = half
        return end - 1 if end > 0 else None

    def write(self, stream: BinaryIO) -> None:
        """Append the set to a stream: its length in bytes (64 bits, little-endian), then its bytes."""
        data = self.serialize()
        stream.write(_LENGTH.pack(len(data)) + data)

    @classmethod
    def read(cls, stream: BinaryIO) -> Self:
        """Return the next set of a stream. Raises ValueError for a truncated or damaged stream."""
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the stream ends before the length of the bitmap")
        (length,) = _LENGTH.unpack(head)
        data = stream.read(length)
        if len(data) < length:
            raise ValueError("the stream ends inside the bitmap")
        return cls.deserialize(data)


def union(rows: list[Bitmap]) -> Bitmap:
    """Return all numbers of one or more rows. The result may be one of the rows: do not change it."""
    # Two rows at a time: for the few and small rows of a message this is faster than BitMap.union.
    if len(rows) == 1:
        return rows[0]
    total = rows[0] | rows[1]
    for row in rows[2:]:
        total |= row
    return total


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """Return numbers as bytes: 32 bits each, little-endian."""
    return _swapped(array("I", numbers)).tobytes()


def unpack_numbers(data: bytes) -> array[int]:
    """Return the numbers in bytes. Raises ValueError for an incomplete number."""
    numbers = array("I")
    numbers.frombytes(data)
    return _swapped(numbers)


def _swapped(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_rows(rows: Iterable[Iterable[int]]) -> tuple[bytes, bytes]:
    """Return rows as the count of numbers in each, and all of their numbers."""
    lists = [*map(list, rows)]
    return pack_numbers(map(len, lists)), pack_numbers(chain.from_iterable(lists))


class SavedRows(dict[Hashable, Bitmap]):
    """Saved rows by their terms; a row of a single number is an `int` until its first use."""

    def get(self, term: Hashable, default: Any = None) -> Any:
        """Return the row of a term."""
        row = super().get(term, default)
        if type(row) is int:
            row = self[term] = Bitmap((row,))
        return row

    def setdefault(self, term: Hashable, default: Any = None) -> Any:
        """Return the row of a term; `default`, stored, if there was none."""
        if term not in self:
            self[term] = default
        return self.get(term)

    def items(self) -> Any:
        """Return all terms and rows."""
        return [(term, self.get(term)) for term in self]


def unpack_rows(terms: Iterable[Hashable], packed: Sequence[bytes], selectors: Bitmap) -> SavedRows:
    """Return the rows of terms. Raises ValueError for an empty row, or numbers outside of `selectors`."""
    counts, numbers = map(unpack_numbers, packed)
    if sum(counts) != len(numbers) or 0 in counts or not Bitmap(numbers) <= selectors:
        raise ValueError("the rows are not those of the selectors")
    if len(counts) == len(numbers):
        rows: Iterable[Any] = numbers
    else:
        rows = (
            Bitmap(numbers[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)
        )
    return SavedRows(zip(terms, rows, strict=True))
