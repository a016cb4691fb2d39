"""Seconds, milliseconds and nanoseconds.

What is stored or sent is in whole nanoseconds; what is waited for is in seconds.
"""

from __future__ import annotations

NS_PER_SECOND = 1_000_000_000


def to_seconds(nanoseconds: float) -> float:
    """Nanoseconds in seconds."""
    return nanoseconds / 1e9


def to_ms(nanoseconds: float) -> float:
    """Nanoseconds in milliseconds."""
    return nanoseconds / 1e6


def to_ns(seconds: float) -> int:
    """Seconds in whole nanoseconds, rounded towards zero."""
    return int(seconds * 1e9)
