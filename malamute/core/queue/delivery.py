"""Deliveries: how a consumer of a queue is sent what it was given.

A consumer is noted once in an iteration, however many messages it was given, and is sent one DELIVER at the
end. Nothing is sent before its record is in memory, and before it is durable that it may have been delivered.
What cannot be sent yet is sent as soon as both hold, in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from malamute.core.queue.entry import columns_of
from malamute.protocol.batch import Columns
from malamute.protocol.messages import Delivery
from malamute.protocol.part import QueuePart
from malamute.store.operations import SetAttempts

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.delivery_watermark import Watermark
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.usage import QueueUsage
    from malamute.errors import MalamuteError
    from malamute.store.policies import BaseKind


class QueueFlush:
    """The consumers that were given messages, and what happened, in one iteration."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.consumers: list[tuple[Deliveries, Consumer]] = []
        """Those that have messages which may be sent, and the deliveries of their queue."""
        self.noted: Counter[tuple[BaseKind, str, str]] = Counter()

    def note(self, usage: QueueUsage, what: str, count: int) -> None:
        """Something happened to messages of a queue: count it, and make it one event of the iteration."""
        usage.counts[what] += count
        self.noted[usage.kind, what, usage.name] += count

    def send(self) -> list[bytes]:
        """Send what the consumers were given: one delivery for each of them.

        Returns the peers that now hold messages.
        """
        given: dict[bytes, None] = {}
        waiting: list[tuple[Deliveries, Consumer]] = []
        while self.consumers:
            given_to, self.consumers = self.consumers, []
            for queue, consumer in given_to:
                session = consumer.session
                if session.review is not None:
                    if self._effects.work <= 0:
                        waiting.append((queue, consumer))
                        continue
                    session.review(session)
                given[session.peer] = None
                try:
                    queue.deliver(consumer)
                except Exception as error:
                    self._effects.fault("a delivery", error)
                    self._effects.broken[session.peer] = None
        self.consumers = waiting
        if self.noted:
            for (kind, what, name), count in self.noted.items():
                self._effects.event(f"{kind}.{what}.{name}", count=count)
            self.noted.clear()
        return list(given)


class Deliveries:
    """The deliveries of one queue to its consumers."""

    def __init__(
        self,
        effects: Effects,
        flush: QueueFlush,
        usage: QueueUsage,
        watermark: Watermark,
        *,
        page_in: Callable[[Sequence[Entry], Callable[[], None]], None],
        sent: Callable[[Consumer, Sequence[Entry]], None],
    ) -> None:
        """`page_in` brings the records of messages; `sent` is called with what was sent to a consumer."""
        self._effects = effects
        self._flush = flush
        self._usage = usage
        self._watermark = watermark
        self._page_in = page_in
        self._sent = sent

    def add(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """A consumer is to be sent messages, at the end of the iteration."""
        if not consumer.unsent:
            self._flush.consumers.append((self, consumer))
        consumer.unsent += entries

    def deliver(self, consumer: Consumer) -> None:
        """Send what may be sent, and see to it that the rest may be."""
        entries = consumer.sendable()
        if entries:
            consumer.unsent = consumer.unsent[len(entries) :]
            part = QueuePart(self._columns(entries))
            effects, session, count = self._effects, consumer.session, len(entries)
            effects.delivered[self._usage.kind] += count
            session.received += count
            effects.send(session.peer, Delivery(consumer.source, 0, part))
            self._sent(consumer, entries)
        if consumer.unsent and not consumer.awaiting:
            self._prepare(consumer)

    def _columns(self, entries: Sequence[Entry]) -> Columns:
        sequences, times, senders, subjects, records, attempts, properties = columns_of(entries)
        if attempts.count(1) < len(attempts):
            usage = self._usage
            self._flush.note(usage, "redelivered", len(attempts) - attempts.count(1))
            for sequence, count in zip(sequences, attempts, strict=True):
                if count > 1:
                    usage.store(SetAttempts(usage.kind, usage.name, sequence, count))
        return Columns(
            sequences,
            times,
            senders,
            subjects,
            records,
            attempts,
            properties if any(properties) else None,
        )

    def _prepare(self, consumer: Consumer) -> None:
        """Page in the records of what is about to be delivered, advance the watermark, and deliver again."""
        watermark, entries = self._watermark, [*consumer.unsent]
        asked = watermark.revocations

        def done() -> None:
            consumer.awaiting -= 1
            if not consumer.awaiting:
                # With what it was given meanwhile, which goes with these. The time that the peer has for
                # them begins now.
                late = [s for entry in consumer.unsent if (s := entry.sequence) in consumer.outstanding]
                consumer.renew(late, self._effects.now)
                self._flush.consumers.append((self, consumer))

        def marked(error: MalamuteError | None) -> None:
            # Without a disk there is no flag to be kept, and deliveries go on (promise 5).
            watermark.confirm(entries, asked)
            done()

        if not all(entry.marked for entry in entries):
            consumer.awaiting += 1
            watermark.advance(entries, marked)
        if consumer.missing_bytes and (missing := [entry for entry in entries if entry.record is None]):
            consumer.awaiting += 1
            self._page_in(missing, done)
