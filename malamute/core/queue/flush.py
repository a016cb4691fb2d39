"""What the queues hand over at the end of an iteration: deliveries, and what happened to messages.

A consumer that was given messages is noted once, however many they are, and is sent one DELIVER. What cannot
be sent yet, as its record or the watermark is not there, is sent as soon as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.queue.entry import Entry
from malamute.errors import MalamuteError
from malamute.protocol.batch import Columns
from malamute.protocol.messages import Delivery
from malamute.protocol.part import QueuePart
from malamute.store.operations import SetAttempts

if TYPE_CHECKING:
    from malamute.core.effects import Effects
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.queue import Queue
    from malamute.store.policies import BaseKind


class QueueFlush:
    """The consumers that were given messages, and what happened, in one iteration."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.consumers: list[Consumer] = []
        """Those that have messages which may be sent."""
        self._noted: Counter[tuple[BaseKind, str, str]] = Counter()

    def note(self, queue: Queue, what: str, count: int) -> None:
        """Something happened to messages of a queue: count it, and make it one event of the iteration."""
        queue.counts[what] += count
        self._noted[queue.kind, what, queue.name] += count

    def send(self) -> list[bytes]:
        """Send what the consumers were given: one delivery for each of them.

        Returns the peers that now hold messages.
        """
        given: dict[bytes, None] = {}
        while self.consumers:
            deliveries, self.consumers = self.consumers, []
            for consumer in deliveries:
                given[consumer.session.peer] = None
                try:
                    self._deliver(consumer)
                except Exception as error:
                    self.effects.fault("a delivery", error)
                    self.effects.broken[consumer.session.peer] = None
        if self._noted:
            for (kind, what, name), count in self._noted.items():
                self.effects.event(f"{kind}.{what}.{name}", count=count)
            self._noted.clear()
        return list(given)

    def _deliver(self, consumer: Consumer) -> None:
        """Send what may be sent, and see to it that the rest may be."""
        queue = consumer.queue
        entries = [*takewhile(attrgetter("marked"), consumer.unsent)]
        if consumer.missing_bytes:
            entries = [*takewhile(lambda entry: entry.record is not None, entries)]
        if entries:
            consumer.unsent = consumer.unsent[len(entries) :]
            part = QueuePart(self._columns(queue, entries))
            self.effects.send(consumer.session.peer, Delivery(consumer.source, 0, part))
            consumer.watch()
            if queue.prefetch_bytes < 0:
                queue.evict_excess([e.sequence for e in entries if e.sequence not in queue.not_durable])
            if queue.prefetch.read_to:
                queue.prefetch.advance(entries[-1].sequence)
            if consumer.group.takes_all:
                queue.advance_ahead()
            if consumer.missing_bytes:
                consumer.count_missing()
        if consumer.unsent and not consumer.awaiting:
            self._prepare(consumer)

    def _columns(self, queue: Queue, entries: Sequence[Entry]) -> Columns:
        sequences = [entry.sequence for entry in entries]
        properties = [entry.properties for entry in entries]
        attempts = [entry.attempts for entry in entries]
        if attempts.count(1) < len(attempts):
            self.note(queue, "redelivered", len(attempts) - attempts.count(1))
            for sequence, count in zip(sequences, attempts, strict=True):
                if count > 1:
                    self.effects.store(SetAttempts(queue.kind, queue.name, sequence, count))
        return Columns(
            sequences,
            [entry.time_ns for entry in entries],
            [entry.sender for entry in entries],
            [entry.subject for entry in entries],
            [entry.record or b"" for entry in entries],
            attempts,
            properties if any(properties) else None,
        )

    def _prepare(self, consumer: Consumer) -> None:
        """Bring the records of what is about to be delivered, tell the disk of it, and then go on."""
        queue, entries = consumer.queue, [*consumer.unsent]
        asked = queue.watermark.revocations

        def done() -> None:
            consumer.awaiting -= 1
            if not consumer.awaiting:
                # With what it was given meanwhile, which goes with these.
                consumer.sent_late(consumer.unsent)
                self.consumers.append(consumer)

        def marked(error: MalamuteError | None) -> None:
            # Without a disk there is no flag to be kept, and deliveries go on (promise 5).
            queue.watermark.confirm(entries, asked)
            done()

        if not all(entry.marked for entry in entries):
            consumer.awaiting += 1
            queue.watermark.advance(entries, marked, exact=queue.is_exact)
        if consumer.missing_bytes and (missing := [entry for entry in entries if entry.record is None]):
            consumer.awaiting += 1
            queue.prefetch.page_in(missing, done)
