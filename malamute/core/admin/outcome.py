"""The outcome of a change: its answer, or the reason of a refusal, with its record in the audit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from malamute.core.reports.audit import DONE, FAILED, PARTIAL, REFUSED
from malamute.protocol.admin import Row, encode

if TYPE_CHECKING:
    from malamute.core.iteration.stage import StoreStage
    from malamute.core.session.confirmations import Confirmations
    from malamute.core.session.session import Session
    from malamute.errors import MalamuteError


class ChangeOutcome:
    """The outcome of a change that is being made, with its record in the audit."""

    def __init__(
        self,
        stage: StoreStage,
        confirmations: Confirmations,
        session: Session,
        number: int,
        record: Callable[..., None],
    ) -> None:
        self._stage = stage
        self._confirmations = confirmations
        self.session = session
        self._number = number
        self._record = record

    def answered(
        self, value: Row, *, final: bool = True, otherwise: Row | None = None, before: Any = None
    ) -> None:
        """Store the outcome of the change with this iteration.

        `before` is the earlier value, for the audit. Where that is the answer itself, nothing is left of it.
        """
        outcome, after = DONE if final else PARTIAL, None if before is value else value
        self._record(outcome, before=before, after=after, bound=True)
        if final:
            self._stage.when_stored(partial(self._stored, otherwise), awaited=False)
        self._confirmations.decide_change(
            self.session, self._number, encode(value), final=final, otherwise=encode(otherwise)
        )

    def _stored(self, otherwise: Row | None, error: MalamuteError | None) -> None:
        if error is not None and otherwise is None:
            self._record(FAILED, error=error)
        elif error is not None:
            self._record(DONE, after=otherwise)

    def failed(self, error: MalamuteError) -> None:
        """Note why the change is refused after all."""
        self._record(REFUSED, error=error)
        self._confirmations.fail_change(self.session, self._number, error)
