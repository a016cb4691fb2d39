"""The language of match expressions: text in, a tree of `expression.py` out.

    expression  = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | primary
    primary     = "(" expression ")" | "exists" name | "exists" "(" name ")" | area | name [ "not" ] test
    test        = ( "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
                | "in" "(" value { "," value } ")" | "between" value "and" value
                | "prefix" text | "matches" text
    area        = "within" "(" name "," name "," number "," number "," number [ "," number ] ")"
    value       = text | number | "true" | "false"

Names are `subject`, `sender` and the names of headers. The name of a header is quoted with double quotes if
it is no plain word, or has another meaning: "content type", "subject". Text is quoted with
single quotes, and a quote inside is doubled. Keywords are case-insensitive.
`within` has three numbers for a circle (latitude, longitude, radius in km), or four for a box (south,
west, north, east).

The parser is recursive descent with one token of look-ahead; one method for each rule. Length and
depth are bounded, since the text comes from clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

from malamute.errors import InvalidSelector
from malamute.matching.cache import Memo
from malamute.matching.expression import (
    KEYWORDS,
    And,
    Attribute,
    BeginsWith,
    Bound,
    Differs,
    EnvelopeField,
    Exists,
    Expression,
    Matches,
    Not,
    OneOf,
    Or,
    Range,
    Scalar,
    Within,
    kind_of,
)
from malamute.matching.geometry import area_of
from malamute.matching.regex import compiled

EXPRESSION_CHARACTERS_MAX = 4096
DEPTH_MAX = 50
PARSED_CHARACTERS_MAX = 1 << 17
"""Characters of the cached expressions; each takes some 50 bytes of memory."""

_TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<word>[^\W\d][\w.$-]*)
      | (?P<sign><=|>=|<>|!=|[=<>(),])""",
    re.VERBOSE,
)
_PLACES = {place.value: place for place in EnvelopeField}
_ORDERED: dict[str, Callable[[Attribute, Scalar], Expression]] = {
    "<": lambda name, value: Range(name, None, Bound(value, 0)),
    "<=": lambda name, value: Range(name, None, Bound(value, 1)),
    ">": lambda name, value: Range(name, Bound(value, 1), None),
    ">=": lambda name, value: Range(name, Bound(value, 0), None),
}


class Token(NamedTuple):
    """A piece of the text: `kind` is a sign or a keyword itself, or one of name, text, number, end."""

    kind: str
    text: str
    position: int


