"""Settlement: what a message ends with. It is acknowledged, expires, is withdrawn, purged or dead-lettered.

It is one transaction with all that follows from it: the outcome for who tracks the message, the dead
letter, and whatever else the iteration stores. If the disk refuses that, the message is where it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from malamute.core.metrics import QueueMetrics
from malamute.core.queue.entry import Entry, ranges_of, size_of
from malamute.core.queue.paging import RETRY_SECONDS, records_of, runs
from malamute.core.queue.state import DELAYED, DELIVERED, PENDING, SETTLING
from malamute.core.workflow import GO_ON, Workflow, run_workflow
from malamute.errors import MalamuteError
from malamute.store.operations import DeleteMessages

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue

CORRUPT = "corrupt"
"""Why a message is dead that cannot be read."""

UNREADABLE_WORDS = "corrupt: the request cannot be read, the disk has lost it"


class Settlement:
    """The settlement of one queue's messages."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def settle(
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
            self._post_outcomes(tracked, outcome, reason)
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

    def settle_early(self, sequences: Iterable[int], outcome: str, *, bound: bool = True) -> int:
        """End messages wherever they are. Returns how many were there."""
        found = self.claim(sequences, outcome)
        if found:
            self._queue.limits.flush.note(self._queue, outcome, len(found))
            self.settle(found, outcome, bound=bound)
        return len(found)

    def claim(self, sequences: Iterable[int], reason: str, *, told: bool = True) -> list[int]:
        """Take messages from where they are, and tell who holds them. Returns those that were there.

        What is on its way to or from the disk is not.
        """
        queue, entries = self._queue, self._queue.entries
        claimed: list[Entry] = []
        held: dict[int, list[int]] = {}
        for sequence in dict.fromkeys(sequences):
            entry = entries.get(sequence)
            if entry is None or entry.state in (PENDING, SETTLING):
                continue
            if entry.state == DELAYED:
                queue.schedule.claim(sequence)
            elif entry.state == DELIVERED:
                held.setdefault(id(entry.consumer), []).append(sequence)
            claimed.append(entry)
        # Whoever loses some may be served at once, and must not get others of them.
        queue.states.settle(claimed)
        for identifier, theirs in held.items():
            consumer = queue.consumers[identifier]
            if told:
                consumer.recalled(theirs, reason)
            consumer.detach(theirs)
        return [entry.sequence for entry in claimed]

    # Dead letters

    def dead_letter_damaged(self, sequences: list[int]) -> None:
        """The records of messages that were given to consumers cannot be read: they are dead."""
        self.dead_letter_unreadable(self.claim(sequences, "damaged", told=False))

    def dead_letter_unreadable(self, sequences: list[int]) -> None:
        """Messages that are nowhere else cannot be read: they are dead."""
        queue = self._queue
        queue.effects.notice(
            "a queued message cannot be read",
            kind=queue.kind,
            name=queue.name,
            sequences=ranges_of(sequences),
        )
        queue.limits.flush.note(queue, "damaged", len(sequences))
        self.dead_letter(sequences, "dead-lettered", CORRUPT)

    def dead_letter(self, sequences: Sequence[int], outcome: str, reason: str, worker: str = "") -> None:
        """Make dead letters of messages that are nowhere else."""
        queue = self._queue
        queue.limits.flush.note(queue, "dead", len(sequences))
        entries = [queue.entries[sequence] for sequence in sequences]
        queue.states.settle(entries)
        self._dead_letter(entries, outcome, reason, worker)

    def _dead_letter(self, entries: Sequence[Entry], outcome: str, reason: str, worker: str) -> None:
        run_workflow(self._queue.effects, self._dead_letter_steps(entries, outcome, reason, worker))

    def _dead_letter_steps(
        self, entries: Sequence[Entry], outcome: str, reason: str, worker: str
    ) -> Workflow:
        queue, done = self._queue, 0
        for run in runs(entries):
            if queue.effects.work <= 0:
                yield GO_ON
            queue.effects.work -= 2 * len(run)
            kept = queue.policy.dead_letters_max > 0
            try:
                records = (yield from records_of(queue.kind, queue.name, run)) if kept else {}
            except MalamuteError:
                # They are on the disk, and with nobody: they are asked for again.
                again = partial(self._dead_letter, entries[done:], outcome, reason, worker)
                queue.limits.timers.at(queue.effects.now + RETRY_SECONDS, again)
                return
            done += len(run)
            # The queue may have been cleared meanwhile.
            here = [entry for entry in run if entry.sequence in queue.entries]
            if kept:
                queue.dead_letters.add(here, records, reason)
            gone = [entry.sequence for entry in here]
            if reason == CORRUPT and queue.kind == "service":
                tracked = set(self.tracked(gone))
                untold = [entry for entry in here if entry.sequence not in tracked]
                queue.limits.trackers.answer(queue, untold, UNREADABLE_WORDS)
            self.settle(gone, outcome, reason, bound=True, worker=worker)

    # Removal

    def _remove(self, sequences: Sequence[int], outcome: str, worker: str, *, bound: bool) -> None:
        queue = self._queue
        ranges = [(first, last) for first, last in ranges_of([*sequences])]
        removal = DeleteMessages(queue.kind, queue.name, ranges)
        if not bound:
            queue.effects.store(removal)
            self._settled(sequences, outcome, worker)
            return
        queue.states.settle(map(queue.entries.__getitem__, sequences))
        queue.effects.store_bound(removal)
        queue.effects.when_stored(lambda error: self._removed(sequences, outcome, worker, error))

    def _removed(
        self, sequences: Sequence[int], outcome: str, worker: str, error: MalamuteError | None
    ) -> None:
        queue = self._queue
        here = [sequence for sequence in sequences if sequence in queue.entries]
        if error is None:
            self._settled(here, outcome, worker)
        else:
            queue.refuse(here)

    def _settled(self, sequences: Sequence[int], outcome: str, worker: str) -> None:
        queue = self._queue
        metrics = queue.metrics = queue.metrics or QueueMetrics()
        entries = [*map(queue.entries.__getitem__, sequences)]
        log = queue.limits.settlement_log
        log.settled((queue.kind, queue.name), metrics, entries, outcome, worker)
        self.drop(sequences)

    def drop(self, sequences: Sequence[int]) -> None:
        """Forget messages, with all that is known of them; the disk is told by others."""
        queue = self._queue
        entries = [queue.entries.pop(sequence) for sequence in sequences]
        if len(sequences) == 1:
            queue.sequences.discard(sequences[0])
        else:
            queue.sequences -= BitMap64(sequences)
        queue.states.remove(entries)
        if queue.options:
            for entry in entries:
                self._forget_options(entry)
        if queue.schedule.delayed or queue.schedule.claimed:
            queue.schedule.drop(sequences)
        if queue.correlations.known is not None:
            queue.correlations.remove(entries)
        if queue.not_durable:
            queue.not_durable.difference_update(sequences)
        if queue.watermark.never_delivered or queue.watermark.revoked:
            queue.watermark.forget(sequences)
        queue.limits.count(queue, -len(sequences), -size_of(entries))
        if paged_out := [entry for entry in entries if entry.record is None]:
            queue.limits.memory.count_paged_out(queue, -size_of(paged_out))

    def _forget_options(self, entry: Entry) -> None:
        queue = self._queue
        asked = queue.options.pop(entry.sequence, None)
        if asked is not None:
            queue.limits.timers.cancel(asked.timer)
            if asked.tracker:
                queue.limits.trackers.close(entry)

    def post_purged(self) -> None:
        """The queue is gone: whatever becomes of this iteration, all of its messages end."""
        entries = self._queue.entries
        # Others have their outcome.
        if tracked := [s for s in self.tracked(entries) if entries[s].state != SETTLING]:
            self._post_outcomes(tracked, "purged", "the mailbox is gone", bound=False)

    def _post_outcomes(
        self, tracked: Iterable[int], outcome: str, reason: str, *, bound: bool = True
    ) -> None:
        entries = [self._queue.entries[sequence] for sequence in tracked]
        self._queue.limits.trackers.post(self._queue, entries, outcome, reason, bound=bound)
