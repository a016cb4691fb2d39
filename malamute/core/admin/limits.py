"""How much is used of each limit: of those for all together, and by the one that has most of each share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from malamute.protocol.admin import LimitUsage

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.queue import Queue
    from malamute.core.session.session import Session
    from malamute.core.stream.stream import Stream
    from malamute.protocol.limits import Limits


class SharedLimit(NamedTuple):
    """A shared limit: its usage, and whether commands are refused at it.

    Otherwise something is forgotten, or is on the disk only.
    """

    used: Callable[[Engines], int]
    refuses: bool = True


SHARED: Mapping[str, SharedLimit] = {
    "sessions": SharedLimit(lambda core: len(core.sessions.by_peer)),
    "selectors_bytes": SharedLimit(lambda core: core.selectors.used_bytes + core.selectors.reserved_bytes),
    "caches_bytes": SharedLimit(lambda core: core.queue_limits.caches.used_bytes, refuses=False),
    "streams": SharedLimit(lambda core: len(core.streams.by_name)),
    "cursors_bytes": SharedLimit(lambda core: core.streams.cursors.bytes),
    "feeds": SharedLimit(lambda core: len(core.feeds.by_name)),
    "buckets": SharedLimit(lambda core: len(core.buckets.by_name)),
    "buckets_bytes": SharedLimit(lambda core: core.buckets.usage.bytes),
    "accounts": SharedLimit(lambda core: len(core.accounts.stored.by_name)),
    "queues": SharedLimit(lambda core: core.queue_limits.queues),
    "queues_bytes": SharedLimit(lambda core: core.queue_limits.bytes),
    "queues_messages": SharedLimit(lambda core: core.queue_limits.messages),
    "queues_memory_bytes": SharedLimit(lambda core: core.queue_limits.memory.used_bytes, refuses=False),
    "identities_bytes": SharedLimit(lambda core: core.queue_limits.dedup_quota.bytes, refuses=False),
    "published_ids_bytes": SharedLimit(lambda core: core.streams.duplicates.quota.bytes, refuses=False),
    "backlog_bytes": SharedLimit(lambda core: core.effects.stage.backlog_bytes),
}
"""Limits that all clients share, by the names of `Limits`."""

SHARES = ("queue_messages", "queue_bytes", "sources", "session_selector_bytes", "cursors")
"""Limits of one queue, one session or one stream: the one is reported that is nearest to its limit."""


class Fullest:
    """The part of each share that is most used, as far as it was looked for."""

    def __init__(self, limits: Limits, queue_limits: QueueLimits) -> None:
        self._limits = limits
        self._queue_limits = queue_limits
        self._found = {name: LimitUsage(name=name, used=0, limit=0) for name in SHARES}

    def queue(self, queue: Queue) -> None:
        """Look at a queue."""
        usage = queue.usage
        where = f"{usage.kind} {usage.name}"
        self._note("queue_messages", usage.messages, usage.policy.messages_max, where)
        self._note("queue_bytes", usage.bytes, self._queue_limits.bytes_max(usage), where)

    def session(self, session: Session) -> None:
        """Look at a session."""
        limits, where = self._limits, f"client {session.address or session.ident}"
        self._note("sources", len(session.sources), limits.sources, where)
        self._note("session_selector_bytes", session.selector_bytes, limits.session_selector_bytes, where)

    def stream(self, stream: Stream) -> None:
        """Look at a stream."""
        self._note("cursors", len(stream.cursors), self._limits.cursors, f"stream {stream.name}")

    def _note(self, name: str, used: int, limit: int, where: str) -> None:
        before = self._found[name]
        if not before.limit or used * before.limit > before.used * limit:
            self._found[name] = LimitUsage(name=name, used=used, limit=limit, where=where if used else "")

    def rows(self) -> Iterator[LimitUsage]:
        """Return the usages; a share without an owner is unused."""
        for name, found in self._found.items():
            yield found if found.limit else LimitUsage(name=name, used=0, limit=getattr(self._limits, name))


def shared(core: Engines) -> Iterator[LimitUsage]:
    """Return the usage of the limits that all share."""
    limits = core.configuration.settings.limits._asdict()
    for name, one in SHARED.items():
        yield LimitUsage(name=name, used=max(0, one.used(core)), limit=limits[name], refuses=one.refuses)
