"""The calls of a client, written once for both edges: commands to the session, and waits for answers.

`sync` and `aio` add their signatures, and the consumers and publishers that they return.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from malamute.client.events import Event
from malamute.client.link.connection import Connection
from malamute.client.link.consumers import HistoryEnd, MailboxBase, outcome_of
from malamute.client.link.credentials import credentials
from malamute.client.link.demand import Ask
from malamute.client.link.driver import Driver
from malamute.client.link.handlers import Registration, check_handling, registration
from malamute.client.link.leaving import leave_with_the_process
from malamute.client.link.link import HEARTBEAT_MAX, HEARTBEAT_MIN, AnyContext, shared_context
from malamute.client.link.publisher import Carry
from malamute.client.link.renewal import AskToken, Renewal
from malamute.client.options import (
    CREDIT_BYTES,
    CREDIT_MESSAGES,
    DEMAND_TIMEOUT_SECONDS,
    HEARTBEAT_OF_SEVERAL_SECONDS,
    HEARTBEAT_SECONDS,
    MAIL_CREDIT_MESSAGES,
    TIMEOUT_SECONDS,
    ConsumeOptions,
    Criteria,
    HandlerOptions,
    MailboxOptions,
    RequestOptions,
    SendOptions,
    ServiceOptions,
    Span,
    SubscribeOptions,
    Until,
    When,
    WorkOptions,
    check_name,
    checked,
    count,
    end_of,
    flag,
    patience,
    pause,
    properties_of,
    refuse_unknown,
    seconds,
    text,
    time_to_live,
)
from malamute.client.session.batch import (
    check_columns,
    check_subject,
    check_subjects,
    is_stored,
    record_of,
    records_of,
)
from malamute.client.session.codecs import CodecOption, codec_of
from malamute.client.session.message import ANSWERS_PREFIX, REPLY_TO, Mail, Message
from malamute.client.session.outbox import Command, StoredSequence
from malamute.client.session.questions import Cancelled, PendingChange, PendingQuery
from malamute.client.session.receipts import OutcomeTracking, SentBase
from malamute.client.session.replies import PendingRequest
from malamute.client.session.route import Route, urls_of
from malamute.client.session.sending import Send
from malamute.client.session.session import ClientSession, State
from malamute.client.session.sources import ConsumerSource, Item, Source, StreamSource
from malamute.errors import (
    AccessRefused,
    ConnectTimeout,
    InvalidValue,
    MalamuteError,
    NoWorkers,
    TimedOut,
    TryLater,
)
from malamute.protocol.batch import Body, Frame, Headers
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.limits import NUMBER_MAX, RECORD_LARGE_BYTES
from malamute.protocol.names import Kind, signature
from malamute.protocol.texts import shown
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.protocol.admin import AdminTopic, StreamDemand


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`."""

    address: str
    """The name of the client's mailbox, and its name as a sender. Default: anonymous."""
    timeout: Span
    """The time to wait for the broker: when connecting, and in every later call without a timeout of its own.
    Default: 5 seconds.
    """
    software: str
    """The name of the program, as the broker shows it. Default: `malamute-python` and its version."""
    heartbeat: Span
    """The interval at which a thread of the library pings the broker; both sides take the connection for
    broken after three of them without data. Default: 5 seconds, and 1.5 with several URLs.
    """
    user: str
    """The user's name, for a broker that asks for a password. Default: MALAMUTE_USER of the environment."""
    password: str
    """The password of the user; with `server_key` the connection is encrypted, and without it nothing is.
    Default: MALAMUTE_PASSWORD of the environment."""
    curve: str | os.PathLike[str]
    """The file with the secret key of this client, as `malamute keys new` writes it, for a broker that asks
    for one; the connection is encrypted then. Default: MALAMUTE_CURVE of the environment."""
    server_key: str | os.PathLike[str]
    """The public key of the broker, or the file that has it: needed with `curve`, and by it the connection of
    a user or a token is encrypted. Default: MALAMUTE_SERVER_KEY of the environment."""
    token: str | Callable[[], str]
    """A bearer token (JWT) that names the user, for a broker that takes tokens; with `server_key` the
    connection is encrypted. A function that returns one is called by `connect`, and again in a thread of its
    own shortly before the token expires. Default: MALAMUTE_TOKEN of the environment."""
    act_as: str
    """The user whose permissions the client gets in place of its own: a rule `impersonate user/NAME` has to
    allow that. Default: MALAMUTE_ACT_AS of the environment, if the user is from the environment, too.
    """
    signed: bool
    """Whether readers of streams see the user as the sender, in the form of `Client.signature`: only the
    broker can stamp it. Default: they see the address.
    """
    codec: CodecOption
    """The form of bodies that are neither bytes nor text: `json`, `msgpack`, or an object with
    `content_type`, `encode` and `decode`. Such messages have the header `content-type`. Default: none, and
    such a body is refused."""
    context: AnyContext | None
    """The context of ZeroMQ to open sockets in. Default: one that the clients of the process share."""


