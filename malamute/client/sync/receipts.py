"""Results of sending for blocking programs: receipts of messages, and outcomes of mail."""

from __future__ import annotations

from collections.abc import Callable

from malamute.client.options import Span
from malamute.client.session.outbox import Command
from malamute.client.session.receipts import Confirmation, OutcomeTracking, SentBase


class Receipt(Confirmation):
    """The receipt of one message. Receipts are cheap: keep the ones that matter, drop the others."""

    __slots__ = ("_wait",)

    def __init__(self, command: Command, place: int, wait: Callable[[Command, Span | None], None]) -> None:
        self._command = command
        self._place = place
        self._wait = wait

    def wait(self, timeout: Span | None = None) -> int:
        """Wait for the broker's answer, and return `sequence`. `timeout` is in seconds; None is without end.

        Raises:
            TimedOut: No answer came in time.
            MalamuteError: The broker refused the message with this error.
        """
        if not self._command.done:
            self._wait(self._command, timeout)
        return self.sequence


class Sent(SentBase):
    """The outcome of a message to a mailbox. Made by `Client.send`."""

    __slots__ = ("_wait",)

    def __init__(
        self,
        command: Command,
        tracking: OutcomeTracking | None,
        wait: Callable[[SentBase, Span | None], str],
    ) -> None:
        super().__init__(command, tracking)
        self._wait = wait

    def wait(self, timeout: Span | None = None) -> str:
        """Wait for the outcome, and return it. `timeout` is in seconds; None is without end.

        With the assurance `stored` the call waits for the confirmation, and the result is empty.

        Raises:
            TimedOut: The outcome did not come in time.
            MalamuteError: The broker refused the message with this error.
        """
        return self._wait(self, timeout)
