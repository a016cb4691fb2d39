"""The options of the client's calls, each in one place for both edges, and their form in the protocol.

Durations are seconds or a `timedelta`; moments are a `datetime`, in UTC if it does not say otherwise. A value
of a class derived from `str` or `int`, such as a member of an enumeration, is that text or number.

Each option is checked where it is given, by `checked` and `properties_of`, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Literal, TypedDict

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.limits import BATCH_MESSAGES_MAX, DURATION_MS_MAX, NUMBER_MAX, TEXT_BYTES_MAX
from malamute.protocol.names import NAME_FORM, RESERVED_PREFIX, is_name
from malamute.protocol.start import Start
from malamute.protocol.texts import shown

DEFAULT_URL = "tcp://127.0.0.1:9999"
TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 5.0
HEARTBEAT_OF_SEVERAL_SECONDS = 1.5
"""With several URLs: another broker may serve, once this one is known to be lost."""
CREDIT_MESSAGES = 10_000
CREDIT_BYTES = 8 * 1024 * 1024
MAIL_CREDIT_MESSAGES = 1000
BATCH_MESSAGES = 1000
LINGER_SECONDS = 0.005
PUBLISHER_TIMEOUT_SECONDS = 30.0
ANSWERS_SECONDS = 1.0
ANSWERS_MAX = 1000
DEMAND_REFRESH_SECONDS = 1.0
DEMAND_TIMEOUT_SECONDS = 1.0

Span = float | timedelta
"""Seconds, or a timedelta."""

When = str | int | datetime | timedelta
"""The start of a subscription: words of the protocol, a sequence, a moment, or an age."""

Until = Literal["now"] | int | datetime | timedelta
"""The end of a history: now, its last sequence, a moment, or an age."""

Criteria = Sequence[tuple[str, Any]]
"""Pairs of a family and a pattern."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND, _SECOND = timedelta(microseconds=1), timedelta(seconds=1)
_LONGEST_SECONDS = DURATION_MS_MAX / 1000
UNSIGNED_MAX = 2**64 - 1
CONCURRENCY_MAX = 10_000
"""Maximum simultaneous calls of one handler: each is a thread, or a task."""


Assurance = Literal["none", "stored"]
"""The assurance of a message to a stream, or of a reply: none, or that it is durable."""

SendAssurance = Literal["none", "stored", "confirmed"]
"""The assurance of a message to a queue: none, that it is durable, or in addition its outcome."""


class PublisherOptions(TypedDict, total=False):
    """The options of `publisher` and `sender`."""

    assurance: Assurance
    """`stored`: every message is confirmed when it is durable. `none`: no message is. Default: `stored`."""
    batch: int
    """Maximum messages in one command; 64 KiB end one, too. With 1, each goes at once on a free connection,
    and those that wait for it go together. Default: 1000."""
    linger: Span
    """Time for which a message may wait for others; 0: each is sent at once. Default: 0.005 seconds."""
    timeout: Span
    """Time to wait for a broker that does not confirm. Default: 30 seconds."""


class PublishOptions(TypedDict, total=False):
    """The options of `publish` besides its id."""

    json: Any
    """A value in place of the body."""
    assurance: Assurance
    """`stored`: the call returns when the message is durable. Default: `stored`."""
    timeout: Span | None
    """Time to wait for the confirmation. Default: the client's own."""
    ttl: Span | None
    """Time after which the message expires. Default: that of the stream."""


class SelectorOptions(TypedDict, total=False):
    """The selection of a subscription or an offer, and its credit."""

    family: str
    """The family of the patterns: `topic`, `topic-amqp`, `exact`, `prefix`, `regex`, or a family of a
    plug-in. Default: `topic`."""
    criteria: Criteria | None
    """Pairs of a family and a pattern, besides the patterns; also of `fields` and `geo`, whose patterns are
    more than text."""
    credit: int
    """Maximum unprocessed messages at this client; -1 is without limit. Default: 10,000 for a subscription, 1
    for an offer to work."""
    credit_bytes: int
    """Their maximum bytes. Default: 8 MiB for a subscription, without limit for an offer to work."""
    timeout: Span | None
    """Time to wait for the broker's answer. Default: the client's own."""


