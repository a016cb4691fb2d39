"""What the broker tells about itself: the answers to QUERY, as plain maps and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from malamute.core.delivery.browse import ROWS, browse
from malamute.core.presence import client, clients, queue_row, service, services
from malamute.core.ready import Survey
from malamute.core.subscription import Reader
from malamute.errors import InvalidValue, NotFound
from malamute.protocol.messages import Answer

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.delivery import Queue
    from malamute.core.stream import Stream
    from malamute.protocol.messages import Query

Rows = list[dict[str, Any]]


def answer(core: Core, peer: bytes, query: Query) -> None:
    """Answer a query. Raises `InvalidValue` for a topic or argument, `InvalidSelector` or `NotFound`."""
    if query.topic not in TOPICS:
        raise InvalidValue(f"ask for one of {', '.join(TOPICS)}, not {query.topic!r}")
    topic, wanted = TOPICS[query.topic]
    check_arguments(query.topic, query.arguments, wanted)

    def answered(value: Any) -> None:
        core.turn.send(peer, Answer(query.ref, value))

    if query.topic in ASKING:
        topic(core, answered, **query.arguments)
    else:
        answered(topic(core, **query.arguments))


def check_arguments(topic: str, arguments: Mapping[str, Any], wanted: Mapping[str, type]) -> None:
    """Raise `InvalidValue` unless the arguments are of these names and types; optional ones may be None."""
    for name, value in arguments.items():
        if name not in wanted:
            raise InvalidValue(f"{topic} takes no argument {name!r}")
        if type(value) is not wanted[name]:
            raise InvalidValue(f"{topic}: {name} is not of the type {wanted[name].__name__}")


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
    }


def streams(core: Core) -> Rows:
    """Each stream: its range of sequences, and how many read it."""
    return [_stream(stream) for stream in core.streams.by_name.values()]


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "first": stream.first_kept,
        "last": stream.last,
        "stored": stream.last_stored,
        "published": stream.messages,
        "published_rate": stream.rate.each_second(stream.turn.now),
        "journaled": stream.journaled,
        "selectors": len(stream.index),
    }


def mailboxes(core: Core) -> Rows:
    """Each mailbox: what is in it."""
    return [queue_row(core, mailbox) for mailbox in core.mailboxes.by_name.values()]


def queue_of(core: Core, kind: str, name: str) -> Queue:
    """The mailbox or the service of a name. Raises `InvalidValue` or `NotFound`."""
    if kind not in ("mailbox", "service"):
        raise InvalidValue(f"`kind` is 'mailbox' or 'service', not {kind!r}")
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
    kind: str = "",
    name: str = "",
    dead: bool = False,
    after: int = 0,
    limit: int = ROWS,
    where: str = "",
    state: str = "",
) -> None:
    """Messages of a mailbox or a service, or its dead letters."""
    queue = queue_of(core, kind, name)
    browse(queue, answered, dead=dead, after=after, limit=limit, where=where, state=state)


def stream(core: Core, name: str = "") -> dict[str, Any]:
    """One stream with its readers and cursors. Lag is in messages, and in seconds between message times."""
    found = core.streams.by_name.get(name)
    if found is None:
        raise NotFound(f"there is no stream {name!r}")
    readers = [
        _reader(found, subscription)
        for group in found.index.groups()
        for subscription in group.members.values()
    ]
    return {**_stream(found), "readers": readers, "cursors": _cursors(found)}


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
    core: Core, stream: str = "", subject: str = "", headers: Mapping[str, Any] = {}, sender: str = ""
) -> Rows:
    """For each selector of a stream whether it takes a message, and if not, what failed first."""
    found = core.streams.by_name.get(stream)
    if found is None:
        raise NotFound(f"there is no stream {stream!r}")
    return [
        {
            "criteria": [[*criterion] for criterion in group.selector.criteria],
            "where": group.selector.where,
            "subscriptions": len(group.members),
            "matched": matched,
            "reason": reason,
        }
        for group, matched, reason in found.index.explain(subject, headers, sender)
    ]


def cursors(core: Core, stream: str = "") -> Rows:
    """The cursors of all streams, or of one."""
    rows = []
    for name, found in core.streams.by_name.items():
        if stream in ("", name):
            rows += [{"stream": name, **row} for row in _cursors(found)]
    return rows


def feeds(core: Core) -> Rows:
    """Each feed: from which stream to which service, and where it stands."""
    return [feed.row() for feed in core.feeds.by_name.values()]


def _cursors(stream: Stream) -> Rows:
    return [
        {"name": name, "sequence": sequence, "lag": stream.next - 1 - sequence}
        for name, sequence in stream.cursors.items()
    ]


Topic = Callable[..., Any]

TOPICS: dict[str, tuple[Topic, dict[str, type]]] = {
    "status": (status, {}),
    "streams": (streams, {}),
    "stream": (stream, {"name": str}),
    "explain": (explain, {"stream": str, "subject": str, "headers": dict, "sender": str}),
    "cursors": (cursors, {"stream": str}),
    "messages": (
        messages,
        {"kind": str, "name": str, "dead": bool, "after": int, "limit": int, "where": str, "state": str},
    ),
    "mailboxes": (mailboxes, {}),
    "services": (services, {"details": bool}),
    "service": (service, {"name": str}),
    "clients": (clients, {"details": bool}),
    "client": (client, {"id": str}),
    "feeds": (feeds, {}),
    "storage": (storage, {}),
}
"""Each topic with the arguments that it takes."""

ASKING = ("messages", "storage")
"""Topics that ask the store, and have their answer later."""
