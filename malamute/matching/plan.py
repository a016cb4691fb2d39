"""The plan of an expression in an index: its clauses, and the terms and ranges of each.

The expression is converted to disjunctive normal form: clauses of tests, of which one must hold.
`Not` is moved inward, `And` is multiplied out. In each clause,

- equality tests become terms (attribute, value), and so does presence: (attribute, PRESENT);
- an area becomes one term for each cell of its cover;
- if tests allow several terms, the clause has a path for each combination;
- ranges and prefixes become intervals, one for each attribute, and the presence of that attribute.

Terms and intervals without an exact equivalent are a superset, and the plan is not `exact`: the
caller evaluates the expression for each hit. That concerns `!=`, `not` and `matches`, areas, the values 0, 1,
true and false (Python's dict takes 1 for true), and plans beyond a bound.

A normal form may be exponentially larger than its expression, so its size is computed before it is built. At
most CLAUSES_MAX clauses of LITERALS_MAX tests are multiplied out, and at most PLAN_TERMS_MAX terms are filed.
The check covers parts that are left out: for `(a or b) and (c or d)` either side alone is a superset.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple

from malamute.matching.expression import (
    And,
    Attribute,
    BeginsWith,
    Bound,
    Differs,
    Exists,
    Expression,
    Matches,
    Not,
    OneOf,
    Or,
    Range,
    Within,
)

CLAUSES_MAX = 256
"""The most clauses that an expression is expanded to."""

LITERALS_MAX = 1_024
"""The most tests in all of these clauses together."""

PLAN_TERMS_MAX = 2_048
"""The most terms that an expression is filed under, counted along each path."""

RANGE_TERMS = 8
"""The cost of an interval, in terms."""

Term = tuple[Any, Any]
"""An attribute and its value; (attribute, PRESENT); or a pair of attributes and a cell."""

Ranged = tuple[Attribute, str]
"""An attribute, and the kind of the values in its comparisons."""

PRESENT = object()
"""The value of a term that holds for any present value."""


class Clause(NamedTuple):
    """One alternative of an expression: its paths and ranges."""

    paths: tuple[tuple[Term, ...], ...]
    ranges: tuple[tuple[Ranged, Bound | None, Bound | None], ...]
    exact: bool


class FilingPlan(NamedTuple):
    """All clauses of an expression; unless `exact`, each hit must be checked."""

    clauses: tuple[Clause, ...]
    exact: bool

    @property
    def terms(self) -> int:
        """The cost of the plan, in terms."""
        return sum(
            len(path) + 1 + RANGE_TERMS * len(clause.ranges)
            for clause in self.clauses
            for path in clause.paths
        )


@lru_cache(maxsize=16)
def plan_of(expression: Expression) -> FilingPlan:
    """Return the plan of an expression."""
    drafts = list(dict.fromkeys(_Draft.read(literals) for literals in _clauses(expression, negated=False)))
    share = PLAN_TERMS_MAX // len(drafts)
    clauses = [_clause(draft, share) for draft in drafts]
    # A clause without terms and ranges is hit by every message, and makes all others redundant.
    met = next((clause for clause in clauses if clause.paths == ((),) and not clause.ranges), None)
    if met is not None and len(clauses) > 1:
        return FilingPlan((met,), exact=False)
    return FilingPlan(tuple(clauses), all(clause.exact for clause in clauses))


Literals = tuple[Expression, ...]


def _clauses(expression: Expression, negated: bool) -> list[Literals]:
    # Not goes inward (De Morgan); And multiplies out, Or joins.
    if isinstance(expression, Not):
        return _clauses(expression.item, not negated)
    if not isinstance(expression, And | Or):
        return [(Not(expression),) if negated else (expression,)]
    parts = [_clauses(item, negated) for item in expression.items]
    if isinstance(expression, Or) != negated:
        fits = sum(map(len, parts)) <= CLAUSES_MAX and sum(map(_literals, parts)) <= LITERALS_MAX
        return [clause for part in parts for clause in part] if fits else [(_OPAQUE,)]
    return reduce(_multiplied, sorted(parts, key=len))


def _literals(clauses: list[Literals]) -> int:
    return sum(map(len, clauses))


def _multiplied(left: list[Literals], right: list[Literals]) -> list[Literals]:
    literals = len(left) * _literals(right) + len(right) * _literals(left)
    if len(left) * len(right) > CLAUSES_MAX or literals > LITERALS_MAX:
        # The check covers the longer side.
        return [clause if clause[-1] is _OPAQUE else (*clause, _OPAQUE) for clause in left]
    return [(*a, *b) for a in left for b in right]


_OPAQUE = Not(Exists(""))
"""A test in place of parts that only the check covers; like every Not, it has no terms."""


class _Draft:
    """A clause while its literals are read. Drafts with the same terms and ranges are equal."""

    def __init__(self) -> None:
        self.terms: list[tuple[Term, ...]] = []  # a message has one term of each
        self.ranges: dict[Ranged, tuple[Bound | None, Bound | None]] = {}
        self.exact = True

    @classmethod
    def read(cls, literals: Literals) -> _Draft:
        """Return the draft of a clause."""
        draft = cls()
        for literal in dict.fromkeys(literals):
            _READ.get(type(literal), cls.other)(draft, literal)
        draft.terms = sorted(dict.fromkeys(draft.terms), key=len)
        return draft

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Draft) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The terms, the ranges and the exactness."""
        return tuple(self.terms), tuple(self.ranges.items()), self.exact

    def one_of(self, test: OneOf) -> None:
        self.terms.append(tuple((test.attribute, value) for value in test.values))
        self.exact &= not any(value in (0, 1) for value in test.values)

    def exists(self, test: Exists | Differs | Matches) -> None:
        self.terms.append(((test.attribute, PRESENT),))
        self.exact &= isinstance(test, Exists)

    def range(self, test: Range) -> None:
        self._narrow((test.attribute, test.kind), test.low, test.high)

    def prefix(self, test: BeginsWith) -> None:
        end = text_behind(test.text)
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
    BeginsWith: _Draft.prefix,
    Within: _Draft.within,
}


def text_behind(text: str) -> str:
    """Return the first text behind all texts with this prefix; empty without one."""
    text = text.rstrip("\U0010ffff")
    return text[:-1] + chr(ord(text[-1]) + 1) if text else ""


def _clause(draft: _Draft, share: int) -> Clause:
    """Return the clause of a draft, with at most `share` terms."""
    names = sorted(draft.ranges, key=repr)
    kept = names[: share // (2 * RANGE_TERMS)]
    exact = draft.exact and kept == names
    paths: list[tuple[Term, ...]] = [()]
    for length, alternatives in enumerate(draft.terms, 1):
        if len(paths) * len(alternatives) * (length + RANGE_TERMS * len(kept)) > share:
            exact = False
            break
        paths = [(*path, term) for path, term in product(paths, alternatives)]
    return Clause(tuple(paths), tuple((ranged, *draft.ranges[ranged]) for ranged in kept), exact)
