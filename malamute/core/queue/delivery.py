"""Deliveries of a queue, and its watermark: the highest sequence that may have been delivered.

A consumer is noted once in an iteration, however many messages it was given, and is sent one DELIVER at the
end. A message is sent, in its order, as soon as its record is in memory and its watermark is durable.

The watermark says of all messages up to a sequence that they may have been delivered, so that a delivery
costs one small operation and not one for each message. The watermark is advanced past the present deliveries,
so the next ones wait for no disk. So after a crash up to twice as many messages count as delivered as
consumers held; a graceful shutdown, or a queue whose last consumer leaves, retracts it.

Where there is one attempt only, such a doubt would be the end of a message: there each is marked by itself,
and none ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.queue.entry import columns_of
from malamute.protocol.batch import Columns
from malamute.protocol.messages import Delivery
from malamute.protocol.part import QueuePart
from malamute.protocol.time_units import to_ns
from malamute.store.operations import MarkDelivered, QueueState, SetAttempts

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.stage import WhenStored
    from malamute.core.iteration.timers import Timers
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.usage import QueueUsage
    from malamute.errors import MalamuteError
    from malamute.store.policies import BaseKind


_sequence = attrgetter("sequence")

AHEAD_MAX = 1_000
"""Messages that the watermark may be ahead of the deliveries."""


class QueueFlush:
    """The consumers with new messages, and the events of queues, in one iteration."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.consumers: list[tuple[Deliveries, Consumer]] = []
        """Consumers with messages to send, and the deliveries of their queues."""
        self.noted: Counter[tuple[BaseKind, str, str]] = Counter()

    def note(self, usage: QueueUsage, what: str, count: int) -> None:
        """Something happened to messages of a queue: count it, and make it one event of the iteration."""
        usage.counts[what] += count
        self.noted[usage.kind, what, usage.name] += count

    def send(self) -> list[bytes]:
        """Send the assigned messages: one delivery for each consumer.

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
        timers: Timers,
        flush: QueueFlush,
        usage: QueueUsage,
        watermark: Watermark,
        page_in: Callable[[Sequence[Entry], Callable[[], None]], None],
        *,
        sent: Callable[[Consumer, Sequence[Entry]], None],
        late: Callable[[Consumer, list[int]], None],
    ) -> None:
        """`page_in` brings the records of messages; `sent` is called with messages that were sent.

        `late` is called with deliveries whose deadline has passed.
        """
        self._effects = effects
        self._flush = flush
        self._usage = usage
        self._watermark = watermark
        self._timers = timers
        self._page_in = page_in
        self._sent = sent
        self._late = late

    def add(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """A consumer is to be sent messages, at the end of the iteration."""
        if not consumer.unsent:
            self._flush.consumers.append((self, consumer))
        consumer.unsent += entries
        self._watermark.raise_to(entries[0].sequence if len(entries) == 1 else max(map(_sequence, entries)))

    def deliver(self, consumer: Consumer) -> None:
        """Send the messages that may be sent, and request records and marks for the others."""
        entries = consumer.pop_sendable()
        if entries:
            part = QueuePart(self._columns(entries))
            effects, session, count = self._effects, consumer.session, len(entries)
            effects.counters.delivered[self._usage.kind] += count
            session.received += count
            effects.send(session.peer, Delivery(consumer.source, 0, part))
            if consumer.deadline is None:
                self._watch(consumer)
            self._sent(consumer, entries)
        if consumer.unsent and not consumer.awaiting:
            self._prepare(consumer)

    def _watch(self, consumer: Consumer) -> None:
        """Set a timer for the first deadline of a consumer."""
        if (first := consumer.first_deadline) is not None:
            consumer.deadline = self._timers.at(first, lambda: self._deadline_passed(consumer))

    def _deadline_passed(self, consumer: Consumer) -> None:
        consumer.deadline = None
        if late := consumer.pop_late(self._effects.now):
            self._late(consumer, late)
        self._watch(consumer)

    def _columns(self, entries: Sequence[Entry]) -> Columns:
        if len(entries) == 1 and (entry := entries[0]).attempts == 1:
            return Columns(
                [entry.sequence],
                [entry.time_ns],
                [entry.sender],
                [entry.subject],
                [entry.record or b""],
                [1],
                [entry.properties] if entry.properties else None,
            )
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
        """Page in the records of the next deliveries, advance the watermark, and deliver again."""
        watermark, entries = self._watermark, [*consumer.unsent]
        asked = watermark.revocations

        def done() -> None:
            consumer.awaiting -= 1
            if not consumer.awaiting:
                # Messages assigned meanwhile go with these. The deadlines of all begin now.
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


class Watermark:
    """The watermark of one queue, and the messages that differ from it."""

    def __init__(self, effects: Effects, usage: QueueUsage, entries: Mapping[int, Entry]) -> None:
        """`entries` are those of the queue, as they come and go."""
        self.last_delivered = 0
        """The highest sequence that was given to a consumer."""
        self.never_delivered: set[int] = set()
        """Messages that the store has as never delivered, wherever the watermark is."""
        self.revocations = 0
        self.revoked: dict[int, int] = {}
        """Messages that were taken back unseen, and when: an earlier mark says nothing of them."""
        self._effects = effects
        self._usage = usage
        self._entries = entries
        self._upto = 0
        self._under_way: list[tuple[int, list[WhenStored]]] = []
        """Advances that are not durable yet, and the consumers that wait for each."""

    @property
    def is_exact(self) -> bool:
        """Whether it has to be stored of each message by itself that it may have been delivered."""
        return self._usage.policy.attempts_max == 1

    def raise_to(self, sequence: int) -> None:
        """Messages up to this one were given to a consumer."""
        if sequence > self.last_delivered:
            self.last_delivered = sequence

    def restore(self, state: QueueState, sequence: int) -> int:
        """How often a message was delivered, as far as the store knows."""
        attempts = state.attempts.get(sequence)
        if attempts is None:
            return int(sequence <= state.delivered and not self.is_exact)
        if not attempts:
            self.never_delivered.add(sequence)
        return attempts

    def advance(self, entries: Sequence[Entry], then: WhenStored) -> None:
        """Store that these are about to be delivered, and call back when that is durable.

        The watermark covers those that were passed over as well, which costs them one of their attempts: if
        there is only one, each is marked by itself.
        """
        exact = self.is_exact
        plain = not self.never_delivered and not exact
        last = max([entry.sequence for entry in entries if not entry.marked])
        waiting = next((waiting for upto, waiting in self._under_way if last <= upto), None)
        if plain and waiting is not None:
            waiting.append(then)
            return
        self._store(self.last_delivered, then)
        for entry in () if plain else entries:
            if entry.sequence in self.never_delivered or (exact and not entry.marked):
                self.never_delivered.discard(entry.sequence)
                self.store_attempts(entry)

    def advance_new(self, entries: Sequence[Entry]) -> None:
        """Advance past messages with the operation that stores them, as consumers wait for them."""
        if self.is_exact:
            return
        for entry in entries:
            entry.marked = True
        self._upto = entries[-1].sequence
        self._usage.store_bound(MarkDelivered(self._usage.kind, self._usage.name, self._upto))

    def advance_ahead(self, held: int, last: int) -> None:
        """Advance past those that come next: as many as consumers hold, and up to the `last` of the queue."""
        if self.is_exact:
            return
        delivered = self.last_delivered
        ahead = min(held, AHEAD_MAX)
        first = max(self._upto, delivered) + 1
        upto = min(delivered + ahead, last)
        if upto < first or self._upto - delivered >= max(ahead // 2, 1):
            return
        asked = self.revocations

        def stored(error: MalamuteError | None) -> None:
            if error is None:
                self.confirm(
                    [e for e in self._there(first, upto) if e.sequence not in self.never_delivered], asked
                )

        self._store(upto, stored)

    def confirm(self, entries: Iterable[Entry], asked: int) -> None:
        """The disk has a mark of these that was made after so many revocations."""
        for entry in entries:
            if self.revoked.get(entry.sequence, 0) <= asked:
                entry.marked = True
                self.revoked.pop(entry.sequence, None)

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget removed messages."""
        self.never_delivered.difference_update(sequences)
        for sequence in sequences if self.revoked else ():
            self.revoked.pop(sequence, None)

    def retract(self) -> None:
        """Retract the watermark when no consumer is left for the messages marked ahead."""
        # No more than that was marked ahead: the rest was marked when it came, and may be all of the queue.
        delivered = self.last_delivered
        for entry in self._there(delivered + 1, min(self._upto, delivered + AHEAD_MAX)):
            if not entry.attempts and entry.sequence not in self.never_delivered:
                self.store_attempts(entry)

    def store_attempts(self, entry: Entry, due: float = 0.0) -> None:
        """Store how often a message was delivered, and when it is redelivered.

        Zero attempts hold even if a mark of the message is on its way.
        """
        sequence, attempts = entry.sequence, entry.attempts
        due_ns = to_ns(due + self._effects.ahead) if due else 0
        self._usage.store(SetAttempts(self._usage.kind, self._usage.name, sequence, attempts, due_ns))
        if not attempts:
            entry.marked = False
            self.never_delivered.add(sequence)
            self.revocations += 1
            self.revoked[sequence] = self.revocations

    def _there(self, first: int, last: int) -> Iterable[Entry]:
        return filter(None, map(self._entries.get, range(first, last + 1)))

    def _store(self, upto: int, then: WhenStored) -> None:
        self._upto = max(self._upto, upto)
        if self._usage.in_memory:
            # No start will ask whether it was delivered.
            then(None)
            return
        mark = (upto, [then])
        self._under_way.append(mark)

        def stored(error: MalamuteError | None) -> None:
            self._under_way.remove(mark)
            for waiting in mark[1]:
                waiting(error)

        self._usage.store(MarkDelivered(self._usage.kind, self._usage.name, upto))
        self._effects.stage.when_stored(stored)
