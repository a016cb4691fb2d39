"""What all queues share: the iteration, the timers, the limits, and the room that is left."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Protocol

from malamute.core.queue.deduplication import DedupQuota
from malamute.core.queue.flush import QueueFlush
from malamute.core.queue.paging import RecordMemory, RecordOwner
from malamute.core.queue.settlement_log import SettlementLog
from malamute.core.timers import Timers
from malamute.errors import TryLater
from malamute.store.policies import BaseKind, PolicyOf, QueuePolicy

if TYPE_CHECKING:
    from malamute.core.doubt import Doubt
    from malamute.core.effects import Effects
    from malamute.core.queue.trackers import Trackers
    from malamute.matching import CacheBudget
    from malamute.protocol.limits import Limits


class LimitedQueue(RecordOwner, Protocol):
    """A queue, as far as it is limited."""

    kind: BaseKind
    name: str
    policy: QueuePolicy
    bytes: int
    """What all of its messages take, with the room that is reserved."""
    reserved: int
    """Messages that may still come, and have their room."""

    @property
    def entries(self) -> Sized:
        """Its messages."""


class QueueLimits:
    """The room for queues, and all else that they share."""

    trackers: Trackers
    doubt: Doubt
    """Whether the clock may have been wrong at the start."""

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        timers: Timers,
        policy: PolicyOf,
        caches: CacheBudget,
        incarnation: int = 0,
    ) -> None:
        self.incarnation = incarnation
        """The number up to which no sequence is given out, as it may have been before a restore."""
        self.effects = effects
        self.configured = limits
        self.timers = timers
        self.policy = policy
        self.caches = caches
        """Shared by the indexes of all queues, and of streams."""
        self.messages = 0
        self.settlement_log = SettlementLog(effects)
        self.bytes = 0
        self.queues = 0
        self.memory = RecordMemory(self)
        self.dedup_quota = DedupQuota(limits.identities_bytes)
        self.flush = QueueFlush(effects)

    def configure(self, policy: PolicyOf, limits: Limits) -> None:
        """Go by other policies and limits; the queues are told by `Queue.configure`."""
        self.policy, self.configured = policy, limits

    def policy_of(self, kind: BaseKind, name: str) -> QueuePolicy:
        """The policy of a queue, whose depth and bytes are within the limits of all queues."""
        policy, limits = self.policy(kind, name), self.configured
        return policy._replace(
            messages_max=min(policy.messages_max or limits.queue_messages, limits.queue_messages),
            bytes_max=min(policy.bytes_max or limits.queue_bytes, limits.queue_bytes),
        )

    def check(self, queue: LimitedQueue, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless there is room for messages in a queue."""
        self.check_queue(queue, messages, size_bytes)
        self.check_all(messages, size_bytes)

    def check_queue(self, queue: LimitedQueue, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless a queue may have so many more messages and bytes."""
        held = len(queue.entries) + queue.reserved
        if held + messages > queue.policy.messages_max:
            raise TryLater(f"{queue.kind} {queue.name!r} is full: it holds {held} messages; retry later")
        if queue.bytes + size_bytes > queue.policy.bytes_max:
            raise TryLater(f"{queue.kind} {queue.name!r} is full: it holds {queue.bytes} bytes; retry later")

    def check_all(self, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless all queues together may have so many more messages and bytes."""
        if self.messages + messages > self.configured.queues_messages:
            raise TryLater(f"queues are full: all together hold {self.messages} messages; retry later")
        if self.bytes + size_bytes > self.configured.queues_bytes:
            raise TryLater(f"queues are full: all together hold {self.bytes} bytes; retry later")
        if self.short_of_memory:
            raise TryLater("memory for messages that are not durable is used up: retry later")

    @property
    def short_of_memory(self) -> bool:
        """Whether there is too much in memory that the disk does not take."""
        # Of what the disk would not take and nobody waits for, the memory has the only copy.
        return self.memory.free_bytes < -self.configured.backlog_bytes

    def count(self, queue: LimitedQueue, messages: int, size_bytes: int) -> None:
        """Take room for messages of a queue, or give it back if negative."""
        queue.bytes += size_bytes
        self.count_dead(messages, size_bytes)

    def count_dead(self, messages: int, size_bytes: int) -> None:
        """Take room for dead letters, which is no queue's own, or give it back."""
        self.messages += messages
        self.bytes += size_bytes

    def reserve(self, queue: LimitedQueue, messages: int, size_bytes: int) -> None:
        """Keep room for messages that may still come, or give it back if negative. It takes no memory."""
        queue.reserved += messages
        self.count(queue, messages, size_bytes)
        self.memory.count_paged_out(queue, size_bytes)

    def check_queues(self) -> None:
        """Raise `TryLater` unless there may be one more queue: those that nobody uses are removed in time."""
        if self.queues >= self.configured.queues:
            most = self.configured.queues
            raise TryLater(
                f"too many queues: expected at most {most} mailboxes and services (limits.queues); "
                "those that are empty and unused are removed in time"
            )
