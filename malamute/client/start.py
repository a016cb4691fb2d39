"""Where a subscription begins, as Python says it."""

from __future__ import annotations

from datetime import datetime, timedelta

from malamute.client.options import nanoseconds
from malamute.errors import InvalidValue
from malamute.protocol.start import Start

When = str | int | datetime | timedelta
"""Words of the protocol, a sequence, a moment, or how far back."""


def start_words(when: When) -> str:
    """The words of the protocol for a start. Raises `InvalidValue` when it is none."""
    if isinstance(when, datetime):
        words = f"time:{nanoseconds(when)}"
    elif isinstance(when, timedelta):
        words = f"since:{when // timedelta(milliseconds=1)}ms"
    elif isinstance(when, bool) or not isinstance(when, int | str):
        raise InvalidValue(f"a start is text, a sequence, a datetime or a timedelta, not {when!r}")
    else:
        words = when if isinstance(when, str) else f"seq:{when}"
    Start.parse(words)
    return words
