"""Credit: the messages and bytes that a client is ready to take from one source.

The client grants, the broker takes, and the two overlap: a client that grants again at half its window is
never paused. The bytes are a bound for memory, so a message may use up more than the rest of them; the
messages are exact. Without limit is infinity, from which taking leaves infinity.

Source: the credit-based flow control of the Malamute whitepaper, and the selectors of the Xump notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from malamute.protocol.fields import UNLIMITED
from malamute.protocol.limits import NUMBER_MAX


class CreditBalance:
    """The credit of one source. `messages` and `bytes` are left; infinity is without limit."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages: int = 0, size_bytes: int = 0) -> None:
        self.messages: float = 0
        self.bytes: float = 0
        self.grant(messages, size_bytes)

    def grant(self, messages: int, size_bytes: int) -> None:
        """Add to the credit; -1 makes it limitless for good."""
        self.messages = inf if messages == UNLIMITED else min(self.messages + messages, _most(self.messages))
        self.bytes = inf if size_bytes == UNLIMITED else min(self.bytes + size_bytes, _most(self.bytes))

    def clear(self) -> None:
        """Nothing is left of it."""
        self.messages = self.bytes = 0

    @property
    def open(self) -> bool:
        """Whether at least one message may go."""
        return self.messages > 0 and self.bytes > 0

    def consume(self, messages: int, size_bytes: int) -> None:
        """Use it for messages that go out."""
        self.messages -= messages
        self.bytes -= size_bytes

    def room(self, sizes: Sequence[int]) -> int:
        """How many of the messages with these sizes may go, in their order."""
        if self.bytes <= 0:
            return 0
        count = int(min(self.messages, len(sizes)))
        if sum(sizes[:count]) <= self.bytes:
            return count
        for place, total in enumerate(accumulate(sizes[:count])):
            if total >= self.bytes:
                return place + 1
        return count


def _most(held: float) -> float:
    return inf if held == inf else NUMBER_MAX
