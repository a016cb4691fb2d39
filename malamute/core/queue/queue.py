"""The messages of one mailbox or service, and their consumers: where all parts of a queue meet.

The parts know nothing of each other, and none of them knows the queue. `Queue` asks them in a fixed order:

    put          messages come: `limits`, `entries`, `states`, the store, `options`
    _pass        a message that needs none of this finds a consumer: it is delivered, and stored later if ever
    make_ready   they are committed, or come back: `schedule`, then `dispatcher`
    _assign      a consumer gets them: `states`, `deliveries`, `watermark`
    _sent        they are sent: deadlines, memory, `prefetch`, `watermark`
    detach       it has them no more; then comes `settlement`, or `take_back` and `requeue`
    drop         they have left: every part that knows of them forgets them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from malamute.core.iteration.metrics import QueueMetrics
from malamute.core.queue.correlations import Correlations, MessageIds
from malamute.core.queue.dead_letters import DeadLetters
from malamute.core.queue.deduplication import DedupWindow
from malamute.core.queue.delivery import Deliveries, Watermark
from malamute.core.queue.dispatch import Dispatcher
from malamute.core.queue.entry import Entries, Entry, puts, ranges_of, size_of
from malamute.core.queue.options import Options
from malamute.core.queue.paging import Prefetch
from malamute.core.queue.schedule import Schedule
from malamute.core.queue.sent_by import SentBy
from malamute.core.queue.settlement import Settlement
from malamute.core.queue.state import DELAYED, DELIVERED, PENDING, READY, SETTLING, MessageStates
from malamute.core.queue.steps import Steps
from malamute.core.queue.unwritten import Unwritten
from malamute.core.queue.usage import QueueUsage
from malamute.protocol.messages import Recall
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import PutValue
from malamute.store.tables import MEMORY_QUEUES

if TYPE_CHECKING:
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.iteration.timers import Timer
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.temporary import MailboxUsers
    from malamute.errors import MalamuteError
    from malamute.store.policies import BaseKind, Persistence


UNKNOWN = -1
"""How many messages a queue in memory has, until a graceful shutdown counts them."""

STEP_MESSAGES = 1_000
"""Messages that are given back or end in one iteration, of those that do so together."""


class FedFrom(Protocol):
    """The feeds from a queue."""

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Messages are ready. Returns those that are left for consumers."""

    def look(self, sequences: Sequence[int]) -> None:
        """Deferred messages whose dispatch is complete."""

    def join(self, feed: Any) -> None:
        """There is one more."""

    def leave(self, feed: Any) -> None:
        """One has ended."""


