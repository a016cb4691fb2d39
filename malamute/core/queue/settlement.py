"""Settlement, the end of a message: acknowledged, expired, bounced, dropped or dead-lettered.

A settlement is one transaction with its consequences: the outcome for a sender that tracks the message, the
dead letter, and all other appends of the iteration. If the disk refuses that, the message is where it was
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from malamute.core.iteration.metrics import QueueMetrics
from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.dead_letters import UNREADABLE
from malamute.core.queue.entry import Entry, ranges_of
from malamute.core.queue.paging import RETRY_SECONDS, Records, records_of, runs
from malamute.core.queue.state import SETTLING, MessageStates
from malamute.errors import MalamuteError
from malamute.protocol.bounce import BOUNCED
from malamute.store.operations import DeleteMessages

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.dead_letters import DeadLetters
    from malamute.core.queue.limits import QueueLimits
    from malamute.core.queue.options import Options
    from malamute.core.queue.usage import QueueUsage

CORRUPT = "corrupt"
"""Why a message is dead that cannot be read. A client that rejects one may give the same reason."""

GONE = "purged", "the mailbox is gone"
"""The outcome of a message whose queue is removed with it, and the reason."""

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
        written: Callable[[Sequence[int]], Sequence[int]],
        settled: Callable[[Sequence[int]], None],
        *,
        refused: Callable[[Sequence[int]], None],
    ) -> None:
        """`written` returns those of some settled messages that the store knows.

        `settled` is called with messages that have left for good, `refused` if the disk kept them.
        """
        self._effects = effects
        self._limits = limits
        self._usage = usage
        self._entries = entries
        self._options = options
        self._states = states
        self._dead_letters = dead_letters
        self._written = written
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
        """Messages whose senders get an outcome."""
        options = self._options
        if not options:
            return []
        return [s for s in sequences if (asked := options.get(s)) is not None and asked.tracker]

    def post_purged(self) -> None:
        """Settle all messages of a deleted queue, even if this iteration fails."""
        entries = self._entries
        # Others have their outcome.
        if tracked := [s for s in self.tracked(entries) if entries[s].state != SETTLING]:
            self._post_outcomes(tracked, *GONE, bound=False)

    def _post_outcomes(
        self, tracked: Iterable[int], outcome: str, reason: str, *, bound: bool = True
    ) -> None:
        entries = [self._entries[sequence] for sequence in tracked]
        self._limits.trackers.post(self._usage, entries, outcome, reason, bound=bound)

    def _remove(self, sequences: Sequence[int], outcome: str, worker: str, *, bound: bool) -> None:
        effects, usage = self._effects, self._usage
        if bound:
            self._states.settle(map(self._entries.__getitem__, sequences))
            usage.store_bound(_removal(usage, sequences))
            effects.stage.when_stored(lambda error: self._removed(sequences, outcome, worker, error))
        else:
            if written := self._written(sequences):
                usage.store(_removal(usage, written))
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
        self.log([*map(self._entries.__getitem__, sequences)], outcome, worker)
        self._settled(sequences)

    def log(self, entries: Sequence[Entry], outcome: str, worker: str) -> None:
        """Count messages that leave for good."""
        usage = self._usage
        metrics = usage.metrics = usage.metrics or QueueMetrics()
        metrics.settled(entries, self._effects.now, self._effects.ahead)
        self._limits.settlements[outcome] += len(entries)
        if (log := self._limits.settlement_log).on:
            log.add((usage.kind, usage.name), entries, outcome, worker)

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
        usage = self._usage
        lost = outcome != "rejected" and reason == CORRUPT
        kept = usage.policy.dead_letters_max > 0

        def act(here: Sequence[Entry], records: Records) -> None:
            if lost:
                # One that could not be read at the start has the record of none.
                records = {sequence: record for sequence, record in records.items() if record != UNREADABLE}
            if kept:
                self._dead_letters.add(here, records, reason)
            gone = [entry.sequence for entry in here]
            if lost and usage.kind == "service":
                tracked = set(self.tracked(gone))
                untold = [entry for entry in here if entry.sequence not in tracked]
                self._limits.trackers.answer(usage.name, untold, UNREADABLE_WORDS)
            self.settle(gone, outcome, reason, bound=True, worker=worker)

        self._with_records(entries, act, read=kept)

    # Bounces

    def bounce(self, sequences: Sequence[int], reason: str, worker: str) -> None:
        """Give messages back to their senders.

        One that cannot be read, or whose sender has no room for it, is a dead letter, as if it were rejected.
        """
        entries = [self._entries[sequence] for sequence in sequences]
        self._states.settle(entries)

        def act(here: Sequence[Entry], records: Records) -> None:
            whole = [entry for entry in here if entry.sequence in records]
            back = self._limits.trackers.bounce(self._usage, whole, records, reason, worker)
            if back:
                self._limits.flush.note(self._usage, BOUNCED, len(back))
                self.settle(back, BOUNCED, reason, bound=True, worker=worker)
            if others := sorted({entry.sequence for entry in here}.difference(back)):
                self.dead_letter(others, "rejected", reason, worker)

        self._with_records(entries, act)

    # Messages whose settlement needs their records

    def _with_records(
        self,
        entries: Sequence[Entry],
        act: Callable[[Sequence[Entry], Records], None],
        *,
        read: bool = True,
    ) -> None:
        """Do something with messages that nobody has, in runs, and with their records if those are `read`."""
        run_workflow(self._effects, self._steps(entries, act, read))

    def _steps(
        self, entries: Sequence[Entry], act: Callable[[Sequence[Entry], Records], None], read: bool
    ) -> Workflow:
        effects, usage, done = self._effects, self._usage, 0
        for run in runs(entries):
            if effects.work <= 0:
                yield GO_ON
            effects.work -= 2 * len(run)
            try:
                records = (yield from records_of(usage.kind, usage.name, run)) if read else {}
            except MalamuteError:
                # The records are on the disk, and no consumer has them: they are requested again.
                again = partial(self._with_records, entries[done:], act, read=read)
                self._limits.timers.at(effects.now + RETRY_SECONDS, again)
                return
            done += len(run)
            # The queue may have been cleared meanwhile.
            act([entry for entry in run if entry.sequence in self._entries], records)


def _removal(usage: QueueUsage, sequences: Sequence[int]) -> DeleteMessages:
    return DeleteMessages(usage.kind, usage.name, [(a, b) for a, b in ranges_of([*sequences])])
