"""All queues of one kind, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from malamute.core.delivery.budget import Budget
from malamute.core.delivery.queue import Queue
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import QueueState
from malamute.store.policies import BaseKind

if TYPE_CHECKING:
    from malamute.core.recovery import Recovery


class Queues:
    """A table of queues. One that is empty and unused for long is removed, unless it is the broker's own."""

    kind: ClassVar[BaseKind]

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.by_name: dict[str, Queue] = {}

    def new(self, name: str) -> Queue:
        """A queue with its policy that is in no table yet."""
        return Queue(self.kind, name, self.budget)

    def make(self, name: str) -> Queue:
        """Make a queue. Raises `TryLater`."""
        self.budget.check_queues()
        return self.keep(name)

    def keep(self, name: str) -> Queue:
        """The queue of this name, made if needed, even past the limit: something was promised to it."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self._add(name)
            self._watch(queue)
        return queue

    def _add(self, name: str) -> Queue:
        queue = self.by_name[name] = self.new(name)
        self.budget.queues += 1
        return queue

    def _watch(self, queue: Queue) -> None:
        if not queue.name.startswith(RESERVED_PREFIX):
            self.budget.collect(queue, self.by_name)

    def restore(self, name: str, state: QueueState, dead: bool) -> None:
        """Take up a queue, or its dead letters, that the store kept."""
        queue = self.by_name.get(name) or self._add(name)
        (queue.dead if dead else queue).restore(state)

    def resume(self, recovery: Recovery) -> None:
        """Begin with what was restored."""
        for queue in list(self.by_name.values()):
            if queue.collector is None:
                self._watch(queue)
            recovery.take_up(self.kind, queue.name, queue.resume, recovery)
