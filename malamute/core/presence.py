"""Presence: who is connected, what each reads and offers, and how the queues are doing.

The answers to the topics `clients`, `client`, `services` and `service` of QUERY. A list tells of each client
or service how many readers and workers it has, and with `details` which, in pages. Credit is what is left of
it, -1 without limit. Times of day are in seconds since the epoch, durations have their unit in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from malamute.core.delivery import Consumer
from malamute.core.measures import Measures
from malamute.core.pages import PAGE_ROWS, ROW_WORK, page
from malamute.core.subscription import Subscription
from malamute.errors import NotFound
from malamute.protocol.messages import MAILBOX, UNLIMITED

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.credit import Credit
    from malamute.core.delivery import Queue
    from malamute.core.session import Session

Row = dict[str, Any]
Item = TypeVar("Item")

DETAILS_MAX = 1_000
"""Subscriptions, offers and workers in one answer; one session may have as many, and a service more."""

NOTHING_MEASURED = Measures().row(0.0)


def clients(core: Core, *, details: bool = False, after_name: str = "", limit: int = PAGE_ROWS) -> list[Row]:
    """Sessions by their ids: who each is, and what it has; with `details` as `client` tells it."""
    everybody = core.sessions.by_peer.values()
    sessions = page(core.turn, everybody, lambda session: session.ident, after_name, limit)
    if not details:
        return [_client(session) for session in sessions]
    return [_client_details(session) for session in _few(core, sessions, lambda s: len(s.sources))]


def client(core: Core, id: str) -> Row:  # noqa: A002  # it is so called on the wire
    """One session, by its id or its address, with its subscriptions and offers."""
    return _client_details(session_of(core, id))


def session_of(core: Core, name: str) -> Session:
    """The session of a client, by its id or its address. Raises `NotFound`."""
    for session in core.sessions.by_peer.values():
        if name in (session.ident, session.address):
            return session
    raise NotFound(f"there is no client {name!r}")


def services(core: Core, *, details: bool = False, after_name: str = "", limit: int = PAGE_ROWS) -> list[Row]:
    """Services by name: what is in each queue, and how many work for it; with `details` who they are."""
    queues = page(core.turn, core.services.by_name.values(), attrgetter("name"), after_name, limit)
    if not details:
        return [queue_row(core, queue) for queue in queues]
    return [_service_details(core, queue) for queue in _few(core, queues, lambda q: len(q.consumers))]


def service(core: Core, name: str) -> Row:
    """One service with its workers."""
    queue = core.services.by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no service {name!r}")
    return _service_details(core, queue)


def queue_row(core: Core, queue: Queue) -> Row:
    """A mailbox or a service: what is in it, how fast it comes and goes, and how long that takes."""
    now, oldest = core.turn.now, queue.oldest
    return {
        "name": queue.name,
        "messages": len(queue.entries),
        "waiting": queue.waiting,
        "delayed": len(queue.schedule.delayed),
        "outstanding": sum(len(consumer.outstanding) for consumer in queue.consumers.values()),
        "dead": len(queue.dead.entries),
        "bytes": queue.bytes,
        "cold_bytes": queue.cold,
        "consumers": len(queue.consumers),
        "oldest_age": max(0.0, now + core.turn.ahead - oldest / 1e9) if oldest is not None else None,
        "expired": queue.counts["expired"],
        "timeouts": queue.counts["timeout"],
        "redelivered": queue.counts["redelivered"],
        **(queue.measures.row(now) if queue.measures else NOTHING_MEASURED),
    }


def _client(session: Session) -> Row:
    subscriptions = sum(isinstance(source, Subscription) for source in session.sources.values())
    return {
        "id": session.ident,
        "address": session.address,
        "software": session.software,
        "connected": session.open,
        "since": session.since,
        "last_heard": session.last_heard,
        "subscriptions": subscriptions,
        "offers": len(session.sources) - subscriptions - (MAILBOX in session.sources),
        "holding": session.holding,
    }


def _client_details(session: Session) -> Row:
    sources = session.sources.items()
    mailbox = session.sources.get(MAILBOX)
    return {
        **_client(session),
        "subscriptions": [_subscription(source) for _, source in sources if isinstance(source, Subscription)],
        "offers": [_offer(source) for n, source in sources if isinstance(source, Consumer) and n != MAILBOX],
        "mailbox": _holding(mailbox) if isinstance(mailbox, Consumer) else None,
    }


def _subscription(subscription: Subscription) -> Row:
    stream, selector = subscription.stream, subscription.group.selector
    return {
        "source": subscription.source,
        "stream": stream.name,
        "criteria": [[*criterion] for criterion in selector.criteria],
        "where": selector.where,
        "since": subscription.since,
        **_credit(subscription.credit),
        "state": "replay" if subscription.cursor else "live",
        "lag": stream.next - subscription.cursor if subscription.cursor else 0,
        "delivered": subscription.delivered,
        "skipped": subscription.skipped,
    }


def _offer(offer: Consumer) -> Row:
    return {"source": offer.source, "service": offer.queue.name, **_work(offer)}


def _service_details(core: Core, queue: Queue) -> Row:
    workers = [
        {"client": worker.session.ident, "address": worker.session.address, **_work(worker)}
        for worker in islice(queue.consumers.values(), DETAILS_MAX)
    ]
    return {**queue_row(core, queue), "workers": workers}


def _work(offer: Consumer) -> Row:
    patterns = [str(pattern) for _, pattern in offer.line.group.selector.criteria]
    return {"patterns": patterns, **_holding(offer)}


def _holding(consumer: Consumer) -> Row:
    return {
        "since": consumer.joined,
        **_credit(consumer.credit),
        "outstanding": len(consumer.outstanding),
    }


def _credit(credit: Credit) -> Row:
    return {"credit": _left(credit.messages), "credit_bytes": _left(credit.bytes)}


def _left(amount: float) -> int:
    # A message may take more bytes than there were left.
    return UNLIMITED if amount == inf else max(0, int(amount))


def _few(core: Core, items: Sequence[Item], details: Callable[[Item], int]) -> list[Item]:
    """The first items with so many details as one answer may have, and one in any case."""
    few: list[Item] = []
    total = 0
    for item in items:
        total += min(details(item), DETAILS_MAX)
        if few and total > DETAILS_MAX:
            break
        few.append(item)
    core.turn.work -= ROW_WORK * min(total, DETAILS_MAX)
    return few
