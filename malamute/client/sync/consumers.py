"""Consumers of a blocking program: subscriptions, the mailbox, replies, and requests to work on.

All of them are iterators and context managers, cancelled at the end of the block. `link/consumers` has the
mechanism.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from malamute.client.link.consumers import (
    MailboxBase,
    QueueConsumer,
    ReplyStream,
    SingleBase,
    SubscriptionBase,
    WorkerBase,
)
from malamute.client.options import Assurance, Span
from malamute.client.session.codecs import ABSENT, Content, content_of
from malamute.client.session.message import Mail, Message, Rejection, ServiceRequest
from malamute.client.session.outbox import Command
from malamute.client.session.sources import StreamSource
from malamute.client.sync.driver import BlockingDriver
from malamute.client.sync.receipts import Receipt
from malamute.errors import Closed
from malamute.protocol.batch import Columns, Headers


class Scoped:
    """A context manager that cancels at the end of the block."""

    def cancel(self) -> None:
        """End the consumer."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class _ThreadSafeConsumer(QueueConsumer):
    """Messages that may be settled by their handler, in any thread."""

    _driver: BlockingDriver

    def finish(self, message: Mail, rejection: Rejection | None = None) -> None:
        """Acknowledge one message, or reject it."""
        self._driver.settle(super().finish, message, rejection)

    def finish_with(self, message: Mail, put: Any) -> Any:
        """Acknowledge one message together with a put, and return the revision."""
        return self._driver.run(super().finish_with(message, put))

    def give_back(self, message: Mail, delay_ms: int) -> None:
        """Return one message after a delay in milliseconds, or after the broker's backoff for -1."""
        self._driver.settle(super().give_back, message, delay_ms)

    def release(self, message: Mail) -> None:
        """Release one message as if it had never been delivered."""
        self._driver.settle(super().release, message)

    def report(self, message: Mail) -> None:
        """Report progress on one message."""
        self._driver.settle(super().report, message)

    def drain(self) -> None:
        """Receive no more: waiting messages are released unread, and held ones can still be settled.

        `cancel` ends the consumer after that.
        """
        self._driver.do(super().drain)

    def has_one(self) -> bool:
        """For handlers: return whether a message is here. Raises the error that ended the queue."""
        if not self._source.waiting and self._source.error is not None:
            raise self._source.error
        return self._source.has_one


class Subscription(SubscriptionBase, Scoped):
    """The messages of a stream that match the patterns, in order. Made by `Client.subscribe`."""

    _driver: BlockingDriver
    _peeked: Message | None = None

    def has_one(self) -> bool:
        """For handlers: return whether a message is here.

        Raises:
            MalamuteError: the error that ended the subscription.
        """
        if self._peeked is None:
            self._peeked = next(self._ready, None)
        if self._peeked is None:
            self._consume()
            if self._refill():
                self._peeked = next(self._ready)
        return self._peeked is not None

    def pop_one(self) -> Message:
        """For handlers: return that message."""
        message, self._peeked = self._peeked, None
        assert message is not None
        return message

    def __iter__(self) -> Iterator[Message]:
        """Yield every message as it is delivered, waiting without end.

        The iteration stops when the subscription is cancelled.

        Raises:
            MalamuteError: the error that ended the session or the subscription.
        """
        yield from self._ready
        while self._driver.run(self._fill(None)):
            yield from self._ready

    def receive(self, timeout: Span | None = None) -> Message:
        """Return the next message. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no message came in time.
            Closed: the subscription is cancelled, and no message is left.
        """
        for message in self._ready:
            return message
        return self._driver.run(self._receive(timeout))

    def take(self, most: int, timeout: Span | None = None) -> list[Message]:
        """Return up to `most` of the next messages: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or when the
        subscription is cancelled.

        Raises:
            MalamuteError: the error that ended the session or the subscription.
        """
        return self._driver.run(self._take(most, timeout))

    def batches(self, most: int = 1000) -> Iterator[list[Message]]:
        """Yield lists of up to `most` messages. The iteration stops when the subscription is cancelled."""
        while batch := self.take(most):
            yield batch

    def columns(self, timeout: Span | None = None, *, enough: Callable[[], object] = bool) -> Columns | None:
        """Return the next run of messages as columns, without an object for each.

        None when the subscription is cancelled, or when no message is here and `enough()` is true. `timeout`
        is in seconds; None waits without end. Messages that another call has begun to return are not in it.

        Raises:
            TimedOut: no message came in time.
        """
        return self._driver.run(self._columns(timeout, enough))

    def commit(self, message: Message | int, *, timeout: Span | None = None) -> None:
        """Advance the subscription's cursor on the broker behind a message: all up to it is processed.

        `message` is a message or its sequence, `timeout` in seconds. Returns when the position is durable.

        Raises:
            InvalidValue: the subscription has no cursor.
            TimedOut: the confirmation did not come in time.
        """
        self._driver.run(self._commit(message, timeout))

    def cancel(self) -> None:
        """End the subscription. Messages already received can still be read."""
        self._driver.do(super().cancel)


