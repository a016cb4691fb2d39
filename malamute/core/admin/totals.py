"""The counts of the broker since its start, and its totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from malamute.core.admin.limits import Fullest
from malamute.core.queue.state import DELAYED, DELIVERED, READY
from malamute.protocol.admin import (
    BrokerTotals,
    DurationTotals,
    LimitUsage,
    QueueTotals,
    ReaderTotals,
    TotalsQuery,
)
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.settings import ConfigurationInForce
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.queue import Queue
    from malamute.core.queue.table import QueueTables
    from malamute.core.session.session import Session
    from malamute.core.session.sessions import Sessions
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.subscription import Reader
    from malamute.core.stream.table import Streams

TOTALS_EACH = 500
"""Queues, streams and readers that are looked at in one iteration."""

TOTALS_WORK = 2
"""The work of visiting one of them."""


class _QueueSums:
    """All queues of a kind together, as far as they were looked at."""

    def __init__(self, queues: Iterable[Queue], fullest: Fullest) -> None:
        # Queues that come or go meanwhile may be included or not.
        self._left = iter([*queues])
        self._fullest = fullest
        self._messages = self._ready = self._delayed = self._in_flight = self._dead = 0
        self._oldest_ns: int | None = None

    def go_on(self, most: int) -> int:
        """Look at so many more. Returns how many were left of that."""
        for queue in islice(self._left, most):
            most -= 1
            self._fullest.queue(queue)
            states = queue.states.counts
            self._dead += queue.dead_letters.count
            self._ready += states[READY]
            self._delayed += states[DELAYED]
            self._in_flight += states[DELIVERED]
            self._messages += len(queue.entries)
            oldest = queue.entries.oldest_ns
            if oldest is not None and (self._oldest_ns is None or oldest < self._oldest_ns):
                self._oldest_ns = oldest
        return most

    def row(self, kind: str, now: float) -> QueueTotals:
        """Return their totals, at a time of the wall clock in seconds."""
        oldest = self._oldest_ns
        return QueueTotals(
            kind=kind,
            messages=self._messages,
            ready=self._ready,
            delayed=self._delayed,
            in_flight=self._in_flight,
            dead_letters=self._dead,
            oldest_age=None if oldest is None else max(0.0, now - to_seconds(oldest)),
        )


class _ReaderSums:
    """The readers and cursors of all streams together, as far as they were looked at."""

    def __init__(self, streams: Iterable[Stream], fullest: Fullest) -> None:
        self._left = _each_reader([*streams])
        self._fullest = fullest
        self._readers = {"live": 0, "replay": 0}
        self._lag, self._lag_ns = 0, 0
        self._cursors, self._cursor_lag = 0, 0

    def go_on(self, most: int) -> int:
        """Look at so many more. Returns how many were left of that."""
        for stream, reader in islice(self._left, most):
            most -= 1
            if reader is None:
                self._fullest.stream(stream)
                continue
            if isinstance(reader, int):
                self._cursors += 1
                self._cursor_lag = max(self._cursor_lag, stream.numbering.messages(reader))
                continue
            behind = stream.lag(reader)
            self._readers["replay" if reader.state == "replay" else "live"] += 1
            self._lag = max(self._lag, behind)
            if behind and reader.time_ns:
                self._lag_ns = max(self._lag_ns, stream.time_ns - reader.time_ns)
        return most

    def row(self) -> ReaderTotals:
        """Return the sums."""
        return ReaderTotals(
            **self._readers,
            lag=max(self._lag, self._cursor_lag),
            lag_seconds=to_seconds(self._lag_ns),
            cursors=self._cursors,
            cursor_lag=self._cursor_lag,
        )


class _SessionSums:
    """All sessions, as far as they were looked at."""

    def __init__(self, sessions: Iterable[Session], fullest: Fullest) -> None:
        self._left = iter([*sessions])
        self._fullest = fullest

    def go_on(self, most: int) -> int:
        """Look at so many more. Returns how many were left of that."""
        for session in islice(self._left, most):
            most -= 1
            self._fullest.session(session)
        return most


def _each_reader(streams: Iterable[Stream]) -> Iterator[tuple[Stream, Reader | int | None]]:
    """Every stream, which takes its time as well, and its readers and cursors when it is looked at."""
    for stream in streams:
        yield stream, None
        readers = [reader for group in stream.audience.groups() for reader in group.members.values()]
        yield from ((stream, reader) for reader in readers)
        yield from ((stream, sequence) for sequence in [*stream.cursors.values()])


def totals(
    effects: Effects,
    configuration: ConfigurationInForce,
    sessions: Sessions,
    streams: Streams,
    queues: QueueTables,
    limits: QueueLimits,
    used: Callable[[], Iterable[LimitUsage]],
    operations: Callable[[], dict[str, int]],
    query: TotalsQuery,
    answered: Callable[[BrokerTotals], None],
) -> None:
    """Report the counts of the broker, and the totals of queues and streams. Many take several iterations.

    `used` is the usage of the shared limits, `operations` those of keys in buckets.
    """
    fullest = Fullest(configuration.settings.limits, limits)
    sums = {kind: _QueueSums(table.by_name.values(), fullest) for kind, table in queues.items()}
    readers = _ReaderSums(streams.by_name.values(), fullest)
    looked_at: tuple[_QueueSums | _ReaderSums | _SessionSums, ...] = (
        *sums.values(),
        readers,
        _SessionSums(sessions.by_peer.values(), fullest),
    )

    def go_on() -> None:
        left = TOTALS_EACH
        for one in looked_at:
            left = one.go_on(left)
        effects.work -= TOTALS_WORK * (TOTALS_EACH - left)
        if not left:
            effects.later(go_on)
            return
        answered(
            BrokerTotals(
                iterations=DurationTotals(**effects.counters.iterations.row(effects.now)),
                commits=DurationTotals(**effects.stage.commits.row(effects.now)),
                committed_bytes=effects.stage.committed_bytes,
                settlements={**limits.settlements},
                readers=readers.row(),
                switches={**effects.counters.switches},
                gaps={**effects.counters.gaps},
                refusals={str(code): count for code, count in effects.counters.refusals.items()},
                family_failures={**effects.counters.family_failures},
                delivered={**effects.counters.delivered},
                dead_lettered={**limits.dead_lettered},
                limits=[*used(), *fullest.rows()],
                key_operations=operations(),
                refused_lately=effects.counters.refused_lately.count(effects.now),
                queues=[one.row(kind, effects.now + effects.ahead) for kind, one in sums.items()],
            )
        )

    go_on()