class ThreadOptions(ConnectOptions, total=False):
    """The options of `connect` for blocking programs."""

    threads: Literal["one", "any"]
    """The threads that may use the client: `one`, which is the one that made it, or `any`. With `any` a child
    of a fork connects anew at its first call. Default: `one`."""


AnyDriver = TypeVar("AnyDriver", bound=Driver)

_log = logging.getLogger("malamute")


async def open_driver(
    make: Callable[[ClientSession, Connection, float], AnyDriver],
    url: str | Sequence[str],
    *,
    address: str = "",
    timeout: Span = TIMEOUT_SECONDS,
    software: str = "",
    heartbeat: Span | None = None,
    user: str = "",
    password: str = "",
    curve: str | os.PathLike[str] = "",
    server_key: str | os.PathLike[str] = "",
    token: str | AskToken = "",
    act_as: str = "",
    signed: bool = False,
    codec: CodecOption = None,
    context: AnyContext | None = None,
    environ: Mapping[str, str] = os.environ,
    **unknown: Any,
) -> AnyDriver:
    """Connect, and wait until the broker has answered. Credentials that are not given are those of `environ`.

    Raises:
        ConnectTimeout, InvalidValue, and more: as `connect`.
        TryLater: the broker did not verify the credentials in time.
        NotPrimary: the broker is not the primary of its pair, and no other one has answered.
    """
    refuse_unknown("connect", ConnectOptions, unknown)
    ask, token = (None, token) if isinstance(token, str) or not callable(token) else (token, token())
    urls = urls_of(url)
    if heartbeat is None:
        heartbeat = HEARTBEAT_SECONDS if len(urls) < 2 else HEARTBEAT_OF_SEVERAL_SECONDS
    given = checked(
        timeout=timeout,
        heartbeat=heartbeat,
        address=address,
        software=software,
        user=user,
        password=password,
        token=token,
        act_as=act_as,
    )
    given_codec = codec_of(codec)
    patience_seconds, every_seconds = seconds("timeout", timeout), given["heartbeat"]
    # The first byte of a routing id must not be 0: such ids belong to ZeroMQ.
    identity = bytes([1 + secrets.randbelow(255)]) + secrets.token_bytes(15)
    if not HEARTBEAT_MIN <= every_seconds <= HEARTBEAT_MAX:
        raise InvalidValue(
            f"invalid heartbeat {shown(heartbeat)}: expected {HEARTBEAT_MIN} to {HEARTBEAT_MAX} seconds"
        )
    proof = credentials(environ, user, password, curve, server_key, token, act_as)
    session = ClientSession(
        identity,
        address=address,
        software=software or _software(),
        heartbeat=every_seconds,
        token=proof.token,
        act_as=proof.act_as,
        signed=signed,
    )
    route = Route(urls, proved=proof.is_mutual)
    connection = Connection(context or shared_context(), route, identity, every_seconds, proof.options)
    driver = make(session, connection, patience_seconds)
    driver.codec = given_codec
    leave_with_the_process()
    try:
        await driver.wait(lambda: session.state is State.READY, patience_seconds, "connecting")
    except TimedOut:
        driver.close()
        if session.moved is not None:
            raise session.moved from None
        if connection.link.deferred:
            raise TryLater(
                f"the broker at {route} did not look at the credentials within {patience_seconds} s: too "
                "many from there were wrong, or too many come at a time"
            ) from None
        if connection.taken:
            raise ConnectTimeout(
                f"a listener at {route} took the connection, and did not answer within {patience_seconds} s: "
                "it is a broker that is busy or hangs, or none; try again"
            ) from None
        raise ConnectTimeout(f"no broker answered at {route} within {patience_seconds} s") from None
    except BaseException:
        driver.close()
        raise
    if ask is not None:
        driver.renewal = Renewal(ask, proof.token, driver.renew)
        driver.renewal.start()
    return driver


