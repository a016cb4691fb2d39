"""The edge for blocking programs: `connect` and `Client`.

Every call is one thing asked of the pure session and, where the answer matters, a wait for it. A broken
connection is not seen by a call that waits: it goes on when the connection is mended, until its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from malamute.client.link.client import ClientBase, ConnectOptions, open_driver
from malamute.client.options import (
    DEFAULT_URL,
    HandlerOptions,
    MailboxOptions,
    PublisherOptions,
    RequestOptions,
    SendOptions,
    ServiceOptions,
    SubscribeOptions,
    WorkOptions,
)
from malamute.client.session.message import Mail, Message
from malamute.client.session.receipts import Delivery
from malamute.client.sync.consumers import Mailbox, Replies, Request, Subscription, Work
from malamute.client.sync.driver import BlockingDriver, run
from malamute.client.sync.handler_pool import HandlerPool, HandlerSlot
from malamute.client.sync.publisher import Publisher
from malamute.client.sync.receipts import Sent
from malamute.protocol.batch import Body, Headers

ServiceHandler = TypeVar("ServiceHandler", bound=Callable[[Request], Body | None])
MailHandler = TypeVar("MailHandler", bound=Callable[[Mail], object])
MessageHandler = TypeVar("MessageHandler", bound=Callable[[Message], object])


def connect(url: str | Sequence[str] = DEFAULT_URL, **options: Unpack[ConnectOptions]) -> Client:
    """Connect to a broker, and wait until it has answered.

    `url` is a ZeroMQ address such as `tcp://host:9999` or `ipc:///run/malamute.sock`, or a URI such as
    `malamute://host`; or several, as a sequence or with commas between them, which are tried in this order,
    now and whenever the connection has broken. A URI may go on with `/stream/NAME`, `/mailbox/NAME` or
    `/service/NAME`: it leads to the broker that has it, and `malamute.Uri.parse` tells the name.
    `address` is the name of the client's mailbox and what it is known by as a sender; without one it is
    anonymous. `timeout` is in seconds, for connecting and for every later call that waits for the broker and
    is not given another. `software` is what the broker shows as the client's name.
    Every `heartbeat` seconds a thread of the library asks the broker for a sign of life; both take the
    connection for broken when nothing has come for three of them.

    Raises `ConnectTimeout` when no broker answers, `InvalidValue` or `InvalidName` for a wrong URL or
    address, `OutOfSockets` when the process can open no more, and what the broker refuses the session with.
    """
    return Client(run(open_driver(BlockingDriver, url, **options)))


class Client(ClientBase):
    """A connection to a broker. Made by `connect`; a context manager that closes it at the end."""

    _driver: BlockingDriver
    _mailbox: Mailbox | None

    def __init__(self, driver: BlockingDriver) -> None:
        super().__init__(driver)
        self._pool: HandlerPool | None = None

    # Streams

    def publish(
        self,
        stream: str,
        subject: str,
        body: Body,
        headers: Headers | None = None,
        *,
        assurance: str = "none",
        timeout: float | None = None,
    ) -> int:
        """Publish one message.

        With the assurance `none` it is sent and forgotten: a refusal is an event, and the result is 0.
        With `stored` the call returns when the message is on the broker's disk, and tells its sequence (0 if
        it was confirmed over a broken connection). `publisher` is much faster for many messages.

        Raises `InvalidValue`, `InvalidName`, `TooLarge`, `TimedOut`, and what the broker refuses it with.
        """
        if assurance == "none" and self._publish_fast_path(stream, subject, body, headers):
            return 0
        return self._driver.run(
            self._publish(stream, subject, body, headers, assurance=assurance, timeout=timeout)
        )

    def publish_batch(
        self,
        stream: str,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None = None,
        *,
        timeout: float | None = None,
    ) -> int:
        """Publish messages as one command, which is stored as a whole or not at all. Returns when it is.

        It tells the sequence of the first message; the others follow it. Raises as `publish` does.
        `publisher` is faster: it does not wait for a batch before it sends the next.
        """
        return self._driver.run(self._publish_batch(stream, subjects, bodies, headers_list, timeout))

    def publisher(self, stream: str, **options: Unpack[PublisherOptions]) -> Publisher:
        """Publish many messages to one stream: batched, pipelined, and confirmed with `stored`.

        `batch` is the most messages in a command (64 KiB end one too), `linger` in seconds how long a message
        may wait for others (0: each goes at once), `timeout` in seconds how long to wait for a broker that
        does not confirm.
        """
        return self._driver.do(lambda: Publisher(self._driver, self._to_stream(stream), **options))

    def subscribe(self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """Subscribe to the messages of a stream whose subject meets any of the patterns.

        Without patterns all messages come. `family` says how the patterns are to be read: `topic`,
        `topic-amqp`, `exact`, `prefix`, `regex`, or one of a plug-in. `criteria` are pairs of a family and
        a pattern, in addition: also of `fields` and `geo`, whose patterns are more than text. `where` is a
        match expression on the headers. `credit` and `credit_bytes` are how much may wait here at most, in
        messages and in bytes; -1 is without limit.

        `start` is `new`, `first`, `last`, `last-per-subject`, `seq:N`, `time:T` or `since:1h`; a sequence, a
        datetime (UTC if it does not say otherwise), or a timedelta that reaches back. `cursor` names a
        position that the broker keeps: a known one is where it begins, a new one is set at `start`, and
        `Subscription.commit` moves it.

        Messages come while the broker still writes them to its disk. If it is killed then, those that it did
        not confirm to their publisher may be no more: the event `Gap` tells of them, with the reason
        `taken-back`. With `committed` a message comes when it is on the disk, and none is ever taken back.

        Raises `InvalidName`, `InvalidSelector`, `InvalidValue`, `TooMany`, `TimedOut`.
        """
        source = self._driver.run(self._subscribe(stream, patterns, **options))
        return Subscription(self._driver, source)

    # Mailboxes

    def send(
        self,
        address: str,
        subject: str,
        body: Body,
        headers: Headers | None = None,
        *,
        assurance: str = "stored",
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send one message to a mailbox, whether its owner is there or not.

        With the assurance `stored` the call returns when it is on the broker's disk; with `none` at once, and
        a refusal is an event. With `confirmed` it returns as with `stored`, and the result tells, when the
        recipient has settled the message or nobody can any more, which of it happened.

        `options` are `correlation`, `id`, `ttl`, `priority`, `delay`, `at`, `immediate`, `reply_to` and
        `tracker`, as `malamute.client.options` has them; times are seconds or a timedelta.

        Raises `TryLater` when the mailbox is full, and as `publish` does.
        """
        command, tracking = self._driver.run(
            self._send(address, subject, body, headers, assurance=assurance, timeout=timeout, options=options)
        )
        return Sent(command, tracking, self._outcome)

    def _outcome(self, delivery: Delivery, timeout: float | None) -> str:
        return self._driver.run(self._wait_for_outcome(delivery, timeout))

    def withdraw(self, kind: str, name: str, correlation: int | str, *, timeout: float | None = None) -> int:
        """Take back what this client sent under a correlation, as far as nobody has settled it.

        `kind` is `mailbox` or `service`, `name` the address or the service. Returns how many messages were
        taken back. Raises `NotFound` when there were none.
        """
        return self._driver.run(self._withdraw(kind, name, correlation, timeout))

    def sender(self, address: str, **options: Unpack[PublisherOptions]) -> Publisher:
        """Send many messages to one mailbox, as `publisher` does to a stream."""
        return self._driver.do(lambda: Publisher(self._driver, self._to_mailbox(address), **options))

    def mailbox(self, *, auto_ack: bool = True, **options: Unpack[MailboxOptions]) -> Mailbox:
        """The mail of this client's address. There is one, so later calls return it again.

        `credit` and `credit_bytes` are how much may be here unacknowledged.
        Raises `InvalidValue` for a client without an address.
        """
        source = self._driver.do(lambda: self._open_mailbox(**options))
        if self._mailbox is None:
            self._mailbox = Mailbox(self._driver, source, auto_ack=auto_ack)
        self._mailbox.auto_ack = auto_ack
        return self._mailbox

    def receive(self, timeout: float | None = None) -> Mail:
        """The next mail, acknowledged when the one after it is asked for or the client is closed.

        Raises `TimedOut` after `timeout` seconds (None: it waits without end).
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
        body: Body = b"",
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        assurance: str = "stored",
        **options: Unpack[RequestOptions],
    ) -> Replies:
        """Ask a service. The result is the iterator of the replies, and it ends after the final one.

        It does not wait before the first reply is asked for: to have several requests under way, make them
        all and then take their replies. `timeout` is for all the replies together, in seconds from now.
        `options` are `id`, `ttl`, `priority`, `delay`, `at`, `immediate`, `key` and `tracker`, as
        `malamute.client.options` has them.

        With the assurance `stored` the broker has the request on its disk before it refuses or keeps it, and
        with `none` a refusal is an event. With `confirmed` the result tells too how the request ended:
        the iterator ends when it has expired, say, `outcome` is how, and `wait` waits for that. This needs
        a client with an address.

        The iterator raises `TimedOut`, and what the broker refuses the request with.
        """
        pending = self._driver.run(
            self._request(
                service, subject, body, headers, assurance=assurance, timeout=timeout, options=options
            )
        )
        return Replies(self._driver, pending, self._driver.timeout if timeout is None else timeout)

    def work(self, service: str, *patterns: str, **options: Unpack[WorkOptions]) -> Work:
        """Offer to work on the requests to a service whose subject meets any of the patterns.

        `credit` is how many requests may be here unfinished. One that is neither settled nor reported on
        within `ack_timeout` (seconds or a timedelta; None is what the broker is configured for) is given to
        the next worker. Raises as `subscribe` does.
        """
        source = self._driver.run(self._offer(service, patterns, **options))
        return Work(self._driver, source)

    # Handlers

    def service(
        self, name: str, *patterns: str, **options: Unpack[ServiceOptions]
    ) -> Callable[[ServiceHandler], ServiceHandler]:
        """Decorate a function that answers requests; `run` calls it with each.

        What it returns is the body of the final reply (None is an empty one), unless it has settled the
        request itself. While it works the broker is told so, every third of the ack timeout. When it raises
        an exception, which is logged, the request is given back to be tried again later, and is a dead letter
        in the end; with `on_error="reject"` it is one at once, and with `on_error="reply"` the final reply
        has an empty body and the header `malamute.error` with the words of the exception.

        At most `concurrency` calls are under way at a time, each in a thread of its own; `credit` is how many
        requests may be here, or `concurrency` if that is more.
        """
        return self._service_handler(self.work, name, patterns, **options)

    def subscription(
        self, stream: str, *patterns: str, **options: Unpack[SubscribeOptions]
    ) -> Callable[[MessageHandler], MessageHandler]:
        """Decorate a function that takes the messages of a subscription; `run` calls it with each, in order.

        `options` are those of `subscribe`. With a `cursor`, that moves behind the messages that it is done
        with. An exception that it raises comes out of `run`, and the cursor stays before that message.
        """
        return self._handler(lambda: self.subscribe(stream, *patterns, **options))

    def on_mail(self, **options: Unpack[HandlerOptions]) -> Callable[[MailHandler], MailHandler]:
        """Decorate a function that takes the mail of this client's address; `run` calls it with each.

        A message is acknowledged when it returns. `concurrency` and `on_error` are those of `service`, but
        that there is nothing to reply to: `reply` acknowledges it.
        """
        return self._mail_handler(
            lambda credit: self.mailbox(auto_ack=False, credit=credit).__enter__(), **options
        )

    def run(self) -> None:
        """Call the decorated functions with what comes, until `stop` is called.

        They run in threads of their own, while this one keeps the session going: they may take as long as
        they need, and use this client. Handlers at work when `stop` is called are waited for.
        """
        self._driver.check()
        slots = [HandlerSlot(handling, handling.open()) for handling in self._handlers]
        self._pool = self._driver.pool = pool = HandlerPool(self._driver, slots)
        try:
            self._driver.do(pool.serve)
        finally:
            self._pool = self._driver.pool = None
            pool.close()
            for slot in slots:
                slot.consumer.cancel()

    def stop(self) -> None:
        """Let `run` return. It may be called by a handler, by another thread, or by a signal handler."""
        pool = self._pool
        if pool is not None:
            pool.stop()

    def drain(self) -> None:
        """Take nothing more, so that the program can come to its end. It does not wait; `run` returns too.

        Subscriptions end after what has come; requests that wait here go back untouched, and mail does so at
        the end. What is in hand can still be settled, and everything can still be published. `close` does
        the rest. It may be called by a handler and by a signal handler, and does nothing when the client has
        ended.
        """
        if self._driver.is_owner:
            super().drain()  # not by `do`, which would be a call under way
        else:
            self._driver.do(super().drain)
        self.stop()

    # The connection

    def query(self, topic: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Ask the broker about itself: `status`, `storage`, `streams`, `stream`, `clients` and more.

        docs/protocol.md lists the topics. Raises `TimedOut`, and what the broker refuses it with.
        """
        return self._driver.run(self._ask(topic, arguments, timeout, change=False))

    def change(self, topic: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Change something in the broker: `cursor.set`, `stream.retain`, … With `dry_run=True` just ask.

        Returns what was done, when it is stored. docs/protocol.md lists the topics. Raises `TimedOut`, and
        what the broker refuses it with.
        """
        return self._driver.run(self._ask(topic, arguments, timeout, change=True))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the broker has everything that was given to this client, confirmed where asked for.

        What was refused is told by receipts and events, not here. Raises `TimedOut`.
        """
        self._driver.run(self._flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait until everything is confirmed, end the session, and close the connection.

        Closing twice does nothing. Raises `TimedOut` when the broker did not answer within `timeout` seconds
        (None: the client's own): what was not confirmed then may be lost.
        """
        self._driver.run(self._close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.run(self._leave(failed=kind is not None))
