"""The families `fields`, `geo` and `sender`: criteria beside the subject, without a language.

Each pattern is short for an expression, and filed as one (`conditions.py`).

`fields` is RFC 003's matching by fields. A request names fields, each with its accepted values,
or none for a bare presence; `all` of them must be met, or `any`. RFC 003 counts hits: a message hits a field
of the request if it has the field with an accepted value. No hit is no match, at least
one is an `any` match, and as many hits as fields are an `all` match. `Fields.hits` counts that way.

    [["currency", "USD"], ["urgent"]]                       all of them, the default
    {"any": [["currency", "USD"], ["currency", "GBP"]]}     any of them
    {"all": {"currency": ["USD", "GBP"], "urgent": null}}   several values for one field: one of them
    "currency=USD, urgent"                                  all, with text for values

A list of two that begins with the word all or any is read as the second kind; so is the normal form.

`geo` reads a point from two headers, "lat" and "lon" by default.

    {"circle": [59.91, 10.75, 50]}                          latitude, longitude, radius in km
    {"box": [-20, 170, 20, -170], "lat": "y", "lon": "x"}   south, west, north, east

`sender` is the sender of the message, letter by letter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap
from malamute.matching.conditions import Conditions
from malamute.matching.expression import (
    And,
    EnvelopeField,
    Exists,
    Expression,
    MessageFields,
    OneOf,
    Or,
    Scalar,
    Within,
    kind_of,
)
from malamute.matching.family import TERM_BYTES, Family, Headers, checked_text, register
from malamute.matching.geometry import area_of
from malamute.matching.plan import plan_of

_MODES = ("all", "any")
FIELDS_MAX = 64
"""The most fields of one request, and the most values of one field."""


class ExpressionFamily(Family):
    """A family whose patterns stand for expressions."""

    needs_headers = True

    def __init__(self) -> None:
        self._conditions = Conditions()

    @classmethod
    @abstractmethod
    def expression(cls, pattern: Any) -> Expression:
        """Return the expression of a normalised pattern."""

    @classmethod
    def matches(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether the expression holds."""
        return cls.expression(pattern).holds(MessageFields(subject, headers, sender))

    @classmethod
    def explain(cls, pattern: Any, subject: str, headers: Headers, sender: str) -> str:
        """Return the first test that fails."""
        words = cls.expression(pattern).failure(MessageFields(subject, headers, sender))
        return words and f"{cls.name}: {words}"

    @classmethod
    def cost_bytes(cls, patterns: Sequence[Any]) -> int:
        """Return the estimated bytes of the expression of patterns."""
        return TERM_BYTES * plan_of(cls._joined(patterns)).terms

    @classmethod
    def work_of(cls, patterns: Sequence[Any]) -> int:
        """Return the tests of patterns; 0 if the terms of their expression decide."""
        return 0 if plan_of(cls._joined(patterns)).exact else len(patterns)

    @classmethod
    def _joined(cls, patterns: Sequence[Any]) -> Expression:
        expressions = tuple(map(cls.expression, patterns))
        return Or(expressions) if len(expressions) > 1 else expressions[0]

    @property
    def work(self) -> int:
        """The number of expressions that may have to be evaluated."""
        return self._conditions.work

    def add(self, number: int, patterns: Sequence[Any]) -> None:
        """File a selector under the expressions of its patterns, joined by Or."""
        self._conditions.add(number, self._joined(patterns))

    def remove(self, number: int, patterns: Sequence[Any]) -> None:
        """Undo `add`."""
        self._conditions.remove(number)

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Return the selectors with true expressions."""
        return self._conditions.rows(MessageFields(subject, headers, sender))


@register
class Fields(ExpressionFamily):
    """Fields with values, or their bare presence.

    The normal pattern is (mode, ((name, values, booleans), …)), sorted. Booleans are separate, since Python
    takes `True` and 1 for equal, and would take two different patterns for equal.
    """

    name = "fields"

    @classmethod
    def normalise(cls, pattern: Any) -> Hashable:
        """Return the normal form of a pattern; the top of the file has the forms.

        Raises:
            InvalidSelector: the pattern is wrong.
        """
        mode, request = cls._mode(pattern)
        fields: dict[str, list[Any] | None] = {}
        for name, values in _items(request):
            if not isinstance(name, str) or not name:
                raise InvalidSelector("invalid field name: expected text")
            known = fields.setdefault(name, [])
            # Presence accepts any value, so it makes values of the same field redundant.
            fields[name] = None if known is None or not values else [*known, *values]
        if not 0 < len(fields) <= FIELDS_MAX:
            raise InvalidSelector(f"{len(fields)} fields: expected 1 to {FIELDS_MAX}")
        return mode, tuple((name, *_values(name, fields[name])) for name in sorted(fields))

    @classmethod
    def hits(cls, pattern: Any, headers: Headers) -> int:
        """Return the number of fields of the request that the headers hit."""
        message = MessageFields("", headers)
        return sum(_field(*field).holds(message) for field in pattern[1])

    @classmethod
    def expression(cls, pattern: Any) -> Expression:
        """Return the And or Or of the fields."""
        mode, fields = pattern
        tests = tuple(_field(*field) for field in fields)
        if len(tests) == 1:
            return tests[0]
        return And(tests) if mode == "all" else Or(tests)

    @staticmethod
    def _mode(pattern: Any) -> tuple[str, Any]:
        if isinstance(pattern, Mapping) and len(pattern) == 1:
            mode, request = next(iter(pattern.items()))
        elif isinstance(pattern, list | tuple) and len(pattern) == 2:
            mode, request = pattern
        else:
            return "all", pattern
        if mode in _MODES and isinstance(request, str | Mapping | list | tuple):
            return mode, request
        return "all", pattern


def _field(name: str, values: tuple[Scalar, ...], booleans: tuple[bool, ...]) -> Expression:
    return OneOf.of(name, [*values, *booleans]) if values or booleans else Exists(name)


def _items(request: Any) -> Iterable[tuple[Any, list[Any]]]:
    """Return the names and values of a request in any form; no values mean presence."""
    if isinstance(request, str):
        return map(_item, checked_text("fields", request).split(","))
    if isinstance(request, Mapping):
        return [(name, _listed(values)) for name, values in request.items()]
    if isinstance(request, list | tuple):
        return [_item(item) for item in request]
    raise InvalidSelector(
        f"invalid fields: expected text, a list or a mapping, found {type(request).__name__}"
    )


def _item(item: Any) -> tuple[Any, list[Any]]:
    if isinstance(item, str):
        name, sign, value = item.partition("=")
        return name.strip(), [value.strip()] if sign else []
    normal = isinstance(item, list | tuple) and list(map(type, item[1:])) in ([list] * 2, [tuple] * 2)
    if not isinstance(item, list | tuple) or not (1 <= len(item) <= 2 or normal):
        raise InvalidSelector("invalid field: expected [name] or [name, value]")
    return item[0], [value for values in item[1:] for value in _listed(values)]


def _listed(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, list | tuple) else [values]


def _values(name: str, values: list[Any] | None) -> tuple[tuple[Scalar, ...], tuple[bool, ...]]:
    values = values or []
    if len(values) > FIELDS_MAX:
        raise InvalidSelector(f"too many values of field {name!r}: expected at most {FIELDS_MAX}")
    for value in values:
        if kind_of(value) is None:
            raise InvalidSelector(
                f"invalid value {value!r} of field {name!r}: expected text, a number, true or false"
            )
    ordered = OneOf.of(name, values).values
    booleans = tuple(value for value in ordered if isinstance(value, bool))
    return tuple(value for value in ordered if not isinstance(value, bool)), booleans


@register
class Geo(ExpressionFamily):
    """A point inside an area; the pattern is (shape, numbers, latitude header, longitude header)."""

    name = "geo"

    @classmethod
    def normalise(cls, pattern: Any) -> Hashable:
        """Return the normal form of a pattern; the top of the file has the forms.

        Raises:
            InvalidSelector: the pattern is wrong.
        """
        shape, numbers, latitude, longitude = cls._parts(pattern)
        sizes = {"circle": 3, "box": 4}
        if not isinstance(shape, str) or sizes.get(shape) != len(numbers):
            raise InvalidSelector("invalid area: expected a circle of 3 numbers or a box of 4")
        if not all(isinstance(name, str) and name for name in (latitude, longitude)):
            raise InvalidSelector("invalid 'lat' or 'lon': expected the name of a header")
        try:
            return shape, area_of(numbers).numbers(), latitude, longitude
        except ValueError as error:
            raise InvalidSelector(f"geo: {error}") from error

    @staticmethod
    def _parts(pattern: Any) -> tuple[Any, Sequence[Any], Any, Any]:
        if isinstance(pattern, Mapping):
            rest = dict(pattern)
            latitude, longitude = rest.pop("lat", "lat"), rest.pop("lon", "lon")
            if len(rest) == 1 and isinstance((only := next(iter(rest.items())))[1], list | tuple):
                return only[0], only[1], latitude, longitude
        if isinstance(pattern, list | tuple) and len(pattern) == 4 and isinstance(pattern[1], list | tuple):
            return pattern[0], pattern[1], pattern[2], pattern[3]
        raise InvalidSelector(
            "invalid geo pattern: expected a mapping with 'circle' or 'box', and perhaps 'lat', 'lon'"
        )

    @classmethod
    def expression(cls, pattern: Any) -> Expression:
        """Return the expression of the area."""
        _, numbers, latitude, longitude = pattern
        return Within(latitude, longitude, area_of(numbers))


@register
class BySender(ExpressionFamily):
    """The sender, letter by letter. The pattern is not empty: a message without a sender matches none."""

    name = "sender"

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """Return the pattern if it is text within the limit. Raises InvalidSelector."""
        if not (sender := checked_text(cls.name, pattern)):
            raise InvalidSelector("invalid pattern of family 'sender': expected the address of a sender")
        return sender

    @classmethod
    def expression(cls, pattern: Any) -> Expression:
        """Return the comparison with the sender."""
        return OneOf(EnvelopeField.SENDER, (pattern,))