def _software() -> str:
    return f"malamute-python/{__version__}"


class ClientBase:
    """A connection to a broker; the common part of both edges."""

    _awaits = False
    """Whether the result of a handler is awaited."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._session = driver.session
        self._mailbox: MailboxBase | None = None
        self._shared: list[MailboxBase] = []
        """Mailboxes with shared consumption."""
        self._handlers: list[Registration] = []
        self._stream = ""

    @property
    def url(self) -> str:
        """Return the URL of the present connection, or of the present attempt."""
        return self._driver.connection.url

    @property
    def address(self) -> str:
        """Return the name of the client's mailbox; empty for an anonymous client."""
        return self._session.address

    @property
    def user(self) -> str:
        """Return the user as proved by the broker; empty for an anonymous one."""
        return self._session.user

    @property
    def signature(self) -> str:
        """Return the sender of a `signed` client's messages to streams: `$user.` and its user."""
        return signature(self.user) if self._session.signed else ""

    @property
    def connected(self) -> bool:
        """Return whether the session was open at the last look at the connection."""
        return self._session.state is State.READY

    @property
    def ended(self) -> bool:
        """Return whether the session is over for good: closed, or refused by the broker."""
        return self._session.error is not None

    @property
    def broker(self) -> str:
        """Return the id of the broker, in hexadecimal."""
        return self._session.broker.hex()

    @property
    def store(self) -> str:
        """Return the broker's store, of which sequences are: its id, with its incarnation if any."""
        return self._session.inbox.store

    @property
    def on_event(self) -> Callable[[Event], object]:
        """The function that is called with each event, in the client's thread.

        The function is called within the present call of the client, which raises its exceptions; on an event
        loop without a present call they go to the loop's handler. By default events go to the logger
        `malamute`.
        """
        return self._driver.on_event

    @on_event.setter
    def on_event(self, handler: Callable[[Event], object]) -> None:
        self._driver.on_event = handler

    # Messages

    def _publish_fast_path(self, stream: str, subject: str, body: Any, headers: Headers | None) -> bool:
        """Publish to the stream of the last message, if nothing is in the way; return whether it did."""
        if stream != self._stream:
            return False
        subject = check_subject(subject)
        record = record_of(headers, body)
        return len(record) < RECORD_LARGE_BYTES and self._driver.publish_unconfirmed(stream, subject, record)

    async def _publish(
        self,
        stream: str,
        subject: str,
        body: Any,
        headers: Headers | None,
        *,
        assurance: str,
        timeout: Span | None,
        ttl: Span | None,
        id: str = "",  # noqa: A002  # as options of the protocol are called
    ) -> int:
        driver = self._driver
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        subject = check_subject(subject)
        if id:
            check_name("id", id)
        record, ttl_ms = record_of(headers, body), 0 if ttl is None else time_to_live("ttl", ttl)
        command = Command() if is_stored(assurance) else None
        await driver.make_room(numbered=command is not None, timeout=timeout)
        if id:
            self._session.sending.publish(stream, [subject], [record], command, ttl_ms, id)
        else:
            self._session.sending.publish_single(stream, subject, record, command, ttl_ms)
        self._stream = stream
        if command is None:
            await driver.ship()
            return 0
        sequence = await self._settle(command, timeout)
        return StoredSequence.of(sequence) if id else sequence

    async def _publish_batch(
        self,
        stream: str,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None,
        timeout: Span | None,
        ttl: Span | None,
        id: str = "",  # noqa: A002  # as options of the protocol are called
    ) -> int:
        check_columns(subjects, bodies, headers_list or None)
        if not len(subjects):
            raise InvalidValue("invalid batch: expected at least one message")
        timeout = patience("timeout", timeout)
        subjects = check_subjects(subjects)
        if id:
            check_name("id", id)
        records, ttl_ms = records_of(headers_list, bodies), time_to_live("ttl", ttl)
        sequence = await self._publish_records(stream, subjects, records, timeout, ttl_ms, id)
        return StoredSequence.of(sequence) if id else sequence

    async def _publish_records(
        self,
        stream: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        timeout: float | None,
        ttl_ms: int = 0,
        identity: str = "",
    ) -> int:
        """Publish packed messages as one command, and return the answer to it."""
        command = Command()
        await self._driver.make_room(numbered=True, timeout=timeout)
        self._session.sending.publish(stream, subjects, records, command, ttl_ms, identity)
        return await self._settle(command, timeout)

    async def _send(
        self,
        send: Send,
        target: str,
        subject: str,
        body: Any,
        headers: Headers | None,
        *,
        assurance: str,
        timeout: Span | None,
        wait: bool,
        options: SendOptions | RequestOptions,
    ) -> tuple[Command, OutcomeTracking | None]:
        timeout = patience("timeout", timeout)
        wait = wait is True or flag("wait", wait)
        subject = check_subject(subject)
        record = record_of(headers, body)
        properties = properties_of(options)
        numbered, confirmed = _assured(assurance, properties)
        await self._driver.make_room(numbered=numbered, timeout=timeout)
        # Programs seldom look at what they do not wait for, so a refusal is reported as an event, too.
        command, tracking = Command(awaited=wait), None
        if confirmed:
            tracking = self._session.sending.send_tracked(target, subject, record, command, properties, send)
        else:
            send(target, [subject], [record], command if numbered else None, properties)
        if numbered and wait:
            await self._settle(command, timeout)
        else:
            await self._driver.ship()
            if not numbered:
                command.settle()
        return command, tracking

    async def _wait_for_outcome(self, delivery: SentBase, timeout: Span | None) -> str:
        return await outcome_of(self._driver, delivery, timeout)

    async def _withdraw(self, kind: str, name: str, correlation: int | str, timeout: Span | None) -> int:
        timeout = patience("timeout", timeout)
        self._driver.check()
        query = self._session.questions.withdraw(kind, name, correlation)
        return int(await self._answered(query, timeout, "no answer to a withdrawal") or 0)

    async def _cancel(self, kind: str, name: str, identity: str, timeout: Span | None) -> Cancelled:
        timeout = patience("timeout", timeout)
        identity = checked(id=identity)["id"]
        self._driver.check()
        query = self._session.questions.cancel(kind, name, identity)
        return Cancelled(*await self._answered(query, timeout, "no answer to a cancellation"))

    async def _settle(self, command: Command, timeout: float | None) -> int:
        driver = self._driver
        # The wait sends the command.
        timeout = driver.timeout if timeout is None else timeout
        await driver.wait(lambda: command.done, timeout, "waiting for the confirmation")
        if command.error is not None:
            raise command.error
        return command.sequence

    async def _request(
        self,
        service: str,
        subject: str,
        body: Any,
        headers: Headers | None,
        *,
        assurance: str,
        timeout: Span | None,
        options: RequestOptions,
    ) -> PendingRequest:
        driver = self._driver
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        subject = check_subject(subject)
        record = record_of(headers, body)
        properties = properties_of(options) if options else {}
        numbered, tracked = _assured(assurance, properties)
        await driver.make_room(numbered=numbered, timeout=timeout)
        pending = self._session.sending.request(
            service, subject, record, numbered=numbered, tracked=tracked, options=properties
        )
        if not numbered:
            pending.command.done = True
        try:
            await driver.ship()
        except BaseException:
            self._session.sending.forget(pending)
            raise
        return pending

    async def _ask_all(
        self,
        stream: str,
        subject: str,
        body: Any,
        headers: Headers | None,
        *,
        wait: Span,
        most: int,
        ttl: Span | None,
        timeout: Span | None,
    ) -> list[Mail]:
        """Publish a message, and return what its readers send to a mailbox that exists for so long."""
        time_to_live("wait", wait)
        wait, most = pause("wait", wait), count("most", most, 1, NUMBER_MAX)
        if headers is not None and REPLY_TO in headers:
            raise InvalidValue(
                f"invalid header {REPLY_TO!r}: expected a message without it, as `ask` sets it"
            )
        name = f"{ANSWERS_PREFIX}{self.user or 'anonymous'}.{secrets.token_hex(16)}"
        with _advised("create,receive", f"{ANSWERS_PREFIX}{'{user}' if self.user else 'anonymous'}.#"):
            source = await self._offer(
                name,
                (),
                kind="mailbox",
                credit=min(most, MAIL_CREDIT_MESSAGES),
                temporary=True,
                timeout=timeout,
            )
        mailbox, answers = MailboxBase(self._driver, source, auto_ack=True), list[Mail]()
        try:
            await self._publish(
                stream,
                subject,
                body,
                {**(headers or {}), REPLY_TO: name},
                assurance="stored",
                timeout=timeout,
                ttl=wait if ttl is None else ttl,
            )
            deadline = monotonic() + wait
            while len(answers) < most and (left := deadline - monotonic()) > 0:
                answers += await mailbox._take(most - len(answers), left)
            return answers
        finally:
            mailbox.cancel()

    async def _answer_to(
        self, message: Message, body: Any, headers: Headers | None, timeout: Span | None
    ) -> bool:
        if not isinstance(message, Message) or not message.reply_to:
            raise InvalidValue(
                f"message {shown(message)} wants no answer: expected one that `ask` has published"
            )
        send, name = self._session.sending.send, message.reply_to
        try:
            with _advised("create,send", f"{ANSWERS_PREFIX}#"):
                # Without a consumer the broker would keep a mailbox for an answer that comes too late.
                await self._send(
                    send,
                    name,
                    message.subject,
                    body,
                    headers,
                    assurance="stored",
                    timeout=timeout,
                    wait=True,
                    options={"immediate": True},
                )
        except NoWorkers:
            return False
        return True

    def _to_stream(self, stream: str, ttl: Span | None) -> Carry:
        self._driver.check()
        return partial(self._session.sending.publish_batch, stream, ttl=time_to_live("ttl", ttl))

    def _to_mailbox(self, address: str) -> Carry:
        self._driver.check()
        return partial(self._session.sending.send_batch, address)

    # Sources

    async def _subscribe(
        self,
        stream: str,
        patterns: Sequence[str],
        *,
        family: str = "topic",
        criteria: Criteria | None = None,
        where: str = "",
        start: When = "new",
        cursor: str = "",
        committed: bool = False,
        existing: bool = False,
        credit: float = CREDIT_MESSAGES,
        credit_bytes: float = CREDIT_BYTES,
        timeout: Span | None = None,
        **unknown: Any,
    ) -> StreamSource:
        refuse_unknown("subscribe", SubscribeOptions, unknown)
        self._driver.check()
        timeout = patience("timeout", timeout)
        source = self._session.inbox.subscribe(
            stream,
            _criteria_of(patterns, family, criteria),
            **checked(
                where=where,
                start=start,
                cursor=cursor,
                committed=committed,
                existing=existing,
                credit=credit,
                credit_bytes=credit_bytes,
            ),
        )
        await self._opened(source, timeout)
        return source

    async def _end(self, stream: str, until: Until, timeout: Span | None) -> HistoryEnd:
        """Return the end of a history that goes up to now at most."""
        sequence, end_ns = end_of(until, time_ns())
        source = await self._subscribe(stream, (), credit=1, existing=True, timeout=timeout)
        self._session.inbox.cancel(source)
        assert source.first is not None
        return HistoryEnd(min(sequence, source.first), end_ns)

    async def _ping(self, timeout: Span | None) -> float:
        timeout = patience("timeout", timeout)
        self._driver.check()
        begun = monotonic()
        ping = self._session.questions.ping()
        await self._driver.wait_for_broker(lambda: ping.done, timeout, "no answer to a ping")
        if ping.error is not None:
            raise ping.error
        return monotonic() - begun

    async def _offer(
        self,
        name: str,
        patterns: Sequence[str],
        *,
        kind: Kind = "service",
        family: str = "topic",
        criteria: Criteria | None = None,
        credit: float = 1,
        credit_bytes: float = UNLIMITED,
        ack_timeout: Span | None = None,
        temporary: bool = False,
        timeout: Span | None = None,
        **unknown: Any,
    ) -> ConsumerSource:
        call, known = ("work", WorkOptions) if kind == "service" else ("consume", ConsumeOptions)
        refuse_unknown(call, known, unknown)
        self._driver.check()
        timeout = patience("timeout", timeout)
        source = self._session.inbox.offer(
            name,
            _criteria_of(patterns, family, criteria),
            kind=kind,
            **checked(credit=credit, credit_bytes=credit_bytes, ack_timeout=ack_timeout, temporary=temporary),
        )
        await self._opened(source, timeout)
        return source

    async def _get(self, name: str, timeout: Span | None) -> tuple[Item, ConsumerSource] | None:
        """Return a message of a mailbox, with the offer that it came by; None when nothing is ready."""
        self._driver.check()
        timeout = patience("timeout", timeout)
        inbox = self._session.inbox
        everything = _criteria_of((), "topic", None)
        source = inbox.offer(name, everything, kind="mailbox", credit=1, credit_bytes=UNLIMITED, once=True)
        try:
            await self._driver.wait_for_broker(
                lambda: source.waiting or source.ended, timeout, f"no answer of mailbox {name!r}"
            )
        except BaseException:
            inbox.cancel(source)
            self._driver.send()
            raise
        if source.waiting:
            # The offer is for one message: no credit follows.
            source.draining = True
            return source.hand_out(), source
        if source.error is not None:
            raise source.error
        return None

    def _mailboxes(self) -> list[MailboxBase]:
        """Return the open mailboxes, its own among them."""
        shared = [mailbox for mailbox in self._shared if not mailbox.closed]
        return shared if self._mailbox is None else [*shared, self._mailbox]

    def _keep_shared(self, mailbox: MailboxBase) -> None:
        """Keep a shared mailbox. Closed ones are forgotten: a program may open ever new ones."""
        self._shared = [*(kept for kept in self._shared if not kept.closed), mailbox]

    async def _opened(self, source: Source, timeout: Span | None) -> None:
        try:
            await self._driver.wait_for_broker(lambda: source.open or source.ended, timeout, "no answer")
        except BaseException:
            self._session.inbox.cancel(source)
            self._driver.send()
            raise
        if source.error is not None:
            raise source.error

    def _open_mailbox(
        self, credit: float = MAIL_CREDIT_MESSAGES, credit_bytes: float = CREDIT_BYTES, **unknown: Any
    ) -> ConsumerSource:
        refuse_unknown("mailbox", MailboxOptions, unknown)
        self._driver.check()
        if not self.address:
            raise InvalidValue("no mailbox without an address: connect with address=NAME")
        source = self._session.inbox.open_mailbox(**checked(credit=credit, credit_bytes=credit_bytes))
        self._driver.send()
        return source

    # Handlers

    def _service_handler(
        self,
        work: Callable[..., Any],
        name: str,
        patterns: Sequence[str],
        *,
        credit: int = 1,
        concurrency: int = 1,
        ack_timeout: Span | None = None,
        on_error: str = "nak",
        **unknown: Any,
    ) -> Callable[[Any], Any]:
        refuse_unknown("service", ServiceOptions, unknown)
        checked(credit=credit, concurrency=concurrency, ack_timeout=ack_timeout)
        credit = credit if credit == UNLIMITED else max(credit, concurrency)
        open_ = partial(work, name, *patterns, credit=credit, ack_timeout=ack_timeout)
        return self._handler(open_, concurrency=concurrency, on_error=on_error)

    def _mail_handler(
        self,
        open_mailbox: Callable[[int], Any],
        *,
        credit: int = MAIL_CREDIT_MESSAGES,
        concurrency: int = 1,
        on_error: str = "nak",
        **unknown: Any,
    ) -> Callable[[Any], Any]:
        refuse_unknown("on_mail", HandlerOptions, unknown)
        checked(credit=credit, concurrency=concurrency)
        return self._handler(partial(open_mailbox, credit), concurrency=concurrency, on_error=on_error)

    def _handler(
        self, open_: Callable[[], Any], *, concurrency: int = 1, on_error: str = "nak"
    ) -> Callable[[Any], Any]:
        """Return a decorator that registers a function for messages of the consumer that `open_` makes."""
        check_handling(concurrency=concurrency, on_error=on_error)

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self._handlers.append(
                registration(
                    open_,
                    handler,
                    concurrency=concurrency,
                    on_error=on_error,
                    awaits=self._awaits,
                    codec=self._driver.codec,
                )
            )
            return handler

        return register

    # The connection

    async def _ask(
        self, topic: str | AdminTopic[Any], arguments: dict[str, Any], timeout: Span | None, *, change: bool
    ) -> Any:
        timeout = patience("timeout", timeout)
        if not isinstance(topic, str):
            if not hasattr(topic, "decode_answer"):
                raise InvalidValue(
                    f"invalid topic {shown(topic)}: expected text such as 'status', or a value of "
                    "malamute.protocol.admin such as StreamQuery(name='weather')"
                )
            value = await self._ask(topic.topic, topic.as_map(), timeout, change=change)
            return topic.decode_answer(value)
        self._driver.check()
        questions = self._session.questions
        what = f"no answer about {shown(topic)}"
        if not change:
            return await self._query(topic, arguments, timeout, what)
        await self._driver.wait_for_broker(lambda: questions.may_change, timeout, "room for one more change")
        return await self._answered(questions.change(topic, arguments), timeout, what)

    def _demand_of(self, stream: str) -> Ask:
        """Return a query for the demand of a stream."""

        async def ask() -> StreamDemand:
            from malamute.protocol.admin import DemandQuery  # as in `_query`

            found: StreamDemand = await self._ask(
                DemandQuery(stream=stream), {}, DEMAND_TIMEOUT_SECONDS, change=False
            )
            return found

        return ask

    async def _query(self, topic: str, arguments: dict[str, Any], timeout: Span | None, what: str) -> Any:
        query = self._session.questions.query
        # The import is late: most programs never make a query.
        from malamute.protocol.admin import QUERIES

        key = QUERIES[topic].page_key if topic in QUERIES else ""
        if not key or arguments.keys() & {"after_name", "limit"}:
            return await self._answered(query(topic, arguments), timeout, what)
        # A list has pages, and the last one is empty.
        rows: list[dict[str, Any]] = []
        while found := await self._answered(query(topic, arguments), timeout, what):
            rows += found
            arguments = {**arguments, "after_name": found[-1][key]}
        return rows

    async def _answered(self, query: PendingQuery | PendingChange, timeout: Span | None, what: str) -> Any:
        try:
            await self._driver.wait_for_broker(lambda: query.done, timeout, what)
        finally:
            self._session.questions.abandon(query)
        if query.error is not None:
            raise query.error
        return query.value

    async def _flush(self, timeout: Span | None) -> None:
        timeout = patience("timeout", timeout)
        self._driver.check()
        questions, outbox = self._session.questions, self._session.outbox
        ping: PendingQuery | None = None

        def is_flushed() -> bool:
            nonlocal ping
            if ping is None and outbox.refusal is None and self._driver.prepare():
                # The ping comes behind all held commands.
                ping = questions.ping()
                self._driver.send()
            return ping is not None and ping.done and not len(outbox)

        await self._driver.wait_for_broker(is_flushed, timeout, "waiting for the broker")
        if ping is not None and ping.error is not None:
            raise ping.error

    async def _close(self, timeout: Span | None) -> None:
        driver, session = self._driver, self._session
        timeout = patience("timeout", timeout)
        driver.check_owner()
        if driver.closed:
            return
        try:
            if session.error is None:
                for mailbox in self._mailboxes():
                    mailbox.acknowledge()
                await self._flush(timeout)
                session.close()
                await driver.wait_for_broker(lambda: session.error is not None, timeout, "closing")
        finally:
            driver.close()

    def drain(self) -> None:
        """Begin a graceful shutdown: consume no more messages. The call does not wait.

        Subscriptions end after the delivered messages. Waiting requests are released unread, and so is mail
        when its block ends. Messages in hand can still be settled, and publishing is still possible; `close`
        completes the shutdown. A signal handler may call this, and the call does nothing once the client has
        ended.
        """
        self._driver.check_owner()
        self._driver.drain()

    async def _leave(self, *, failed: bool) -> None:
        """Close the client at the end of a block."""
        if not failed:
            await self._close(None)
            return
        for mailbox in self._mailboxes():
            mailbox.leave()
        try:
            await self._close(None)
        except MalamuteError as late:
            # The exception of the block must not be hidden by a later one.
            _log.warning("Client %r could not be closed cleanly: %s", self.address, late)

    def __repr__(self) -> str:
        name = f" {self.address!r}" if self.address else ""
        return f"<Client{name} at {self.url} {self._session.state.value}>"


