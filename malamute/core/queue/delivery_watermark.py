"""The delivery watermark of a queue: the highest sequence that may have been delivered.

Nothing is sent before it is durable that it may have been delivered. The watermark says so of all messages up
to a sequence, so that a delivery costs one small operation and not one for each message. It is advanced past
what goes out now: whoever takes that then waits for no disk. So after a crash up to twice as many messages
count as delivered as consumers held; a graceful shutdown, or a queue whose last consumer leaves, retracts it.

Where there is one attempt only, such a doubt would be the end of a message: there each is marked by itself,
and none ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from malamute.core.queue.entry import Entry
from malamute.core.queue.state import DELAYED, READY
from malamute.store.operations import MarkDelivered, QueueState, SetAttempts

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue
    from malamute.core.ready import WhenStored
    from malamute.errors import MalamuteError

AHEAD_MAX = 1_000
"""How many messages the watermark is ahead of what was asked for, at the most."""


class Watermark:
    """The watermark of one queue, and what differs from it."""

    def __init__(self, queue: Queue) -> None:
        self.never_delivered: set[int] = set()
        """Those that the store has as never delivered, wherever the watermark is."""
        self.revocations = 0
        self.revoked: dict[int, int] = {}
        """Those that were taken back before they were looked at, and when: a mark of before says nothing."""
        self._queue = queue
        self._upto = 0
        self._under_way: list[tuple[int, list[WhenStored]]] = []
        """Advances that are not durable yet, and who waits for each."""

    @property
    def exact(self) -> bool:
        """Whether the disk has to know of each message whether it was delivered.

        A mark covers those that were passed over. Elsewhere that costs them one of their attempts; here it
        would be the only one.
        """
        return self._queue.policy.max_deliver == 1

    def restore(self, state: QueueState, sequence: int) -> int:
        """How often a message was delivered, as far as the store knows."""
        attempts = state.attempts.get(sequence)
        if attempts is None:
            return int(sequence <= state.delivered and not self.exact)
        if not attempts:
            self.never_delivered.add(sequence)
        return attempts

    def advance(self, entries: Sequence[Entry], then: WhenStored) -> None:
        """Tell the disk that these are about to be delivered, and call back when it knows."""
        plain = not self.never_delivered and not self.exact
        last = max([entry.sequence for entry in entries if not entry.marked])
        waiting = next((waiting for upto, waiting in self._under_way if last <= upto), None)
        if plain and waiting is not None:
            waiting.append(then)
            return
        self._store(self._queue.delivered, then)
        for entry in () if plain else entries:
            if entry.sequence in self.never_delivered or (self.exact and not entry.marked):
                self.never_delivered.discard(entry.sequence)
                self.store_attempts(entry)

    def advance_new(self, entries: Sequence[Entry]) -> None:
        """Mark messages with the operation that stores them, as somebody waits for them."""
        if not self.exact:
            queue = self._queue
            for entry in entries:
                entry.marked = True
            self._upto = entries[-1].sequence
            queue.turn.store_bound(MarkDelivered(queue.kind, queue.name, self._upto))

    def advance_ahead(self) -> None:
        """Tell the disk that those that come next are about to be delivered: as many as consumers hold."""
        queue = self._queue
        counts = queue.states.counts
        held = len(queue.entries) - counts[READY] - queue.uncommitted - counts[DELAYED]
        ahead = min(held, AHEAD_MAX)
        first = max(self._upto, queue.delivered) + 1
        upto = min(queue.delivered + ahead, queue.next_sequence - 1)
        enough = upto < first or self._upto - queue.delivered >= max(ahead // 2, 1)
        # Where some are more important than others, nobody knows which come next.
        if enough or queue.options or self.exact:
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
        """They are gone."""
        self.never_delivered.difference_update(sequences)
        for sequence in sequences if self.revoked else ():
            self.revoked.pop(sequence, None)

    def retract(self) -> None:
        """Nobody is about to take what was marked ahead: tell the disk that it was not delivered."""
        # No more than that was marked ahead: the rest was marked when it came, and may be all of the queue.
        delivered = self._queue.delivered
        for entry in self._there(delivered + 1, min(self._upto, delivered + AHEAD_MAX)):
            if not entry.attempts and entry.sequence not in self.never_delivered:
                self.store_attempts(entry)

    def store_attempts(self, entry: Entry, due: float = 0.0) -> None:
        """Tell the disk how often a message was delivered, and when it comes again.

        If it never was, that holds whatever mark of it is on its way.
        """
        queue, sequence, attempts = self._queue, entry.sequence, entry.attempts
        due_ns = int((due + queue.turn.ahead) * 1e9) if due else 0
        queue.turn.store(SetAttempts(queue.kind, queue.name, sequence, attempts, due_ns))
        if not attempts:
            entry.marked = False
            self.never_delivered.add(sequence)
            self.revocations += 1
            self.revoked[sequence] = self.revocations

    def _there(self, first: int, last: int) -> Iterable[Entry]:
        return filter(None, map(self._queue.entries.get, range(first, last + 1)))

    def _store(self, upto: int, then: WhenStored) -> None:
        queue = self._queue
        self._upto = max(self._upto, upto)
        mark = (upto, [then])
        self._under_way.append(mark)

        def stored(error: MalamuteError | None) -> None:
            self._under_way.remove(mark)
            for waiting in mark[1]:
                waiting(error)

        queue.turn.store(MarkDelivered(queue.kind, queue.name, upto))
        queue.turn.when_stored(stored)
