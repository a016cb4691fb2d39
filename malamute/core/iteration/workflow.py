"""Workflows: work in several steps, each of which waits for the disk.

Work that reads the store between two steps is written as a generator. A workflow yields a `StoreRead` and
gets the answer, or yields `STORED` and continues after the commit of this iteration with the error of the
commit, or None. Long work yields `GO_ON` and continues in the next iteration. Between the steps the broker
does other things: a condition from before a `yield` may not hold after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, Literal

from malamute.core.iteration.effects import Effects
from malamute.errors import MalamuteError
from malamute.store.operations import StoreRead

GO_ON: Final = "go on"

STORED: Final = "stored"

Stored = Literal["stored"]

Workflow = Generator[StoreRead | Stored | Literal["go on"], Any, Any]


def run_workflow(effects: Effects, steps: Workflow) -> None:
    """Do the first step of a workflow, and each of the others when its answer is there."""
    failed = effects.on_failure

    def go(answer: Any) -> None:
        on(steps.send, answer)

    def cannot(error: MalamuteError) -> None:
        on(steps.throw, error)

    def later(error: MalamuteError | None) -> None:
        effects.guard("a later step", go, error, failed=failed)

    def on(advance: Callable[[Any], Any], value: Any) -> None:
        try:
            wanted = advance(value)
        except StopIteration:
            return
        except MalamuteError as error:
            if failed is None:
                raise
            failed(error)
            return
        if wanted == GO_ON:
            effects.later(lambda: later(None))
        elif wanted == STORED:
            effects.stage.when_stored(later)
        else:
            effects.ask(wanted, go, cannot)

    go(None)
