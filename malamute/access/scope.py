"""The scope of an action on one resource: its allowed subjects and, of a stream, rows.

A deny wins over any allow, so nothing here depends on an order. A subscription to more than
is allowed is *narrowed*: to the allowed subjects, and by a condition beside its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from malamute.access.rule import AccessRule
from malamute.access.template import PatternTable, is_marked, marked, unmarked
from malamute.errors import AccessRefused
from malamute.matching import Criterion, Selector, parse_normal
from malamute.matching.expression import value_text
from malamute.matching.pattern import MANY, Form, expression_of, forms, overlaps, subsumes

ALL_SUBJECTS = "#"

PAIRS_MAX = 4_096
"""Pairs of criteria and rules that are compared. With more, the condition alone decides."""


class Grant(NamedTuple):
    """A rule with its owner: `everybody`, `group NAME` or `user NAME`."""

    owner: str
    rule: AccessRule

    def __str__(self) -> str:
        return f"{self.rule} ({self.owner})"


class Decision(NamedTuple):
    """Whether an action is allowed, and the deciding rule; None without a rule about it.

    The action is `limited` if it is allowed for some subjects or rows.
    """

    allowed: bool
    limited: bool = False
    by: Grant | None = None


class Term(NamedTuple):
    """The part of a rule about one resource: a pattern of subjects, and a condition; both empty for all."""

    by: Grant
    subject: str
    where: str

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms of its subjects."""
        return forms("topic", self.subject or ALL_SUBJECTS)


Shape = tuple[Form, ...] | None
"""The forms of a criterion; None if it matches subjects without a form."""


class Scope:
    """The rules about one resource, and the decision by them."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self.allow: list[Term] = []
        self.deny: list[Term] = []
        for term in terms:
            (self.deny if term.by.rule.deny else self.allow).append(term)
        self._allowed, self._denied = map(_by_subject, (self.allow, self.deny))

    @property
    def is_open(self) -> bool:
        """Whether everything is allowed."""
        return not self.deny and any(not (term.subject or term.where) for term in self.allow)

    def decide(self, subject: str | None = None) -> Decision:
        """Return the decision about a subject; without one, about any subject."""
        if subject is None:
            allow, deny = self.allow, self.deny
            whole = [term for term in deny if not term.subject]
        else:
            text = marked(subject)
            allow, deny = self._allowed.fitting(text), self._denied.fitting(text)
            whole = deny
        if found := [term for term in whole if not term.where]:
            return Decision(False, by=found[0].by)
        if not allow:
            return Decision(False)
        full = [term for term in allow if not term.where and (subject is not None or not term.subject)]
        return Decision(True, not full or bool(deny), (full or allow)[0].by)

    def narrow(self, selector: Selector) -> Selector:
        """Return a selector for the allowed part of this one.

        Raises:
            AccessRefused: no part is allowed.
        """
        if self.is_open:
            return selector
        few = len(selector.criteria) * (len(self.allow) + len(self.deny)) <= PAIRS_MAX
        criteria = self._narrowed(selector.criteria) if few else [*selector.criteria]
        if not criteria or not self.allow:
            raise AccessRefused("nothing of what it asks for is allowed")
        shapes = [*map(_shape_of, criteria)] if few else [None]
        conditions = [selector.where, self._allowing(shapes), *self._denying(shapes)]
        where = " and ".join(f"({condition})" for condition in conditions if condition)
        return Selector(tuple(criteria), str(parse_normal(where)) if where else "")

    def _narrowed(self, criteria: Sequence[Criterion]) -> list[Criterion]:
        found = {narrow: None for criterion in criteria for narrow in self._narrowed_one(criterion)}
        return sorted(found, key=repr)

    def _narrowed_one(self, criterion: Criterion) -> list[Criterion]:
        shape = _shape_of(criterion)
        meeting = [term for term in self.allow if _meets(term, shape)]
        if not meeting or any(not term.where and _covers(term, shape) for term in self.deny):
            return []
        if any(_covers(term, shape) for term in meeting):
            return [criterion]
        if shape and all(subsumes(shape, term.forms) and not is_marked(term.subject) for term in meeting):
            return [Criterion("topic", term.subject) for term in meeting]
        return [criterion]

    def _allowing(self, shapes: Sequence[Shape]) -> str:
        """Return a condition for all that is allowed; empty if these criteria match no more."""
        free = [term for term in self.allow if not term.where]
        if all(any(_covers(term, shape) for term in free) for shape in shapes):
            return ""
        conditions: list[str] = []
        for where in dict.fromkeys(term.where for term in self.allow):
            terms = [term for term in self.allow if term.where == where]
            words = [_under(terms, shapes), where]
            conditions.append(" and ".join(f"({part})" for part in words if part))
        return " or ".join(f"({condition})" for condition in conditions)

    def _denying(self, shapes: Sequence[Shape]) -> Iterator[str]:
        """Return a condition for each rule that denies a part of these criteria."""
        for term in self.deny:
            if any(_meets(term, shape) for shape in shapes):
                words = [_under([term], shapes), term.where]
                yield "not (" + " and ".join(f"({part})" for part in words if part) + ")"


class CommonScope:
    """The intersection of several scopes: each can only narrow the others."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self._scopes = scopes

    @property
    def deny(self) -> list[Term]:
        """The rules that deny something."""
        return [term for scope in self._scopes for term in scope.deny]

    @property
    def is_open(self) -> bool:
        """Whether everything is allowed."""
        return all(scope.is_open for scope in self._scopes)

    def decide(self, subject: str | None = None) -> Decision:
        """Return the decision of the first scope that refuses; see `Scope.decide`."""
        decisions = [scope.decide(subject) for scope in self._scopes]
        refused = next((decision for decision in decisions if not decision.allowed), None)
        return refused or Decision(True, any(each.limited for each in decisions), decisions[-1].by)

    def narrow(self, selector: Selector) -> Selector:
        """Return a selector narrowed by each scope. Raises `AccessRefused` if no part is allowed."""
        for scope in self._scopes:
            selector = scope.narrow(selector)
        return selector


def _by_subject(terms: Sequence[Term]) -> PatternTable[Term]:
    return PatternTable((term.subject or ALL_SUBJECTS, term) for term in terms)


def _shape_of(criterion: Criterion) -> Shape:
    family, pattern = criterion
    if family == "all":
        return ((MANY,),)
    if family == "exact":
        return (tuple(marked(pattern).split(".")),)
    if family in ("topic", "topic-amqp") and not is_marked(pattern):
        return forms(family, pattern)  # type: ignore[arg-type]  # one of its dialects
    return None


def _covers(term: Term, shape: Shape) -> bool:
    return not term.subject or (shape is not None and subsumes(term.forms, shape))


def _meets(term: Term, shape: Shape) -> bool:
    return shape is None or overlaps(term.forms, shape)


def _under(terms: Sequence[Term], shapes: Sequence[Shape]) -> str:
    """Return the condition that a subject is in some terms; empty if all subjects of the criteria are."""
    if any(all(_covers(term, shape) for shape in shapes) for term in terms):
        return ""
    patterns = {expression_of(form, unmarked): None for term in terms for form in term.forms}
    if "" in patterns:
        return ""
    return f"subject matches {value_text('|'.join(patterns))}"
