"""Handlers: functions that are called with each request, mail or message; the common part of both edges.

When a handler returns, its message is settled: a request is answered with the result, mail is acknowledged,
and a cursor moves behind a message of a stream. When the handler raises an exception, a request or mail is
redelivered after a backoff, until it is a dead letter, unless `on_error` is set. A message settled by its
handler stays as it is. A message of a stream is not retried: `run` raises the exception, and the cursor stays
before that message.

While a handler is at work, progress is reported every third of the ack timeout, so that it may take as long
as it needs. The broken connection reports a handler that dies with its program; a handler that hangs has to
be ended by its author.

A handler whose first parameter is a dataclass, a Struct of msgspec or a model of pydantic gets the value of
the body in place of the message, and the message as a second parameter if it has one. A body that is no such
value is rejected at once.

The result of a service handler is the body of its reply. If it cannot be one, since it is of another type
or too large, the handler is wrong, not the moment: the request is rejected at once, with the type and the
handler in the reason, and is not tried again.

Unhandled messages are released, as if they had never been delivered: those that wait when `run` ends, and
those of a handler that KeyboardInterrupt or the end of `run` breaks off, since the message is not to blame
for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import isasyncgenfunction, isawaitable, iscoroutine, iscoroutinefunction, signature
from traceback import format_exception
from typing import Any, NamedTuple

from malamute.client.link.consumers import MailboxBase, SubscriptionBase, WorkerBase
from malamute.client.options import checked
from malamute.client.session.codecs import ABSENT, JSON, BodyCodec, content_of, is_model
from malamute.client.session.message import Mail, Message, ServiceRequest
from malamute.errors import InvalidValue, MalamuteError, TooLarge
from malamute.protocol.limits import TEXT_BYTES_MAX, WHERE_BYTES_MAX
from malamute.protocol.names import ERROR_HEADER
from malamute.protocol.texts import fitting, shown, words_of

_log = logging.getLogger("malamute")

LOGGED_BYTES_MAX = 64 * 1024
"""Maximum bytes of a failure in a log line, with its traceback."""

Consumer = WorkerBase | MailboxBase | SubscriptionBase


class Registration(NamedTuple):
    """A handler with its options. `open` makes the consumer, once `run` is called."""

    open: Callable[[], Any]
    handler: Callable[..., Any]
    concurrency: int
    on_error: str
    kind: Any = None
    """The type of the value that the handler takes in place of the message; None for the message."""
    takes_both: bool = False
    """Whether it takes the message behind the value."""
    codec: BodyCodec | None = None
    """The codec of the client."""

    def __call__(self, message: Message) -> Any:
        """Call the handler with a message, or with the value of its body."""
        if self.kind is None:
            return self.handler(message)
        try:
            value = message.value(self.kind, self.codec or JSON)
        except InvalidValue as invalid:
            raise Unreadable(f"handler {self.name} takes {self.kind.__name__}: {invalid.text}") from invalid
        return self.handler(value, message) if self.takes_both else self.handler(value)

    @property
    def name(self) -> str:
        """Return the name of the handler, or of its type."""
        return str(getattr(self.handler, "__name__", type(self.handler).__name__))


class Unreadable(InvalidValue):
    """Raised for a message whose body is no value of the type that its handler takes."""


def check_handling(*, concurrency: int, on_error: str) -> None:
    """Check the options of a decorator. Raises `InvalidValue`."""
    checked(concurrency=concurrency)
    if not isinstance(on_error, str) or on_error not in _ON_ERROR:
        raise InvalidValue(f"invalid on_error {shown(on_error)}: expected {', '.join(_ON_ERROR)}")


def registration(
    open_: Callable[[], Any],
    handler: Callable[[Any], Any],
    *,
    concurrency: int,
    on_error: str,
    awaits: bool,
    codec: BodyCodec | None = None,
) -> Registration:
    """Return a checked registration; with `awaits` the result of the handler is awaited.

    Raises:
        InvalidValue: the handler is no function, or its result would not be awaited.
    """
    if not callable(handler):
        raise InvalidValue(f"invalid handler {shown(handler)}: expected a function")
    if not awaits and (_is_asynchronous(handler) or _is_asynchronous(type(handler).__call__)):
        raise InvalidValue(
            "invalid handler: it is an `async def`, and this client awaits nothing: expected a plain "
            "function, or a client of malamute.aio.connect"
        )
    return Registration(open_, handler, concurrency, on_error, *_model_of(handler), codec)


def _model_of(handler: Callable[..., Any]) -> tuple[Any, bool]:
    """Return the type of the handler's first parameter if it is of values, and whether there is a second."""
    try:
        parameters = [*signature(handler, eval_str=True).parameters.values()]
    except (NameError, TypeError, ValueError, AttributeError):
        return None, False  # of a name that is not there at run time, or without a signature
    required = [p for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    if not required or not is_model(required[0].annotation):
        return None, False
    return required[0].annotation, len(required) > 1


def _is_asynchronous(function: object) -> bool:
    return iscoroutinefunction(function) or isasyncgenfunction(function)


async def succeeded(consumer: Consumer, message: Message, result: Any, handling: Registration) -> None:
    """Settle a message whose handler returned."""
    if isinstance(message, ServiceRequest):
        if not message.settled:
            assert isinstance(consumer, WorkerBase)
            codec = handling.codec or (None if handling.kind is None else JSON)
            body, headers = (b"", None) if result is None else content_of(codec, ABSENT, result, None)
            await consumer._answer(message, body, headers, final=True, assurance="none")
    elif isinstance(message, Mail):
        message.ack()
    else:
        assert isinstance(consumer, SubscriptionBase)
        consumer.handled(message)


async def failed(
    consumer: Consumer, message: Message, error: Exception, handling: Registration, on_error: str
) -> None:
    """Settle a message whose handler raised an exception. Raises it for a message of a stream."""
    if not isinstance(message, Mail) or isinstance(consumer, SubscriptionBase):
        raise error
    told = "".join(format_exception(error))
    fits = fitting(told, LOGGED_BYTES_MAX)
    # A log handler that writes UTF-8 would lose the whole line for half a surrogate.
    more = "" if fits == told else f"\n{fits}"
    _log.error(
        "Handler %s failed on %s.%s",
        handling.name,
        _words_of(consumer, message),
        more,
        exc_info=None if more else error,
        extra=_fields_of(consumer, message),
    )
    if not message.settled:
        await _ON_ERROR[on_error](consumer, message, error)


def _words_of(consumer: WorkerBase | MailboxBase, message: Mail) -> str:
    kind = "request {!r} to service" if isinstance(message, ServiceRequest) else "mail {!r} to mailbox"
    return (
        f"{kind.format(message.subject)} {consumer.queue!r}, sequence {message.sequence}, "
        f"attempt {message.attempts}"
    )


def _fields_of(consumer: WorkerBase | MailboxBase, message: Mail) -> dict[str, Any]:
    """Return the attributes of a log record, for formatters that show them one by one."""
    return {
        "queue": consumer.queue,
        "subject": message.subject,
        "sequence": message.sequence,
        "attempt": message.attempts,
    }


async def settle(
    consumer: Consumer, message: Message, result: Any, error: Exception | None, handling: Registration
) -> None:
    """Settle a message after its handler has ended, with a result or an exception.

    Raises the exception of a stream handler, and nothing else: a message that cannot be settled now, such as
    a reply for which there is no room, is redelivered.
    """
    try:
        if error is None:
            await _succeeded(consumer, message, result, handling)
        else:
            on_error = _without_retry(handling) if isinstance(error, Unreadable) else handling.on_error
            await failed(consumer, message, error, handling, on_error)
    except MalamuteError as late:
        if not isinstance(message, Mail) or isinstance(consumer, SubscriptionBase):
            raise
        _log.warning(
            "Handler %s is done with %s, but the message could not be settled, and is redelivered: %s",
            handling.name,
            _words_of(consumer, message),
            late,
            extra=_fields_of(consumer, message),
        )


async def _succeeded(consumer: Consumer, message: Message, result: Any, handling: Registration) -> None:
    try:
        if isawaitable(result):
            # An event loop has awaited it before. Here a wrapper of an `async def` looks like a function.
            if iscoroutine(result):
                result.close()
            raise InvalidValue("invalid handler: expected a function that awaits nothing")
        await succeeded(consumer, message, result, handling)
    except (InvalidValue, TooLarge) as invalid:
        wrong = InvalidValue(f"handler {handling.name} returned {type(result).__name__}: {invalid.text}")
        await failed(consumer, message, wrong, handling, _without_retry(handling))


def _without_retry(handling: Registration) -> str:
    """Return the settlement of a failure that a retry would repeat."""
    return "reject" if handling.on_error == "nak" else handling.on_error


def untouched(message: Message) -> None:
    """Release a message whose handler was interrupted, for a reason other than the message."""
    if isinstance(message, Mail):
        message.release()


async def _nak(consumer: Consumer, mail: Mail, error: Exception) -> None:
    mail.nak()


async def _reject(consumer: Consumer, mail: Mail, error: Exception) -> None:
    mail.reject(words_of(error, TEXT_BYTES_MAX))


async def _reply(consumer: Consumer, mail: Mail, error: Exception) -> None:
    if isinstance(mail, ServiceRequest) and isinstance(consumer, WorkerBase):
        words = words_of(error, min(WHERE_BYTES_MAX, consumer.message_bytes // 2))
        await consumer._answer(mail, b"", {ERROR_HEADER: words}, final=True, assurance="none")
    else:
        mail.ack()


_ON_ERROR = {"nak": _nak, "reject": _reject, "reply": _reply}
"""Settlements of a message whose handler failed."""
