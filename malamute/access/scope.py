"""What somebody may do with one thing: which subjects, and of a stream which rows.

A deny wins over any allow, so nothing here depends on an order. A subscription that asks for more than it may
have is *narrowed*: to the subjects that are allowed, and by a condition that is added to its own.
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
"""Criteria and rules that are compared with each other. With more, the condition alone decides."""


class Grant(NamedTuple):
    """A rule, and whose it is: `everybody`, `group NAME` or `user NAME`."""

    owner: str
    rule: AccessRule

    def __str__(self) -> str:
        return f"{self.rule} ({self.owner})"


class Decision(NamedTuple):
    """Whether something is allowed, and by which rule; None if there is no rule about it.

    It is `limited` if not all of it is allowed: some subjects, or some rows.
    """

    allowed: bool
    limited: bool = False
    by: Grant | None = None


class Term(NamedTuple):
    """What a rule says of one thing: a pattern of subjects, and a condition; both are empty for all."""

    by: Grant
    subject: str
    where: str

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms of its subjects."""
        return forms("topic", self.subject or ALL_SUBJECTS)


Shape = tuple[Form, ...] | None
"""The forms of a criterion; None if it takes subjects that no form says."""


class Scope:
    """The rules about one thing, and what they come to."""

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
        """Whether it is allowed under a subject; without one, as far as any subject is."""
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
        """A selector for what is allowed of all that this one takes.

        Raises:
            AccessRefused: nothing is left.
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
        """A condition for all that is allowed; empty if these criteria take nothing else."""
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
        """A condition for each rule that denies something of what these criteria take."""
        for term in self.deny:
            if any(_meets(term, shape) for shape in shapes):
                words = [_under([term], shapes), term.where]
                yield "not (" + " and ".join(f"({part})" for part in words if part) + ")"


class CommonScope:
    """What each of several scopes allows: one can only narrow what the others do."""

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
        """As `Scope.decide`: the first that does not allow it decides."""
        decisions = [scope.decide(subject) for scope in self._scopes]
        refused = next((decision for decision in decisions if not decision.allowed), None)
        return refused or Decision(True, any(each.limited for each in decisions), decisions[-1].by)

    def narrow(self, selector: Selector) -> Selector:
        """As `Scope.narrow`, by one after the other. Raises `AccessRefused` if nothing is left."""
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
    """The condition that a subject is one of some terms; empty if all that these criteria take are."""
    if any(all(_covers(term, shape) for shape in shapes) for term in terms):
        return ""
    patterns = {expression_of(form, unmarked): None for term in terms for form in term.forms}
    if "" in patterns:
        return ""
    return f"subject matches {value_text('|'.join(patterns))}"
