"""What is on its way to the broker, of all that a session sends on one connection.

A confirmation says when something is on the disk, and what is not confirmed gets none. How much waits until
the broker takes it up, neither tells. So the session asks: it sends a PING after each part of its window, and
the broker, which handles what comes on a connection in order, answers PONG once it has taken up all before
it. The disk has no part in that: subscribers do not wait for it, and it narrows nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from malamute.client.session.congestion import CongestionWindow

PARTS = 4
"""Parts of the window, after each of which the broker is asked."""

PART_BYTES = 32 * 1024
"""The least part that is worth a question, unless the window is full: a client that makes one request after
the other seldom asks."""

COMMAND_BYTES = 128
"""What a command costs on its way besides its records."""


class Question(Protocol):
    """One of several that are answered in order."""

    done: bool


class PathFlow:
    """The bytes that were sent on a connection, and those that the broker has taken up.

    `most_bytes` may be on their way at the most, however fast they are taken up.
    """

    __slots__ = ("_asked", "_questions", "_received", "_sent", "window")

    def __init__(self, most_bytes: int) -> None:
        self.window = CongestionWindow(most_bytes)
        self._sent = self._received = self._asked = 0
        self._questions: deque[tuple[Question, int]] = deque()

    @property
    def under_way(self) -> int:
        """The bytes of which it is not known that the broker has taken them up."""
        return self._sent - self._received

    @property
    def full(self) -> bool:
        """Whether nothing more is to be sent now."""
        return self._sent - self._received >= self.window.bytes

    def add(self, size_bytes: int) -> None:
        """So much is given to the connection: a command, or more of it."""
        self._sent += size_bytes

    def observe(self, now: float, ask: Callable[[], Question]) -> None:
        """Take note of the answers that came, and ask if that is due. `now` is in seconds.

        `ask` puts a question to the broker, behind all that was sent.
        """
        questions, window = self._questions, self.window
        if questions and questions[0][0].done:
            while questions and questions[0][0].done:
                self._received = questions.popleft()[1]
            window.observe(self._asked, self._received, now)
        unasked = self._sent - self._asked
        full = self._sent - self._received >= window.bytes
        if unasked and (full or unasked >= max(window.bytes // PARTS, PART_BYTES)):
            self._asked = self._sent
            questions.append((ask(), self._sent))
            window.observe(self._asked, self._received, now)
