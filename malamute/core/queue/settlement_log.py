"""The settlement log of queued messages: when each came, was delivered and was settled.

A queue calls `settled`, and knows no more of it. It feeds the metrics of the queue. If histories are switched
on, what was settled in an iteration becomes one event for each queue, `service.settled.NAME` or
`mailbox.settled.NAME`, whose body is a msgpack map of columns:

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
from typing import Any

from malamute.core.effects import Effects, Event
from malamute.core.metrics import QueueMetrics
from malamute.core.queue.entry import Entry
from malamute.protocol.batch import pack

QueueName = tuple[str, str]
"""The kind and the name of a queue."""

Settled = tuple[Sequence[Entry], str, str]
"""Messages that were settled together, their outcome, and the address of who settled them."""

SAMPLES = 32
"""Of more messages than this that are settled at once, some are measured for all."""


class SettlementLog:
    """What came to and left the queues. Histories are made while it is `on`."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.on = False
        self.pending: dict[QueueName, list[Settled]] = {}

    def settled(
        self, queue: QueueName, metrics: QueueMetrics, entries: Sequence[Entry], outcome: str, worker: str
    ) -> None:
        """Messages have left a queue for good: count them in its metrics, and keep their history."""
        now, ahead = self.effects.now, self.effects.ahead
        metrics.settlements.add(len(entries), now)
        step = 1 + len(entries) // SAMPLES
        # All that was dispatched in one iteration has one time, so there are few different ones.
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
        """The histories of the iteration, of so many queues at the most; the others are counted."""
        pending, self.pending = self.pending, {}
        queues = list(pending.items())
        self.effects.events_dropped += max(0, len(queues) - most)
        return [self._event(queue, runs) for queue, runs in queues[:most]]

    def forget(self) -> int:
        """Drop the histories of the iteration. Returns of how many queues."""
        count = len(self.pending)
        self.pending = {}
        return count

    def _event(self, queue: QueueName, runs: list[Settled]) -> Event:
        entries, ahead = [entry for run, _, _ in runs for entry in run], self.effects.ahead
        body = {
            "sequences": [entry.sequence for entry in entries],
            "queued": _column([entry.time_ns for entry in entries]),
            "delivered": _column([int((entry.first_delivered_at + ahead) * 1e9) for entry in entries]),
            "attempts": _column([entry.attempts for entry in entries]),
            "settled": self.effects.time_ns,
            "outcome": _column([outcome for run, outcome, _ in runs for _ in run]),
            "worker": _column([worker for run, _, worker in runs for _ in run]),
        }
        kind, name = queue
        return Event(f"{kind}.settled.{name}", pack(body), {"count": len(entries)})


def _column(values: list[Any]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values
