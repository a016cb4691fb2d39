"""How messages end: acknowledged, expired, withdrawn, purged or dead.

An end is one transaction with all that follows from it: the outcome for who tracks the message, the dead
letter, and whatever else the turn stores. If the disk refuses that, the message is where it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from malamute.core.delivery.cold import RETRY_SECONDS, records_of, runs
from malamute.core.delivery.entry import Entry, ranges_of, size_of
from malamute.core.steps import GO_ON, Steps, proceed
from malamute.errors import MalamuteError
from malamute.store.operations import DeleteMessages

if TYPE_CHECKING:
    from malamute.core.delivery.queue import Queue

CORRUPT = "corrupt"
"""Why a message is dead that cannot be read."""

UNREADABLE_WORDS = "corrupt: the request cannot be read, the disk has lost it"


class Ends:
    """The ends of one queue's messages."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def end(
        self,
        sequences: Sequence[int],
        outcome: str,
        reason: str = "",
        *,
        bound: bool = False,
        worker: str = "",
    ) -> None:
        """Remove messages that are nowhere else, and tell the senders of those that are tracked.

        `bound`, and for tracked messages always: if that cannot be stored, they are ready again. `worker` is
        the address of whoever ended them.
        """
        if tracked := self.tracked(sequences):
            self._tell(tracked, outcome, reason)
            self._remove(tracked, outcome, worker, bound=True)
            sequences = sorted(set(sequences).difference(tracked))
        if sequences:
            self._remove(sequences, outcome, worker, bound=bound)

    def tracked(self, sequences: Iterable[int]) -> list[int]:
        """Those whose senders are told of their end."""
        options = self._queue.options
        if not options:
            return []
        return [s for s in sequences if (asked := options.get(s)) is not None and asked.tracker]

    def end_early(self, sequences: Iterable[int], outcome: str, *, bound: bool = True) -> int:
        """End messages wherever they are. Returns how many were to be had."""
        found = self.seize(sequences, outcome)
        if found:
            self._queue.budget.note(self._queue, outcome, len(found))
            self.end(found, outcome, bound=bound)
        return len(found)

    def seize(self, sequences: Iterable[int], reason: str, *, told: bool = True) -> list[int]:
        """Take messages from where they are, and tell who holds them. Returns those that were to be had.

        What is on its way to or from the disk is not.
        """
        queue, entries = self._queue, self._queue.entries
        seized: list[int] = []
        held: dict[int, list[int]] = {}
        for sequence in sequences:
            where = entries[sequence].where if sequence in entries else "settling"
            if where == "waiting":
                queue.waiting -= 1
            elif where == "delayed":
                queue.schedule.seize(sequence)
            elif isinstance(where, str):
                continue
            else:
                held.setdefault(id(where), []).append(sequence)
            seized.append(sequence)
            entries[sequence].where = "settling"
        for identifier, theirs in held.items():
            consumer = queue.consumers[identifier]
            if told:
                consumer.recalled(theirs, reason)
            consumer.detach(theirs)
        return seized

    # Dead letters

    def damaged(self, sequences: list[int]) -> None:
        """The records of messages that were given to consumers cannot be read: they are dead."""
        self.corrupted(self.seize(sequences, "damaged", told=False))

    def corrupted(self, sequences: list[int]) -> None:
        """Messages that are nowhere else cannot be read: they are dead."""
        queue = self._queue
        queue.turn.notice(
            "a queued message cannot be read",
            kind=queue.kind,
            name=queue.name,
            sequences=ranges_of(sequences),
        )
        queue.budget.note(queue, "damaged", len(sequences))
        self.bury(sequences, "dead-lettered", CORRUPT)

    def bury(self, sequences: Sequence[int], outcome: str, reason: str, worker: str = "") -> None:
        """Make dead letters of messages that are nowhere else."""
        queue = self._queue
        queue.budget.note(queue, "dead", len(sequences))
        entries = [queue.entries[sequence] for sequence in sequences]
        for entry in entries:
            entry.where = "settling"
        self._bury(entries, outcome, reason, worker)

    def _bury(self, entries: Sequence[Entry], outcome: str, reason: str, worker: str) -> None:
        proceed(self._queue.turn, self._burial(entries, outcome, reason, worker))

    def _burial(self, entries: Sequence[Entry], outcome: str, reason: str, worker: str) -> Steps:
        queue, buried = self._queue, 0
        for run in runs(entries):
            if queue.turn.work <= 0:
                yield GO_ON
            queue.turn.work -= 2 * len(run)
            kept = queue.policy.dead_letters > 0
            try:
                records = (yield from records_of(queue.kind, queue.name, run)) if kept else {}
            except MalamuteError:
                # They are on the disk, and with nobody: they are asked for again.
                again = partial(self._bury, entries[buried:], outcome, reason, worker)
                queue.budget.timers.at(queue.turn.now + RETRY_SECONDS, again)
                return
            buried += len(run)
            # The queue may have been cleared meanwhile.
            here = [entry for entry in run if entry.sequence in queue.entries]
            if kept:
                queue.dead.bury(here, records, reason)
            gone = [entry.sequence for entry in here]
            if reason == CORRUPT and queue.kind == "service":
                tracked = set(self.tracked(gone))
                untold = [entry for entry in here if entry.sequence not in tracked]
                queue.budget.trackers.answer(queue, untold, UNREADABLE_WORDS)
            self.end(gone, outcome, reason, bound=True, worker=worker)

    # Removal

    def _remove(self, sequences: Sequence[int], outcome: str, worker: str, *, bound: bool) -> None:
        queue = self._queue
        ranges = [(first, last) for first, last in ranges_of([*sequences])]
        removal = DeleteMessages(queue.kind, queue.name, ranges)
        if not bound:
            queue.turn.store(removal)
            self._settle(sequences, outcome, worker)
            return
        for sequence in sequences:
            queue.entries[sequence].where = "settling"
        queue.turn.store_bound(removal)
        queue.turn.when_stored(lambda error: self._removed(sequences, outcome, worker, error))

    def _removed(
        self, sequences: Sequence[int], outcome: str, worker: str, error: MalamuteError | None
    ) -> None:
        queue = self._queue
        here = [sequence for sequence in sequences if sequence in queue.entries]
        if error is None:
            self._settle(here, outcome, worker)
        else:
            queue.make_ready(sorted(queue.schedule.put_back(here)))

    def _settle(self, sequences: Sequence[int], outcome: str, worker: str) -> None:
        queue = self._queue
        queue.budget.ledger.settled(queue, [queue.entries[s] for s in sequences], outcome, worker)
        self.drop(sequences)

    def drop(self, sequences: Sequence[int]) -> None:
        """Forget messages, with all that is known of them; the disk is told by others."""
        queue = self._queue
        entries = [queue.entries.pop(sequence) for sequence in sequences]
        if len(sequences) == 1:
            queue.sequences.discard(sequences[0])
        else:
            queue.sequences -= BitMap64(sequences)
        for entry in entries:
            if entry.where == "waiting":
                queue.waiting -= 1
            if queue.options:
                self._forget_options(entry)
        queue.schedule.drop(sequences)
        queue.correlations.remove(entries)
        queue.unsaved.difference_update(sequences)
        queue.marks.forget(sequences)
        queue.budget.take(queue, -len(sequences), -size_of(entries))
        queue.budget.memory.count_cold(queue, -size_of([e for e in entries if e.record is None]))

    def _forget_options(self, entry: Entry) -> None:
        queue = self._queue
        asked = queue.options.pop(entry.sequence, None)
        if asked is not None:
            queue.budget.timers.cancel(asked.timer)
            if asked.tracker:
                queue.budget.trackers.close(entry)

    def tell_purged(self) -> None:
        """The queue is gone: whatever becomes of this turn, all of its messages end."""
        entries = self._queue.entries
        # Others have their outcome.
        if tracked := [s for s in self.tracked(entries) if entries[s].where != "settling"]:
            self._tell(tracked, "purged", "the mailbox is gone", bound=False)

    def _tell(self, tracked: Iterable[int], outcome: str, reason: str, *, bound: bool = True) -> None:
        entries = [self._queue.entries[sequence] for sequence in tracked]
        self._queue.budget.trackers.post(self._queue, entries, outcome, reason, bound=bound)
