"""What the broker tells about itself: the answers to QUERY, as plain maps and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from malamute.core.delivery.browse import ROWS_SHOWN, browse
from malamute.core.pages import PAGE_ROWS, ROW_WORK, page
from malamute.core.presence import DETAILS_MAX, client, clients, queue_row, service, services
from malamute.core.ready import Survey
from malamute.core.subscription import Reader
from malamute.errors import InvalidValue, MalamuteError, NotFound
from malamute.matching import reason_of
from malamute.protocol.arguments import HEADERS, ROWS, STATE, SUBJECT, Arguments
from malamute.protocol.codec import error_message
from malamute.protocol.messages import ADDRESS, BOOLEAN, BY_TYPE, KIND, NAME, NUMBER, TEXT, Answer, Query

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.delivery import Queue
    from malamute.core.session import Session
    from malamute.core.stream import Stream

Rows = list[dict[str, Any]]

_QUERY = BY_TYPE[Query].opcode


def answer(core: Core, session: Session, query: Query) -> None:
    """Answer a query.

    Raises `InvalidValue` or `InvalidName` for a topic or an argument, `InvalidSelector` or `NotFound`, and
    `TryLater` if too many answers for this session are under way.
    """
    core.answers.check(session)
    if query.topic not in TOPICS:
        raise InvalidValue(f"ask for one of {', '.join(TOPICS)}, not {query.topic!r}")
    topic, arguments = TOPICS[query.topic]
    arguments.check(query.topic, query.arguments)

    def answered(value: Any) -> None:
        core.answers.give(session, Answer(query.ref, value))

    def found(value: Any) -> None:
        core.answers.asked(session)
        answered(value)

    def failed(error: MalamuteError) -> None:
        core.answers.asked(session)
        core.turn.send(session.peer, error_message(error, _QUERY, query.ref))

    if query.topic in ASKING:
        core.answers.ask(session)
        try:
            with core.turn.failing(failed):
                topic(core, found, **query.arguments)
        except Exception:
            core.answers.asked(session)
            raise
    else:
        answered(topic(core, **query.arguments))


def status(core: Core) -> dict[str, Any]:
    """The broker in one map: times in seconds, sizes in bytes."""
    sessions = core.sessions.by_peer.values()
    return {
        **core.settings.facts,
        "software": core.settings.software,
        "uptime": core.turn.now - core.started,
        "clients": sum(session.open for session in sessions),
        "sessions": len(core.sessions.by_peer),
        "streams": len(core.streams.by_name),
        "mailboxes": len(core.mailboxes.by_name),
        "services": len(core.services.by_name),
        "feeds": len(core.feeds.by_name),
        "messages_published": sum(stream.messages for stream in core.streams.by_name.values()),
        "queue_bytes": core.budget.bytes,
        "cold_bytes": core.budget.memory.cold,
        "backlog_bytes": core.turn.backlog_bytes,
        "not_recovered": core.recovery.skipped,
        "dead_excess": core.recovery.dead_excess,
        "store_error": core.health.error,
        "damages": core.health.damages,
        "faults": core.turn.faults.count,
    }


def streams(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """Streams by name: the range of sequences of each, and how many read it."""
    found = page(core.turn, core.streams.by_name.values(), attrgetter("name"), after_name, limit)
    return [_stream(stream) for stream in found]


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "first": stream.first_kept,
        "last": stream.last,
        "stored": stream.last_stored,
        "published": stream.messages,
        "published_rate": stream.rate.each_second(stream.turn.now),
        "journaled": stream.journaled,
        "selectors": len(stream.audience),
    }


def mailboxes(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """Mailboxes by name: what is in each."""
    found = page(core.turn, core.mailboxes.by_name.values(), attrgetter("name"), after_name, limit)
    return [queue_row(core, mailbox) for mailbox in found]


def queue_of(core: Core, kind: str, name: str) -> Queue:
    """The mailbox or the service of a name. Raises `NotFound`."""
    queue = core.queues_of(kind).by_name.get(name)
    if queue is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return queue


def storage(core: Core, answered: Callable[[Any], None]) -> None:
    """How full the store is."""
    core.turn.ask(Survey(), answered)


def messages(
    core: Core,
    answered: Callable[[Rows], None],
    kind: str,
    name: str,
    dead: bool = False,
    after: int = 0,
    limit: int = ROWS_SHOWN,
    where: str = "",
    state: str = "",
) -> None:
    """Messages of a mailbox or a service, or its dead letters."""
    queue = queue_of(core, kind, name)
    browse(queue, answered, dead=dead, after=after, limit=limit, where=where, state=state)


def stream(core: Core, name: str) -> dict[str, Any]:
    """One stream with its readers and cursors. Lag is in messages, and in seconds between message times."""
    found = core.streams.by_name.get(name)
    if found is None:
        raise NotFound(f"there is no stream {name!r}")
    everybody = chain.from_iterable(group.members.values() for group in found.audience.groups())
    # Of very many, those furthest behind: they are what is looked for.
    readers = nlargest(
        DETAILS_MAX, everybody, key=lambda reader: reader.cursor and found.next - reader.cursor
    )
    core.turn.work -= ROW_WORK * len(readers)
    rows = [_reader(found, reader) for reader in readers]
    return {
        **_stream(found),
        "switches_to_live": found.switches["live"],
        "switches_to_replay": found.switches["replay"],
        "failures": [{"family": family, "count": count} for family, count in found.audience.failures.items()],
        "readers": rows,
        "cursors": _cursors(found),
    }


def _reader(stream: Stream, subscription: Reader) -> dict[str, Any]:
    behind = stream.next - subscription.cursor if subscription.cursor else 0
    return {
        **subscription.owner_row,
        "state": "replay" if subscription.cursor else "live",
        "delivered": subscription.delivered,
        "skipped": subscription.skipped,
        "lag": behind,
        "lag_seconds": max(stream.time - subscription.time, 0) / 1e9 if behind and subscription.time else 0.0,
    }


def explain(
    core: Core,
    stream: str,
    subject: str = "",
    headers: Mapping[str, Any] = {},
    sender: str = "",
    after_name: str = "",
    limit: int = PAGE_ROWS,
) -> Rows:
    """For selectors of a stream whether each takes a message, and if not, what failed first."""
    found = core.streams.by_name.get(stream)
    if found is None:
        raise NotFound(f"there is no stream {stream!r}")
    some = page(
        core.turn, found.audience.named_groups(), itemgetter(0), after_name, min(limit, EXPLAINED_MAX)
    )
    return [
        {
            "id": ident,
            "criteria": [[*criterion] for criterion in group.selector.criteria],
            "where": group.selector.where,
            "subscriptions": len(group.members),
            "matched": not reason,
            "reason": reason,
        }
        for ident, group in some
        for reason in [reason_of(group.selector, subject, headers, sender)]
    ]


def cursors(core: Core, stream: str = "", after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """The cursors of streams by name, or of one; a page has all of a stream."""
    only = core.streams.by_name.get(stream)
    wanted = [only] if only else [] if stream else core.streams.by_name.values()
    having = (s for s in wanted if s.cursors or s.lost_cursors)
    some = page(core.turn, having, attrgetter("name"), after_name, limit)
    rows: Rows = []
    for found in some:
        if len(rows) >= limit:
            break
        rows += [{"stream": found.name, **row} for row in _cursors(found)]
    core.turn.work -= len(rows)
    return rows


def feeds(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """Feeds by service: where each comes from, and where it stands; a page has all of a service."""
    by_service: dict[str, Rows] = {}
    for feed in core.feeds.by_name.values():
        by_service.setdefault(feed.queue.name, []).append(feed.row())
    rows: Rows = []
    for name in page(core.turn, by_service, str, after_name, limit):
        if len(rows) >= limit:
            break
        rows += by_service[name]
    core.turn.work -= ROW_WORK * len(core.feeds.by_name)
    return rows


def _cursors(stream: Stream) -> Rows:
    return [
        {"name": name, "sequence": sequence, "lag": stream.next - 1 - sequence}
        for name, sequence in stream.cursors.items()
    ] + [{"name": name, "sequence": None, "lag": None} for name in sorted(stream.lost_cursors)]


EXPLAINED_MAX = 100
"""Selectors in one answer: each of them is evaluated by itself."""

PAGED = {"after_name": ADDRESS, "limit": ROWS}
"""The arguments of every list that comes in pages."""

Topic = Callable[..., Any]

TOPICS: dict[str, tuple[Topic, Arguments]] = {
    "status": (status, Arguments()),
    "streams": (streams, Arguments(optional=PAGED)),
    "stream": (stream, Arguments({"name": NAME})),
    "explain": (
        explain,
        Arguments({"stream": NAME}, {"subject": SUBJECT, "headers": HEADERS, "sender": ADDRESS, **PAGED}),
    ),
    "cursors": (cursors, Arguments(optional={"stream": ADDRESS, **PAGED})),
    "messages": (
        messages,
        Arguments(
            {"kind": KIND, "name": NAME},
            {"dead": BOOLEAN, "after": NUMBER, "limit": ROWS, "where": TEXT, "state": STATE},
        ),
    ),
    "mailboxes": (mailboxes, Arguments(optional=PAGED)),
    "services": (services, Arguments(optional={"details": BOOLEAN, **PAGED})),
    "service": (service, Arguments({"name": NAME})),
    "clients": (clients, Arguments(optional={"details": BOOLEAN, **PAGED})),
    "client": (client, Arguments({"id": NAME})),
    "feeds": (feeds, Arguments(optional=PAGED)),
    "storage": (storage, Arguments()),
}
"""Each topic with the arguments that it takes."""

ASKING = ("messages", "storage")
"""Topics that ask the store, and have their answer later."""
