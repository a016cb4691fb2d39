"""The families in use by the selectors of an index, and the guard around families from outside.

A family has an instance only while some selector uses it, so a message costs only families in
use: without a `regex` selector, no regular expression is tried (RestMS notes). Families that read the subject
alone are separate from families that need the headers, since the index calls the former once for each new
subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap
from malamute.matching.family import Family, Headers, family_named
from malamute.matching.saved import SavedIndex
from malamute.matching.selector import Selector, by_family

Guard = Callable[[str, Exception], None]
"""Called with the name of a family that raised, and the exception."""


class Criteria:
    """The criteria of numbered selectors, filed in their families."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._families: dict[str, Family] = {}
        self._uses: Counter[str] = Counter()
        self.by_subject: tuple[Family, ...] = ()
        self.by_headers: tuple[Family, ...] = ()

    def add(self, number: int, selector: Selector) -> None:
        """File a selector's criteria. Raises InvalidSelector, and changes nothing, if a family fails."""
        done: list[str] = []
        try:
            for name, patterns in by_family(selector):
                if name not in self._families:
                    self._families[name] = family_named(name)()
                    self._sort()
                done.append(name)
                self._uses[name] += 1
                self._families[name].add(number, patterns)
        except Exception as error:
            self._undo(number, selector, done)
            if isinstance(error, InvalidSelector):
                raise
            raise InvalidSelector(f"pattern refused by family {done[-1]!r}: {error}") from error

    def saved(self) -> dict[str, Any]:
        """Return the tables of families by name, for `restore`; families without tables are left out."""
        return {name: saved for name, family in self._families.items() if (saved := family.saved())}

    def restore(self, saved: SavedIndex) -> None:
        """Restore the tables of all selectors without a condition, in a new object.

        Selectors that are not in the tables are filed anew. Invalid tables may raise any exception.
        """
        numbers = Bitmap(range(len(saved))) - Bitmap(saved.conditions)
        self._uses = saved.uses()
        self._families = {name: family_named(name)() for name in self._uses}
        self._sort()
        anew = dict.fromkeys(self._families.keys() - saved.tables.keys(), frozenset(numbers))
        for name, (tables, left) in saved.tables.items():
            self._families[name].restore(tables, numbers)
            anew[name] = frozenset(left)
        for number in numbers if any(anew.values()) else ():
            for name, patterns in by_family(saved[number]):
                if number in anew[name]:
                    self._families[name].add(number, patterns)

    def remove(self, number: int, selector: Selector) -> None:
        """Remove a selector's criteria."""
        self._undo(number, selector, [name for name, _ in by_family(selector)])

    def rows(self, families: Iterable[Family], subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Return the rows that a message hits in some families; none for a family that raises."""
        hits: list[Bitmap] = []
        for family in families:
            try:
                hits += family.rows(subject, headers, sender)
            except Exception as error:
                self._guard(family.name, error)
        return hits

    @property
    def work(self) -> int:
        """The number of expressions that a message may have to be evaluated for."""
        return sum(family.work for family in self._families.values())

    def _undo(self, number: int, selector: Selector, names: list[str]) -> None:
        for name, patterns in by_family(selector):
            if name not in names:
                continue
            try:
                self._families[name].remove(number, patterns)
            except Exception as error:
                self._guard(name, error)
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._families[name], self._uses[name]
                self._sort()

    def _sort(self) -> None:
        families = self._families.values()
        self.by_subject = tuple(family for family in families if not family.needs_headers)
        self.by_headers = tuple(family for family in families if family.needs_headers)
