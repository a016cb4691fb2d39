"""Options whose values have units: sizes such as 64MiB, and durations such as 15m."""

from __future__ import annotations

import click


def size(text: str) -> int:
    """A size in bytes. Raises `click.BadParameter`."""
    from malamute.config.option_types import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(
            f"invalid size {text!r}: expected one such as 64MiB, or a number of bytes"
        ) from None


def duration(text: str) -> float:
    """A duration in seconds. Raises `click.BadParameter`."""
    from malamute.config.option_types import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(
            f"invalid duration {text!r}: expected one such as 500ms, 30s, 15m, 1h or 7d"
        ) from None
