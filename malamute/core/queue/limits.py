"""Shared by all queues: the iteration, the timers, and the limits.

`QueueUsage` has the part of one queue; this file alone changes it.

`QueueSequences` reserves sequences. A message that needs no confirmation is delivered before it is on the
disk. If the broker dies then, nothing there tells of the message, but a consumer may still answer it, and
must not answer another one. So the disk has a sequence up to which any may be in use, as it has for each
stream: a message beyond it is not delivered before that is durable, and after a crash all queues, new ones
too, go on behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Protocol

from malamute.core.iteration.dedup_quota import DedupQuota
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.iteration.timers import Timers
from malamute.core.queue.delivery import QueueFlush
from malamute.core.queue.entry import Entry, size_of
from malamute.core.queue.settlement_log import SettlementLog
from malamute.core.queue.unwritten import Hold
from malamute.errors import TooMany, TryLater
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.policies import MEMORY, QueueSettings
from malamute.store.tables import QUEUE_SETTINGS, SEQUENCES

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.grace_period import GracePeriod
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.queue.usage import QueueUsage, RecordOwner
    from malamute.errors import MalamuteError
    from malamute.matching import CacheBudget
    from malamute.protocol.limits import Limits
    from malamute.store.operations import Frame, Recovered, Stranded
    from malamute.store.policies import BaseKind, Persistence, PolicyOf, QueuePolicy

RESERVE = 1 << 18
"""Sequences that are reserved at once, ahead of the last one."""

RETRY_SECONDS = 1.0

SETTINGS_MAX = 1_000
"""Queues with settings of their own."""

KEY = ("",)

TEXTS_MAX = 1_000
"""Subjects of which messages that are paged out share one copy."""


class Tracking(Protocol):
    """The outcomes of tracked messages, as far as a queue needs them (`malamute.core.queue.trackers`)."""

    def check(
        self, address: str, usage: QueueUsage, messages: Sequence[Entry], arriving: Sequence[Entry]
    ) -> None:
        """Raise `InvalidValue`, `TrackerInUse` or `TryLater` unless all can be tracked.

        `messages` are the tracked ones among those that are `arriving` in the queue, which need room too.
        """

    def open(self, usage: QueueUsage, message: Entry) -> bool:
        """Keep room for the outcome of a tracked message, accepted or found, if no other has its tracker."""

    def close(self, message: Entry) -> None:
        """The outcome of a tracked message is stored, or its command was refused after all."""

    def post(
        self, usage: QueueUsage, entries: Iterable[Entry], outcome: str, reason: str, *, bound: bool = True
    ) -> None:
        """Put outcomes into the mailboxes of the senders, with all else of this iteration."""

    def bounce(
        self,
        usage: QueueUsage,
        entries: Iterable[Entry],
        records: Mapping[int, Frame],
        reason: str,
        worker: str,
    ) -> list[int]:
        """Put messages back into the mailboxes of their senders, with all else of this iteration.

        Returns the sequences of those that had room there.
        """

    def answer(self, service: str, requests: Iterable[Entry], error: str) -> None:
        """End requests that nobody tracks: a final reply reports an error, with all of the iteration."""


class QueueLimits:
    """The room for queues, and all else that they share; sizes in bytes."""

    trackers: Tracking
    grace_period: GracePeriod
    """Whether the clock may have been wrong at the start."""

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        timers: Timers,
        policy: PolicyOf,
        caches: CacheBudget,
        incarnation: int,
    ) -> None:
        self.incarnation = incarnation
        """The sequence up to which no dead letter has one: before a restore it may have been another's."""
        self.sequences = QueueSequences(effects, timers, incarnation)
        self.effects = effects
        self.configured = limits
        self.timers = timers
        self.policy = policy
        self.settings: StoredValues[tuple[str, str], QueueSettings] = StoredValues(effects.stage)
        """The settings of queues, by kind and name, that were made at run time."""
        self.caches = caches
        """Shared by the indexes of all queues, and of streams."""
        self.queues = 0
        self.messages = 0
        self.bytes = 0
        self.memory = RecordMemory(self)
        self.dedup_quota = DedupQuota(limits.identities_bytes)
        self.settlement_log = SettlementLog(effects)
        self.settlements: Counter[str] = Counter()
        """How many messages of all queues were settled, by outcome."""
        self.dead_lettered: Counter[str] = Counter()
        """How many messages became dead letters, by the kind of queue."""
        self.flush = QueueFlush(effects)
        self.hold = Hold(effects, timers)

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Restore the shared state of all queues."""
        self.sequences.restore(recovered)
        for queue, value in recovered.table(QUEUE_SETTINGS).items():
            self.settings[queue] = QueueSettings.of(value)

    def store_again(self, stranded: Stranded) -> None:
        """Store the shared values of all queues once more, if the store has lost them."""
        self.sequences.store_again(stranded)
        for queue in stranded.keys(QUEUE_SETTINGS):
            self.settings.rely_on_changes(queue.__eq__)
            if queue in self.settings:
                self.effects.stage.store(PutValue(QUEUE_SETTINGS, queue, self.settings[queue]))

    def configure(self, policy: PolicyOf, limits: Limits) -> None:
        """Go by other policies and limits; `QueueTable.configure` does so for each queue."""
        self.policy, self.configured = policy, limits

    def policy_of(self, kind: BaseKind, name: str, persistence: Persistence | None = None) -> QueuePolicy:
        """The policy of a queue, whose depth and bytes are within the limits of all queues.

        `persistence` is the one that it has already, if it has one.
        """
        policy, limits = self.policy(kind, name), self.configured
        persistence = persistence or policy.persistence
        set_here = self.settings.get((kind, name), QueueSettings())
        return policy._replace(
            **set_here.given,
            persistence=persistence,
            # Dead letters stay for long, and would take memory that is for messages.
            dead_letters_max=0 if persistence == MEMORY else policy.dead_letters_max,
            messages_max=min(policy.messages_max or limits.queue_messages, limits.queue_messages),
            bytes_max=min(policy.bytes_max or limits.queue_bytes, limits.queue_bytes),
        )

    def check_settings(self, kind: BaseKind, name: str) -> None:
        """Raise `TooMany` unless there is room for the settings of a queue."""
        if (kind, name) not in self.settings and len(self.settings) >= SETTINGS_MAX:
            raise TooMany(f"too many queues have settings of their own: expected at most {SETTINGS_MAX}")

    def set(self, kind: BaseKind, name: str, settings: QueueSettings | None) -> None:
        """Store the settings of a queue with this iteration; None is those of the configuration."""
        self.settings.put((kind, name), settings)
        if settings is None:
            self.effects.stage.store(DeleteValue(QUEUE_SETTINGS, (kind, name)))
        else:
            self.effects.stage.store(PutValue(QUEUE_SETTINGS, (kind, name), settings))

    def forget_settings(self, kind: BaseKind, name: str) -> None:
        """Delete the settings of a queue that is deleted, if it has any."""
        if (kind, name) in self.settings:
            self.set(kind, name, None)

    def check(self, usage: QueueUsage, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless there is room for messages in a queue."""
        self.check_queue(usage, messages, size_bytes)
        self.check_all(messages, size_bytes)

    def check_queue(self, usage: QueueUsage, messages: int, size_bytes: int) -> None:
        """Raise `TryLater` unless a queue may have so many more messages and bytes."""
        kind, name, policy = usage.kind, usage.name, usage.policy
        if usage.messages + messages > policy.messages_max:
            raise TryLater(f"{kind} {name!r} is full: it holds {usage.messages} messages; retry later")
        if usage.bytes + size_bytes > policy.bytes_max:
            raise TryLater(f"{kind} {name!r} is full: it holds {usage.bytes} bytes; retry later")
        # As with records that can be paged out, none has more than is free then: new messages count twice.
        if usage.in_memory and self.memory.excess_bytes(usage) + 2 * size_bytes > 0:
            raise TryLater(
                f"{kind} {name!r} is full: what is in memory only holds {usage.bytes} bytes; retry later"
            )

    def bytes_max(self, usage: QueueUsage) -> int:
        """The bytes at which a queue is full, if nothing changes in the others."""
        most = usage.policy.bytes_max
        if not usage.in_memory:
            return most
        # As in `check_queue`: full is a queue that has as much in memory as is free for all.
        held = usage.bytes - usage.paged_out_bytes
        return min(most, max(1, usage.paged_out_bytes + (held + self.memory.free_bytes) // 2))

    def never_fits(self, usage: QueueUsage, size_bytes: int) -> bool:
        """Whether a queue has no room for a message even if nothing is in any queue."""
        most = usage.policy.bytes_max
        if usage.in_memory:
            most = min(most, self.configured.queues_memory_bytes // 2)
        return size_bytes > most

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
        # The memory has the only copy of messages that the disk refused and no client awaits.
        return self.memory.free_bytes < -self.configured.backlog_bytes

    def check_queues(self) -> None:
        """Raise `TryLater` unless there may be one more queue: those that nobody uses are removed in time."""
        if self.queues >= self.configured.queues:
            most = self.configured.queues
            raise TryLater(
                f"too many queues: expected at most {most} mailboxes and services (limits.memory); "
                "those that are empty and unused are removed in time"
            )

    def count(self, usage: QueueUsage, messages: int, size_bytes: int) -> None:
        """Take room for messages of a queue, or give it back if negative."""
        usage.messages += messages
        usage.bytes += size_bytes
        assert usage.messages >= 0 <= usage.bytes, f"less than nothing is in {usage.kind} {usage.name!r}"
        self.messages += messages
        self.bytes += size_bytes

    def count_dead(self, messages: int, size_bytes: int) -> None:
        """Take room for dead letters, which is no queue's own, or give it back."""
        self.messages += messages
        self.bytes += size_bytes

    def reserve(self, usage: QueueUsage, messages: int, size_bytes: int) -> None:
        """Reserve room for messages that may still come, or return it if negative, without taking memory."""
        usage.reserved += messages
        assert usage.reserved >= 0, f"less than nothing is reserved in {usage.kind} {usage.name!r}"
        self.count(usage, messages, size_bytes)
        self.memory.count_paged_out(usage, size_bytes)


class RecordMemory:
    """The memory that the records of all queues share; sizes in bytes.

    `paged_out_bytes` are those of messages that it does not hold, `prefetched_bytes` those on their way here.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.paged_out_bytes = 0
        self.prefetched_bytes = 0
        self._limits = limits
        self._texts: dict[str, str] = {}

    @property
    def free_bytes(self) -> int:
        """Return the free bytes; less than 0 where more came than may stay."""
        limits = self._limits
        return (
            limits.configured.queues_memory_bytes
            - (limits.bytes - self.paged_out_bytes)
            - self.prefetched_bytes
        )

    @property
    def used_bytes(self) -> int:
        """The usage of all queues together."""
        return self._limits.configured.queues_memory_bytes - self.free_bytes

    def excess_bytes(self, usage: QueueUsage) -> int:
        """The bytes of records by which a queue has more than is free for all."""
        return usage.bytes - usage.paged_out_bytes - self.free_bytes

    def count_paged_out(self, owner: RecordOwner, size_bytes: int) -> None:
        """So many more bytes, or less if negative, take no memory."""
        owner.paged_out_bytes += size_bytes
        self.paged_out_bytes += size_bytes

    def evict(self, owner: RecordOwner, entries: Iterable[Entry], size_bytes: float = inf) -> None:
        """Forget records that are on the disk, until so many bytes less take memory."""
        warm = [entry for entry in entries if entry.record]
        gone = size_of(warm)
        if gone > size_bytes:
            totals = [*accumulate(entry.size_bytes for entry in warm)]
            last = bisect_left(totals, size_bytes)
            warm, gone = warm[: last + 1], totals[last]
        same = self._texts.setdefault
        for entry in warm:
            entry.record = None
            entry.subject = same(entry.subject, entry.subject)
        if len(self._texts) > TEXTS_MAX:
            self._texts.clear()
        self.count_paged_out(owner, gone)


class QueueSequences:
    """The reserved sequences of all queues. None of this life is up to `floor`."""

    def __init__(self, effects: Effects, timers: Timers, incarnation: int) -> None:
        self._effects = effects
        self._timers = timers
        self._waiting: list[Callable[[], None]] = []
        self.floor = self.reserved = incarnation
        self._asked = 0
        """Up to where the disk is asked to reserve them; 0 while it is not."""
        self._asked_in = 0
        """The append that asks for that."""
        self._unstored = 0
        """The last sequence of a message that is on no disk, though somebody may have it."""
        self._is_closed = False

    def restore(self, recovered: Recovered) -> None:
        """Go on behind all that may be in use, before any queue is restored."""
        reserved: int = recovered.table(SEQUENCES).get(KEY, 0)
        entry = SEQUENCES, KEY
        if entry in recovered.lost or entry in recovered.doubtful:
            # The lost value was above all that is stored; by how much is unknown.
            nexts = (queue.next for queue in recovered.queues.values())
            reserved = max(reserved, *nexts, 0) + 2 * RESERVE
        self.floor = self.reserved = max(reserved, self.floor)

    def covers(self, last: int) -> bool:
        """Whether nobody gets a sequence again that is in use by now. More are reserved when it is time."""
        wanted = last + RESERVE // 2
        # With any disk: an append with these, or before them, reserves them.
        if wanted > self.reserved and wanted > self._asked:
            self._reserve(last + RESERVE)
        return last <= self.reserved

    def rely_on_reservation(self) -> None:
        """Store this iteration only if the reservation under way is stored."""
        if self._asked:
            self._effects.stage.rely_on(self._asked_in)

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
        self._asked_in = self._effects.stage.token
        self._effects.stage.store(PutValue(SEQUENCES, KEY, last))
        self._effects.stage.when_stored(lambda error: self._stored(last, error), awaited=False)

    def _stored(self, last: int, error: MalamuteError | None) -> None:
        if self._asked == last:
            self._asked = 0
        if error is None:
            self.reserved = max(self.reserved, last)
            self._call_back()

    def store_again(self, stranded: Stranded) -> None:
        """Store the reservation once more, if the store has lost it."""
        if stranded.keys(SEQUENCES):
            # The value must not fall behind a reservation on its way to the disk.
            self._effects.stage.store(PutValue(SEQUENCES, KEY, max(self.reserved, self._asked)))

    def close(self) -> None:
        """Return the unused reservation at the shutdown, until the last answer of the disk."""
        self._is_closed = True
        self._give_back()

    def _give_back(self) -> None:
        self._effects.stage.store(PutValue(SEQUENCES, KEY, max(self.floor, self._unstored)))
