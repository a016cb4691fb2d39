"""The options of the client's calls, each in one place for both edges, and how the protocol says them.

Durations are seconds or a `timedelta`; moments are a `datetime`, in UTC if it does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol.limits import DURATION_MS_MAX
from malamute.protocol.names import NAME_FORM, is_name
from malamute.protocol.start import Start
from malamute.protocol.texts import shown

DEFAULT_URL = "tcp://127.0.0.1:9999"
TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 5.0
CREDIT_MESSAGES = 10_000
CREDIT_BYTES = 8 * 1024 * 1024
MAIL_CREDIT_MESSAGES = 1000
BATCH_MESSAGES = 1000
LINGER_SECONDS = 0.005
PUBLISHER_TIMEOUT_SECONDS = 30.0
DEMAND_REFRESH_SECONDS = 1.0
DEMAND_TIMEOUT_SECONDS = 1.0

Span = float | timedelta
"""Seconds, or a timedelta."""

When = str | int | datetime | timedelta
"""Where a subscription starts: words of the protocol, a sequence, a moment, or how far back."""

Criteria = Sequence[tuple[str, Any]]
"""Pairs of a family and a pattern."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class PublisherOptions(TypedDict, total=False):
    """The options of `publisher` and `sender`."""

    assurance: str
    """`stored`: every message is confirmed when it is durable. `none`: nothing is. Default: `stored`."""
    batch: int
    """The most messages in one command; 64 KiB end one, too. With 1, each goes at once where the connection
    is free, and those that wait for it go together. Default: 1000."""
    linger: float
    """How long a message may wait for others, in seconds; 0: each is sent at once. Default: 0.005."""
    timeout: float
    """How long to wait for a broker that does not confirm, in seconds. Default: 30."""


class SelectorOptions(TypedDict, total=False):
    """Which messages a subscription or an offer is for, and how many may be here."""

    family: str
    """How the patterns are read: `topic`, `topic-amqp`, `exact`, `prefix`, `regex`, or a family of a plug-in.
    Default: `topic`."""
    criteria: Criteria | None
    """Pairs of a family and a pattern, besides the patterns; also of `fields` and `geo`, whose patterns are
    more than text."""
    credit: int
    """The most messages that may be here and not done with; -1 is without limit. Default: 10,000 for a
    subscription, 1 for an offer to work."""
    credit_bytes: int
    """The same in bytes. Default: 8 MiB for a subscription, without limit for an offer to work."""
    timeout: float | None
    """How long to wait for the broker's answer, in seconds. Default: the client's own."""


class SubscribeOptions(SelectorOptions, total=False):
    """The options of `subscribe` and `subscription`."""

    where: str
    """A match expression on the headers. Default: all messages."""
    start: When
    """`new`, `first`, `last`, `last-per-subject`, `seq:N`, `time:T` or `since:1h`; a sequence, a datetime, or
    a timedelta that reaches back. Default: `new`."""
    cursor: str
    """The name of a position that the broker keeps. A known one is where the subscription begins, a new one
    is set at `start`; `Subscription.commit` moves it."""
    committed: bool
    """Whether a message is delivered only when it is durable on the broker. Default: False."""
    existing: bool
    """Whether a stream that is not there is refused, with `NotFound`, and not made. Default: False."""


class WorkOptions(SelectorOptions, total=False):
    """The options of `work`."""

    ack_timeout: Span | None
    """After this long without a settlement or a report, a request is redelivered to the next worker. Default:
    what the broker is configured for."""


class MailboxOptions(TypedDict, total=False):
    """How much mail may be here. The options of `mailbox`."""

    credit: int
    """The most messages that may be here unacknowledged; -1 is without limit. Default: 1000."""
    credit_bytes: int
    """The same in bytes. Default: 8 MiB."""


class HandlerOptions(TypedDict, total=False):
    """The options of `service` and `on_mail`."""

    credit: int
    """The most messages that may be here and not done with. Default: 1 for a service, 1000 for mail."""
    concurrency: int
    """The most calls of the handler at a time. Default: 1."""
    on_error: str
    """What becomes of a message whose handler raised an exception. `nak`: it is redelivered after a backoff,
    and in the end a dead letter. `reject`: it is a dead letter at once. `reply`: a request is answered with
    the header `malamute.error`, mail is acknowledged. Default: `nak`."""


