"""Classes of values that every selector of an index treats alike, so that each class is matched once.

An index reads a header only in its tests: `price > 100` distinguishes three classes of prices, below 100, 100
itself and above. So the values in the tests of one attribute divide all values into classes. Each of these
values is a class. Of the other values, those between two bounds of ranges are a class, apart for numbers and
texts. True, false, absent, and the values that compare with nothing are a class each. Two messages with
attributes of the same classes have the same matching selectors. A thousand filters for one value of a header
each have a thousand classes and some, and each class is matched once.

A regular expression can distinguish any two texts, so with one each text is a class of its own. Two kinds
of tests have no classes: areas, since positions rarely repeat, and foreign families that read headers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from malamute.matching.expression import (
    ABSENT,
    And,
    Attribute,
    BeginsWith,
    Differs,
    EnvelopeField,
    Expression,
    Matches,
    Not,
    OneOf,
    Or,
    Range,
    Within,
)
from malamute.matching.family import Headers, family_named
from malamute.matching.fields import ExpressionFamily
from malamute.matching.parser import parse_normal
from malamute.matching.plan import text_behind
from malamute.matching.selector import Selector

ATTRIBUTES_MAX = 4
"""The most attributes with classes: with more, too few combinations would be repeated."""

_TRUE, _FALSE, _OTHER = object(), object(), object()
_EVERY_TEXT = object()
"""The value of an attribute that stands for all texts."""

_NUMBERS_BETWEEN: list[object] = [object()]
_TEXTS_BETWEEN: list[object] = [object()]
"""The classes before the first bound, between the first and the second, and so on."""


class _Values:
    """The values that one attribute is compared with, and the classes between them."""

    def __init__(self) -> None:
        self.uses: Counter[Any] = Counter()
        """The number of tests that compare with each value."""
        self._bounds: Counter[Any] = Counter()
        self._numbers: list[int | float] = []
        self._texts: list[str] = []
        """The bounds of ranges, in order."""

    def add(self, value: Any, *, ordered: bool) -> None:
        self.uses[value] += 1
        if ordered:
            self._bounds[value] += 1
            if self._bounds[value] == 1:
                bounds, between = self._ordered(value)
                insort(bounds, value)
                between.extend(object() for _ in range(len(bounds) + 1 - len(between)))

    def remove(self, value: Any, *, ordered: bool) -> None:
        _decrease(self.uses, value)
        if ordered:
            _decrease(self._bounds, value)
            if value not in self._bounds:
                bounds, _ = self._ordered(value)
                del bounds[bisect_left(bounds, value)]

    def _ordered(self, value: Any) -> tuple[list[Any], list[object]]:
        return (self._texts, _TEXTS_BETWEEN) if isinstance(value, str) else (self._numbers, _NUMBERS_BETWEEN)

    def class_of(self, value: Any) -> Any:
        """Return the class of a value. Raises TypeError for a value that is no scalar."""
        kind = type(value)
        if kind is str:
            if value in self.uses or _EVERY_TEXT in self.uses:
                return value
            return _TEXTS_BETWEEN[bisect_left(self._texts, value)]
        if kind is int or (kind is float and value == value):
            if value in self.uses:
                return value
            return _NUMBERS_BETWEEN[bisect_left(self._numbers, value)]
        if kind is bool:
            return _TRUE if value else _FALSE
        if value is None or kind is float:
            return _OTHER
        if value is ABSENT:
            return ABSENT
        raise TypeError(f"no scalar: {value!r}")


def _decrease(counter: Counter[Any], value: Any) -> None:
    counter[value] -= 1
    if not counter[value]:
        del counter[value]


class Classes:
    """The classes of messages, for the selectors of an index."""

    def __init__(self) -> None:
        self._values: dict[Attribute, _Values] = {}
        self._without = 0

    def add(self, selector: Selector) -> None:
        """Add the classes that a selector distinguishes."""
        for attribute, value, ordered in self._points(selector, 1):
            self._values.setdefault(attribute, _Values()).add(value, ordered=ordered)

    def remove(self, selector: Selector) -> None:
        """Undo `add`."""
        for attribute, value, ordered in self._points(selector, -1):
            values = self._values[attribute]
            values.remove(value, ordered=ordered)
            if not values.uses:
                del self._values[attribute]

    def _points(self, selector: Selector, uses: int) -> list[tuple[Attribute, Any, bool]]:
        try:
            return [
                point
                for expression in _expressions(selector)
                for test in _leaves(expression)
                for point in _compared(test)
            ]
        except _WithoutClassesError:
            self._without += uses
            return []

    def of(
        self, subjects: Sequence[str], headers: Sequence[Headers], senders: Sequence[str]
    ) -> list[list[Hashable]] | None:
        """Return the classes of many messages, a column for each attribute; None without classes."""
        if self._without or len(self._values) > ATTRIBUTES_MAX:
            return None
        columns: list[Iterable[Any]] = [
            subjects
            if name is EnvelopeField.SUBJECT
            else [sender or ABSENT for sender in senders]
            if name is EnvelopeField.SENDER
            else [of.get(name, ABSENT) for of in headers]
            for name in self._values
        ]
        try:
            return [
                [*map(values.class_of, column)]
                for values, column in zip(self._values.values(), columns, strict=True)
            ]
        except TypeError:
            return None


class _WithoutClassesError(Exception):
    pass


def _expressions(selector: Selector) -> Iterator[Expression]:
    """Yield the expressions of a selector: its condition, and the criteria on headers and sender."""
    if selector.where:
        yield parse_normal(selector.where)
    for name, pattern in selector.criteria:
        family = family_named(name)
        if issubclass(family, ExpressionFamily):
            yield family.expression(pattern)
        elif family.needs_headers:
            raise _WithoutClassesError


def _leaves(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, And | Or):
        for item in expression.items:
            yield from _leaves(item)
    elif isinstance(expression, Not):
        yield from _leaves(expression.item)
    else:
        yield expression


def _compared(test: Any) -> Iterable[tuple[Attribute, Any, bool]]:
    """Yield the attribute of a test, each value of a comparison, and whether the comparison orders."""
    if isinstance(test, Within):
        raise _WithoutClassesError
    values: Sequence[Any] = ()
    if isinstance(test, OneOf):
        values = test.values
    elif isinstance(test, Differs):
        values = (test.value,)
    elif isinstance(test, Range):
        values = [bound.value for bound in (test.low, test.high) if bound]
    elif isinstance(test, BeginsWith):
        values = (test.text, text_behind(test.text))
    elif isinstance(test, Matches):
        values = (_EVERY_TEXT,)
    ordered = isinstance(test, Range | BeginsWith)
    # True and false are classes anyway. With ABSENT each attribute has a value.
    yield test.attribute, ABSENT, False
    for value in values:
        if not isinstance(value, bool):
            yield test.attribute, value, ordered
