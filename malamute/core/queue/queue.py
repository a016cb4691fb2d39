"""The messages of one mailbox or service, and their consumers: where all parts of a queue meet.

The parts know nothing of each other, and none of them knows the queue. `Queue` asks them in a fixed order:

    put          messages come: `limits`, `entries`, `states`, the store, `options`
    make_ready   they are committed, or come back: `schedule`, then `dispatcher`
    _assign      a consumer gets them: `states`, `deliveries`, `watermark`
    _sent        they are sent: deadlines, memory, `prefetch`, `watermark`
    detach       it has them no more; then comes `settlement`, or `take_back` and `requeue`
    drop         they have left: every part that knows of them forgets them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from pyroaring import BitMap64

from malamute.core.iteration.metrics import QueueMetrics
from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.correlations import Correlations
from malamute.core.queue.dead_letters import UNREADABLE, DeadLetters
from malamute.core.queue.deduplication import DedupWindow
from malamute.core.queue.delivery import Deliveries
from malamute.core.queue.delivery_watermark import Watermark
from malamute.core.queue.dispatch import Dispatcher
from malamute.core.queue.entry import Entries, Entry, puts, ranges_of, size_of
from malamute.core.queue.options import Options
from malamute.core.queue.paging import Prefetch
from malamute.core.queue.schedule import Schedule, Times
from malamute.core.queue.sent_by import SentBy
from malamute.core.queue.settlement import Settlement
from malamute.core.queue.state import AT_REST, DELAYED, DELIVERED, PENDING, READY, SETTLING, MessageStates
from malamute.core.queue.usage import QueueUsage
from malamute.protocol.messages import Recall
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import DeleteQueue, DeleteValue, PutValue
from malamute.store.tables import MEMORY_QUEUES

if TYPE_CHECKING:
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.iteration.timers import Timer
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.limits import QueueLimits
    from malamute.errors import MalamuteError
    from malamute.matching import Selector
    from malamute.store.operations import QueueState
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
        """Consumers have had what they could get of these."""

    def join(self, feed: Any) -> None:
        """There is one more."""

    def leave(self, feed: Any) -> None:
        """One has ended."""


class Queue:
    """The messages of one mailbox or service, and the consumers that take them."""

    def __init__(
        self, kind: BaseKind, name: str, limits: QueueLimits, persistence: Persistence | None = None
    ) -> None:
        """`persistence` is what it has in place of that of its policy."""
        effects, timers = limits.effects, limits.timers
        self.kind: BaseKind = kind
        self.name = name
        self.limits = limits
        self._memory = limits.memory
        self.effects = effects
        self.usage = usage = QueueUsage(kind, name, limits.policy_of(kind, name, persistence), effects)
        self.first_sequence = self.next_sequence = limits.sequences.floor + 1
        self.entries = entries = Entries()
        self._is_stored = False
        """Whether the store knew of it at the start."""
        self.options: dict[int, Options] = {}
        """Of those that have any."""
        self.states = MessageStates()
        self.not_durable: set[int] = set()
        """Those that are in memory only, until the disk has them or for good."""
        self.set_aside = 0
        """Messages that are in the store, and that nobody gets."""
        self.feeds = 0
        """How many feeds go from it or to it."""
        self.fed: FedFrom | None = None
        """The feeds from it, if there are any."""
        self.made_by: QuotaUsages = ()
        """The quotas that it counts for."""
        self.sent_by = SentBy(kind)
        self.collector: Timer | None = None
        """Removes it when it is not used."""
        self._coming = BitMap64()
        """What waits for its turn in the next iterations: to be dispatched, or to be given back."""
        self._returning = BitMap64()
        """Those of it that are given back."""
        self._is_coming = False
        """Whether the others have a workflow that dispatches them."""
        self._restored: list[Entry] = []
        """What the store kept, until `resume`."""
        self._damaged: list[int] = []
        """Those that the store could not read, until they are dead letters."""
        self.dedup = DedupWindow(effects, timers, limits.dedup_quota, usage)
        self.correlations = Correlations(entries)
        self.watermark = Watermark(effects, usage, entries)
        self.schedule = Schedule(
            effects, timers, limits.grace_period, entries, self.options, due=self._undelay, over=self._expire
        )
        self.dispatcher = Dispatcher(
            effects,
            limits.memory,
            limits.caches,
            usage,
            entries,
            self.options,
            self.states,
            assign=self._assign,
        )
        self.consumers = self.dispatcher.consumers
        self.prefetch = Prefetch(
            effects,
            timers,
            limits.memory,
            usage,
            entries,
            wanted=self.dispatcher.with_consumers,
            lost=self.lose,
        )
        self.deliveries = Deliveries(
            effects,
            limits.flush,
            usage,
            self.watermark,
            page_in=self.prefetch.page_in,
            sent=self._sent,
        )
        self.dead_letters = DeadLetters(effects, limits, usage)
        self.settlement = Settlement(
            effects,
            limits,
            usage,
            entries,
            self.options,
            self.states,
            self.dead_letters,
            settled=self.drop,
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
    ) -> None:
        """Add messages, numbered by the caller from `next` on. Raises `TryLater` when they do not fit.

        `options` are by sequence. Messages whose room is `reserved` always fit.
        """
        count, size_bytes = len(entries), size_of(entries)
        if not reserved:
            self.limits.check(self.usage, count, size_bytes)
        self.limits.count(self.usage, count, size_bytes)
        if not self.is_known and not self.name.startswith(RESERVED_PREFIX):
            self._report_created()
        if self.usage.metrics is None:
            self.usage.metrics = QueueMetrics()
        self.usage.metrics.arrivals.add(count, self.effects.now)
        sequences = range(self.next_sequence, self.next_sequence + count)
        self.next_sequence = sequences.stop
        self.entries.append(entries)
        # Order is kept: nobody overtakes what waits for its commit.
        is_early = self._may_be_early(sequences)
        if self.usage.in_memory:
            self.limits.sequences.note_unstored(sequences)
        waits = confirmed or not is_early or self.states.uncommitted > 0
        self.states.enqueue(count, uncommitted=waits)
        self.usage.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)
        is_delayed = options and any(asked.due > self.effects.now for asked in options.values())
        if entries and not is_delayed and self.dispatcher.awaiting and not self.watermark.is_exact:
            self.watermark.advance_new(entries)
        if options:
            self._heed(options)
        if self.correlations.known is not None:
            self.correlations.add(entries)
        if waits:
            self.effects.when_stored(lambda error: self._stored(sequences, error, confirmed))
            return
        if not self.usage.in_memory:
            self.not_durable.update(sequences)
            self.effects.when_stored(lambda error: self._saved(sequences, error), awaited=False)
        self.make_ready(sequences)

    def _report_created(self) -> None:
        self.effects.event(f"{self.kind}.created.{self.name}")
        if self.usage.in_memory:
            self.effects.store(PutValue(MEMORY_QUEUES, (self.kind, self.name), UNKNOWN))

    def _may_be_early(self, sequences: Sequence[int]) -> bool:
        """Whether messages may be delivered though they are not durable."""
        return not sequences or self.limits.sequences.covers(sequences[-1])

    def _heed(self, options: Mapping[int, Options]) -> None:
        """See to what messages that came now ask for."""
        for sequence, asked in options.items():
            if asked.identity:
                self.dedup.record(asked.identity, sequence, self.usage.policy)
            if asked.lasting:
                self._adopt(self.entries[sequence], asked)
        for sequence, asked in options.items():
            if asked.due > self.effects.now:
                # Others will be delivered, and the watermark be past it, before it.
                self.watermark.store_attempts(self.entries[sequence])

    def _adopt(self, message: Entry, asked: Options) -> None:
        """Remember what a message asks for, and see to it."""
        self.options[message.sequence] = asked
        if asked.expires:
            self.schedule.watch(message.sequence, asked.expires)
        if asked.tracker and not self.limits.trackers.open(self.usage, message):
            asked.tracker = ""

    def _stored(self, sequences: Sequence[int], error: MalamuteError | None, confirmed: bool) -> None:
        """The disk has what waited for it, or will never have it."""
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
        """The disk has what is ready already, or will never have it."""
        if error is None:
            self.not_durable.difference_update(sequences)
            self.evict_excess(sequences)
        else:
            self._keep_in_memory(sequences)

    # They become ready

    def make_ready(self, sequences: Sequence[int]) -> None:
        """Let messages be delivered, as soon as it is time for them."""
        is_behind = self._coming and sequences and sequences[-1] > self._coming.min()
        if is_behind or (len(sequences) > STEP_MESSAGES and self.dispatcher.awaiting):
            self._dispatch_later(sequences)
        else:
            self._dispatch(sequences)

    def _dispatch_later(self, sequences: Sequence[int]) -> None:
        self._coming.update(sequences)
        if not self._is_coming:
            self._is_coming = True
            run_workflow(self.effects, self._come())

    def _dispatch(self, sequences: Sequence[int]) -> None:
        ready = self._in_time(sequences) if self.options else sequences
        if self.fed is None:
            self.dispatcher.dispatch(ready)
        else:
            left = self.fed.claim(ready)
            self.dispatcher.dispatch(left)
            self.fed.look(left)

    def _come(self) -> Workflow:
        """Dispatch what is too much for one iteration, and what has come behind what is given back."""
        try:
            while True:
                end = self._returning.min() if self._returning else inf
                some = [s for s in islice(self._coming, STEP_MESSAGES) if s < end]
                self._coming -= BitMap64(some)
                self.effects.work -= len(some)
                # The queue may have been cleared meanwhile.
                here = [s for s in some if s in self.entries]
                self._dispatch(here)
                if self._memory.excess_bytes(self.usage) > 0:
                    self.evict_excess([s for s in here if s not in self.not_durable])
                if len(self._coming) == len(self._returning):
                    return
                yield GO_ON
        finally:
            self._is_coming = False

    def _in_time(self, sequences: Iterable[int]) -> list[int]:
        """Those whose time it is. The others wait for it, or are over."""
        times = self.schedule.times_of(sequences)
        if times.over:
            self.limits.flush.note(self.usage, "expired", len(times.over))
            self.settlement.settle(times.over, "expired")
        return self._delay_all(times)

    def _delay_all(self, times: Times) -> list[int]:
        """Delay what may be delivered later only. Returns the others."""
        for sequence, due in times.later:
            self._delay(sequence, due)
        return times.ready

    def _delay(self, sequence: int, due: float) -> None:
        self.states.delay(self.entries[sequence])
        self.schedule.delay(sequence, due)

    def _undelay(self, sequence: int) -> None:
        """The delay of a message is over."""
        self.states.due([self.entries[sequence]])
        self.make_ready([sequence])

    def _expire(self, sequence: int) -> None:
        """The time of a message is over."""
        entry = self.entries[sequence]
        if not self.schedule.is_in_grace_period(sequence):
            # What is on its way to or from the disk is looked at when the disk has answered.
            self.settle_early([sequence], "expired", bound=False)
            return
        until = self.schedule.watch_grace_period(sequence)
        # A consumer that holds it goes on; what is on its way from the disk is looked at when it is there.
        if entry.state == READY:
            self.states.take_back([entry])
            self._delay(sequence, until)

    # Consumers get them

    def join(self, consumer: Consumer, selector: Selector) -> None:
        """Add a consumer to the group of its selector."""
        self.dispatcher.join(consumer, selector)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; what it held is ready again."""
        held, waited = sorted(consumer.outstanding), self.dispatcher.leave(consumer)
        self.detach(consumer, held)
        self.limits.timers.cancel(consumer.deadline)
        consumer.deadline = None
        back = sorted({*held, *waited}) if waited else held
        self.take_back(back)
        self.in_steps(back, lambda some: self.requeue(some, 0.0), give_back=True)
        if not self.consumers:
            self.prefetch.clear()
            self.watermark.retract()

    def _assign(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """A consumer gets messages. They are sent at the end of the iteration, or when they can be."""
        self.states.assign(consumer, entries, self.effects.now)
        self.deliveries.add(consumer, entries)
        last = entries[0].sequence if len(entries) == 1 else max([entry.sequence for entry in entries])
        self.watermark.raise_to(last)

    def _sent(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """Messages were sent to a consumer."""
        if consumer.deadline is None:
            self._watch(consumer)
        if self._memory.excess_bytes(self.usage) > 0 and self.prefetch.room_bytes < 0:
            self.evict_excess([e.sequence for e in entries if e.sequence not in self.not_durable])
        if self.prefetch.read_to:
            self.prefetch.advance(entries[-1].sequence)
        # One that takes all gets those that come next soon. Where some are more important than others, nobody
        # knows which these are.
        if consumer.group.takes_all and not self.options and not self.watermark.is_exact:
            counts = self.states.counts
            held = len(self.entries) - counts[READY] - self.states.uncommitted - counts[DELAYED]
            self.watermark.advance_ahead(held, self.next_sequence - 1)
        if consumer.missing_bytes:
            self._count_missing(consumer)

    def _count_missing(self, consumer: Consumer) -> None:
        """See how much a consumer still waits for, and whether that lets it have more."""
        consumer.count_missing()
        if not consumer.is_waiting and id(consumer) in self.consumers:
            self.dispatcher.serve(consumer)

    def lose(self, sequences: list[int]) -> None:
        """The records of messages cannot be read: they are dead."""
        self.settlement.dead_letter_unreadable(self._claim(sequences, ""))

    # Consumers have them no more

    def detach(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """Take deliveries away from a consumer. What comes next says where they are."""
        self.states.detach(consumer, sequences)
        if consumer.unsent and (recalled := consumer.recall(set(sequences))):
            self.states.uncount(recalled)
            self._count_missing(consumer)

    def take_back(self, sequences: Iterable[int]) -> None:
        """Nobody has these any more, nor may take them yet."""
        self.states.take_back([*map(self.entries.__getitem__, sequences)])

    def give_back(self, consumer: Consumer, sequences: Sequence[int], delay: float | None) -> None:
        """What a consumer held goes back after an attempt: for `delay` seconds, or by the backoff."""
        self.detach(consumer, sequences)
        self.take_back(sequences)
        self.in_steps(sorted(sequences), lambda some: self.requeue(some, delay), give_back=True)

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
                self._delay(sequence, now + wait_for)
                self.watermark.store_attempts(entry, now + wait_for)
            else:
                ready.append(sequence)
        if dead:
            self.settlement.dead_letter(dead, "dead-lettered", "max-deliver")
        if ready:
            self.make_ready(ready)

    def _watch(self, consumer: Consumer) -> None:
        """See to it that the first deadline of a consumer is noticed."""
        if (first := consumer.first_deadline) is not None:
            consumer.deadline = self.limits.timers.at(first, lambda: self._look_for_late(consumer))

    def _look_for_late(self, consumer: Consumer) -> None:
        consumer.deadline = None
        if late := consumer.pop_late(self.effects.now):
            self._recall(consumer, late, "timeout")
            self.limits.flush.note(self.usage, "timeout", len(late))
            self.give_back(consumer, late, None)
        self._watch(consumer)

    def _recall(self, consumer: Consumer, sequences: list[int], reason: str) -> None:
        """Report to a peer what is no longer its own, but for what it was not sent."""
        if sent := consumer.sent_of(sequences):
            consumer.remember_recalled(sent)
            self.effects.send(consumer.session.peer, Recall(consumer.source, ranges_of(sent), reason))

    # They leave

    def settle_early(self, sequences: Iterable[int], outcome: str, *, bound: bool = True) -> int:
        """Settle messages wherever they are. Returns how many were there."""
        claimed = self._claim(sequences, outcome)
        if claimed:
            self.limits.flush.note(self.usage, outcome, len(claimed))
            self.settlement.settle(claimed, outcome, bound=bound)
        return len(claimed)

    def _claim(self, sequences: Iterable[int], reason: str) -> list[int]:
        """Take messages from where they are, and recall those that consumers hold if a reason is given.

        Returns those that were there. What is on its way to or from the disk is not.
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

    def settle_ready(self, sequences: Sequence[int], outcome: str, reason: str) -> None:
        """Settle messages that nobody has, with all else of this iteration or not at all."""
        self.limits.flush.note(self.usage, outcome, len(sequences))
        self.settlement.settle(sequences, outcome, reason, bound=True)

    def hand_over(self, sequences: Sequence[int]) -> dict[int, Options]:
        """Messages go to another queue, and what they ask for is for that to see to. Returns what it is."""
        asked = {s: o for s in sequences if (o := self.options.get(s)) is not None} if self.options else {}
        for sequence, options in asked.items():
            self._forget_options(self.entries[sequence])
            # It is a duplicate here only.
            options.identity = ""
        return asked

    def take_again(
        self, entries: Sequence[Entry], asked: Mapping[int, Options], counted: Mapping[int, QuotaUsages]
    ) -> None:
        """They have not gone there after all, and count here again."""
        for entry in entries:
            if entry.sequence not in self.entries:
                continue
            if entry.sequence in asked:
                self._adopt(entry, asked[entry.sequence])
            if entry.sequence in counted:
                self.sent_by.add([entry], counted[entry.sequence])

    def _refused(self, sequences: Sequence[int]) -> None:
        """The disk did not take the settlement of messages: they are where they were before."""
        self.states.refuse([*map(self.entries.__getitem__, sequences)])
        self.make_ready(sorted(self._delay_all(self.schedule.refused(sequences))))

    def drop(self, sequences: Sequence[int]) -> None:
        """Forget messages, with all that is known of them. Removing them from the store is for the caller."""
        entries = self.entries.remove(sequences)
        self.states.remove(entries)
        if self.options:
            for entry in entries:
                self._forget_options(entry)
        if self.schedule.delayed or self.schedule.claimed:
            self.schedule.drop(sequences)
        if self.sent_by.quotas:
            self.sent_by.remove(entries)
        if self.correlations.known is not None:
            self.correlations.remove(entries)
        if self.not_durable:
            self.not_durable.difference_update(sequences)
        if self.watermark.never_delivered or self.watermark.revoked:
            self.watermark.forget(sequences)
        self.limits.count(self.usage, -len(entries), -size_of(entries))
        if paged_out := [entry for entry in entries if entry.record is None]:
            self._memory.count_paged_out(self.usage, -size_of(paged_out))

    def _forget_options(self, entry: Entry) -> None:
        asked = self.options.pop(entry.sequence, None)
        if asked is not None:
            self.limits.timers.cancel(asked.timer)
            if asked.tracker:
                self.limits.trackers.close(entry)

    # Much at once

    def in_steps(
        self,
        sequences: Sequence[int],
        act: Callable[[Sequence[int]], None],
        done: Callable[[], None] = lambda: None,
        *,
        give_back: bool = False,
    ) -> None:
        """Do something with messages that nobody takes: the first at once, and so many in an iteration.

        `done` is called with the last of them. If this is to `give_back` them, what comes meanwhile is
        dispatched behind them.
        """
        if len(sequences) <= STEP_MESSAGES:
            act(sequences)
            done()
            return
        steps = self._steps_back if give_back else self._steps
        run_workflow(self.effects, steps(sequences, act, done))

    def _steps(
        self, sequences: Sequence[int], act: Callable[[Sequence[int]], None], done: Callable[[], None]
    ) -> Workflow:
        for start in range(0, len(sequences), STEP_MESSAGES):
            if start:
                yield GO_ON
            self.effects.work -= STEP_MESSAGES
            # The queue may have been cleared meanwhile.
            act([s for s in sequences[start : start + STEP_MESSAGES] if s in self.entries])
        done()

    def _steps_back(
        self, sequences: Sequence[int], act: Callable[[Sequence[int]], None], done: Callable[[], None]
    ) -> Workflow:
        left = BitMap64(sequences)
        self._coming |= left
        self._returning |= left

        def have_turn(some: BitMap64) -> None:
            self._coming -= some
            self._returning -= some

        def act_in_turn(some: Sequence[int]) -> None:
            turn = BitMap64(some)
            have_turn(turn)
            left.difference_update(turn)
            act(some)

        try:
            yield from self._steps(sequences, act_in_turn, done)
        finally:
            have_turn(left)

    # Memory

    def evict_excess(self, sequences: Sequence[int]) -> None:
        """Evict records of messages that the disk has and that are not about to be sent.

        No more than there is too much, and the last first.
        """
        excess = self._memory.excess_bytes(self.usage)
        if excess <= 0 or self.usage.in_memory:
            return
        get = self.entries.get
        idle = [e for s in reversed(sequences) if (e := get(s)) is not None and e.state in AT_REST]
        if len(idle) < len(sequences):
            unsent = {entry.sequence for consumer in self.consumers.values() for entry in consumer.unsent}
            here = [e for s in sequences if s not in unsent and (e := get(s)) is not None]
            idle += [entry for entry in here if entry.state == DELIVERED]
        # What is evicted is free, for this queue as for others.
        self._memory.evict(self.usage, idle, (excess + 1) // 2)

    # Starts and damages

    def restore(self, state: QueueState) -> None:
        """Restore what the store kept. Every message up to `delivered` may have been delivered."""
        self.next_sequence = max(state.next, self.first_sequence)
        self._is_stored = True
        self.watermark.last_delivered = state.delivered
        damaged = set(state.damaged)
        state.messages.reverse()
        while state.messages:
            message = state.messages.pop()
            attempts = self.watermark.restore(state, message.sequence)
            paged_out_bytes = state.paged_out.get(message.sequence, 0)
            if message.sequence in damaged:
                message = message._replace(record=UNREADABLE)
                self._damaged.append(message.sequence)
            entry = Entry(message, attempts, marked=attempts > 0, paged_out_bytes=paged_out_bytes)
            self._restored.append(entry)
            self.limits.count(self.usage, 1, entry.size_bytes)
            if paged_out_bytes:
                self._memory.count_paged_out(self.usage, entry.size_bytes)
        self.entries.restore(self._restored)
        self.states.enqueue(len(self._restored))
        self.schedule.restore(state.due_ns, self.effects.time_ns)
        self.dedup.restore(state.identities, self.usage.policy, self.limits.grace_period.until)

    def resume(self, recovery: Recovery) -> None:
        """Begin with what was restored, in this queue and in all others."""
        restored, self._restored = self._restored, []
        for entry in restored:
            try:
                if (asked := Options.of(entry, self.effects.time_ns, self.effects.ahead_ns)) is not None:
                    self._adopt(entry, asked)
            except Exception as error:  # nobody knows what its sender wanted
                self._leave_aside(entry)
                recovery.skip(self.kind, f"{self.name}: message {entry.sequence}", error)
        restored = [entry for entry in restored if entry.sequence in self.entries]
        damaged, self._damaged = [s for s in self._damaged if s in self.entries], []
        sequences = [entry.sequence for entry in restored if entry.sequence not in damaged]
        self.requeue(self._delay_all(self.schedule.returning(sequences)), 0.0)
        if damaged:
            self.settlement.dead_letter_unreadable(damaged)
            # If the disk refuses that, they wait as messages whose records are only there, and die later.
            self._memory.evict(self.usage, [self.entries[sequence] for sequence in damaged])
        # The store counts records alone; all that messages take may be more than there is memory.
        self.evict_excess(sequences)

    def _leave_aside(self, entry: Entry) -> None:
        """A message is in the store, and nobody gets it."""
        self.set_aside += 1
        if (asked := self.options.pop(entry.sequence, None)) is not None:
            self.limits.timers.cancel(asked.timer)
        self.drop([entry.sequence])

    def store_again(self, sequences: Iterable[int]) -> None:
        """The store has lost messages: those whose records are here are stored once more, others are dead."""
        here = [entry for sequence in sequences if (entry := self.entries.get(sequence)) is not None]
        for entry in here:
            if entry.record is not None and entry.state != SETTLING:
                self.effects.store(*puts(self.kind, self.name, [entry]), size_bytes=entry.size_bytes)
                delay = self.schedule.delayed.get(entry.sequence)
                self.watermark.store_attempts(entry, delay.due if delay else 0.0)
        if lost := [entry.sequence for entry in here if entry.record is None and entry.state in AT_REST]:
            self.lose(lost)

    def store_identities_again(self, identities: Iterable[str]) -> None:
        """The store has lost identities. That of a message that is not durable yet is stored with it."""
        known = self.dedup.known
        self.dedup.store_again([i for i in identities if i in known and self._is_durable(known[i][0])])

    def _is_durable(self, sequence: int) -> bool:
        """Whether the outcome of the append with a message is known, and it is there."""
        entry = self.entries.get(sequence)
        return sequence not in self.not_durable and (entry is None or entry.state != PENDING)

    # The queue itself

    def configure(self) -> None:
        """Go by another policy from now on, but for what its data structures were made for."""
        before = self.usage.policy
        policy = self.limits.policy_of(self.kind, self.name, before.persistence)
        self.usage.policy = policy._replace(
            priority_step_messages=before.priority_step_messages,
            dedup_window_seconds=before.dedup_window_seconds,
            dedup_ids_max=before.dedup_ids_max,
        )

    @property
    def is_known(self) -> bool:
        """Whether anything was ever in it."""
        return self._is_stored or self.next_sequence > self.first_sequence

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
        )

    def close(self) -> None:
        """The broker ends: leave in the store what the next start has to know."""
        self.limits.sequences.note_unstored(sorted(self.not_durable))
        self.watermark.retract()
        if self.usage.in_memory and self.is_known:
            self.effects.store(PutValue(MEMORY_QUEUES, (self.kind, self.name), len(self.entries)))

    def delete(self) -> None:
        """Let the store forget the queue and its dead letters."""
        if self.usage.in_memory:
            self.effects.store(DeleteValue(MEMORY_QUEUES, (self.kind, self.name)))
            return
        self.effects.store(DeleteQueue(self.kind, self.name))
        # Behind a restore nobody knows whether there ever were any.
        if self.dead_letters.next_sequence > 1:
            self.effects.store(DeleteQueue(self.dead_letters.kind, self.name))

    def clear(self) -> None:
        """Remove everything; there are no consumers. The memory of very much is free later."""
        self.settlement.post_purged()
        # Nothing comes of them any more while they are removed.
        self.schedule.drop(self.entries)
        self.states.due([entry for entry in self.entries.values() if entry.state == DELAYED])
        self.states.take_back([entry for entry in self.entries.values() if entry.state == READY])
        self.in_steps([*self.entries], self.drop)
        self.prefetch.clear()
        self.dead_letters.clear()
        self.dedup.close()
