"""The options of a message to a mailbox or a service, as Python says them and as the wire does.

Spans are seconds or a `timedelta`, moments are a `datetime`, in UTC if it does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from malamute.errors import InvalidValue
from malamute.protocol.start import Start

Span = float | timedelta
"""Seconds, or a timedelta."""

When = str | int | datetime | timedelta
"""Where a subscription starts: words of the protocol, a sequence, a moment, or how far back."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Options(TypedDict, total=False):
    """What both may have.

    `id`: taken in once by that queue, within the window that the broker keeps. `ttl`: over when this time
    has passed. `priority`: 0 to 9, higher first. `delay` or `at`: not before. `immediate`: refused unless
    somebody takes such messages now. `tracker` names a message of the assurance `confirmed`, where the name
    that the client makes will not do.
    """

    id: str
    ttl: Span
    priority: int
    delay: Span
    at: datetime
    immediate: bool
    tracker: str


class SendOptions(Options, total=False):
    """For a mailbox. `correlation` comes to the recipient; `reply_to` is the address that gets replies."""

    correlation: int | str
    reply_to: str


class RequestOptions(Options, total=False):
    """For a service. Requests of one `key` go to one worker for as long as it works."""

    key: str


def milliseconds(span: Span) -> int:
    """A span on the wire; a part of a millisecond counts as a whole. Raises `InvalidValue`."""
    if not isinstance(span, timedelta):
        if isinstance(span, bool) or not isinstance(span, int | float):
            raise InvalidValue(f"a time is seconds or a timedelta, not {span!r}")
        try:
            span = timedelta(seconds=span)
        except (OverflowError, ValueError):
            raise InvalidValue(f"no time that can be: {span!r} seconds") from None
    if span < timedelta():
        raise InvalidValue(f"a time is not negative, as {span} is")
    return -(-(span // _MICROSECOND) // 1000)


def nanoseconds(moment: datetime) -> int:
    """A moment on the wire, counted from 1970. Raises `InvalidValue`."""
    if not isinstance(moment, datetime):
        raise InvalidValue(f"a moment is a datetime, not {moment!r}")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // _MICROSECOND) * 1000


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "ttl": milliseconds,
    "delay": milliseconds,
    "at": nanoseconds,
}


def properties_of(options: Any) -> dict[str, Any]:
    """The properties of a message with these options. Raises `InvalidValue` for what cannot be told.

    Whether a value is within its range is for the broker to say.
    """
    if "delay" in options and "at" in options:
        raise InvalidValue("a message has a delay or a moment (at), not both")
    return {
        name: _CONVERT.get(name, lambda same: same)(value)
        for name, value in options.items()
        if value is not None
    }


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
