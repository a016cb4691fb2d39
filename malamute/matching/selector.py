"""What a subscription asks for: criteria, of which one must match, and a condition.

A selector is a value. Two subscriptions that ask for the same have equal selectors, and share one
bit in the index (RFC 003: of 10,000 requests perhaps 100 are distinct). So a selector is always
normalised: each pattern in its family's one true form, criteria sorted and without repetition,
and the condition written out again from what was understood of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from malamute.errors import InvalidSelector
from malamute.matching.family import family_named
from malamute.matching.parser import parse

CRITERIA_MAX = 256
"""The most criteria of one selector."""


class Criterion(NamedTuple):
    """One family and its pattern; the pattern is hashable and made of what msgpack can carry."""

    family: str
    pattern: Any

    @classmethod
    def parse(cls, family: Any, pattern: Any) -> Criterion:
        """The normalised criterion; raises InvalidSelector when it cannot be understood."""
        kind = family_named(family)
        try:
            normal = kind.normalise(pattern)
            hash(normal)
        except InvalidSelector:
            raise
        except Exception as error:  # a family from outside may raise anything
            raise InvalidSelector(f"family {family!r} refused the pattern: {error}") from error
        return cls(kind.name, normal)


class Selector(NamedTuple):
    """A message matches if any of the criteria matches it, and `where` is true or empty."""

    criteria: tuple[Criterion, ...]
    where: str = ""

    @classmethod
    def parse(cls, criteria: Iterable[Any], where: str = "") -> Selector:
        """The normalised selector of pairs [family, pattern]; raises InvalidSelector."""
        if isinstance(criteria, str) or not isinstance(criteria, Iterable):
            raise InvalidSelector("criteria are a list of pairs of a family and a pattern")
        parsed: dict[Criterion, None] = {}
        for pair in criteria:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise InvalidSelector("a criterion is a pair of a family and a pattern")
            parsed[Criterion.parse(*pair)] = None
        if not isinstance(where, str):
            raise InvalidSelector(f"a match expression is text, not {type(where).__name__}")
        if not parsed:
            raise InvalidSelector("a selector needs at least one criterion")
        if len(parsed) > CRITERIA_MAX:
            raise InvalidSelector(f"more than {CRITERIA_MAX} criteria")
        return cls(tuple(sorted(parsed, key=repr)), str(parse(where)) if where.strip() else "")
