"""Handlers: functions that are called with each request, mail or message. What both edges share.

When a handler returns, its message is settled: a request is answered with what it returned, mail is
acknowledged, and a cursor moves behind a message of a stream. When it raises an exception, a request or mail
is redelivered after a backoff, until it is a dead letter; `on_error` says otherwise.
What a handler settled itself stays as it is. For a message of a stream there is no second try: the exception
comes out of `run`, and the cursor stays before that message.

While a handler is at work, progress is reported every third of the ack timeout, so that it may take as long
as it needs. A handler that dies with its program is noticed by the broken connection, and one that hangs has
to be ended by its author.

What was not handled to its end is released, as if it had never been delivered. That is what waits when `run`
ends, and what is in the hands of a handler that KeyboardInterrupt or the end of `run` breaks off, since the
message is not to blame for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from malamute.client.link.consumers import MailboxBase, SubscriptionBase, WorkerBase
from malamute.client.session.message import Mail, Message, ServiceRequest
from malamute.errors import InvalidValue, MalamuteError, TooLarge
from malamute.protocol.names import ERROR_HEADER

_log = logging.getLogger("malamute")

Consumer = WorkerBase | MailboxBase | SubscriptionBase


class Registration(NamedTuple):
    """A handler and what it is for. `open` makes the consumer, once `run` is called."""

    open: Callable[[], Any]
    handler: Callable[[Any], Any]
    concurrency: int
    on_error: str


def registration(
    open_: Callable[[], Any], handler: Callable[[Any], Any], *, concurrency: int, on_error: str
) -> Registration:
    """Check and keep what a decorator was given. Raises `InvalidValue`."""
    if concurrency < 1:
        raise InvalidValue(f"invalid concurrency {concurrency!r}: expected 1 or more")
    if on_error not in _ON_ERROR:
        raise InvalidValue(f"invalid on_error {on_error!r}: expected {', '.join(_ON_ERROR)}")
    return Registration(open_, handler, concurrency, on_error)


async def succeeded(consumer: Consumer, message: Message, result: Any) -> None:
    """Settle a message whose handler returned."""
    if isinstance(message, ServiceRequest):
        if not message.settled:
            assert isinstance(consumer, WorkerBase)
            await consumer._answer(
                message, b"" if result is None else result, None, final=True, assurance="none"
            )
    elif isinstance(message, Mail):
        message.ack()
    else:
        assert isinstance(consumer, SubscriptionBase)
        consumer.handled(message)


async def failed(consumer: Consumer, message: Message, error: Exception, on_error: str) -> None:
    """Settle a message whose handler raised an exception. Raises it for a message of a stream."""
    if not isinstance(message, Mail):
        raise error
    _log.error("the handler of %r failed", message.subject, exc_info=error)
    if not message.settled:
        await _ON_ERROR[on_error](consumer, message, f"{type(error).__name__}: {error}")


async def settle(
    consumer: Consumer, message: Message, result: Any, error: Exception | None, on_error: str
) -> None:
    """Settle a message whose handler has ended, one way or the other."""
    if error is None:
        try:
            await succeeded(consumer, message, result)
            return
        except (InvalidValue, TooLarge) as invalid:
            # What it returned cannot be a body: that is a fault of the handler.
            error = invalid
        except MalamuteError as late:
            _log.warning("what the handler of %r returned was lost: %s", message.subject, late)
            return
    await failed(consumer, message, error, on_error)


def untouched(message: Message) -> None:
    """Give back what a handler did not come to the end of, for a reason that is not the message."""
    if isinstance(message, Mail):
        message.release()


async def _nak(consumer: Consumer, mail: Mail, text: str) -> None:
    mail.nak()


async def _reject(consumer: Consumer, mail: Mail, text: str) -> None:
    mail.reject(text.encode()[:200].decode(errors="ignore"))


async def _reply(consumer: Consumer, mail: Mail, text: str) -> None:
    if isinstance(mail, ServiceRequest) and isinstance(consumer, WorkerBase):
        await consumer._answer(mail, b"", {ERROR_HEADER: text}, final=True, assurance="none")
    else:
        mail.ack()


_ON_ERROR = {"nak": _nak, "reject": _reject, "reply": _reply}
"""What becomes of a message whose handler failed."""
