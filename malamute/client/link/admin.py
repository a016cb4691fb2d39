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


class AdminMethod(Generic[P, Answer]):
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


class AdminMethods:
    """The topics, for both edges. `ask` makes the query, or the change."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.ask = ask

    access = AdminMethod(admin.AccessQuery)
    buckets = AdminMethod(admin.BucketsQuery)
    client = AdminMethod(admin.ClientQuery)
    clients = AdminMethod(admin.ClientsQuery)
    cursors = AdminMethod(admin.CursorsQuery)
    demand = AdminMethod(admin.DemandQuery)
    explain = AdminMethod(admin.ExplainQuery)
    feed = AdminMethod(admin.FeedQuery)
    feeds = AdminMethod(admin.FeedsQuery)
    groups = AdminMethod(admin.GroupsQuery)
    link = AdminMethod(admin.LinkQuery)
    link_origin = AdminMethod(admin.LinkOriginQuery)
    links = AdminMethod(admin.LinksQuery)
    mailbox = AdminMethod(admin.MailboxQuery)
    mailboxes = AdminMethod(admin.MailboxesQuery)
    message = AdminMethod(admin.MessageQuery)
    messages = AdminMethod(admin.MessagesQuery)
    metrics = AdminMethod(admin.MetricsQuery)
    options = AdminMethod(admin.OptionsQuery)
    quotas = AdminMethod(admin.QuotasQuery)
    selector = AdminMethod(admin.SelectorQuery)
    selectors = AdminMethod(admin.SelectorsQuery)
    service = AdminMethod(admin.ServiceQuery)
    services = AdminMethod(admin.ServicesQuery)
    status = AdminMethod(admin.StatusQuery)
    storage = AdminMethod(admin.StorageQuery)
    stored = AdminMethod(admin.StoredQuery)
    stream = AdminMethod(admin.StreamQuery)
    streams = AdminMethod(admin.StreamsQuery)
    totals = AdminMethod(admin.TotalsQuery)
    users = AdminMethod(admin.UsersQuery)
    broker_reload = AdminMethod(admin.BrokerReload)
    client_disconnect = AdminMethod(admin.ClientDisconnect)
    cursor_delete = AdminMethod(admin.CursorDelete)
    cursor_set = AdminMethod(admin.CursorSet)
    feed_delete = AdminMethod(admin.FeedDelete)
    feed_disable = AdminMethod(admin.FeedDisable)
    feed_enable = AdminMethod(admin.FeedEnable)
    feed_set = AdminMethod(admin.FeedSet)
    group_add = AdminMethod(admin.GroupAdd)
    group_remove = AdminMethod(admin.GroupRemove)
    group_set = AdminMethod(admin.GroupSet)
    journal_backup = AdminMethod(admin.JournalBackup)
    link_advance = AdminMethod(admin.LinkAdvance)
    link_pause = AdminMethod(admin.LinkPause)
    link_remove = AdminMethod(admin.LinkRemove)
    link_report = AdminMethod(admin.LinkReport)
    link_resume = AdminMethod(admin.LinkResume)
    link_set = AdminMethod(admin.LinkSet)
    link_stop = AdminMethod(admin.LinkStop)
    queue_delete = AdminMethod(admin.QueueDelete)
    queue_purge = AdminMethod(admin.QueuePurge)
    queue_redrive = AdminMethod(admin.QueueRedrive)
    queue_set = AdminMethod(admin.QueueSet)
    stream_create = AdminMethod(admin.StreamCreate)
    stream_delete = AdminMethod(admin.StreamDelete)
    stream_delete_messages = AdminMethod(admin.StreamDeleteMessages)
    stream_purge = AdminMethod(admin.StreamPurge)
    stream_retain = AdminMethod(admin.StreamRetain)
    user_add = AdminMethod(admin.UserAdd)
    user_remove = AdminMethod(admin.UserRemove)
    user_set = AdminMethod(admin.UserSet)


class Admin(AdminMethods):
    """The topics of a blocking client: each method returns the answer."""


class AioAdmin(AdminMethods):
    """The topics of a client on an event loop: each method returns the awaitable answer."""
