"""Symptoms: present faults of a broker in words, with a link to the page concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from malamute.gateway.console.consumption import BEHIND_MESSAGES, BEHIND_SECONDS, StreamConsumer
from malamute.gateway.console.words import count, link, span
from malamute.protocol.admin import (
    BrokerStatus,
    BrokerTotals,
    QueueRow,
    ServiceDetails,
    StoreUsage,
    StreamCursor,
)

CRITICAL, WARNING, NOTE = SEVERITY = ("critical", "warning", "note")


class LagLevels(NamedTuple):
    """Lag from which a reader is named, and the severity by the trend of its lag.

    The lag in messages counts where the lag in seconds is unknown.
    """

    seconds: float
    messages: int
    falling: str
    steady: str
    rising: str
    stalled: str


LAG_LEVELS = (
    LagLevels(600.0, 1_000_000, NOTE, CRITICAL, CRITICAL, CRITICAL),
    LagLevels(60.0, 100_000, NOTE, WARNING, WARNING, WARNING),
    LagLevels(BEHIND_SECONDS, BEHIND_MESSAGES, NOTE, NOTE, WARNING, WARNING),
)
"""The levels, the largest lag first. At a large lag a steady reader is as bad as a falling-behind one."""

OVERTAKEN_CRITICAL, OVERTAKEN_WARNING = 600.0, 6 * 3600.0
"""Seconds until retention overtakes a reader, from which it is an alarm at any lag."""

CURSOR_LAG = 10_000
"""Lag in messages from which a cursor is named: its reader may be gone."""

LIMIT_WARNING = 0.9
"""Fraction of a limit from which its use is named."""

AGE_SECONDS = 300.0
"""Age of the oldest message from which a queue is named."""

FILL_WARNING, FILL_CRITICAL = 0.8, 0.95

NAMED_MAX = 5
"""Maximum readers or queues that are named one by one."""


class Symptom(NamedTuple):
    """A symptom: one present fault."""

    level: str
    words: str
    path: str = ""


class _Fault(NamedTuple):
    level: str
    wrong: Callable[[BrokerStatus], object]
    words: Callable[[BrokerStatus], str]
    path: str = "/console/settings"


_FAULTS = (
    _Fault(CRITICAL, lambda s: s.store_error, lambda s: f"The store is not writable: {s.store_error}"),
    _Fault(WARNING, lambda s: s.damages, lambda s: f"{s.damages} parts of the store are damaged"),
    _Fault(
        WARNING,
        lambda s: s.faults,
        lambda s: f"{s.faults} faults of the broker's own since it started: its log has them",
    ),
    _Fault(
        WARNING,
        lambda s: s.not_recovered,
        lambda s: f"{s.not_recovered} records of the store were not recovered",
    ),
    _Fault(
        WARNING,
        lambda s: s.config_error,
        lambda s: f"The configuration that was read last was refused: {s.config_error}",
    ),
    _Fault(
        WARNING,
        lambda s: s.dead_excess,
        lambda s: f"{s.dead_excess} dead letters exceed a lowered limit: the next dead letter drops them",
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
    """Yield the symptoms that the broker itself reports."""
    for fault in _FAULTS:
        if fault.wrong(status):
            yield Symptom(fault.level, fault.words(status), fault.path)


def of_store(storage: StoreUsage) -> Iterator[Symptom]:
    """Yield a symptom of a store that is nearly full."""
    fill = storage.used / storage.size if storage.size else 0.0
    if fill >= FILL_WARNING:
        level = CRITICAL if fill >= FILL_CRITICAL else WARNING
        yield Symptom(level, f"The store is {fill:.0%} full", "/console/settings")


def of_limits(totals: BrokerTotals) -> Iterator[Symptom]:
    """Yield limits that are reached or nearly so, and refused clients."""
    for one in totals.limits:
        if one.refuses and one.limit and one.used >= LIMIT_WARNING * one.limit:
            used = f"{count(one.used)} of {count(one.limit)}"
            words = f"{one.where or 'All together'}: {used} (limit {one.name})"
            yield Symptom(CRITICAL if one.used >= one.limit else WARNING, words, "/console/settings")
    if refused := totals.refused_lately:
        were = "command was" if refused == 1 else "commands were"
        words = f"{count(refused)} {were} refused for want of room in the last minute or two"
        yield Symptom(WARNING, words, "/console/settings")


def of_readers(consumers: list[StreamConsumer]) -> Iterator[Symptom]:
    """Yield readers with a large lag."""
    found = [symptom for one in consumers for symptom in _of_reader(one)]
    yield from _named(found, "more readers are behind", "/console/consumers")


def _of_reader(one: StreamConsumer) -> Iterator[Symptom]:
    seconds, messages = one.lag_seconds, one.subscription.lag
    for row in LAG_LEVELS:
        if seconds >= row.seconds if seconds else messages >= row.messages:
            behind = f"{span(seconds)} behind" if seconds else "behind"
            where = f"{one.subscription.stream}, {count(messages)} messages"
            level = getattr(row, one.trend or "steady")
            words = f"{one.name} is {behind} on {where}{one.trend and ', '}{one.trend}"
            if (left := one.overtaken_seconds) is not None and left < OVERTAKEN_WARNING:
                words += f"; retention overtakes it {f'in {span(left)}' if left else 'now'}"
                level = CRITICAL if left < OVERTAKEN_CRITICAL or level == CRITICAL else WARNING
            yield Symptom(level, words, link("/console/stream", name=one.subscription.stream))
            return


def of_cursors(cursors: list[StreamCursor]) -> Iterator[Symptom]:
    """Yield cursors that have lost their position, or have a large lag."""
    found = [symptom for one in cursors for symptom in _of_cursor(one)]
    yield from _named(found, "more cursors are lost or behind", "/console/streams")


def _of_cursor(one: StreamCursor) -> Iterator[Symptom]:
    path = link("/console/stream", name=one.stream)
    if one.lag is None:
        words = f"The cursor {one.name} of {one.stream} is lost: its reader has to begin anew"
        yield Symptom(WARNING, words, path)
    elif one.lag >= CURSOR_LAG:
        words = f"The cursor {one.name} of {one.stream} is {count(one.lag)} messages behind"
        yield Symptom(WARNING, words, path)


def by_severity(found: Iterable[Symptom]) -> list[Symptom]:
    """Return the symptoms, the most severe first."""
    return sorted(found, key=lambda symptom: SEVERITY.index(symptom.level))


def _named(found: list[Symptom], more: str, path: str) -> Iterator[Symptom]:
    """Yield some symptoms one by one, the most severe first, and the others as one of the same severity."""
    found = by_severity(found)
    yield from found[:NAMED_MAX]
    if rest := found[NAMED_MAX:]:
        yield Symptom(rest[0].level, f"{len(rest)} {more}", path)


def of_queues(kind: str, rows: list[QueueRow | ServiceDetails]) -> Iterator[Symptom]:
    """Yield queues without a worker, with old messages, or with dead letters."""
    found = [symptom for row in rows for symptom in _of_queue(kind, row)]
    yield from _named(found, "more like this", "/console/queues")


def _of_queue(kind: str, row: QueueRow) -> Iterator[Symptom]:
    path = link("/console/queue", kind=kind, name=row.name)
    if kind == "service" and row.ready and not row.consumers:
        words = f"{count(row.ready)} requests to {row.name} wait for a worker"
        yield Symptom(WARNING, words, path)
    elif row.ready and row.consumers and (row.oldest_age or 0.0) >= AGE_SECONDS:
        words = f"The oldest message for {row.name} has waited for {span(row.oldest_age)}"
        yield Symptom(WARNING, words, path)
    if row.dead_letters:
        letters = "dead letter" if row.dead_letters == 1 else "dead letters"
        words = f"{count(row.dead_letters)} {letters} of the {kind} {row.name}"
        yield Symptom(NOTE, words, link("/console/queue", kind=kind, name=row.name, show="dead"))
