"""Results of sending: receipts, and the outcomes of tracked messages.

A receipt is a command and a place in it. The sequence of a message follows from the first one of its command
by counting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from malamute.client.session.outbox import Command
from malamute.errors import MalamuteError

if TYPE_CHECKING:
    from malamute.client.options import Span


class Confirmation:
    """The confirmation of one message, at a place in its command; common to the receipts of both edges."""

    __slots__ = ("_command", "_place", "_wait")

    def __init__(self, command: Command, place: int, wait: Callable[[Command, Span | None], Any]) -> None:
        self._command = command
        self._place = place
        self._wait = wait

    @property
    def done(self) -> bool:
        """Return whether the broker has answered, with a confirmation or a refusal."""
        return self._command.done

    @property
    def error(self) -> MalamuteError | None:
        """Return the broker's refusal; None without an answer, and for a durable message."""
        return self._command.error

    @property
    def sequence(self) -> int:
        """Return the sequence in the stream; 0 until it is confirmed, and where there is none.

        Mail and requests have none, nor has a publish confirmed again after a reconnect.

        Raises:
            MalamuteError: the broker refused the message with this error.
        """
        if self._command.error is not None:
            raise self._command.error
        return self._command.sequence and self._command.sequence + self._place

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Receipt refused: {self.error}>"
        return f"<Receipt {'stored' if self.done else 'open'} {self._command.sequence and self.sequence}>"


class OutcomeTracking:
    """A message whose outcome is awaited: its tracker, and the outcome once it is known."""

    __slots__ = ("command", "outcome", "reason", "tracker")

    def __init__(self, tracker: str, command: Command) -> None:
        self.tracker = tracker
        self.command = command
        self.outcome = ""
        self.reason = ""

    @property
    def done(self) -> bool:
        """Return whether the message has its outcome, or was refused."""
        return bool(self.outcome) or self.command.error is not None


class SentBase:
    """The result of a message to a mailbox, or of a request; the common part of both edges."""

    __slots__ = ("_command", "_tracking", "_wait")

    def __init__(
        self,
        command: Command,
        tracking: OutcomeTracking | None,
        wait: Callable[[SentBase, Span | None], Any],
    ) -> None:
        self._command = command
        self._tracking = tracking
        self._wait = wait

    @property
    def done(self) -> bool:
        """Return whether the result is final: the outcome with `confirmed`, else the confirmation."""
        return self._command.done if self._tracking is None else self._tracking.done

    @property
    def tracker(self) -> str:
        """Return the tracker of the message; empty without the assurance `confirmed`."""
        return "" if self._tracking is None else self._tracking.tracker

    @property
    def error(self) -> MalamuteError | None:
        """Return the broker's refusal; None without an answer, and for an accepted message."""
        return self._command.error

    @property
    def outcome(self) -> str:
        """Return the outcome.

        `acknowledged`, `expired`, `rejected`, `bounced`, `dead-lettered`, `withdrawn`, `moved` or `purged`.
        Empty until that is known, and without the assurance `confirmed`.

        Raises:
            MalamuteError: the broker refused the message with this error.
        """
        if self._command.error is not None:
            raise self._command.error
        return "" if self._tracking is None else self._tracking.outcome

    @property
    def reason(self) -> str:
        """Return the reason that came with the outcome, such as that of a rejection."""
        return "" if self._tracking is None else self._tracking.reason

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<{type(self).__name__} refused: {self.error}>"
        return f"<{type(self).__name__} {self.outcome or ('stored' if self._command.done else 'open')}>"
