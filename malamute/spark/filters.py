"""What a query asks for, as far as a reader can leave out the rest.

Spark gives conditions that must all hold: `column operator value`. Each is used wherever it helps. As a range
of sequences and of times it decides what is opened at all. As an expression of Arrow it leaves out rows, and
groups of rows by their statistics. For a broker it becomes criteria and `where`. What stays may be
more than what was asked for and is never less, and Spark looks at it again.

A number that is none is greater than all others in Spark. So "greater" is asked as "not less or equal".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

from malamute.errors import InvalidSelector
from malamute.protocol.limits import CRITERIA_MAX, NUMBER_MAX, PATTERN_BYTES_MAX, WHERE_BYTES_MAX
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark.history import ReadFilter
from malamute.spark.schema import PREFIX, Kind, Promoted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS = 86_400 * NS_PER_SECOND


class Condition(NamedTuple):
    """A condition on one column. The value of `in` is a tuple; that of `exists` is None."""

    column: str
    operator: str
    value: Any = None


_OPERATORS: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.In: "in",
    spark.StringStartsWith: "prefix",
    spark.IsNotNull: "exists",
}


def conditions_of(filters: Iterable[spark.Filter]) -> tuple[Condition, ...]:
    """Those of Spark's filters that are understood here."""
    found = []
    for item in filters:
        operator = _OPERATORS.get(type(item))
        path: tuple[str, ...] = getattr(item, "attribute", ())
        if operator and len(path) == 1:
            value: Any = getattr(item, "value", None)
            found.append(Condition(path[0], operator, tuple(value) if operator == "in" else value))
    return tuple(found)


class PushdownBounds(NamedTuple):
    """Sequences and times (in nanoseconds), both ends included, outside of which there is nothing to find.

    `streams` are the only ones, or None.
    """

    first: int = 0
    last: int = NUMBER_MAX
    since: int = 0
    until: int = NUMBER_MAX
    streams: frozenset[str] | None = None

    def takes(self, stream: str) -> bool:
        """Whether there may be something in a stream."""
        return self.streams is None or stream in self.streams


def bounds_of(conditions: Iterable[Condition]) -> PushdownBounds:
    """The bounds that follow from the conditions."""
    bounds = PushdownBounds()
    for column, operator, value in conditions:
        values = value if operator == "in" else (value,)
        if operator == "prefix" or operator == "exists" or None in values or not values:
            continue
        if column == "stream":
            if operator in ("=", "in"):
                streams = frozenset(values)
                bounds = bounds._replace(
                    streams=streams if bounds.streams is None else bounds.streams & streams
                )
        elif column in _SPANS:
            low, high, is_time = _SPANS[column](operator, values)
            bounds = _narrowed(bounds, low, high, is_time=is_time)
    return bounds


def _narrowed(bounds: PushdownBounds, low: int | None, high: int | None, *, is_time: bool) -> PushdownBounds:
    low_name, high_name = ("since", "until") if is_time else ("first", "last")
    changes = {}
    if low is not None:
        changes[low_name] = max(getattr(bounds, low_name), low)
    if high is not None:
        changes[high_name] = min(getattr(bounds, high_name), high)
    return bounds._replace(**changes)


def _span(operator: str, values: tuple[int, ...], width: int = 1) -> tuple[int | None, int | None]:
    """The lowest and the highest number, where a value stands for `width` of them."""
    low = None if operator in ("<", "<=") else min(values)
    high = None if operator in (">", ">=") else max(values) + width - 1
    if operator == ">" and low is not None:
        low += width
    if operator == "<" and high is not None:
        high -= width
    return low, high


def _numbers(operator: str, values: tuple[int, ...]) -> tuple[int | None, int | None, bool]:
    return *_span(operator, values), False


def _nanoseconds(operator: str, values: tuple[int, ...]) -> tuple[int | None, int | None, bool]:
    return *_span(operator, values), True


def _moments(operator: str, values: tuple[datetime, ...]) -> tuple[int | None, int | None, bool]:
    return *_span(operator, tuple(microseconds(value) * 1000 for value in values), 1000), True


