"""The dispatcher: it chooses a consumer for each message that is ready, and a message for each that waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.queue.affinity import KeyAffinity
from malamute.core.queue.waiters import ConsumerGroup, ConsumerGroups, Rank, Search, rank_of, sequence_of

if TYPE_CHECKING:
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.queue import Queue
    from malamute.matching import Groups, Selector

SEARCH_MESSAGES = 500
"""Messages that a search looks at before it asks whether there is work left."""

SHARE_MESSAGES = 1_000
"""Messages that one consumer is given, or that are dispatched, before others have their turn."""

_last_used = attrgetter("last_used")


class Dispatcher:
    """Brings the ready messages of one queue to its consumers."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._entries = queue.entries
        self._options = queue.options
        self._step = queue.policy.priority_step
        self._groups = ConsumerGroups(self._family_failed, queue.limits.caches)
        self._affinity = KeyAffinity()
        self._clock = 0

    def _family_failed(self, family: str, error: Exception) -> None:
        queue = self._queue
        queue.turn.notice("a family of the index failed", queue=queue.name, family=family, error=str(error))

    @property
    def awaiting(self) -> bool:
        """Whether any consumer waits for a message."""
        return self._groups.awaiting

    def has_consumer(self, subject: str) -> bool:
        """Whether anybody takes messages with this subject, with or without credit."""
        return self._groups.takes_all or bool(self._groups.match(subject))

    def with_consumers(self, entries: list[Entry]) -> list[Entry]:
        """Those of some messages that anybody takes, with or without credit."""
        if self._groups.takes_all:
            return entries
        return [entry for entry in entries if self._groups.match(entry.subject)]

    # Consumers

    def join(self, consumer: Consumer, selector: Selector) -> ConsumerGroup:
        """Add a consumer to the group of its selector."""
        group, is_new = self._groups.join(consumer, selector)
        if is_new and self._queue.waiting:
            group.search = Search(self._queue.next_sequence)
        return group

    def _search(self, group: ConsumerGroup, search: Search) -> bool:
        """Look on until it is known what goes first in a group. False when no work is left for that."""
        queue, ready, match = self._queue, group.ready, self._groups.match
        # Without options an rank is the sequence itself, and the first one that is found goes first.
        step = self._step if self._options else 0
        while not search.knows(ready.first, step):
            if queue.turn.work <= 0:
                return False
            run = queue.run_from(search.place, SEARCH_MESSAGES)
            queue.turn.work -= max(len(run), 1)
            for entry in run:
                if entry.sequence >= search.end:
                    break
                if entry.where == "waiting" and (group.takes_all or group.matched in match(entry.subject)):
                    ready.add(self._rank(entry.sequence) if self._options else entry.sequence)
            search.place = run[-1].sequence + 1 if run else search.end
        if search.done:
            group.search = None
        return True

    def leave(self, consumer: Consumer) -> list[int]:
        """Remove a consumer. Returns the messages that waited for it alone."""
        self.remove_waiter(consumer)
        self._groups.leave(consumer)
        return self._unbind(consumer)

    def drain(self, consumer: Consumer) -> list[int]:
        """A consumer takes nothing more. Returns the messages that waited for it alone.

        The keys of what it holds stay its own: nobody may overtake it.
        """
        self.remove_waiter(consumer)
        waited = self._unbind(consumer)
        for sequence in consumer.outstanding if self._options else ():
            if (asked := self._options.get(sequence)) is not None and asked.key:
                self._affinity.bind(asked.key, consumer)
        return waited

    def _unbind(self, consumer: Consumer) -> list[int]:
        self._affinity.release(consumer)
        own = {sequence_of(rank, self._step) for rank in consumer.own_ready.pop_all() if self._waits(rank)}
        self._queue.waiting -= len(own)
        return list(own)

    def serve(self, consumer: Consumer) -> None:
        """Give a consumer with credit what waits for it, or let it wait in its group itself."""
        if not consumer.ready:
            return
        ready, own, entries = consumer.group.ready, consumer.own_ready, self._entries
        bound = len(own) > 0
        # Asking `ready` for each message would be a fifth of the work.
        queue = self._queue
        credit, lacking_max = consumer.credit, queue.missing_bytes_max
        given: list[Entry] = []
        group = consumer.group
        while credit.open and (not consumer.missing_bytes or consumer.missing_bytes < lacking_max):
            if group.search is not None and not self._search(group, group.search):
                self._serve_later(consumer)
                break
            if len(given) >= SHARE_MESSAGES:
                queue.turn.work -= SHARE_MESSAGES
                self._serve_later(consumer)
                break
            rank = (own if bound and own.first < ready.first else ready).pop()
            if rank is None:
                break
            sequence = rank if type(rank) is int else sequence_of(rank, self._step)
            entry = entries.get(sequence)
            # Another group may have taken it: ready queues are not searched when that happens.
            if entry is None or entry.where != "waiting":
                continue
            if self._options and self._belongs_to_another(sequence, rank, consumer):
                continue
            self._assign(consumer, entry)
            given.append(entry)
        if given:
            queue.waiting -= len(given)
            self._deliver(consumer, given)
        if consumer.ready and not (consumer.is_waiting or consumer.is_searching):
            consumer.is_waiting = True
            consumer.group.waiting.append(consumer)

    def _serve_later(self, consumer: Consumer) -> None:
        if not consumer.is_searching:
            consumer.is_searching = True
            self._queue.turn.later(lambda: self._serve_on(consumer))

    def _serve_on(self, consumer: Consumer) -> None:
        consumer.is_searching = False
        if id(consumer) in self._queue.consumers:
            self.serve(consumer)

    def remove_waiter(self, consumer: Consumer) -> None:
        """Take a consumer that waits out of its group."""
        if consumer.is_waiting:
            consumer.is_waiting = False
            consumer.group.waiting.remove(consumer)

    # Messages

    def dispatch(self, sequences: Iterable[int]) -> None:
        """Give each message to a consumer that waits for it, or let it wait for one."""
        queue, entries = self._queue, self._entries
        if not queue.consumers:
            for sequence in sequences:
                entries[sequence].where = "waiting"
                queue.waiting += 1
            return
        plain = not self._options
        match = self._groups.match
        found: dict[Groups, list[ConsumerGroup]] = {}
        for sequence in sequences if plain else sorted(sequences, key=self._rank):
            entry = entries[sequence]
            matched = match(entry.subject)
            groups = found.get(matched)
            if groups is None:
                groups = found[matched] = self._groups.of(matched)
            if not plain and self._dispatch_by_key(sequence, entry, groups):
                continue
            free = [group.waiting[0] for group in groups if group.waiting]
            if free:
                self._deliver_to_first(min(free, key=_last_used) if len(free) > 1 else free[0], entry)
                continue
            entry.where = "waiting"
            queue.waiting += 1
            rank = sequence if plain else self._rank(sequence)
            for group in groups:
                group.ready.add(rank)
        for groups in found.values():
            for group in groups:
                group.ready.compact(queue.waiting, self._waits)

    def _waits(self, rank: Rank) -> bool:
        entry = self._entries.get(sequence_of(rank, self._step))
        return entry is not None and entry.where == "waiting"

    def _rank(self, sequence: int) -> Rank:
        asked = self._options.get(sequence)
        return rank_of(sequence, asked.priority if asked else 0, self._step)

    def _deliver_to_first(self, consumer: Consumer, entry: Entry) -> None:
        # It stands first in its group, and goes to the end.
        consumers = consumer.group.waiting
        consumers.popleft()
        self._deliver_one(consumer, entry)
        if consumer.ready:
            consumers.append(consumer)
        else:
            consumer.is_waiting = False

    def _deliver_one(self, consumer: Consumer, entry: Entry) -> None:
        self._assign(consumer, entry)
        self._deliver(consumer, [entry])

    def _assign(self, consumer: Consumer, entry: Entry) -> None:
        """A message goes to a consumer: what the choice of the next one depends on."""
        entry.where = consumer
        consumer.credit.take(1, entry.bytes)
        if entry.record is None:
            consumer.missing_bytes += entry.size_bytes
        if self._options and (asked := self._options.get(entry.sequence)) is not None and asked.key:
            self._affinity.bind(asked.key, consumer)

    def _deliver(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """All else about messages that go to a consumer."""
        queue = self._queue
        self._clock += 1
        consumer.last_used = self._clock
        consumer.session.holding += len(entries)
        if not consumer.unsent:
            queue.limits.deliveries.append(consumer)
        consumer.unsent += entries
        now, outstanding, delivered = queue.turn.now, consumer.outstanding, queue.delivered
        for entry in entries:
            sequence = entry.sequence
            outstanding[sequence] = entry
            entry.attempts += 1
            entry.deadline_from = entry.last_delivered_at = now
            if entry.attempts == 1:
                entry.first_delivered_at = now
            if sequence > delivered:
                delivered = sequence
        queue.delivered = delivered

    # Key affinity

    def _key_owner(self, sequence: int, groups: Sequence[ConsumerGroup]) -> Consumer | None:
        """The consumer that the message's key belongs to, if it takes its subject."""
        asked = self._options.get(sequence)
        holder = self._affinity.owner(asked.key) if asked is not None and asked.key else None
        return holder if holder is not None and holder.group in groups else None

    def _dispatch_by_key(self, sequence: int, entry: Entry, groups: Sequence[ConsumerGroup]) -> bool:
        """Give a message to whom its key belongs to, or let it wait for its credit. False: to anybody."""
        holder = self._key_owner(sequence, groups)
        if holder is None:
            return False
        if holder.is_waiting:
            self.remove_waiter(holder)
            self._deliver_one(holder, entry)
            self.serve(holder)
        else:
            entry.where = "waiting"
            self._queue.waiting += 1
            self._wait_for_owner(holder, self._rank(sequence))
        return True

    def _wait_for_owner(self, holder: Consumer, rank: Rank) -> None:
        holder.own_ready.add(rank)
        holder.own_ready.compact(self._queue.waiting, self._waits)

    def _belongs_to_another(self, sequence: int, rank: Rank, consumer: Consumer) -> bool:
        """Whether the key of a message now belongs to another consumer, for which it waits from now on."""
        groups = self._groups.of(self._groups.match(self._entries[sequence].subject))
        holder = self._key_owner(sequence, groups)
        if holder is None or holder is consumer:
            return False
        self._wait_for_owner(holder, rank)
        if holder.is_waiting:
            self.remove_waiter(holder)
            self.serve(holder)
        return True
