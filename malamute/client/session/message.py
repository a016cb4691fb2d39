"""Messages for a program: `Message`, `Mail`, and the common part of requests on both edges.

A message is made from columns, in about a tenth of a microsecond; its headers and body stay packed until they
are read. Mail and requests are settled through their *owner*, the consumer that handed them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, overload

from malamute.client.options import Span, milliseconds
from malamute.client.session.codecs import CONTENT_TYPE, JSON, BodyCodec, decoded
from malamute.errors import InvalidValue, NotOutstanding
from malamute.protocol.batch import Frame, readable_record
from malamute.protocol.bounce import BOUNCED, why_not_bounced
from malamute.protocol.limits import TEXT_BYTES_MAX
from malamute.protocol.names import is_name
from malamute.protocol.texts import fitting, shown

Value = TypeVar("Value", str, int, float, bool)
Model = TypeVar("Model")

REPLY_TO = "reply-to"
"""The header with the mailbox for answers to a message of a stream."""

ANSWERS_PREFIX = "ask."
"""The beginning of the names of such mailboxes. Others are ignored: whoever publishes could name any."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One message of a stream or queue.

    `sequence` is its number in the stream or queue, `time_ns` the time of its acceptance by the broker, in
    nanoseconds since 1970 (UTC), `sender` the address of its sender or empty. `store` is the store of the
    sequence, for a stream.
    """

    __slots__ = ("_opened", "_record", "_ttl", "sender", "sequence", "store", "subject", "time_ns")

    clock: ClassVar[Callable[[], int]]
    """The time in nanoseconds since 1970: a function of the edge."""
    _ttl: int
    """Milliseconds from its time until it expires, if it does."""

    def __init__(
        self, sequence: int, time_ns: int, sender: str, subject: str, record: Frame, store: str = ""
    ) -> None:
        self.sequence = sequence
        self.time_ns = time_ns
        self.sender = sender
        self.subject = subject
        self._record = record
        self.store = store
        self._opened: tuple[dict[str, Any], list[bytes]] | None = None

    def expiring(self, ttl: int) -> Message:
        """Return the message with a time to live in milliseconds."""
        self._ttl = ttl
        return self

    def _open(self) -> tuple[dict[str, Any], list[bytes]]:
        if self._opened is None:
            self._opened = readable_record(self._record)
        return self._opened

    @property
    def headers(self) -> dict[str, Any]:
        """Return the headers; empty without any. Headers other than text, number, boolean or None are absent.

        Raises:
            Malformed: the record is damaged.
        """
        return self._open()[0]

    def header(self, name: str, kind: type[Value], default: Value | None = None) -> Value:
        """Return one header, which has to be of a type: `str`, `int`, `float` (an int will do) or `bool`.

        `default` is the result when the header is missing.

        Raises:
            InvalidValue: the header is of another type, or is missing and has no default.
            Malformed: the record is damaged.
        """
        value = self._open()[0].get(name, default)
        if type(value) is int and kind is float:
            value = float(value)
        if type(value) is not kind:
            raise InvalidValue(f"header {name!r} is {value!r}: expected {kind.__name__}")
        return value

    @property
    def frames(self) -> list[bytes]:
        """Return the frames of the body, as they were published."""
        return self._open()[1]

    @property
    def body(self) -> bytes:
        """Return the body as one piece; several frames are joined."""
        frames = self._open()[1]
        return frames[0] if len(frames) == 1 else b"".join(frames)

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            InvalidValue: The body is not UTF-8.
        """
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise InvalidValue(f"body of message {self.sequence} is no text: {error}") from error

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[Model]) -> Model: ...

    def json(self, kind: Any = Any) -> Any:
        """Return the body, which is JSON, as a value; with `kind`, as a dataclass, Struct or pydantic model.

        Raises:
            InvalidValue: The body is not JSON, or none of this kind.
        """
        try:
            return JSON.decode(self.body, kind)
        except ValueError as error:
            raise InvalidValue(f"body of message {self.sequence}: {error}") from error

    def value(self, kind: Any = Any, *codecs: BodyCodec) -> Any:
        """Return the body as a value of a type, by its header `content-type`: JSON or MessagePack.

        Other codecs may be given; without that header the first of them counts, or JSON.

        Raises:
            InvalidValue: The body is of another content type, or no value of this type.
        """
        try:
            return decoded(self.body, kind, codecs or (JSON,), self.headers.get(CONTENT_TYPE))
        except InvalidValue as error:
            raise InvalidValue(f"body of message {self.sequence}: {error.text}") from error

    @property
    def reply_to(self) -> str:
        """Return the mailbox for answers to a message of `Client.ask`; empty for any other message.

        `Client.answer` sends there.
        """
        name = self._open()[0].get(REPLY_TO)
        return name if isinstance(name, str) and name.startswith(ANSWERS_PREFIX) and is_name(name) else ""

    @property
    def time(self) -> datetime:
        """Return the time of acceptance, in UTC, to the microsecond; `time_ns` has the nanoseconds."""
        return _EPOCH + timedelta(microseconds=self.time_ns // 1000)

    @property
    def lag(self) -> float:
        """Return the seconds since the broker accepted the message, by the clock of this machine; 0 at least.

        A consumer that keeps up has a small one; the clocks of the two machines have to agree as closely.
        """
        return max(0, Message.clock() - self.time_ns) / 1e9

    @property
    def position(self) -> str:
        """Return the start of a subscription behind this message of a stream, for a program to keep.

        The position is valid in the store of this message alone. At another broker, or one that has lost its
        store, a subscription from there begins at the first message, behind a `Gap` with the reason
        `another-store`.
        """
        return f"after:{self.sequence}@{self.store}" if self.store else f"seq:{self.sequence + 1}"

    @property
    def ttl(self) -> float | None:
        """Return the seconds from its time until a message of a stream expires; None if it does not."""
        ttl = getattr(self, "_ttl", 0)
        return ttl / 1000 if ttl else None

    @property
    def expires(self) -> datetime | None:
        """Return the time at which a message of a stream expires, in UTC; None if it does not."""
        ttl = getattr(self, "_ttl", 0)
        return self.time + timedelta(milliseconds=ttl) if ttl else None

    def __repr__(self) -> str:
        sender = f" from {self.sender!r}" if self.sender else ""
        return f"<{type(self).__name__} {self.sequence} {self.subject!r}{sender} {len(self._record)} bytes>"


class Rejection(NamedTuple):
    """The last fields of REJECT: the form of a rejection."""

    reason: str
    bounce: bool = False


class Settler(Protocol):
    """The consumer that handed out mail or a request, and settles it on the wire."""

    def finish(self, message: Mail, rejection: Rejection | None = None) -> None:
        """Acknowledge a message, or reject it."""

    def finish_with(self, message: Mail, put: Any) -> Any:
        """Acknowledge a message in one commit with a value for a bucket, and return its revision."""

    def give_back(self, message: Mail, delay_ms: int) -> None:
        """Have a message redelivered after `delay_ms`; with -1 after the broker's backoff."""

    def release(self, message: Mail) -> None:
        """Have a message redelivered at once, as if it had never been delivered."""

    def report(self, message: Mail) -> None:
        """Report progress on a message."""


class Mail(Message):
    """A message of a mailbox, or a reply. `attempts` counts its deliveries, this one included.

    `properties` were delivered beside the record.
    """

    __slots__ = ("_owner", "attempts", "properties")

    def __init__(
        self,
        sequence: int,
        time_ns: int,
        sender: str,
        subject: str,
        record: Frame,
        attempts: int,
        properties: Mapping[str, Any] | None,
        owner: Settler | None,
    ) -> None:
        # Without a call of `Message.__init__`, which would take as long as the rest.
        self.sequence = sequence
        self.time_ns = time_ns
        self.sender = sender
        self.subject = subject
        self._record = record
        self.store = ""
        self._opened = None
        self.attempts = attempts
        self.properties: Mapping[str, Any] = properties or {}
        self._owner = owner

    @property
    def redelivered(self) -> bool:
        """Return whether the message was delivered before, without an acknowledgement."""
        return self.attempts > 1

    @property
    def correlation(self) -> int | str | None:
        """Return the correlation from its sender or the request; None without one."""
        return self.properties.get("correlation")

    @property
    def final(self) -> bool:
        """Return whether a reply is the last one to its request."""
        return bool(self.properties.get("final", True))

    @property
    def outcome(self) -> str:
        """Return the outcome in the report of a tracked message. `Delivery.outcome` has the words."""
        return str(self.properties.get("outcome", ""))

    @property
    def bounced(self) -> str:
        """Return the mailbox from which a message has bounced; empty for any other message."""
        return str(self.properties.get(BOUNCED, ""))

    @property
    def settled(self) -> bool:
        """Return whether the message was acknowledged, returned, rejected, or answered with a final reply."""
        return self._owner is None

    def completed(self) -> None:
        """Mark the message as settled. To be called by its owner."""
        self._owner = None

    # Settlement of a message. No call waits but `ack` with a put, and only the first settles the message. A
    # call refused to its caller, as to another thread, settles nothing.

    @overload
    def ack(self) -> None: ...

    @overload
    def ack(self, *, put: tuple[Any, ...]) -> Any: ...

    def ack(self, *, put: tuple[Any, ...] | None = None) -> Any:
        """Acknowledge the message: the broker removes it. A duplicate acknowledgement does nothing.

        With `put`, which is `(bucket, key, value)` or `(bucket, key, value, ttl)`, the value is put in the
        same commit: both are done, or none is. That call waits for the commit, and returns the revision; on
        asyncio it is awaited.

        Raises:
            NotOutstanding: with `put`, the message is settled, or was redelivered meanwhile.
            MalamuteError: with `put`, as `Bucket.put`; the message is then as it was.
        """
        if put is not None:
            if self._owner is None:
                raise NotOutstanding(f"message {self.sequence} is settled: expected one in hand")
            return self._owner.finish_with(self, put)
        if owner := self._owner:
            owner.finish(self)
            self._owner = None
        return None

    def nak(self, delay: Span | None = None) -> None:
        """Return the message for redelivery to the next consumer, after `delay` (seconds, or a timedelta).

        Without a delay the broker's backoff grows with each attempt; after the broker's last attempt the
        message becomes a dead letter.

        Raises:
            InvalidValue: the delay is no duration.
        """
        wait = -1 if delay is None else milliseconds("delay", delay)
        if owner := self._owner:
            owner.give_back(self, wait)
            self._owner = None

    def reject(self, reason: str = "") -> None:
        """Reject the message for good: it becomes a dead letter. A sender that tracks it gets the reason.

        Raises:
            InvalidValue: the reason is no text, or too long.
        """
        self._reject(Rejection(reason))

    def bounce(self, reason: str = "") -> None:
        """Bounce the message to its sender: to the sender's mailbox, with the property `bounced`.

        If that mailbox is full, the message becomes a dead letter. A sender that tracks it gets the reason.

        Raises:
            InvalidValue: the reason is no text, or too long; or the message cannot bounce, since its sender
                has no address, it has bounced already, or no client has sent it to this mailbox.
        """
        if words := why_not_bounced(self.sender, self.properties):
            raise InvalidValue(f"message {self.sequence} cannot bounce: {words}")
        self._reject(Rejection(reason, bounce=True))

    def _reject(self, rejection: Rejection) -> None:
        reason = rejection.reason
        if not isinstance(reason, str) or fitting(reason, TEXT_BYTES_MAX) != reason:
            raise InvalidValue(
                f"invalid reason {shown(reason)}: expected text of at most {TEXT_BYTES_MAX} bytes that has a "
                "form in UTF-8"
            )
        if owner := self._owner:
            owner.finish(self, rejection)
            self._owner = None

    def release(self) -> None:
        """Release the message unread: it is redelivered at once, and this does not count as an attempt."""
        if owner := self._owner:
            owner.release(self)
            self._owner = None

    def in_progress(self) -> None:
        """Report progress: the ack timeout begins anew."""
        if self._owner is not None:
            self._owner.report(self)


class ServiceRequest(Mail):
    """A request to a service; `sender` is the address for replies. The common part of both edges."""

    __slots__ = ()

    def bounce(self, reason: str = "") -> None:
        """Refuse to bounce: a request is answered, or rejected.

        Raises:
            InvalidValue: always.
        """
        raise InvalidValue(f"request {self.sequence} cannot bounce: expected a reply, or `reject`")

    def answerer(self) -> Settler:
        """Return the offer to work that the request came by.

        Raises:
            NotOutstanding: the request is completed.
        """
        if self._owner is None:
            raise NotOutstanding(f"request {self.sequence} has its final reply already: expected one")
        return self._owner
