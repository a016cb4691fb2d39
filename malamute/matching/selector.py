"""The selector of a subscription: criteria, of which one must match, and a condition.

A selector is a value. Two subscriptions with the same request have equal selectors, and share one
bit in the index (RFC 003: of 10,000 requests perhaps 100 are distinct). So a selector is always
normalised: each pattern in the normal form of its family, criteria sorted and without repetition,
and the condition as the text of its parsed expression.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from malamute.errors import InvalidSelector
from malamute.matching.expression import And, EnvelopeField, Expression, Matches, Not, Or
from malamute.matching.family import TERM_BYTES, family_named
from malamute.matching.parser import parse, parse_normal
from malamute.matching.plan import plan_of
from malamute.matching.regex import REGEX_BYTES

CRITERIA_MAX = 256
"""The most criteria of one selector."""

SELECTOR_BYTES = 1_000
"""The bytes of any subscription, without its patterns."""

PATTERN_FACTOR = 2
"""Bytes for each character of a pattern: its family has it once more."""

WHERE_CHARACTERS = 32
"""Characters of a condition that cost about as much as one test."""

REGEX_WORK = 4
"""The cost of trying a regular expression, in tests."""

WHERE_FACTOR = 64
"""Bytes for each character of a condition: its tree and its compiled functions."""


class Criterion(NamedTuple):
    """One family and its pattern; the pattern is hashable, and serializable by msgpack."""

    family: str
    pattern: Any

    @classmethod
    def parse(cls, family: Any, pattern: Any) -> Criterion:
        """Return the normalised criterion; raises InvalidSelector for an invalid pattern."""
        kind = family_named(family)
        try:
            normal = kind.normalise(pattern)
            hash(normal)
        except InvalidSelector:
            raise
        except Exception as error:  # a foreign family may raise any exception
            raise InvalidSelector(f"pattern refused by family {family!r}: {error}") from error
        return cls(kind.name, normal)


class Selector(NamedTuple):
    """A message matches if any of the criteria matches it, and `where` is true or empty."""

    criteria: tuple[Criterion, ...]
    where: str = ""

    @classmethod
    def parse(cls, criteria: Iterable[Any], where: str = "") -> Selector:
        """Return the normalised selector of pairs [family, pattern]; raises InvalidSelector."""
        if isinstance(criteria, str) or not isinstance(criteria, Iterable):
            raise InvalidSelector("invalid criteria: expected a list of pairs of a family and a pattern")
        parsed: dict[Criterion, None] = {}
        for pair in criteria:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise InvalidSelector("invalid criterion: expected a pair of a family and a pattern")
            parsed[Criterion.parse(*pair)] = None
        if not isinstance(where, str):
            raise InvalidSelector(f"invalid match expression: expected text, found {type(where).__name__}")
        if not parsed:
            raise InvalidSelector("no criterion: expected at least one")
        if len(parsed) > CRITERIA_MAX:
            raise InvalidSelector(f"too many criteria: expected at most {CRITERIA_MAX}")
        return cls(tuple(sorted(parsed, key=repr)), str(parse(where)) if where.strip() else "")

    @property
    def needs_headers(self) -> bool:
        """Whether the selector reads headers or the sender."""
        looked_at = parse_normal(self.where).attributes() - {EnvelopeField.SUBJECT} if self.where else ()
        return bool(looked_at) or any(family_named(name).needs_headers for name, _ in self.criteria)

    @property
    def work(self) -> int:
        """The cost of a message that hits the selector, in tests to evaluate; 0 if the terms decide."""
        work = sum(family_named(name).work_of(patterns) for name, patterns in by_family(self))
        if self.where and not plan_of(expression := parse_normal(self.where)).exact:
            work += 1 + len(self.where) // WHERE_CHARACTERS + REGEX_WORK * len(_regexes(expression))
        return work

    @property
    def cost_bytes(self) -> int:
        """The estimated bytes of the selector in an index, computed before it is filed."""
        size_bytes = SELECTOR_BYTES
        for name, patterns in by_family(self):
            text_bytes = sum(len(repr(pattern)) for pattern in patterns)
            size_bytes += text_bytes * PATTERN_FACTOR + family_named(name).cost_bytes(patterns)
        if self.where:
            expression = parse_normal(self.where)
            regexes = _regexes(expression)
            size_bytes += len(self.where) * WHERE_FACTOR + len(regexes) * REGEX_BYTES
            size_bytes += plan_of(expression).terms * TERM_BYTES
        return size_bytes


def by_family(selector: Selector) -> list[tuple[str, list[Any]]]:
    """Return the patterns of each family."""
    # The criteria of a selector are sorted, so those of one family are neighbors.
    return [
        (name, [criterion.pattern for criterion in criteria])
        for name, criteria in groupby(selector.criteria, attrgetter("family"))
    ]


def _regexes(expression: Expression) -> set[str]:
    if isinstance(expression, And | Or):
        return set().union(*map(_regexes, expression.items))
    if isinstance(expression, Not):
        return _regexes(expression.item)
    return {expression.pattern} if isinstance(expression, Matches) else set()
