"""Purge and withdrawal: messages are removed before anybody has settled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from malamute.core.iteration.workflow import GO_ON, STORED, Workflow, run_workflow
from malamute.core.queue.entry import ranges_of
from malamute.core.queue.queue import Queue
from malamute.core.queue.state import PENDING
from malamute.core.queue.steps import STEP_MESSAGES
from malamute.errors import MalamuteError, TryLater
from malamute.protocol.limits import RANGES_MAX
from malamute.protocol.messages import CANCELLED, Recall


class PurgeProgress(Protocol):
    """The report of a purge: the messages dropped by this commit, and before it."""

    def __call__(self, count: int, before: int, *, final: bool = True, partial: bool = False) -> None:
        """So many are dropped, with all that this iteration stores; if it is not `final`, more come."""


def purge(
    queue: Queue, sequences: Sequence[int], report: PurgeProgress, failed: Callable[[MalamuteError], None]
) -> None:
    """Drop messages, if the disk lets it: `report` gets how many were there, or `failed` why none left.

    A purge of several commits reports each of them: a later one may fail, or never come.
    """
    run_workflow(queue.effects, _steps(queue, sequences, report, failed, "purged"))


def withdraw(
    queue: Queue,
    sender: str,
    correlation: int | str,
    report: PurgeProgress,
    failed: Callable[[MalamuteError], None],
) -> None:
    """Remove the messages of a sender under a correlation, and report as `purge` does."""
    run_workflow(queue.effects, _withdrawal(queue, sender, correlation, report, failed))


def _withdrawal(
    queue: Queue,
    sender: str,
    correlation: int | str,
    report: PurgeProgress,
    failed: Callable[[MalamuteError], None],
) -> Workflow:
    end = queue.next_sequence
    while count := queue.correlations.look(STEP_MESSAGES):
        queue.effects.work -= count
        if queue.effects.work <= 0:
            yield GO_ON
    # Later messages of the sender stay.
    sequences = [s for s in queue.correlations.of(sender, correlation) if s < end]
    yield from _steps(queue, sequences, report, failed, "withdrawn")


def cancel(
    queue: Queue,
    identity: str,
    allow: Callable[[Sequence[str]], None],
    in_flight: Callable[[int], None],
    report: PurgeProgress,
    failed: Callable[[MalamuteError], None],
) -> None:
    """Remove the messages under an id that no consumer has, and report as `purge` does.

    `allow` raises the reason against it, for the subjects of the messages. `in_flight` is called before the
    report with the number of those that consumers have: they are notified, and keep them.
    """
    run_workflow(queue.effects, _cancellation(queue, identity, allow, in_flight, report, failed))


def _cancellation(
    queue: Queue,
    identity: str,
    allow: Callable[[Sequence[str]], None],
    in_flight: Callable[[int], None],
    report: PurgeProgress,
    failed: Callable[[MalamuteError], None],
) -> Workflow:
    if _is_pending(queue, identity):
        # After the commit they are there, or were refused.
        yield STORED
    sequences = queue.ids.of(identity)
    try:
        if sequences:
            allow([queue.entries[sequence].subject for sequence in sequences])
        if _is_pending(queue, identity):
            raise TryLater(f"message with the id {identity!r} is on its way into the queue: retry later")
    except MalamuteError as error:
        failed(error)
        return
    held = queue.sent_to_consumers(sequences)
    for consumer, theirs in held:
        ranges = ranges_of(theirs)
        for start in range(0, len(ranges), RANGES_MAX):
            notice = Recall(consumer.source, ranges[start : start + RANGES_MAX], CANCELLED)
            queue.effects.send(consumer.session.peer, notice)
    kept = {sequence for _, theirs in held for sequence in theirs}
    in_flight(len(kept))
    waiting = [sequence for sequence in sequences if sequence not in kept]
    yield from _steps(queue, waiting, report, failed, "withdrawn")


def _is_pending(queue: Queue, identity: str) -> bool:
    return any(queue.entries[sequence].state == PENDING for sequence in queue.ids.of(identity))


def _steps(
    queue: Queue,
    sequences: Sequence[int],
    report: PurgeProgress,
    failed: Callable[[MalamuteError], None],
    outcome: str,
) -> Workflow:
    count = 0
    for start in range(0, max(len(sequences), 1), STEP_MESSAGES):
        before = count
        some = sequences[start : start + STEP_MESSAGES]
        count += queue.settle_early(some, outcome)
        queue.effects.work -= len(some)
        if start + STEP_MESSAGES >= len(sequences):
            report(count, before)
            return
        report(count, before, final=False)
        if (error := (yield STORED)) is not None:
            if before:
                report(before, before, partial=True)
            else:
                failed(error)
            return
