"""Commands on their way: numbers, the window of the unsettled, and receipts.

A command that asks for a confirmation gets the next number of the session, and is kept with its frames until
the broker has answered that number: stored, or refused. After every (re)connection all unsettled commands are
sent again, in order and with their old numbers; the broker stores each once. So a confirmed command is never
lost and never doubled, whatever happens to the connection.

The window bounds what is kept, in commands and in bytes. Commands without a number are kept only while there
is no connection, under the same bound of bytes.

A confirmation names ranges of numbers and the first sequence of each range; the sequence of every message in
it follows by counting. A receipt is a command and a place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malamute.errors import MalamuteError
from malamute.protocol.batch import Frame
from malamute.protocol.messages import Ranges

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of unsettled commands that a session keeps; one command may be larger when it is alone."""

WINDOW_COMMANDS = 16_384
"""Unsettled commands that a session keeps, or fewer if the broker's limit is lower."""


class Command:
    """One command until its answer. `count` is its stream messages: 0 for mailboxes and services.

    `completes` is the request that a final reply completes: the source of the offer and the sequence.
    """

    __slots__ = ("completes", "count", "done", "error", "frames", "number", "sequence", "size_bytes")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.completes: tuple[int, int] | None = None
        self.number = 0
        self.frames: Sequence[Frame] = ()
        self.size_bytes = 0
        self.done = False
        self.sequence = 0
        self.error: MalamuteError | None = None

    def settle(self, sequence: int = 0, error: MalamuteError | None = None) -> None:
        """It has its answer, and its frames are needed no more."""
        self.done = True
        self.sequence = sequence
        self.error = error
        self.frames = ()


class Confirmation:
    """What became of one message of a command, at a place in it."""

    __slots__ = ("_command", "_place")

    def __init__(self, command: Command, place: int) -> None:
        self._command = command
        self._place = place

    @property
    def done(self) -> bool:
        """Whether the broker has answered, with a confirmation or a refusal."""
        return self._command.done

    @property
    def error(self) -> MalamuteError | None:
        """Why it was refused; None while there is no answer, or when it is stored."""
        return self._command.error

    @property
    def sequence(self) -> int:
        """Its sequence in the stream; 0 as long as it is not confirmed, or where there is none to tell.

        None is told of mail and requests, and of a publish that was confirmed again after a broken
        connection. Raises the error of a message that was refused.
        """
        if self._command.error is not None:
            raise self._command.error
        return self._command.sequence and self._command.sequence + self._place

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Receipt refused: {self.error}>"
        return f"<Receipt {'stored' if self.done else 'open'} {self._command.sequence and self.sequence}>"


class Receipt(Confirmation):
    """What became of one message. Receipts are cheap: keep those that matter, drop the others."""

    __slots__ = ("_wait",)

    def __init__(self, command: Command, place: int, wait: Callable[[Command, float | None], None]) -> None:
        super().__init__(command, place)
        self._wait = wait

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the answer, `timeout` seconds at most; the result is `sequence`.

        Raises the error of a message that was refused, and `TimedOut`.
        """
        if not self._command.done:
            self._wait(self._command, timeout)
        return self.sequence


class Tracking:
    """A message whose sender wants to know its end: the name it goes by, and the outcome when it is known."""

    __slots__ = ("command", "outcome", "reason", "tracker")

    def __init__(self, tracker: str, command: Command) -> None:
        self.tracker = tracker
        self.command = command
        self.outcome = ""
        self.reason = ""

    @property
    def done(self) -> bool:
        """Whether it has its outcome, or was refused."""
        return bool(self.outcome) or self.command.error is not None


class Delivery:
    """What became of a message to a mailbox. What both edges share."""

    __slots__ = ("_command", "_tracking")

    def __init__(self, command: Command, tracking: Tracking | None) -> None:
        self._command = command
        self._tracking = tracking

    @property
    def done(self) -> bool:
        """Whether there is nothing more to be known: with `confirmed` the outcome, else the confirmation."""
        return self._command.done if self._tracking is None else self._tracking.done

    @property
    def tracker(self) -> str:
        """The name that it is tracked by; empty without the assurance `confirmed`."""
        return "" if self._tracking is None else self._tracking.tracker

    @property
    def error(self) -> MalamuteError | None:
        """Why the broker refused it; None while there is no answer, or when it was taken."""
        return self._command.error

    @property
    def outcome(self) -> str:
        """How it ended: `acknowledged`, `expired`, `rejected`, `dead-lettered`, `withdrawn` or `purged`.

        Empty as long as that is not known, and without the assurance `confirmed`. Raises the error of a
        message that was refused.
        """
        if self._command.error is not None:
            raise self._command.error
        return "" if self._tracking is None else self._tracking.outcome

    @property
    def reason(self) -> str:
        """The words that came with the outcome, such as those of a rejection."""
        return "" if self._tracking is None else self._tracking.reason

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Delivery refused: {self.error}>"
        return f"<Delivery {self.outcome or ('stored' if self._command.done else 'open')}>"


class Outbox:
    """The numbered commands of a session that wait for their answers."""

    def __init__(self, window_commands: int = WINDOW_COMMANDS, window_bytes: int = WINDOW_BYTES) -> None:
        self.window_commands = window_commands
        self.window_bytes = window_bytes
        self.next_number = 1
        self._lowest = 1
        self._commands: dict[int, Command] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def unsettled(self) -> int:
        """The lowest number without an answer, or else the next new number."""
        return self._lowest

    @property
    def room(self) -> bool:
        """Whether one more command may be numbered."""
        return self.next_number - self._lowest < self.window_commands and self._bytes < self.window_bytes

    def add(self, command: Command, frames: Sequence[Frame], size_bytes: int) -> None:
        """Keep a command under `next_number`, which `frames` carry already."""
        command.number = self.next_number
        command.frames = frames
        command.size_bytes = size_bytes
        self._commands[command.number] = command
        self._bytes += size_bytes
        self.next_number += 1

    def commands(self) -> list[Command]:
        """Everything unsettled, in order."""
        return list(self._commands.values())

    def stored(self, ranges: Ranges) -> bool:
        """Settle what a STORED names. Returns whether it named anything that was open."""
        before = len(self._commands)
        for first, last, sequence in ranges:
            for number in range(max(first, self._lowest), min(last, self.next_number - 1) + 1):
                command = self._commands.get(number)
                if command is not None:
                    self._settle(command, sequence if command.count else 0)
                    sequence += command.count if sequence else 0
        return len(self._commands) < before

    def refused(self, number: int, error: MalamuteError) -> Command | None:
        """Settle one number with an error. The result is its command, if it was open."""
        command = self._commands.get(number)
        if command is not None:
            self._settle(command, 0, error)
        return command

    def fail(self, error: MalamuteError) -> None:
        """The session is over: nothing will be answered any more."""
        for command in self.commands():
            self._settle(command, 0, error)

    def _settle(self, command: Command, sequence: int, error: MalamuteError | None = None) -> None:
        del self._commands[command.number]
        self._bytes -= command.size_bytes
        command.settle(sequence, error)
        while self._lowest < self.next_number and self._lowest not in self._commands:
            self._lowest += 1
