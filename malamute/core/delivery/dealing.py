"""Who gets which message: the consumers that wait for messages, and the messages that wait for consumers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.delivery.keys import Keys
from malamute.core.delivery.line import Line, Lines, Order, Search, order_of, sequence_of

if TYPE_CHECKING:
    from malamute.core.delivery.consumer import Consumer
    from malamute.core.delivery.entry import Entry
    from malamute.core.delivery.queue import Queue
    from malamute.matching import Groups, Selector

SEARCH_MESSAGES = 500
"""Messages that a search looks at before it asks whether there is work left."""

SHARE_MESSAGES = 1_000
"""Messages that one consumer is given, or that are dealt out, before others have their turn."""

_used = attrgetter("used")


class Dealing:
    """How the messages of one queue that are ready come to its consumers."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._entries = queue.entries
        self._options = queue.options
        self._step = queue.policy.priority_step
        self._lines = Lines(self._family_failed, queue.budget.caches)
        self._keys = Keys()
        self._clock = 0

    def _family_failed(self, family: str, error: Exception) -> None:
        queue = self._queue
        queue.turn.notice("a family of the index failed", queue=queue.name, family=family, error=str(error))

    @property
    def awaiting(self) -> bool:
        """Whether any consumer waits for a message."""
        return self._lines.awaiting

    def has_consumer(self, subject: str) -> bool:
        """Whether anybody takes messages with this subject, with or without credit."""
        return self._lines.takes_all or bool(self._lines.match(subject))

    def with_consumers(self, entries: list[Entry]) -> list[Entry]:
        """Those of some messages that anybody takes, with or without credit."""
        if self._lines.takes_all:
            return entries
        return [entry for entry in entries if self._lines.match(entry.subject)]

    # Consumers

    def join(self, consumer: Consumer, selector: Selector) -> Line:
        """Add a consumer to the line of its selector."""
        line, is_new = self._lines.join(consumer, selector)
        if is_new and self._queue.waiting:
            line.search = Search(self._queue.next)
        return line

    def _search(self, line: Line, search: Search) -> bool:
        """Look on until it is known what goes first in a line. False when no work is left for that."""
        queue, waiting, match = self._queue, line.waiting, self._lines.match
        # Without options an order is the sequence itself, and the first one that is found goes first.
        step = self._step if self._options else 0
        while not search.knows(waiting.first, step):
            if queue.turn.work <= 0:
                return False
            run = queue.run_from(search.place, SEARCH_MESSAGES)
            queue.turn.work -= max(len(run), 1)
            for entry in run:
                if entry.sequence >= search.end:
                    break
                if entry.where == "waiting" and (line.takes_all or line.group in match(entry.subject)):
                    waiting.add(self._order(entry.sequence) if self._options else entry.sequence)
            search.place = run[-1].sequence + 1 if run else search.end
        if search.done:
            line.search = None
        return True

    def leave(self, consumer: Consumer) -> list[int]:
        """Remove a consumer. Returns the messages that waited for it alone."""
        self.step_out(consumer)
        self._lines.leave(consumer)
        return self._unbind(consumer)

    def drain(self, consumer: Consumer) -> list[int]:
        """A consumer takes nothing more. Returns the messages that waited for it alone.

        The keys of what it holds stay its own: nobody may overtake it.
        """
        self.step_out(consumer)
        waited = self._unbind(consumer)
        for sequence in consumer.outstanding if self._options else ():
            if (asked := self._options.get(sequence)) is not None and asked.key:
                self._keys.bind(asked.key, consumer)
        return waited

    def _unbind(self, consumer: Consumer) -> list[int]:
        self._keys.forget(consumer)
        own = {sequence_of(order, self._step) for order in consumer.own.take() if self._waits(order)}
        self._queue.waiting -= len(own)
        return list(own)

    def serve(self, consumer: Consumer) -> None:
        """Give a consumer with credit what waits for it, or let it wait in its line itself."""
        if not consumer.ready:
            return
        waiting, own, entries = consumer.line.waiting, consumer.own, self._entries
        bound = len(own) > 0
        # Asking `ready` for each message would be a fifth of the work.
        queue = self._queue
        credit, lacking_max = consumer.credit, queue.lacking_max
        given: list[Entry] = []
        line = consumer.line
        while credit.open and (not consumer.lacking or consumer.lacking < lacking_max):
            if line.search is not None and not self._search(line, line.search):
                self._serve_later(consumer)
                break
            if len(given) >= SHARE_MESSAGES:
                queue.turn.work -= SHARE_MESSAGES
                self._serve_later(consumer)
                break
            order = (own if bound and own.first < waiting.first else waiting).pop()
            if order is None:
                break
            sequence = order if type(order) is int else sequence_of(order, self._step)
            entry = entries.get(sequence)
            # Another line may have taken it: backlogs are not searched when that happens.
            if entry is None or entry.where != "waiting":
                continue
            if self._options and self._is_bound_to_another(sequence, order, consumer):
                continue
            self._choose(consumer, entry)
            given.append(entry)
        if given:
            queue.waiting -= len(given)
            self._hand_out(consumer, given)
        if consumer.ready and not (consumer.waits or consumer.searches):
            consumer.waits = True
            consumer.line.consumers.append(consumer)

    def _serve_later(self, consumer: Consumer) -> None:
        if not consumer.searches:
            consumer.searches = True
            self._queue.turn.later(lambda: self._serve_on(consumer))

    def _serve_on(self, consumer: Consumer) -> None:
        consumer.searches = False
        if id(consumer) in self._queue.consumers:
            self.serve(consumer)

    def step_out(self, consumer: Consumer) -> None:
        """Take a consumer that waits out of its line."""
        if consumer.waits:
            consumer.waits = False
            consumer.line.consumers.remove(consumer)

    # Messages

    def deal_out(self, sequences: Iterable[int]) -> None:
        """Give each message to a consumer that waits for it, or let it wait for one."""
        queue, entries = self._queue, self._entries
        if not queue.consumers:
            for sequence in sequences:
                entries[sequence].where = "waiting"
                queue.waiting += 1
            return
        plain = not self._options
        match = self._lines.match
        found: dict[Groups, list[Line]] = {}
        for sequence in sequences if plain else sorted(sequences, key=self._order):
            entry = entries[sequence]
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
            queue.waiting += 1
            order = sequence if plain else self._order(sequence)
            for line in lines:
                line.waiting.add(order)
        for lines in found.values():
            for line in lines:
                line.waiting.clean(queue.waiting, self._waits)

    def _waits(self, order: Order) -> bool:
        entry = self._entries.get(sequence_of(order, self._step))
        return entry is not None and entry.where == "waiting"

    def _order(self, sequence: int) -> Order:
        asked = self._options.get(sequence)
        return order_of(sequence, asked.priority if asked else 0, self._step)

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
        if entry.record is None:
            consumer.lacking += entry.size
        if self._options and (asked := self._options.get(entry.sequence)) is not None and asked.key:
            self._keys.bind(asked.key, consumer)

    def _hand_out(self, consumer: Consumer, entries: Sequence[Entry]) -> None:
        """All else about messages that go to a consumer."""
        queue = self._queue
        self._clock += 1
        consumer.used = self._clock
        consumer.session.holding += len(entries)
        if not consumer.unsent:
            queue.budget.deliveries.append(consumer)
        consumer.unsent += entries
        now, outstanding, delivered = queue.turn.now, consumer.outstanding, queue.delivered
        for entry in entries:
            sequence = entry.sequence
            outstanding[sequence] = entry
            entry.attempts += 1
            entry.since = entry.given = now
            if entry.attempts == 1:
                entry.first = now
            if sequence > delivered:
                delivered = sequence
        queue.delivered = delivered

    # Keys

    def _holder(self, sequence: int, lines: Sequence[Line]) -> Consumer | None:
        """The consumer that the message's key belongs to, if it takes its subject."""
        asked = self._options.get(sequence)
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
            self._queue.waiting += 1
            self._bind(holder, self._order(sequence))
        return True

    def _bind(self, holder: Consumer, order: Order) -> None:
        holder.own.add(order)
        holder.own.clean(self._queue.waiting, self._waits)

    def _is_bound_to_another(self, sequence: int, order: Order, consumer: Consumer) -> bool:
        """Whether the key of a message now belongs to another consumer, for which it waits from now on."""
        lines = self._lines.of(self._lines.match(self._entries[sequence].subject))
        holder = self._holder(sequence, lines)
        if holder is None or holder is consumer:
            return False
        self._bind(holder, order)
        if holder.waits:
            self.step_out(holder)
            self.serve(holder)
        return True
