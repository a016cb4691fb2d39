"""What is on its way to each peer, in bytes.

libzmq counts the commands that wait for a peer, not their bytes, and does not tell how many it still holds.
So the broker asks: after each `PING_BYTES` it sends a PING with a token that nobody can guess, and the client
answers by RECEIVED with that token once it has taken the PING, and all before it, from its socket. What is
not known to be received is *unread*. A peer with more unread than its window is full: it is treated like one
whose pipe is full, until it has received some of it.

When all peers together have more unread than they may, the window of each is small. A peer that reads does
not notice: little of what was sent to it is ever unread.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import NamedTuple

PING_BYTES = 256 * 1024
"""Bytes to a peer after which it is asked whether it has them; what each peer may have unread in any case."""

MESSAGE_BYTES = 128
"""What libzmq and the queue take for a command besides its bytes."""


class Windows(NamedTuple):
    """How much may be unread: of one peer, and of all peers together."""

    peer_bytes: int = 8 * 1024 * 1024
    all_bytes: int = 512 * 1024 * 1024


DEFAULT = Windows()


class Flow:
    """What one peer has not received yet."""

    __slots__ = ("asked", "unasked", "unread")

    def __init__(self) -> None:
        self.unread = 0
        self.unasked = 0
        """Those of the unread bytes that no PING has followed."""
        self.asked: deque[tuple[int, int]] = deque()
        """The PINGs that were not answered: their tokens, and the bytes between each and the one before."""


class Flows:
    """What all peers have not received yet."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.unread = 0
        self._flows: dict[bytes, Flow] = {}

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._flows

    def open(self, peer: bytes) -> int:
        """Watch a peer that was welcomed. Returns the token to ask it by if it has anything unread, or 0.

        If this is the old connection, what is in it still takes room, however often the peer says HELLO.
        """
        flow = self._flows.setdefault(peer, Flow())
        if flow.asked and not flow.unasked:
            return flow.asked[-1][0]
        return self._ask(flow) if flow.unread else 0

    def close(self, peer: bytes) -> None:
        """The connection of a peer is gone, with all that was in it."""
        flow = self._flows.pop(peer, None)
        if flow is not None:
            self.unread -= flow.unread

    def sent(self, peer: bytes, size_bytes: int) -> int:
        """Something was sent to a peer. Returns the token to ask it by now, or 0."""
        flow = self._flows.get(peer)
        if flow is None:
            return 0
        size_bytes += MESSAGE_BYTES
        flow.unread += size_bytes
        self.unread += size_bytes
        flow.unasked += size_bytes
        return self._ask(flow) if flow.unasked >= PING_BYTES else 0

    def _ask(self, flow: Flow) -> int:
        token = secrets.randbits(62) + 1
        flow.asked.append((token, flow.unasked))
        flow.unasked = 0
        return token

    def received(self, peer: bytes, token: int) -> None:
        """A peer has received a PING, and all that was sent before it."""
        flow = self._flows.get(peer)
        if flow is None or all(token != asked for asked, _ in flow.asked):
            return
        while flow.asked:
            asked, size_bytes = flow.asked.popleft()
            flow.unread -= size_bytes
            self.unread -= size_bytes
            if asked == token:
                return

    def is_full(self, peer: bytes) -> bool:
        """Whether a peer has more unread than it may."""
        flow = self._flows.get(peer)
        if flow is None:
            return False
        # What was not asked about would never be answered.
        asked_bytes = flow.unread - flow.unasked
        return asked_bytes > (0 if self.is_crowded else self.windows.peer_bytes - PING_BYTES)

    @property
    def is_crowded(self) -> bool:
        """Whether all peers together have more unread than they may."""
        return self.unread > self.windows.all_bytes
