"""What the broker reports about itself: the answers to QUERY, by topic.

`streams`, `queues`, `clients` and `users` make the rows of what they are named for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from malamute.core.admin.clients import client, clients
from malamute.core.admin.feeds import feed, feeds
from malamute.core.admin.groups import groups
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, first
from malamute.core.admin.queues import mailboxes, message, message_bytes, messages, service, services
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
    from malamute.core.session.session import Session

_QUERY = BY_TYPE[Query].opcode


def answer(core: Engines, session: Session, query: Query) -> None:
    """Answer a query.

    Raises:
        InvalidValue: the topic or an argument is not what it may be, or `InvalidName`.
        InvalidSelector: an expression is not understood.
        NotFound: there is nothing of that name.
        TryLater: too many answers for this session are under way.

    """
    core.answers.check(session)
    if query.topic not in QUERIES:
        raise InvalidValue(f"unknown topic {query.topic!r}: expected one of {', '.join(QUERIES)}")
    asked = QUERIES[query.topic].parse(query.arguments)

    def answered(value: Any) -> None:
        core.answers.give(session, Answer(query.ref, encode(value)))

    def found(value: Any) -> None:
        core.answers.asked(session, size_bytes)
        answered(value)

    def failed(error: MalamuteError) -> None:
        core.answers.asked(session, size_bytes)
        core.effects.refuse(session.peer, error_message(error, _QUERY, query.ref))

    if query.topic in ASKING:
        size_bytes = ASKED_BYTES
        if isinstance(asked, MessageQuery):
            size_bytes = max(size_bytes, message_bytes(core, asked))
        core.answers.ask(session, size_bytes)
        try:
            with core.effects.failing(failed):
                ASKING[query.topic](core, asked, found)
        except Exception:
            core.answers.asked(session, size_bytes)
            raise
    else:
        answered(HANDLERS[query.topic](core, asked))


def status(core: Engines, query: StatusQuery) -> BrokerStatus:
    """The broker as a whole."""
    sessions = core.sessions.by_peer.values()
    return BrokerStatus(
        **core.settings.facts,
        software=core.settings.software,
        uptime=core.effects.now - core.started,
        clients=sum(session.open for session in sessions),
        sessions=len(core.sessions.by_peer),
        streams=len(core.streams.by_name),
        mailboxes=len(core.mailboxes.by_name),
        services=len(core.services.by_name),
        feeds=len(core.feeds.by_name),
        messages_published=sum(stream.messages for stream in core.streams.by_name.values()),
        queue_bytes=core.queue_limits.bytes,
        paged_out_bytes=core.queue_limits.memory.paged_out_bytes,
        backlog_bytes=core.effects.stage.backlog_bytes,
        not_recovered=core.recovery.skipped,
        dead_excess=core.recovery.dead_excess,
        store_error=core.health.error,
        damages=core.health.damages,
        faults=core.effects.faults.count,
        configured_at=core.configured_at + core.effects.ahead,
        waiting_for_restart=[*core.waiting_options],
        config_error=core.config_error,
        quotas_exceeded=core.quotas.refused,
        old_key_connections=core.old_key_connections,
    )


def options(core: Engines, query: OptionsQuery) -> list[BrokerOption]:
    """The options that are in force. What waits may be a part of an option, as in `streams.rule.journal`."""
    waiting = {".".join(name.split(".")[:2]) for name in core.waiting_options}
    rows = first(core.effects, core.settings.options)
    return [replace(row, waiting_for_restart=row.name in waiting) for row in rows]


def access(core: Engines, query: AccessQuery) -> AccessExplained:
    """Whether a user may do something, by the rules that are in force. Raises `InvalidRule`."""
    return AccessExplained(**core.access.explain(query.user, query.action, query.target).as_map())


def storage(core: Engines, query: StorageQuery, answered: Callable[[StoreUsage], None]) -> None:
    """How full the store is."""
    core.effects.ask(StoreStats(), answered)


def metrics(core: Engines, query: MetricsQuery, answered: Callable[[BrokerMetrics], None]) -> None:
    """The status of the broker, its totals, and how full the store is."""

    def stored(usage: StoreUsage) -> None:
        totals(
            core,
            TotalsQuery(),
            lambda found: answered(
                BrokerMetrics(status=status(core, StatusQuery()), totals=found, storage=usage)
            ),
        )

    # The store comes first: only here it is known what to do if it cannot answer.
    storage(core, StorageQuery(), stored)


def stored(core: Engines, query: StoredQuery, answered: Callable[[list[StoredStream]], None]) -> None:
    """What the store has of each stream, or of one."""
    limit = min(query.limit or PAGE_ROWS, PAGE_ROWS)

    def found(rows: list[StoredStream]) -> None:
        core.effects.work -= ROW_WORK * len(rows)
        answered([_with_source(core, row) for row in rows])

    core.effects.ask(StreamStats(query.stream, query.after_name, limit), found)


def _with_source(core: Engines, row: StoredStream) -> StoredStream:
    """What the store has of a stream, and what says how much of it is kept, unless it was just deleted."""
    stream = core.streams.by_name.get(row.name)
    return row if stream is None else replace(row, retain_source=stream.retention_source)


HANDLERS: dict[str, Callable[[Engines, Any], Any]] = {
    "status": status,
    "options": options,
    "streams": streams,
    "stream": stream,
    "explain": explain,
    "demand": demand,
    "cursors": cursors,
    "mailboxes": mailboxes,
    "services": services,
    "service": service,
    "clients": clients,
    "client": client,
    "feeds": feeds,
    "feed": feed,
    "selectors": selectors,
    "selector": selector,
    "access": access,
    "users": users,
    "groups": groups,
    "quotas": quotas,
}
"""What answers each topic at once."""

ASKING: dict[str, Callable[[Engines, Any, Callable[[Any], None]], None]] = {
    "messages": messages,
    "message": message,
    "storage": storage,
    "stored": stored,
    "totals": totals,
    "metrics": metrics,
}
"""What answers each topic that asks the store or looks at very much, and is answered later."""
