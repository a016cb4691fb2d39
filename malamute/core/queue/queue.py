"""The messages of one mailbox or service, and who gets them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from malamute.core.metrics import QueueMetrics
from malamute.core.queue.correlations import Correlations
from malamute.core.queue.dead_letters import UNREADABLE, DeadLetters
from malamute.core.queue.deduplication import DedupWindow
from malamute.core.queue.delivery_watermark import Watermark
from malamute.core.queue.dispatch import Dispatcher
from malamute.core.queue.entry import Entry, puts, size_of
from malamute.core.queue.options import Options
from malamute.core.queue.paging import RUN_BYTES, RUNS_AHEAD, Prefetch
from malamute.core.queue.schedule import Schedule, Times
from malamute.core.queue.settlement import Settlement
from malamute.core.queue.state import AT_REST, DELAYED, DELIVERED, READY, SETTLING, MessageStates
from malamute.core.workflow import GO_ON, STORED, Workflow, run_workflow
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import QueueState

if TYPE_CHECKING:
    from malamute.core.effects import WhenStored
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.waiters import ConsumerGroup
    from malamute.core.recovery import Recovery
    from malamute.core.timers import Timer
    from malamute.errors import MalamuteError
    from malamute.matching import Selector
    from malamute.store.policies import BaseKind


STEP_MESSAGES = 1_000
"""Messages that are given back or end in one iteration, of those that do so together."""


class PurgeProgress(Protocol):
    """What a purge calls with how many messages were dropped, and how many before those of this commit."""

    def __call__(self, count: int, before: int, *, final: bool = True, partial: bool = False) -> None:
        """So many are dropped, with all that this iteration stores; if it is not `final`, more come."""


class Queue:
    """The messages of one mailbox or service, and the consumers that take them."""

    def __init__(self, kind: BaseKind, name: str, limits: QueueLimits) -> None:
        self.kind: BaseKind = kind
        self.name = name
        self.limits = limits
        self.effects = limits.effects
        self.policy = limits.policy_of(kind, name)
        self.first_sequence = self.next_sequence = limits.incarnation + 1
        self.bytes = 0
        self.paged_out_bytes = 0
        """The part of them that takes no memory: records on the disk only, and room that is reserved."""
        self.reserved = 0
        """Outcomes that may still come, and have their room."""
        self.entries: dict[int, Entry] = {}
        self.sequences = BitMap64()
        """Of all entries: where a look at them can go on that was broken off."""
        self.options: dict[int, Options] = {}
        """Of those that have any."""
        self.states = MessageStates()
        self.uncommitted = 0
        """How many were put and wait for their commit."""
        self._restored: list[Entry] = []
        """What the store kept, until `resume`."""
        self.not_durable: set[int] = set()
        """Those that are in memory only, until the disk has them or for good."""
        self.feeds = 0
        """Streams that make requests of their messages for it."""
        self.metrics: QueueMetrics | None = None
        self.collector: Timer | None = None
        """Removes it when it is not used."""
        self.counts: Counter[str] = Counter()
        self.set_aside = 0
        """Messages that are in the store, and that nobody gets."""
        self.consumers: dict[int, Consumer] = {}
        self._coming: deque[int] = deque()
        """What is ready, and is dispatched in the next iterations."""
        self._damaged: list[int] = []
        """Those that the store could not read, until they are dead letters."""
        self.dead_letters = DeadLetters(self)
        self.dedup = DedupWindow(self.effects, limits.timers, limits.dedup_quota, kind, name)
        self.watermark = Watermark(self.effects, kind, name, self.entries)
        self.correlations = Correlations(self.entries)
        self.schedule = Schedule(
            self.effects,
            limits.timers,
            limits.doubt,
            self.entries,
            self.options,
            due=self._undelay,
            over=self._expire,
        )
        self.dispatcher = Dispatcher(self)
        self.settlement = Settlement(self)
        self.prefetch = Prefetch(
            self.effects, limits.timers, limits.memory, self, self.settlement.dead_letter_damaged
        )

    # Messages in

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
        size_bytes = size_of(entries)
        if not reserved:
            self.limits.check(self, len(entries), size_bytes)
        self.limits.count(self, len(entries), size_bytes)
        if self.next_sequence == self.first_sequence and not self.name.startswith(RESERVED_PREFIX):
            self.effects.event(f"{self.kind}.created.{self.name}")
        if self.metrics is None:
            self.metrics = QueueMetrics()
        self.metrics.arrivals.add(len(entries), self.effects.now)
        sequences = range(self.next_sequence, self.next_sequence + len(entries))
        self.next_sequence = sequences.stop
        self.entries.update({entry.sequence: entry for entry in entries})
        self.sequences.add_range(sequences.start, sequences.stop)
        self.states.enqueue(len(entries))
        self.effects.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)
        is_delayed = options and any(asked.due > self.effects.now for asked in options.values())
        if entries and not is_delayed and self.dispatcher.awaiting and not self.is_exact:
            self.watermark.advance_new(entries)
        if options:
            self._heed(options)
        if self.correlations.known is not None:
            self.correlations.add(entries)
        if confirmed or self.uncommitted:
            self.uncommitted += len(sequences)
            self.effects.when_stored(lambda error: self._stored(sequences, error, confirmed))
        else:
            self.not_durable.update(sequences)
            self.effects.when_stored(lambda error: self._saved(sequences, error), awaited=False)
            self.make_ready(sequences)

    def _heed(self, options: Mapping[int, Options]) -> None:
        """See to what messages that came now ask for."""
        for sequence, asked in options.items():
            if asked.identity:
                self.dedup.record(asked.identity, sequence, self.policy)
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
        if asked.tracker:
            self.limits.trackers.open(self, message)

    def restore(self, state: QueueState) -> None:
        """Take up what the store kept. Every message up to `delivered` may have been delivered."""
        self.next_sequence = max(state.next, self.first_sequence)
        self.watermark.last_delivered = state.delivered
        damaged = set(state.damaged)
        state.messages.reverse()
        while state.messages:
            message = state.messages.pop()
            attempts = self.watermark.restore(state, message.sequence, exact=self.is_exact)
            paged_out_bytes = state.paged_out.get(message.sequence, 0)
            if message.sequence in damaged:
                message = message._replace(record=UNREADABLE)
                self._damaged.append(message.sequence)
            entry = Entry(message, attempts, marked=attempts > 0, paged_out_bytes=paged_out_bytes)
            self.entries[message.sequence] = entry
            self._restored.append(entry)
            self.limits.count(self, 1, entry.size_bytes)
            if paged_out_bytes:
                self.limits.memory.count_paged_out(self, entry.size_bytes)
        self.sequences.update(self.entries)
        self.states.enqueue(len(self._restored))
        self.schedule.restore(state.due, self.effects.time_ns)
        self.dedup.restore(state.identities, self.policy, self.limits.doubt.until)

    def resume(self, recovery: Recovery) -> None:
        """Begin with what was restored, in this queue and in all others."""
        restored, self._restored = self._restored, []
        for entry in restored:
            try:
                if (asked := Options.of(entry, self.effects.time_ns, self.effects.ahead_ns)) is not None:
                    self._adopt(entry, asked)
            except Exception as error:  # nobody can tell what its sender wanted
                self._leave_aside(entry)
                recovery.skip(self.kind, f"{self.name}: message {entry.sequence}", error)
        restored = [entry for entry in restored if entry.sequence in self.entries]
        damaged, self._damaged = [s for s in self._damaged if s in self.entries], []
        sequences = [entry.sequence for entry in restored if entry.sequence not in damaged]
        self._requeue(self._delay_all(self.schedule.returning(sequences)), 0.0)
        if damaged:
            self.settlement.dead_letter_unreadable(damaged)
        # The store counts records alone; all that messages take may be more than there is memory.
        self.evict_excess(sequences)

    def store_again(self, sequences: Iterable[int]) -> None:
        """The store has lost messages: those whose records are here are stored once more, others are dead."""
        here = [entry for sequence in sequences if (entry := self.entries.get(sequence)) is not None]
        for entry in here:
            if entry.record is not None and entry.state != SETTLING:
                self.effects.store(*puts(self.kind, self.name, [entry]), size_bytes=entry.size_bytes)
                self.watermark.store_attempts(entry)
        if lost := [entry.sequence for entry in here if entry.record is None and entry.state in AT_REST]:
            self.settlement.dead_letter_damaged(lost)

    def _leave_aside(self, entry: Entry) -> None:
        """A message is in the store, and nobody gets it."""
        self.set_aside += 1
        del self.entries[entry.sequence]
        self.sequences.discard(entry.sequence)
        self.states.remove([entry])
        if (asked := self.options.pop(entry.sequence, None)) is not None:
            self.limits.timers.cancel(asked.timer)
        self.limits.count(self, -1, -entry.size_bytes)
        if entry.paged_out:
            self.limits.memory.count_paged_out(self, -entry.size_bytes)

    def _stored(self, sequences: Sequence[int], error: MalamuteError | None, confirmed: bool) -> None:
        self.uncommitted -= len(sequences)
        # A private mailbox may have been cleared meanwhile.
        sequences = [sequence for sequence in sequences if sequence in self.entries]
        if error is not None and confirmed:
            # The sender learns it from its number; a message that is not on the disk must not be delivered.
            for sequence in sequences if self.dedup.known else ():
                self.dedup.forget(self.entries[sequence])
            self.settlement.drop(sequences)
            return
        self.make_ready(sequences)
        if error is None:
            self.evict_excess(sequences)
        else:
            self.not_durable.update(sequences)

    def _saved(self, sequences: Sequence[int], error: MalamuteError | None) -> None:
        """The disk has what is ready already, or will never have it."""
        if error is None:
            self.not_durable.difference_update(sequences)
            self.evict_excess(sequences)

    def make_ready(self, sequences: Sequence[int]) -> None:
        """Let messages be delivered, as soon as it is time for them."""
        if self._coming and sequences and sequences[-1] > self._coming[0]:
            self._coming.extend(sequences)
        elif len(sequences) > STEP_MESSAGES and self.dispatcher.awaiting:
            self._coming.extend(sequences)
            run_workflow(self.effects, self._come())
        else:
            self.dispatcher.dispatch(self._in_time(sequences) if self.options else sequences)

    def _come(self) -> Workflow:
        """Dispatch what is too much for one iteration."""
        while self._coming:
            some = [self._coming.popleft() for _ in range(min(STEP_MESSAGES, len(self._coming)))]
            self.effects.work -= len(some)
            # The queue may have been cleared meanwhile.
            here = [s for s in some if s in self.entries]
            self.dispatcher.dispatch(self._in_time(here) if self.options else here)
            if self.excess_bytes > 0:
                self.evict_excess([s for s in here if s not in self.not_durable])
            if self._coming:
                yield GO_ON

    # Times

    def _in_time(self, sequences: Iterable[int]) -> list[int]:
        """Those whose time it is. The others wait for it, or are over."""
        times = self.schedule.times_of(sequences)
        if times.over:
            self.limits.flush.note(self, "expired", len(times.over))
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
        self.states.due([self.entries[sequence]])
        self.make_ready([sequence])

    def _expire(self, sequence: int) -> None:
        entry = self.entries[sequence]
        if not self.schedule.is_doubtful(sequence):
            # What is on its way to or from the disk is looked at when the disk has answered.
            self.settlement.settle_early([sequence], "expired", bound=False)
            return
        until = self.schedule.watch_doubtful(sequence)
        # Whoever holds it goes on, and what is on its way from the disk is looked at when it is there.
        if entry.state == READY:
            self.states.take_back([entry])
            self._delay(sequence, until)

    def refuse(self, sequences: Sequence[int]) -> None:
        """The disk did not take the settlement of messages: they are where they were before."""
        self.states.refuse([*map(self.entries.__getitem__, sequences)])
        self.make_ready(sorted(self._delay_all(self.schedule.refused(sequences))))

    # Memory

    def evict_excess(self, sequences: Sequence[int]) -> None:
        """Let go the records of messages that the disk has and that are not about to be sent.

        No more than there is too much, and the last first.
        """
        excess = self.excess_bytes
        if excess <= 0:
            return
        get = self.entries.get
        idle = [e for s in reversed(sequences) if (e := get(s)) is not None and e.state in AT_REST]
        if len(idle) < len(sequences):
            unsent = {entry.sequence for consumer in self.consumers.values() for entry in consumer.unsent}
            here = [e for s in sequences if s not in unsent and (e := get(s)) is not None]
            idle += [entry for entry in here if entry.state == DELIVERED]
        # What it lets go is free, for itself as for others.
        self.limits.memory.evict(self, idle, (excess + 1) // 2)

    def with_consumers(self, entries: list[Entry]) -> list[Entry]:
        """Those of some messages that anybody takes, with or without credit."""
        return self.dispatcher.with_consumers(entries)

    @property
    def excess_bytes(self) -> int:
        """The bytes of records by which it has more than is free for all."""
        return self.bytes - self.paged_out_bytes - self.limits.memory.free_bytes

    @property
    def prefetch_bytes(self) -> int:
        """The bytes of records that it may bring from the disk before they are asked for."""
        # What comes into its memory is no longer free for all: it counts twice.
        return (min(2 * (RUNS_AHEAD + 1) * RUN_BYTES, self.limits.memory.free_bytes) - self.excess_bytes) // 2

    @property
    def missing_bytes_max(self) -> int:
        """The bytes of records that a consumer may wait for and still be given one message more."""
        return min(RUN_BYTES, self.limits.memory.free_bytes)

    # Consumers

    def join(self, consumer: Consumer, selector: Selector) -> ConsumerGroup[Consumer]:
        """Add a consumer to the group of its selector."""
        self.consumers[id(consumer)] = consumer
        return self.dispatcher.join(consumer, selector)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; what it held is ready again."""
        del self.consumers[id(consumer)]
        held, waited = sorted(consumer.outstanding), self.dispatcher.leave(consumer)
        consumer.detach(held)
        consumer.unwatch()
        back = sorted({*held, *waited}) if waited else held
        self._take_back(back)
        self._in_steps(back, lambda some: self._requeue(some, 0.0))
        if not self.consumers:
            self.prefetch.clear()
            self.watermark.retract()

    # Messages out

    def complete(self, consumer: Consumer, sequences: Sequence[int], *, confirmed: bool = False) -> None:
        """Remove messages for good: they were acknowledged.

        `confirmed` binds it to all that this iteration stores: if that fails, they are ready again.
        """
        consumer.detach(sequences)
        self.settlement.settle(sequences, "acknowledged", bound=confirmed, worker=consumer.session.address)

    def acknowledge(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """The same for what nothing else depends on, however much it is."""
        consumer.detach(sequences)
        if len(sequences) > STEP_MESSAGES:
            # Nobody takes them before it is their turn.
            self._take_back(sequences)
        worker = consumer.session.address
        self._in_steps(sequences, lambda some: self.settlement.settle(some, "acknowledged", worker=worker))

    def give_back(self, consumer: Consumer, sequences: Sequence[int], delay: float | None) -> None:
        """What a consumer held goes back after an attempt; without a delay, by the backoff."""
        consumer.detach(sequences)
        self._take_back(sequences)
        self._in_steps(sorted(sequences), lambda some: self._requeue(some, delay))

    def release(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """What a consumer held goes back as if it had not been delivered."""
        self._in_steps(sorted(sequences), self._taken_back(consumer, sequences))

    def drain(self, consumer: Consumer, sequences: Sequence[int], told: WhenStored) -> None:
        """A consumer takes nothing more: what it gives back untouched, and what waits for it, is others'.

        `told` is called when what it gives back is stored, or with the error that kept some of it from that.
        """
        waited: set[int] = set()
        take_back = self._taken_back(consumer, sequences, waited)
        # The keys of what it gives back are not its own any more.
        waited.update(self.dispatcher.drain(consumer))
        back = sorted({*sequences, *waited}) if waited else sorted(sequences)
        self._take_back(waited.difference(sequences))
        if not sequences:
            self._in_steps(back, self.make_ready)
            told(None)
            return
        errors: list[MalamuteError | None] = []

        def act(some: Sequence[int]) -> None:
            take_back(some)
            self.effects.when_stored(errors.append)

        def done() -> None:
            self.effects.when_stored(lambda error: told(next(filter(None, errors), error)))

        self._in_steps(back, act, done)

    def _taken_back(
        self, consumer: Consumer, sequences: Sequence[int], waited: Set[int] = frozenset()
    ) -> Callable[[Sequence[int]], None]:
        """Take from a consumer what it did not look at. Returns what lets some of it wait again.

        What `waited` for it, it has not had.
        """
        unsent = {entry.sequence for entry in consumer.unsent}
        consumer.detach(sequences)
        self._take_back(sequences)

        def act(some: Sequence[int]) -> None:
            for sequence in some:
                if sequence in waited:
                    continue
                entry = self.entries[sequence]
                entry.attempts -= sequence not in unsent
                # The disk may have been told of one that was about to be sent.
                self.watermark.store_attempts(entry)
            self.make_ready(some)

        return act

    def reject(self, consumer: Consumer, sequences: Sequence[int], reason: str) -> None:
        """What a consumer held is dead."""
        consumer.detach(sequences)
        self._take_back(sequences)
        worker = consumer.session.address
        self._in_steps(
            sorted(sequences), lambda some: self.settlement.dead_letter(some, "rejected", reason, worker)
        )

    def withdraw(
        self,
        sender: str,
        correlation: int | str,
        told: PurgeProgress,
        failed: Callable[[MalamuteError], None],
    ) -> None:
        """Remove the messages of a sender under a correlation, and tell as `purge` does."""
        sequences = self.correlations.of(sender, correlation)
        run_workflow(self.effects, self._purge(sequences, told, failed, "withdrawn"))

    def purge(
        self, sequences: Sequence[int], told: PurgeProgress, failed: Callable[[MalamuteError], None]
    ) -> None:
        """Drop messages, if the disk lets it, and tell how many were there, or by `failed` why none.

        What does not fit one commit is told with each of them: one of the others may fail, or never come.
        """
        run_workflow(self.effects, self._purge(sequences, told, failed))

    def _purge(
        self,
        sequences: Sequence[int],
        told: PurgeProgress,
        failed: Callable[[MalamuteError], None],
        outcome: str = "purged",
    ) -> Workflow:
        count = 0
        for start in range(0, max(len(sequences), 1), STEP_MESSAGES):
            before = count
            some = sequences[start : start + STEP_MESSAGES]
            count += self.settlement.settle_early(some, outcome)
            self.effects.work -= len(some)
            if start + STEP_MESSAGES >= len(sequences):
                told(count, before)
                return
            told(count, before, final=False)
            if (error := (yield STORED)) is not None:
                if before:
                    told(before, before, partial=True)
                else:
                    failed(error)
                return

    def _take_back(self, sequences: Iterable[int]) -> None:
        """Nobody has these any more, nor may take them yet."""
        self.states.take_back([*map(self.entries.__getitem__, sequences)])

    def _in_steps(
        self,
        sequences: Sequence[int],
        act: Callable[[Sequence[int]], None],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Do something with messages that nobody takes: the first at once, and so many in an iteration.

        `done` is called with the last of them.
        """
        if len(sequences) <= STEP_MESSAGES:
            act(sequences)
            done()
            return
        run_workflow(self.effects, self._steps(sequences, act, done))

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

    def configure(self) -> None:
        """Go by another policy from now on, but for what its data structures were made for."""
        policy, before = self.limits.policy_of(self.kind, self.name), self.policy
        self.policy = policy._replace(
            priority_step_messages=before.priority_step_messages,
            dedup_window_seconds=before.dedup_window_seconds,
            dedup_ids_max=before.dedup_ids_max,
        )

    def _requeue(self, sequences: Sequence[int], delay: float | None) -> None:
        """Let messages that come back wait again, unless they had their attempts."""
        now, most = self.effects.now, self.policy.attempts_max
        ready: list[int] = []
        dead: list[int] = []
        for sequence in sequences:
            entry = self.entries[sequence]
            wait_for = self.policy.delay(entry.attempts) if delay is None else delay
            if 0 < most <= entry.attempts:
                dead.append(sequence)
            elif wait_for > 0:
                self._delay(sequence, now + wait_for)
                self.watermark.store_attempts(entry, now + wait_for)
            else:
                ready.append(sequence)
        if dead:
            self.settlement.dead_letter(dead, "dead-lettered", "max-deliver")
        if ready:
            self.make_ready(ready)

    # The queue itself

    def advance_ahead(self) -> None:
        """Messages were delivered to a consumer that takes all: those that come next are delivered soon."""
        # Where some are more important than others, nobody knows which come next.
        if not self.options and not self.is_exact:
            counts = self.states.counts
            held = len(self.entries) - counts[READY] - self.uncommitted - counts[DELAYED]
            self.watermark.advance_ahead(held, self.next_sequence - 1)

    @property
    def is_exact(self) -> bool:
        """Whether it has to be stored of each message by itself that it may have been delivered."""
        return self.policy.attempts_max == 1

    @property
    def used(self) -> bool:
        """Whether there is a reason to keep it."""
        return bool(
            self.entries
            or self.consumers
            or self.reserved
            or self.feeds
            or self.dead_letters.entries
            or self.dedup.known
            or self.set_aside
        )

    def clear(self) -> None:
        """Remove everything; there are no consumers. The memory of very much is free later."""
        self.settlement.post_purged()
        # Nothing comes of them any more while they are removed.
        self.schedule.drop(self.entries)
        self.states.due([entry for entry in self.entries.values() if entry.state == DELAYED])
        self.states.take_back([entry for entry in self.entries.values() if entry.state == READY])
        self._in_steps([*self.entries], self.settlement.drop)
        self.prefetch.clear()
        self.dead_letters.clear()
        self.dedup.close()

    def run_from(self, sequence: int, count: int) -> list[Entry]:
        """So many entries from a sequence on, in order."""
        sequences = islice(self.sequences.iter_equal_or_larger(sequence), count)
        return [*map(self.entries.__getitem__, sequences)]

    @property
    def oldest(self) -> int | None:
        """The broker's time of the oldest message, in nanoseconds UTC."""
        return next(iter(self.entries.values())).time_ns if self.entries else None
