"""Peers that stand still and take nothing more: those that heartbeats cannot find.

libzmq writes its question for a sign of life behind what it has begun to write. While the buffers of the
system are full, there is no question, and so nobody waits for an answer. But the system knows how much of
what was written the other side has not taken. A client's own thread takes everything at once, however busy
its program is, and on a slow network it becomes less again and again. What stays the same for long tells of a
process that was stopped, or of a machine that is gone.
"""

from __future__ import annotations

import sys
import termios
from fcntl import ioctl
from struct import Struct
from typing import NamedTuple

CAN_TELL = sys.platform == "linux"
"""Whether the system says how much was not taken."""

_SIZE = Struct("=i")


class _Stall(NamedTuple):
    """What was left to take on a connection, and since when it is the same."""

    descriptor: int
    left: int
    since: float


class Stalls:
    """The peers that had something left to take when they were looked at last. Times are in seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience if CAN_TELL else 0.0
        self._stalls: dict[bytes, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def has_stalled(self, peer: bytes, descriptor: int, now: float) -> bool:
        """Look at the connection of a peer. Returns whether it has taken nothing for too long."""
        left = _left(descriptor) if self._patience else 0
        if not left:
            self._stalls.pop(peer, None)
            return False
        stall = self._stalls.get(peer)
        if stall is None or (stall.descriptor, stall.left) != (descriptor, left):
            self._stalls[peer] = _Stall(descriptor, left, now)
            return False
        return now - stall.since >= self._patience

    def forget(self, peer: bytes) -> None:
        """The connection has ended."""
        self._stalls.pop(peer, None)


def _left(descriptor: int) -> int:
    """Bytes that the other side has not taken; none of a connection that is gone."""
    try:
        size: int = _SIZE.unpack(ioctl(descriptor, termios.TIOCOUTQ, bytes(_SIZE.size)))[0]
    except OSError:
        return 0  # libzmq has closed it, and tells so
    return size
