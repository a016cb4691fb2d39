"""Mailboxes and services: what is in each queue, how fast it comes and goes, and who takes from it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from malamute.core.admin import pages
from malamute.core.admin.pages import PAGE_ROWS, few, page
from malamute.core.metrics import QueueMetrics
from malamute.core.queue.browse import ROWS_SHOWN, browse
from malamute.core.queue.consumer import Consumer
from malamute.core.queue.state import DELAYED, READY
from malamute.errors import NotFound
from malamute.protocol.messages import UNLIMITED

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.credit import Credit
    from malamute.core.queue.queue import Queue

Row = dict[str, Any]

NOTHING_MEASURED = QueueMetrics().row(0.0)


def mailboxes(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> list[Row]:
    """Mailboxes by name: what is in each."""
    found = page(core.turn, core.mailboxes.by_name.values(), attrgetter("name"), after_name, limit)
    return [queue_row(core, mailbox) for mailbox in found]


def services(core: Core, *, details: bool = False, after_name: str = "", limit: int = PAGE_ROWS) -> list[Row]:
    """Services by name: what is in each queue, and how many work for it; with `details` who they are."""
    queues = page(core.turn, core.services.by_name.values(), attrgetter("name"), after_name, limit)
    if not details:
        return [queue_row(core, queue) for queue in queues]
    return [_service_details(core, queue) for queue in few(core.turn, queues, lambda q: len(q.consumers))]


def service(core: Core, name: str) -> Row:
    """One service with its workers."""
    queue = core.services.by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no service {name!r}")
    return _service_details(core, queue)


def messages(
    core: Core,
    answered: Callable[[list[Row]], None],
    kind: str,
    name: str,
    dead: bool = False,
    after: int = 0,
    limit: int = ROWS_SHOWN,
    where: str = "",
    state: str = "",
) -> None:
    """Messages of a mailbox or a service, or its dead letters."""
    queue = queue_of(core, kind, name)
    browse(queue, answered, dead=dead, after=after, limit=limit, where=where, state=state)


def queue_of(core: Core, kind: str, name: str) -> Queue:
    """The mailbox or the service of a name. Raises `NotFound`."""
    queue = core.queues_of(kind).by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return queue


def queue_row(core: Core, queue: Queue) -> Row:
    """A mailbox or a service: what is in it, how fast it comes and goes, and how long that takes."""
    now, oldest = core.turn.now, queue.oldest
    return {
        "name": queue.name,
        "messages": len(queue.entries),
        "waiting": queue.states.counts[READY],
        "delayed": queue.states.counts[DELAYED],
        "outstanding": sum(len(consumer.outstanding) for consumer in queue.consumers.values()),
        "dead": len(queue.dead_letters.entries),
        "bytes": queue.bytes,
        "cold_bytes": queue.paged_out_bytes,
        "consumers": len(queue.consumers),
        "oldest_age": max(0.0, now + core.turn.ahead - oldest / 1e9) if oldest is not None else None,
        "expired": queue.counts["expired"],
        "timeouts": queue.counts["timeout"],
        "redelivered": queue.counts["redelivered"],
        **(queue.metrics.row(now) if queue.metrics else NOTHING_MEASURED),
    }


def _service_details(core: Core, queue: Queue) -> Row:
    workers = [
        {"client": worker.session.ident, "address": worker.session.address, **work_row(worker)}
        for worker in islice(queue.consumers.values(), pages.DETAILS_MAX)
    ]
    return {**queue_row(core, queue), "workers": workers}


def work_row(offer: Consumer) -> Row:
    """What an offer takes, and what it holds."""
    patterns = [str(pattern) for _, pattern in offer.group.matched.selector.criteria]
    return {"patterns": patterns, **holding_row(offer)}


def holding_row(consumer: Consumer) -> Row:
    """What a consumer holds, since when it is there, and its credit."""
    return {
        "since": consumer.joined,
        **credit_row(consumer.credit),
        "outstanding": len(consumer.outstanding),
    }


def credit_row(credit: Credit) -> Row:
    """What is left of a credit, in messages and bytes; -1 without limit."""
    return {"credit": _left(credit.messages), "credit_bytes": _left(credit.bytes)}


def _left(amount: float) -> int:
    # A message may take more bytes than there were left.
    return UNLIMITED if amount == inf else max(0, int(amount))
