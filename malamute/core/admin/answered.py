"""How a change is answered: what it did, or why it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from malamute.errors import MalamuteError
from malamute.protocol.admin import Row

Failed = Callable[[MalamuteError], None]
"""What a change calls that is refused after all."""


class Answered(Protocol):
    """What a change calls with what it did."""

    def __call__(
        self, value: Row, *, final: bool = True, otherwise: Row | None = None, before: Any = None
    ) -> None:
        """It has done this, with all that this iteration stores.

        `before` is what there was, for the audit. Where that is the answer itself, nothing is left of it.
        """
