"""The answer of a change: its outcome, or the reason of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from malamute.errors import MalamuteError
from malamute.protocol.admin import Row

Failed = Callable[[MalamuteError], None]
"""The function that a refused change calls."""


class Answered(Protocol):
    """The function that a change calls with its outcome."""

    def __call__(
        self, value: Row, *, final: bool = True, otherwise: Row | None = None, before: Any = None
    ) -> None:
        """Report the outcome, stored with this iteration.

        `before` is the earlier value, for the audit. Where that is the answer itself, nothing is left of it.
        """
