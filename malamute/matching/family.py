"""Families: the kinds of criteria, by name, and what each must be able to do.

A criterion is a family's name and a pattern. The family knows two functions (RestMS notes):

    F2(pattern)  the terms that a request is filed under, when it is added
    F1(message)  the terms that a message says, when it is matched

and the index holds for each term the bitmap of the selectors filed under it, its *row*. A message
hits the rows of its terms. For most families the terms say exactly what the pattern says. A family whose
terms can only say "perhaps" is not `exact`, and each selector that was hit is then checked
against its patterns, so that a false positive is never delivered (RFC 003, post-filtering).

A family that depends on the subject alone is asked once for each new subject. One that
`needs_headers` is asked for each message, and only while some selector uses it.

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
"""What being filed under a term takes, with all that leads there."""

Headers = Mapping[str, Any]
"""Header names and their values: text, numbers, booleans, or None for a bare presence."""


class Family(ABC):
    """One kind of criterion: its patterns, and the rows of those that are in use.

    The class knows its patterns; an instance holds the selectors of one index. A pattern is what
    `normalise` returned: hashable, and made of what msgpack can carry (tuples travel as lists).
    """

    name: ClassVar[str]
    needs_headers: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def normalise(cls, pattern: Any) -> Hashable:
        """The pattern in its one true form, so that equal requests are equal values.

        Takes what came over the wire, and its own result again. Raises InvalidSelector.
        """

    @classmethod
    def cost_bytes(cls, patterns: Sequence[Any]) -> int:
        """What filing normalised patterns takes of memory, about. Their text comes on top."""
        return TERM_BYTES * len(patterns)

    @classmethod
    def work_of(cls, patterns: Sequence[Any]) -> int:
        """How many tests a message may cost that the terms of these patterns do not decide."""
        return 0

    @classmethod
    @abstractmethod
    def matches(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> bool:
        """Whether one pattern matches one message, exactly and without the index."""

    @classmethod
    def explain(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> str:
        """Why the pattern does not match the message, for people; empty when it matches."""
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
        """The rows that a message hits: exactly the selectors that match, in any split.

        The caller does not change the rows, and keeps them only until the next add or remove.
        """

    def saved(self) -> tuple[Any, list[int]] | None:
        """Its tables, made of what msgpack carries, and the selectors that are not in them, or None.

        Those are filed anew in an index that is loaded: all of a family that gives None.
        """
        return None

    def restore(self, tables: Any, selectors: Bitmap) -> None:
        """Take up the tables that `saved` gave, into an instance that has nothing yet.

        They may come from anywhere: raises ValueError or TypeError for what it did not write, or for rows
        with others than these selectors.
        """
        raise ValueError(f"family {self.name!r} has no tables")

    @property
    def work(self) -> int:
        """How much more than looking up a few terms a message may take, in expressions to evaluate."""
        return 0


class TermFamily(Family):
    """A family by its two functions. Set `exact` to False if equal terms only mean "perhaps"."""

    exact: ClassVar[bool] = True

    def __init__(self) -> None:
        self._rows: dict[Hashable, Bitmap] = {}
        self._patterns: dict[int, Sequence[Any]] = {}  # by selector; only what must be checked

    @abstractmethod
    def request_terms(self, pattern: Any) -> Iterable[Hashable]:
        """F2: the terms of a pattern. A message that matches says at least one of them."""

    @abstractmethod
    def message_terms(self, subject: str, headers: Headers, sender: str) -> Iterable[Hashable]:
        """F1: the terms of a message."""

    def add(self, number: int, patterns: Sequence[Any]) -> None:
        """File a selector under the terms of its patterns."""
        for term in [term for pattern in patterns for term in self.request_terms(pattern)]:
            self._rows.setdefault(term, Bitmap()).add(number)
        if not self.exact:
            self._patterns[number] = patterns

    def remove(self, number: int, patterns: Sequence[Any]) -> None:
        """Take a selector out of the rows of its terms; empty rows go."""
        for term in [term for pattern in patterns for term in self.request_terms(pattern)]:
            discard(self._rows, term, number)
        self._patterns.pop(number, None)

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """The rows of the message's terms, checked when the terms are not exact."""
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
    """Take a number out of the row of a term, and the row out of the table when it is empty."""
    row = rows.get(term)
    if row is not None:
        row.discard(number)
        if not row:
            del rows[term]


def checked_text(family: str, pattern: Any) -> str:
    """The pattern if it is text within the limit; raises InvalidSelector."""
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
"""Every family that is known, by name."""


def register(family: type[Family]) -> type[Family]:
    """Make a family known under its name; usable as a decorator. A name is given only once.

    Raises:
        ValueError: another family has this name.
    """
    known = FAMILIES.setdefault(family.name, family)
    if known is not family:
        raise ValueError(f"a family named {family.name!r} is already registered")
    return family


def load_plugins() -> list[str]:
    """Register the families that installed packages offer; returns their names.

    Reads the metadata of installed packages, so a program calls it once, at its start.
    """
    return [register(entry.load()).name for entry in entry_points(group=ENTRY_POINT_GROUP)]


def family_named(name: Any) -> type[Family]:
    """The family of this name; raises InvalidSelector when there is none."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise InvalidSelector(f"unknown family {name!r}: expected {', '.join(sorted(FAMILIES))}")
    return family
