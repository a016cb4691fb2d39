"""All queues of one kind, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from malamute.core.identity.quotas import QuotaUsages, add_all, check_all
from malamute.core.iteration.named_table import NamedTable
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.queue import UNKNOWN, Queue
from malamute.core.queue.recovery import RestoredQueue, store_again, store_identities_again
from malamute.core.queue.state import DELAYED, READY
from malamute.errors import InvalidValue
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import DeleteQueue, DeleteValue, PutValue, QueueState, Recovered, Stranded
from malamute.store.policies import DURABLE, BaseKind, Persistence
from malamute.store.tables import MEMORY_QUEUES

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.session.session import Session

LOST_WORDS = "messages that were in memory only are gone with the broker that had them"


class QueueTable:
    """A table of queues. One that is empty and unused for long is removed, unless it is the broker's own."""

    kind: ClassVar[BaseKind]

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.by_name: NamedTable[Queue] = NamedTable()
        self._restored: dict[str, RestoredQueue] = {}

    def new(self, name: str) -> Queue:
        """A queue with its policy that is in no table yet."""
        return Queue(self.kind, name, self.limits)

    def get(self, name: str, *, quotas: QuotaUsages = ()) -> Queue:
        """The queue of this name, made if needed; then it counts for these quotas.

        Raises `TryLater` or `QuotaExceeded`.
        """
        return self.by_name.get(name) or self.create(name, quotas)

    def create(self, name: str, quotas: QuotaUsages = ()) -> Queue:
        """Make a queue, which counts for these quotas. Raises `TryLater` or `QuotaExceeded`."""
        self.limits.check_queues()
        check_all(quotas, "queues", 1)
        queue = self.get_or_create(name)
        queue.made_by = quotas
        add_all(quotas, "queues", 1)
        return queue

    def offered(self, name: str, session: Session, *, temporary: bool) -> Queue:
        """The queue for an offer of a session, made if needed. Raises as `get`, or `InvalidValue`."""
        if temporary:
            raise InvalidValue(f"the {self.kind} {name!r} cannot be temporary: expected a mailbox")
        return self.get(name, quotas=session.quotas)

    def get_or_create(self, name: str) -> Queue:
        """The queue of this name, made if needed, even past the limit: something was promised to it."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self._add(name)
            self._watch(queue)
        return queue

    def _add(self, name: str, persistence: Persistence | None = None) -> Queue:
        queue = self.by_name[name] = Queue(self.kind, name, self.limits, persistence)
        self.limits.queues += 1
        return queue

    def drop_unused(self, queue: Queue) -> None:
        """Remove a queue if nothing was ever in it: a refused command changes nothing."""
        if not queue.is_known and not queue.used:
            self._release(queue)

    def remove(self, queue: Queue) -> None:
        """Remove a queue, with all that is in it."""
        self._release(queue)
        _delete_stored(queue)

    def _watch(self, queue: Queue) -> None:
        if not queue.name.startswith(RESERVED_PREFIX):
            self._collect(queue)

    def configure(self, queue: Queue) -> None:
        """Have a queue go by another policy from now on."""
        idle_seconds = queue.usage.policy.idle_seconds
        _configure(queue)
        if queue.usage.policy.idle_seconds != idle_seconds and self.by_name.get(queue.name) is queue:
            self.limits.timers.cancel(queue.collector)
            self._watch(queue)

    def _collect(self, queue: Queue) -> None:
        """Remove a queue when it was empty and unused for as long as is configured."""
        if queue.usage.policy.idle_seconds:
            seen = None if queue.used else queue.next_sequence
            due = self.limits.effects.now + queue.usage.policy.idle_seconds
            queue.collector = self.limits.timers.at(due, lambda: self._collect_unless_used(queue, seen))

    def _collect_unless_used(self, queue: Queue, seen: int | None) -> None:
        if queue.used or queue.next_sequence != seen:
            self._collect(queue)
            return
        self.remove(queue)
        self.limits.flush.note(queue.usage, "collected", 1)

    def _release(self, queue: Queue) -> None:
        del self.by_name[queue.name]
        self.limits.queues -= 1
        add_all(queue.made_by, "queues", -1)
        self.limits.timers.cancel(queue.collector)
        _clear(queue)

    # Starts and damages

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the queues that the store kept, until `resume`."""
        for (kind, name), state in recovered.queues.items():
            if kind.removesuffix("-dead") == self.kind:
                recovery.take_up(kind, name, self._restore, name, state, kind.endswith("-dead"))

    def _restore(self, name: str, state: QueueState, dead: bool) -> None:
        """Take up one of them, or its dead letters."""
        # A stored queue stays in the store, under any present rules.
        queue = self.by_name.get(name) or self._add(name, DURABLE)
        if dead:
            queue.dead_letters.restore(state)
            return
        restored = self._restored[name] = RestoredQueue(queue)
        restored.restore(state)

    def resume(self, recovery: Recovery) -> None:
        """Begin with the restored state."""
        for queue in list(self.by_name.values()):
            if queue.collector is None:
                self._watch(queue)
            if (restored := self._restored.pop(queue.name, None)) is not None:
                recovery.take_up(self.kind, queue.name, restored.resume, recovery)
            recovery.look_at_dead(self.kind, queue.name, queue.dead_letters)

    def report_lost(self, recovered: Recovered) -> None:
        """Report the lost messages of queues in memory."""
        effects = self.limits.effects
        for (kind, name), count in recovered.table(MEMORY_QUEUES).items():
            if kind != self.kind:
                continue
            effects.stage.store(DeleteValue(MEMORY_QUEUES, (kind, name)))
            if count:
                known = None if count == UNKNOWN else count
                effects.notice(LOST_WORDS, kind=kind, name=name, count=known)
                effects.event(f"{kind}.lost.{name}", count=known)

    def store_again(self, stranded: Stranded) -> None:
        """Store the values known here once more, if the store has lost them."""
        for (kind, name), sequences in stranded.messages.items():
            if kind == self.kind and (queue := self.by_name.get(name)) is not None:
                store_again(queue, sequences)
        for (kind, name), identities in stranded.identities.items():
            if kind == self.kind and (queue := self.by_name.get(name)) is not None:
                store_identities_again(queue, identities)


