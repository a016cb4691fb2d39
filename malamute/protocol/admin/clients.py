"""Clients: their sessions, subscriptions and offers."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Boolean, Name


class _ClientSession(Row):
    """A session. `sent` and `received` messages are None of a broker that does not count them."""

    id: str
    address: str
    user: str
    by: str = ""
    software: str
    connected: bool
    since: float
    last_heard: float
    holding: int
    sent: int | None = None
    received: int | None = None


class ClientRow(_ClientSession):
    """A client: its numbers of subscriptions, of offers and of messages in flight.

    The client has the rights of its `user`; the user `by` acts as that one if there is such a user.
    """

    subscriptions: int
    offers: int


class SubscriptionRow(Row):
    """A subscription of a client, and its lag in messages."""

    source: int
    stream: str
    criteria: list[list[Any]]
    where: str
    since: float
    credit: int
    credit_bytes: int
    state: str
    lag: int
    delivered: int
    skipped: int


class OfferRow(Row):
    """An offer of a client: a service, or a mailbox of the name `service`."""

    source: int
    kind: str
    service: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    in_flight: int


class MailboxReader(Row):
    """The credit of a client for its mailbox."""

    since: float
    credit: int
    credit_bytes: int
    in_flight: int


class ClientDetails(_ClientSession):
    """A client with its subscriptions, offers and mailbox."""

    subscriptions: list[SubscriptionRow]
    offers: list[OfferRow]
    mailbox: MailboxReader | None


class ClientsQuery(PagedQuery[list[ClientDetails | ClientRow]]):
    """All clients, with `details` each with its subscriptions, offers and mailbox."""

    topic = "clients"
    page_key = "id"

    details: Boolean = False


class ClientQuery(AdminQuery[ClientDetails]):
    """One client, by its id or its address."""

    topic = "client"

    id: Name


class ClientDisconnected(Row):
    """The ended session, and its number of messages in flight."""

    id: str
    address: str
    connected: bool
    holding: int


class ClientDisconnect(AdminChange[ClientDisconnected]):
    """End a session; its messages in flight are requeued, and its client does not reconnect by itself."""

    topic = "client.disconnect"

    id: Name
