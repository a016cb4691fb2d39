"""Clients: their sessions, subscriptions and offers."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Boolean, Name


class _ClientSession(Row):
    """A session. Messages that it has sent and received are None of a broker that does not count them."""

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
    """A client: how many subscriptions and offers it has, and how many messages it holds.

    It has the rights of its `user`, as whom the user `by` acts if there is one.
    """

    subscriptions: int
    offers: int


class SubscriptionRow(Row):
    """A subscription of a client, and how far it is behind, in messages."""

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
    """A service that a client works for, or a mailbox of the name `service` that it receives from."""

    source: int
    kind: str
    service: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class MailboxReader(Row):
    """How a client takes from its mailbox."""

    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class ClientDetails(_ClientSession):
    """A client with all that it has."""

    subscriptions: list[SubscriptionRow]
    offers: list[OfferRow]
    mailbox: MailboxReader | None


class ClientsQuery(PagedQuery[list[ClientDetails | ClientRow]]):
    """All clients, with `details` each with all that it has."""

    topic = "clients"
    page_key = "id"

    details: Boolean = False


class ClientQuery(AdminQuery[ClientDetails]):
    """One client, by its id or its address."""

    topic = "client"

    id: Name


class ClientDisconnected(Row):
    """The session that was ended, and how many messages it held."""

    id: str
    address: str
    connected: bool
    holding: int


class ClientDisconnect(AdminChange[ClientDisconnected]):
    """End a session; what it holds goes back to the queues, and its client does not come back by itself."""

    topic = "client.disconnect"

    id: Name
