"""Options whose values have units: sizes such as 64MiB, durations such as 15m, and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click


def size(text: str) -> int:
    """Return a size in bytes. Raises `click.BadParameter`."""
    from malamute.protocol.quantities import SIZE_EXAMPLES, parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"invalid size {text!r}: expected one such as {SIZE_EXAMPLES}") from None


def duration(text: str) -> float:
    """Return a duration in seconds. Raises `click.BadParameter`."""
    from malamute.protocol.quantities import DURATION_EXAMPLES, parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(
            f"invalid duration {text!r}: expected one such as {DURATION_EXAMPLES}"
        ) from None


def moment(text: str) -> datetime:
    """Return a time, in UTC unless it has an offset. Raises `click.BadParameter`."""
    from malamute.protocol.quantities import parse_time_ns
    from malamute.protocol.time_units import to_seconds

    try:
        return datetime.fromtimestamp(to_seconds(parse_time_ns(text)), UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"invalid time {text!r}: expected one such as 2026-01-31T12:00") from None


class DurationRange(click.FloatRange):
    """A duration within bounds in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds. Raises `click.BadParameter`."""
        return super().convert(duration(value) if isinstance(value, str) else value, param, ctx)
