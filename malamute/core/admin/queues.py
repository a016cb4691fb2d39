"""Mailboxes and services: the messages of each queue, their rates, and its consumers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from malamute.core.admin import pages
from malamute.core.admin.pages import few, page_of
from malamute.core.iteration.metrics import QueueMetrics
from malamute.core.queue.browse import browse, fetch, size_of_one
from malamute.core.queue.consumer import Consumer
from malamute.core.queue.state import DELAYED, READY
from malamute.errors import NotFound
from malamute.protocol.admin import (
    MailboxesQuery,
    MailboxQuery,
    MessageQuery,
    MessageRow,
    MessagesQuery,
    QueueRow,
    ServiceDetails,
    ServiceQuery,
    ServicesQuery,
    WorkerRow,
)
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.mailbox import Mailboxes
    from malamute.core.queue.queue import Queue
    from malamute.core.queue.service import Services
    from malamute.core.queue.table import QueueTables
    from malamute.store.policies import QueueSettings

NOTHING_MEASURED = QueueMetrics().row(0.0)


def mailboxes(effects: Effects, mailboxes: Mailboxes, query: MailboxesQuery) -> list[QueueRow]:
    """Return mailboxes by name, with their messages."""
    found = page_of(effects, mailboxes.by_name, query.after_name, query.limit)
    return [_queue(effects, mailbox) for mailbox in found]


def mailbox(effects: Effects, queues: QueueTables, query: MailboxQuery) -> QueueRow:
    """One mailbox. Raises `NotFound`."""
    return _queue(effects, queue_of(queues, "mailbox", query.name))


def services(effects: Effects, services: Services, query: ServicesQuery) -> list[QueueRow]:
    """Return services by name, with their messages and the number of workers; with `details` the workers."""
    queues = page_of(effects, services.by_name, query.after_name, query.limit)
    if not query.details:
        return [_queue(effects, queue) for queue in queues]
    return [_service(effects, queue) for queue in few(effects, queues, lambda q: len(q.consumers))]


def service(effects: Effects, queues: QueueTables, query: ServiceQuery) -> ServiceDetails:
    """One service with its workers. Raises `NotFound`."""
    return _service(effects, queue_of(queues, "service", query.name))


def messages(queues: QueueTables, query: MessagesQuery, answered: Callable[[list[MessageRow]], None]) -> None:
    """Messages of a mailbox or a service, or its dead letters. Raises `NotFound` or `InvalidSelector`."""
    browse(
        queue_of(queues, query.kind, query.name),
        answered,
        dead=query.dead,
        after=query.after,
        limit=query.limit,
        where=query.where,
        state=query.state,
    )


def message(queues: QueueTables, query: MessageQuery, answered: Callable[[MessageRow], None]) -> None:
    """One message of a mailbox or a service, or one of its dead letters. Raises `NotFound`."""
    fetch(queue_of(queues, query.kind, query.name), answered, query.sequence, dead=query.dead)


def message_bytes(queues: QueueTables, query: MessageQuery) -> int:
    """The bytes of that message; 0 if it is not there."""
    queue = queues[query.kind].by_name.get(query.name)
    return 0 if queue is None else size_of_one(queue, query.sequence, dead=query.dead)


def queue_of(queues: QueueTables, kind: str, name: str) -> Queue:
    """The mailbox or the service of a name. Raises `NotFound`."""
    queue = queues[kind].by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return queue


def holding(consumer: Consumer) -> dict[str, Any]:
    """Return the fields of a row about a consumer: its beginning, its credit, and its messages in flight."""
    return {
        "since": consumer.joined,
        "credit": credit_left(consumer.credit.messages),
        "credit_bytes": credit_left(consumer.credit.bytes),
        "in_flight": len(consumer.outstanding),
    }


def patterns_of(worker: Consumer) -> list[str]:
    """The subjects that a worker takes."""
    return [str(pattern) for _, pattern in worker.group.matched.selector.criteria]


def credit_left(amount: float) -> int:
    """Return the rest of a credit, in messages or bytes; -1 without limit."""
    # A message may take more bytes than there were left.
    return UNLIMITED if amount == inf else max(0, int(amount))


SETTINGS = {"attempts_max": "attempts", "backoff_seconds": "backoff", "ack_timeout_seconds": "ack_timeout"}
"""The settings of a queue that may be made at run time, and their names in a row."""


def settings_of(queue: Queue, settings: QueueSettings | None) -> dict[str, Any]:
    """Return the fields of a row about the settings of a queue, of which some may be made at run time."""
    policy, given = queue.limits.policy(queue.kind, queue.name), settings.given if settings else {}
    row: dict[str, Any] = {name: given.get(field, getattr(policy, field)) for field, name in SETTINGS.items()}
    row["backoff"] = [*row["backoff"]]
    overruled = ", ".join(name for field, name in SETTINGS.items() if field in given)
    row["settings_source"] = policy.source + f"; at run time: {overruled}" * bool(overruled)
    return row


def _queue(effects: Effects, queue: Queue) -> QueueRow:
    now, oldest = effects.now, queue.entries.oldest_ns
    return QueueRow(
        name=queue.name,
        persistence=queue.usage.policy.persistence,
        temporary=queue.users is not None,
        messages=len(queue.entries),
        ready=queue.states.counts[READY],
        delayed=queue.states.counts[DELAYED],
        in_flight=sum(len(consumer.outstanding) for consumer in queue.consumers.values()),
        dead_letters=queue.dead_letters.count,
        bytes=queue.usage.bytes,
        paged_out_bytes=queue.usage.paged_out_bytes,
        consumers=len(queue.consumers),
        oldest_age=max(0.0, now + effects.ahead - to_seconds(oldest)) if oldest is not None else None,
        expired=queue.usage.counts["expired"],
        timeouts=queue.usage.counts["timeout"],
        redelivered=queue.usage.counts["redelivered"],
        **settings_of(queue, queue.limits.settings.get((queue.kind, queue.name))),
        **(queue.usage.metrics.row(now) if queue.usage.metrics else NOTHING_MEASURED),
    )


def _service(effects: Effects, queue: Queue) -> ServiceDetails:
    workers = [
        WorkerRow(
            client=worker.session.ident,
            address=worker.session.address,
            patterns=patterns_of(worker),
            **holding(worker),
        )
        for worker in islice(queue.consumers.values(), pages.DETAILS_MAX)
    ]
    return ServiceDetails(**asdict(_queue(effects, queue)), workers=workers)
