"""What a session reports to its program besides messages: small values, handed to `client.on_event`.

Without a handler of the program's own, `log_event` writes them to the standard logger `malamute`.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from malamute.errors import MalamuteError

_logger = logging.getLogger("malamute")


class Connected(NamedTuple):
    """The session is open. `resumed`: the broker still knew it from an earlier connection."""

    broker: str
    resumed: bool


class Lost(NamedTuple):
    """The connection broke, or the session has to be opened anew. The client reconnects by itself."""

    reason: str


class Restored(NamedTuple):
    """The broker was restored from a backup since this session was last connected.

    What was confirmed after the backup was made may be lost. Each subscription gets a `Gap`.
    """

    broker: str


class Gap(NamedTuple):
    """The messages of a stream from `first` to `last` are unavailable to one subscription; `reason` is why.

    With the reason `taken-back`, and with `restored` up to the last message that was delivered, the
    subscription has had them: the broker has lost them since. With `another-store` it goes on in `store`,
    another one than before, behind `last`, which is 0 if nothing of that store is left out.
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
    """A subscription has not all that it asked for: the rules of the broker allow a part of it."""

    stream: str


class Slow(NamedTuple):
    """A subscription fell behind: it was live, and `waiting` messages are here that nobody consumes."""

    stream: str
    waiting: int


class Recalled(NamedTuple):
    """The broker took back mail or requests that are not settled; `reason` is why.

    `queue` is the service, or the address of the mailbox. With the reason `timeout` they are redelivered to
    the next consumer; with `expired`, `withdrawn` and `purged` they are over.
    """

    queue: str
    sequences: tuple[int, ...]
    reason: str


class Refusal(NamedTuple):
    """The broker refused something that nobody waits for, such as an unconfirmed publish."""

    error: MalamuteError


Event = Connected | Lost | Restored | Gap | Switched | Limited | Slow | Recalled | Refusal

_LEVELS: dict[type, int] = {
    Connected: logging.INFO,
    Lost: logging.WARNING,
    Restored: logging.WARNING,
    Gap: logging.WARNING,
    Switched: logging.INFO,
    Limited: logging.INFO,
    Slow: logging.INFO,
    Recalled: logging.WARNING,
    Refusal: logging.WARNING,
}


def log_event(event: Event) -> None:
    """Write an event to the logger `malamute`: as a warning when something went wrong, else as information.

    The record has the fields of the event as attributes of its own, so that a formatter for programs, such as
    `structlog.stdlib.ProcessorFormatter` behind `ExtraAdder`, shows them one by one.
    """
    fields = {name: str(value) if name == "error" else value for name, value in event._asdict().items()}
    _logger.log(_LEVELS[type(event)], "%s", event, extra={"event_type": type(event).__name__, **fields})
