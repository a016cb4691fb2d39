"""What an asyncio program takes messages from: subscriptions, the mailbox, replies, and requests to work on.

As `malamute.client.sync.consumers` has them: what waits is awaited, and what does not is not. Several tasks
may take from one subscription or offer, and each message goes to one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from malamute.client.aio.receipts import Receipt
from malamute.client.link.consumers import MailboxBase, ReplyStream, SubscriptionBase, WorkerBase
from malamute.client.session.message import Mail, Message, ServiceRequest
from malamute.errors import Closed
from malamute.protocol.batch import Body, Columns, Headers


class _Scope:
    """A context manager that cancels at the end of the block."""

    def cancel(self) -> None:
        """End it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Subscription(SubscriptionBase, _Scope):
    """The messages of a stream that meet the criteria, in order. Made by `Client.subscribe`."""

    def __aiter__(self) -> Self:
        """Every message as it comes, waiting without end. It stops when the subscription is cancelled."""
        return self

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message
        while await self._fill(None):
            for message in self._ready:
                return message
        raise StopAsyncIteration

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises `TimedOut` after `timeout` seconds (None: it waits without end)."""
        return await self._receive(timeout)

    async def take(self, most: int, timeout: float | None = None) -> list[Message]:
        """Up to `most` of the next messages: what is there, after waiting for one at least."""
        return await self._take(most, timeout)

    def batches(self, most: int = 1000) -> Batches:
        """Lists of up to `most` messages as they come. It stops when the subscription is cancelled."""
        return Batches(self, most)

    async def columns(
        self, timeout: float | None = None, *, enough: Callable[[], object] = bool
    ) -> Columns | None:
        """The next run of messages by columns; None at the end, or when `enough()` says so."""
        return await self._columns(timeout, enough)

    async def commit(self, message: Message | int, *, timeout: float | None = None) -> None:
        """Tell the broker to keep, under the subscription's cursor, that all up to a message is done with."""
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


class Mailbox(MailboxBase, _Scope):
    """The mail of the client's address, in order. Made by `Client.mailbox`.

    With `auto_ack` a message is acknowledged when the next one is asked for: that is for one task. Without,
    several may take from it, and each acknowledges its own. At the end of the last of its blocks it is
    closed: what came and was not taken goes back as if it had never been delivered.
    """

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    def __aiter__(self) -> Self:
        """Every message as it comes, waiting without end."""
        return self

    async def __anext__(self) -> Mail:
        return await self._receive(None)

    async def receive(self, timeout: float | None = None) -> Mail:
        """The next message. Raises `TimedOut` after `timeout` seconds (None: it waits without end)."""
        return await self._receive(timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(failed=kind is not None)


class Request(ServiceRequest):
    """A request to a service. `sender` is where the replies go."""

    __slots__ = ("_work",)

    def __init__(self, *columns: Any) -> None:
        super().__init__(*columns)
        self._work: Work = columns[-1]

    async def reply(
        self,
        body: Body = b"",
        headers: Headers | None = None,
        *,
        final: bool = True,
        assurance: str = "none",
    ) -> Receipt:
        """Send a reply; a final one completes the request, any number of others may come before it."""
        return await self._work.answer(self, body, headers, final=final, assurance=assurance)


class Work(WorkerBase, _Scope):
    """Requests to a service, each to be answered. Made by `Client.work`."""

    def __aiter__(self) -> Self:
        """Every request as it comes, waiting without end. It stops when the offer is cancelled."""
        return self

    async def __anext__(self) -> Request:
        item = await self._next(None, "no request")
        if item is None:
            raise StopAsyncIteration
        return Request(*item, self)

    async def receive(self, timeout: float | None = None) -> Request:
        """The next request. Raises `TimedOut` after `timeout` seconds (None: it waits without end)."""
        item = await self._next(timeout, "no request")
        if item is None:
            raise Closed("the offer to work is cancelled")
        return Request(*item, self)

    async def answer(
        self, request: Request, body: Body, headers: Headers | None, *, final: bool, assurance: str
    ) -> Receipt:
        """Reply to a request. To be called by the request itself."""
        command = await self._answer(request, body, headers, final=final, assurance=assurance)
        return Receipt(command, 0, self._wait)


class Replies(ReplyStream, _Scope):
    """The replies to one request, as they come. Made by `Client.request`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Mail:
        reply = await self._next()
        if reply is None:
            raise StopAsyncIteration
        return reply

    async def wait(self, timeout: float | None = None) -> str:
        """Wait for the outcome of a request with the assurance `confirmed`, and tell it."""
        return await self._outcome(timeout)


class _Consumer(Protocol):
    """What an `Opening` opens."""

    def __anext__(self) -> Awaitable[Any]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]: ...


Consumer = TypeVar("Consumer", bound=_Consumer)
Thing = TypeVar("Thing")


class Opening(Generic[Consumer, Thing]):
    """Something that is being opened. Await it, or use it at once: in `async with`, or in `async for`."""

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

    async def __anext__(self) -> Thing:
        if self._consumer is None:
            self._consumer = await self._call
        thing: Thing = await self._consumer.__anext__()
        return thing