class ServiceOptions(HandlerOptions, total=False):
    """The options of `service`."""

    ack_timeout: Span | None
    """As for `work`."""


class MessageOptions(TypedDict, total=False):
    """The options of a message to a mailbox or to a service."""

    id: str
    """A queue takes a message with this id once, within the window that the broker keeps."""
    ttl: Span
    """The message expires after this time."""
    priority: int
    """0 to 9; a higher one is delivered first. Default: 0."""
    delay: Span
    """It is not delivered before this time has passed."""
    at: datetime
    """It is not delivered before this moment."""
    immediate: bool
    """It is refused unless somebody takes such messages now. Default: False."""
    tracker: str
    """The name of a message of the assurance `confirmed`. Default: one that the client makes."""


class SendOptions(MessageOptions, total=False):
    """The options of `send`."""

    correlation: int | str
    """What the recipient gets to find the message by, and `withdraw` names."""
    reply_to: str
    """The address that the recipient may answer to."""


class RequestOptions(MessageOptions, total=False):
    """The options of `request`."""

    key: str
    """Requests of one key go to one worker for as long as it works."""


def check_name(what: str, name: str) -> None:
    """Check a name of a stream, a mailbox, a service, a cursor or a user.

    Raises:
        InvalidName: it breaks the rule for names.

    """
    if not isinstance(name, str) or not is_name(name):
        raise InvalidName(f"invalid {what} {shown(name)}: expected {NAME_FORM}")


def milliseconds(span: Span) -> int:
    """Return a duration in milliseconds, as the protocol has it; a part of a millisecond counts as a whole.

    Raises:
        InvalidValue: it is no duration, or negative.

    """
    if not isinstance(span, timedelta):
        if isinstance(span, bool) or not isinstance(span, int | float):
            raise InvalidValue(f"invalid time {span!r}: expected seconds or a timedelta")
        try:
            span = timedelta(seconds=span)
        except (OverflowError, ValueError):
            raise InvalidValue(f"invalid time {span!r}: expected seconds that a clock can count") from None
    if span < timedelta():
        raise InvalidValue(f"invalid time {span!r}: expected 0 seconds or more")
    return -(-(span // _MICROSECOND) // 1000)


def ttl_milliseconds(ttl: Span | None) -> int:
    """Return a time to live in milliseconds; 0, which is for ever, for None.

    Raises:
        InvalidValue: it is no duration, or not longer than nothing, or longer than ten years.

    """
    found = 0 if ttl is None else milliseconds(ttl)
    if ttl is not None and not 0 < found <= DURATION_MS_MAX:
        raise InvalidValue(f"invalid ttl {ttl!r}: expected more than 0 seconds and at most ten years")
    return found


def nanoseconds(moment: datetime) -> int:
    """Return a moment in nanoseconds since 1970, as the protocol has it.

    Raises:
        InvalidValue: it is no datetime.

    """
    if not isinstance(moment, datetime):
        raise InvalidValue(f"invalid moment {moment!r}: expected a datetime")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // _MICROSECOND) * 1000


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "ttl": milliseconds,
    "delay": milliseconds,
    "at": nanoseconds,
}


def properties_of(options: Any) -> dict[str, Any]:
    """Return the properties of a message with these options.

    Whether a value is in its range is for the broker to say.

    Raises:
        InvalidValue: an option is of the wrong type, or two exclude each other.

    """
    if "delay" in options and "at" in options:
        raise InvalidValue("options 'delay' and 'at' together: expected one of them")
    return {
        name: _CONVERT.get(name, lambda same: same)(value)
        for name, value in options.items()
        if value is not None
    }


def start_words(when: When) -> str:
    """Return a start in the words of the protocol.

    Raises:
        InvalidValue: it is no start.

    """
    if isinstance(when, datetime):
        words = f"time:{nanoseconds(when)}"
    elif isinstance(when, timedelta):
        words = f"since:{when // timedelta(milliseconds=1)}ms"
    elif isinstance(when, bool) or not isinstance(when, int | str):
        raise InvalidValue(f"invalid start {when!r}: expected text, a sequence, a datetime or a timedelta")
    else:
        words = when if isinstance(when, str) else f"seq:{when}"
    Start.parse(words)
    return words
