"""Long work on the messages of a queue: one step in each iteration, in the order of the messages.

Messages that are too many for one iteration are *deferred* to the next ones, and so is each message behind
them. Some deferred messages are *returning*: other work has them, and will requeue them. No message is
dispatched before a returning one of a smaller sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, ClassVar

from pyroaring import BitMap64

from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.entry import Entry

STEP_MESSAGES = 1_000
"""Messages of one step."""


class Steps:
    """The long work on the messages of one queue."""

    step_messages: ClassVar = STEP_MESSAGES

    def __init__(
        self,
        effects: Effects,
        entries: Mapping[int, Entry],
        *,
        dispatch: Callable[[Sequence[int]], None],
    ) -> None:
        """`dispatch` is called with deferred messages, a step of them in each iteration."""
        self.deferred = BitMap64()
        self._returning = BitMap64()
        self._effects = effects
        self._entries = entries
        self._dispatch = dispatch
        self._is_draining = False

    def defer(self, sequences: Sequence[int]) -> None:
        """Dispatch messages in this and the next iterations, behind all that are deferred already."""
        self.deferred.update(sequences)
        if not self._is_draining:
            self._is_draining = True
            run_workflow(self._effects, self._drain())

    def _drain(self) -> Workflow:
        """Dispatch the deferred messages, up to the first that is returning."""
        try:
            while True:
                end = self._returning.min() if self._returning else inf
                step = [s for s in islice(self.deferred, self.step_messages) if s < end]
                self.deferred -= BitMap64(step)
                self._effects.work -= len(step)
                # The queue may have been cleared meanwhile.
                self._dispatch([s for s in step if s in self._entries])
                if len(self.deferred) == len(self._returning):
                    return
                yield GO_ON
        finally:
            self._is_draining = False

    def run(
        self,
        sequences: Sequence[int],
        act: Callable[[Sequence[int]], None],
        done: Callable[[], None] = lambda: None,
        *,
        requeues: bool = False,
    ) -> None:
        """Call `act` with messages that nobody takes: the first step at once, the others in later iterations.

        `done` is called with the last step. If `act` requeues the messages, they are returning until then.
        """
        if len(sequences) <= self.step_messages:
            act(sequences)
            done()
            return
        steps = self._requeuing if requeues else self._steps
        run_workflow(self._effects, steps(sequences, act, done))

    def _steps(
        self, sequences: Sequence[int], act: Callable[[Sequence[int]], None], done: Callable[[], None]
    ) -> Workflow:
        for start in range(0, len(sequences), self.step_messages):
            if start:
                yield GO_ON
            self._effects.work -= self.step_messages
            # The queue may have been cleared meanwhile.
            act([s for s in sequences[start : start + self.step_messages] if s in self._entries])
        done()

    def _requeuing(
        self, sequences: Sequence[int], act: Callable[[Sequence[int]], None], done: Callable[[], None]
    ) -> Workflow:
        left = BitMap64(sequences)
        self.deferred |= left
        self._returning |= left

        def release(messages: BitMap64) -> None:
            self.deferred -= messages
            self._returning -= messages

        def release_and_act(step: Sequence[int]) -> None:
            turn = BitMap64(step)
            release(turn)
            left.difference_update(turn)
            act(step)

        try:
            yield from self._steps(sequences, release_and_act, done)
        finally:
            release(left)