class _Chunk(deque[Message]):
    """Messages that several threads may take: each goes to one of them."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            return self.popleft()
        except IndexError:
            raise StopIteration from None


class SharedSubscription(Subscription):
    """A subscription whose messages any number of threads may receive: each goes to one of them."""

    def __init__(self, driver: BlockingDriver, source: StreamSource) -> None:
        super().__init__(driver, source)
        self._ready = _Chunk()

    async def _fill(self, timeout: Span | None) -> bool:
        # Another thread may have filled the buffer before the call of this one.
        return bool(self._ready) or await super()._fill(timeout)

    def _refill(self) -> bool:
        if not super()._refill():
            return False
        self._ready = _Chunk(self._ready)
        return True


class Mailbox(_ThreadSafeConsumer, MailboxBase, Scoped):
    """The mail of the client's address, in order. Made by `Client.mailbox`.

    With `auto_ack` a message is acknowledged when the next one is requested, and the last one when the
    mailbox or the client is closed. Otherwise each has to be acknowledged with its `ack()`; the broker
    delivers no more than the credit while they are not.

    The mailbox is closed at the end of its block: unread mail is released, as if it had never been delivered,
    and mail in hand can still be settled. `Client.mailbox` opens it again.
    """

    _driver: BlockingDriver

    def __enter__(self) -> Self:
        self._driver.do(self.enter)
        return self

    def __iter__(self) -> Iterator[Mail]:
        """Yield every message as it is delivered, waiting without end."""
        while True:
            yield self.receive()

    def receive(self, timeout: Span | None = None) -> Mail:
        """Return the next message. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no mail came in time.
            Closed: the mailbox is closed.
        """
        return self._driver.run(self._receive(timeout))

    def take(self, most: int, timeout: Span | None = None) -> list[Mail]:
        """Return up to `most` of the next messages: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or at the end.
        """
        return self._driver.run(self._take(most, timeout))

    def poll(self) -> Mail | None:
        """Return the next message if one is here, without waiting; None otherwise."""
        return next(iter(self.take(1, 0.0)), None)

    def pop_one(self) -> Mail:
        """For handlers: return the message that is here."""
        return Mail(*self._source.hand_out(), self)

    def cancel(self) -> None:
        """Close the mailbox, or the block: acknowledge the last message handed out, and release others."""
        self._driver.do(super().cancel)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.do(lambda: self._leave(failed=kind is not None))


class Single(_ThreadSafeConsumer, SingleBase):
    """The offer that one message of `Client.get` came by."""


class Request(ServiceRequest):
    """A request to a service. `sender` is the address for replies."""

    __slots__ = ()

    def reply(
        self,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        final: bool = True,
        assurance: Assurance = "none",
    ) -> Receipt:
        """Send a reply. A final one completes the request; any number of others may come before it.

        The call does not wait. The broker removes the request and stores the reply in one transaction: if the
        reply is lost on the way, the request is redelivered, to this worker or another. With the assurance
        `stored` the receipt reports when the reply is durable, and the requester waits for that disk write,
        too. A refusal is an event.

        Raises:
            NotOutstanding: the request is completed already.
            InvalidValue: a header or the body cannot be sent.
            TooLarge: the reply exceeds a limit.
        """
        work: Any = self.answerer()
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(work.codec, json, body, headers)
        receipt: Receipt = work.answer(self, body, headers, final=final, assurance=assurance)
        return receipt


class Work(_ThreadSafeConsumer, WorkerBase, Scoped):
    """Requests to a service, each to be answered. Made by `Client.work`.

    The credit is the number of requests that may be unfinished here; a request is finished by its final reply
    or its `ack()`.
    """

    _driver: BlockingDriver

    def __iter__(self) -> Iterator[Request]:
        """Yield every request as it is delivered. The iteration stops when the offer is cancelled."""
        while (item := self._driver.run(self._next(None, "no request"))) is not None:
            yield Request(*item, self)

    def receive(self, timeout: Span | None = None) -> Request:
        """Return the next request. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no request came in time.
            Closed: the offer is cancelled.
        """
        item = self._driver.run(self._next(timeout, "no request"))
        if item is None:
            raise Closed("offer is cancelled: make another one with Client.work")
        return Request(*item, self)

    def take(self, most: int, timeout: Span | None = None) -> list[Request]:
        """Return up to `most` of the next requests: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or at the end.
        """
        items = self._driver.run(self._next_ones(most, timeout, "no request"))
        return [Request(*item, self) for item in items]

    def poll(self) -> Request | None:
        """Return the next request if one is here, without waiting; None otherwise."""
        return next(iter(self.take(1, 0.0)), None)

    def pop_one(self) -> Request:
        """For handlers: return the request that is here."""
        return Request(*self._source.hand_out(), self)

    def answer(
        self, request: Request, body: Any, headers: Headers | None, *, final: bool, assurance: str
    ) -> Receipt:
        """Reply to a request; `Request.reply` calls it. `assurance` is `none` or `stored`.

        Raises:
            NotOutstanding: the request has its final reply already.
        """
        command = self._driver.run(self._answer(request, body, headers, final=final, assurance=assurance))
        return Receipt(command, 0, self._wait_for)

    def cancel(self) -> None:
        """Cancel the offer: unfinished requests return to the queue."""
        self._driver.do(super().cancel)

    def _wait_for(self, command: Command, timeout: Span | None) -> None:
        self._driver.run(self._wait(command, timeout))


class Replies(ReplyStream, Scoped):
    """The replies to one request, as they are delivered. Made by `Client.request`.

    The iterator ends after the final reply, and with the assurance `confirmed` also when the request has
    ended without one: `outcome` has its name. The iteration raises `TimedOut` when neither has happened in
    time, counted from the request on, and the error that the broker refused the request with.
    """

    _driver: BlockingDriver

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Mail:
        if not self._ended and (reply := self._driver.run(self._next())) is not None:
            return reply
        raise StopIteration

    def wait(self, timeout: Span | None = None) -> str:
        """Wait for the outcome of the request, and return it.

        `timeout` is in seconds; None waits without end. Replies are not waited for, and those that come
        meanwhile are not lost. Without the assurance `confirmed` the result is empty.

        Raises:
            TimedOut: the outcome did not come in time.
            MalamuteError: the broker refused the request with this error.
        """
        return self._driver.run(self._outcome(timeout))

    def stored(self, timeout: Span | None = None) -> None:
        """Wait until the request is durable at the broker. With the assurance `none` there is no wait.

        `timeout` is in seconds; None is the client's own. Replies are not waited for.

        Raises:
            TimedOut: the confirmation did not come in time.
            MalamuteError: the broker refused the request with this error.
        """
        self._driver.run(self._stored(timeout))

    def cancel(self) -> None:
        """Stop waiting for replies: later ones are dropped."""
        self._driver.do(super().cancel)
