"""When messages may be delivered: not before the delay of each is over, and not after its time.

While it is in doubt what time it is (`malamute.core.doubt`), what would be over is delayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from malamute.core.queue.state import READY

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue
    from malamute.core.timers import Timer

RETRY_SECONDS = 1.0
"""How long a message whose time is over is kept, when the disk would not let it go."""


class Schedule:
    """The times of one queue's messages."""

    def __init__(self, queue: Queue) -> None:
        self.delayed: dict[int, Timer] = {}
        self._queue = queue
        self.claimed: dict[int, float] = {}
        """When those come again that were delayed before they were to leave, or before a restart."""

    def restore(self, due: Mapping[int, int], now_ns: int) -> None:
        """Take up what the store kept: when messages come again, in ns. None came later than now."""
        entries = self._queue.entries
        self.claimed = {
            sequence: (time - max(0, entries[sequence].time_ns - now_ns)) / 1e9
            for sequence, time in due.items()
        }

    def due(self, sequences: Iterable[int]) -> list[int]:
        """Those whose time it is. The others wait for it, or are over."""
        queue = self._queue
        now = queue.turn.now
        due: list[int] = []
        over: list[int] = []
        for sequence in sequences:
            asked = queue.options.get(sequence)
            if asked is not None and asked.expires and asked.expires <= now:
                if self._is_doubtful(sequence):
                    self.delay(sequence, queue.limits.doubt.until)
                else:
                    over.append(sequence)
            elif asked is not None and asked.due > now:
                self.delay(sequence, asked.due)
            else:
                due.append(sequence)
        if over:
            queue.limits.flush.note(queue, "expired", len(over))
            queue.settlement.settle(over, "expired")
        return due

    def delay(self, sequence: int, due: float) -> None:
        """Let a message wait for a time."""
        self._queue.states.delay(self._queue.entries[sequence])
        self.delayed[sequence] = self._queue.limits.timers.at(due, lambda: self._undelay(sequence))

    def _undelay(self, sequence: int) -> None:
        del self.delayed[sequence]
        self._queue.states.due([self._queue.entries[sequence]])
        self._queue.make_ready([sequence])

    def claim(self, sequence: int) -> None:
        """A message that is delayed is to leave. It is delayed again if the disk refuses that."""
        timer = self.delayed.pop(sequence)
        self._queue.limits.timers.cancel(timer)
        self.claimed[sequence] = timer.due

    def delay_again(self, sequences: Iterable[int]) -> list[int]:
        """Delay those that were delayed before, unless their time has come. Returns the others."""
        others: list[int] = []
        for sequence in sequences:
            due = self.claimed.pop(sequence, 0.0)
            if due > self._queue.turn.now:
                self.delay(sequence, due)
            else:
                others.append(sequence)
        return others

    def put_back(self, sequences: Iterable[int]) -> list[int]:
        """Delay what could not leave: what was delayed before, and what is over. Returns the others."""
        queue = self._queue
        now = queue.turn.now
        for sequence in sequences:
            asked = queue.options.get(sequence)
            if asked is not None and 0 < asked.expires <= now:
                self.claimed[sequence] = now + RETRY_SECONDS
        return self.delay_again(sequences)

    def watch(self, sequence: int, expires: float) -> Timer:
        """End a message when its time is over."""
        return self._queue.limits.timers.at(expires, lambda: self._expire(sequence))

    def _is_doubtful(self, sequence: int) -> bool:
        return self._queue.limits.doubt.holds(self._queue.entries[sequence].time_ns)

    def _expire(self, sequence: int) -> None:
        queue = self._queue
        if self._is_doubtful(sequence):
            until = queue.limits.doubt.until
            queue.options[sequence].timer = self.watch(sequence, until)
            # Whoever holds it goes on, and what is on its way from the disk is looked at when it is there.
            if (entry := queue.entries[sequence]).state == READY:
                queue.states.take_back([entry])
                self.delay(sequence, until)
            return
        # What is on its way to or from the disk is looked at when the disk has answered.
        queue.settlement.settle_early([sequence], "expired", bound=False)

    def give_time_back(self, seconds: float) -> None:
        """The clock was wrong by so much when the broker started: what was here before has longer."""
        queue, doubt = self._queue, self._queue.limits.doubt
        for sequence, asked in queue.options.items():
            if asked.expires and queue.entries[sequence].time_ns < doubt.began:
                asked.expires += seconds
                queue.limits.timers.cancel(asked.timer)
                asked.timer = self.watch(sequence, asked.expires)

    def drop(self, sequences: Iterable[int]) -> None:
        """Messages are gone."""
        for sequence in sequences:
            self._queue.limits.timers.cancel(self.delayed.pop(sequence, None))
            self.claimed.pop(sequence, None)
