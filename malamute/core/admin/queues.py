"""Mailboxes and services: what is in each queue, how fast it comes and goes, and who takes from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from malamute.core.admin import pages
from malamute.core.admin.pages import few, page
from malamute.core.metrics import QueueMetrics
from malamute.core.queue.browse import browse
from malamute.core.queue.consumer import Consumer
from malamute.core.queue.state import DELAYED, DELIVERED, READY
from malamute.errors import NotFound
from malamute.protocol.admin import (
    BrokerTotals,
    DurationTotals,
    MailboxesQuery,
    MessageRow,
    MessagesQuery,
    QueueRow,
    QueueTotals,
    ServiceDetails,
    ServiceQuery,
    ServicesQuery,
    TotalsQuery,
    WorkerRow,
)
from malamute.protocol.messages import UNLIMITED
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.queue.queue import Queue

TOTALS_EACH = 500
"""Queues that are looked at in one iteration."""

TOTALS_WORK = 2
"""What looking at one of them costs."""

NOTHING_MEASURED = QueueMetrics().row(0.0)


def mailboxes(core: Engines, query: MailboxesQuery) -> list[QueueRow]:
    """Mailboxes by name: what is in each."""
    everyone = core.mailboxes.by_name.values()
    found = page(core.effects, everyone, attrgetter("name"), query.after_name, query.limit)
    return [_queue(core, mailbox) for mailbox in found]


def services(core: Engines, query: ServicesQuery) -> list[QueueRow]:
    """Services by name: what is in each queue, and how many work for it; with `details` who they are."""
    everyone = core.services.by_name.values()
    queues = page(core.effects, everyone, attrgetter("name"), query.after_name, query.limit)
    if not query.details:
        return [_queue(core, queue) for queue in queues]
    return [_service(core, queue) for queue in few(core.effects, queues, lambda q: len(q.consumers))]


def service(core: Engines, query: ServiceQuery) -> ServiceDetails:
    """One service with its workers. Raises `NotFound`."""
    return _service(core, queue_of(core, "service", query.name))


def messages(core: Engines, query: MessagesQuery, answered: Callable[[list[MessageRow]], None]) -> None:
    """Messages of a mailbox or a service, or its dead letters. Raises `NotFound` or `InvalidSelector`."""
    browse(
        queue_of(core, query.kind, query.name),
        answered,
        dead=query.dead,
        after=query.after,
        limit=query.limit,
        where=query.where,
        state=query.state,
    )


class _Sums:
    """All queues of a kind together, as far as they were looked at."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        # Those that come or go meanwhile may be in it or not.
        self._left = iter([*queues])
        self._messages = self._waiting = self._delayed = self._outstanding = self._dead = 0
        self._oldest_ns: int | None = None

    def go_on(self, most: int) -> int:
        """Look at so many more. Returns how many were left of that."""
        for queue in islice(self._left, most):
            most -= 1
            states = queue.states.counts
            self._dead += len(queue.dead_letters.entries)
            self._waiting += states[READY]
            self._delayed += states[DELAYED]
            self._outstanding += states[DELIVERED]
            self._messages += len(queue.entries)
            oldest = queue.entries.oldest_ns
            if oldest is not None and (self._oldest_ns is None or oldest < self._oldest_ns):
                self._oldest_ns = oldest
        return most

    def row(self, kind: str, now: float) -> QueueTotals:
        """What they have, at a time of the wall clock in seconds."""
        oldest = self._oldest_ns
        return QueueTotals(
            kind=kind,
            messages=self._messages,
            waiting=self._waiting,
            delayed=self._delayed,
            outstanding=self._outstanding,
            dead=self._dead,
            oldest_age=None if oldest is None else max(0.0, now - to_seconds(oldest)),
        )


def totals(core: Engines, query: TotalsQuery, answered: Callable[[BrokerTotals], None]) -> None:
    """What the broker has done, and what all queues have. Many queues are looked at in several iterations."""
    effects, limits = core.effects, core.queue_limits
    sums = {kind: _Sums(core.queues_of(kind).by_name.values()) for kind in ("mailbox", "service")}

    def go_on() -> None:
        left = TOTALS_EACH
        for one in sums.values():
            left = one.go_on(left)
        effects.work -= TOTALS_WORK * (TOTALS_EACH - left)
        if not left:
            effects.later(go_on)
            return
        answered(
            BrokerTotals(
                iterations=DurationTotals(**effects.iterations.row(effects.now)),
                commits=DurationTotals(**effects.commits.row(effects.now)),
                committed_bytes=effects.committed_bytes,
                settlements={**limits.settlements},
                queues=[one.row(kind, effects.now + effects.ahead) for kind, one in sums.items()],
            )
        )

    go_on()


def queue_of(core: Engines, kind: str, name: str) -> Queue:
    """The mailbox or the service of a name. Raises `NotFound`."""
    queue = core.queues_of(kind).by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return queue


def holding(consumer: Consumer) -> dict[str, Any]:
    """The fields of a row about a consumer: since when it is there, its credit, and what it holds."""
    return {
        "since": consumer.joined,
        "credit": credit_left(consumer.credit.messages),
        "credit_bytes": credit_left(consumer.credit.bytes),
        "outstanding": len(consumer.outstanding),
    }


def patterns_of(worker: Consumer) -> list[str]:
    """The subjects that a worker takes."""
    return [str(pattern) for _, pattern in worker.group.matched.selector.criteria]


def credit_left(amount: float) -> int:
    """What is left of a credit, in messages or bytes; -1 without limit."""
    # A message may take more bytes than there were left.
    return UNLIMITED if amount == inf else max(0, int(amount))


def _queue(core: Engines, queue: Queue) -> QueueRow:
    now, oldest = core.effects.now, queue.entries.oldest_ns
    return QueueRow(
        name=queue.name,
        messages=len(queue.entries),
        waiting=queue.states.counts[READY],
        delayed=queue.states.counts[DELAYED],
        outstanding=sum(len(consumer.outstanding) for consumer in queue.consumers.values()),
        dead=len(queue.dead_letters.entries),
        bytes=queue.usage.bytes,
        paged_out_bytes=queue.usage.paged_out_bytes,
        consumers=len(queue.consumers),
        oldest_age=max(0.0, now + core.effects.ahead - to_seconds(oldest)) if oldest is not None else None,
        expired=queue.usage.counts["expired"],
        timeouts=queue.usage.counts["timeout"],
        redelivered=queue.usage.counts["redelivered"],
        **(queue.usage.metrics.row(now) if queue.usage.metrics else NOTHING_MEASURED),
    )


def _service(core: Engines, queue: Queue) -> ServiceDetails:
    workers = [
        WorkerRow(
            client=worker.session.ident,
            address=worker.session.address,
            patterns=patterns_of(worker),
            **holding(worker),
        )
        for worker in islice(queue.consumers.values(), pages.DETAILS_MAX)
    ]
    return ServiceDetails(**vars(_queue(core, queue)), workers=workers)
