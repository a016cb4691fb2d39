"""Consumers of an asyncio program: subscriptions, the mailbox, replies, and requests to work on.

As in `malamute.client.sync.consumers`; calls that wait are awaited, all others are not. Several tasks may
receive from one subscription or offer, and each message goes to one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from malamute.client.aio.receipts import Receipt
from malamute.client.link.consumers import MailboxBase, ReplyStream, SubscriptionBase, WorkerBase
from malamute.client.options import Assurance, Span
from malamute.client.session.codecs import ABSENT, Content, content_of
from malamute.client.session.message import Mail, Message, ServiceRequest
from malamute.errors import Closed
from malamute.protocol.batch import Columns, Headers


class Scoped:
    """A context manager that cancels at the end of the block."""

    def cancel(self) -> None:
        """End the consumer."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Subscription(SubscriptionBase, Scoped):
    """The messages of a stream that match the patterns, in order. Made by `Client.subscribe`."""

    def __aiter__(self) -> Self:
        """Yield every message as it is delivered. The iteration stops when the subscription is cancelled."""
        return self

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message
        while await self._fill(None):
            for message in self._ready:
                return message
        raise StopAsyncIteration

    async def receive(self, timeout: Span | None = None) -> Message:
        """Return the next message. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no message came in time.
            Closed: the subscription is cancelled, and no message is left.
        """
        return await self._receive(timeout)

    async def take(self, most: int, timeout: Span | None = None) -> list[Message]:
        """Return up to `most` of the next messages: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or when the
        subscription is cancelled.
        """
        return await self._take(most, timeout)

    def batches(self, most: int = 1000) -> Batches:
        """Yield lists of up to `most` messages. The iteration stops when the subscription is cancelled."""
        return Batches(self, most)

    async def columns(
        self, timeout: Span | None = None, *, enough: Callable[[], object] = bool
    ) -> Columns | None:
        """Return the next run of messages as columns; None at the end, or when `enough()` is true.

        `timeout` is in seconds. Raises as `malamute.Subscription.columns`.
        """
        return await self._columns(timeout, enough)

    async def commit(self, message: Message | int, *, timeout: Span | None = None) -> None:
        """Advance the subscription's cursor on the broker behind a message, and wait until that is durable.

        `timeout` is in seconds.

        Raises:
            InvalidValue: the subscription has no cursor.
            TimedOut: the confirmation did not come in time.
        """
        await self._commit(message, timeout)


class Batches:
    """The messages of a subscription, as lists."""

    def __init__(self, subscription: Subscription, most: int) -> None:
        self._subscription = subscription
        self._most = most

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        if batch := await self._subscription.take(self._most):
            return batch
        raise StopAsyncIteration


