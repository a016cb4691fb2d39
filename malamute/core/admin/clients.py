"""Clients: the connected ones, their subscriptions and offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from malamute.core.admin.pages import few, page_of
from malamute.core.admin.queues import credit_left, holding, patterns_of
from malamute.core.queue.source import QueueSource
from malamute.core.stream.subscription import Subscription
from malamute.errors import NotFound
from malamute.protocol.admin import (
    ClientDetails,
    ClientQuery,
    ClientRow,
    ClientsQuery,
    MailboxReader,
    OfferRow,
    SubscriptionRow,
)
from malamute.protocol.messages import MAILBOX

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.session.session import Session
    from malamute.core.session.sessions import Sessions


def clients(
    effects: Effects, sessions: Sessions, query: ClientsQuery
) -> list[ClientRow] | list[ClientDetails]:
    """Return sessions by their ids: the client of each and its sources; `details` as in `client`."""
    found = page_of(effects, sessions.by_ident, query.after_name, query.limit)
    if not query.details:
        return [_client(session) for session in found]
    return [_client_details(session) for session in few(effects, found, lambda s: len(s.sources))]


def client(sessions: Sessions, query: ClientQuery) -> ClientDetails:
    """One session, by its id or its address, with its subscriptions and offers. Raises `NotFound`."""
    return _client_details(session_of(sessions, query.id))


def session_of(sessions: Sessions, name: str) -> Session:
    """The session of a client, by its id or its address. Raises `NotFound`."""
    found = sessions.by_ident.get(name)
    if found is None and name:
        found = next((s for s in sessions.by_ident.values() if s.address == name), None)
    if found is None:
        raise NotFound(f"there is no client {name!r}")
    return found


def _client(session: Session) -> ClientRow:
    subscriptions = sum(isinstance(source, Subscription) for source in session.sources.values())
    return ClientRow(
        **_session(session),
        subscriptions=subscriptions,
        offers=len(session.sources) - subscriptions - (MAILBOX in session.sources),
    )


def _client_details(session: Session) -> ClientDetails:
    sources = session.sources.items()
    mailbox = session.sources.get(MAILBOX)
    return ClientDetails(
        **_session(session),
        subscriptions=[_subscription(source) for _, source in sources if isinstance(source, Subscription)],
        offers=[_offer(source) for n, source in sources if isinstance(source, QueueSource) and n != MAILBOX],
        mailbox=MailboxReader(**holding(mailbox.consumer)) if isinstance(mailbox, QueueSource) else None,
    )


def _session(session: Session) -> dict[str, Any]:
    return {
        "id": session.ident,
        "address": session.address,
        "user": session.numbers.user,
        "by": session.numbers.by,
        "software": session.software,
        "connected": session.open,
        "since": session.since,
        "last_heard": session.last_heard,
        "holding": session.holding,
        "sent": session.sent,
        "received": session.received,
    }


def _subscription(subscription: Subscription) -> SubscriptionRow:
    stream, selector = subscription.stream, subscription.group.selector
    return SubscriptionRow(
        source=subscription.source,
        stream=stream.name,
        criteria=[[*criterion] for criterion in selector.criteria],
        where=selector.where,
        since=subscription.since,
        credit=credit_left(subscription.credit.messages),
        credit_bytes=credit_left(subscription.credit.bytes),
        state="replay" if subscription.state == "replay" else "live",
        lag=stream.lag(subscription),
        delivered=subscription.delivered,
        skipped=subscription.skipped,
    )


def _offer(offer: QueueSource) -> OfferRow:
    consumer = offer.consumer
    return OfferRow(
        source=consumer.source,
        kind=offer.queue.kind,
        service=offer.queue.name,
        patterns=patterns_of(consumer),
        **holding(consumer),
    )
