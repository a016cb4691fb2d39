"""Families: the kinds of criteria, by name, and their interface.

A criterion is a family's name and a pattern. The family knows two functions (RestMS notes):

    F2(pattern)  the terms that a request is filed under, when it is added
    F1(message)  the terms of a message, when it is matched

and the index holds for each term the bitmap of the selectors filed under it, its *row*. A message
hits the rows of its terms. For most families the terms are equivalent to the pattern. Other families
are not `exact`: each selector that was hit is checked against its patterns, so that a false positive is never
delivered (RFC 003, post-filtering).

A family that reads the subject alone is called once for each new subject. A family that `needs_headers` is
called for each message, and only while some selector uses it.

New families register by name, in one of two ways; the broker does not change:

    register(MyFamily)                                   from a program
    [project.entry-points."malamute.families"]           from an installed package,
    mine = "my_package:MyFamily"                         found by load_plugins()

The easiest way to write one is to derive from `TermFamily` and give it F1 and F2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap, union

ENTRY_POINT_GROUP = "malamute.families"

PATTERN_CHARACTERS_MAX = 1024
"""The longest pattern of a subject family, in characters."""

TERM_BYTES = 600
"""The bytes of an entry under a term, with its share of the tables."""

Headers = Mapping[str, Any]
"""Header names and their values: text, numbers, booleans, or None for a bare presence."""


class Family(ABC):
    """One kind of criterion: its patterns, and the rows of the patterns in use.

    The class knows its patterns; an instance holds the selectors of one index. A pattern is the result of
    `normalise`: hashable, and serializable by msgpack (tuples become lists).
    """

    name: ClassVar[str]
    needs_headers: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def normalise(cls, pattern: Any) -> Hashable:
        """Return the normal form of a pattern, so that equal requests are equal values.

        The parameter is a value from the wire, or an earlier result. Raises InvalidSelector.
        """

    @classmethod
    def cost_bytes(cls, patterns: Sequence[Any]) -> int:
        """Return the estimated bytes of filed patterns, in addition to their text."""
        return TERM_BYTES * len(patterns)

    @classmethod
    def work_of(cls, patterns: Sequence[Any]) -> int:
        """Return the tests that a message may cost beyond the terms of these patterns."""
        return 0

    @classmethod
    @abstractmethod
    def matches(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether one pattern matches one message, exactly and without the index."""

    @classmethod
    def explain(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> str:
        """Return the reason of a mismatch, in words; empty for a match."""
        if cls.matches(pattern, subject, headers, sender):
            return ""
        return f"{cls.name} {pattern!r} does not match {subject!r}"

    @abstractmethod
    def add(self, number: int, patterns: Sequence[Any]) -> None:
        """File a selector under all of its patterns of this family."""

    @abstractmethod
    def remove(self, number: int, patterns: Sequence[Any]) -> None:
        """Undo `add`; called with the same arguments."""

    @abstractmethod
    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Return the rows that a message hits: together exactly the matching selectors.

        The caller does not change the rows, and holds them only until the next `add` or `remove`.
        """

    def saved(self) -> tuple[Any, list[int]] | None:
        """Return tables for msgpack, and the selectors that are not in them; None without tables.

        Loading an index files the other selectors anew; without tables, all of the family.
        """
        return None

    def restore(self, tables: Any, selectors: Bitmap) -> None:
        """Restore the tables of `saved` in a new instance.

        Tables from any source are checked: raises ValueError or TypeError for invalid tables, or for rows
        with other numbers than these selectors.
        """
        raise ValueError(f"family {self.name!r} has no tables")

    @property
    def work(self) -> int:
        """The number of expressions that a message may have to be evaluated for, beyond look-ups of terms."""
        return 0


class TermFamily(Family):
    """A family with its two functions. Set `exact` to False if equal terms do not imply a match."""

    exact: ClassVar[bool] = True

    def __init__(self) -> None:
        self._rows: dict[Hashable, Bitmap] = {}
        self._patterns: dict[int, Sequence[Any]] = {}  # by selector; only if matches are checked

    @abstractmethod
    def request_terms(self, pattern: Any) -> Iterable[Hashable]:
        """F2: return the terms of a pattern. A matching message has at least one of them."""

    @abstractmethod
    def message_terms(self, subject: str, headers: Headers, sender: str) -> Iterable[Hashable]:
        """F1: return the terms of a message."""

    def add(self, number: int, patterns: Sequence[Any]) -> None:
        """File a selector under the terms of its patterns."""
        for term in [term for pattern in patterns for term in self.request_terms(pattern)]:
            self._rows.setdefault(term, Bitmap()).add(number)
        if not self.exact:
            self._patterns[number] = patterns

    def remove(self, number: int, patterns: Sequence[Any]) -> None:
        """Remove a selector from the rows of its terms, and empty rows."""
        for term in [term for pattern in patterns for term in self.request_terms(pattern)]:
            discard(self._rows, term, number)
        self._patterns.pop(number, None)

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Return the rows of the message's terms, checked if the terms are not exact."""
        find = self._rows.get
        hits = [row for term in self.message_terms(subject, headers, sender) if (row := find(term))]
        if self.exact or not hits:
            return hits
        return [self._checked(union(hits), subject, headers, sender)]

    def _checked(self, candidates: Bitmap, subject: str, headers: Headers, sender: str) -> Bitmap:
        return Bitmap(
            number
            for number in candidates
            if any(self.matches(pattern, subject, headers, sender) for pattern in self._patterns[number])
        )


def discard(rows: dict[Any, Bitmap], term: Hashable, number: int) -> None:
    """Remove a number from the row of a term, and an empty row from the table."""
    row = rows.get(term)
    if row is not None:
        row.discard(number)
        if not row:
            del rows[term]


def checked_text(family: str, pattern: Any) -> str:
    """Return the pattern if it is text within the limit; raises InvalidSelector."""
    if not isinstance(pattern, str):
        raise InvalidSelector(
            f"invalid pattern of family {family!r}: expected text, found {type(pattern).__name__}"
        )
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidSelector(
            f"pattern too long: expected at most {PATTERN_CHARACTERS_MAX} characters", PATTERN_CHARACTERS_MAX
        )
    return pattern


FAMILIES: dict[str, type[Family]] = {}
"""Every known family, by name."""


def register(family: type[Family]) -> type[Family]:
    """Register a family under its name, which must be unique; usable as a decorator.

    Raises:
        ValueError: another family has this name.
    """
    known = FAMILIES.setdefault(family.name, family)
    if known is not family:
        raise ValueError(f"a family named {family.name!r} is already registered")
    return family


def load_plugins() -> list[str]:
    """Register the families of installed packages; return their names.

    Reads the metadata of installed packages, so a program calls it once, at its start.
    """
    return [register(entry.load()).name for entry in entry_points(group=ENTRY_POINT_GROUP)]


def family_named(name: Any) -> type[Family]:
    """Return the family of this name; raises InvalidSelector without one."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise InvalidSelector(f"unknown family {name!r}: expected {', '.join(sorted(FAMILIES))}")
    return family
