"""Values with named fields, and their maps on the wire: both by msgspec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, dataclass_transform, get_args, get_origin

from msgspec import Struct, StructMeta, ValidationError, convert, to_builtins

from malamute.errors import Malformed

_BINARY = (bytes,)


class _ByKeyword(StructMeta):
    """Structs whose fields are given by keywords: msgspec does not inherit this option."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, kw_only=True, **options)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value(Struct, metaclass=_ByKeyword, frozen=True, omit_defaults=True):
    """A frozen value with named fields, made with keywords."""

    def as_map(self) -> dict[str, Any]:
        """Return the fields as they travel, without those that have their default."""
        found: dict[str, Any] = encode(self)
        return found


class Row(Value):
    """An answer, or a part of one."""


def encode(value: Any) -> Any:
    """Return an answer as it travels: rows are maps."""
    return to_builtins(value, builtin_types=_BINARY)


def decode(kind: Any, value: Any) -> Any:
    """Return a map, or a list of maps, as a value of this type: of several, the first that fits.

    Raises:
        Malformed: a field is missing or has another type, as if the broker was of another version.
    """
    rows = get_args(kind)[0] if get_origin(kind) is list else None
    if isinstance(rows, UnionType) and isinstance(value, list):
        # A msgspec type cannot be one of several structs that have no tag.
        return [_decode_either(get_args(rows), item) for item in value]
    try:
        return convert(value, kind, builtin_types=_BINARY)
    except ValidationError as error:
        raise Malformed(f"invalid answer: {error}: the broker is of another version") from error


def _decode_either(kinds: Sequence[Any], value: Any) -> Any:
    *details, plain = kinds
    for kind in details:
        with suppress(Malformed):
            return decode(kind, value)
    return decode(plain, value)
