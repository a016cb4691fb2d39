"""Clients: who is connected, and what each reads and offers.

A list of clients tells how many subscriptions and offers each has, and with `details` which, in pages. Credit
is what is left of it, -1 without limit. Times of day are in seconds since the epoch, durations have their
unit in their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from malamute.core.admin.pages import PAGE_ROWS, few, page
from malamute.core.admin.queues import credit_row, holding_row, work_row
from malamute.core.queue.consumer import Consumer
from malamute.core.subscription import Subscription
from malamute.errors import NotFound
from malamute.protocol.messages import MAILBOX

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.session import Session

Row = dict[str, Any]


def clients(core: Core, *, details: bool = False, after_name: str = "", limit: int = PAGE_ROWS) -> list[Row]:
    """Sessions by their ids: who each is, and what it has; with `details` as `client` tells it."""
    everybody = core.sessions.by_peer.values()
    sessions = page(core.turn, everybody, lambda session: session.ident, after_name, limit)
    if not details:
        return [_client(session) for session in sessions]
    return [_client_details(session) for session in few(core.turn, sessions, lambda s: len(s.sources))]


def client(core: Core, id: str) -> Row:  # noqa: A002  # it is so called on the wire
    """One session, by its id or its address, with its subscriptions and offers."""
    return _client_details(session_of(core, id))


def session_of(core: Core, name: str) -> Session:
    """The session of a client, by its id or its address. Raises `NotFound`."""
    for session in core.sessions.by_peer.values():
        if name in (session.ident, session.address):
            return session
    raise NotFound(f"there is no client {name!r}")


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
        "mailbox": holding_row(mailbox) if isinstance(mailbox, Consumer) else None,
    }


def _subscription(subscription: Subscription) -> Row:
    stream, selector = subscription.stream, subscription.group.selector
    return {
        "source": subscription.source,
        "stream": stream.name,
        "criteria": [[*criterion] for criterion in selector.criteria],
        "where": selector.where,
        "since": subscription.since,
        **credit_row(subscription.credit),
        "state": "replay" if subscription.cursor else "live",
        "lag": stream.next - subscription.cursor if subscription.cursor else 0,
        "delivered": subscription.delivered,
        "skipped": subscription.skipped,
    }


def _offer(offer: Consumer) -> Row:
    return {"source": offer.source, "service": offer.queue.name, **work_row(offer)}
