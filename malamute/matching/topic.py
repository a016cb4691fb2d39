"""The families `topic` and `topic-amqp`.

A pattern's forms (`pattern.py`) are filed by shape (`shapes.py`), so a new subject costs a look-up
for each shape in use. A client could subscribe with thousands of different shapes: beyond SHAPES_MAX
of one length, forms are filed in the constituent tables (`constituents.py`), at a cost bounded by the
parts of the longest pattern. So both costs are bounded, and the usual one does not grow.

Selectors with a form that floats, or that is in the constituent tables, may have false hits, and are
checked against their patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from malamute.matching.bitmap import Bitmap
from malamute.matching.constituents import ConstituentTables
from malamute.matching.family import TERM_BYTES, Family, Headers, register
from malamute.matching.pattern import Dialect, Form, checked_pattern, fits, forms
from malamute.matching.shapes import Shapes, floats

SHAPES_MAX = 64
"""The most shapes of one length (and the most open ones) that a subject is tried against."""

PART_BYTES = 100
"""The bytes of each part of a form."""


class TopicFamily(Family):
    """Patterns of one dialect; the base of the two families."""

    name: ClassVar[Dialect]

    def __init__(self) -> None:
        self._shapes = Shapes(SHAPES_MAX)
        self._tables = ConstituentTables()
        self._tabled: dict[int, list[Form]] = {}  # by selector: its forms in the tables
        self._unsure: dict[int, list[Form]] = {}  # by selector: all of its forms, if it must be checked

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """Return the pattern if it is well formed."""
        return checked_pattern(cls.name, pattern)

    @classmethod
    def cost_bytes(cls, patterns: Sequence[str]) -> int:
        """Return the estimated bytes of the forms, each filed under all of its parts or each part."""
        return sum(TERM_BYTES + PART_BYTES * len(form) for p in patterns for form in forms(cls.name, p))

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether the subject fits a form of the pattern."""
        parts = subject.split(".")
        return any(fits(form, parts) for form in forms(cls.name, pattern))

    def add(self, number: int, patterns: Sequence[str]) -> None:
        """File a selector under all forms of its patterns."""
        wanted = self._forms(patterns)
        tabled = [form for form in wanted if not self._shapes.add(number, form)]
        if tabled:
            self._tables.add(number, tabled)
            self._tabled[number] = tabled
        if tabled or any(map(floats, wanted)):
            self._unsure[number] = wanted

    def remove(self, number: int, patterns: Sequence[str]) -> None:
        """Undo `add`."""
        tabled = self._tabled.pop(number, ())
        if tabled:
            self._tables.remove(number, tabled)
        for form in self._forms(patterns):
            if form not in tabled:
                self._shapes.remove(number, form)
        self._unsure.pop(number, None)

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Return the rows of the shapes, and of the constituent tables in use."""
        parts = subject.split(".")
        rows = self._shapes.rows(parts)
        if self._tabled:
            rows.append(self._tables.match(parts))
        return self._confirmed(rows, parts) if self._unsure else rows

    def saved(self) -> tuple[Any, list[int]]:
        """Return the shapes, and the selectors to file anew: all that must be checked."""
        return self._shapes.saved(self._unsure), [*self._unsure]

    def restore(self, tables: Any, selectors: Bitmap) -> None:
        """Restore the shapes."""
        self._shapes.restore(tables, selectors)

    def _forms(self, patterns: Sequence[str]) -> list[Form]:
        return [form for pattern in patterns for form in forms(self.name, pattern)]

    def _confirmed(self, rows: list[Bitmap], parts: list[str]) -> list[Bitmap]:
        unsure = {number for row in rows for number in row if number in self._unsure}
        false = Bitmap(n for n in unsure if not any(fits(form, parts) for form in self._unsure[n]))
        return [row - false for row in rows] if false else rows


@register
class Topic(TopicFamily):
    """The seed documents' topics: a final wildcard may be absent."""

    name = "topic"


@register
class TopicAmqp(TopicFamily):
    """AMQP 0-9-1 topics: `#` is zero or more parts."""

    name = "topic-amqp"
