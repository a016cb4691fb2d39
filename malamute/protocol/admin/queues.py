"""Queues: mailboxes, and services with their workers."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import (
    AgeSeconds,
    Binary,
    Boolean,
    Delays,
    MessageState,
    Name,
    Number,
    Position,
    Positions,
    QueueKind,
    Text,
)


class QueueRow(Row):
    """A mailbox or a service. Rates are of a second, and quantiles None while nothing was measured.

    A `temporary` mailbox is removed with its last consumer.
    `settings_source` is the rule of the configuration, or `default`, and the settings overruled at run time.
    """

    name: str
    persistence: str
    temporary: bool = False
    messages: int
    ready: int
    delayed: int
    in_flight: int
    dead_letters: int
    bytes: int
    paged_out_bytes: int
    consumers: int
    oldest_age: float | None
    expired: int
    timeouts: int
    redelivered: int
    arrival_rate: float
    settled_rate: float
    queue_time_p50_ms: float | None
    queue_time_p99_ms: float | None
    processing_time_p50_ms: float | None
    processing_time_p99_ms: float | None
    attempts: int
    backoff: list[float]
    ack_timeout: float
    settings_source: str


class WorkerRow(Row):
    """A worker of a service: its patterns, its start, its credit, and its requests in flight."""

    client: str
    address: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    in_flight: int


class ServiceDetails(QueueRow):
    """A service with its workers."""

    workers: list[WorkerRow]


class MailboxesQuery(PagedQuery[list[QueueRow]]):
    """All mailboxes."""

    topic = "mailboxes"
    page_key = "name"


class MailboxQuery(AdminQuery[QueueRow]):
    """One mailbox."""

    topic = "mailbox"

    name: Name


class ServicesQuery(PagedQuery[list[ServiceDetails | QueueRow]]):
    """All services, with `details` each with its workers."""

    topic = "services"
    page_key = "name"

    details: Boolean = False


class ServiceQuery(AdminQuery[ServiceDetails]):
    """One service."""

    topic = "service"

    name: Name


class QueueChanged(Row):
    """The number of messages redriven or dropped; `partial` if some could not be."""

    kind: str
    name: str
    messages: int
    partial: bool = False


class QueueRedrive(AdminChange[QueueChanged]):
    """Redrive dead letters as new messages: the named or found ones, or all.

    A `body` replaces the body of the one named message.
    """

    topic = "queue.redrive"

    kind: QueueKind
    name: Name
    sequences: Positions | None = None
    where: Text = ""
    limit: Position | None = None
    body: Binary | None = None


class QueuePurge(AdminChange[QueueChanged]):
    """Drop messages of a queue, or dead letters: the named or found ones, or all."""

    topic = "queue.purge"

    kind: QueueKind
    name: Name
    dead: Boolean = False
    sequences: Positions | None = None
    where: Text = ""
    state: MessageState = ""
    limit: Position | None = None


class QueueSettingsRow(Row):
    """The attempts, the backoff and the time-out in seconds of a queue, and their source as in its row."""

    kind: str
    name: str
    attempts: int
    backoff: list[float]
    ack_timeout: float
    settings_source: str


class QueueSet(AdminChange[QueueSettingsRow]):
    """Set the attempts, the backoff and the time-out of a queue, in place of the configuration.

    A setting that is None stays. With `reset`, the others are those of the configuration again.
    """

    topic = "queue.set"

    kind: QueueKind
    name: Name
    attempts: Number | None = None
    backoff: Delays | None = None
    ack_timeout: AgeSeconds | None = None
    reset: Boolean = False


class QueueDeleted(Row):
    """The messages and dead letters of a deleted mailbox or service, and its consumers and feeds.

    A `partial` deletion has left some, as the disk refused it or messages have arrived since: repeat it.
    """

    kind: str
    name: str
    messages: int
    dead_letters: int
    consumers: int
    feeds: list[str]
    partial: bool = False


class QueueDelete(AdminChange[QueueDeleted]):
    """Delete a mailbox or a service with all its messages.

    The change is refused while feeds or consumers use the queue. With `cascade`, the feeds from it and to it
    and the offers of its consumers end as well.
    """

    topic = "queue.delete"

    kind: QueueKind
    name: Name
    cascade: Boolean = False
