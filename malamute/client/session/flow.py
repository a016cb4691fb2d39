"""The bytes in flight to the broker, of all that a session sends on one connection.

A confirmation means durable, and unconfirmed commands get none. Neither has the number of bytes that wait for
the broker. So the session sends a PING after each part of its window, and the broker, which handles a
connection in order, answers PONG once it has received everything before it. The disk has no part in that:
subscribers do not wait for it, and it limits nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from malamute.client.session.congestion import CongestionWindow

PARTS = 4
"""Parts of the window, with a PING after each."""

PART_BYTES = 32 * 1024
"""The minimum part for a PING, unless the window is full: a client with one request after the other seldom
sends one."""

COMMAND_BYTES = 128
"""The cost of a command in flight besides its records."""


class Question(Protocol):
    """A PING, of several that are answered in order."""

    done: bool


class PathFlow:
    """The bytes sent on a connection, and those that the broker has received.

    At most `most_bytes` may be in flight, however fast they are received.
    """

    __slots__ = ("_asked", "_received", "ask_at", "full_at", "questions", "sent", "window")

    def __init__(self, most_bytes: int) -> None:
        self.window = CongestionWindow(most_bytes)
        self.sent = 0
        """Bytes given to the connection."""
        self._received = self._asked = 0
        self.questions: deque[tuple[Question, int]] = deque()
        """The pings without an answer, each with the bytes sent before it. Once `sent` reaches `ask_at`, or a
        ping is answered, `observe` has something to do."""
        self._plan()

    def _plan(self) -> None:
        """Set the bytes at which no more is to be sent, and those at which the next PING is due."""
        window = self.window.bytes
        self.full_at = self._received + window
        part = max(window // PARTS, PART_BYTES)
        self.ask_at = max(self._asked + 1, min(self.full_at, self._asked + part))

    @property
    def under_way(self) -> int:
        """Return the bytes that the broker may not have received."""
        return self.sent - self._received

    @property
    def full(self) -> bool:
        """Return whether no more is to be sent now."""
        return self.sent >= self.full_at

    def observe(self, now: float, ask: Callable[[], Question]) -> None:
        """Count the answers so far, and send a PING if one is due. `now` is in seconds.

        `ask` sends it, behind everything sent before.
        """
        questions, window = self.questions, self.window
        if questions and questions[0][0].done:
            while questions and questions[0][0].done:
                self._received = questions.popleft()[1]
            window.observe(self._asked, self._received, now)
            self._plan()
        if self.sent >= self.ask_at:
            self._asked = self.sent
            questions.append((ask(), self.sent))
            window.observe(self._asked, self._received, now)
            self._plan()