class SubscribeOptions(SelectorOptions, total=False):
    """The options of `subscribe` and `subscription`."""

    where: str
    """A match expression on the headers. Default: all messages."""
    start: When
    """`new`, `first`, `last`, `last-per-subject`, `seq:N`, `time:T` or `since:1h`; a sequence, a datetime, or
    a timedelta that reaches back. Default: `new`."""
    cursor: str
    """The name of a position that the broker keeps. A known cursor is the start of the subscription, a new
    one is set at `start`; `Subscription.commit` advances it."""
    committed: bool
    """Whether a message is delivered only when it is durable on the broker. Default: False."""
    existing: bool
    """Whether a missing stream is refused with `NotFound`, and not created. Default: False."""


class HistoryOptions(SelectorOptions, total=False):
    """The options of `history`."""

    where: str
    """A match expression on the headers. Default: all messages."""


class WorkOptions(SelectorOptions, total=False):
    """The options of `work`."""

    ack_timeout: Span | None
    """Time without a settlement or a report after which a request is redelivered to the next worker. Default:
    the broker's."""


class ConsumeOptions(WorkOptions, total=False):
    """The options of `consume`."""

    temporary: bool
    """Whether the mailbox is created as a temporary one: it is removed with its last consumer, and so are the
    messages in it. Default: False."""


class MailboxOptions(TypedDict, total=False):
    """The credit for mail. The options of `mailbox`."""

    credit: int
    """Maximum unacknowledged messages at this client; -1 is without limit. Default: 1000."""
    credit_bytes: int
    """Their maximum bytes. Default: 8 MiB."""


class HandlerOptions(TypedDict, total=False):
    """The options of `service` and `on_mail`."""

    credit: int
    """Maximum unprocessed messages at this client. Default: 1 for a service, 1000 for mail."""
    concurrency: int
    """Maximum simultaneous calls of the handler. Default: 1."""
    on_error: Literal["nak", "reject", "reply"]
    """The settlement of a message whose handler raised an exception. `nak`: it is redelivered after a
    backoff, and in the end a dead letter. `reject`: it is a dead letter at once. `reply`: a request is
    answered with the header `malamute.error`, mail is acknowledged. Default: `nak`."""


class ServiceOptions(HandlerOptions, total=False):
    """The options of `service`."""

    ack_timeout: Span | None
    """As for `work`."""


class MessageOptions(TypedDict, total=False):
    """The options of a message to a mailbox or to a service."""

    id: str
    """A queue stores a message with this id once, within the broker's window of ids."""
    ttl: Span
    """The message expires after this time."""
    priority: int
    """0 to 9; a higher one is delivered first. Default: 0."""
    delay: Span
    """The message is not delivered before this time has passed."""
    at: datetime
    """The message is not delivered before this moment."""
    immediate: bool
    """The message is refused without a consumer for it at present. Default: False."""
    tracker: str
    """The name of a message of the assurance `confirmed`. Default: a generated one."""


class SendOptions(MessageOptions, total=False):
    """The options of `send`."""

    correlation: int | str
    """A value for the recipient, by which `withdraw` finds the message."""
    reply_to: str
    """The address for answers of the recipient."""
    key: str
    """Messages of one key go to one consumer of a shared mailbox for as long as it works."""


class RequestOptions(MessageOptions, total=False):
    """The options of `request`."""

    key: str
    """Requests of one key go to one worker for as long as it works."""


def check_name(what: str, name: str) -> None:
    """Check a name of a stream, a mailbox, a service, a cursor or a user.

    Raises:
        InvalidName: the name breaks the rule for names.
    """
    if not isinstance(name, str) or not is_name(name):
        raise InvalidName(f"invalid {what} {shown(name)}: expected {NAME_FORM}")


def text(name: str, value: str) -> str:
    """Return a text as plain text, also from an enumeration, or from a class derived from `str`."""
    if isinstance(value, str):
        return str.__str__(value)
    raise _invalid(name, value, "text")


