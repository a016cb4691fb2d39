"""Values of form fields: quantities with units, headers, criteria, lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from malamute.errors import InvalidValue
from malamute.gateway.console.words import parse_value
from malamute.protocol.quantities import DURATION_EXAMPLES, SIZE_EXAMPLES, parse_duration, parse_size


class FieldRefused(InvalidValue):
    """Raised for an invalid field of a form."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def field_of(error: str, fields: Iterable[str]) -> str:
    """Return the field that the first words of an error name; empty if they name none."""
    words = re.sub(r"'[^']*'", "", error).partition(":")[0].split()
    return next((field for field in fields if not {field, field.removesuffix("s")}.isdisjoint(words)), "")


def size(text: str) -> int:
    """Return a size in bytes, as 64MiB. Raises `InvalidValue`."""
    try:
        return parse_size(text)
    except ValueError:
        raise InvalidValue(f"invalid size {text[:50]!r}: expected one such as {SIZE_EXAMPLES}") from None


def duration(text: str) -> float:
    """Return a duration in seconds, as 7d. Raises `InvalidValue`."""
    try:
        return parse_duration(text)
    except ValueError:
        raise InvalidValue(
            f"invalid duration {text[:50]!r}: expected one such as {DURATION_EXAMPLES}"
        ) from None


def durations(text: str) -> list[float]:
    """Return durations with commas between them in seconds. Raises `InvalidValue`."""
    return [duration(one) for one in text.split(",")]


def number(text: str) -> int:
    """Return a whole number. Raises `InvalidValue`."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidValue(f"invalid number {text[:50]!r}: expected a whole one")
    return int(text)


def flag(text: str) -> bool:
    """Return whether a box is ticked."""
    return text in ("true", "yes", "on")


def names(text: str) -> list[str]:
    """Return names with spaces or commas between them."""
    return text.replace(",", " ").split()


def lines(text: str) -> list[str]:
    """Return the lines that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def headers(text: str) -> dict[str, Any]:
    """Return headers from lines NAME=VALUE. Raises `InvalidValue`."""
    found: dict[str, Any] = {}
    for line in lines(text):
        name, equals, value = line.partition("=")
        if not name:
            raise InvalidValue(f"invalid header {line[:50]!r}: expected NAME=VALUE")
        found[name] = parse_value(value) if equals else None
    return found


def criteria(text: str) -> list[tuple[str, str]]:
    """Return criteria from lines of a family and a pattern; a pattern alone is a topic."""
    found = []
    for line in lines(text):
        family, _, pattern = line.partition(" ")
        found.append((family, pattern.strip()) if pattern.strip() or family == "all" else ("topic", family))
    return found


def first_of(fields: Mapping[str, Sequence[str]], name: str, default: str = "") -> str:
    """Return the first value of a form field."""
    return fields[name][0] if fields.get(name) else default


Reader = Callable[[str], Any]
