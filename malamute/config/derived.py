"""Limits that the options imply: one table of derivations, and the names of options that it has replaced.

`limits.memory` is shared out among all that clients can fill, `listen.connections` bounds sessions, and the
room that streams leave in the store bounds the bytes of queues. Each limit has its default at the default of
these options, and grows and shrinks with them.

Design: decision 32. An option is there where somebody can choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from malamute.protocol.limits import Limits

MEMORY_BYTES = 6 * 1024**3
"""Default of `limits.memory`: the sum of the rows of docs/operations/sizing.md that it bounds."""

CONNECTIONS = 20_000
"""Default of `listen.connections`."""

STORE_SLACK = 0.1
"""Part of the store that neither streams nor queues may count on, so that a commit always has room."""

QUEUES_FILL = 5 / 8
"""Part of the room for queues that messages may take: their log grows to half as much again before it is
compacted."""

SHARES_OF_MEMORY = (
    "selector_bytes",
    "session_selector_bytes",
    "selectors_bytes",
    "caches_bytes",
    "streams",
    "cursors_bytes",
    "feeds",
    "buckets",
    "buckets_bytes",
    "accounts",
    "queues",
    "queues_messages",
    "queues_memory_bytes",
    "identities_bytes",
    "published_ids_bytes",
    "backlog_bytes",
)
"""Limits in proportion to `limits.memory`."""

RELOADED_LIMITS = frozenset(
    {
        *("sessions", "streams", "feeds", "accounts", "queues", "queues_messages", "queue_messages"),
        *("selector_bytes", "session_selector_bytes", "selectors_bytes", "buckets", "buckets_bytes"),
    }
)
"""Limits that a reload changes. For all others, memory is set aside when the broker starts."""


class ConnectionLimits(NamedTuple):
    """Limits of the connections, with their defaults."""

    send_queue: int = 100
    """Commands that wait in memory for one client. When it is full, the client counts as without credit."""
    send_bytes: int = 8 * 1024**2
    """Bytes sent to one client and not read; with more, the client counts as without credit."""
    send_bytes_all: int = 512 * 1024**2
    """Bytes sent to all clients and not read. With more, a client is sent little beyond its reading."""
    hello_timeout: float = 10.0
    """Seconds that a connection may be without a session, six times as long while the broker is behind."""
    hello_queue: int = 10_000
    """Connections without a session. With more, those older than a tenth of `hello_timeout` are ended."""
    hello_failures: int = 100
    """Connections of one address in a second that may end without a session; refused ones count twice."""
    receive_queue: int = 100
    """Commands of one client that wait in memory for the broker."""
    receive_bytes: int = 128 * 1024**2
    """Bytes of one client that wait for the broker, or for the rest of their command."""
    receive_bytes_all: int = 512 * 1024**2
    """The same for all clients. With more, the connections with the most bytes are ended."""
    probe_interval: float = 0.5
    """Seconds between two probes of a silent session that holds work."""


def derive_limits(memory: int, connections: int, message_bytes: int, queues_room: float) -> Limits:
    """Return the limits of the core; `queues_room` is the part of the store for queues, in bytes."""
    default = Limits()
    shares = {name: max(1, getattr(default, name) * memory // MEMORY_BYTES) for name in SHARES_OF_MEMORY}
    queues_bytes = max(1, round(queues_room * QUEUES_FILL))
    return default._replace(
        **shares, sessions=connections, message_bytes=message_bytes, queues_bytes=queues_bytes
    )


def derive_connection_limits(memory: int, connections: int, message_bytes: int) -> ConnectionLimits:
    """Return the limits of the connections: the largest message always fits."""
    default = ConnectionLimits()
    return default._replace(
        send_bytes_all=default.send_bytes_all * memory // MEMORY_BYTES,
        hello_queue=max(1, default.hello_queue * connections // CONNECTIONS),
        receive_bytes=max(default.receive_bytes, 2 * message_bytes),
        receive_bytes_all=max(default.receive_bytes_all * memory // MEMORY_BYTES, 2 * message_bytes),
    )


_MEMORY = "derived from limits.memory"
_QUEUE = "{} for each queue; set {} in a [[queues.rule]] for other queues"
_SHARE = "three quarters of {} of all queues; set {} in a [[queues.rule]] for less"
_EVENTS = '64MiB; set bytes in a [[streams.rule]] with pattern = "{}" for another size'

REMOVED: Mapping[str, str] = {
    **{f"limits.{name}": _MEMORY for name in SHARES_OF_MEMORY},
    "limits.sessions": "derived from listen.connections",
    "limits.queues_bytes": "derived from storage.size and storage.streams_share",
    "limits.queue_bytes": _SHARE.format("the bytes", "bytes"),
    "limits.queue_messages": _SHARE.format("the messages", "depth"),
    "limits.unconfirmed": f"{Limits().unconfirmed} for each session",
    "limits.sources": f"{Limits().sources} for each session; a quota allows users less",
    "limits.cursors": f"{Limits().cursors} for each stream; a quota allows users less",
    "limits.answers_bytes": "4MiB for each session",
    "listen.send_queue": "100 commands for each client",
    "listen.send_bytes": "8MiB for each client",
    "listen.send_bytes_all": _MEMORY,
    "listen.hello_timeout": "10s",
    "listen.hello_queue": "half of listen.connections",
    "listen.hello_failures": "100 a second; name proxies with many users in listen.gateways",
    "listen.receive_queue": "100 commands for each client",
    "listen.receive_bytes": "128MiB for each client, or twice limits.message_bytes if that is more",
    "listen.receive_bytes_all": _MEMORY,
    "session.probe_interval": "500ms",
    "queues.depth": _SHARE.format("the messages", "depth"),
    "queues.bytes": _SHARE.format("the bytes", "bytes"),
    "queues.priority_step": _QUEUE.format("100000 messages", "priority_step"),
    "queues.dedup_count": _QUEUE.format("100000 identities", "dedup_count"),
    "queues.dead_letters": _QUEUE.format("10000 dead letters", "dead_letters"),
    "events.bytes": _EVENTS.format("$sys"),
    "events.audit_bytes": _EVENTS.format("$audit"),
}
"""Options that are gone, each with the value in its place."""
