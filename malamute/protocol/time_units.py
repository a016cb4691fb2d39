"""Conversions of seconds, milliseconds and nanoseconds.

Stored and sent times are in whole nanoseconds; timers and timeouts are in seconds.
"""

from __future__ import annotations

NS_PER_SECOND = 1_000_000_000


def to_seconds(nanoseconds: float) -> float:
    """Return nanoseconds in seconds."""
    return nanoseconds / 1e9


def to_ms(nanoseconds: float) -> float:
    """Return nanoseconds in milliseconds."""
    return nanoseconds / 1e6


def to_ns(seconds: float) -> int:
    """Return seconds in whole nanoseconds, rounded towards zero."""
    return int(seconds * 1e9)
