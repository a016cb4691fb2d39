"""Options whose values have units: sizes such as 64MiB, and durations such as 15m."""

from __future__ import annotations

import click


def size(text: str) -> int:
    """A size in bytes. Raises `click.BadParameter`."""
    from malamute.config.option_types import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no size, such as 64MiB or a number of bytes") from None


def duration(text: str) -> float:
    """A duration in seconds. Raises `click.BadParameter`."""
    from malamute.config.option_types import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration, such as 500ms, 30s, 15m, 1h or 7d") from None
