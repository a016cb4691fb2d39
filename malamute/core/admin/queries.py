"""The reports of the broker about itself: the answers to QUERY, by topic.

`streams`, `queues`, `clients` and `users` make the rows of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from malamute.core.admin.buckets import buckets
from malamute.core.admin.clients import client, clients
from malamute.core.admin.feeds import feed, feeds
from malamute.core.admin.groups import groups
from malamute.core.admin.limits import shared
from malamute.core.admin.links import link, link_origin, links
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, first
from malamute.core.admin.queues import mailbox, mailboxes, message, message_bytes, messages, service, services
from malamute.core.admin.quotas import quotas
from malamute.core.admin.selectors import selector, selectors
from malamute.core.admin.streams import cursors, demand, explain, stream, streams
from malamute.core.admin.totals import totals
from malamute.core.admin.users import users
from malamute.core.session.answers import ASKED_BYTES
from malamute.errors import InvalidValue, MalamuteError
from malamute.protocol.admin import (
    QUERIES,
    AccessExplained,
    AccessQuery,
    BrokerMetrics,
    BrokerOption,
    BrokerStatus,
    BrokerTotals,
    MessageQuery,
    MetricsQuery,
    OptionsQuery,
    StatusQuery,
    StorageQuery,
    StoredQuery,
    StoredStream,
    StoreUsage,
    TotalsQuery,
    encode,
)
from malamute.protocol.messages import BY_TYPE, Answer, Query, error_message
from malamute.store.operations import StoreStats, StreamStats

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.identity.access import AccessControl
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.settings import ConfigurationInForce
    from malamute.core.session.session import Session
    from malamute.core.stream.table import Streams

_QUERY = BY_TYPE[Query].opcode

Asking = Callable[[Any, Callable[[Any], None]], None]
"""The function that answers a query later."""


class Queries:
    """The queries of all clients: each topic, and its function."""

    def __init__(self, core: Engines) -> None:
        self._answers = core.answers
        self._effects = core.effects
        self._queues = core.queues
        self.at_once = at_once(core)
        self.asking = asking(core)
        self.telling: Mapping[str, Callable[[Session, Any], Any]] = {"link.report": core.links.told}
        """The functions of topics that depend on the session."""

    def answer(self, session: Session, query: Query) -> None:
        """Answer a query.

        Raises:
            InvalidValue: the topic or an argument is invalid, or `InvalidName`. InvalidSelector: an
            expression is not understood. NotFound: there is nothing of that name. TryLater: too many answers
            for this session are under way.
        """
        answers = self._answers
        answers.check(session)
        if query.topic not in QUERIES:
            raise InvalidValue(f"unknown topic {query.topic!r}: expected one of {', '.join(QUERIES)}")
        asked = QUERIES[query.topic].parse(query.arguments)

        def answered(value: Any) -> None:
            answers.give(session, Answer(query.ref, encode(value)))

        def found(value: Any) -> None:
            answers.asked(session, size_bytes)
            answered(value)

        def failed(error: MalamuteError) -> None:
            answers.asked(session, size_bytes)
            self._effects.refuse(session.peer, error_message(error, _QUERY, query.ref))

        if query.topic in self.asking:
            size_bytes = ASKED_BYTES
            if isinstance(asked, MessageQuery):
                size_bytes = max(size_bytes, message_bytes(self._queues, asked))
            answers.ask(session, size_bytes)
            try:
                with self._effects.failing(failed):
                    self.asking[query.topic](asked, found)
            except Exception:
                answers.asked(session, size_bytes)
                raise
        elif query.topic in self.telling:
            answered(self.telling[query.topic](session, asked))
        else:
            answered(self.at_once[query.topic](asked))


def status(core: Engines, query: StatusQuery) -> BrokerStatus:
    """The broker as a whole."""
    sessions = core.sessions.by_peer.values()
    return BrokerStatus(
        **core.configuration.settings.facts,
        software=core.configuration.settings.software,
        uptime=core.effects.now - core.started,
        clients=sum(session.open for session in sessions),
        sessions=len(core.sessions.by_peer),
        streams=len(core.streams.by_name),
        mailboxes=len(core.mailboxes.by_name),
        services=len(core.services.by_name),
        feeds=len(core.feeds.by_name),
        links=len(core.links.rules),
        messages_published=sum(stream.messages for stream in core.streams.by_name.values()),
        queue_bytes=core.queue_limits.bytes,
        paged_out_bytes=core.queue_limits.memory.paged_out_bytes,
        backlog_bytes=core.effects.stage.backlog_bytes,
        not_recovered=core.recovery.skipped,
        dead_excess=core.recovery.dead_excess,
        store_error=core.health.error,
        damages=core.health.damages,
        faults=core.effects.faults.count,
        configured_at=core.configuration.loaded_at + core.effects.ahead,
        waiting_for_restart=[*core.configuration.waiting],
        config_error=core.configuration.error,
        quotas_exceeded=core.quotas.refused,
        old_key_connections=core.old_key_connections,
    )


def options(effects: Effects, configuration: ConfigurationInForce, query: OptionsQuery) -> list[BrokerOption]:
    """Return the options in force. Parts of one may wait for a restart: `streams.rule.journal`."""
    waiting = {".".join(name.split(".")[:2]) for name in configuration.waiting}
    rows = first(effects, configuration.settings.options)
    return [replace(row, waiting_for_restart=row.name in waiting) for row in rows]


def access(access: AccessControl, query: AccessQuery) -> AccessExplained:
    """Whether a user may do something, by the rules that are in force. Raises `InvalidRule`."""
    return AccessExplained(**access.explain(query.user, query.action, query.target).as_map())


def storage(effects: Effects, query: StorageQuery, answered: Callable[[StoreUsage], None]) -> None:
    """How full the store is."""
    effects.ask(StoreStats(), answered)


def metrics(
    effects: Effects,
    status: Callable[[StatusQuery], BrokerStatus],
    totals: Asking,
    query: MetricsQuery,
    answered: Callable[[BrokerMetrics], None],
) -> None:
    """Report the status of the broker, its totals, and how full the store is."""

    def stored(usage: StoreUsage) -> None:
        def summed(found: BrokerTotals) -> None:
            answered(BrokerMetrics(status=status(StatusQuery()), totals=found, storage=usage))

        totals(TotalsQuery(), summed)

    # The store comes first: only here a failure of its answer can be handled.
    storage(effects, StorageQuery(), stored)


def stored(
    effects: Effects, streams: Streams, query: StoredQuery, answered: Callable[[list[StoredStream]], None]
) -> None:
    """Return the stored state of each stream, or of one."""
    limit = min(query.limit or PAGE_ROWS, PAGE_ROWS)

    def found(rows: list[StoredStream]) -> None:
        effects.work -= ROW_WORK * len(rows)
        answered([_with_source(streams, row) for row in rows])

    effects.ask(StreamStats(query.stream, query.after_name, limit), found)


def _with_source(streams: Streams, row: StoredStream) -> StoredStream:
    """Return the stored state of a stream with the source of its retention, unless it was just deleted."""
    stream = streams.by_name.get(row.name)
    return row if stream is None else replace(row, retain_source=stream.retention_source)


def at_once(core: Engines) -> dict[str, Callable[[Any], Any]]:
    """Return the functions of topics that are answered at once."""
    effects = core.effects
    of_selectors = effects, core.selector_numbers, core.streams, core.queues, core.feeds
    return {
        "status": partial(status, core),
        "options": partial(options, effects, core.configuration),
        "streams": partial(streams, effects, core.streams),
        "stream": partial(stream, effects, core.streams),
        "explain": partial(explain, effects, core.streams),
        "demand": partial(demand, effects, core.streams),
        "cursors": partial(cursors, effects, core.streams),
        "mailboxes": partial(mailboxes, effects, core.mailboxes),
        "services": partial(services, effects, core.services),
        "mailbox": partial(mailbox, effects, core.queues),
        "service": partial(service, effects, core.queues),
        "clients": partial(clients, effects, core.sessions),
        "client": partial(client, core.sessions),
        "feeds": partial(feeds, effects, core.feeds),
        "feed": partial(feed, core.feeds),
        "links": partial(links, effects, core.links),
        "link": partial(link, core.links),
        "link.origin": partial(link_origin, core.streams, core.links),
        "selectors": partial(selectors, *of_selectors),
        "selector": partial(selector, *of_selectors),
        "access": partial(access, core.access),
        "users": partial(users, effects, core.accounts, core.quotas),
        "groups": partial(groups, effects, core.access, core.groups),
        "buckets": partial(buckets, effects, core.buckets),
        "quotas": partial(quotas, effects, core.quotas),
    }


def asking(core: Engines) -> dict[str, Asking]:
    """Return the functions of topics that are answered later, after a read or much work."""
    effects = core.effects
    add_up = partial(
        totals,
        effects,
        core.configuration,
        core.sessions,
        core.streams,
        core.queues,
        core.queue_limits,
        partial(shared, core),
        core.buckets.operations,
    )
    return {
        "messages": partial(messages, core.queues),
        "message": partial(message, core.queues),
        "storage": partial(storage, effects),
        "stored": partial(stored, effects, core.streams),
        "totals": add_up,
        "metrics": partial(metrics, effects, partial(status, core), add_up),
    }