def parse(text: str) -> Expression:
    """Return the expression of a text; raises InvalidSelector with the position of the fault."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise InvalidSelector(
            f"expression too long: expected at most {EXPRESSION_CHARACTERS_MAX} characters",
            EXPRESSION_CHARACTERS_MAX,
        )
    return parse_normal(text)


def parse_normal(text: str) -> Expression:
    """Return the expression of a normal form, which may be longer than the text that it was parsed from."""
    return _PARSED[text]


def _parse(text: str) -> Expression:
    return _Parser(_tokens(text)).whole()


_PARSED = Memo(_parse, PARSED_CHARACTERS_MAX)


def _tokens(text: str) -> list[Token]:
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKENS.match(text, position)
        if found is None:
            raise InvalidSelector(_misfit(text[position]), position)
        if found.lastgroup != "space":
            tokens.append(_token(found.lastgroup or "", found.group(), position))
        position = found.end()
    return [*tokens, Token("end", "the end", len(text))]


def _token(group: str, text: str, position: int) -> Token:
    if group == "text":
        return Token("text", text[1:-1].replace("''", "'"), position)
    if group == "quoted":
        return Token("quoted", text[1:-1].replace('""', '"'), position)
    if group == "word":
        return Token(text.lower() if text.lower() in KEYWORDS else "name", text, position)
    return Token(text if group == "sign" else group, text, position)


def _misfit(character: str) -> str:
    unfinished = {"'": "text without its closing quote", '"': "name without its closing quote"}
    return unfinished.get(character, f"unexpected {character!r}")


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Expression:
        expression = self._expression()
        self._expect("end", "'and', 'or' or the end")
        return expression

    # The three levels of binding.

    def _expression(self) -> Expression:
        items = [self._conjunction()]
        while self._take("or"):
            items.append(self._conjunction())
        return _joined(Or, items)

    def _conjunction(self) -> Expression:
        items = [self._negation()]
        while self._take("and"):
            items.append(self._negation())
        return _joined(And, items)

    def _negation(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSelector(
                f"nested too deep: expected at most {DEPTH_MAX} levels", self._next.position
            )
        item = _negated(self._negation()) if self._take("not") else self._primary()
        self._depth -= 1
        return item

    def _primary(self) -> Expression:
        if self._take("("):
            item = self._expression()
            self._expect(")")
            return item
        if self._take("exists"):
            return self._exists()
        if self._take("within"):
            return self._within()
        name = self._name()
        if self._take("not"):
            return _negated(self._test(name))
        return self._test(name)

    # The test behind a name.

    def _test(self, name: Attribute) -> Expression:
        token = self._advance()
        if token.kind in _ORDERED:
            return self._ordered(token, name)
        rule = _TESTS.get(token.kind)
        if rule is None:
            raise _unexpected("a comparison, 'in', 'between', 'prefix' or 'matches'", token)
        return rule(self, name)

    def _ordered(self, sign: Token, name: Attribute) -> Expression:
        return _ORDERED[sign.kind](name, self._ordered_value())

    def _equal(self, name: Attribute) -> Expression:
        return OneOf.of(name, [self._value()])

    def _differs(self, name: Attribute) -> Expression:
        return Differs(name, self._value())

    def _in(self, name: Attribute) -> Expression:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")", "',' or ')'")
        return OneOf.of(name, values)

    def _between(self, name: Attribute) -> Expression:
        low = self._ordered_value()
        self._expect("and")
        position = self._next.position
        high = self._ordered_value()
        if kind_of(low) != kind_of(high):
            raise InvalidSelector("invalid bounds of 'between': expected two numbers or two texts", position)
        return Range(name, Bound(low, 0), Bound(high, 1))

    def _prefix(self, name: Attribute) -> Expression:
        return BeginsWith(name, self._expect("text").text)

    def _matches(self, name: Attribute) -> Expression:
        token = self._expect("text")
        try:
            compiled(token.text)
        except InvalidSelector as error:
            inside = token.position + 1 + (error.position or 0)
            raise InvalidSelector(error.text.rpartition(" at position ")[0], inside) from error
        return Matches(name, token.text)

    def _exists(self) -> Expression:
        if not self._take("("):
            return Exists(self._name())
        name = self._name()
        self._expect(")")
        return Exists(name)

    def _within(self) -> Expression:
        start = self._expect("(").position
        latitude = self._name()
        self._expect(",")
        longitude = self._name()
        numbers = []
        while self._take(","):
            numbers.append(_number(self._expect("number")))
        self._expect(")", "',' or ')'")
        try:
            return Within(latitude, longitude, area_of(numbers))
        except ValueError as error:
            raise InvalidSelector(f"within: {error}", start) from error

    # Words.

    def _name(self) -> Attribute:
        token = self._advance()
        if token.kind == "quoted":
            return token.text
        if token.kind != "name":
            raise _unexpected("a name", token)
        return _PLACES.get(token.text, token.text)

    def _value(self) -> Scalar:
        token = self._advance()
        if token.kind == "text":
            return token.text
        if token.kind == "number":
            return _number(token)
        if token.kind in ("true", "false"):
            return token.kind == "true"
        raise _unexpected("a value (text in single quotes, a number, true or false)", token)

    def _ordered_value(self) -> Scalar:
        token = self._next
        value = self._value()
        if isinstance(value, bool):
            raise InvalidSelector("true and false have no order: expected a number or text", token.position)
        return value

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _advance(self) -> Token:
        token = self._next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, wanted: str = "") -> Token:
        if self._next.kind != kind:
            raise _unexpected(wanted or (kind if kind.isalpha() else repr(kind)), self._next)
        return self._advance()


_TESTS: dict[str, Callable[[_Parser, Attribute], Expression]] = {
    "=": _Parser._equal,
    "!=": _Parser._differs,
    "<>": _Parser._differs,
    "in": _Parser._in,
    "between": _Parser._between,
    "prefix": _Parser._prefix,
    "matches": _Parser._matches,
}


def _joined(kind: type[And] | type[Or], items: list[Expression]) -> Expression:
    flat = [part for item in items for part in (item.items if isinstance(item, kind) else (item,))]
    # Without repetition; by their text, since Python takes `a = 1` and `a = true` for equal values.
    distinct = {str(part): part for part in flat}
    return kind(tuple(distinct.values())) if len(distinct) > 1 else flat[0]


def _negated(item: Expression) -> Expression:
    return item.item if isinstance(item, Not) else Not(item)


def _number(token: Token) -> int | float:
    try:
        return int(token.text)
    except ValueError:
        value = float(token.text)
    if not isfinite(value):
        raise InvalidSelector("number out of range: expected a finite one", token.position)
    return value


def _unexpected(wanted: str, token: Token) -> InvalidSelector:
    return InvalidSelector(f"unexpected {token.text!r}: expected {wanted}", token.position)
