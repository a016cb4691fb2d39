"""The edge for asyncio programs: `connect` and `Client`, with the names of the blocking client, awaited.

    import malamute.aio

    async with malamute.aio.connect("tcp://127.0.0.1:9999", address="alice") as client:
        await client.publish("weather", "temp.oslo", b"-3.5")
        async with client.publisher("weather") as out:
            receipt = await out.publish("temp.oslo", b"-3.4")
        async for message in client.subscribe("weather", "temp.*"):
            print(message.subject, message.body)
        async for reply in client.request("printer", "bw.A4", b"..."):
            print(reply.body)

Arguments, results and errors are documented in `malamute.client.sync.client`. Calls that wait for the broker
are awaited; calls that do not, such as `message.ack()`, are not. `connect`, `subscribe`, `work` and `request`
may be awaited, or used at once in `async with` and `async for`.

A client belongs to the event loop that it was made on. Any number of its tasks may use it at the same time.
Every call may be cancelled: no message is lost by it, and the client continues. A command that was cancelled
while it waited for its confirmation is still carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from malamute.client.aio.bucket import Bucket
from malamute.client.aio.consumers import Mailbox, Opening, Replies, Request, Subscription, Work
from malamute.client.aio.demand import Demand
from malamute.client.aio.driver import AioDriver
from malamute.client.aio.handler_pool import serve
from malamute.client.aio.publisher import Publisher
from malamute.client.aio.receipts import Sent
from malamute.client.frames import Library, MessageTable
from malamute.client.link.client import ClientBase, ConnectOptions, open_driver
from malamute.client.link.consumers import SingleBase
from malamute.client.options import (
    ANSWERS_MAX,
    ANSWERS_SECONDS,
    DEFAULT_URL,
    DEMAND_REFRESH_SECONDS,
    Assurance,
    ConsumeOptions,
    HandlerOptions,
    HistoryOptions,
    MailboxOptions,
    PublisherOptions,
    PublishOptions,
    RequestOptions,
    SendAssurance,
    SendOptions,
    ServiceOptions,
    Span,
    SubscribeOptions,
    Until,
    When,
    WorkOptions,
)
from malamute.client.session.codecs import ABSENT, Content, content_of
from malamute.client.session.message import Mail, Message
from malamute.client.session.outbox import StoredSequence
from malamute.client.session.questions import Cancelled
from malamute.protocol.batch import Body, Headers

Answer = TypeVar("Answer")
ServiceHandler = TypeVar("ServiceHandler", bound=Callable[..., Awaitable[object]])
MailHandler = TypeVar("MailHandler", bound=Callable[..., Awaitable[object]])
MessageHandler = TypeVar("MessageHandler", bound=Callable[..., Awaitable[object]])

if TYPE_CHECKING:
    from malamute.client.link.admin import AioAdmin
    from malamute.protocol.admin import AdminChange, AdminQuery


class Connecting:
    """A client that is being connected. Await it, or use it in `async with`."""

    def __init__(self, call: Coroutine[Any, Any, AioDriver]) -> None:
        self._call = call
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._open().__await__()

    async def _open(self) -> Client:
        return Client(await self._call)

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.__aexit__(kind, error, trace)


def connect(url: str | Sequence[str] = DEFAULT_URL, **options: Unpack[ConnectOptions]) -> Connecting:
    """Connect to a broker, as `malamute.connect`. To be awaited, or used in `async with`."""
    return Connecting(open_driver(AioDriver, url, **options))


class Client(ClientBase):
    """A connection to a broker. Made by `connect`; a context manager that closes it at the end.

    The calls, their options, results and errors are those of `malamute.Client`. A `timeout` is in seconds;
    None is the client's own.
    """

    _awaits = True
    _driver: AioDriver
    _mailbox: Mailbox | None

    def __init__(self, driver: AioDriver) -> None:
        super().__init__(driver)
        self._stopped: asyncio.Event | None = None

    # Streams

    @overload
    async def publish(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        id: str,
        **options: Unpack[PublishOptions],
    ) -> StoredSequence: ...

    @overload
    async def publish(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        **options: Unpack[PublishOptions],
    ) -> int: ...

    async def publish(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        assurance: Assurance = "stored",
        timeout: Span | None = None,
        ttl: Span | None = None,
        id: str = "",  # noqa: A002  # as the option of a sent message is called
    ) -> int:
        """Publish one message, and return its sequence when it is durable."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return await self._publish(
            stream, subject, body, headers, assurance=assurance, timeout=timeout, ttl=ttl, id=id
        )

    async def publish_nowait(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        timeout: Span | None = None,
        ttl: Span | None = None,
    ) -> None:
        """Publish one message without a confirmation: it may be lost, and a refusal is an event."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        if ttl is not None or not self._publish_fast_path(stream, subject, body, headers):
            await self._publish(stream, subject, body, headers, assurance="none", timeout=timeout, ttl=ttl)

    async def publish_batch(
        self,
        stream: str,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None = None,
        *,
        timeout: Span | None = None,
        ttl: Span | None = None,
        id: str = "",  # noqa: A002  # as the option of a sent message is called
    ) -> int:
        """Publish messages as one command, stored as a whole or not at all; return the first sequence."""
        return await self._publish_batch(stream, subjects, bodies, headers_list, timeout, ttl, id)

    async def ask(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        wait: Span = ANSWERS_SECONDS,
        most: int = ANSWERS_MAX,
        ttl: Span | None = None,
        timeout: Span | None = None,
    ) -> list[Mail]:
        """Publish a message to a stream, and return the answers of those who listen to it."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return await self._ask_all(
            stream, subject, body, headers, wait=wait, most=most, ttl=ttl, timeout=timeout
        )

    async def answer(
        self,
        message: Message,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        timeout: Span | None = None,
    ) -> bool:
        """Answer a message of `ask`. Return whether the answer is stored; False if none awaits it."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return await self._answer_to(message, body, headers, timeout)

    def publisher(
        self, stream: str, *, ttl: Span | None = None, **options: Unpack[PublisherOptions]
    ) -> Publisher:
        """Return a publisher of many messages to one stream: batched and pipelined."""
        return Publisher(self._driver, self._to_stream(stream, ttl), **options)

    def demand(self, stream: str, *, refresh: Span = DEMAND_REFRESH_SECONDS) -> Demand:
        """Return the demand for a stream without a journal: other messages need not be published."""
        return Demand(stream, self._demand_of(stream), refresh=refresh)

    def subscribe(
        self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]
    ) -> Opening[Subscription, Message]:
        """Subscribe to the messages of a stream whose subject matches any of the patterns."""
        return Opening(self._subscription(self._subscribe(stream, patterns, **options)))

    async def _subscription(self, call: Coroutine[Any, Any, Any]) -> Subscription:
        return Subscription(self._driver, await call)

    async def history(
        self,
        stream: str,
        *patterns: str,
        since: When = "first",
        until: Until = "now",
        **options: Unpack[HistoryOptions],
    ) -> AsyncIterator[Message]:
        """Yield the stored messages of a stream whose subject matches any of the patterns, and end."""
        end = await self._end(stream, until, options.get("timeout"))
        async with self.subscribe(stream, *patterns, start=since, existing=True, **options) as subscription:
            more = True
            while more:
                messages, more = await subscription._history(end)
                for message in messages:
                    yield message

    async def frame(
        self,
        stream: str,
        *patterns: str,
        since: When = "first",
        until: Until = "now",
        library: Library = "pandas",
        **options: Unpack[HistoryOptions],
    ) -> Any:
        """Return the history of a stream as a table of Arrow, pandas or polars."""
        table = MessageTable(library)
        async for message in self.history(stream, *patterns, since=since, until=until, **options):
            table.add([message])
        return table.made()

    # Mailboxes

    async def send(
        self,
        address: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        assurance: SendAssurance = "stored",
        timeout: Span | None = None,
        wait: bool = True,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send one message to a mailbox, whether its owner is connected or not."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        command, tracking = await self._send(
            self._session.sending.send,
            address,
            subject,
            body,
            headers,
            assurance=assurance,
            timeout=timeout,
            wait=wait,
            options=options,
        )
        return Sent(command, tracking, self._wait_for_outcome)

    async def withdraw(
        self, kind: str, name: str, correlation: int | str, *, timeout: Span | None = None
    ) -> int:
        """Withdraw the messages that this client sent under a correlation and that are not settled."""
        return await self._withdraw(kind, name, correlation, timeout)

    async def cancel(
        self,
        kind: str,
        name: str,
        *,
        id: str,  # noqa: A002  # as options of the protocol are called
        timeout: Span | None = None,
    ) -> Cancelled:
        """Take back the messages under an `id` that wait or are delayed, whoever sent them."""
        return await self._cancel(kind, name, id, timeout)

    def sender(self, address: str, **options: Unpack[PublisherOptions]) -> Publisher:
        """Return a publisher of many messages to one mailbox, as `publisher` does for a stream."""
        return Publisher(self._driver, self._to_mailbox(address), is_mail=True, **options)

    def mailbox(self, *, auto_ack: bool = True, **options: Unpack[MailboxOptions]) -> Mailbox:
        """Return the mailbox of this client's address. There is one: later calls return it again."""
        source = self._open_mailbox(**options)
        if self._mailbox is None:
            self._mailbox = Mailbox(self._driver, source, auto_ack=auto_ack)
        self._mailbox.auto_ack = auto_ack
        return self._mailbox

    def consume(
        self, name: str, *senders: str, auto_ack: bool = True, **options: Unpack[ConsumeOptions]
    ) -> Opening[Mailbox, Mail]:
        """Consume from any mailbox, as one of several consumers: each message goes to one of them."""
        return Opening(self._consume(self._offer(name, senders, kind="mailbox", **options), auto_ack))

    async def _consume(self, call: Coroutine[Any, Any, Any], auto_ack: bool) -> Mailbox:
        mailbox = Mailbox(self._driver, await call, auto_ack=auto_ack)
        self._keep_shared(mailbox)
        return mailbox

    async def get(self, mailbox: str, *, timeout: Span | None = None) -> Mail | None:
        """Return the next message of any mailbox, to be settled; None at once when nothing is ready.

        None is the answer of the broker: no message was ready, or there is no such mailbox. The message is
        acknowledged by its `ack`, and given back when the client is closed.

        Raises:
            InvalidName: the name of the mailbox is invalid.
            AccessRefused: the client may not receive from it.
            TooMany: a limit on offers is reached: messages of earlier calls are not settled.
            TimedOut: the broker did not answer in time.
        """
        found = await self._get(mailbox, timeout)
        return None if found is None else Mail(*found[0], SingleBase(self._driver, found[1]))

    async def receive(self, timeout: Span | None = None) -> Mail:
        """Return the next mail, which is acknowledged when the following one is requested."""
        mailbox = self._mailbox
        if mailbox is None or mailbox.closed:
            mailbox = self.mailbox()
        return await mailbox.receive(timeout)

    # Services

    def request(
        self,
        service: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        timeout: Span | None = None,
        assurance: SendAssurance = "stored",
        **options: Unpack[RequestOptions],
    ) -> Opening[Replies, Mail]:
        """Send a request to a service.

        The result is the iterator of its replies, which ends after the final one. The request is sent when
        the result is awaited or entered, or when the first reply is asked for.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        call = self._request(
            service, subject, body, headers, assurance=assurance, timeout=timeout, options=options
        )
        return Opening(self._replies(call, timeout))

    async def _replies(self, call: Coroutine[Any, Any, Any], timeout: Span | None) -> Replies:
        return Replies(self._driver, await call, timeout)

    async def enqueue(
        self,
        service: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        assurance: SendAssurance = "stored",
        timeout: Span | None = None,
        wait: bool = True,
        **options: Unpack[RequestOptions],
    ) -> Sent:
        """Send a request that wants no reply: a job for one of the workers."""
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        command, tracking = await self._send(
            self._session.sending.enqueue,
            service,
            subject,
            body,
            headers,
            assurance=assurance,
            timeout=timeout,
            wait=wait,
            options=options,
        )
        return Sent(command, tracking, self._wait_for_outcome)

    def work(self, service: str, *patterns: str, **options: Unpack[WorkOptions]) -> Opening[Work, Request]:
        """Offer to work on the requests to a service whose subject matches any of the patterns."""
        return Opening(self._work(self._offer(service, patterns, **options)))

    async def _work(self, call: Coroutine[Any, Any, Any]) -> Work:
        return Work(self._driver, await call)

    def bucket(self, name: str) -> Bucket:
        """Return a bucket: values by key. The call does not ask the broker."""
        return Bucket(self._driver, name)

    # Handlers

    def service(
        self, name: str, *patterns: str, **options: Unpack[ServiceOptions]
    ) -> Callable[[ServiceHandler], ServiceHandler]:
        """Decorate a coroutine function that answers requests, `concurrency` at a time at most."""
        return self._service_handler(self.work, name, patterns, **options)

    def subscription(
        self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]
    ) -> Callable[[MessageHandler], MessageHandler]:
        """Decorate a coroutine function that handles the messages of a subscription, in order."""
        return self._handler(lambda: self.subscribe(stream, *patterns, **options))

    def on_mail(self, **options: Unpack[HandlerOptions]) -> Callable[[MailHandler], MailHandler]:
        """Decorate a coroutine function that handles the mail of this client's address."""

        async def open_mailbox(credit: int) -> Mailbox:
            return await self.mailbox(auto_ack=False, credit=credit).__aenter__()

        return self._mail_handler(open_mailbox, **options)

    async def run(self) -> None:
        """Call the decorated functions with each delivery, until `stop` is called, or this is cancelled.

        Returns when the running handlers have returned.
        """
        self._driver.check()
        self._stopped = asyncio.Event()
        await serve(self._handlers, self._stopped)

    def stop(self) -> None:
        """Let `run` return."""
        if self._stopped is not None:
            self._stopped.set()

    def drain(self) -> None:
        """Begin a graceful shutdown: consume no more messages. The call does not wait; `run` returns, too."""
        super().drain()
        self.stop()

    # The connection

    @property
    def admin(self) -> AioAdmin:
        """Return the queries and changes as methods: `admin.stream(name="weather")` is typed.

        Each topic of the protocol is one, with `_` for its dot, such as `admin.stream_retain`. Both raise as
        `query` and `change`.
        """
        # The import is late: most programs never make a query.
        from malamute.client.link.admin import AioAdmin

        return AioAdmin(lambda topic, *, change: self._ask(topic, {}, None, change=change))

    @overload
    async def query(self, topic: AdminQuery[Answer], *, timeout: Span | None = None) -> Answer: ...

    @overload
    async def query(self, topic: str, *, timeout: Span | None = None, **arguments: Any) -> Any: ...

    async def query(
        self, topic: str | AdminQuery[Any], *, timeout: Span | None = None, **arguments: Any
    ) -> Any:
        """Query the broker. docs/protocol.md lists the topics."""
        return await self._ask(topic, arguments, timeout, change=False)

    @overload
    async def change(self, topic: AdminChange[Answer], *, timeout: Span | None = None) -> Answer: ...

    @overload
    async def change(self, topic: str, *, timeout: Span | None = None, **arguments: Any) -> Any: ...

    async def change(
        self, topic: str | AdminChange[Any], *, timeout: Span | None = None, **arguments: Any
    ) -> Any:
        """Change something in the broker. docs/protocol.md lists the topics."""
        return await self._ask(topic, arguments, timeout, change=True)

    async def ping(self, timeout: Span | None = None) -> float:
        """Ask the broker for an answer, and return the seconds until it came."""
        return await self._ping(timeout)

    async def flush(self, timeout: Span | None = None) -> None:
        """Wait until the broker has all messages and commands, confirmed where requested."""
        await self._flush(timeout)

    async def close(self, timeout: Span | None = None) -> None:
        """Wait until everything is confirmed, end the session, and close the connection."""
        await self._close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(failed=kind is not None)
