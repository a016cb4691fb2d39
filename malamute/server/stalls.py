"""Peers that stand still and take nothing more: those that heartbeats cannot find.

libzmq writes its question for a sign of life behind what it has begun to write. While the buffers of the
system are full, there is no question, and so nobody waits for an answer. But the system knows how much of
what was written the other side has not taken. A client's own thread takes everything at once, however busy
its program is, and on a slow network it becomes less again and again. What stays the same for long tells of a
process that was stopped, or of a machine that is gone.

A look may find a heartbeat on its way each time, or a probe on a connection with a long way. So TCP is also
asked how much was acknowledged, and looks that are far apart say nothing.
"""

from __future__ import annotations

import socket
import sys
import termios
from fcntl import ioctl
from struct import Struct
from typing import NamedTuple

CAN_TELL = sys.platform == "linux"
"""Whether the system says how much was not taken."""

LOOKS = 4
"""How often a connection has to be looked at, at the least, while the patience lasts."""

_SIZE = Struct("=i")
_ACKNOWLEDGED = Struct("=Q")
_ACKNOWLEDGED_AT = 120
"""Where `struct tcp_info` has the bytes that were acknowledged."""


class _State(NamedTuple):
    """What is left to take on a connection, and how much was acknowledged, where that is known."""

    descriptor: int
    left: int
    acknowledged: int


class _Stall(NamedTuple):
    """What was found on a connection, since when it is the same, and when it was looked at last."""

    state: _State
    since: float
    seen: float


class Stalls:
    """The peers that had something left to take when they were looked at last. Times are in seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience if CAN_TELL else 0.0
        self._stalls: dict[bytes, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def has_stalled(self, peer: bytes, descriptor: int, now: float) -> bool:
        """Look at the connection of a peer. Returns whether it has taken nothing for too long."""
        state = _state(descriptor) if self._patience else None
        stall = self._stalls.pop(peer, None)
        if state is None or not state.left:
            return False
        if stall is None or stall.state != state or now - stall.seen > self._patience / LOOKS:
            stall = _Stall(state, now, now)
        self._stalls[peer] = stall._replace(seen=now)
        return now - stall.since >= self._patience

    def forget(self, peer: bytes) -> None:
        """The connection has ended."""
        self._stalls.pop(peer, None)


def _state(descriptor: int) -> _State | None:
    """What the system tells of a connection; None if it is gone, which libzmq is about to tell."""
    try:
        left: int = _SIZE.unpack(ioctl(descriptor, termios.TIOCOUTQ, bytes(_SIZE.size)))[0]
    except OSError:
        return None
    return _State(descriptor, left, _acknowledged(descriptor) if left else 0)


def _acknowledged(descriptor: int) -> int:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0  # it is no TCP: there, what was taken is all that is known
    finally:
        connection.detach()
    acknowledged: int = _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0]
    return acknowledged
