"""Starts of subscriptions.

new                messages published from now on
first              the oldest message that is kept
last               the newest message that is kept, then the following ones
last-per-subject   the newest kept message of each subject, then new ones
seq:N              the message with sequence N
after:N@STORE      the message behind sequence N of that store: a position that was kept, of `position`
time:T             the first message at or after a time
since:1h           the first message at most this old

Times and durations are those of `quantities.py`. A client writes the text; `Start` is its meaning.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from malamute.errors import InvalidValue
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.position import StorePosition
from malamute.protocol.quantities import parse_duration_ns, parse_time_ns
from malamute.protocol.texts import shown

NEW, FIRST, LAST, LAST_PER_SUBJECT = "new", "first", "last", "last-per-subject"
SEQ, TIME, SINCE, AFTER = "seq", "time", "since", "after"

_PLAIN = frozenset((NEW, FIRST, LAST, LAST_PER_SUBJECT))


class Start(NamedTuple):
    """A start. `value` is a sequence, or nanoseconds, or 0 for a start without a value.

    `store` is the store of the sequence, if it is known.
    """

    kind: str
    value: int = 0
    store: str = ""

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read the text of a client. Raises `InvalidValue`."""
        if text in _PLAIN:
            return cls(text)
        kind, colon, rest = text.partition(":")
        if kind == AFTER and (position := StorePosition.parse(rest)):
            return cls(kind, *position)
        read = _READERS.get(kind)
        value = read(rest) if read and colon else None
        if value is not None and value > NUMBER_MAX:
            raise InvalidValue(f"invalid start {shown(text)}: expected {_MOST[kind]}")
        if value is None:
            raise InvalidValue(
                f"invalid start {shown(text)}: expected new, first, last, last-per-subject, "
                "seq:N, after:N@STORE, time:T or since:1h"
            )
        return cls(kind, value)


def _sequence(text: str) -> int | None:
    return int(text) or None if text.isascii() and text.isdigit() and len(text) <= 19 else None


def _time(text: str) -> int | None:
    with suppress(ValueError):
        return parse_time_ns(text)
    return None


def _duration(text: str) -> int | None:
    with suppress(ValueError):
        return parse_duration_ns(text)
    return None


_MOST = {
    SEQ: f"a sequence from 1 to {NUMBER_MAX}",
    TIME: "a time before 2262-04-11",
    SINCE: "at most 106751 days",
}
_READERS = {SEQ: _sequence, TIME: _time, SINCE: _duration}
