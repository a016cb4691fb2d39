"""Queries and changes of operators as methods, with the types of their arguments and answers.

Each topic of the protocol is one: `stream.retain` is `stream_retain`. `malamute.protocol.admin` describes the
arguments and the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from malamute.protocol import admin

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Topic(Generic[P, Answer]):
    """A query or a change as a method, which takes its fields by keywords."""

    def __init__(self, kind: Callable[P, admin.AdminTopic[Answer]]) -> None:
        self.kind = kind

    @overload
    def __get__(self, topics: Admin, owner: Any = None) -> Callable[P, Answer]: ...

    @overload
    def __get__(self, topics: AioAdmin, owner: Any = None) -> Callable[P, Awaitable[Answer]]: ...

    def __get__(self, topics: Any, owner: Any = None) -> Any:
        def ask(*arguments: P.args, **named: P.kwargs) -> Any:
            topic = self.kind(*arguments, **named)
            return topics.ask(topic, change=isinstance(topic, admin.AdminChange))

        return ask


class Topics:
    """The topics, for both edges. `ask` makes the query, or the change."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.ask = ask

    access = Topic(admin.AccessQuery)
    client = Topic(admin.ClientQuery)
    clients = Topic(admin.ClientsQuery)
    cursors = Topic(admin.CursorsQuery)
    demand = Topic(admin.DemandQuery)
    explain = Topic(admin.ExplainQuery)
    feed = Topic(admin.FeedQuery)
    feeds = Topic(admin.FeedsQuery)
    groups = Topic(admin.GroupsQuery)
    mailboxes = Topic(admin.MailboxesQuery)
    message = Topic(admin.MessageQuery)
    messages = Topic(admin.MessagesQuery)
    metrics = Topic(admin.MetricsQuery)
    options = Topic(admin.OptionsQuery)
    quotas = Topic(admin.QuotasQuery)
    selector = Topic(admin.SelectorQuery)
    selectors = Topic(admin.SelectorsQuery)
    service = Topic(admin.ServiceQuery)
    services = Topic(admin.ServicesQuery)
    status = Topic(admin.StatusQuery)
    storage = Topic(admin.StorageQuery)
    stored = Topic(admin.StoredQuery)
    stream = Topic(admin.StreamQuery)
    streams = Topic(admin.StreamsQuery)
    totals = Topic(admin.TotalsQuery)
    users = Topic(admin.UsersQuery)
    broker_reload = Topic(admin.BrokerReload)
    client_disconnect = Topic(admin.ClientDisconnect)
    cursor_delete = Topic(admin.CursorDelete)
    cursor_set = Topic(admin.CursorSet)
    feed_delete = Topic(admin.FeedDelete)
    feed_disable = Topic(admin.FeedDisable)
    feed_enable = Topic(admin.FeedEnable)
    feed_set = Topic(admin.FeedSet)
    group_add = Topic(admin.GroupAdd)
    group_remove = Topic(admin.GroupRemove)
    group_set = Topic(admin.GroupSet)
    journal_backup = Topic(admin.JournalBackup)
    queue_delete = Topic(admin.QueueDelete)
    queue_purge = Topic(admin.QueuePurge)
    queue_redrive = Topic(admin.QueueRedrive)
    stream_create = Topic(admin.StreamCreate)
    stream_delete = Topic(admin.StreamDelete)
    stream_purge = Topic(admin.StreamPurge)
    stream_retain = Topic(admin.StreamRetain)
    user_add = Topic(admin.UserAdd)
    user_remove = Topic(admin.UserRemove)
    user_set = Topic(admin.UserSet)


class Admin(Topics):
    """The topics of a blocking client: each method returns the answer."""


class AioAdmin(Topics):
    """The topics of a client on an event loop: each method returns the awaitable answer."""
