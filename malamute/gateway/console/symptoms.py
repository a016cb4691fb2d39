"""What is wrong with a broker now, in words, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from malamute.gateway.console.consumption import StreamConsumer
from malamute.gateway.console.words import count, link, span
from malamute.protocol.admin import BrokerStatus, QueueRow, ServiceDetails, StoreUsage, StreamCursor

CRITICAL, WARNING, NOTE = "critical", "warning", "note"

LAG_SECONDS = 10.0
"""From which lag on a reader is named."""

AGE_SECONDS = 300.0
"""From which age on the oldest message of a queue is named."""

FILL_WARNING, FILL_CRITICAL = 0.8, 0.95

NAMED_MAX = 5
"""So many readers or queues are named one by one."""


class Symptom(NamedTuple):
    """Something that is wrong."""

    level: str
    words: str
    path: str = ""


class _Fault(NamedTuple):
    level: str
    wrong: Callable[[BrokerStatus], object]
    words: Callable[[BrokerStatus], str]
    path: str = "/console/settings"


_FAULTS = (
    _Fault(CRITICAL, lambda s: s.store_error, lambda s: f"The store takes nothing: {s.store_error}"),
    _Fault(
        CRITICAL,
        lambda s: any(store.error for store in s.stores),
        lambda s: "; ".join(
            f"The store {store.name} takes nothing: {store.error}" for store in s.stores if store.error
        ),
    ),
    _Fault(WARNING, lambda s: s.damages, lambda s: f"{s.damages} parts of the store are damaged"),
    _Fault(
        WARNING,
        lambda s: s.faults,
        lambda s: f"{s.faults} faults of the broker's own since it started: its log has them",
    ),
    _Fault(
        WARNING,
        lambda s: s.not_recovered,
        lambda s: f"{s.not_recovered} things of the store were not taken up",
    ),
    _Fault(
        WARNING,
        lambda s: s.config_error,
        lambda s: f"The configuration that was read last was refused: {s.config_error}",
    ),
    _Fault(
        WARNING,
        lambda s: s.dead_excess,
        lambda s: f"{s.dead_excess} dead letters are beyond a lowered limit: the next one drops them",
    ),
    _Fault(
        NOTE,
        lambda s: s.waiting_for_restart,
        lambda s: f"Changed, and waiting for a restart: {', '.join(s.waiting_for_restart)}",
    ),
    _Fault(
        NOTE,
        lambda s: s.quotas_exceeded,
        lambda s: f"Quotas have refused {count(s.quotas_exceeded)} commands since the broker started",
        "/console/users",
    ),
)


def of_broker(status: BrokerStatus) -> Iterator[Symptom]:
    """What the broker itself reports."""
    for fault in _FAULTS:
        if fault.wrong(status):
            yield Symptom(fault.level, fault.words(status), fault.path)


def of_store(storage: StoreUsage) -> Iterator[Symptom]:
    """How full it is."""
    fill = storage.used / storage.size if storage.size else 0.0
    if fill >= FILL_WARNING:
        level = CRITICAL if fill >= FILL_CRITICAL else WARNING
        yield Symptom(level, f"The store is {fill:.0%} full", "/console/settings")


def of_readers(consumers: list[StreamConsumer]) -> Iterator[Symptom]:
    """Who is far behind."""
    behind = [one for one in consumers if (one.lag_seconds or 0.0) >= LAG_SECONDS]
    for one in behind[:NAMED_MAX]:
        words = (
            f"{one.name} is {span(one.lag_seconds)} behind on {one.subscription.stream}, "
            f"{count(one.subscription.lag)} messages, {one.trend}"
        )
        path = link("/console/stream", name=one.subscription.stream)
        yield Symptom(WARNING if one.trend == "rising" else NOTE, words, path)
    if (more := len(behind) - NAMED_MAX) > 0:
        yield Symptom(NOTE, f"{more} more readers are behind", "/console/consumers")


def of_cursors(cursors: list[StreamCursor]) -> Iterator[Symptom]:
    """Which of them have lost their place."""
    for one in [one for one in cursors if one.sequence is None][:NAMED_MAX]:
        words = f"The cursor {one.name} of {one.stream} is lost: its reader has to begin anew"
        yield Symptom(WARNING, words, link("/console/stream", name=one.stream))


def of_queues(kind: str, rows: list[QueueRow | ServiceDetails]) -> Iterator[Symptom]:
    """Queues that nobody works on, that are old, or have dead letters."""
    found = [symptom for row in rows for symptom in _of_queue(kind, row)]
    yield from sorted(found, key=lambda symptom: symptom.level != WARNING)[:NAMED_MAX]
    if len(found) > NAMED_MAX:
        yield Symptom(NOTE, f"{len(found) - NAMED_MAX} more like this", "/console/queues")


def _of_queue(kind: str, row: QueueRow) -> Iterator[Symptom]:
    path = link("/console/queue", kind=kind, name=row.name)
    if kind == "service" and row.waiting and not row.consumers:
        words = f"{count(row.waiting)} requests to {row.name} wait, and nobody works for it"
        yield Symptom(WARNING, words, path)
    elif row.waiting and row.consumers and (row.oldest_age or 0.0) >= AGE_SECONDS:
        words = f"The oldest message for {row.name} has waited for {span(row.oldest_age)}"
        yield Symptom(WARNING, words, path)
    if row.dead:
        letters = "dead letter" if row.dead == 1 else "dead letters"
        words = f"{count(row.dead)} {letters} of the {kind} {row.name}"
        yield Symptom(NOTE, words, link("/console/queue", kind=kind, name=row.name, show="dead"))
