"""The settlement log of queued messages: when each came, was delivered and was settled.

A queue calls `enqueued` and `settled`, and knows no more of it. Both feed the metrics of the queue,
which presence tells. If histories are switched on, what was settled in a turn becomes one event for each
queue, `service.settled.NAME` or `mailbox.settled.NAME`, whose body is a msgpack map of columns:

    sequences   of the messages
    queued      when each came, in nanoseconds UTC
    delivered   when each was delivered first; 0 if it never was, or not since the broker was started
    attempts    how often each was delivered
    settled     when all of them were settled
    outcome     what became of each: `acknowledged`, `expired`, …
    worker      the address of whoever settled each, or empty

A column is a list, or one value that all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from malamute.core.metrics import QueueMetrics
from malamute.core.ready import Event, Turn
from malamute.protocol.batch import pack
from malamute.protocol.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.queue import Queue


SAMPLES = 32
"""Of more messages than this that are settled at once, some are measured for all."""


class SettlementLog:
    """What came to and left the queues. Histories are made while it is `on`."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.on = False
        self.pending: dict[Queue, list[tuple[Sequence[Entry], str, str]]] = {}

    def enqueued(self, queue: Queue, count: int) -> None:
        """Messages come into a queue, which has none of them yet."""
        if queue.next_sequence == queue.first_sequence and not queue.name.startswith(RESERVED_PREFIX):
            self.turn.event(f"{queue.kind}.created.{queue.name}")
        if queue.metrics is None:
            queue.metrics = QueueMetrics()
        queue.metrics.arrivals.add(count, self.turn.now)

    def settled(self, queue: Queue, entries: Sequence[Entry], outcome: str, worker: str = "") -> None:
        """Messages have left a queue for good."""
        now, ahead = self.turn.now, self.turn.ahead
        metrics = queue.metrics = queue.metrics or QueueMetrics()
        metrics.settlements.add(len(entries), now)
        step = 1 + len(entries) // SAMPLES
        # All that was dispatched in one turn has one time, so there are few different ones.
        times: dict[tuple[int, float, float], int] = {}
        for entry in entries[::step]:
            key = (entry.time_ns, entry.first_delivered_at, entry.last_delivered_at)
            times[key] = times.get(key, 0) + 1
        for (queued, first, given), count in times.items():
            if given:
                metrics.processing_time.add(now - given, count, now)
            if first:
                metrics.queue_time.add(max(0.0, first + ahead - queued / 1e9), count, now)
        if self.on:
            self.pending.setdefault(queue, []).append((entries, outcome, worker))

    def pop_events(self, most: int) -> list[Event]:
        """The histories of the turn, of so many queues at the most; the others are counted."""
        pending, self.pending = self.pending, {}
        queues = list(pending.items())
        self.turn.events_dropped += max(0, len(queues) - most)
        return [self._event(queue, runs) for queue, runs in queues[:most]]

    def forget(self) -> int:
        """Drop the histories of the turn. Returns of how many queues."""
        count = len(self.pending)
        self.pending = {}
        return count

    def _event(self, queue: Queue, runs: list[tuple[Sequence[Entry], str, str]]) -> Event:
        entries, ahead = [entry for run, _, _ in runs for entry in run], self.turn.ahead
        body = {
            "sequences": [entry.sequence for entry in entries],
            "queued": _column([entry.time_ns for entry in entries]),
            "delivered": _column([int((entry.first_delivered_at + ahead) * 1e9) for entry in entries]),
            "attempts": _column([entry.attempts for entry in entries]),
            "settled": self.turn.time_ns,
            "outcome": _column([outcome for run, outcome, _ in runs for _ in run]),
            "worker": _column([worker for run, _, worker in runs for _ in run]),
        }
        return Event(f"{queue.kind}.settled.{queue.name}", pack(body), {"count": len(entries)})


def _column(values: list[Any]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values
