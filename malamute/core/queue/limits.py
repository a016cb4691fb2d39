"""What all queues share: the turn, the timers, the limits, and the room that is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.queue.deduplication import DedupQuota
from malamute.core.queue.entry import Entry
from malamute.core.queue.paging import RecordMemory
from malamute.core.queue.settlement_log import SettlementLog
from malamute.core.timers import Timers
from malamute.errors import MalamuteError, TryLater
from malamute.protocol.batch import Columns, pack_queue_payload
from malamute.protocol.messages import Deliver
from malamute.store.operations import DeleteQueue, SetAttempts
from malamute.store.policies import BaseKind, PolicyOf, QueuePolicy

if TYPE_CHECKING:
    from malamute.core.doubt import Doubt
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.queue import Queue
    from malamute.core.queue.trackers import Trackers
    from malamute.core.ready import Turn
    from malamute.core.session import Session
    from malamute.matching import CacheBudget
    from malamute.protocol.limits import Limits

Table = dict[str, "Queue"]


class QueueLimits:
    """The room for queues, and what they hand over at the end of a turn."""

    trackers: Trackers
    doubt: Doubt
    """Whether the clock may have been wrong at the start."""

    def __init__(
        self,
        turn: Turn,
        limits: Limits,
        timers: Timers,
        policy: PolicyOf,
        caches: CacheBudget,
        incarnation: int = 0,
    ) -> None:
        self.incarnation = incarnation
        """The number up to which no sequence is given out, as it may have been before a restore."""
        self.turn = turn
        self.configured = limits
        self.timers = timers
        self.policy = policy
        self.caches = caches
        """Shared by the indexes of all queues, and of streams."""
        self.messages = 0
        self.settlement_log = SettlementLog(turn)
        self.bytes = 0
        self.queues = 0
        self.memory = RecordMemory(self)
        self.dedup_quota = DedupQuota(limits.identities_bytes)
        self.deliveries: list[Consumer] = []
        self._noted: Counter[tuple[BaseKind, str, str]] = Counter()

    def policy_of(self, kind: BaseKind, name: str) -> QueuePolicy:
        """The policy of a queue, whose depth and bytes are within the limits of all queues."""
        policy, limits = self.policy(kind, name), self.configured
        return policy._replace(
            depth=min(policy.depth or limits.queue_messages, limits.queue_messages),
            bytes=min(policy.bytes or limits.queue_bytes, limits.queue_bytes),
        )

    def check(self, queue: Queue, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless there is room for messages in a queue."""
        self.check_queue(queue, messages, size_bytes)
        self.check_all(messages, size_bytes)

    def check_queue(self, queue: Queue, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless a queue may have so many more messages and bytes."""
        held = len(queue.entries) + queue.reserved
        if held + messages > queue.policy.depth:
            raise TryLater(f"the {queue.kind} {queue.name!r} holds {held} messages")
        if queue.bytes + size_bytes > queue.policy.bytes:
            raise TryLater(f"the {queue.kind} {queue.name!r} holds {queue.bytes} bytes")

    def check_all(self, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless all queues together may have so many more messages and bytes."""
        if self.messages + messages > self.configured.queues_messages:
            raise TryLater(f"all mailboxes and services together hold {self.messages} messages")
        if self.bytes + size_bytes > self.configured.queues_bytes:
            raise TryLater(f"all mailboxes and services together hold {self.bytes} bytes")
        if self.short_of_memory:
            raise TryLater("there is no memory for messages that are not on the disk")

    @property
    def short_of_memory(self) -> bool:
        """Whether there is too much in memory that the disk does not take."""
        # Of what the disk would not take and nobody waits for, the memory has the only copy.
        return self.memory.free_bytes < -self.configured.backlog_bytes

    def count(self, queue: Queue, messages: int, size_bytes: int) -> None:
        """Take room for messages of a queue, or give it back if negative."""
        queue.bytes += size_bytes
        self.count_dead(messages, size_bytes)

    def count_dead(self, messages: int, size_bytes: int) -> None:
        """Take room for dead letters, which is no queue's own, or give it back."""
        self.messages += messages
        self.bytes += size_bytes

    def reserve(self, queue: Queue, messages: int, size_bytes: int) -> None:
        """Keep room for messages that may still come, or give it back if negative. It takes no memory."""
        queue.reserved += messages
        self.count(queue, messages, size_bytes)
        self.memory.count_paged_out(queue, size_bytes)

    def check_queues(self) -> None:
        """Raise `TryLater` unless there may be one more queue: those that nobody uses are removed in time."""
        if self.queues >= self.configured.queues:
            most = self.configured.queues
            raise TryLater(
                f"there are {most} mailboxes and services, and limits.queues allows no more; "
                "those that are empty and unused leave by themselves"
            )

    def release_queue(self, queue: Queue) -> None:
        """A queue is gone, with all that was in it."""
        self.queues -= 1
        self.timers.cancel(queue.collector)
        queue.clear()

    def collect(self, queue: Queue, table: Table) -> None:
        """Remove a queue from a table when it was empty and unused for as long as is configured."""
        if queue.policy.idle:
            seen = None if queue.used else queue.next_sequence
            due = self.turn.now + queue.policy.idle
            queue.collector = self.timers.at(due, lambda: self._collect_unless_used(queue, table, seen))

    def _collect_unless_used(self, queue: Queue, table: Table, seen: int | None) -> None:
        if queue.used or queue.next_sequence != seen:
            self.collect(queue, table)
            return
        del table[queue.name]
        self.release_queue(queue)
        self.delete(queue)
        self.note(queue, "collected", 1)

    def delete(self, queue: Queue) -> None:
        """Let the store forget a queue and its dead letters."""
        self.turn.store(DeleteQueue(queue.kind, queue.name))
        if queue.dead_letters.next_sequence > 1:
            self.turn.store(DeleteQueue(queue.dead_letters.kind, queue.name))

    def note(self, queue: Queue, what: str, count: int) -> None:
        """Something happened to messages of a queue: it is counted, and told once at the end of the turn."""
        queue.counts[what] += count
        self._noted[queue.kind, what, queue.name] += count

    def flush(self) -> list[Session]:
        """Send what the consumers were given: one delivery for each of them.

        Returns the sessions that now hold messages.
        """
        given: dict[int, Session] = {}
        while self.deliveries:
            deliveries, self.deliveries = self.deliveries, []
            for consumer in deliveries:
                given[id(consumer.session)] = consumer.session
                try:
                    self._deliver(consumer)
                except Exception as error:
                    self.turn.fault("a delivery", error)
                    self.turn.broken[consumer.session.peer] = None
        if self._noted:
            for (kind, what, name), count in self._noted.items():
                self.turn.event(f"{kind}.{what}.{name}", count=count)
            self._noted.clear()
        return list(given.values())

    def _deliver(self, consumer: Consumer) -> None:
        """Send what may be sent, and see to it that the rest may be."""
        queue = consumer.queue
        entries = [*takewhile(attrgetter("marked"), consumer.unsent)]
        if consumer.missing_bytes:
            entries = [*takewhile(lambda entry: entry.record is not None, entries)]
        if entries:
            consumer.unsent = consumer.unsent[len(entries) :]
            payload, large = pack_queue_payload(self._columns(queue, entries))
            self.turn.send(consumer.session.peer, Deliver(consumer.source, 0, payload, large))
            consumer.watch()
            if queue.prefetch_bytes < 0:
                queue.evict_excess([e.sequence for e in entries if e.sequence not in queue.not_durable])
            queue.prefetch.advance(entries[-1].sequence)
            if consumer.group.takes_all:
                queue.watermark.advance_ahead()
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
                    self.turn.store(SetAttempts(queue.kind, queue.name, sequence, count))
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
                self.deliveries.append(consumer)

        def marked(error: MalamuteError | None) -> None:
            # Without a disk there is no flag to be kept, and deliveries go on (promise 5).
            queue.watermark.confirm(entries, asked)
            done()

        if not all(entry.marked for entry in entries):
            consumer.awaiting += 1
            queue.watermark.advance(entries, marked)
        if consumer.missing_bytes and (missing := [entry for entry in entries if entry.record is None]):
            consumer.awaiting += 1
            queue.prefetch.page_in(missing, done)
