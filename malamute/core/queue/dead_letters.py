"""Dead letters: messages that nobody could or would take, kept for people to look at.

They are a queue of their own in the store, and nobody consumes them: an operator reads them, sends them again
or drops them. A message is moved here in one transaction. When there are more than configured, the oldest
one leaves. Once they are on the disk their records are there only, since hardly any is ever looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.queue.entry import Entry, puts, ranges_of, size_of
from malamute.core.queue.options import Options
from malamute.core.queue.paging import Records, records_of, runs
from malamute.core.workflow import STORED, Workflow, run_workflow
from malamute.errors import MalamuteError
from malamute.protocol.batch import pack_record
from malamute.store.operations import DeleteMessages, QueueKind, QueueState, StoredMessage

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue

LEFT_BEHIND = ("dead", "tracker", "delay", "at", "immediate")
"""Properties that a message does not have when it is sent again."""

UNREADABLE = pack_record(None, ())
"""The record of a dead letter whose own cannot be read."""


class RedriveProgress(Protocol):
    """What a redrive calls with how far it is."""

    def __call__(self, count: int, before: int = 0, *, final: bool = True) -> None:
        """So many are sent again with this iteration, and so many `before` it. It is `final` at the last."""


class DeadLetters:
    """The dead letters of one mailbox or service, by their own sequences."""

    def __init__(self, queue: Queue) -> None:
        self.kind: QueueKind = "mailbox-dead" if queue.kind == "mailbox" else "service-dead"
        self.next_sequence = 1
        self.paged_out_bytes = 0
        # Its first entry is at hand, however many were taken out before it.
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self._queue = queue
        self._leaving: set[int] = set()
        """Those that are on their way back, until that is durable."""
        self.going: set[int] = set()
        """Those that leave, back or for good, when that is durable."""
        self._arriving: set[int] = set()
        """Those that are here when that is durable: until then they may turn out to be in the queue still."""

    def restore(self, state: QueueState) -> None:
        """Take up what the store kept."""
        memory = self._queue.limits.memory
        self.next_sequence = state.next
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
        """Take messages in with these records, with all else of this iteration or not at all."""
        queue = self._queue
        now = queue.effects.time_ns
        added = []
        for entry in entries:
            message = entry.message
            died = {
                "reason": reason,
                "attempts": entry.attempts,
                "sequence": message.sequence,
                "time": message.time,
                "died": now,
            }
            properties = _without(entry, ("tracker",))
            dead = self._add(
                message._replace(
                    sequence=self.next_sequence,
                    record=records.get(message.sequence, UNREADABLE),
                    properties={**properties, "dead": died},
                )
            )
            self.next_sequence += 1
            added.append(dead)
        queue.effects.store(*puts(self.kind, queue.name, added), size_bytes=size_of(added))
        self._arriving.update(entry.sequence for entry in added)
        queue.effects.when_stored(lambda error: self._added(added, error))
        self._drop_oldest(len(added))

    def _added(self, added: Sequence[Entry], error: MalamuteError | None) -> None:
        self._arriving.difference_update(entry.sequence for entry in added)
        here = [entry for entry in added if entry.sequence in self.entries]
        if error is not None:
            self._forget([entry.sequence for entry in here])
            return
        self._queue.limits.memory.evict(self, here)

    @property
    def excess(self) -> int:
        """How many more there are than configured; the oldest of them leave with the next one that comes."""
        going = self.going & self.entries.keys()
        return max(0, len(self.entries) - len(going) - self._queue.policy.dead_letters_max)

    def _drop_oldest(self, expected: int = 0) -> None:
        """Drop what is too much: in a full list, one for each that has come."""
        going = self.going & self.entries.keys()
        excess = self.excess
        if excess > expected:
            queue = self._queue
            queue.effects.notice(
                "dead letters dropped: there were more than dead_letters allows",
                kind=queue.kind,
                name=queue.name,
                count=excess,
                limit=queue.policy.dead_letters_max,
            )
        if excess > 0:
            self._drop(list(islice((sequence for sequence in self.entries if sequence not in going), excess)))
            self._queue.limits.flush.note(self._queue, "dead-dropped", excess)

    def here(self) -> list[Entry]:
        """Those that are not on their way here or back, in order."""
        moving = self._leaving | self._arriving | self.going
        return [entry for sequence, entry in self.entries.items() if sequence not in moving]

    def purge(self, sequences: Sequence[int]) -> int:
        """Remove some for good, if the disk lets it. Returns how many were there."""
        moving = self._leaving | self._arriving | self.going
        found = [s for s in sequences if s in self.entries and s not in moving]
        if found:
            self.going.update(found)
            self._queue.effects.store_bound(self._removal(found))
            self._queue.effects.when_stored(lambda error: self._purged(found, error))
        return len(found)

    def _purged(self, sequences: Sequence[int], error: MalamuteError | None) -> None:
        self.going.difference_update(sequences)
        if error is None:
            self._forget(sequences)
        else:
            self._drop_oldest()

    def _drop(self, sequences: Sequence[int]) -> None:
        """Remove some for good, whatever becomes of this iteration."""
        self._forget(sequences)
        self._queue.effects.store(self._removal(sequences))

    def redrive(
        self, sequences: Sequence[int], told: RedriveProgress, failed: Callable[[MalamuteError], None]
    ) -> None:
        """Send some again, as new messages, and tell how many, or by `failed` why none.

        What does not fit one commit is told with each of them: one of the others may fail, or never come.
        Raises `TryLater` when the queue has no room for them all, and then nothing happens.
        """
        moving = self._leaving | self._arriving | self.going
        entries = [self.entries[s] for s in sequences if s in self.entries and s not in moving]
        queue = self._queue
        size_bytes = size_of(entries)
        queue.limits.check(queue, len(entries), size_bytes)
        queue.limits.reserve(queue, len(entries), size_bytes)
        self._leaving.update(entry.sequence for entry in entries)
        run_workflow(queue.effects, self._redrive_steps(entries, told, failed))

    def _redrive_steps(
        self, entries: Sequence[Entry], told: RedriveProgress, failed: Callable[[MalamuteError], None]
    ) -> Workflow:
        queue = self._queue
        count = 0
        left = len(entries)
        error: MalamuteError | None = None
        for run in runs(entries):
            records: Records = {}
            try:
                records = {} if error else (yield from records_of(self.kind, queue.name, run))
            except MalamuteError as fault:
                error = fault
            queue.limits.reserve(queue, -len(run), -size_of(run))
            left -= len(run)
            # Those that were dropped meanwhile stay away, and those that cannot be read stay here.
            here = [e for e in run if e.sequence in self.entries and e.sequence in records]
            if here:
                self._put_back(here, records)
                told(count + len(here), count, final=not left)
                self.going.update(entry.sequence for entry in here)
                error = yield STORED
                self.going.difference_update(entry.sequence for entry in here)
            self._leaving.difference_update(entry.sequence for entry in run)
            if here and error is None:
                self._forget([entry.sequence for entry in here])
                count += len(here)
            if not left and here:
                break
        else:
            if error is not None and not count:
                failed(error)
            else:
                told(count, count)
        if error is not None:
            self._drop_oldest()

    def _put_back(self, entries: Sequence[Entry], records: Records) -> None:
        queue = self._queue
        time = queue.effects.time_ns
        again = []
        for sequence, entry in enumerate(entries, queue.next_sequence):
            properties = _without(entry, LEFT_BEHIND)
            record = records[entry.sequence]
            again.append(Entry((sequence, time, entry.sender, entry.subject, record, properties or None)))
        asked = {
            message.sequence: found
            for message in again
            if (found := Options.of(message, time, queue.effects.ahead_ns)) is not None
        }
        queue.put(again, confirmed=True, options=asked, reserved=True)
        queue.effects.store_bound(self._removal([entry.sequence for entry in entries]))

    def clear(self) -> None:
        """The queue is gone, with these."""
        self._forget(list(self.entries))

    def _removal(self, sequences: Sequence[int]) -> DeleteMessages:
        return DeleteMessages(self.kind, self._queue.name, [(a, b) for a, b in ranges_of([*sequences])])

    # Their room is of that for all queues, not of that of this one: whoever sends to it is not to blame.

    def _add(self, message: StoredMessage, paged_out_bytes: int = 0) -> Entry:
        entry = self.entries[message.sequence] = Entry(message, paged_out_bytes=paged_out_bytes)
        self._queue.limits.count_dead(1, entry.size_bytes)
        return entry

    def _forget(self, sequences: Iterable[int]) -> None:
        limits = self._queue.limits
        for sequence in sequences:
            entry = self.entries.pop(sequence, None)
            if entry is not None:
                limits.count_dead(-1, -entry.size_bytes)
                if entry.paged_out:
                    limits.memory.count_paged_out(self, -entry.size_bytes)


def _without(message: Entry, names: Sequence[str]) -> dict[str, Any]:
    properties = message.properties or {}
    # In an outcome the tracker is no option: it says whose outcome it is.
    kept = ("tracker",) if "outcome" in properties else ()
    return {name: value for name, value in properties.items() if name not in names or name in kept}
