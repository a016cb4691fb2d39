"""Durations, sizes and times as people write them: one grammar for configuration, CLI, gateway and wire.

duration   a number with ms, s, m, h or d; seconds without a unit: 500ms, 1.5s, 15m, 7d, 90
size       a number with B, KiB, MiB, GiB, TiB or kB, MB, GB, TB; bytes without a unit: 64MiB, 1048576
time       ISO 8601, in UTC unless it has an offset: 2026-01-31T12:00; nanoseconds since the epoch as a number

A number has digits, and perhaps a fraction and an exponent. Each function raises `ValueError` for any other
text; the caller knows the name of the option, and says so in its error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from malamute.protocol.limits import NUMBER_MAX

SIZE_UNITS: Mapping[str, Decimal] = {
    **{f"{letter}iB": Decimal(1 << 10 * power) for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": Decimal(10 ** (3 * power)) for power, letter in enumerate("kMGT", 1)},
    "B": Decimal(1),
    "": Decimal(1),
}
DURATION_UNITS: Mapping[str, Decimal] = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "": Decimal(1),
}

DURATION_EXAMPLES = "500ms, 30s, 15m, 1h or 7d"
SIZE_EXAMPLES = "64MiB, or a number of bytes"

_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)\s*([A-Za-z]*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_size(value: Any) -> int:
    """Return a size in bytes, from a number or a text such as "64MiB"."""
    return whole(quantity(value, SIZE_UNITS))


def parse_duration(value: Any) -> float:
    """Return a duration in seconds, from a number or a text such as "500ms"."""
    return float(quantity(value, DURATION_UNITS))


def parse_duration_ns(value: Any) -> int:
    """Return a duration in nanoseconds, exactly. A fraction of a nanosecond is cut off."""
    # More than any time can have: the caller has the limit.
    return int(min(quantity(value, DURATION_UNITS), _SECONDS_MAX) * 10**9)


_SECONDS_MAX = Decimal(NUMBER_MAX)


def parse_time_ns(text: str) -> int:
    """Return a time in nanoseconds since the epoch, 0 for one before it."""
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    moment = datetime.fromisoformat(text)
    elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return max((elapsed.days * 86400 + elapsed.seconds) * 10**9 + elapsed.microseconds * 1000, 0)


def format_size(size_bytes: int) -> str:
    """Return a size with the largest unit that leaves a whole number: "64MiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(size_bytes, int(SIZE_UNITS[unit]))
        if count and not rest:
            return f"{count}{unit}"
    return str(size_bytes)


def format_duration(seconds: float) -> str:
    """Return a duration with the largest unit that leaves a whole number, else in seconds: "10m", "1.5s"."""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(seconds, float(DURATION_UNITS[unit]))
        if count and not rest:
            return f"{count:.0f}{unit}"
    milliseconds = round(seconds * 1000)
    if seconds < 1 and parse_duration(f"{milliseconds}ms") == seconds:
        return f"{milliseconds}ms" if milliseconds else "0"
    return f"{seconds!r}s"


_SHOWN_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def shown_size(value: float | None) -> str:
    """Return bytes with a unit, for people: "1.5 KiB"; a dash for None."""
    if value is None:
        return "-"
    unit = _SHOWN_UNITS[0]
    for unit in _SHOWN_UNITS:
        if abs(value) < 1024 or unit == _SHOWN_UNITS[-1]:
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def shown_span(seconds: float | None) -> str:
    """Return a duration in its two largest units, for people: "2 h 5 m"; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return (
            "0 s" if seconds < 0.0005 else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:,.0f} ms"
        )
    parts: list[str] = []
    left = int(seconds)
    for unit, length in _SPANS:
        many, left = divmod(left, length)
        if many or parts:
            parts.append(f"{many} {unit}")
    return " ".join(parts[:2])


def quantity(value: Any, units: Mapping[str, Decimal]) -> Decimal:
    """Return a number in the unit whose factor is 1. Raises `ValueError`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return Decimal(repr(value))  # the decimal number that a person wrote, not the binary one beside it
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError
    return Decimal(match[1]) * units[match[2]]


def whole(number: Decimal) -> int:
    """Return a whole number. Raises `ValueError` for any other."""
    if number > NUMBER_MAX or number != int(number):
        raise ValueError
    return int(number)
