"""How an expression is filed in an index: its clauses, and the terms and ranges of each.

The expression is brought into disjunctive normal form: clauses of tests, of which one must hold.
`Not` is moved inward, `And` is multiplied out. Of each clause,

- equality tests become terms (attribute, value), and so does presence: (attribute, PRESENT);
- an area becomes one term for each cell of its cover;
- where a test allows several terms, the clause gets a path for each way to choose one;
- ranges and prefixes become intervals, one for each attribute, and the presence of that attribute.

What terms and intervals cannot say exactly they say as a superset, and the plan is not `exact`: who
uses it evaluates the expression for each hit. That is so for `!=`, `not` and `matches`, for areas, for
the values 0, 1, true and false (Python's dict takes 1 for true), and for whatever would need more
than CLAUSES_MAX clauses or paths; what is left out then is left to the check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from malamute.matching.expression import (
    And,
    Attribute,
    Bound,
    Differs,
    Exists,
    Expression,
    Matches,
    Not,
    OneOf,
    Or,
    Prefix,
    Range,
    Within,
)

CLAUSES_MAX = 256
"""The most clauses that an expression is expanded to, and the most paths of one clause."""

Term = tuple[Any, Any]
"""An attribute and its value; (attribute, PRESENT); or a pair of attributes and a cell."""

Ranged = tuple[Attribute, str]
"""An attribute, and the kind of the values that it is compared with."""

PRESENT = object()
"""Stands for whatever value an attribute has."""


class Clause(NamedTuple):
    """One alternative of an expression: where it is filed."""

    paths: tuple[tuple[Term, ...], ...]
    ranges: tuple[tuple[Ranged, Bound | None, Bound | None], ...]
    exact: bool


class Plan(NamedTuple):
    """All clauses of an expression; not `exact` means that a hit must be checked."""

    clauses: tuple[Clause, ...]
    exact: bool


def plan_of(expression: Expression) -> Plan:
    """How an expression is filed."""
    clauses = tuple(map(_clause, _clauses(expression, negated=False)))
    return Plan(clauses, all(clause.exact for clause in clauses))


Literals = tuple[Expression, ...]


def _clauses(expression: Expression, negated: bool) -> list[Literals]:
    # Not goes inward (De Morgan); And multiplies out, Or joins.
    if isinstance(expression, Not):
        return _clauses(expression.item, not negated)
    if not isinstance(expression, And | Or):
        return [(Not(expression),) if negated else (expression,)]
    parts = [_clauses(item, negated) for item in expression.items]
    if isinstance(expression, Or) != negated:
        joined = [clause for part in parts for clause in part]
        return joined if len(joined) <= CLAUSES_MAX else [(_OPAQUE,)]
    return reduce(_multiplied, sorted(parts, key=len))


def _multiplied(left: list[Literals], right: list[Literals]) -> list[Literals]:
    if len(left) * len(right) > CLAUSES_MAX:
        return [(*clause, _OPAQUE) for clause in left]  # leave the longer side to the check
    return [(*a, *b) for a in left for b in right]


_OPAQUE = Not(Exists(""))
"""Stands for what is left to the check; like every Not, it is filed under nothing."""


class _Draft:
    """A clause while its literals are read."""

    def __init__(self) -> None:
        self.terms: list[tuple[Term, ...]] = []  # of each, one term must be said
        self.ranges: dict[Ranged, tuple[Bound | None, Bound | None]] = {}
        self.exact = True

    def one_of(self, test: OneOf) -> None:
        self.terms.append(tuple((test.attribute, value) for value in test.values))
        self.exact &= not any(value in (0, 1) for value in test.values)

    def exists(self, test: Exists | Differs | Matches) -> None:
        self.terms.append(((test.attribute, PRESENT),))
        self.exact &= isinstance(test, Exists)

    def range(self, test: Range) -> None:
        self._narrow((test.attribute, test.kind), test.low, test.high)

    def prefix(self, test: Prefix) -> None:
        end = _behind(test.text)
        self._narrow((test.attribute, "text"), Bound(test.text, 0), Bound(end, 0) if end else None)

    def within(self, test: Within) -> None:
        pair = (test.latitude, test.longitude)
        self.terms.append(tuple((pair, cell) for cell in test.area.cover()))
        self.exact = False

    def other(self, test: Expression) -> None:
        self.exact = False

    def _narrow(self, ranged: Ranged, low: Bound | None, high: Bound | None) -> None:
        known_low, known_high = self.ranges.get(ranged, (None, None))
        low = max(filter(None, (low, known_low)), default=None)
        high = min(filter(None, (high, known_high)), default=None)
        self.ranges[ranged] = (low, high)
        self.terms.append(((ranged[0], PRESENT),))


_READ: dict[type[Expression], Callable[[_Draft, Any], None]] = {
    OneOf: _Draft.one_of,
    Exists: _Draft.exists,
    Differs: _Draft.exists,
    Matches: _Draft.exists,
    Range: _Draft.range,
    Prefix: _Draft.prefix,
    Within: _Draft.within,
}


def _behind(text: str) -> str:
    # The first text behind all that begin with this one; empty when there is none.
    text = text.rstrip("\U0010ffff")
    return text[:-1] + chr(ord(text[-1]) + 1) if text else ""


def _clause(literals: Literals) -> Clause:
    draft = _Draft()
    for literal in dict.fromkeys(literals):
        _READ.get(type(literal), _Draft.other)(draft, literal)
    factors = sorted(dict.fromkeys(draft.terms), key=len)
    paths: list[tuple[Term, ...]] = [()]
    for alternatives in factors:
        if len(paths) * len(alternatives) > max(CLAUSES_MAX, len(factors[0])):
            draft.exact = False
            break
        paths = [(*path, term) for path, term in product(paths, alternatives)]
    ranges = tuple((ranged, *draft.ranges[ranged]) for ranged in sorted(draft.ranges, key=repr))
    return Clause(tuple(paths), ranges, draft.exact)
