"""Events of a session besides messages: small values, passed to `client.on_event`.

Without a handler of the program's own, `log_event` writes them to the standard logger `malamute`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from malamute.errors import MalamuteError

_logger = logging.getLogger("malamute")


class Connected(NamedTuple):
    """The session is open. `resumed`: the broker still knew it from an earlier connection.

    `again`: the session was open before.
    """

    broker: str
    resumed: bool
    again: bool = False


class Lost(NamedTuple):
    """The connection broke, or the session has to be opened anew. The client reconnects by itself."""

    reason: str


class Moved(NamedTuple):
    """The broker is not the primary of its pair, for `reason`: the client goes on to another.

    `urls` are those of the primary, as far as the broker knows them.
    """

    reason: str
    urls: Sequence[str] = ()


class Restored(NamedTuple):
    """The broker was restored from a backup since this session was last connected.

    Messages confirmed after the backup may be lost. Each subscription gets a `Gap`.
    """

    broker: str


class Gap(NamedTuple):
    """Messages of a stream from `first` to `last` are unavailable to one subscription, for `reason`.

    With the reason `taken-back`, and with `restored` up to the last delivered message, they were delivered
    before the broker lost them. With `another-store` the subscription continues in the new `store`, behind
    `last`, which is 0 if it begins with the first message there.
    """

    stream: str
    first: int
    last: int
    reason: str
    store: str = ""

    def __repr__(self) -> str:
        fields = {name: value for name, value in self._asdict().items() if name != "store" or value}
        return f"Gap({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class Switched(NamedTuple):
    """A subscription is now `live` or in `replay`, from this sequence on."""

    stream: str
    state: str
    sequence: int


class Limited(NamedTuple):
    """A subscription is limited to a part of its selection by the rules of the broker."""

    stream: str


class Slow(NamedTuple):
    """A subscription fell behind: it was live, and `waiting` messages are unread here."""

    stream: str
    waiting: int


class Recalled(NamedTuple):
    """The broker recalled mail or requests that are not settled, for `reason`.

    `queue` is the service, or the address of the mailbox. With the reason `timeout` they are redelivered to
    the next consumer; with `expired`, `withdrawn` and `purged` they are settled. With `cancelled` they are
    unwanted: they stay here, and are to be settled as ever.
    """

    queue: str
    sequences: tuple[int, ...]
    reason: str


class Refusal(NamedTuple):
    """The broker refused a command without a waiting call, such as an unconfirmed publish."""

    error: MalamuteError


Event = Connected | Lost | Moved | Restored | Gap | Switched | Limited | Slow | Recalled | Refusal

_LEVELS: dict[type, int] = {
    Connected: logging.INFO,
    Lost: logging.WARNING,
    Moved: logging.INFO,
    Restored: logging.WARNING,
    Gap: logging.WARNING,
    Switched: logging.INFO,
    Limited: logging.INFO,
    Slow: logging.INFO,
    Recalled: logging.WARNING,
    Refusal: logging.WARNING,
}


_SENTENCES: dict[type, str] = {
    Connected: "The session with broker {broker} is open.",
    Lost: "The session with the broker is interrupted, and the client reconnects: {reason}.",
    Moved: "The broker is not the primary of its pair, and the client goes on to another: {reason}.",
    Restored: "Broker {broker} was restored from a backup: later messages may be lost.",
    Gap: "Messages {first} to {last} of stream {stream!r} are unavailable: {reason}.",
    Switched: "The subscription to stream {stream!r} is in the state {state} from sequence {sequence} on.",
    Limited: "The subscription to stream {stream!r} is limited by the rules of the broker.",
    Slow: "The subscription to stream {stream!r} fell behind: {waiting} messages are unread.",
    Recalled: "The broker recalled messages {sequences} of queue {queue!r}: {reason}.",
    Refusal: "The broker refused a command that no call waits for: {error}.",
}


def log_event(event: Event) -> None:
    """Write an event to the logger `malamute` as a sentence: failures as warnings, others as information.

    The first connection of a session is for debugging.

    The record has the fields of the event as attributes of its own, so that a formatter for programs, such as
    `structlog.stdlib.ProcessorFormatter` behind `ExtraAdder`, shows them one by one.
    """
    fields = {name: str(value) if name == "error" else value for name, value in event._asdict().items()}
    words = _SENTENCES[type(event)].format(**event._asdict())
    is_first = type(event) is Connected and not event.again
    level = logging.DEBUG if is_first else _LEVELS[type(event)]
    _logger.log(level, "%s", words, extra={"event_type": type(event).__name__, **fields})
