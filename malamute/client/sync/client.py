"""The edge for blocking programs: `connect` and `Client`.

Every call gives the pure session one command and waits for the answer where it matters. A call that waits
does not notice a broken connection: it continues when the client has reconnected, until its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from malamute.client.frames import Library, MessageTable
from malamute.client.link.client import ClientBase, ThreadOptions, open_driver
from malamute.client.link.consumers import HistoryEnd
from malamute.client.link.driver import Driver
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
from malamute.client.session.receipts import SentBase
from malamute.client.session.session import ClientSession
from malamute.client.sync.bucket import Bucket
from malamute.client.sync.consumers import Mailbox, Replies, SharedSubscription, Single, Subscription, Work
from malamute.client.sync.demand import Demand
from malamute.client.sync.driver import BlockingDriver, RenewingDriver, SharedDriver, run
from malamute.client.sync.handler_pool import HandlerPool, HandlerSlot
from malamute.client.sync.publisher import Publisher, SharedPublisher
from malamute.client.sync.receipts import Sent
from malamute.errors import InvalidValue, LinkError
from malamute.protocol.batch import Body, Headers
from malamute.protocol.texts import shown

if TYPE_CHECKING:
    from malamute.client.link.admin import Admin
    from malamute.protocol.admin import AdminChange, AdminQuery

Answer = TypeVar("Answer")
ServiceHandler = TypeVar("ServiceHandler", bound=Callable[..., object])
MailHandler = TypeVar("MailHandler", bound=Callable[..., object])
MessageHandler = TypeVar("MessageHandler", bound=Callable[..., object])


def connect(url: str | Sequence[str] = DEFAULT_URL, **options: Unpack[ThreadOptions]) -> Client:
    """Connect to a broker, and wait until it has answered.

    `url` is a ZeroMQ address such as `tcp://host:9999` or `ipc:///run/malamute.sock`, or a URI such as
    `malamute://host`. Several of them, as a sequence or separated by commas, are tried in this order, now and
    at every reconnect. A URI may end with `/stream/NAME`, `/mailbox/NAME` or `/service/NAME`: only its broker
    counts here, and `malamute.Uri.parse` returns the name. `ConnectOptions` and `ThreadOptions` describe the
    options.

    Raises:
        ConnectTimeout: no broker answered in time.
        InvalidValue: a URL or an option is wrong.
        InvalidName: the address or a URI is wrong.
        OutOfSockets: the process can open no more sockets.
        Refused: the broker refused the session.
    """
    connection: dict[str, Any] = {**options}
    threads = connection.pop("threads", "one")
    if threads == "any":
        return _SharedClient(partial(_share, url, connection))
    if threads != "one":
        raise InvalidValue(f"invalid threads {shown(threads)}: expected 'one' or 'any'")
    driver = RenewingDriver if callable(connection.get("token")) else BlockingDriver
    return Client(run(open_driver(driver, url, **connection)))


def _share(url: str | Sequence[str], connection: dict[str, Any]) -> SharedDriver:
    driver = run(open_driver(SharedDriver, url, **connection))
    driver.share()
    return driver


class Client(ClientBase):
    """A connection to a broker. Made by `connect`; a context manager that closes it at the end.

    A client belongs to the thread that made it, unless it was made for any thread. Every call raises `Closed`
    on a closed client, the error that ended the session, and `LinkError` in another thread or after a fork. A
    `timeout` is in seconds; None is the client's own.
    """

    _driver: BlockingDriver
    _mailbox: Mailbox | None
    _subscription: type[Subscription] = Subscription
    _publisher: Callable[..., Publisher] = Publisher

    def __init__(self, driver: BlockingDriver) -> None:
        super().__init__(driver)
        self._pool: HandlerPool | None = None

    # Streams

    @overload
    def publish(
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
    def publish(
        self,
        stream: str,
        subject: str,
        body: Content = b"",
        headers: Headers | None = None,
        **options: Unpack[PublishOptions],
    ) -> int: ...

    def publish(
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
        """Publish one message, and return its sequence.

        The call returns when the message is durable; the result is 0 only if it was confirmed again after a
        reconnect. `publisher` is much faster for many messages. With the assurance `none` it is as
        `publish_nowait`, and the result is 0. After the time `ttl` (seconds, or a timedelta) the message
        expires, for subscriptions and replays alike. The stream may have a shorter limit.

        `body` is bytes, or text in UTF-8. `json` takes its place: a value, a dataclass or a model, with the
        header `content-type: application/json`; `Message.json` reads it.

        If this user has published a message with the same `id` to the stream in the last 24 hours, nothing is
        stored: the result is the sequence of that message, a `StoredSequence` whose `duplicate` is true. So a
        program that does not know whether a message was published, even after a restart, publishes it again.
        An id with another content raises `InvalidValue`.

        Raises:
            InvalidName: the stream is no valid name.
            InvalidValue: the subject, a header, the body or the time cannot be sent.
            TooLarge: the subject or the message exceeds a limit.
            TimedOut: the confirmation did not come in time.
            TryLater: too much is in flight or unconfirmed, or the broker is full.
            AccessRefused: the user may not publish to the stream, or not this subject.
            QuotaExceeded: the quota of the user is used up; `retry_after` has the seconds to wait for a rate.
            ConnectionLost: the broker is away, and the window is full.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return self._driver.run(
            self._publish(
                stream, subject, body, headers, assurance=assurance, timeout=timeout, ttl=ttl, id=id
            )
        )

    def publish_nowait(
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
        """Publish one message without a confirmation: it may be lost, and a refusal is an event.

        The call waits only while too many bytes are in flight to the broker. The arguments are those of
        `publish`.

        Raises:
            InvalidName, InvalidValue, TooLarge: as `publish`.
            TryLater: too much is in flight.
            ConnectionLost: the broker is away, and the window is full.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        if ttl is not None or not self._publish_fast_path(stream, subject, body, headers):
            self._driver.run(
                self._publish(stream, subject, body, headers, assurance="none", timeout=timeout, ttl=ttl)
            )

    def publish_batch(
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
        """Publish messages as one command, stored as a whole or not at all, and wait until it is durable.

        Returns the sequence of the first message; the others follow it without a gap. `publisher` is faster
        where messages need not be stored together: it sends the next batch before the last one is confirmed.
        `ttl` is as for `publish`, and so is `id`, which is that of all of them together.

        Raises:
            InvalidValue: the columns are empty or differ in length, or a message cannot be sent.
            InvalidName, TooLarge, TimedOut, TryLater, ConnectionLost: as `publish`.
            AccessRefused, QuotaExceeded: as `publish`.
        """
        return self._driver.run(self._publish_batch(stream, subjects, bodies, headers_list, timeout, ttl, id))

    def ask(
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
        """Publish a message to a stream, and return the answers of those who listen to it.

        The call returns when it has `most` answers, and after `wait` seconds (or a timedelta) with what it
        has: nothing tells how many listen. Any reader of the stream answers by `answer`, with as many
        messages as it likes. `ttl` is that of the message, as for `publish`, and `wait` by default. With
        rules it takes `create,receive mailbox/ask.{user}.#`, beside `publish` to the stream.

        Raises:
            InvalidValue: `wait` is no duration, `most` no number, or there is a header `reply-to`.
            AccessRefused: the user may not publish, or have the mailbox for the answers.
            InvalidName, TooLarge, TimedOut, TryLater, QuotaExceeded, ConnectionLost: as `publish`.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return self._driver.run(
            self._ask_all(stream, subject, body, headers, wait=wait, most=most, ttl=ttl, timeout=timeout)
        )

    def answer(
        self,
        message: Message,
        body: Content = b"",
        headers: Headers | None = None,
        *,
        json: Any = ABSENT,
        timeout: Span | None = None,
    ) -> bool:
        """Answer a message of `ask`. Return whether the answer is stored; False if none is awaited any more.

        The message may have come by a subscription, or by a feed. With rules it takes the right
        `create,send mailbox/ask.#`.

        Raises:
            InvalidValue: the message wants no answer, or the answer cannot be sent.
            AccessRefused: the user may not send to the mailbox for answers.
            TooLarge, TimedOut, TryLater, QuotaExceeded, ConnectionLost: as `publish`.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        return self._driver.run(self._answer_to(message, body, headers, timeout))

    def publisher(
        self, stream: str, *, ttl: Span | None = None, **options: Unpack[PublisherOptions]
    ) -> Publisher:
        """Return a publisher of many messages to one stream: batched, pipelined, and confirmed with `stored`.

        `ttl` is that of each message, as for `publish`.

        Raises:
            InvalidValue: an option is wrong.
        """
        return self._driver.do(lambda: self._publisher(self._driver, self._to_stream(stream, ttl), **options))

    def demand(self, stream: str, *, refresh: Span = DEMAND_REFRESH_SECONDS) -> Demand:
        """Return the demand for a stream without a journal: other messages need not be published.

        `refresh` is the maximum age of the answer in seconds: a new subscription may miss as many seconds of
        messages without earlier demand. All messages of a stream with a journal are in demand, since they may
        be read later.

        Raises:
            InvalidValue: `refresh` is negative or no number.
        """
        return Demand(self._driver, stream, self._demand_of(stream), refresh=refresh)

    def subscribe(self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """Subscribe to the messages of a stream whose subject matches any of the patterns.

        Without patterns all messages match. Returns when the broker has accepted the subscription.
        `SubscribeOptions` describes the options: selection, start, and credit.

        Messages are delivered while the broker still writes them to its disk. If it is killed before a
        message is durable, the message is lost though it was delivered: the event `Gap` reports that with the
        reason `taken-back`. With `committed` only durable messages are delivered, and none is ever taken
        back.

        Raises:
            InvalidName: the stream or the cursor is no valid name.
            InvalidSelector: a pattern or the match expression is wrong.
            InvalidValue: another option is wrong.
            AccessRefused: the user may read nothing of it.
            NotFound: the option `existing` is set, and the stream is missing.
            TooMany, QuotaExceeded: a limit on subscriptions or patterns is reached.
            TimedOut: the broker did not answer in time.
        """
        source = self._driver.run(self._subscribe(stream, patterns, **options))
        return self._subscription(self._driver, source)

    def history(
        self,
        stream: str,
        *patterns: str,
        since: When = "first",
        until: Until = "now",
        **options: Unpack[HistoryOptions],
    ) -> Iterator[Message]:
        """Yield the stored messages of a stream whose subject matches any of the patterns, and end.

        `since` is as `start` of `subscribe`. `until` is `now`, which are the messages before the call, a last
        sequence, or a moment or an age before which they were accepted. `HistoryOptions` describes the
        options. An event `Gap` tells of messages that are no longer there.

        Raises:
            NotFound: the stream is missing.
            TimedOut: the broker did not answer in time.
            InvalidName, InvalidSelector, InvalidValue, AccessRefused: as `subscribe`.
        """
        end = self._driver.run(self._end(stream, until, options.get("timeout")))
        return self._read(self.subscribe(stream, *patterns, start=since, existing=True, **options), end)

    def frame(
        self,
        stream: str,
        *patterns: str,
        since: When = "first",
        until: Until = "now",
        library: Library = "pandas",
        **options: Unpack[HistoryOptions],
    ) -> Any:
        """Return the history of a stream as a table of Arrow, pandas or polars.

        The table has the columns `sequence`, `time`, `sender`, `subject` and `body`, and one for each header.
        The messages are those of `history`, and have to fit into the memory.

        Raises:
            NotInstalled: the library is missing.
            NotFound, TimedOut, InvalidName, InvalidSelector, InvalidValue, AccessRefused: as `history`.
        """
        table = MessageTable(library)
        table.add(self.history(stream, *patterns, since=since, until=until, **options))
        return table.made()

    def _read(self, subscription: Subscription, end: HistoryEnd) -> Iterator[Message]:
        with subscription:
            more = True
            while more:
                messages, more = self._driver.run(subscription._history(end))
                yield from messages

    # Mailboxes

    def send(
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
        """Send one message to a mailbox, whether its owner is connected or not.

        `assurance` is `none`, `stored` or `confirmed`. With `stored` the call returns when the message is
        durable; with `none` at once, and a refusal is an event. With `confirmed` it returns as with `stored`,
        and the result has the outcome later: `Sent.wait` waits until the message is settled. That needs a
        client with an address. `SendOptions` describes the options.

        Without `wait` the call returns when the message is sent, so that many share a write to the disk:
        `Sent.wait` waits for the confirmation. A refusal is an event, too.

        Raises:
            TryLater: the mailbox is full, or as `publish`.
            AccessRefused, QuotaExceeded: as `publish`.
            InvalidName, InvalidValue, TooLarge, TimedOut, ConnectionLost: as `publish`.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        command, tracking = self._driver.run(
            self._send(
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
        )
        return Sent(command, tracking, self._outcome)

    def _outcome(self, delivery: SentBase, timeout: Span | None) -> str:
        return self._driver.run(self._wait_for_outcome(delivery, timeout))

    def withdraw(self, kind: str, name: str, correlation: int | str, *, timeout: Span | None = None) -> int:
        """Withdraw the messages that this client sent under a correlation and that are not settled.

        `kind` is `mailbox` or `service`, `name` the address or the service. Returns how many were withdrawn.

        Raises:
            NotFound: there were none.
            ConnectionLost: the connection broke before the answer, and the result is unknown.
            TimedOut: the broker did not answer in time.
        """
        return self._driver.run(self._withdraw(kind, name, correlation, timeout))

    def cancel(
        self,
        kind: str,
        name: str,
        *,
        id: str,  # noqa: A002  # as options of the protocol are called
        timeout: Span | None = None,
    ) -> Cancelled:
        """Take back the messages under an `id` that wait or are delayed, whoever sent them.

        `kind` is `mailbox` or `service`, `name` the address or the service. A message that a consumer has is
        not taken back: the consumer gets the event `Recalled`. Returns how many were cancelled, and how many
        are in flight; both are 0 if no message under the id is there.

        Raises:
            AccessRefused: the client may not send there.
            InvalidValue: the kind or the id is invalid.
            ConnectionLost: the connection broke before the answer, and the result is unknown.
            TryLater: a message under the id is not stored yet.
            TimedOut: the broker did not answer in time.
        """
        return self._driver.run(self._cancel(kind, name, id, timeout))

    def sender(self, address: str, **options: Unpack[PublisherOptions]) -> Publisher:
        """Return a publisher of many messages to one mailbox, as `publisher` does for a stream.

        Raises:
            InvalidValue: an option is wrong.
        """
        return self._driver.do(
            lambda: self._publisher(self._driver, self._to_mailbox(address), is_mail=True, **options)
        )

    def mailbox(self, *, auto_ack: bool = True, **options: Unpack[MailboxOptions]) -> Mailbox:
        """Return the mailbox of this client's address.

        There is one: later calls return it again, with its new options. With `auto_ack` a message is
        acknowledged when the next one is requested. `MailboxOptions` has the credit.

        Raises:
            InvalidValue: the client has no address, or an option is wrong.
        """

        def open_() -> Mailbox:
            source = self._open_mailbox(**options)
            if self._mailbox is None:
                self._mailbox = Mailbox(self._driver, source, auto_ack=auto_ack)
            self._mailbox.auto_ack = auto_ack
            return self._mailbox

        return self._driver.do(open_)

    def consume(
        self, name: str, *senders: str, auto_ack: bool = True, **options: Unpack[ConsumeOptions]
    ) -> Mailbox:
        """Consume from any mailbox, as one of several consumers: each message goes to one of them.

        Without patterns of `senders` all messages match, otherwise those whose sender's address matches any
        of them. Each call is another consumer. The credit is the number of unacknowledged messages here, by
        default one; `ConsumeOptions` describes the options. At the end of its block unacknowledged messages
        go to another consumer, unless the mailbox is temporary and this was the last one.

        Raises:
            InvalidName: the name of the mailbox is invalid.
            AccessRefused: the client may not receive from it.
            InUse: the mailbox is to be temporary, and exists and is not.
            InvalidSelector: a pattern is wrong.
            InvalidValue: another option is wrong.
            TooMany, QuotaExceeded: a limit on offers or patterns is reached.
            TimedOut: the broker did not answer in time.
        """
        source = self._driver.run(self._offer(name, senders, kind="mailbox", **options))
        mailbox = Mailbox(self._driver, source, auto_ack=auto_ack)
        self._driver.do(self._keep_shared, mailbox)
        return mailbox

    def get(self, mailbox: str, *, timeout: Span | None = None) -> Mail | None:
        """Return the next message of any mailbox, to be settled; None at once when nothing is ready.

        None is the answer of the broker: no message was ready, or there is no such mailbox. The message is
        acknowledged by its `ack`, and given back when the client is closed.

        Raises:
            InvalidName: the name of the mailbox is invalid.
            AccessRefused: the client may not receive from it.
            TooMany: a limit on offers is reached: messages of earlier calls are not settled.
            TimedOut: the broker did not answer in time.
        """
        found = self._driver.run(self._get(mailbox, timeout))
        return None if found is None else Mail(*found[0], Single(self._driver, found[1]))

    def receive(self, timeout: Span | None = None) -> Mail:
        """Return the next mail.

        The message is acknowledged when the next one is requested, or the client is closed. `timeout` is in
        seconds; None waits without end.

        Raises:
            TimedOut: no mail came in time.
            InvalidValue: the client has no address.
        """
        mailbox = self._mailbox
        if mailbox is None or mailbox.closed:
            mailbox = self.mailbox()
        return mailbox.receive(timeout)

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
    ) -> Replies:
        """Send a request to a service. Returns the iterator of its replies, which ends after the final one.

        The call does not wait for a reply: to have several requests under way, make them all and then iterate
        over their replies. `timeout` is for all replies together, in seconds from now. `RequestOptions`
        describes the other options.

        `assurance` is `none`, `stored` or `confirmed`. With `stored` the request is sent again after a
        reconnect until it is durable on the broker, once; with `none` it may be lost, and a refusal is an
        event. `flush` returns when it is durable: until then it may be with this client only, which
        reconnects in its calls. With `confirmed` the result has the outcome of the request, too: the iterator
        ends when the request has expired, for example, `outcome` is that, and `wait` waits for it. That needs
        a client with an address.

        The iterator raises `TimedOut`, and the error that the broker refused the request with.

        Raises:
            InvalidName, InvalidValue, TooLarge, TryLater, ConnectionLost: as `publish`.
            AccessRefused, QuotaExceeded: as `publish`.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        pending = self._driver.run(
            self._request(
                service, subject, body, headers, assurance=assurance, timeout=timeout, options=options
            )
        )
        return Replies(self._driver, pending, timeout)

    def enqueue(
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
        """Send a request that wants no reply: a job for one of the workers.

        A reply of the worker completes it as `ack` does, and goes nowhere. `assurance` and the result are as
        those of `send`: with `stored` the call returns when the job is durable, and with `confirmed`
        `Sent.wait` waits until a worker has completed it. `wait` is as for `send`, and `RequestOptions`
        describes the options.

        Raises:
            TryLater: the queue of the service is full, or as `publish`.
            AccessRefused, QuotaExceeded: as `publish`.
            InvalidName, InvalidValue, TooLarge, TimedOut, ConnectionLost: as `publish`.
        """
        if json is not ABSENT or type(body) is not bytes:
            body, headers = content_of(self._driver.codec, json, body, headers)
        command, tracking = self._driver.run(
            self._send(
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
        )
        return Sent(command, tracking, self._outcome)

    def work(self, service: str, *patterns: str, **options: Unpack[WorkOptions]) -> Work:
        """Offer to work on the requests to a service whose subject matches any of the patterns.

        Without patterns all requests match. Returns when the broker has accepted the offer. `WorkOptions`
        describes the options.

        Raises:
            InvalidName: the name of the service is invalid.
            AccessRefused: the user may not work for it.
            InvalidSelector: a pattern is wrong.
            InvalidValue: another option is wrong.
            TooMany, QuotaExceeded: a limit on offers or patterns is reached.
            TimedOut: the broker did not answer in time.
        """
        source = self._driver.run(self._offer(service, patterns, **options))
        return Work(self._driver, source)

    def bucket(self, name: str) -> Bucket:
        """Return a bucket: values by key. The call does not ask the broker.

        Raises:
            InvalidName: the name is invalid.
        """
        return Bucket(self._driver, name)

    # Handlers

    def service(
        self, name: str, *patterns: str, **options: Unpack[ServiceOptions]
    ) -> Callable[[ServiceHandler], ServiceHandler]:
        """Decorate a function that answers requests; `run` calls it with each, in a thread of its own.

        The result is the body of the final reply (None is an empty one), unless the function settled the
        request itself. While it works, progress is reported every third of the ack timeout. An exception is
        logged, and the request is redelivered after a backoff until it is a dead letter; `on_error` of
        `ServiceOptions` changes that.

        Raises:
            InvalidValue: an option is wrong.
        """
        return self._service_handler(self.work, name, patterns, **options)

    def subscription(
        self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]
    ) -> Callable[[MessageHandler], MessageHandler]:
        """Decorate a function that handles the messages of a subscription.

        `run` calls it with each, in order. `options` are those of `subscribe`. A `cursor` advances behind
        handled messages. An exception of the function is raised by `run`, and the cursor stays before that
        message.
        """
        return self._handler(lambda: self.subscribe(stream, *patterns, **options))

    def on_mail(self, **options: Unpack[HandlerOptions]) -> Callable[[MailHandler], MailHandler]:
        """Decorate a function that handles the mail of this client's address; `run` calls it with each.

        A message is acknowledged when the function returns. `HandlerOptions` describes the options.

        Raises:
            InvalidValue: an option is wrong.
        """
        return self._mail_handler(
            lambda credit: self.mailbox(auto_ack=False, credit=credit).__enter__(), **options
        )

    def run(self) -> None:
        """Call the decorated functions with each delivery, until `stop` is called.

        Handlers run in threads of their own while this one keeps the session going: they may take as long as
        they need, and use this client. Returns when the running handlers have returned.

        Raises:
            Exception: a handler of a subscription raised it.
            MalamuteError: the error that ended the session, or that a consumer could not be opened with.
        """
        self._driver.do(self._driver.check)
        slots = [HandlerSlot(handling, handling.open()) for handling in self._handlers]
        self._pool = pool = HandlerPool(self._driver, slots)
        try:
            self._driver.run(pool.serve())
        finally:
            self._pool = None
            pool.close()
            for slot in slots:
                slot.consumer.cancel()

    def stop(self) -> None:
        """Let `run` return. A handler, another thread, or a signal handler may call this."""
        pool = self._pool
        if pool is not None:
            pool.stop()

    def drain(self) -> None:
        """Begin a graceful shutdown: consume no more messages. The call does not wait; `run` returns, too.

        Subscriptions end after the delivered messages. Waiting requests are released unread, and so is mail
        when its block ends. Messages in hand can still be settled, and publishing is still possible; `close`
        completes the shutdown. A handler and a signal handler may call this, and the call does nothing once
        the client has ended.
        """
        if self._driver.is_owner:
            super().drain()  # not by `do`, which would be a call under way
        else:
            self._driver.do(super().drain)
        self.stop()

    # Another event loop

    def fileno(self) -> int:
        """Return a file that is readable when `dispatch` has something to do.

        The file stays the same over reconnects, until the client is closed. A loop that watches it calls
        `dispatch` then, and also after `next_timeout` seconds. Linux alone has such a file.

        Raises:
            Closed: the client is closed.
        """
        return self._driver.fileno()

    def dispatch(self) -> bool:
        """Receive and send without waiting, and return whether there is more to do at once.

        Received messages wait in their consumers: `take` with the timeout 0 and `poll` return them.

        Raises:
            LinkError: another thread dispatches for this client.
            MalamuteError: the error that ended the session.
        """
        return self._driver.do(self._driver.dispatch)

    def next_timeout(self) -> float | None:
        """Return the seconds until `dispatch` is due by itself; None if only the file tells that."""
        return self._driver.next_timeout()

    # The connection

    @property
    def admin(self) -> Admin:
        """Return the queries and changes as methods: `admin.stream(name="weather")` is typed.

        Each topic of the protocol is one, with `_` for its dot, such as `admin.stream_retain`. Both raise as
        `query` and `change`.
        """
        # The import is late: most programs never make a query.
        from malamute.client.link.admin import Admin

        return Admin(lambda topic, *, change: self._driver.run(self._ask(topic, {}, None, change=change)))

    @overload
    def query(self, topic: AdminQuery[Answer], *, timeout: Span | None = None) -> Answer: ...

    @overload
    def query(self, topic: str, *, timeout: Span | None = None, **arguments: Any) -> Any: ...

    def query(self, topic: str | AdminQuery[Any], *, timeout: Span | None = None, **arguments: Any) -> Any:
        """Query the broker.

        Topics are `status`, `storage`, `streams`, `stream`, `clients` and more, as docs/protocol.md lists
        them with their `arguments`. A list is returned whole, with all its pages. A value of
        `malamute.protocol.admin` such as `StreamQuery(name="weather")` does as well; it returns values then.

        Raises:
            TimedOut: the broker did not answer in time.
            Refused: the broker refused the query.
        """
        return self._driver.run(self._ask(topic, arguments, timeout, change=False))

    @overload
    def change(self, topic: AdminChange[Answer], *, timeout: Span | None = None) -> Answer: ...

    @overload
    def change(self, topic: str, *, timeout: Span | None = None, **arguments: Any) -> Any: ...

    def change(self, topic: str | AdminChange[Any], *, timeout: Span | None = None, **arguments: Any) -> Any:
        """Change something in the broker.

        Topics are `cursor.set`, `stream.retain` and more, as docs/protocol.md lists them with their
        `arguments`; with `dry_run=True` nothing is changed. Returns the result, once it is durable. The
        change is made once, in spite of broken connections.

        Raises:
            TimedOut: the broker did not answer in time. The change was made before that, or is not made at
                all.
            ConnectionLost: the broker has forgotten this session, and whether the change was made is unknown.
            Refused: the broker refused the change.
        """
        return self._driver.run(self._ask(topic, arguments, timeout, change=True))

    def ping(self, timeout: Span | None = None) -> float:
        """Ask the broker for an answer, and return the seconds until it came.

        Raises:
            TimedOut: the broker did not answer in time.
        """
        return self._driver.run(self._ping(timeout))

    def flush(self, timeout: Span | None = None) -> None:
        """Wait until the broker has all messages and commands of this client, confirmed where requested.

        Refusals are reported by receipts and events, not here.

        Raises:
            TimedOut: the broker did not answer in time.
        """
        self._driver.run(self._flush(timeout))

    def close(self, timeout: Span | None = None) -> None:
        """Wait until everything is confirmed, end the session, and close the connection.

        Closing twice does nothing.

        Raises:
            TimedOut: the broker did not answer in time. The connection is closed, and unconfirmed messages
                may be lost.
        """
        self._driver.run(self._close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.run(self._leave(failed=kind is not None))


class _SharedClient(Client):
    """A client for any thread. A child of a fork connects anew, with the same options, at its first call."""

    _subscription = SharedSubscription
    _publisher = SharedPublisher

    def __init__(self, connect: Callable[[], SharedDriver]) -> None:
        self._connect = connect
        self._present = connect()
        super().__init__(self._present)

    @property
    def _driver(self) -> SharedDriver:
        present = self._present
        return present if not present.forked else self._connected_anew(present)

    @_driver.setter
    def _driver(self, driver: Driver) -> None:
        """Do nothing: the driver is set already."""

    @property
    def _session(self) -> ClientSession:
        return self._driver.session

    @_session.setter
    def _session(self, session: ClientSession) -> None:
        """Do nothing: the session is the driver's."""

    def _connected_anew(self, forked: SharedDriver) -> SharedDriver:
        with forked.successor:
            if self._present is forked:
                if address := forked.session.address:
                    raise LinkError(
                        f"client was made before a fork, and the address {address!r} is its parent's: "
                        "connect with another one in the child"
                    )
                driver = self._connect()
                driver.on_event = forked.on_event
                self._mailbox, self._shared, self._pool, self._stream = None, [], None, ""
                self._present = driver
        return self._present
