"""What the broker tells about itself: the answers to QUERY, by topic.

`streams`, `queues` and `clients` make the rows of what they are named for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from malamute.core.admin.clients import client, clients
from malamute.core.admin.queues import mailboxes, messages, service, services
from malamute.core.admin.streams import cursors, explain, feeds, stream, streams
from malamute.errors import InvalidValue, MalamuteError
from malamute.protocol.arguments import HEADERS, ROWS, STATE, SUBJECT, Arguments
from malamute.protocol.messages import (
    ADDRESS,
    BOOLEAN,
    BY_TYPE,
    KIND,
    NAME,
    NUMBER,
    TEXT,
    Answer,
    Query,
    error_message,
)
from malamute.store.operations import StoreStats

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.session import Session

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
        "queue_bytes": core.queue_limits.bytes,
        "cold_bytes": core.queue_limits.memory.paged_out_bytes,
        "backlog_bytes": core.turn.backlog_bytes,
        "not_recovered": core.recovery.skipped,
        "dead_excess": core.recovery.dead_excess,
        "store_error": core.health.error,
        "damages": core.health.damages,
        "faults": core.turn.faults.count,
    }


def storage(core: Core, answered: Callable[[Any], None]) -> None:
    """How full the store is."""
    core.turn.ask(StoreStats(), answered)


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
