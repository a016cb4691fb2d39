"""What people type into forms, as values: quantities with units, headers, criteria, lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from malamute.errors import InvalidValue
from malamute.gateway.console.words import parse_value

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _quantity(text: str, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise InvalidValue(f"invalid quantity {text[:50]!r}: expected one such as {example}")
    return float(match[1]) * units[match[2]]


def size(text: str) -> int:
    """Bytes, as 64MiB. Raises `InvalidValue`."""
    return int(_quantity(text, _SIZES, "64MiB, or a number of bytes"))


def duration(text: str) -> float:
    """Seconds, as 7d. Raises `InvalidValue`."""
    return _quantity(text, _DURATIONS, "30s, 15m, 1h or 7d")


def number(text: str) -> int:
    """A whole number. Raises `InvalidValue`."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidValue(f"invalid number {text[:50]!r}: expected a whole one")
    return int(text)


def flag(text: str) -> bool:
    """Whether a box is ticked."""
    return text in ("true", "yes", "on")


def names(text: str) -> list[str]:
    """Names with spaces or commas between them."""
    return text.replace(",", " ").split()


def lines(text: str) -> list[str]:
    """Lines that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def headers(text: str) -> dict[str, Any]:
    """Headers, NAME=VALUE in each line. Raises `InvalidValue`."""
    found: dict[str, Any] = {}
    for line in lines(text):
        name, equals, value = line.partition("=")
        if not name:
            raise InvalidValue(f"invalid header {line[:50]!r}: expected NAME=VALUE")
        found[name] = parse_value(value) if equals else None
    return found


def criteria(text: str) -> list[tuple[str, str]]:
    """Criteria, a family and a pattern in each line; a pattern alone is a topic."""
    found = []
    for line in lines(text):
        family, _, pattern = line.partition(" ")
        found.append((family, pattern.strip()) if pattern.strip() or family == "all" else ("topic", family))
    return found


def first_of(fields: Mapping[str, Sequence[str]], name: str, default: str = "") -> str:
    """A field of a form that is there once."""
    return fields[name][0] if fields.get(name) else default


Reader = Callable[[str], Any]
