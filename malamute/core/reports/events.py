"""The broker's own events: the stream `$sys`.

Events of clients, streams, queues and the store are reported by `Effects.event` where they arise. At the end
of the iteration the events become one chunk of `$sys`, from the sender `$broker`: a stream like any other
(journaled, replayed, kept within its retention), but clients cannot publish to it.

The subject of an event is `kind.what.NAME`, such as `client.connected.alice`. A name may hold dots and
anything else, so the subject has it with `_` for every character that is no letter, digit or hyphen, and
the header `name` has it as it is. The details are headers; the body is empty unless the event has columns.

Events never feed upon themselves: readers of `$sys` cause none, `$sys` cannot feed a service, and trouble
with the store is reported once for a while, since each report needs the store. One iteration has `EVENTS_MAX`
events at the most, and no more than the write backlog has room for: the others are counted and reported as
one `events.dropped`. If `$sys` cannot be stored, it has a gap like any stream.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from malamute.core.iteration.effects import Effects, Event
from malamute.core.stream.chunk import chunk_bytes
from malamute.errors import InvalidValue
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import MAILBOX

if TYPE_CHECKING:
    from malamute.core.queue.settlement_log import SettlementLog
    from malamute.core.queue.source import QueueSource
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

EVENTS = "$sys"
"""The stream of events."""

SENDER = "$broker"

EVENTS_MAX = 1_000
"""Events of one iteration."""

PART_BYTES_MAX = 200
"""Bytes of UTF-8 of a name in a subject."""

_UNSAFE = re.compile(r"[^\w-]")
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Events:
    """The events of each iteration on their way into `$sys`.

    `lifecycle` and `settled` enable events, and the history of every queued message.
    """

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        streams: Streams,
        settlement_log: SettlementLog,
        *,
        lifecycle: bool,
        settled: bool,
    ) -> None:
        self.effects = effects
        self.settlement_log = settlement_log
        self._backlog_bytes_max = limits.backlog_bytes
        self._stream: Stream | None = streams.keep(EVENTS) if lifecycle or settled else None
        settlement_log.on = settled
        effects.events_max = EVENTS_MAX if lifecycle else 0

    def stop(self) -> None:
        """The broker ends: take the last event, and no more."""
        self.effects.event("broker.stopped")
        self.flush()
        self.effects.events_max = 0
        self.settlement_log.on = False

    def flush(self) -> bool:
        """Publish the events of the iteration. Returns whether there were any."""
        effects = self.effects
        waiting = effects.events or effects.events_dropped or self.settlement_log.pending
        if self._stream is None or not waiting:
            return False
        free_bytes = self._backlog_bytes_max - effects.stage.backlog_bytes
        if free_bytes < 0:
            effects.events_dropped += len(effects.events) + self.settlement_log.forget()
            effects.events.clear()
            return False
        events, effects.events = [*effects.events, *self.settlement_log.pop_events(EVENTS_MAX)], []
        packed = []
        for event in events:
            if free_bytes < 0:
                break
            if (entry := _packed(event)) is not None:
                packed.append(entry)
                free_bytes -= chunk_bytes(1, len(entry[1]), ())
        effects.events_dropped += len(events) - len(packed)
        if effects.events_dropped:
            packed.append(_record("events.dropped", b"", {"count": effects.events_dropped}))
            effects.events_dropped = 0
        subjects, records = zip(*packed, strict=True)
        self._stream.publish(SENDER, subjects, records)
        return True

    def drop(self) -> None:
        """Drop the events of the iteration: they cannot be published."""
        self.effects.events_dropped += len(self.effects.events) + self.settlement_log.forget()
        self.effects.events.clear()


def report_worker(what: str, offer: QueueSource) -> None:
    """Report that a worker has joined a service, or a consumer a mailbox, or left it. Its owner is none."""
    consumer = offer.consumer
    if consumer.source != MAILBOX:
        offer.queue.effects.event(
            f"{offer.queue.kind}.worker-{what}.{offer.queue.name}",
            client=consumer.session.ident,
            address=consumer.session.address,
            patterns=", ".join(str(pattern) for _, pattern in consumer.group.matched.selector.criteria),
        )


@lru_cache(maxsize=4096)
def subject_part(name: str) -> str:
    """A name as one part of a subject."""
    return _UNSAFE.sub("_", name).encode()[:PART_BYTES_MAX].decode(errors="ignore")


def _packed(event: Event) -> tuple[str, bytes] | None:
    """Subject and record of an event; None if it cannot be encoded, which must not harm anything else."""
    kind, what, *name = event.subject.split(".", 2)
    subject = ".".join([kind, what, *map(subject_part, name)])
    headers = {"name": name[0], **event.details} if name else event.details
    try:
        return _record(subject, event.body, headers)
    except InvalidValue:
        return None


def _record(subject: str, body: bytes, headers: Any) -> tuple[str, bytes]:
    plain = {key: value if type(value) in _PLAIN else str(value) for key, value in headers.items()}
    return subject, pack_record(plain, body or ())
