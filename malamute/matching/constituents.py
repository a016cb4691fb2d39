"""The optimised tables of "High-speed message matching": one table of rows for each position.

A topic is broken into its constituents, and for each position in them there is a table:

    one row for each literal that a pattern has there, one row `other` for every other part, and
    one row `null` for topics that have no part there

so published subjects add no rows, only subscriptions do. A topic takes one
row of each position's table, and the AND of these rows is the result. Three rules shorten the work:

- a topic with more parts than the longest pattern is dropped at once (unless a pattern has a `#`);
- the work stops as soon as the result is empty;
- after the first `null` row the others need no AND. Proof: a bit in the null row k means that its
  pattern takes topics of k parts, since all of its rows before k were taken as well. Then it has the bit in
  every later null row too, and the AND changes nothing.

A bit that takes any part at a position would be in every row of its table. To make a change cost only the
parts of its pattern, the bit is in `other` alone, and joined to a literal's row when that is used; `printed`
returns the rows as the document prints them. From the first `#` on, a pattern takes anything: the parts
behind the `#` are not in the tables, and the caller checks those (`fits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from malamute.matching.bitmap import Bitmap
from malamute.matching.pattern import MANY, ONE, Form


class PositionRows(NamedTuple):
    """The rows of one position."""

    literals: dict[str, Bitmap]
    null: Bitmap
    other: Bitmap


class _Position:
    __slots__ = ("literals", "null", "other")

    def __init__(self, other: Bitmap, null: Bitmap) -> None:
        self.literals: dict[str, Bitmap] = {}
        self.other = other
        self.null = null


class ConstituentTables:
    """Numbers filed under the forms of their patterns; a number may have several."""

    def __init__(self) -> None:
        self._positions: list[_Position] = []
        self._lengths: Counter[int] = Counter()
        self._all = Bitmap()
        self.open = Bitmap()
        """The numbers that take any number of parts, the only ones for a topic over `parts_max`."""

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def parts_max(self) -> int:
        """The parts of the longest pattern."""
        return len(self._positions)

    def add(self, number: int, forms: Sequence[Form]) -> None:
        """File a number under all of its forms."""
        self._lengths.update(map(_length, forms))
        for _ in range(self.parts_max, max(self._lengths)):
            # Every pattern so far ends before the new position, or is open there.
            self._positions.append(_Position(self.open.copy(), self._all.copy()))
        self._all.add(number)
        for form in forms:
            if MANY in form:
                self.open.add(number)
            for position, rows in self._entries(form):
                self._row_for(position, rows).add(number)

    def remove(self, number: int, forms: Sequence[Form]) -> None:
        """Undo `add`; called with the same forms."""
        self._lengths -= Counter(map(_length, forms))
        self._all.discard(number)
        self.open.discard(number)
        for form in forms:
            for position, name in self._entries(form):
                self._row_for(position, name).discard(number)
                if name not in _COMMON and not position.literals[name]:
                    del position.literals[name]
        del self._positions[max(self._lengths, default=0) :]

    def match(self, parts: Sequence[str]) -> Bitmap:
        """Return the numbers with a form that the parts may fit; for forms without `#`, do fit."""
        hits: Bitmap | None = None
        for row in self.rows(parts):
            hits = row if hits is None else hits & row
            if not hits:
                break
        return Bitmap() if hits is None else hits

    def rows(self, parts: Sequence[str]) -> Iterator[Bitmap]:
        """Yield the rows whose AND is the result."""
        if len(parts) > self.parts_max:
            if not self.open:
                return
            yield self.open
        for position, part in zip(self._positions, parts, strict=False):
            row = position.literals.get(part)
            yield position.other if row is None else row | position.other
        if len(parts) < self.parts_max:
            yield self._positions[len(parts)].null

    def printed(self) -> list[PositionRows]:
        """Return the tables as the document prints them."""
        return [
            PositionRows(
                {part: row | position.other for part, row in position.literals.items()},
                position.null,
                position.other,
            )
            for position in self._positions
        ]

    def _entries(self, form: Form) -> Iterator[tuple[_Position, str]]:
        """Yield the rows of a form: the position, and the symbol or the name of a common row."""
        many = form.index(MANY) if MANY in form else len(form)
        for at, position in enumerate(self._positions):
            if at < many:
                yield position, form[at]
            elif MANY in form:
                yield position, ONE
            if at >= _length(form):
                yield position, MANY

    @staticmethod
    def _row_for(position: _Position, name: str) -> Bitmap:
        common = _COMMON.get(name)
        if common is not None:
            row: Bitmap = getattr(position, common)
            return row
        return position.literals.setdefault(name, Bitmap())


_COMMON = {ONE: "other", MANY: "null"}
"""The common rows by the symbol that names them in `_entries`; no literal can have such a name."""


def _length(form: Form) -> int:
    return len(form) - form.count(MANY)
