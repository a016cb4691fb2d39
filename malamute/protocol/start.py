"""Where a subscription begins.

new                what is published from now on
first              the oldest message that is kept
last               the newest message that is kept, then what follows
last-per-subject   the newest kept message of each subject, then what is new
seq:N              the message with sequence N
after:N@STORE      the message behind sequence N of that store: a position that was kept, of `position`
time:T             the first message at or after T: nanoseconds since the epoch, or ISO 8601 (UTC unless
                   it says otherwise)
since:1h           the first message at most this old: a number with ms, s, m, h or d; seconds without

That is what a client writes; `Start` is what it means.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from malamute.errors import InvalidValue
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.position import StorePosition
from malamute.protocol.texts import shown

NEW, FIRST, LAST, LAST_PER_SUBJECT = "new", "first", "last", "last-per-subject"
SEQ, TIME, SINCE, AFTER = "seq", "time", "since", "after"

_PLAIN = frozenset((NEW, FIRST, LAST, LAST_PER_SUBJECT))
_UNITS_NS = {"ms": 10**6, "": 10**9, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_DURATION = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|)")


class Start(NamedTuple):
    """A start as it is understood. `value` is a sequence, or nanoseconds, or 0 where there is none.

    `store` is the one that a sequence counts in, if that is known.
    """

    kind: str
    value: int = 0
    store: str = ""

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read the words of a client. Raises `InvalidValue`."""
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
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max((elapsed.days * 86400 + elapsed.seconds) * 10**9 + elapsed.microseconds * 1000, 0)


def _duration(text: str) -> int | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    whole, fraction, unit = match.groups(default="")
    nanoseconds: int = int(whole + fraction) * _UNITS_NS[unit] // 10 ** len(fraction)
    return nanoseconds


_MOST = {
    SEQ: f"a sequence from 1 to {NUMBER_MAX}",
    TIME: "a time before 2262-04-11",
    SINCE: "at most 106751 days",
}
_READERS = {SEQ: _sequence, TIME: _time, SINCE: _duration}
