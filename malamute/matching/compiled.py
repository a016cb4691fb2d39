"""Match expressions as functions of the headers, for one expression and very many messages.

`Conditions` finds the true ones of many expressions for one message. A reader of history has the other case:
one expression, and a million messages. For that the tree is compiled to closures once, each for the values
of its comparison, so that a message costs a few calls of plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from malamute.matching.expression import (
    ABSENT,
    And,
    Bound,
    EnvelopeField,
    Exists,
    Expression,
    Matches,
    MessageFields,
    Not,
    OneOf,
    Or,
    Predicate,
    Range,
    kind_of,
)
from malamute.matching.family import Headers
from malamute.matching.regex import compiled

Test = Callable[[Headers], bool]
"""Returns whether headers fulfil an expression. Never raises."""

MessageTest = Callable[[MessageFields], bool]
"""Returns whether a message fulfils an expression. Never raises."""


def message_test(expression: Expression) -> MessageTest:
    """Return an expression as a test of messages, which holds its compiled regular expressions."""
    test = compiled_test(expression)
    if test is not None:
        return lambda message: test(message.headers)
    if isinstance(expression, Not):
        opposite = message_test(expression.item)
        return lambda message: not opposite(message)
    if isinstance(expression, And):
        return _folded([*map(message_test, expression.items)], _both)
    if isinstance(expression, Or):
        return _folded([*map(message_test, expression.items)], _either)
    if isinstance(expression, Predicate):
        attribute, accepts = expression.attribute, _accepts(expression)
        return lambda message: (value := message.value(attribute)) is not ABSENT and accepts(value)
    return expression.holds


def compiled_test(expression: Expression) -> Test | None:
    """Return an expression as a test of headers; None if it reads the subject or the sender, too."""
    if any(isinstance(attribute, EnvelopeField) for attribute in expression.attributes()):
        return None
    return _test(expression)


def _test(expression: Expression) -> Test:
    make = _MAKERS.get(type(expression))
    if make is not None:
        return make(expression)
    if isinstance(expression, Predicate):
        return _of_value(expression)
    return lambda headers: expression.holds(MessageFields("", headers))


def _name(predicate: Predicate) -> str:
    assert isinstance(predicate.attribute, str)
    return predicate.attribute


def _of_value(predicate: Predicate) -> Test:
    name, accepts = _name(predicate), _accepts(predicate)
    return lambda headers: name in headers and accepts(headers[name])


def _accepts(predicate: Predicate) -> Callable[[Any], bool]:
    if isinstance(predicate, Matches):
        found_in = compiled(predicate.pattern).found_in
        return lambda value: isinstance(value, str) and found_in(value)
    return predicate.accepts


def _one_of(predicate: OneOf) -> Test:
    name = _name(predicate)
    # In Python True equals 1; as values of headers they differ.
    flags = tuple(value for value in predicate.values if isinstance(value, bool))
    others = frozenset(value for value in predicate.values if not isinstance(value, bool))

    def test(headers: Headers) -> bool:
        value: Any = headers.get(name, ABSENT)
        try:
            return value in (flags if type(value) is bool else others)
        except TypeError:
            # A value without a hash is no scalar.
            return False

    return test


def _range(predicate: Range) -> Test:
    if predicate.kind != "number":
        return _of_value(predicate)
    name = _name(predicate)
    low, high = predicate.low or _LOWEST, predicate.high or _HIGHEST
    after, before = low.value, high.value
    above, up_to = low.side == 0, high.side == 1

    def test(headers: Headers) -> bool:
        value: Any = headers.get(name)
        if type(value) not in _NUMBERS and kind_of(value) != "number":
            return False
        return (value > after or (above and value == after)) and (
            value < before or (up_to and value == before)
        )

    return test


_NUMBERS = frozenset((int, float))
_LOWEST, _HIGHEST = Bound(float("-inf"), 0), Bound(float("inf"), 1)


def _exists(predicate: Exists) -> Test:
    name = _name(predicate)
    return lambda headers: name in headers


def _and(expression: And) -> Test:
    return _folded([*map(_test, expression.items)], _both)


def _or(expression: Or) -> Test:
    return _folded([*map(_test, expression.items)], _either)


def _both(one: Callable[[Any], bool], other: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda item: one(item) and other(item)


def _either(one: Callable[[Any], bool], other: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda item: one(item) or other(item)


def _folded(tests: Sequence[Callable[[Any], bool]], join: Callable[..., Any]) -> Callable[[Any], bool]:
    # Joined in halves: the depth of calls is the logarithm of their number.
    if len(tests) == 1:
        return tests[0]
    half = len(tests) // 2
    joined: Callable[[Any], bool] = join(_folded(tests[:half], join), _folded(tests[half:], join))
    return joined


def _not(expression: Not) -> Test:
    test = _test(expression.item)
    return lambda headers: not test(headers)


_MAKERS: dict[type[Expression], Callable[[Any], Test]] = {
    OneOf: _one_of,
    Range: _range,
    Exists: _exists,
    And: _and,
    Or: _or,
    Not: _not,
}
