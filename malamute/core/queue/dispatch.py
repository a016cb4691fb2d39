"""The dispatcher: it chooses a consumer for each message that is ready, and a message for each that waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.queue.affinity import KeyAffinity
from malamute.core.queue.consumer import Consumer
from malamute.core.queue.paging import RUN_BYTES
from malamute.core.queue.state import READY, MessageStates
from malamute.core.queue.waiters import ConsumerGroup, ConsumerGroups, Rank, Search, rank_of, sequence_of

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.entry import Entries, Entry
    from malamute.core.queue.limits import RecordMemory
    from malamute.core.queue.options import Options
    from malamute.core.queue.usage import QueueUsage
    from malamute.matching import CacheBudget, Groups, Selector

SEARCH_MESSAGES = 500
"""Messages that a search looks at before it asks whether there is work left."""

SHARE_MESSAGES = 1_000
"""Messages that one consumer is given, or that are dispatched, before others have their turn."""

_last_used = attrgetter("last_used")


class Dispatcher:
    """Brings the ready messages of one queue to its consumers."""

    def __init__(
        self,
        effects: Effects,
        memory: RecordMemory,
        caches: CacheBudget,
        usage: QueueUsage,
        entries: Entries,
        options: Mapping[int, Options],
        states: MessageStates,
        *,
        assign: Callable[[Consumer, Sequence[Entry]], None],
    ) -> None:
        """`assign` is called with messages that go to a consumer, and takes them out of READY."""
        self.consumers: dict[int, Consumer] = {}
        self._effects = effects
        self._memory = memory
        self._usage = usage
        self._entries = entries
        self._options = options
        self._states = states
        self._assign = assign
        self._step = usage.policy.priority_step_messages
        self._by_sender = usage.kind == "mailbox"
        """Whether consumers select by the sender, and not by the subject."""
        self._groups: ConsumerGroups[Consumer] = ConsumerGroups(self.family_failed, caches)
        self._affinity: KeyAffinity[Consumer] = KeyAffinity()
        self._clock = 0
        self.waiters = 0
        """Consumers that wait in any group."""

    def family_failed(self, family: str, error: Exception) -> None:
        """A family of patterns from outside has failed here."""
        self._effects.family_failed(family, error, self._groups.failures[family], queue=self._usage.name)

    def has_consumer(self, subject: str, sender: str) -> bool:
        """Whether anybody takes messages with this subject and sender, with or without credit."""
        return self._groups.takes_all or bool(self._groups.match(sender if self._by_sender else subject))

    def _match(self, entry: Entry) -> Groups:
        """The groups that take a message."""
        return self._groups.match(entry.sender if self._by_sender else entry.subject)

    def with_consumers(self, entries: list[Entry]) -> list[Entry]:
        """Return the ones of some messages that any consumer takes, with or without credit."""
        if self._groups.takes_all:
            return entries
        return [entry for entry in entries if self._match(entry)]

    # Consumers

    def join(self, consumer: Consumer, selector: Selector) -> None:
        """Add a consumer to the group of its selector."""
        self.consumers[id(consumer)] = consumer
        group, is_new = self._groups.join(consumer, selector)
        if is_new and self._states.counts[READY]:
            group.search = Search(self._entries.end)
        consumer.group = group

    def _search(self, group: ConsumerGroup[Consumer], search: Search) -> Rank | None:
        """Search for the first message of a group. Returns None when no work is left for that.

        Otherwise returns the rank before which all messages are known.
        """
        effects, ready, match = self._effects, group.ready, self._match
        # Without options a rank is the sequence itself, and the first one that is found goes first.
        step = self._step if self._options else 0
        while ready.first >= (known_before := search.known_before(step)) and not search.done:
            if effects.work <= 0:
                return None
            run = self._entries.run_from(search.place, SEARCH_MESSAGES)
            effects.work -= max(len(run), 1)
            for entry in run:
                if entry.sequence >= search.end:
                    break
                if entry.state == READY and (group.takes_all or group.matched in match(entry)):
                    ready.add(self._rank(entry.sequence) if self._options else entry.sequence)
            search.place = run[-1].sequence + 1 if run else search.end
        if search.done:
            group.search = None
        return known_before

    def leave(self, consumer: Consumer) -> list[int]:
        """Remove a consumer. Returns the messages that waited for it alone."""
        del self.consumers[id(consumer)]
        self.remove_waiter(consumer)
        self._groups.leave(consumer, consumer.group)
        return self._unbind(consumer)

    def drain(self, consumer: Consumer) -> list[int]:
        """Remove a consumer. Returns the messages that waited for it alone.

        The keys of its held messages stay its own: no other consumer may overtake it.
        """
        self.remove_waiter(consumer)
        waited = self._unbind(consumer)
        for sequence in consumer.outstanding if self._options else ():
            if (asked := self._options.get(sequence)) is not None and asked.key:
                self._affinity.bind(asked.key, consumer)
        return waited

    def _unbind(self, consumer: Consumer) -> list[int]:
        self._affinity.release(consumer)
        ranks = consumer.own_ready.pop_all()
        return [*{sequence_of(rank, self._step) for rank in ranks if self._waits(rank)}]

    def serve(self, consumer: Consumer) -> None:
        """Assign the ready messages to a consumer with credit, or let it wait in its group."""
        if not self._may_get(consumer):
            return
        if self._states.counts[READY]:
            self._give_ready(consumer)
            if not self._may_get(consumer):
                return
        if not (consumer.is_waiting or consumer.is_searching):
            consumer.is_waiting = True
            consumer.group.waiting.append(consumer)
            self.waiters += 1

    def count_missing(self, consumer: Consumer) -> None:
        """Count the bytes that a consumer still waits for, and serve it if that lets it have more."""
        consumer.count_missing()
        if not consumer.is_waiting and id(consumer) in self.consumers:
            self.serve(consumer)

    def _may_get(self, consumer: Consumer) -> bool:
        """Whether a consumer may be given one message more."""
        credit, missing_bytes = consumer.credit, consumer.missing_bytes
        return (
            credit.messages > 0
            and credit.bytes > 0
            and (not missing_bytes or missing_bytes < self._missing_bytes_max)
            and not consumer.session.blocked
            and not consumer.drained
        )

    @property
    def _missing_bytes_max(self) -> int:
        """The bytes of records that a consumer may wait for and still be given one message more."""
        return min(RUN_BYTES, self._memory.free_bytes)

    def _give_ready(self, consumer: Consumer) -> None:
        """Assign ready messages to a consumer while it has credit and there is work left."""
        ready, own, entries = consumer.group.ready, consumer.own_ready, self._entries
        bound = len(own) > 0
        # Asking `_may_get` for each message would be a fifth of the work.
        credit, missing_bytes_max = consumer.credit, self._missing_bytes_max
        given: list[Entry] = []
        count = 0
        last: Rank | None = None
        group, options = consumer.group, self._options
        known_before: Rank = -inf
        while credit.open and (not consumer.missing_bytes or consumer.missing_bytes < missing_bytes_max):
            if group.search is not None and ready.first >= known_before:
                found = self._search(group, group.search)
                if found is None:
                    self._serve_later(consumer)
                    break
                known_before = found
            if count >= SHARE_MESSAGES:
                self._effects.work -= SHARE_MESSAGES
                self._serve_later(consumer)
                break
            rank = (own if bound and own.first < ready.first else ready).pop()
            if rank is None:
                break
            sequence = rank if type(rank) is int else sequence_of(rank, self._step)
            entry = entries.get(sequence)
            # Another group may have taken the message: ready queues are not searched then. A message that
            # returned from there is here twice.
            if entry is None or entry.state != READY or rank == last:
                continue
            if options and self._belongs_to_another(sequence, rank, consumer):
                continue
            last = rank
            self._choose(consumer, entry)
            count += 1
            if options:
                # A consumer that is served between this one and the next must see that it is taken.
                self._deliver(consumer, [entry])
            else:
                given.append(entry)
        if given:
            self._deliver(consumer, given)

    def _serve_later(self, consumer: Consumer) -> None:
        if not consumer.is_searching:
            consumer.is_searching = True
            self._effects.later(lambda: self._serve_on(consumer))

    def _serve_on(self, consumer: Consumer) -> None:
        consumer.is_searching = False
        if id(consumer) in self.consumers:
            self.serve(consumer)

    def remove_waiter(self, consumer: Consumer) -> None:
        """Take a consumer that waits out of its group."""
        if consumer.is_waiting:
            consumer.is_waiting = False
            consumer.group.waiting.remove(consumer)
            self.waiters -= 1

    # Messages

    def dispatch(self, sequences: Sequence[int]) -> None:
        """Give each message to a consumer that waits for it, or let it wait for one."""
        if not self.consumers:
            self._states.wait([*map(self._entries.__getitem__, sequences)])
        elif self._options:
            self._dispatch_by_options(sequences)
        elif len(sequences) != 1 or not self._dispatch_one(self._entries[sequences[0]]):
            self._dispatch_in_order(sequences)

    def _dispatch_one(self, entry: Entry) -> bool:
        """Give a message in memory to a consumer that waits. Returns False if none does."""
        consumer = self.take(entry) if self.waiters and entry.record is not None else None
        if consumer is not None:
            self._assign(consumer, (entry,))
        return consumer is not None

    def take(self, entry: Entry) -> Consumer | None:
        """Return the consumer that waits longest for a message without options, which uses its credit."""
        consumer = self._pop_waiter(self._groups_of(self._match(entry)))
        if consumer is not None:
            consumer.credit.consume(1, entry.bytes)
            self._wait_again(consumer)
        return consumer

    def _dispatch_in_order(self, sequences: Iterable[int]) -> None:
        """The same where no message has options: all that goes to one consumer goes at once."""
        entries, match, by_sender = self._entries, self._groups.match, self._by_sender
        found: dict[Groups, list[ConsumerGroup[Consumer]]] = {}
        given: dict[Consumer, list[Entry]] = {}
        waiting: list[Entry] = []
        for sequence in sequences:
            entry = entries[sequence]
            matched = match(entry.sender if by_sender else entry.subject)
            groups = found.get(matched)
            if groups is None:
                groups = found[matched] = self._groups_of(matched)
            consumer = self._pop_waiter(groups)
            if consumer is not None:
                self._choose(consumer, entry)
                self._wait_again(consumer)
                given.setdefault(consumer, []).append(entry)
                continue
            waiting.append(entry)
            for group in groups:
                group.ready.add(sequence)
        for consumer, theirs in given.items():
            self._deliver(consumer, theirs)
        if waiting:
            self._states.wait(waiting)
            self._compact(found)

    def _dispatch_by_options(self, sequences: Iterable[int]) -> None:
        """The same where some have a priority or a key: each message by itself, the smallest rank first."""
        entries, match, by_sender = self._entries, self._groups.match, self._by_sender
        found: dict[Groups, list[ConsumerGroup[Consumer]]] = {}
        for sequence in sorted(sequences, key=self._rank):
            entry = entries[sequence]
            matched = match(entry.sender if by_sender else entry.subject)
            groups = found.get(matched)
            if groups is None:
                groups = found[matched] = self._groups_of(matched)
            if self._dispatch_by_key(sequence, entry, groups):
                continue
            consumer = self._pop_waiter(groups)
            if consumer is not None:
                self._choose(consumer, entry)
                self._deliver(consumer, [entry])
                self._wait_again(consumer)
                continue
            self._states.wait([entry])
            for group in groups:
                group.ready.add(self._rank(sequence))
        self._compact(found)

    def _groups_of(self, matched: Groups) -> list[ConsumerGroup[Consumer]]:
        by_number = self._groups.by_number
        return [by_number[group.number] for group in matched]

    def _compact(self, found: dict[Groups, list[ConsumerGroup[Consumer]]]) -> None:
        ready = self._states.counts[READY]
        for groups in found.values():
            for group in groups:
                group.ready.compact(ready, self._waits)

    def _pop_waiter(self, groups: Sequence[ConsumerGroup[Consumer]]) -> Consumer | None:
        """The consumer that waits longest in these groups; it is not in its group until `_wait_again`."""
        if len(groups) == 1:
            if not groups[0].waiting:
                return None
            consumer = groups[0].waiting[0]
        else:
            free = [group.waiting[0] for group in groups if group.waiting]
            if not free:
                return None
            consumer = min(free, key=_last_used)
        consumer.group.waiting.popleft()
        self.waiters -= 1
        self._clock += 1
        consumer.last_used = self._clock
        return consumer

    def _wait_again(self, consumer: Consumer) -> None:
        """A consumer that got a message goes to the end of its group, if it may have another one."""
        if self._may_get(consumer):
            consumer.group.waiting.append(consumer)
            self.waiters += 1
        else:
            consumer.is_waiting = False

    def _waits(self, rank: Rank) -> bool:
        entry = self._entries.get(sequence_of(rank, self._step))
        return entry is not None and entry.state == READY

    def _rank(self, sequence: int) -> Rank:
        asked = self._options.get(sequence)
        return rank_of(sequence, asked.priority if asked else 0, self._step)

    def _choose(self, consumer: Consumer, entry: Entry) -> None:
        """Note that a message goes to a consumer, as the choice of the next one depends on it."""
        consumer.credit.consume(1, entry.bytes)
        if entry.record is None:
            consumer.missing_bytes += entry.size_bytes
        if self._options and (asked := self._options.get(entry.sequence)) is not None and asked.key:
            self._affinity.bind(asked.key, consumer)

    def _deliver(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """Messages go to the consumer that was chosen."""
        self._clock += 1
        consumer.last_used = self._clock
        self._assign(consumer, entries)

    # Key affinity

    def _key_owner(self, sequence: int, groups: Sequence[ConsumerGroup[Consumer]]) -> Consumer | None:
        """The consumer that the message's key belongs to, if it takes its subject."""
        asked = self._options.get(sequence)
        holder = self._affinity.owner(asked.key) if asked is not None and asked.key else None
        return holder if holder is not None and holder.group in groups else None

    def _dispatch_by_key(
        self, sequence: int, entry: Entry, groups: Sequence[ConsumerGroup[Consumer]]
    ) -> bool:
        """Give a message to the consumer of its key, or let it wait for its credit. False: to anybody."""
        holder = self._key_owner(sequence, groups)
        if holder is None:
            return False
        if holder.is_waiting:
            self.remove_waiter(holder)
            self._choose(holder, entry)
            self._deliver(holder, [entry])
            self.serve(holder)
        else:
            self._states.wait([entry])
            self._wait_for_owner(holder, self._rank(sequence))
        return True

    def _wait_for_owner(self, holder: Consumer, rank: Rank) -> None:
        holder.own_ready.add(rank)
        holder.own_ready.compact(self._states.counts[READY], self._waits)

    def _belongs_to_another(self, sequence: int, rank: Rank, consumer: Consumer) -> bool:
        """Whether the key of a message now belongs to another consumer, for which it waits from now on."""
        groups = self._groups_of(self._match(self._entries[sequence]))
        holder = self._key_owner(sequence, groups)
        if holder is None or holder is consumer:
            return False
        self._wait_for_owner(holder, rank)
        if holder.is_waiting:
            self.remove_waiter(holder)
            self.serve(holder)
        return True