def flag(name: str, value: bool) -> bool:
    """Return a boolean. A number could be meant for another option."""
    if isinstance(value, bool):
        return value
    raise _invalid(name, value, "True or False")


def count(name: str, value: int, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`, as a plain `int`."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return int.__index__(value)
    raise _invalid(name, value, f"a whole number from {low} to {high}")


def window(name: str, value: float) -> int:
    """Return a credit: a whole number from 1 on, or -1, which is without limit."""
    if isinstance(value, int | float) and value in (inf, UNLIMITED):
        return UNLIMITED
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= NUMBER_MAX:
        return int.__index__(value)
    raise _invalid(name, value, f"a whole number from 1 to {NUMBER_MAX}, or -1 for no limit")


def seconds(name: str, value: Span) -> float:
    """Return a timeout in seconds. A negative one counts as 0, an infinite one as no limit."""
    if type(value) is float and value == value:
        return value
    if type(value) is int and abs(value) < _LONGEST_SECONDS:
        return float(value)
    if isinstance(value, timedelta):
        value = value / _SECOND
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _invalid(name, value, "seconds or a timedelta")
    try:
        return float(value)
    except OverflowError:
        raise _invalid(name, value, "seconds that a clock can count") from None


def patience(name: str, value: Span | None) -> float | None:
    """Return a timeout in seconds; None, which has a meaning of its own, for None."""
    return None if value is None else seconds(name, value)


def pause(name: str, value: Span) -> float:
    """Return a finite span of 0 seconds or more."""
    found = seconds(name, value)
    if not 0 <= found < inf:
        raise _invalid(name, value, "0 seconds or more")
    return found


def milliseconds(name: str, value: Span) -> int:
    """Return a duration in milliseconds, as the protocol has it; a part of one counts as a whole."""
    found = pause(name, value)
    exact = value if isinstance(value, timedelta) else timedelta(seconds=min(found, _LONGEST_SECONDS))
    if found > _LONGEST_SECONDS:
        raise _invalid(name, value, "at most ten years")
    return -(-(exact // _MICROSECOND) // 1000)


def time_to_live(name: str, value: Span | None) -> int:
    """Return a time to live in milliseconds; 0, which is for ever, for None."""
    if value is None:
        return 0
    if found := milliseconds(name, value):
        return found
    raise _invalid(name, value, "more than 0 seconds and at most ten years")


def nanoseconds(name: str, value: datetime) -> int:
    """Return a moment in nanoseconds since 1970, as the protocol has it. One before that is 1970."""
    # A datetime of pandas may be NaT, which is not equal to itself.
    if not isinstance(value, datetime) or value != value:
        raise _invalid(name, value, "a datetime")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    found = max(0, int((aware - _EPOCH) // _MICROSECOND)) * 1000
    if found > NUMBER_MAX:
        raise _invalid(name, value, "a datetime before 2262-04-11")
    return found


def start_words(name: str, value: When) -> str:
    """Return a start in the words of the protocol."""
    if isinstance(value, datetime) or value != value:
        words = f"time:{nanoseconds(name, value)}"  # type: ignore[arg-type]  # checked there
    elif isinstance(value, timedelta):
        words = f"since:{value // timedelta(milliseconds=1)}ms"
    elif isinstance(value, bool) or not isinstance(value, int | str):
        raise _invalid(name, value, "text, a sequence, a datetime or a timedelta")
    else:
        words = str.__str__(value) if isinstance(value, str) else f"seq:{int.__index__(value)}"
    Start.parse(words)
    return words


def end_of(value: Until, now_ns: int) -> tuple[int, int]:
    """Return the end of a history: the lowest sequence, and the earliest time in ns, behind it."""
    if isinstance(value, timedelta):
        return NUMBER_MAX, now_ns - value // _MICROSECOND * 1000
    if isinstance(value, datetime):
        return NUMBER_MAX, nanoseconds("until", value)
    if value == "now":
        return NUMBER_MAX, NUMBER_MAX
    if isinstance(value, int) and not isinstance(value, bool):
        return count("until", value, 0, NUMBER_MAX - 1) + 1, NUMBER_MAX
    raise _invalid("until", value, "'now', a sequence, a datetime or a timedelta")


def _short_text(name: str, value: str) -> str:
    found = text(name, value)
    if 0 < len(found.encode("utf-8", "replace")) <= TEXT_BYTES_MAX:
        return found
    raise _invalid(name, value, f"text of 1 to {TEXT_BYTES_MAX} bytes")


def _correlation(name: str, value: int | str) -> int | str:
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= TEXT_BYTES_MAX:
        return text(name, value)
    if isinstance(value, int) and not isinstance(value, bool) and -NUMBER_MAX - 1 <= value <= UNSIGNED_MAX:
        return int.__index__(value)
    raise _invalid(name, value, f"a whole number of 64 bits, or text of at most {TEXT_BYTES_MAX} bytes")


def _cursor(name: str, value: str) -> str:
    if value != "":
        check_name(name, value)
    return text(name, value)


def _address(name: str, value: str) -> str:
    if not isinstance(value, str) or not is_name(value) or value.startswith(RESERVED_PREFIX):
        raise _invalid(name, value, f"an address: {NAME_FORM}")
    return text(name, value)


def _invalid(name: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(f"invalid {name} {shown(value)}: expected {expected}")


def _from(low: int, high: int) -> Callable[[str, Any], int]:
    return lambda name, value: count(name, value, low, high)


_OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "timeout": patience,
    "heartbeat": pause,
    "linger": pause,
    "refresh": pause,
    "batch": _from(1, BATCH_MESSAGES_MAX),
    "concurrency": _from(1, CONCURRENCY_MAX),
    "credit": window,
    "credit_bytes": window,
    "ack_timeout": lambda name, value: 0 if value is None else milliseconds(name, value),
    "family": text,
    "where": text,
    "start": start_words,
    "cursor": _cursor,
    "committed": flag,
    "existing": flag,
    "temporary": flag,
    "auto_ack": flag,
    "id": _short_text,
    "address": text,
    "software": text,
    "token": text,
    "act_as": text,
    "user": text,
    "password": text,
}
"""Converters of the options of calls, by name; each takes the name and the value."""

_PROPERTIES: dict[str, Callable[[str, Any], Any]] = {
    "id": _short_text,
    "tracker": _short_text,
    "key": _short_text,
    "correlation": _correlation,
    "reply_to": _address,
    "ttl": time_to_live,
    "delay": milliseconds,
    "at": nanoseconds,
    "priority": _from(0, 9),
    "immediate": flag,
}
"""Converters of the options of a message, by name."""


def checked(**options: Any) -> dict[str, Any]:
    """Return the options of a call in the form of the session.

    Raises:
        InvalidValue: an option is of the wrong type, or beyond its range.
        InvalidName: a name is invalid.
    """
    return {name: _OPTIONS[name](name, value) for name, value in options.items()}


def refuse_unknown(call: str, known: type, unknown: Mapping[str, Any]) -> None:
    """Raise `InvalidValue` if a call has options that are none of its `known` ones."""
    if unknown:
        names = ", ".join(known.__annotations__)
        raise InvalidValue(f"unknown option {shown(next(iter(unknown)))} of {call}: expected {names}")


def properties_of(options: Any) -> dict[str, Any]:
    """Return the properties of a message with these options.

    Raises:
        InvalidValue: an option is unknown, of the wrong type or beyond its range, or two exclude each other.
    """
    if not options:
        return {}
    if not options.keys() <= _PROPERTIES.keys():
        unknown = next(iter(options.keys() - _PROPERTIES.keys()))
        raise InvalidValue(f"unknown option {shown(unknown)}: expected {', '.join(_PROPERTIES)}")
    if "delay" in options and "at" in options:
        raise InvalidValue("options 'delay' and 'at' together: expected one of them")
    return {name: _PROPERTIES[name](name, value) for name, value in options.items() if value is not None}
