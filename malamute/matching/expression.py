"""Match expressions as values: the meaning of `where`, apart from its syntax.

An expression is a tree. Its leaves test one attribute of the message (the subject, the sender or a
header), and And, Or and Not join them. `holds` evaluates the tree, `str()` returns its normal form,
so that expressions of the same structure have the same text.

The logic has two values. A test is false if its attribute is absent, or if the values of the
comparison have different kinds: numbers compare with numbers, text with text by code
point, and true and false only for equality. No value of a message raises an error.
So `unit != 'C'` needs a unit that is text other than C, and `not unit = 'C'` accepts all other messages, too.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from malamute.matching.geometry import Area, position
from malamute.matching.regex import compiled

Scalar = str | int | float | bool

KEYWORDS = frozenset(
    ("and", "between", "exists", "false", "in", "matches", "not", "or", "prefix", "true", "within")
)
BARE_NAME = re.compile(r"[^\W\d][\w.$-]*")
"""A name that needs no quotes, unless it is a keyword."""


class EnvelopeField(Enum):
    """The attributes of a message that are not headers."""

    SUBJECT = "subject"
    SENDER = "sender"


Attribute = str | EnvelopeField
"""A header's name, or a place."""


class MessageFields(NamedTuple):
    """The fields of a message for an expression."""

    subject: str
    headers: Mapping[str, Any]
    sender: str = ""

    def value(self, attribute: Attribute) -> Any:
        """Return the value of an attribute; ABSENT without one."""
        if attribute is EnvelopeField.SUBJECT:
            return self.subject
        if attribute is EnvelopeField.SENDER:
            return self.sender or ABSENT
        return self.headers.get(attribute, ABSENT)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def kind_of(value: Any) -> str | None:
    """Return the kind of a value: 'text', 'number', 'boolean'; None for values without comparisons."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) and value == value else None


class Bound(NamedTuple):
    """A place between values: right before `value` (side 0), or right behind it (side 1)."""

    value: Any
    side: int


class Expression(ABC):
    """A condition on a message."""

    __slots__ = ()

    @abstractmethod
    def holds(self, message: MessageFields) -> bool:
        """Return whether a message fulfils the expression. Never raises."""

    @abstractmethod
    def attributes(self) -> frozenset[Attribute]:
        """Return the attributes that the expression reads."""

    @abstractmethod
    def failure(self, message: MessageFields) -> str:
        """Return the first false part, in words; empty for a true expression."""


class Predicate(Expression):
    """A condition on the value of one attribute."""

    __slots__ = ()
    attribute: Attribute

    @abstractmethod
    def accepts(self, value: Any) -> bool:
        """Return whether a present value fulfils the condition."""

    def holds(self, message: MessageFields) -> bool:
        """Return whether the attribute is present and its value is accepted."""
        value = message.value(self.attribute)
        return value is not ABSENT and self.accepts(value)

    def attributes(self) -> frozenset[Attribute]:
        """Return the one attribute."""
        return frozenset((self.attribute,))

    def failure(self, message: MessageFields) -> str:
        """Return the test and the value that failed it."""
        if self.holds(message):
            return ""
        return f"{self}: {name_text(self.attribute)} is {message.value(self.attribute)!r}"


@dataclass(frozen=True, slots=True)
class OneOf(Predicate):
    """`= value` and `in (values)`. The values are distinct and sorted by kind."""

    attribute: Attribute
    values: tuple[Scalar, ...]

    @classmethod
    def of(cls, attribute: Attribute, values: list[Scalar]) -> OneOf:
        """Return the test with its values in order."""
        by_key = {(kind_of(value) or "", value): value for value in map(_plain, values)}
        return cls(attribute, tuple(by_key[key] for key in sorted(by_key)))

    def accepts(self, value: Any) -> bool:
        """Return whether a value has the kind of one of the values, and equals it."""
        kind = kind_of(value)
        return any(value == wanted and kind == kind_of(wanted) for wanted in self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{name_text(self.attribute)} = {value_text(self.values[0])}"
        return f"{name_text(self.attribute)} in ({', '.join(map(value_text, self.values))})"


@dataclass(frozen=True, slots=True)
class Differs(Predicate):
    """`!= value`: of the same kind and not equal."""

    attribute: Attribute
    value: Scalar

    def accepts(self, value: Any) -> bool:
        """Return whether a value has the same kind, and is not equal."""
        return kind_of(value) == kind_of(self.value) and bool(value != self.value)

    def __str__(self) -> str:
        return f"{name_text(self.attribute)} != {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class Range(Predicate):
    """`<`, `<=`, `>`, `>=` and `between`: after `low` and before `high`; None is no bound."""

    attribute: Attribute
    low: Bound | None
    high: Bound | None

    @property
    def kind(self) -> str:
        """The kind of the bounds."""
        bound = self.low or self.high
        assert bound is not None
        kind = kind_of(bound.value)
        assert kind is not None
        return kind

    def accepts(self, value: Any) -> bool:
        """Return whether a value has the kind of the bounds, and is between them."""
        if kind_of(value) != self.kind:
            return False
        here = Bound(value, 0)
        return (self.low is None or self.low <= here) and (self.high is None or here < self.high)

    def __str__(self) -> str:
        name = name_text(self.attribute)
        if self.low and self.high:
            # `between` is the only source of two bounds, and it includes both.
            return f"{name} between {value_text(self.low.value)} and {value_text(self.high.value)}"
        if self.low:
            return f"{name} {'>' if self.low.side else '>='} {value_text(self.low.value)}"
        assert self.high is not None
        return f"{name} {'<=' if self.high.side else '<'} {value_text(self.high.value)}"


@dataclass(frozen=True, slots=True)
class Exists(Predicate):
    """`exists name`: present, with any value or none."""

    attribute: Attribute

    def accepts(self, value: Any) -> bool:
        """Return True for any value."""
        return True

    def __str__(self) -> str:
        return f"exists {name_text(self.attribute)}"


@dataclass(frozen=True, slots=True)
class BeginsWith(Predicate):
    """`prefix 'text'`: text with this prefix."""

    attribute: Attribute
    text: str

    def accepts(self, value: Any) -> bool:
        """Return whether a value is text with this prefix."""
        return isinstance(value, str) and value.startswith(self.text)

    def __str__(self) -> str:
        return f"{name_text(self.attribute)} prefix {value_text(self.text)}"


@dataclass(frozen=True, slots=True)
class Matches(Predicate):
    """`matches 'expression'`: text in which the regular expression is found (RE2)."""

    attribute: Attribute
    pattern: str

    def accepts(self, value: Any) -> bool:
        """Return whether the expression is found in a text."""
        return isinstance(value, str) and compiled(self.pattern).found_in(value)

    def __str__(self) -> str:
        return f"{name_text(self.attribute)} matches {value_text(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Within(Expression):
    """`within(latitude, longitude, …)`: the two attributes are a point of the area."""

    latitude: Attribute
    longitude: Attribute
    area: Area

    def holds(self, message: MessageFields) -> bool:
        """Return whether both attributes are numbers, and their point is in the area."""
        point = position(message.value(self.latitude), message.value(self.longitude))
        return point is not None and self.area.contains(point)

    def attributes(self) -> frozenset[Attribute]:
        """Return the two attributes."""
        return frozenset((self.latitude, self.longitude))

    def failure(self, message: MessageFields) -> str:
        """Return the test and the point that failed it."""
        if self.holds(message):
            return ""
        return f"{self}: at {message.value(self.latitude)!r}, {message.value(self.longitude)!r}"

    def __str__(self) -> str:
        numbers = ", ".join(map(value_text, self.area.numbers()))
        return f"within({name_text(self.latitude)}, {name_text(self.longitude)}, {numbers})"


@dataclass(frozen=True, slots=True)
class And(Expression):
    """The conjunction of two or more expressions."""

    items: tuple[Expression, ...]

    def holds(self, message: MessageFields) -> bool:
        """Return whether all items hold."""
        return all(item.holds(message) for item in self.items)

    def attributes(self) -> frozenset[Attribute]:
        """Return the attributes of all items."""
        return frozenset().union(*(item.attributes() for item in self.items))

    def failure(self, message: MessageFields) -> str:
        """Return the failure of the first false item."""
        return next((words for item in self.items if (words := item.failure(message))), "")

    def __str__(self) -> str:
        return " and ".join(f"({item})" if isinstance(item, Or) else str(item) for item in self.items)


@dataclass(frozen=True, slots=True)
class Or(Expression):
    """The disjunction of two or more expressions."""

    items: tuple[Expression, ...]

    def holds(self, message: MessageFields) -> bool:
        """Return whether any item holds."""
        return any(item.holds(message) for item in self.items)

    def attributes(self) -> frozenset[Attribute]:
        """Return the attributes of all items."""
        return frozenset().union(*(item.attributes() for item in self.items))

    def failure(self, message: MessageFields) -> str:
        """Return the failures of all items, if none holds."""
        words = [item.failure(message) for item in self.items]
        return "; ".join(words) if all(words) else ""

    def __str__(self) -> str:
        return " or ".join(map(str, self.items))


@dataclass(frozen=True, slots=True)
class Not(Expression):
    """The negation of an expression."""

    item: Expression

    def holds(self, message: MessageFields) -> bool:
        """Return whether the item does not hold."""
        return not self.item.holds(message)

    def attributes(self) -> frozenset[Attribute]:
        """Return the attributes of the item."""
        return self.item.attributes()

    def failure(self, message: MessageFields) -> str:
        """Return the negation, if its item holds."""
        return "" if self.holds(message) else f"{self}: it holds"

    def __str__(self) -> str:
        return f"not ({self.item})" if isinstance(self.item, And | Or) else f"not {self.item}"


def name_text(attribute: Attribute) -> str:
    """Return the text of an attribute; the name of a header is quoted if it has another meaning."""
    if isinstance(attribute, EnvelopeField):
        return attribute.value
    taken = attribute.lower() in KEYWORDS or attribute in (
        EnvelopeField.SUBJECT.value,
        EnvelopeField.SENDER.value,
    )
    if BARE_NAME.fullmatch(attribute) and not taken:
        return attribute
    return '"' + attribute.replace('"', '""') + '"'


def value_text(value: Scalar) -> str:
    """Return the text of a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(_plain(value))


def _plain(value: Scalar) -> Scalar:
    # 1.0 and 1 are one value, so they are written as one.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
