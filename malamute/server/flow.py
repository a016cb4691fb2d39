"""Bytes on their way to each peer.

libzmq counts the commands that wait for a peer, not their bytes, and does not tell how many it still holds.
So the broker asks: after each `PING_BYTES` it sends a PING with a token that nobody can guess, and the client
answers by RECEIVED with that token once it has taken the PING, and all before it, from its socket. Bytes
without such an answer are *unread*. A peer with more unread than its window is full: the broker treats it as
one with a full pipe, until it has received some of them.

When all peers together have more unread than they may, the window of each is small. A peer that reads does
not notice: few bytes to it are ever unread.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import NamedTuple

PING_BYTES = 256 * 1024
"""Bytes to a peer between two PINGs; each peer may have as many unread in any case."""

MESSAGE_BYTES = 128
"""Memory of libzmq and of the queue for a command, beside its bytes."""


class Windows(NamedTuple):
    """Limits of unread bytes: for one peer, and for all peers together."""

    peer_bytes: int = 8 * 1024 * 1024
    all_bytes: int = 512 * 1024 * 1024


DEFAULT = Windows()


class Flow:
    """Unread bytes of one peer."""

    __slots__ = ("asked", "unasked", "unread")

    def __init__(self) -> None:
        self.unread = 0
        self.unasked = 0
        """Unread bytes since the last PING."""
        self.asked: deque[tuple[int, int]] = deque()
        """PINGs without an answer: their tokens, and the bytes between each and the one before."""


class Flows:
    """Unread bytes of all peers."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.unread = 0
        self._flows: dict[bytes, Flow] = {}

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._flows

    def open(self, peer: bytes) -> int:
        """Watch a welcomed peer. Returns the token of a PING if it has unread bytes, or 0.

        On the old connection, unread bytes still take room, however often the peer says HELLO.
        """
        flow = self._flows.setdefault(peer, Flow())
        if flow.asked and not flow.unasked:
            return flow.asked[-1][0]
        return self._ask(flow) if flow.unread else 0

    def close(self, peer: bytes) -> None:
        """Remove a peer whose connection is gone, with its unread bytes."""
        flow = self._flows.pop(peer, None)
        if flow is not None:
            self.unread -= flow.unread

    def sent(self, peer: bytes, size_bytes: int) -> int:
        """Add bytes sent to a peer. Returns the token of a PING to send now, or 0."""
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
        """Subtract the bytes before a PING that a peer has received."""
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
        # Bytes without a PING would stay unread for ever.
        asked_bytes = flow.unread - flow.unasked
        return asked_bytes > (0 if self.is_crowded else self.windows.peer_bytes - PING_BYTES)

    @property
    def is_crowded(self) -> bool:
        """Whether all peers together have more unread than they may."""
        return self.unread > self.windows.all_bytes