@contextmanager
def _advised(action: str, mailboxes: str) -> Iterator[None]:
    """Add the rule that answers need to a refusal in the block: the broker names one mailbox."""
    try:
        yield
    except AccessRefused as error:
        raise AccessRefused(
            f"{error.text}; answers to `ask` need the rule '{action} mailbox/{mailboxes}'"
        ) from error


def _criteria_of(patterns: Sequence[str], family: str, criteria: Criteria | None) -> Criteria:
    """Return criteria of patterns of one family, and others in addition; one for all messages without any."""
    family = text("family", family)
    try:
        others = [*(criteria or ())]
    except TypeError:
        raise InvalidValue(
            f"invalid criteria {shown(criteria)}: expected pairs of a family and a pattern"
        ) from None
    together = [(family, pattern) for pattern in patterns] + others
    return together or [("all", "")]


def _assured(assurance: str, properties: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a message is confirmed, and whether its outcome is reported.

    Raises `InvalidValue` for an unknown assurance, and for a tracker without an outcome.
    """
    confirmed = assurance == "confirmed"
    if "tracker" in properties and not confirmed:
        raise InvalidValue("tracker without an outcome: expected the assurance 'confirmed'")
    return confirmed or assurance == "stored" or (assurance != "none" and is_stored(assurance)), confirmed
