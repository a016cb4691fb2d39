"""The window of a source: the broker's credit there, in messages and in bytes.

A window has a size. At every moment `open` (granted, not yet arrived) and `held` (arrived, not yet consumed)
together are at most that size, so the memory of a slow consumer is bounded by its choice. When half of the
window has been consumed, one grant gives that half back; never one command for each message.

The broker stops after the message that uses up the bytes, so the open bytes may fall below zero by one
message. That debt is kept, and the next grant is smaller by it.
"""

from __future__ import annotations

from malamute.protocol.fields import UNLIMITED


class Window:
    """The credit of one source. -1 is without limit."""

    __slots__ = ("_held", "_held_bytes", "_open", "_open_bytes", "bytes", "messages")

    def __init__(self, messages: int, size_bytes: int) -> None:
        self.messages = messages
        self.bytes = size_bytes
        self._open = self._open_bytes = 0
        self._held = self._held_bytes = 0

    def grant(self) -> tuple[int, int]:
        """Return the grant for a source without credit: the window, less messages held from before."""
        self._open = _less(self.messages, self._held)
        self._open_bytes = _less(self.bytes, self._held_bytes)
        return self._open, self._open_bytes

    @property
    def spent(self) -> bool:
        """Return whether the credit is used up: the source may send no more."""
        limits = ((self.messages, self._open), (self.bytes, self._open_bytes))
        return any(size != UNLIMITED and left <= 0 for size, left in limits)

    def arrived(self, messages: int, size_bytes: int) -> None:
        """Count the use of credit by a delivery."""
        self._open -= messages
        self._open_bytes -= size_bytes
        self._held += messages
        self._held_bytes += size_bytes

    def passed(self, messages: int, size_bytes: int) -> None:
        """Count the use of credit by a delivery that does not count as held."""
        self._open -= messages
        self._open_bytes -= size_bytes

    def consumed(self, messages: int, size_bytes: int) -> None:
        """Count messages that are no longer held."""
        self._held -= messages
        self._held_bytes -= size_bytes

    def forget(self) -> None:
        """Count no message as held: the broker has taken them back."""
        self._held = self._held_bytes = 0

    def resize(self, messages: int, size_bytes: int) -> tuple[int, int]:
        """Change the size, and return the credit to grant at once. A window without limit stays so."""
        # After a reduction more may still be open than the size.
        grant = (
            _growth(self.messages, messages, self._open + self._held),
            _growth(self.bytes, size_bytes, self._open_bytes + self._held_bytes),
        )
        if self.messages != UNLIMITED:
            self.messages = messages
        if self.bytes != UNLIMITED:
            self.bytes = size_bytes
        self._open += max(0, grant[0])
        self._open_bytes += max(0, grant[1])
        return grant

    def is_low(self) -> bool:
        """Return whether some credit may be due: no grant comes before half of a window."""
        return (
            self._open * 2 <= self.messages
            or self._open_bytes * 2 <= self.bytes
            or UNLIMITED in (self.messages, self.bytes)
        )

    def refill(self) -> tuple[int, int] | None:
        """Return the messages and bytes to grant now; None while less than half a window is due."""
        messages = size_bytes = 0
        if self.messages != UNLIMITED and (left := self.messages - self._open - self._held) > 0:
            messages = left
        if self.bytes != UNLIMITED and (left := self.bytes - self._open_bytes - self._held_bytes) > 0:
            size_bytes = left
        if not (messages or size_bytes) or (messages * 2 < self.messages and size_bytes * 2 < self.bytes):
            return None
        self._open += messages
        self._open_bytes += size_bytes
        return messages, size_bytes


def _less(size: int, held: int) -> int:
    return UNLIMITED if size == UNLIMITED else max(0, size - held)


def _growth(old: int, new: int, used: int) -> int:
    if UNLIMITED in (old, new):
        return 0 if old == UNLIMITED else UNLIMITED
    return max(0, new - max(old, used))
