"""Purge and withdrawal: messages are removed before anybody has settled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from malamute.core.iteration.workflow import GO_ON, STORED, Workflow, run_workflow
from malamute.core.queue.queue import Queue
from malamute.core.queue.steps import STEP_MESSAGES

if TYPE_CHECKING:
    from malamute.errors import MalamuteError


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
