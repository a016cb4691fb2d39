"""The messages of one mailbox or service, and who gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from malamute.core.delivery.cold import RUN_BYTES, Ahead, records_of, runs
from malamute.core.delivery.correlations import Correlations
from malamute.core.delivery.dead import DeadLetters
from malamute.core.delivery.entry import Entry, puts, ranges_of, size_of
from malamute.core.delivery.identities import Identities
from malamute.core.delivery.keys import Keys
from malamute.core.delivery.line import Backlog, Line, Lines, Order, order_of, sequence_of
from malamute.core.delivery.options import Options
from malamute.core.steps import Steps, proceed
from malamute.core.storage import (
    DeleteMessages,
    MarkDelivered,
    QueueState,
    SetAttempts,
)

if TYPE_CHECKING:
    from malamute.core.delivery.budget import Budget
    from malamute.core.delivery.consumer import Consumer
    from malamute.core.delivery.policy import BaseKind
    from malamute.core.measures import Measures
    from malamute.core.timers import Timer
    from malamute.errors import MalamuteError
    from malamute.matching import Groups, Selector

RETRY_SECONDS = 1.0
"""How long a message whose time is over is kept, when the disk would not let it go."""


class Queue:
    """The messages of one mailbox or service, and the consumers that take them."""

    def __init__(self, kind: BaseKind, name: str, budget: Budget) -> None:
        self.kind: BaseKind = kind
        self.name = name
        self.budget = budget
        self.turn = budget.turn
        self.policy = budget.policy_of(kind, name)
        self.next = 1
        self.delivered = 0
        self.bytes = 0
        self.cold = 0
        """The part of them that takes no memory: records on the disk only, and room that is reserved."""
        self.reserved = 0
        """Outcomes that may still come, and have their room."""
        self.entries: dict[int, Entry] = {}
        self.options: dict[int, Options] = {}
        """Of those that have any."""
        self.waiting = 0
        """How many of them wait for a consumer."""
        self.delayed: dict[int, Timer] = {}
        self._delayed_until: dict[int, float] = {}
        """When those come again that were delayed before they were to leave, or before a restart."""
        self.untouched: set[int] = set()
        """Those of which the disk says that they were never delivered, whatever it is told of others."""
        self.unstored = 0
        self.unsaved: set[int] = set()
        """Those that are in memory only, until the disk has them or for good."""
        self.feeds = 0
        """Streams that make requests of their messages for it."""
        self.measures: Measures | None = None
        self.collector: Timer | None = None
        """Removes it when it is not used."""
        self.counts: Counter[str] = Counter()
        self.consumers: dict[int, Consumer] = {}
        self.dead = DeadLetters(self)
        self.identities = Identities(self)
        self.ahead = Ahead(self)
        self._keys = Keys()
        self._lines = Lines(self._family_failed)
        self._correlations = Correlations(self.entries)
        self._clock = 0

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
            self.budget.check(self, len(entries), size_bytes)
        self.budget.take(self, len(entries), size_bytes)
        self.budget.ledger.arrived(self, len(entries))
        sequences = range(self.next, self.next + len(entries))
        self.next = sequences.stop
        self.entries.update(zip(sequences, entries, strict=True))
        self.turn.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)
        delayed = [sequence for sequence, asked in (options or {}).items() if asked.due > self.turn.now]
        if not delayed and not self.exact and self._lines.awaiting:
            for entry in entries:
                entry.marked = True
            self.turn.store_bound(MarkDelivered(self.kind, self.name, self.next - 1))
        for sequence, asked in (options or {}).items():
            self._adopt(self.entries[sequence], asked)
        for sequence in delayed:
            # Others will be delivered, and marked, before it.
            self._count(self.entries[sequence])
        self._correlations.add(entries)
        if confirmed or self.unstored:
            self.unstored += len(sequences)
            self.turn.when_stored(lambda error: self._stored(sequences, error, confirmed))
        else:
            self.unsaved.update(sequences)
            self.turn.when_stored(lambda error: self._saved(sequences, error), awaited=False)
            self._make_ready(sequences)

    def _adopt(self, message: Entry, asked: Options) -> None:
        """See to what a message asks for."""
        sequence = message.sequence
        if asked.identity:
            self.identities.add(asked.identity, message)
        if not asked.lasting:
            return
        self.options[sequence] = asked
        if asked.expires:
            asked.timer = self.budget.timers.at(asked.expires, lambda: self._expire(sequence))
        if asked.tracker:
            self.budget.trackers.open(self, message)

    def restore(self, state: QueueState) -> None:
        """Take up what the store kept. Every message up to `delivered` may have been delivered."""
        self.next, self.delivered = state.next, state.delivered
        state.messages.reverse()
        while state.messages:
            message = state.messages.pop()
            delivered = message.sequence <= state.delivered and not self.exact
            attempts = state.attempts.get(message.sequence, int(delivered))
            cold_bytes = state.cold.get(message.sequence, 0)
            entry = Entry(message, attempts, marked=attempts > 0, cold_bytes=cold_bytes)
            if state.attempts.get(message.sequence) == 0:
                self.untouched.add(message.sequence)
            entry.where = "settling"
            self.entries[message.sequence] = entry
            self.budget.take(self, 1, entry.size)
            if cold_bytes:
                self.budget.memory.count_cold(self, entry.size)
        self._delayed_until = {sequence: due / 1e9 for sequence, due in state.due.items()}
        self.identities.restore(state.identities)

    @property
    def exact(self) -> bool:
        """Whether the disk has to know of each message whether it was delivered.

        The mark covers those that were passed over. Elsewhere that costs them one of their attempts; here it
        would be the only one.
        """
        return self.policy.max_deliver == 1

    def resume(self) -> None:
        """Begin with what was restored, in this queue and in all others."""
        # Another queue may have put an outcome here meanwhile, which is not stored yet.
        restored = [entry for entry in self.entries.values() if entry.where == "settling"]
        for entry in restored:
            asked = Options.of(entry) if entry.properties else None
            if asked is not None:
                asked.identity = ""  # It is known, or its window has passed.
                self._adopt(entry, asked)
        self._requeue([s for entry in restored if not self._delay_again(s := entry.sequence)], 0.0)

    def _stored(self, sequences: Sequence[int], error: MalamuteError | None, confirmed: bool) -> None:
        self.unstored -= len(sequences)
        # A private mailbox may have been cleared meanwhile.
        sequences = [sequence for sequence in sequences if sequence in self.entries]
        if error is not None and confirmed:
            # The sender learns it from its number; a message that is not on the disk must not be delivered.
            for sequence in sequences if self.identities.known else ():
                self.identities.take_back(self.entries[sequence])
            self._drop(sequences)
            return
        if error is not None:
            self.unsaved.update(sequences)
        self._make_ready(sequences)
        self._relieve_of(sequences)

    def _saved(self, sequences: Sequence[int], error: MalamuteError | None) -> None:
        """The disk has what is ready already, or will never have it."""
        if error is None:
            self.unsaved.difference_update(sequences)
            self._relieve_of(sequences)

    def _make_ready(self, sequences: Iterable[int]) -> None:
        if self.options:
            sequences = self._in_time(sequences)
        if self.consumers:
            self._deal_out(sequences)
            return
        for sequence in sequences:
            self.entries[sequence].where = "waiting"
            self.waiting += 1

    def _deal_out(self, sequences: Iterable[int]) -> None:
        plain = not self.options
        match = self._lines.match
        found: dict[Groups, list[Line]] = {}
        for sequence in sequences:
            entry = self.entries[sequence]
            groups = match(entry.subject)
            lines = found.get(groups)
            if lines is None:
                lines = found[groups] = self._lines.of(groups)
            if not plain and self._goes_by_key(sequence, entry, lines):
                continue
            free = [line.consumers[0] for line in lines if line.consumers]
            if free:
                self._assign(min(free, key=_used) if len(free) > 1 else free[0], entry)
                continue
            entry.where = "waiting"
            self.waiting += 1
            order = sequence if plain else self._order(sequence)
            for line in lines:
                line.waiting.add(order)
        for lines in found.values():
            for line in lines:
                line.waiting.clean(self.waiting, self._waits)

    def _waits(self, order: Order) -> bool:
        entry = self.entries.get(sequence_of(order, self.policy.priority_step))
        return entry is not None and entry.where == "waiting"

    # Memory

    def _relieve_of(self, sequences: Sequence[int]) -> None:
        if not self.has_memory:
            entries = self.entries
            unsent = {entry.sequence for consumer in self.consumers.values() for entry in consumer.unsent}
            found = [entries[sequence] for sequence in sequences if sequence in entries]
            self.relieve([e for e in found if e.where != "settling" and e.sequence not in unsent])

    def relieve(self, entries: Sequence[Entry]) -> None:
        """Let go the records of messages that are not about to be sent, as far as there is too much."""
        memory = self.budget.memory
        excess = self.bytes - self.cold - memory.free
        if excess > 0:
            saved = (entry for entry in reversed(entries) if entry.sequence not in self.unsaved)
            # What it lets go is free, for itself as for others.
            memory.let_go(self, saved, (excess + 1) // 2)

    @property
    def has_memory(self) -> bool:
        """Whether it may keep the records that it has."""
        return self.bytes - self.cold <= self.budget.memory.free

    @property
    def lacking_max(self) -> int:
        """The bytes of records that a consumer may wait for and still be given one message more."""
        return min(RUN_BYTES, self.budget.memory.free)

    def count_lacking(self, consumer: Consumer) -> None:
        """See how much a consumer still waits for, and whether that lets it have more."""
        consumer.lacking = size_of(self.ahead.lack(consumer.unsent))
        if not consumer.waits and id(consumer) in self.consumers:
            self.serve(consumer)

    def damaged(self, sequences: list[int]) -> None:
        """The records of messages that were given to consumers cannot be read: they are dead."""
        self.turn.notice(
            "a queued message cannot be read", kind=self.kind, name=self.name, sequences=ranges_of(sequences)
        )
        self.budget.note(self, "damaged", len(sequences))
        found = self.seize(sequences, "damaged", told=False)
        self._bury(found, "dead-lettered", "damaged")

    def _order(self, sequence: int) -> Order:
        asked = self.options.get(sequence)
        return order_of(sequence, asked.priority if asked else 0, self.policy.priority_step)

    def _lines_for(self, subject: str) -> list[Line]:
        return self._lines.of(self._lines.match(subject))

    def has_consumer(self, subject: str) -> bool:
        """Whether anybody takes messages with this subject, with or without credit."""
        return bool(self._lines.match(subject))

    def _family_failed(self, family: str, error: Exception) -> None:
        self.turn.notice("a family of the index failed", queue=self.name, family=family, error=str(error))

    # Time

    def _in_time(self, sequences: Iterable[int]) -> list[int]:
        """Those whose time it is, in their order. The others wait for it, or are over."""
        now = self.turn.now
        due: list[int] = []
        over: list[int] = []
        for sequence in sequences:
            asked = self.options.get(sequence)
            if asked is not None and asked.expires and asked.expires <= now:
                over.append(sequence)
            elif asked is not None and asked.due > now:
                self._delay(sequence, asked.due)
            else:
                due.append(sequence)
        if over:
            self._end_expired(over)
        return sorted(due, key=self._order)

    def _delay_again(self, sequence: int) -> bool:
        """Delay a message that was delayed before, unless its time has come."""
        due = self._delayed_until.pop(sequence, 0.0)
        if due > self.turn.now:
            self._delay(sequence, due)
        return due > self.turn.now

    def _delay(self, sequence: int, due: float) -> None:
        self.entries[sequence].where = "delayed"
        self.delayed[sequence] = self.budget.timers.at(due, lambda: self._undelay(sequence))

    def _undelay(self, sequence: int) -> None:
        del self.delayed[sequence]
        self.entries[sequence].where = "settling"
        self._make_ready([sequence])

    def _expire(self, sequence: int) -> None:
        # What is on its way to or from the disk is looked at when the disk has answered.
        if self.seize([sequence], "expired"):
            self._end_expired([sequence])

    def _end_expired(self, sequences: list[int]) -> None:
        self.budget.note(self, "expired", len(sequences))
        self.end(sequences, "expired")

    # Consumers

    def join(self, consumer: Consumer, selector: Selector) -> Line:
        """Add a consumer to the line of its selector."""
        self.consumers[id(consumer)] = consumer
        line, is_new = self._lines.join(consumer, selector)
        if is_new and self.waiting:
            line.waiting = Backlog(self._early(line, [*self.entries]))
        return line

    def _early(self, line: Line, sequences: Sequence[int]) -> Iterator[Order]:
        """Find the orders of those of some messages that wait, and that a line takes."""
        match = self._lines.match
        for sequence in sorted(sequences, key=self._order) if self.options else sequences:
            entry = self.entries.get(sequence)
            if entry is None or entry.where != "waiting":
                continue
            if line.group in match(entry.subject):
                yield self._order(sequence) if self.options else sequence

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; what it held is ready again."""
        self.step_out(consumer)
        self._lines.leave(consumer)
        del self.consumers[id(consumer)]
        self._keys.forget(consumer)
        step = self.policy.priority_step
        own = {sequence_of(order, step) for order in consumer.own.take() if self._waits(order)}
        self.waiting -= len(own)
        # What has not been sent does not count as an attempt.
        for entry in consumer.unsent:
            entry.attempts -= 1
        consumer.unsent = []
        consumer.lacking = 0
        held = {*consumer.outstanding, *own}
        self._detach(consumer, list(consumer.outstanding))
        consumer.unwatch()
        self._requeue(sorted(held), 0.0)
        if not self.consumers:
            self.ahead.clear()

    def serve(self, consumer: Consumer) -> None:
        """Give a consumer with credit what waits for it, or let it wait in its line itself."""
        if not consumer.ready:
            return
        waiting, own, entries = consumer.line.waiting, consumer.own, self.entries
        bound = len(own) > 0
        # Asking `ready` for each message would be a fifth of the work.
        credit, lacking_max = consumer.credit, self.lacking_max
        given: list[Entry] = []
        while credit.open and (not consumer.lacking or consumer.lacking < lacking_max):
            order = (own if bound and own.first < waiting.first else waiting).pop()
            if order is None:
                break
            sequence = order if type(order) is int else sequence_of(order, self.policy.priority_step)
            entry = entries.get(sequence)
            # Another line may have taken it: backlogs are not searched when that happens.
            if entry is None or entry.where != "waiting":
                continue
            if self.options and self._is_bound_to_another(sequence, order, consumer):
                continue
            self.waiting -= 1
            self._choose(consumer, entry)
            given.append(entry)
        if given:
            self._hand_out(consumer, given)
        if consumer.ready and not consumer.waits:
            consumer.waits = True
            consumer.line.consumers.append(consumer)

    def step_out(self, consumer: Consumer) -> None:
        """Take a consumer that waits out of its line."""
        if consumer.waits:
            consumer.waits = False
            consumer.line.consumers.remove(consumer)

    def _assign(self, consumer: Consumer, entry: Entry) -> None:
        # It stands first in its line, and goes to the end.
        consumers = consumer.line.consumers
        consumers.popleft()
        self._give(consumer, entry)
        if consumer.ready:
            consumers.append(consumer)
        else:
            consumer.waits = False

    def _give(self, consumer: Consumer, entry: Entry) -> None:
        self._choose(consumer, entry)
        self._hand_out(consumer, [entry])

    def _choose(self, consumer: Consumer, entry: Entry) -> None:
        """A message goes to a consumer: what the choice of the next one depends on."""
        entry.where = consumer
        consumer.credit.take(1, entry.bytes)
        if not entry.record and entry.sequence not in self.ahead.records:
            consumer.lacking += entry.size
        if self.options and (asked := self.options.get(entry.sequence)) is not None and asked.key:
            self._keys.bind(asked.key, consumer)

    def _hand_out(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """All else about messages that go to a consumer."""
        self._clock += 1
        consumer.used = self._clock
        consumer.session.holding += len(entries)
        if not consumer.unsent:
            self.budget.deliveries.append(consumer)
        consumer.unsent += entries
        now, outstanding, delivered = self.turn.now, consumer.outstanding, self.delivered
        for entry in entries:
            sequence = entry.sequence
            outstanding[sequence] = entry
            entry.attempts += 1
            entry.since = entry.given = now
            if entry.attempts == 1:
                entry.first = now
            if sequence > delivered:
                delivered = sequence
        self.delivered = delivered

    # Keys

    def _holder(self, sequence: int, lines: Sequence[Line]) -> Consumer | None:
        """The consumer that the message's key belongs to, if it takes its subject."""
        asked = self.options.get(sequence)
        holder = self._keys.holder(asked.key) if asked is not None and asked.key else None
        return holder if holder is not None and holder.line in lines else None

    def _goes_by_key(self, sequence: int, entry: Entry, lines: Sequence[Line]) -> bool:
        """Give a message to whom its key belongs to, or let it wait for its credit. False: to anybody."""
        holder = self._holder(sequence, lines)
        if holder is None:
            return False
        if holder.waits:
            self.step_out(holder)
            self._give(holder, entry)
            self.serve(holder)
        else:
            entry.where = "waiting"
            self.waiting += 1
            self._bind(holder, self._order(sequence))
        return True

    def _bind(self, holder: Consumer, order: Order) -> None:
        holder.own.add(order)
        holder.own.clean(self.waiting, self._waits)

    def _is_bound_to_another(self, sequence: int, order: Order, consumer: Consumer) -> bool:
        """Whether the key of a message now belongs to another consumer, for which it waits from now on."""
        holder = self._holder(sequence, self._lines_for(self.entries[sequence].subject))
        if holder is None or holder is consumer:
            return False
        self._bind(holder, order)
        if holder.waits:
            self.step_out(holder)
            self.serve(holder)
        return True

    # Messages out

    def complete(self, consumer: Consumer, sequences: Sequence[int], *, confirmed: bool = False) -> None:
        """Remove messages for good: they were acknowledged.

        `confirmed` binds it to all that this turn stores: if that fails, they are ready again.
        """
        self._detach(consumer, sequences)
        self.end(sequences, "acknowledged", bound=confirmed, worker=consumer.session.address)

    def give_back(self, consumer: Consumer, sequences: Sequence[int], delay: float | None) -> None:
        """What a consumer held goes back after an attempt; without a delay, by the backoff."""
        self._detach(consumer, sequences)
        self._requeue(sorted(sequences), delay)

    def release(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """What a consumer held goes back as if it had not been delivered."""
        unsent = {entry.sequence for entry in consumer.unsent}
        self._detach(consumer, sequences)
        for sequence in sequences:
            entry = self.entries[sequence]
            if sequence not in unsent:
                entry.attempts -= 1
                self._count(entry)
        self._make_ready(sorted(sequences))

    def _count(self, entry: Entry, due: float = 0.0) -> None:
        """Tell the disk how often a message was delivered, and when it comes again."""
        sequence, attempts = entry.sequence, entry.attempts
        self.turn.store(SetAttempts(self.kind, self.name, sequence, attempts, int(due * 1e9)))
        if not attempts:
            entry.marked = False
            self.untouched.add(sequence)

    def mark(self, entries: Iterable[Entry]) -> None:
        """Tell the disk that these are about to be delivered."""
        self.turn.store(MarkDelivered(self.kind, self.name, self.delivered))
        for entry in entries:
            if entry.sequence in self.untouched or (self.exact and not entry.marked):
                self.untouched.discard(entry.sequence)
                self._count(entry)

    def reject(self, consumer: Consumer, sequences: Sequence[int], reason: str) -> None:
        """What a consumer held is dead."""
        self._detach(consumer, sequences)
        self._bury(sorted(sequences), "rejected", reason, consumer.session.address)

    def seize(self, sequences: Iterable[int], reason: str, *, told: bool = True) -> list[int]:
        """Take messages from where they are, and tell who holds them. Returns those that were to be had.

        What is on its way to or from the disk is not.
        """
        seized: list[int] = []
        held: dict[int, list[int]] = {}
        for sequence in sequences:
            where = self.entries[sequence].where if sequence in self.entries else "settling"
            if where == "waiting":
                self.waiting -= 1
            elif where == "delayed":
                timer = self.delayed.pop(sequence)
                self.budget.timers.cancel(timer)
                self._delayed_until[sequence] = timer.due
            elif isinstance(where, str):
                continue
            else:
                held.setdefault(id(where), []).append(sequence)
            seized.append(sequence)
            self.entries[sequence].where = "settling"
        for identifier, theirs in held.items():
            consumer = self.consumers[identifier]
            if told:
                consumer.recalled(theirs, reason)
            self._detach(consumer, theirs)
        return seized

    def end(
        self,
        sequences: Sequence[int],
        outcome: str,
        reason: str = "",
        *,
        bound: bool = False,
        worker: str = "",
    ) -> None:
        """Remove messages that are nowhere else, and tell the senders of those that are tracked.

        `bound`, and for tracked messages always: if that cannot be stored, they are ready again. `worker` is
        the address of whoever ended them.
        """
        tracked = self._tracked(sequences) if self.options else []
        if tracked:
            self.budget.trackers.post(self, [self.entries[s] for s in tracked], outcome, reason)
            self._remove(tracked, outcome, worker, bound=True)
            sequences = sorted(set(sequences).difference(tracked))
        if sequences:
            self._remove(sequences, outcome, worker, bound=bound)

    def withdraw(self, sender: str, correlation: int | str) -> int:
        """Remove the messages of a sender under a correlation, if the disk lets it. Returns how many."""
        found = self.seize(self._correlations.of(sender, correlation), "withdrawn")
        if found:
            self.budget.note(self, "withdrawn", len(found))
            self.end(found, "withdrawn", bound=True)
        return len(found)

    def purge(self, sequences: Iterable[int]) -> int:
        """Drop messages, if the disk lets it. Returns how many were to be had."""
        found = self.seize(sequences, "purged")
        if found:
            self.budget.note(self, "purged", len(found))
            self.end(found, "purged", bound=True)
        return len(found)

    def _detach(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """Take deliveries away from a consumer; they are nowhere now."""
        for sequence in sequences:
            del consumer.outstanding[sequence]
        consumer.session.holding -= len(sequences)
        if consumer.unsent:
            self._unsend(consumer, set(sequences))

    def _unsend(self, consumer: Consumer, sequences: set[int]) -> None:
        """What was taken away before it was sent again is not sent, takes no credit and is no attempt."""
        done = [entry for entry in consumer.unsent if entry.sequence in sequences]
        if not done:
            return
        consumer.unsent = [entry for entry in consumer.unsent if entry.sequence not in sequences]
        for entry in done:
            entry.attempts -= 1
            consumer.credit.take(-1, -entry.bytes)
        self.count_lacking(consumer)

    def _requeue(self, sequences: Sequence[int], delay: float | None) -> None:
        """Let messages that come back wait again, unless they had their attempts."""
        now, most = self.turn.now, self.policy.max_deliver
        ready: list[int] = []
        dead: list[int] = []
        for sequence in sequences:
            entry = self.entries[sequence]
            wait_for = self.policy.delay(entry.attempts) if delay is None else delay
            if 0 < most <= entry.attempts:
                dead.append(sequence)
            elif wait_for > 0:
                self._delay(sequence, now + wait_for)
                self._count(entry, now + wait_for)
            else:
                ready.append(sequence)
        if dead:
            self._bury(dead, "dead-lettered", "max-deliver")
        if ready:
            self._make_ready(ready)

    def _bury(self, sequences: Sequence[int], outcome: str, reason: str, worker: str = "") -> None:
        self.budget.note(self, "dead", len(sequences))
        entries = [self.entries[sequence] for sequence in sequences]
        for entry in entries:
            entry.where = "settling"
        proceed(self.turn, self._burial(entries, outcome, reason, worker))

    def _burial(self, entries: Sequence[Entry], outcome: str, reason: str, worker: str) -> Steps:
        for run in runs(entries) if self.policy.dead_letters else [entries]:
            here = run
            if self.policy.dead_letters:
                records = yield from records_of(self.kind, self.name, run)
                # The queue may have been cleared meanwhile.
                here = [entry for entry in run if entry.sequence in self.entries]
                self.dead.bury(here, records, reason)
            gone = [entry.sequence for entry in here]
            self.end(gone, outcome, reason, bound=True, worker=worker)

    def tracks(self, sequences: Iterable[int]) -> bool:
        """Whether any of these is tracked."""
        return bool(self.options and self._tracked(sequences))

    def _tracked(self, sequences: Iterable[int]) -> list[int]:
        return [s for s in sequences if (asked := self.options.get(s)) is not None and asked.tracker]

    def _remove(self, sequences: Sequence[int], outcome: str, worker: str, *, bound: bool) -> None:
        ranges = [(first, last) for first, last in ranges_of([*sequences])]
        removal = DeleteMessages(self.kind, self.name, ranges)
        if not bound:
            self.turn.store(removal)
            self._settle(sequences, outcome, worker)
            return
        for sequence in sequences:
            self.entries[sequence].where = "settling"
        self.turn.store_bound(removal)
        self.turn.when_stored(lambda error: self._removed(sequences, outcome, worker, error))

    def _settle(self, sequences: Sequence[int], outcome: str, worker: str) -> None:
        self.budget.ledger.settled(self, [self.entries[s] for s in sequences], outcome, worker)
        self._drop(sequences)

    def _removed(
        self, sequences: Sequence[int], outcome: str, worker: str, error: MalamuteError | None
    ) -> None:
        sequences = [sequence for sequence in sequences if sequence in self.entries]
        if error is None:
            self._settle(sequences, outcome, worker)
            return
        now = self.turn.now
        ready: list[int] = []
        for sequence in sequences:
            asked = self.options.get(sequence)
            if asked is not None and 0 < asked.expires <= now:
                self._delayed_until[sequence] = now + RETRY_SECONDS
            if not self._delay_again(sequence):
                ready.append(sequence)
        self._make_ready(sorted(ready))

    def _drop(self, sequences: Sequence[int]) -> None:
        entries = [self.entries.pop(sequence) for sequence in sequences]
        for entry in entries:
            where = entry.where
            if where == "waiting":
                self.waiting -= 1
            elif where == "delayed":
                self.budget.timers.cancel(self.delayed.pop(entry.sequence))
            if self.options:
                self._forget_options(entry)
        for sequence in sequences if self._delayed_until else ():
            self._delayed_until.pop(sequence, None)
        self._correlations.remove(entries)
        if self.ahead.records:
            self.ahead.drop(sequences)
        self.unsaved.difference_update(sequences)
        self.untouched.difference_update(sequences)
        self.budget.take(self, -len(sequences), -size_of(entries))
        self.budget.memory.count_cold(self, -size_of([e for e in entries if not e.record and e.cold]))

    def _forget_options(self, entry: Entry) -> None:
        asked = self.options.pop(entry.sequence, None)
        if asked is not None:
            self.budget.timers.cancel(asked.timer)
            if asked.tracker:
                self.budget.trackers.close(entry)

    # The queue itself

    @property
    def used(self) -> bool:
        """Whether there is a reason to keep it."""
        return bool(
            self.entries
            or self.consumers
            or self.reserved
            or self.feeds
            or self.dead.entries
            or self.identities.known
        )

    def drop_unused(self, queues: dict[str, Queue]) -> None:
        """Leave the table of queues, if nothing was ever in this one: a refused command changes nothing."""
        if self.next == 1 and not self.used:
            del queues[self.name]
            self.budget.release_queue(self)

    def clear(self) -> None:
        """Remove everything; there are no consumers."""
        tracked = [self.entries[sequence] for sequence in self._tracked(self.entries)]
        if entries := [entry for entry in tracked if entry.where != "settling"]:
            # They end with the mailbox, whatever becomes of this turn. Others have their outcome.
            self.budget.trackers.post(self, entries, "purged", "the mailbox is gone", bound=False)
        self._drop(list(self.entries))
        self.ahead.clear()
        self.dead.clear()
        self.identities.close()

    @property
    def oldest(self) -> int | None:
        """The broker's time of the oldest message, in nanoseconds UTC."""
        return next(iter(self.entries.values())).time if self.entries else None


def _used(consumer: Consumer) -> int:
    return consumer.used
