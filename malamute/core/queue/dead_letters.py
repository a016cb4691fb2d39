"""Dead letters: rejected or failed messages, kept for operators.

Dead letters are a queue of their own in the store without consumers: an operator reads them, sends them again
or drops them. A message is moved here in one transaction. When there are more than configured, the oldest one
leaves. Once they are on the disk their records are there only, since hardly any is ever looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from malamute.core.queue.entry import Entry, puts, ranges_of, size_of
from malamute.protocol.batch import pack_record
from malamute.store.operations import DeleteMessages, QueueKind, QueueState, StoredMessage

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.paging import Records
    from malamute.core.queue.usage import QueueUsage
    from malamute.errors import MalamuteError

UNREADABLE = pack_record(None, ())
"""The record of a dead letter whose own cannot be read."""


class DeadLetters:
    """The dead letters of one mailbox or service, by their own sequences."""

    def __init__(self, effects: Effects, limits: QueueLimits, usage: QueueUsage) -> None:
        """`usage` is that of the queue where they were."""
        self.kind: QueueKind = "mailbox-dead" if usage.kind == "mailbox" else "service-dead"
        self.next_sequence = limits.incarnation + 1
        self.paged_out_bytes = 0
        # Its first entry is at hand, however many were taken out before it.
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self._effects = effects
        self._limits = limits
        self._usage = usage
        self.leaving: set[int] = set()
        """Dead letters on their way back, until that is durable."""
        self.going: set[int] = set()
        """Dead letters that leave, back or for good, when that is durable."""
        self._arriving: set[int] = set()
        """Dead letters whose move is not durable yet: if it fails, they are still in the queue."""

    def restore(self, state: QueueState) -> None:
        """Restore the stored dead letters."""
        memory = self._limits.memory
        # An operator may have seen numbers that the store does not know, if it was restored since.
        self.next_sequence = max(state.next, self.next_sequence)
        damaged = set(state.damaged)
        for message in state.messages:
            paged_out_bytes = state.paged_out.get(message.sequence, 0)
            if message.sequence in damaged:
                message = message._replace(record=UNREADABLE)
            entry = self._add(message, paged_out_bytes)
            if paged_out_bytes:
                memory.count_paged_out(self, entry.size_bytes)
            else:
                memory.evict(self, [entry])

    def add(self, entries: Iterable[Entry], records: Records, reason: str) -> None:
        """Add messages with these records, together with everything of this iteration or not at all.

        Messages without a record are damaged, and marked so; no client can set that mark.
        """
        effects, usage = self._effects, self._usage
        now = effects.time_ns
        added = []
        for entry in entries:
            message = entry.message
            died: dict[str, Any] = {
                "reason": reason,
                "attempts": entry.attempts,
                "sequence": message.sequence,
                "time": message.time_ns,
                "died": now,
            }
            if message.sequence not in records:
                died["damaged"] = True
            properties = properties_without(entry, ("tracker",))
            dead = self._add(
                message._replace(
                    sequence=self.next_sequence,
                    record=records.get(message.sequence, UNREADABLE),
                    properties={**properties, "dead": died},
                )
            )
            self.next_sequence += 1
            added.append(dead)
        usage.store(*puts(self.kind, usage.name, added), size_bytes=size_of(added))
        self._arriving.update(entry.sequence for entry in added)
        effects.stage.when_stored(lambda error: self._added(added, error))
        self.drop_oldest(len(added))

    def _added(self, added: Sequence[Entry], error: MalamuteError | None) -> None:
        self._arriving.difference_update(entry.sequence for entry in added)
        here = [entry for entry in added if entry.sequence in self.entries]
        if error is not None:
            self.forget([entry.sequence for entry in here])
            return
        self._limits.dead_lettered[self._usage.kind] += len(added)
        self._limits.memory.evict(self, here)

    @property
    def excess(self) -> int:
        """How many more there are than configured; the oldest of them leave with the next one that comes."""
        going = self.going & self.entries.keys()
        return max(0, len(self.entries) - len(going) - self._usage.policy.dead_letters_max)

    def drop_oldest(self, expected: int = 0) -> None:
        """Drop dead letters beyond the limit: in a full list, one for each new one."""
        going = self.going & self.entries.keys()
        excess = self.excess
        if excess > expected:
            usage = self._usage
            self._effects.notice(
                "dead letters dropped: there were more than dead_letters allows",
                kind=usage.kind,
                name=usage.name,
                count=excess,
                limit=usage.policy.dead_letters_max,
            )
        if excess > 0:
            self._drop(list(islice((sequence for sequence in self.entries if sequence not in going), excess)))
            self._limits.flush.note(self._usage, "dead-dropped", excess)

    def here(self) -> list[Entry]:
        """Return the dead letters that are not on their way here or back, in order."""
        moving = self._moving
        return [entry for sequence, entry in self.entries.items() if sequence not in moving]

    def find(self, sequences: Iterable[int]) -> list[Entry]:
        """The same of some."""
        moving = self._moving
        return [self.entries[s] for s in sequences if s in self.entries and s not in moving]

    @property
    def count(self) -> int:
        """How many are `here`."""
        return len(self.entries) - sum(sequence in self.entries for sequence in self._moving)

    @property
    def _moving(self) -> set[int]:
        return self.leaving | self._arriving | self.going

    def purge(self, sequences: Sequence[int]) -> int:
        """Remove some for good, if the disk lets it. Returns how many were there."""
        found = [entry.sequence for entry in self.find(sequences)]
        if found:
            self.going.update(found)
            self._usage.store_bound(self.removal(found))
            self._effects.stage.when_stored(lambda error: self._purged(found, error))
        return len(found)

    def _purged(self, sequences: Sequence[int], error: MalamuteError | None) -> None:
        self.going.difference_update(sequences)
        if error is None:
            self.forget(sequences)
        else:
            self.drop_oldest()

    def _drop(self, sequences: Sequence[int]) -> None:
        """Remove some for good, even if this iteration fails."""
        self.forget(sequences)
        self._usage.store(self.removal(sequences))

    def clear(self) -> None:
        """The queue is gone, with these."""
        self.forget(list(self.entries))

    def removal(self, sequences: Sequence[int]) -> DeleteMessages:
        """Return the operation that removes some from the store."""
        return DeleteMessages(self.kind, self._usage.name, [(a, b) for a, b in ranges_of([*sequences])])

    # Their room is of that for all queues, not of that of this one: its senders are not to blame.

    def _add(self, message: StoredMessage, paged_out_bytes: int = 0) -> Entry:
        entry = self.entries[message.sequence] = Entry(message, paged_out_bytes=paged_out_bytes)
        self._limits.count_dead(1, entry.size_bytes)
        return entry

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget some; the caller removes them from the store."""
        limits = self._limits
        for sequence in sequences:
            entry = self.entries.pop(sequence, None)
            if entry is not None:
                limits.count_dead(-1, -entry.size_bytes)
                if entry.paged_out:
                    limits.memory.count_paged_out(self, -entry.size_bytes)


def properties_without(message: Entry, names: Sequence[str]) -> dict[str, Any]:
    """The properties of a message, but for these."""
    properties = message.properties or {}
    # In an outcome the tracker is no option: it says whose outcome it is.
    kept = ("tracker",) if "outcome" in properties else ()
    return {name: value for name, value in properties.items() if name not in names or name in kept}
