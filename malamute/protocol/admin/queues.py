"""Queues: mailboxes, and services with their workers."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Binary, Boolean, MessageState, Name, Position, Positions, QueueKind, Text


class QueueRow(Row):
    """A mailbox or a service. Rates are of a second, and quantiles None while nothing was measured."""

    name: str
    persistence: str
    messages: int
    waiting: int
    delayed: int
    outstanding: int
    dead: int
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


class WorkerRow(Row):
    """A worker of a service: what it takes, since when, what it may still be given, and what it holds."""

    client: str
    address: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class ServiceDetails(QueueRow):
    """A service with its workers."""

    workers: list[WorkerRow]


class MailboxesQuery(PagedQuery[list[QueueRow]]):
    """All mailboxes."""

    topic = "mailboxes"
    page_key = "name"


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
    """How many messages were sent again or dropped; `partial` if not all of them could be."""

    kind: str
    name: str
    messages: int
    partial: bool = False


class QueueRedrive(AdminChange[QueueChanged]):
    """Send dead letters again, as new messages: those that are named or found, or all.

    With a `body`, the one that is named has it in the place of its own.
    """

    topic = "queue.redrive"

    kind: QueueKind
    name: Name
    sequences: Positions | None = None
    where: Text = ""
    limit: Position | None = None
    body: Binary | None = None


class QueuePurge(AdminChange[QueueChanged]):
    """Drop messages of a queue, or dead letters: those that are named or found, or all."""

    topic = "queue.purge"

    kind: QueueKind
    name: Name
    dead: Boolean = False
    sequences: Positions | None = None
    where: Text = ""
    state: MessageState = ""
    limit: Position | None = None


class QueueDeleted(Row):
    """What a mailbox or a service had, messages and dead letters, and what hung on it: consumers and feeds.

    It is `partial` if some of it is there yet, as the disk has refused that or more has come: ask again.
    """

    kind: str
    name: str
    messages: int
    dead: int
    consumers: int
    feeds: list[str]
    partial: bool = False


class QueueDelete(AdminChange[QueueDeleted]):
    """Remove a mailbox or a service with all that is in it, as if that was purged.

    It is refused while anything hangs on it, unless to `cascade`: then the feeds from it and to it, and the
    offers of its consumers end as well.
    """

    topic = "queue.delete"

    kind: QueueKind
    name: Name
    cascade: Boolean = False
