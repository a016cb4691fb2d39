"""Unwritten messages: delivered to a consumer before they are handed to the store.

A message without assurance that meets a waiting consumer is delivered at once (`Queue._pass`). The message is
in the queue as any other; its store operation alone is held: for `HOLD_SECONDS`, or until the queue stores
anything else. A message that is settled before that is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.usage import QueueUsage
    from malamute.store.operations import Operation

HOLD_SECONDS = 0.05
"""Seconds for which the store operation of a message that nobody waits for is held."""


class Hold:
    """The queues of a broker with unwritten messages, and the timer of the oldest message."""

    def __init__(self, effects: Effects, timers: Timers) -> None:
        self.effects = effects
        self._timers = timers
        self.holding: dict[Unwritten, None] = {}

    def add(self, unwritten: Unwritten) -> None:
        """Hold the messages of a queue."""
        if not self.holding:
            self._timers.at(self.effects.now + HOLD_SECONDS, self._look)
        self.holding[unwritten] = None

    def end(self) -> None:
        """Write all messages."""
        for unwritten in self.holding:
            unwritten.write()

    def _look(self) -> None:
        """Write the messages whose hold is over, and set the timer for the next one."""
        before = self.effects.now - HOLD_SECONDS
        still = [unwritten for unwritten in self.holding if unwritten.end(before)]
        self.holding = dict.fromkeys(still)
        if still:
            oldest = min(unwritten.oldest for unwritten in still)
            self._timers.at(oldest + HOLD_SECONDS, self._look)


class Unwritten:
    """The unwritten messages of one queue, by sequence, the oldest first.

    While there are any, `QueueUsage.store` writes them before everything else: the store has a message before
    what follows from it.
    """

    def __init__(self, hold: Hold, usage: QueueUsage, *, write: Callable[[Sequence[Entry]], None]) -> None:
        """`write` is called with messages to be handed to the store."""
        self.entries: dict[int, Entry] = {}
        self._hold = hold
        self._usage = usage
        self._write = write
        self._is_held = False
        self._store, self._store_bound = usage.store, usage.store_bound

    def add(self, entry: Entry) -> None:
        """Hold a message that a consumer gets now."""
        if not self._is_held:
            self._is_held = True
            self._usage.store, self._usage.store_bound = self._store_behind, self._store_bound_behind
            self._hold.add(self)
        self.entries[entry.sequence] = entry

    def settle(self, sequences: Sequence[int]) -> Sequence[int]:
        """Forget messages that are settled. Returns those that the store knows."""
        if not (entries := self.entries):
            return sequences
        return [sequence for sequence in sequences if entries.pop(sequence, None) is None]

    def write(self) -> None:
        """Hand all of them to the store."""
        if self.entries:
            entries = [*self.entries.values()]
            self.entries.clear()
            self._release()
            self._write(entries)

    def end(self, before: float) -> bool:
        """Write the messages delivered first until then. Returns whether others are left."""
        if not self.entries:
            self._release()
        elif self.oldest <= before:
            self.write()
        return self._is_held

    @property
    def oldest(self) -> float:
        """When the oldest message was delivered first, in seconds since the epoch."""
        return next(iter(self.entries.values())).first_delivered_at

    def _release(self) -> None:
        self._is_held = False
        self._usage.store, self._usage.store_bound = self._store, self._store_bound

    def _store_behind(self, *operations: Operation, size_bytes: int = 0) -> None:
        self.write()
        self._store(*operations, size_bytes=size_bytes)

    def _store_bound_behind(self, operation: Operation) -> None:
        self.write()
        self._store_bound(operation)
