"""Where a subscription begins, as Python says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from malamute.errors import InvalidValue
from malamute.protocol.start import Start

When = str | int | datetime | timedelta
"""Words of the protocol, a sequence, a moment, or how far back."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def start_words(when: When) -> str:
    """The words of the protocol for a start. Raises `InvalidValue` when it is none."""
    if isinstance(when, datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=UTC)
        words = f"time:{max(_microseconds(moment - _EPOCH), 0) * 1000}"
    elif isinstance(when, timedelta):
        words = f"since:{_microseconds(when) // 1000}ms"
    elif isinstance(when, bool) or not isinstance(when, int | str):
        raise InvalidValue(f"a start is text, a sequence, a datetime or a timedelta, not {when!r}")
    else:
        words = when if isinstance(when, str) else f"seq:{when}"
    Start.parse(words)
    return words


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