def _dates(operator: str, values: tuple[date, ...]) -> tuple[int | None, int | None, bool]:
    days = tuple((value - _EPOCH.date()).days * _DAY_NS for value in values)
    return *_span(operator, days, _DAY_NS), True


_SPANS: dict[str, Callable[[str, Any], tuple[int | None, int | None, bool]]] = {
    "sequence": _numbers,
    "time_ns": _nanoseconds,
    "time": _moments,
    "date": _dates,
}


def microseconds(moment: datetime) -> int:
    """Since 1970, UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def expression_of(conditions: Iterable[Condition], schema: pa.Schema) -> pc.Expression | None:
    """The conditions on columns of a schema as one expression of Arrow; None if there are none."""
    together: pc.Expression | None = None
    for condition in conditions:
        if condition.column in schema.names:
            one = _expression(condition, schema.field(condition.column).type)
            together = one if together is None else together & one
    return together


def _expression(condition: Condition, kind: pa.DataType) -> pc.Expression:
    column, operator, value = condition
    field = pc.field(column)
    if operator == "exists":
        return field.is_valid()
    if operator == "prefix":
        return pc.starts_with(field, value)
    if operator == "in":
        return field.isin(pa.array([item for item in value if item is not None], kind))
    scalar = pa.scalar(value, kind)
    tests = {
        "=": lambda: field == scalar,
        "<": lambda: field < scalar,
        "<=": lambda: field <= scalar,
        ">": lambda: ~(field <= scalar),
        ">=": lambda: ~(field < scalar),
    }
    if operator == "=" and isinstance(value, float) and math.isnan(value):
        return field.is_nan()
    return tests[operator]()


def wanted_of(conditions: Iterable[Condition], promoted: Promoted) -> ReadFilter:
    """The conditions that a broker can look at."""
    criteria: tuple[tuple[str, str], ...] = ()
    parts: list[str] = []
    kinds: dict[str, Kind] = {PREFIX + name: kind for name, kind in promoted.items()}
    for condition in conditions:
        if condition.column == "subject" and not criteria:
            criteria = _criteria(condition)
        elif condition.column == "sender" and condition.operator == "=" and condition.value:
            parts.append(f"sender = {_literal(condition.value)}")
        elif condition.column in kinds:
            parts += _tests(condition._replace(column=_name(condition.column.removeprefix(PREFIX))))
    where = ""
    for part in parts:
        longer = f"{where} and {part}" if where else part
        if _is_understood(longer):
            where = longer
    return ReadFilter(criteria, where)


def _is_understood(where: str) -> bool:
    from malamute.matching.parser import parse

    try:
        parse(where)
    except InvalidSelector:
        return False
    return len(where.encode()) <= WHERE_BYTES_MAX


def _criteria(condition: Condition) -> tuple[tuple[str, str], ...]:
    family = {"=": "exact", "in": "exact", "prefix": "prefix"}.get(condition.operator)
    values = condition.value if condition.operator == "in" else (condition.value,)
    if family is None or not values or len(values) > CRITERIA_MAX or None in values:
        return ()
    if any(len(value.encode()) > PATTERN_BYTES_MAX for value in values):
        return ()
    return tuple((family, value) for value in values)


def _name(header: str) -> str:
    """A header's name as `where` has it; empty if it cannot be said."""
    return "" if '"' in header or not header else f'"{header}"'


def _tests(condition: Condition) -> list[str]:
    """What `where` says to a condition; nothing if it cannot."""
    name, operator, value = condition
    if not name:
        return []
    if operator == "exists":
        return [f"exists {name}"]
    values = value if operator == "in" else (value,)
    if not values or any(item is None or _literal(item) is None for item in values):
        return []
    texts = [str(_literal(item)) for item in values]
    if operator == "in":
        return [f"{name} in ({', '.join(texts)})"]
    turned = {">": "<=", ">=": "<"}.get(operator)
    if turned and not isinstance(value, str):
        return [f"exists {name}", f"not {name} {turned} {texts[0]}"]
    if isinstance(value, bool) and operator != "=":
        return []
    return [f"{name} {operator} {texts[0]}"]


def _literal(value: Any) -> str | None:
    """A value as `where` has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    return None
