"""Settlement: what a message ends with. It is acknowledged, expires, is withdrawn, purged or dead-lettered.

It is one transaction with all that follows from it: the outcome for who tracks the message, the dead
letter, and whatever else the iteration stores. If the disk refuses that, the message is where it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from malamute.core.metrics import QueueMetrics
from malamute.core.queue.dead_letters import UNREADABLE
from malamute.core.queue.entry import Entry, ranges_of
from malamute.core.queue.paging import RETRY_SECONDS, records_of, runs
from malamute.core.queue.state import SETTLING, MessageStates
from malamute.core.workflow import GO_ON, Workflow, run_workflow
from malamute.errors import MalamuteError
from malamute.store.operations import DeleteMessages

if TYPE_CHECKING:
    from malamute.core.effects import Effects
    from malamute.core.queue.dead_letters import DeadLetters
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.options import Options
    from malamute.core.queue.usage import QueueUsage

CORRUPT = "corrupt"
"""Why a message is dead that cannot be read. A client that rejects one may give the same reason."""

UNREADABLE_WORDS = "corrupt: the request cannot be read, the disk has lost it"


class Settlement:
    """The settlement of one queue's messages. All that it is given are messages that nobody has."""

    def __init__(
        self,
        effects: Effects,
        limits: QueueLimits,
        usage: QueueUsage,
        entries: Mapping[int, Entry],
        options: Mapping[int, Options],
        states: MessageStates,
        dead_letters: DeadLetters,
        *,
        settled: Callable[[Sequence[int]], None],
        refused: Callable[[Sequence[int]], None],
    ) -> None:
        """`settled` is called with messages that have left for good, `refused` if the disk kept them."""
        self._effects = effects
        self._limits = limits
        self._usage = usage
        self._entries = entries
        self._options = options
        self._states = states
        self._dead_letters = dead_letters
        self._settled = settled
        self._refused = refused

    def settle(
        self,
        sequences: Sequence[int],
        outcome: str,
        reason: str = "",
        *,
        bound: bool = False,
        worker: str = "",
    ) -> None:
        """Remove messages, and send the outcomes of those that are tracked.

        `bound`, and for tracked messages always: if that cannot be stored, they are ready again. `worker` is
        the address of the consumer that settled them.
        """
        if self._options and (tracked := self.tracked(sequences)):
            self._post_outcomes(tracked, outcome, reason)
            self._remove(tracked, outcome, worker, bound=True)
            sequences = sorted(set(sequences).difference(tracked))
        if sequences:
            self._remove(sequences, outcome, worker, bound=bound)

    def tracked(self, sequences: Iterable[int]) -> list[int]:
        """Those whose senders get an outcome."""
        options = self._options
        if not options:
            return []
        return [s for s in sequences if (asked := options.get(s)) is not None and asked.tracker]

    def post_purged(self) -> None:
        """The queue is gone: whatever becomes of this iteration, all of its messages end."""
        entries = self._entries
        # Others have their outcome.
        if tracked := [s for s in self.tracked(entries) if entries[s].state != SETTLING]:
            self._post_outcomes(tracked, "purged", "the mailbox is gone", bound=False)

    def _post_outcomes(
        self, tracked: Iterable[int], outcome: str, reason: str, *, bound: bool = True
    ) -> None:
        entries = [self._entries[sequence] for sequence in tracked]
        self._limits.trackers.post(self._usage, entries, outcome, reason, bound=bound)

    def _remove(self, sequences: Sequence[int], outcome: str, worker: str, *, bound: bool) -> None:
        effects, usage = self._effects, self._usage
        ranges = [(first, last) for first, last in ranges_of([*sequences])]
        removal = DeleteMessages(usage.kind, usage.name, ranges)
        if bound:
            self._states.settle(map(self._entries.__getitem__, sequences))
            usage.store_bound(removal)
            effects.when_stored(lambda error: self._removed(sequences, outcome, worker, error))
        else:
            usage.store(removal)
            self._log(sequences, outcome, worker)

    def _removed(
        self, sequences: Sequence[int], outcome: str, worker: str, error: MalamuteError | None
    ) -> None:
        # The queue may have been cleared meanwhile.
        here = [sequence for sequence in sequences if sequence in self._entries]
        if error is None:
            self._log(here, outcome, worker)
        else:
            self._refused(here)

    def _log(self, sequences: Sequence[int], outcome: str, worker: str) -> None:
        entries, usage = [*map(self._entries.__getitem__, sequences)], self._usage
        metrics = usage.metrics = usage.metrics or QueueMetrics()
        metrics.settled(entries, self._effects.now, self._effects.ahead)
        self._limits.settlements[outcome] += len(entries)
        if (log := self._limits.settlement_log).on:
            log.add((usage.kind, usage.name), entries, outcome, worker)
        self._settled(sequences)

    # Dead letters

    def dead_letter_unreadable(self, sequences: list[int]) -> None:
        """Messages cannot be read: they are dead."""
        usage = self._usage
        self._effects.notice(
            "a queued message cannot be read",
            kind=usage.kind,
            name=usage.name,
            sequences=ranges_of(sequences),
        )
        self._limits.flush.note(usage, "damaged", len(sequences))
        self.dead_letter(sequences, "dead-lettered", CORRUPT)

    def dead_letter(self, sequences: Sequence[int], outcome: str, reason: str, worker: str = "") -> None:
        """Make dead letters of messages."""
        self._limits.flush.note(self._usage, "dead", len(sequences))
        entries = [self._entries[sequence] for sequence in sequences]
        self._states.settle(entries)
        self._dead_letter(entries, outcome, reason, worker)

    def _dead_letter(self, entries: Sequence[Entry], outcome: str, reason: str, worker: str) -> None:
        run_workflow(self._effects, self._dead_letter_steps(entries, outcome, reason, worker))

    def _dead_letter_steps(
        self, entries: Sequence[Entry], outcome: str, reason: str, worker: str
    ) -> Workflow:
        effects, limits, usage, done = self._effects, self._limits, self._usage, 0
        lost = outcome != "rejected" and reason == CORRUPT
        for run in runs(entries):
            if effects.work <= 0:
                yield GO_ON
            effects.work -= 2 * len(run)
            kept = usage.policy.dead_letters_max > 0
            try:
                records = (yield from records_of(usage.kind, usage.name, run)) if kept else {}
            except MalamuteError:
                # They are on the disk, and with nobody: they are asked for again.
                again = partial(self._dead_letter, entries[done:], outcome, reason, worker)
                limits.timers.at(effects.now + RETRY_SECONDS, again)
                return
            done += len(run)
            if lost:
                # One that could not be read at the start has the record of none.
                records = {sequence: record for sequence, record in records.items() if record != UNREADABLE}
            # The queue may have been cleared meanwhile.
            here = [entry for entry in run if entry.sequence in self._entries]
            if kept:
                self._dead_letters.add(here, records, reason)
            gone = [entry.sequence for entry in here]
            if lost and usage.kind == "service":
                tracked = set(self.tracked(gone))
                untold = [entry for entry in here if entry.sequence not in tracked]
                limits.trackers.answer(usage.name, untold, UNREADABLE_WORDS)
            self.settle(gone, outcome, reason, bound=True, worker=worker)
