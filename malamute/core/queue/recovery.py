"""The recovery of a queue: from the messages that the store kept, and of messages that the store has lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from malamute.core.queue.dead_letters import UNREADABLE
from malamute.core.queue.entry import Entry, puts
from malamute.core.queue.options import Options
from malamute.core.queue.state import AT_REST, PENDING, SETTLING

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.queue.queue import Queue
    from malamute.store.operations import QueueState


class RestoredQueue:
    """A queue with the messages that the store kept, until `resume` lets them be delivered."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._entries: list[Entry] = []
        self._damaged: list[int] = []
        """Messages that the store could not read; `resume` makes dead letters of them."""

    def restore(self, state: QueueState) -> None:
        """Restore the messages. Each up to the watermark of the store may have been delivered."""
        queue, limits = self.queue, self.queue.limits
        queue.next_sequence = max(state.next, queue.first_sequence)
        queue.is_stored = True
        queue.watermark.last_delivered = state.delivered
        damaged = set(state.damaged)
        state.messages.reverse()
        while state.messages:
            message = state.messages.pop()
            attempts = queue.watermark.restore(state, message.sequence)
            paged_out_bytes = state.paged_out.get(message.sequence, 0)
            if message.sequence in damaged:
                message = message._replace(record=UNREADABLE)
                self._damaged.append(message.sequence)
            entry = Entry(message, attempts, marked=attempts > 0, paged_out_bytes=paged_out_bytes)
            self._entries.append(entry)
            limits.count(queue.usage, 1, entry.size_bytes)
            if paged_out_bytes:
                limits.memory.count_paged_out(queue.usage, entry.size_bytes)
        queue.entries.restore(self._entries)
        queue.ids.add(self._entries)
        queue.states.enqueue(len(self._entries))
        queue.schedule.restore(state.due_ns, queue.effects.time_ns)
        queue.dedup.restore(state.identities, queue.usage.policy, limits.grace_period.until)

    def resume(self, recovery: Recovery) -> None:
        """Let the messages be delivered, once all queues are restored."""
        queue, effects = self.queue, self.queue.effects
        for entry in self._entries:
            try:
                if (asked := Options.of(entry, effects.time_ns, effects.ahead_ns)) is not None:
                    queue.adopt(entry, asked)
            except Exception as error:  # the wishes of its sender are unknown
                self._set_aside(entry)
                recovery.skip(queue.kind, f"{queue.name}: message {entry.sequence}", error)
        restored = [entry.sequence for entry in self._entries if entry.sequence in queue.entries]
        self._entries = []
        damaged = [sequence for sequence in self._damaged if sequence in queue.entries]
        sequences = [sequence for sequence in restored if sequence not in damaged]
        queue.requeue(queue.schedule.delay_later(queue.schedule.returning(sequences)), 0.0)
        if damaged:
            queue.settlement.dead_letter_unreadable(damaged)
            # If the disk refuses that, they wait as messages whose records are only there, and die later.
            queue.limits.memory.evict(queue.usage, [queue.entries[sequence] for sequence in damaged])
        # The store counts records alone; all that messages take may be more than there is memory.
        queue.evict_excess(sequences)

    def _set_aside(self, entry: Entry) -> None:
        """Leave a message in the store, and deliver it to nobody."""
        queue = self.queue
        queue.set_aside += 1
        if (asked := queue.options.pop(entry.sequence, None)) is not None:
            queue.limits.timers.cancel(asked.timer)
        queue.drop([entry.sequence])


def store_again(queue: Queue, sequences: Iterable[int]) -> None:
    """Store messages that the store has lost, if their records are in memory; the others are dead."""
    here = [entry for sequence in sequences if (entry := queue.entries.get(sequence)) is not None]
    for entry in here:
        if entry.record is not None and entry.state != SETTLING:
            queue.effects.stage.store(*puts(queue.kind, queue.name, [entry]), size_bytes=entry.size_bytes)
            delay = queue.schedule.delayed.get(entry.sequence)
            queue.watermark.store_attempts(entry, delay.due if delay else 0.0)
    if lost := [entry.sequence for entry in here if entry.record is None and entry.state in AT_REST]:
        queue.lose(lost)


def store_identities_again(queue: Queue, identities: Iterable[str]) -> None:
    """Store identities that the store has lost. That of a message that is not durable is stored with it."""
    known = queue.dedup.known
    queue.dedup.store_again([i for i in identities if i in known and _is_durable(queue, known[i][0])])


def _is_durable(queue: Queue, sequence: int) -> bool:
    """Return whether the outcome of the append with a message is known, and the message is there."""
    entry = queue.entries.get(sequence)
    return sequence not in queue.not_durable and (entry is None or entry.state != PENDING)
