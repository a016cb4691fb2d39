"""The settlement log of queued messages: when each came, was delivered and was settled.

If histories are switched on, the settlements of an iteration become one event for each queue,
`service.settled.NAME` or `mailbox.settled.NAME`, whose body is a msgpack map of columns:

    sequences   of the messages queued      when each came, in nanoseconds UTC delivered   when each was
    delivered first; 0 if it never was, or not since the broker was started attempts    how often each was
    delivered settled     when all of them were settled outcome     the outcome of each: `acknowledged`,
    `expired`, … worker      the address of the consumer that settled each, or empty

A column is a list, or one value that all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malamute.core.iteration.effects import Effects, Event
from malamute.core.queue.entry import Entry
from malamute.protocol.batch import pack
from malamute.protocol.time_units import to_ns

QueueName = tuple[str, str]
"""The kind and the name of a queue."""

Settled = tuple[Sequence[Entry], str, str]
"""Messages that were settled together, their outcome, and the address of the consumer that settled them."""


class SettlementLog:
    """The histories of settled messages, added while it is `on`."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.on = False
        self.pending: dict[QueueName, list[Settled]] = {}

    def add(self, queue: QueueName, entries: Sequence[Entry], outcome: str, worker: str) -> None:
        """Messages have left a queue for good."""
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
            "delivered": _column([to_ns(entry.first_delivered_at + ahead) for entry in entries]),
            "attempts": _column([entry.attempts for entry in entries]),
            "settled": self.effects.time_ns,
            "outcome": _column([outcome for run, outcome, _ in runs for _ in run]),
            "worker": _column([worker for run, _, worker in runs for _ in run]),
        }
        kind, name = queue
        return Event(f"{kind}.settled.{name}", pack(body), {"count": len(entries)})


def _column(values: list[Any]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values
