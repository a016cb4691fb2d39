"""Which numbers of a session were refused, and how: runs of codes, small enough to be kept for everybody.

A client whose connection broke sends its unanswered commands again, and each that was refused is refused
again with the same code. The words are not kept: they may be long, and a stranger could have them stored by
the thousand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from malamute.protocol.batch import pack, unpack
from malamute.protocol.messages import Error

RUNS_MAX = 100
"""Runs of refused numbers that a session keeps: some 3 KiB of memory, and at most 2 KiB in the store."""

TEXT = "this number was refused before, when it was sent first"
"""The words of a repeated refusal."""

_OPCODES = 1 << 8


class Refusals:
    """Runs of refused numbers in order, each with one code and one command."""

    __slots__ = ("_firsts", "_kinds", "_lasts")

    def __init__(self) -> None:
        # Arrays, since there may be as many of these as there are sessions.
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._kinds = array("L")

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Each run: its first and last number, the code, and the opcode of the commands."""
        for first, last, kind in zip(self._firsts, self._lasts, self._kinds, strict=True):
            yield first, last, *divmod(kind, _OPCODES)

    def add(self, first: int, last: int, code: int, opcode: int) -> int:
        """Add a run. Returns the last number that was dropped for it, the oldest one, or 0."""
        kind = code * _OPCODES + opcode
        place = bisect_right(self._firsts, first)
        if place and self._lasts[place - 1] == first - 1 and self._kinds[place - 1] == kind:
            self._lasts[place - 1] = last
        else:
            self._firsts.insert(place, first)
            self._lasts.insert(place, last)
            self._kinds.insert(place, kind)
        if len(self) <= RUNS_MAX:
            return 0
        dropped = self._lasts[0]
        self._drop(1)
        return dropped

    def answer(self, number: int) -> Error | None:
        """The answer to a number that was refused."""
        place = bisect_right(self._firsts, number) - 1
        if place < 0 or self._lasts[place] < number:
            return None
        code, opcode = divmod(self._kinds[place], _OPCODES)
        return Error(code, TEXT, opcode, number)

    def forget_before(self, number: int) -> None:
        """Drop the runs that end before a number."""
        self._drop(bisect_right(self._lasts, number - 1))

    def _drop(self, count: int) -> None:
        for column in (self._firsts, self._lasts, self._kinds):
            del column[:count]

    def pack(self) -> bytes:
        """The form that is stored: of each run the distance from the one before, length, code and opcode."""
        flat: list[int] = []
        before = 0
        for first, last, code, opcode in self:
            flat += (first - before, last - first, code, opcode)
            before = last
        value: bytes = pack(flat)
        return value

    @classmethod
    def unpack(cls, value: bytes) -> Refusals:
        """Read the stored form."""
        refusals, before = cls(), 0
        columns = iter(unpack(value))
        for distance, length, code, opcode in zip(columns, columns, columns, columns, strict=True):
            first = before + distance
            before = first + length
            refusals.add(first, before, code, opcode)
        return refusals