class Mailbox(MailboxBase, Scoped):
    """The mail of the client's address, in order. Made by `Client.mailbox`.

    With `auto_ack` a message is acknowledged when the next one is requested: that is for one task. Without
    it, several tasks may receive from the mailbox, and each acknowledges its own messages. The mailbox is
    closed at the end of the last of its blocks: unread mail is released, as if it had never been delivered.
    """

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    def __aiter__(self) -> Self:
        """Yield every message as it is delivered."""
        return self

    async def __anext__(self) -> Mail:
        return await self._receive(None)

    async def receive(self, timeout: Span | None = None) -> Mail:
        """Return the next message. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no mail came in time.
            Closed: the mailbox is closed.
        """
        return await self._receive(timeout)

    async def take(self, most: int, timeout: Span | None = None) -> list[Mail]:
        """Return up to `most` of the next messages: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or at the end.
        """
        return await self._take(most, timeout)

    async def poll(self) -> Mail | None:
        """Return the next message if one is here, without waiting; None otherwise."""
        return next(iter(await self.take(1, 0.0)), None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(failed=kind is not None)


class Request(ServiceRequest):
    """A request to a service. `sender` is the address for replies."""

    __slots__ = ()

    async def reply(
        self,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        final: bool = True,
        assurance: Assurance = "none",
    ) -> Receipt:
        """Send a reply. A final one completes the request; any number of others may come before it.

        Raises:
            NotOutstanding: the request is completed already.
            InvalidValue: a header or the body cannot be sent.
            TooLarge: the reply exceeds a limit.
        """
        work: Any = self.answerer()
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(work.codec, json, body, headers)
        receipt: Receipt = await work.answer(self, body, headers, final=final, assurance=assurance)
        return receipt


class Work(WorkerBase, Scoped):
    """Requests to a service, each to be answered. Made by `Client.work`."""

    def __aiter__(self) -> Self:
        """Yield every request as it is delivered. The iteration stops when the offer is cancelled."""
        return self

    async def __anext__(self) -> Request:
        item = await self._next(None, "no request")
        if item is None:
            raise StopAsyncIteration
        return Request(*item, self)

    async def receive(self, timeout: Span | None = None) -> Request:
        """Return the next request. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no request came in time.
            Closed: the offer is cancelled.
        """
        item = await self._next(timeout, "no request")
        if item is None:
            raise Closed("offer is cancelled: make another one with Client.work")
        return Request(*item, self)

    async def take(self, most: int, timeout: Span | None = None) -> list[Request]:
        """Return up to `most` of the next requests: the available ones, after waiting for at least one.

        The list is empty when none came within `timeout` seconds (None waits without end), or at the end.
        """
        items = await self._next_ones(most, timeout, "no request")
        return [Request(*item, self) for item in items]

    async def poll(self) -> Request | None:
        """Return the next request if one is here, without waiting; None otherwise."""
        return next(iter(await self.take(1, 0.0)), None)

    async def answer(
        self, request: Request, body: Any, headers: Headers | None, *, final: bool, assurance: str
    ) -> Receipt:
        """Reply to a request. To be called by the request itself."""
        command = await self._answer(request, body, headers, final=final, assurance=assurance)
        return Receipt(command, 0, self._wait)


class Replies(ReplyStream, Scoped):
    """The replies to one request, as they are delivered. Made by `Client.request`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Mail:
        if not self._ended and (reply := await self._next()) is not None:
            return reply
        raise StopAsyncIteration

    async def wait(self, timeout: Span | None = None) -> str:
        """Wait for the outcome of a request with the assurance `confirmed`, and return it.

        `timeout` is in seconds.

        Raises:
            TimedOut: the outcome did not come in time.
            MalamuteError: the broker refused the request with this error.
        """
        return await self._outcome(timeout)

    async def stored(self, timeout: Span | None = None) -> None:
        """Wait until the request is durable at the broker. With the assurance `none` there is no wait.

        `timeout` is in seconds; None is the client's own. Replies are not waited for.

        Raises:
            TimedOut: the confirmation did not come in time.
            MalamuteError: the broker refused the request with this error.
        """
        await self._stored(timeout)


class _Consumer(Protocol):
    """A consumer that an `Opening` opens."""

    def __anext__(self) -> Awaitable[Any]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]: ...


Consumer = TypeVar("Consumer", bound=_Consumer)
Thing = TypeVar("Thing")


class Opening(Generic[Consumer, Thing]):
    """A consumer being opened. Await it, or use it at once: in `async with`, or in `async for`."""

    def __init__(self, call: Coroutine[Any, Any, Consumer]) -> None:
        self._call = call
        self._consumer: Consumer | None = None

    def __await__(self) -> Generator[Any, Any, Consumer]:
        return self._call.__await__()

    async def __aenter__(self) -> Consumer:
        self._consumer = await self._call
        return self._consumer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._consumer is not None
        await self._consumer.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Thing]:
        return self._first() if self._consumer is None else self._consumer.__anext__()

    async def _first(self) -> Thing:
        # Another task may have opened it meanwhile.
        if self._consumer is None:
            self._consumer = await self._call
        thing: Thing = await self._consumer.__anext__()
        return thing
