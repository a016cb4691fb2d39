"""Values with named fields, and their maps on the wire."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, Union, dataclass_transform, get_args, get_origin, get_type_hints

from malamute.errors import Malformed
from malamute.protocol.messages import Rule

_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})


class Argument(NamedTuple):
    """A field of a topic: what it may hold, and what it holds if it is left out."""

    rule: Rule
    default: Any = ...


def argument(rule: Rule, *, default: Any = ...) -> Any:
    """A field that is an argument of its topic; required unless it has a default."""
    return Argument(rule, default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(argument,))
class Value:
    """A frozen value with named fields, made with keywords.

    It is what a frozen dataclass is, but a class costs 10 µs and not 600: the shell waits for 70 of them.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {}
    """The default of each field in their order; an ellipsis if it has none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = (name for name, kind in cls.__annotations__.items() if not kind.startswith("ClassVar"))
        own = {name: cls.__dict__.get(name, ...) for name in names if "__annotations__" in cls.__dict__}
        cls._defaults = {**cls._defaults, **own}

    def __init__(self, **values: Any) -> None:
        fields = vars(self)
        fields.update(self._defaults)
        fields.update(values)
        if len(fields) != len(self._defaults) or ... in fields.values():
            missing = [name for name, value in fields.items() if value is ...]
            unknown = [name for name in values if name not in self._defaults]
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {unknown}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # fields may be lists

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={value!r}' for n, value in vars(self).items())})"

    def as_map(self) -> dict[str, Any]:
        """The fields as they travel, without those that have their default."""
        defaults = self._defaults
        return {name: encode(value) for name, value in vars(self).items() if value != defaults[name]}


class Row(Value):
    """Something that an answer tells about."""


def encode(value: Any) -> Any:
    """A value as it travels: rows are maps."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Row):
        return value.as_map()
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """What travelled, as a value of this type: a row, a list of rows, one of several rows, or anything else.

    Raises:
        Malformed: a row lacks a field, as if the broker was of another version.

    """
    if isinstance(kind, type) and issubclass(kind, Row):
        return _decode_row(kind, value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return [decode(inner[0], item) for item in value]
    if origin in (Union, types.UnionType) and isinstance(value, (dict, list)):
        return decode(next((one for one in inner if _fits(one, value)), None), value)
    return value


def _decode_row(kind: Any, value: Any) -> Any:
    if not _fits(kind, value):
        raise Malformed(f"{value!r:.100} is not a {kind.__name__}: the broker is of another version")
    hints = _hints(kind)
    return kind(**{name: decode(hints[name], value[name]) for name in kind._defaults if name in value})


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value has what a row of this type has to have."""
    if isinstance(kind, type) and issubclass(kind, Row):
        needed = (name for name, default in kind._defaults.items() if default is ...)
        return isinstance(value, dict) and all(name in value for name in needed)
    return get_origin(kind) is list and isinstance(value, list)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)