class Queue:
    """The messages of one mailbox or service, and the consumers that take them."""

    cut_through: ClassVar = True
    """Whether plain messages without assurance pass to a consumer that waits; tests compare both."""
    is_stored = False
    """Whether the store knew of it at the start."""
    set_aside = 0
    """The number of messages that are in the store, but are not delivered."""
    feeds = 0
    """The number of feeds from it or to it."""
    fed: FedFrom | None = None
    """The feeds from it, if there are any."""
    made_by: QuotaUsages = ()
    """The quotas that it counts for."""
    collector: Timer | None = None
    """The timer that removes it while it is unused."""
    users: MailboxUsers | None = None
    """The sessions that a temporary mailbox is kept for; None for any other queue."""

    def __init__(
        self, kind: BaseKind, name: str, limits: QueueLimits, persistence: Persistence | None = None
    ) -> None:
        """`persistence` replaces that of its policy."""
        effects, timers, memory = limits.effects, limits.timers, limits.memory
        self.kind: BaseKind = kind
        self.name = name
        self.limits = limits
        self.effects = effects
        self._memory = memory
        self.usage = usage = QueueUsage(kind, name, limits.policy_of(kind, name, persistence), effects)
        self.first_sequence = self.next_sequence = limits.sequences.floor + 1
        self.entries = entries = Entries()
        self.options: dict[int, Options] = {}
        """The options of messages that have any."""
        self.states = states = MessageStates()
        self.not_durable: set[int] = set()
        """The messages that are in memory only, until the disk has them or for good."""
        self.unwritten = Unwritten(limits.hold, usage, write=self._write)
        self.sent_by = SentBy(kind)
        self.dedup = DedupWindow(effects, timers, limits.dedup_quota, usage)
        self.correlations = Correlations(entries)
        self.ids = MessageIds()
        self.watermark = watermark = Watermark(effects, usage, entries)
        self.schedule = Schedule(
            effects, timers, limits.grace_period, entries, self.options, states, self.make_ready, self._over
        )
        self.dispatcher = dispatcher = Dispatcher(
            effects, memory, limits.caches, usage, entries, self.options, states, assign=self._assign
        )
        self.steps = Steps(effects, entries, dispatch=self._dispatch_deferred)
        self.consumers = consumers = dispatcher.consumers
        self.prefetch = prefetch = Prefetch(
            effects, timers, memory, usage, entries, consumers, dispatcher.with_consumers, lost=self.lose
        )
        self.deliveries = Deliveries(
            effects,
            timers,
            limits.flush,
            usage,
            watermark,
            prefetch.page_in,
            sent=self._sent,
            late=self._late,
        )
        self.dead_letters = dead = DeadLetters(effects, limits, usage)
        self.settlement = Settlement(
            effects,
            limits,
            usage,
            entries,
            self.options,
            states,
            dead,
            self.unwritten.settle,
            self.drop,
            refused=self._refused,
        )

    # Messages come

    def put(
        self,
        entries: Sequence[Entry],
        *,
        confirmed: bool,
        options: Mapping[int, Options] | None = None,
        reserved: bool = False,
        plain: bool = False,
    ) -> None:
        """Add messages, numbered by the caller from `next` on. Raises `TryLater` when they do not fit.

        `options` are by sequence. Messages whose room is `reserved` always fit. A `plain` message may be
        stored later than all else of the iteration, or never: nothing relies on it.
        """
        if plain and len(entries) == 1 and self._pass(entries[0], reserved=reserved):
            return
        count, size_bytes = len(entries), size_of(entries)
        if not reserved:
            self.limits.check(self.usage, count, size_bytes)
        self._come(entries, size_bytes)
        sequences = range(self.next_sequence - count, self.next_sequence)
        # Order is kept: no message overtakes one that waits for its commit.
        is_early = self._may_be_early(sequences)
        if self.usage.in_memory:
            self.limits.sequences.note_unstored(sequences)
        waits = confirmed or not is_early or self.states.uncommitted > 0
        self.states.enqueue(count, uncommitted=waits)
        self.usage.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)
        is_delayed = options and any(asked.due > self.effects.now for asked in options.values())
        if entries and not is_delayed and self.dispatcher.waiters:
            self.watermark.advance_new(entries)
        if options:
            self._heed(options)
        if self.correlations.known is not None:
            self.correlations.add(entries)
        if waits:
            self.effects.stage.when_stored(lambda error: self._stored(sequences, error, confirmed))
            return
        if not self.usage.in_memory:
            self.not_durable.update(sequences)
            self.effects.stage.when_stored(lambda error: self._saved(sequences, error), awaited=False)
        self.make_ready(sequences)

    def _come(self, entries: Sequence[Entry], size_bytes: int) -> None:
        """Count messages, and take them in."""
        usage, count = self.usage, len(entries)
        self.limits.count(usage, count, size_bytes)
        if not self.is_known and not self.name.startswith(RESERVED_PREFIX):
            self._report_created()
        if usage.metrics is None:
            usage.metrics = QueueMetrics()
        usage.metrics.arrivals.add(count, self.effects.now)
        self.next_sequence += count
        self.entries.append(entries)

    def _pass(self, entry: Entry, *, reserved: bool) -> bool:
        """Deliver a message without assurance to a waiting consumer. Returns False if none gets it.

        The message is in the queue as any other; only the store does not know it yet.
        """
        usage, limits, sequence = self.usage, self.limits, entry.sequence
        if (
            not self.cut_through
            or not self.dispatcher.waiters
            or self.options
            or self.fed is not None
            or self.states.uncommitted
            or self.steps.deferred
            or self.watermark.is_exact
            or self.effects.stage.backlog_bytes > limits.configured.backlog_bytes // 4
        ):
            return False
        size_bytes = entry.size_bytes
        if not reserved:
            limits.check(usage, 1, size_bytes)
        if not limits.sequences.covers(sequence) or (consumer := self.dispatcher.take(entry)) is None:
            return False
        self._come((entry,), size_bytes)
        limits.sequences.note_unstored((sequence,))
        if not usage.in_memory:
            self.not_durable.add(sequence)
            self.unwritten.add(entry)
        if self.correlations.known is not None:
            self.correlations.add((entry,))
        # The mark is stored with the message.
        entry.marked = True
        self.states.pass_to(consumer, entry, self.effects.now)
        self.deliveries.add(consumer, (entry,))
        return True

    def _write(self, entries: Sequence[Entry]) -> None:
        """Store messages that consumers were given before, with the mark that says so."""
        sequences = [entry.sequence for entry in entries]
        for entry in entries:
            self.usage.store(*puts(self.kind, self.name, (entry,)), size_bytes=entry.size_bytes)
        self.watermark.advance_new(entries)
        if self.watermark.is_exact:
            # Its policy has changed since.
            for entry in entries:
                self.watermark.store_attempts(entry)
        self.effects.stage.when_stored(lambda error: self._saved(sequences, error), awaited=False)

    def _report_created(self) -> None:
        self.effects.event(f"{self.kind}.created.{self.name}")
        if self.usage.in_memory:
            self.effects.stage.store(PutValue(MEMORY_QUEUES, (self.kind, self.name), UNKNOWN))

    def _may_be_early(self, sequences: Sequence[int]) -> bool:
        """Whether messages may be delivered though they are not durable."""
        return not sequences or self.limits.sequences.covers(sequences[-1])

    def _heed(self, options: Mapping[int, Options]) -> None:
        """Apply the options of new messages."""
        for sequence, asked in options.items():
            if asked.identity:
                self.dedup.record(asked.identity, sequence, self.usage.policy)
                self.ids.add((self.entries[sequence],))
            if asked.lasting:
                self.adopt(self.entries[sequence], asked)
        for sequence, asked in options.items():
            if asked.due > self.effects.now:
                # Others will be delivered, and the watermark be past it, before it.
                self.watermark.store_attempts(self.entries[sequence])

    def adopt(self, message: Entry, asked: Options) -> None:
        """Keep the options of a message, and apply them."""
        self.options[message.sequence] = asked
        if asked.expires:
            self.schedule.watch(message.sequence, asked.expires)
        if asked.tracker and not self.limits.trackers.open(self.usage, message):
            asked.tracker = ""

    def _stored(self, sequences: Sequence[int], error: MalamuteError | None, confirmed: bool) -> None:
        """Handle the end of a commit: the messages that waited for it are stored, or refused."""
        if not (error is None or confirmed or self.usage.in_memory or self._may_be_early(sequences)):
            self._keep_in_memory(sequences)
            self.limits.sequences.when_reserved(lambda: self._stored(sequences, error, confirmed))
            return
        self.states.commit(len(sequences))
        # A private mailbox may have been cleared meanwhile.
        sequences = [sequence for sequence in sequences if sequence in self.entries]
        if error is not None and confirmed:
            # The sender learns it from its number; a message that is not on the disk must not be delivered.
            for sequence in sequences if self.dedup.known else ():
                self.dedup.forget(self.entries[sequence])
            self.drop(sequences)
            return
        if error is not None and not self.usage.in_memory:
            self._keep_in_memory(sequences)
        self.make_ready(sequences)
        if error is None:
            self.evict_excess(sequences)

    def _keep_in_memory(self, sequences: Sequence[int]) -> None:
        """The disk has refused messages that nobody waits for."""
        self.not_durable.update(sequence for sequence in sequences if sequence in self.entries)
        self.limits.sequences.note_unstored(sequences)

    def _saved(self, sequences: Sequence[int], error: MalamuteError | None) -> None:
        """Handle the end of a commit of messages that are ready already."""
        if error is None:
            self.not_durable.difference_update(sequences)
            self.evict_excess(sequences)
        else:
            self._keep_in_memory(sequences)

    # Messages become ready

    def make_ready(self, sequences: Sequence[int]) -> None:
        """Let messages be delivered, as soon as it is time for them."""
        steps = self.steps
        is_behind = steps.deferred and sequences and sequences[-1] > steps.deferred.min()
        if is_behind or (len(sequences) > steps.step_messages and self.dispatcher.waiters):
            steps.defer(sequences)
        else:
            self._dispatch(sequences)

    def _dispatch(self, sequences: Sequence[int]) -> None:
        ready = self._in_time(sequences) if self.options else sequences
        if self.fed is None:
            self.dispatcher.dispatch(ready)
        else:
            left = self.fed.claim(ready)
            self.dispatcher.dispatch(left)
            self.fed.look(left)

    def _dispatch_deferred(self, sequences: Sequence[int]) -> None:
        self._dispatch(sequences)
        if self._memory.excess_bytes(self.usage) > 0:
            self.evict_excess([s for s in sequences if s not in self.not_durable])

    def _in_time(self, sequences: Iterable[int]) -> list[int]:
        """Return messages that are due; delay the others and settle expired ones."""
        times = self.schedule.times_of(sequences)
        if times.over:
            self.limits.flush.note(self.usage, "expired", len(times.over))
            self.settlement.settle(times.over, "expired")
        return self.schedule.delay_later(times)

    def _over(self, sequences: Sequence[int]) -> None:
        """Settle messages whose time to live is over, unless they are on their way to or from the disk."""
        self.settle_early(sequences, "expired", bound=False)

    # Consumers get them

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; its messages are ready again."""
        held, waited = sorted(consumer.outstanding), self.dispatcher.leave(consumer)
        self.detach(consumer, held)
        self.limits.timers.cancel(consumer.deadline)
        consumer.deadline = None
        back = sorted({*held, *waited}) if waited else held
        self.take_back(back)
        self.steps.run(back, lambda some: self.requeue(some, 0.0), requeues=True)
        if not self.consumers:
            self.prefetch.clear()
            self.watermark.retract()

    def _assign(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """Assign messages to a consumer, sent at the end of the iteration or as soon as possible."""
        self.states.assign(consumer, entries, self.effects.now)
        self.deliveries.add(consumer, entries)
        last = entries[0].sequence if len(entries) == 1 else max([entry.sequence for entry in entries])
        self.watermark.raise_to(last)

    def _sent(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """Messages were sent to a consumer."""
        if self._memory.excess_bytes(self.usage) > 0 and self.prefetch.room_bytes < 0:
            self.unwritten.write()
            self.evict_excess([e.sequence for e in entries if e.sequence not in self.not_durable])
        if self.prefetch.read_to:
            self.prefetch.advance(entries[-1].sequence)
        # One that takes all gets those that come next soon. Where some are more important than others, nobody
        # knows which these are.
        last = self.next_sequence - 1
        if consumer.group.takes_all and not self.options and last > self.watermark.last_delivered:
            counts = self.states.counts
            held = len(self.entries) - counts[READY] - self.states.uncommitted - counts[DELAYED]
            self.watermark.advance_ahead(held, last)
        if consumer.missing_bytes:
            self.dispatcher.count_missing(consumer)

    def lose(self, sequences: list[int]) -> None:
        """The records of messages cannot be read: they are dead."""
        self.settlement.dead_letter_unreadable(self._claim(sequences, ""))

    # Consumers have them no more

    def detach(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """Take deliveries away from a consumer: the messages are PENDING until the next event."""
        self.states.detach(consumer, sequences)
        if consumer.unsent and (recalled := consumer.recall(set(sequences))):
            self.states.uncount(recalled)
            self.dispatcher.count_missing(consumer)

    def take_back(self, sequences: Iterable[int]) -> None:
        """Return messages to PENDING, to be dispatched again."""
        self.states.take_back([*map(self.entries.__getitem__, sequences)])

    def give_back(self, consumer: Consumer, sequences: Sequence[int], delay: float | None) -> None:
        """Return held messages after an attempt: for `delay` seconds, or by the backoff."""
        self.detach(consumer, sequences)
        self.take_back(sequences)
        self.steps.run(sorted(sequences), lambda some: self.requeue(some, delay), requeues=True)

    def requeue(self, sequences: Sequence[int], delay: float | None) -> None:
        """Let messages that come back wait again, `delay` seconds, unless they had their attempts."""
        now, policy = self.effects.now, self.usage.policy
        ready: list[int] = []
        dead: list[int] = []
        for sequence in sequences:
            entry = self.entries[sequence]
            wait_for = policy.delay(entry.attempts) if delay is None else delay
            if 0 < policy.attempts_max <= entry.attempts:
                dead.append(sequence)
            elif wait_for > 0 and not self.schedule.is_over(sequence):
                self.schedule.delay(sequence, now + wait_for)
                self.watermark.store_attempts(entry, now + wait_for)
            else:
                ready.append(sequence)
        if dead:
            self.settlement.dead_letter(dead, "dead-lettered", "max-deliver")
        if ready:
            self.make_ready(ready)

    def _late(self, consumer: Consumer, late: list[int]) -> None:
        """Requeue deliveries whose deadline has passed."""
        self._recall(consumer, late, "timeout")
        self.limits.flush.note(self.usage, "timeout", len(late))
        self.give_back(consumer, late, None)

    def _recall(self, consumer: Consumer, sequences: list[int], reason: str) -> None:
        """Recall messages from a peer, other than unsent ones."""
        if sent := consumer.sent_of(sequences):
            consumer.remember_recalled(sent)
            self.effects.send(consumer.session.peer, Recall(consumer.source, ranges_of(sent), reason))

    def sent_to_consumers(self, sequences: Iterable[int]) -> list[tuple[Consumer, list[int]]]:
        """Return the messages of these that consumers hold, by consumer."""
        held: dict[int, list[int]] = {}
        for sequence in sequences:
            entry = self.entries[sequence]
            if entry.state == DELIVERED:
                held.setdefault(id(entry.consumer), []).append(sequence)
        found = [(self.consumers[identifier], theirs) for identifier, theirs in held.items()]
        return [(consumer, sent) for consumer, theirs in found if (sent := consumer.sent_of(theirs))]

    # Messages leave

    def settle_early(self, sequences: Iterable[int], outcome: str, *, bound: bool = True) -> int:
        """Settle messages wherever they are. Returns how many were there."""
        claimed = self._claim(sequences, outcome)
        if claimed:
            self.limits.flush.note(self.usage, outcome, len(claimed))
            self.settlement.settle(claimed, outcome, bound=bound)
        return len(claimed)

    def _claim(self, sequences: Iterable[int], reason: str) -> list[int]:
        """Take messages from where they are, and recall those that consumers hold if a reason is given.

        Returns the ones that were there; messages on their way to or from the disk are not.
        """
        claimed: list[Entry] = []
        held: dict[int, list[int]] = {}
        for sequence in dict.fromkeys(sequences):
            entry = self.entries.get(sequence)
            if entry is None or entry.state in (PENDING, SETTLING):
                continue
            if entry.state == DELAYED:
                self.schedule.claim(sequence)
            elif entry.state == DELIVERED:
                held.setdefault(id(entry.consumer), []).append(sequence)
            claimed.append(entry)
        # A consumer that loses some may be served at once, and must not get others of them.
        self.states.settle(claimed)
        for identifier, theirs in held.items():
            consumer = self.consumers[identifier]
            if reason:
                self._recall(consumer, theirs, reason)
            self.detach(consumer, theirs)
        return [entry.sequence for entry in claimed]

    def _refused(self, sequences: Sequence[int]) -> None:
        """The disk did not take the settlement of messages: they are where they were before."""
        self.states.refuse([*map(self.entries.__getitem__, sequences)])
        self.make_ready(sorted(self.schedule.delay_later(self.schedule.refused(sequences))))

    def drop(self, sequences: Sequence[int]) -> None:
        """Forget messages, with all that is known of them. Removing them from the store is for the caller."""
        entries = self.entries.remove(sequences)
        self.states.remove(entries)
        if self.options:
            for entry in entries:
                self.forget_options(entry)
        if self.schedule.delayed or self.schedule.claimed:
            self.schedule.drop(sequences)
        if self.sent_by.quotas:
            self.sent_by.remove(entries)
        if self.ids.known or self.correlations.known is not None:
            self.ids.remove(entries)
            self.correlations.remove(entries)
        if self.not_durable:
            self.not_durable.difference_update(sequences)
        if self.unwritten.entries:
            self.unwritten.settle(sequences)
        if self.watermark.never_delivered or self.watermark.revoked:
            self.watermark.forget(sequences)
        self.limits.count(self.usage, -len(entries), -size_of(entries))
        if paged_out := [entry for entry in entries if entry.record is None]:
            self._memory.count_paged_out(self.usage, -size_of(paged_out))

    def finish(self, consumer: Consumer, sequence: int) -> bool:
        """Remove an unwritten message that its consumer has done. Returns False for any other message."""
        entry = self.unwritten.entries.get(sequence)
        if entry is None or self.options or consumer.unsent:
            return False
        del self.unwritten.entries[sequence]
        self.settlement.log((entry,), "acknowledged", consumer.session.address)
        self.states.finish(consumer, entry)
        self.entries.remove((sequence,))
        self.not_durable.discard(sequence)
        if self.sent_by.quotas:
            self.sent_by.remove((entry,))
        if self.correlations.known is not None:
            self.correlations.remove((entry,))
        self.limits.count(self.usage, -1, -entry.size_bytes)
        return True

    def forget_options(self, entry: Entry) -> None:
        """Forget the options of a message that leaves, with its timer and its tracker."""
        asked = self.options.pop(entry.sequence, None)
        if asked is not None:
            self.limits.timers.cancel(asked.timer)
            if asked.tracker:
                self.limits.trackers.close(entry)

    # Memory

    def evict_excess(self, sequences: Sequence[int]) -> None:
        """Evict records of messages that are on the disk, if the queue has more than its share of memory."""
        excess = self._memory.excess_bytes(self.usage)
        if excess > 0 and not self.usage.in_memory:
            self.prefetch.evict(sequences, (excess + 1) // 2)

    # The queue itself

    @property
    def is_known(self) -> bool:
        """Whether anything was ever in it."""
        return self.is_stored or self.next_sequence > self.first_sequence

    @property
    def used(self) -> bool:
        """Whether there is a reason to keep it."""
        return bool(
            self.entries
            or self.consumers
            or self.usage.reserved
            or self.feeds
            or self.dead_letters.entries
            or self.dedup.known
            or self.set_aside
            or self.users is not None
        )