def close(queue: Queue) -> None:
    """Store the state of a queue that the next start needs, at the shutdown."""
    queue.unwritten.write()
    queue.limits.sequences.note_unstored(sorted(queue.not_durable))
    queue.watermark.retract()
    if queue.usage.in_memory and queue.is_known:
        queue.effects.stage.store(PutValue(MEMORY_QUEUES, (queue.kind, queue.name), len(queue.entries)))


def _configure(queue: Queue) -> None:
    """Give a queue its policy of now, except for the fields that its data structures were made for."""
    before = queue.usage.policy
    policy = queue.limits.policy_of(queue.kind, queue.name, before.persistence)
    queue.usage.policy = policy._replace(
        priority_step_messages=before.priority_step_messages,
        dedup_window_seconds=before.dedup_window_seconds,
        dedup_ids_max=before.dedup_ids_max,
    )


def _delete_stored(queue: Queue) -> None:
    """Delete a queue and its dead letters in the store."""
    effects = queue.effects
    if queue.usage.in_memory:
        effects.stage.store(DeleteValue(MEMORY_QUEUES, (queue.kind, queue.name)))
        return
    effects.stage.store(DeleteQueue(queue.kind, queue.name))
    # After a restore, dead letters may be in the store that are unknown here.
    if queue.dead_letters.next_sequence > 1:
        effects.stage.store(DeleteQueue(queue.dead_letters.kind, queue.name))


def _clear(queue: Queue) -> None:
    """Remove all messages of a queue without consumers; very many leave in steps."""
    queue.settlement.post_purged()
    queue.unwritten.settle([*queue.unwritten.entries])
    # Timers and consumers must not find a message while it is removed.
    queue.schedule.drop(queue.entries)
    queue.states.due([entry for entry in queue.entries.values() if entry.state == DELAYED])
    queue.states.take_back([entry for entry in queue.entries.values() if entry.state == READY])
    queue.steps.run([*queue.entries], queue.drop)
    queue.prefetch.clear()
    queue.dead_letters.clear()
    queue.dedup.close()


QueueTables = Mapping[str, QueueTable]
"""The mailboxes and the services, by kind."""
