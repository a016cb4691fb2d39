"""Results of sending for blocking programs: receipts of messages, and outcomes of mail."""

from __future__ import annotations

from malamute.client.options import Span
from malamute.client.session.receipts import Confirmation, SentBase


class Receipt(Confirmation):
    """The receipt of one message. Receipts are cheap: keep the ones that matter, drop the others."""

    __slots__ = ()

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

    __slots__ = ()

    def wait(self, timeout: Span | None = None) -> str:
        """Wait for the outcome, and return it. `timeout` is in seconds; None is without end.

        With the assurance `stored` the call waits for the confirmation, and the result is empty.

        Raises:
            TimedOut: The outcome did not come in time.
            MalamuteError: The broker refused the message with this error.
        """
        outcome: str = self._wait(self, timeout)
        return outcome
