"""Which sequences of queues may be in use: what was delivered before it was durable keeps its own for ever.

A message that nobody waits for is delivered before it is on the disk. If the broker dies then, nothing there
tells of it, but a consumer may still answer it, and must not answer another message. So the disk has a
sequence up to which any may be in use, as it has for each stream: what is beyond is not delivered before that
is durable, and after a crash all queues go on behind it, new ones too. One such sequence is for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from malamute.store.operations import PutValue
from malamute.store.tables import SEQUENCES

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers
    from malamute.errors import MalamuteError
    from malamute.store.operations import Recovered, Stranded

RESERVE = 1 << 18
"""Sequences that are reserved at once, ahead of the last one."""

RETRY_SECONDS = 1.0

KEY = ("",)


class QueueSequences:
    """What is reserved of the sequences of all queues. None of this life is up to `floor`."""

    def __init__(self, effects: Effects, timers: Timers, incarnation: int) -> None:
        self._effects = effects
        self._timers = timers
        self._waiting: list[Callable[[], None]] = []
        self.floor = self.reserved = incarnation
        self._asked = 0
        """Up to where the disk is asked to reserve them; 0 while it is not."""
        self._unstored = 0
        """The last sequence of a message that is on no disk, though somebody may have it."""
        self._is_closed = False

    def restore(self, recovered: Recovered) -> None:
        """Go on behind all that may be in use, before any queue is restored."""
        reserved: int = recovered.table(SEQUENCES).get(KEY, 0)
        entry = SEQUENCES, KEY
        if entry in recovered.lost or entry in recovered.doubtful:
            # It was more than any that is there; how much more is lost.
            nexts = (queue.next for queue in recovered.queues.values())
            reserved = max(reserved, *nexts, 0) + 2 * RESERVE
        self.floor = self.reserved = max(reserved, self.floor)

    def covers(self, last: int) -> bool:
        """Whether nobody gets a sequence again that is in use by now. More are reserved when it is time."""
        wanted = last + RESERVE // 2
        # However slow the disk is: what is stored with these, or before them, reserves them.
        if wanted > self.reserved and wanted > self._asked:
            self._reserve(last + RESERVE)
        return last <= self.reserved

    def note_unstored(self, sequences: Sequence[int]) -> None:
        """Messages with these sequences may be delivered, and are on no disk."""
        if sequences and sequences[-1] > self._unstored:
            self._unstored = sequences[-1]
            if self._is_closed:
                self._give_back()

    def when_reserved(self, callback: Callable[[], None]) -> None:
        """Call back once more is reserved. The disk has refused that; it is asked again after a while."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self._timers.at(self._effects.now + RETRY_SECONDS, self._call_back)

    def _call_back(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _reserve(self, last: int) -> None:
        self._asked = last
        self._effects.store(PutValue(SEQUENCES, KEY, last))
        self._effects.when_stored(lambda error: self._stored(last, error), awaited=False)

    def _stored(self, last: int, error: MalamuteError | None) -> None:
        if self._asked == last:
            self._asked = 0
        if error is None:
            self.reserved = max(self.reserved, last)
            self._call_back()

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: if what is reserved is in it, it is stored once more."""
        if stranded.keys(SEQUENCES):
            # It must not take back what the disk is asked for already.
            self._effects.store(PutValue(SEQUENCES, KEY, max(self.reserved, self._asked)))

    def close(self) -> None:
        """The broker ends: give back what was reserved and not used, until the last word of the disk."""
        self._is_closed = True
        self._give_back()

    def _give_back(self) -> None:
        self._effects.store(PutValue(SEQUENCES, KEY, max(self.floor, self._unstored)))
