"""A filter of subjects by *any* of many topic patterns, for receivers of a feed.

A filter needs no set of matches, only a first match. So the rows of the constituent tables are cut
into words of 64 bits, and the words of the rows are joined by AND from left to right: the first
word that is not zero ends the work. Two ideas of "High-speed message matching" make that early:

- a pattern that another one subsumes (`forex.eur` beside `forex.*`) changes no result, so it is left
  out, until the other one is removed;
- patterns with more wildcards match more, so they have the lower bits.

Patterns change rarely, subjects are frequent: the words are compiled at the first subject after a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from malamute.matching.bitmap import Bitmap
from malamute.matching.constituents import ConstituentTables
from malamute.matching.pattern import MANY, WILDCARDS, Dialect, Form, checked_pattern, fits, forms, subsumes
from malamute.matching.shapes import Shapes

WORD_BITS = 64
_WORD = 2**WORD_BITS - 1

Words = list[int]
"""A row, the lowest numbers first."""


class _Table(NamedTuple):
    literals: dict[str, Words]
    null: Words
    other: Words


class Filter:
    """Topic patterns of one dialect. `wildcards_first=False` leaves them in the order of `add`."""

    def __init__(
        self, patterns: Iterable[str] = (), dialect: Dialect = "topic", wildcards_first: bool = True
    ) -> None:
        self._dialect = dialect
        self._wildcards_first = wildcards_first
        self._forms: dict[str, tuple[Form, ...]] = {}
        self._kept: list[str] = []
        self._tables: list[_Table] = []
        self._open: Words = []
        self._stale = True
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: str) -> None:
        """Add a pattern. Raises InvalidSelector."""
        self._forms[pattern] = forms(self._dialect, checked_pattern(self._dialect, pattern))
        self._stale = True

    def remove(self, pattern: str) -> None:
        """Remove a pattern. Raises KeyError."""
        del self._forms[pattern]
        self._stale = True

    @property
    def kept(self) -> list[str]:
        """The patterns that no other one subsumes, in order of their bits."""
        if self._stale:
            self._compile()
        return list(self._kept)

    def matches(self, subject: str) -> bool:
        """Return whether any pattern matches the subject."""
        if self._stale:
            self._compile()
        parts = subject.split(".")
        rows = self._rows(parts)
        for at in range(0, len(self._kept), WORD_BITS):
            word = self._word(rows, at // WORD_BITS)
            if word and self._confirmed(word, at, parts):
                return True
        return False

    def _word(self, rows: list[Words], index: int) -> int:
        word: int = _WORD
        for words in rows:
            word &= words[index]
        return word

    def _confirmed(self, word: int, at: int, parts: Sequence[str]) -> bool:
        while word:
            lowest = word & -word
            pattern = self._kept[at + lowest.bit_length() - 1]
            if any(MANY not in form or fits(form, list(parts)) for form in self._forms[pattern]):
                return True
            word ^= lowest
        return False

    def _rows(self, parts: Sequence[str]) -> list[Words]:
        # The rules of ConstituentTables.rows, on words.
        rows = [
            table.literals.get(part, table.other) for table, part in zip(self._tables, parts, strict=False)
        ]
        if len(parts) > len(self._tables):
            rows.append(self._open)
        elif len(parts) < len(self._tables):
            rows.append(self._tables[len(parts)].null)
        return rows

    def _compile(self) -> None:
        kept = self._without_subsumed()
        if self._wildcards_first:
            kept.sort(key=self._literals)
        self._kept = kept
        tables = ConstituentTables()
        for number, pattern in enumerate(kept):
            tables.add(number, self._forms[pattern])
        self._tables = [
            _Table(
                {part: self._words(row) for part, row in table.literals.items()},
                self._words(table.null),
                self._words(table.other),
            )
            for table in tables.printed()
        ]
        self._open = self._words(tables.open)
        self._stale = False

    def _words(self, row: Bitmap) -> Words:
        words = [0] * -(-len(self._kept) // WORD_BITS)
        for number in row:
            words[number // WORD_BITS] |= 1 << number % WORD_BITS
        return words

    def _literals(self, pattern: str) -> int:
        return sum(part not in WILDCARDS for part in pattern.split("."))

    def _without_subsumed(self) -> list[str]:
        patterns = list(self._forms)
        shapes = Shapes()
        for number, pattern in enumerate(patterns):
            for form in self._forms[pattern]:
                shapes.add(number, form)
        kept: list[str] = []
        for number, pattern in enumerate(patterns):
            special = self._forms[pattern]
            # A wider pattern matches the shortest subject of this one, too, with `*` as an unknown part.
            shortest = [symbol for symbol in special[0] if symbol != MANY]
            wider = [
                other
                for other in Bitmap().union(*shapes.rows(shortest))
                if other != number and subsumes(self._forms[patterns[other]], special)
            ]
            # Of two equivalent patterns, the first one stays.
            equal = [other for other in wider if subsumes(special, self._forms[patterns[other]])]
            if not wider or (len(equal) == len(wider) and number < min(equal)):
                kept.append(pattern)
        return kept
