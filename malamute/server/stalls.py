"""Stalled peers: silent ones that promised heartbeats, and ones that read nothing more.

A client's own thread sends heartbeats, however busy its program is, and HELLO has their interval. The
system has the time of the last byte on a TCP connection, so the broker need not ask peers for signs of
life. libzmq would look for each answer among the timers of all connections, and ten thousand cost most of a
core. On sockets of the file system and on other systems than Linux, libzmq asks.

libzmq writes its question behind the frames that it has begun to write. While the buffers of the system are
full, there is no question, and no wait for an answer. But the system counts written bytes that the other
side has not taken. A client's own thread takes all of them at once, and on a slow network their number falls
again and again. A number that stays the same for long means a stopped process, or a machine that is gone.

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
"""Whether the system counts bytes that were not taken."""

LOOKS = 4
"""Least checks of a connection within the patience."""

_SIZE = Struct("=i")
_SILENT = Struct("=I")
_SILENT_AT = 52
"""Offset of the milliseconds since the last byte in `struct tcp_info`."""
_ACKNOWLEDGED = Struct("=Q")
_ACKNOWLEDGED_AT = 120
"""Offset of the acknowledged bytes in `struct tcp_info`."""


class _State(NamedTuple):
    """Bytes left to take on a connection, and bytes acknowledged, where that is known."""

    descriptor: int
    left: int
    acknowledged: int


class _Stall(NamedTuple):
    """State of a connection, since when it is the same, and the time of the last check."""

    state: _State
    since: float
    seen: float


class Patience(NamedTuple):
    """Seconds without any byte taken by a peer, and of a late heartbeat; 0 is for ever."""

    take_seconds: float = 0.0
    heartbeat_seconds: float = 0.0


FOR_EVER = Patience()


class Stalls:
    """Peers with bytes left to take at their last check. Times are in seconds."""

    def __init__(self, patience: Patience) -> None:
        self._patience, self._late = patience if CAN_TELL else FOR_EVER
        self._stalls: dict[bytes, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def has_stalled(self, peer: bytes, descriptor: int, now: float, heartbeat: float = 0.0) -> bool:
        """Check the connection of a peer that promised a heartbeat every so many seconds; 0 is no promise.

        Returns whether the peer was silent, or took nothing, for too long.
        """
        if heartbeat and self._late and _silent_seconds(descriptor) >= heartbeat + self._late:
            return True
        state = _state(descriptor) if self._patience else None
        stall = self._stalls.pop(peer, None)
        if state is None or not state.left:
            return False
        if stall is None or stall.state != state or now - stall.seen > self._patience / LOOKS:
            stall = _Stall(state, now, now)
        self._stalls[peer] = stall._replace(seen=now)
        return now - stall.since >= self._patience

    def forget(self, peer: bytes) -> None:
        """Remove a peer whose connection has ended."""
        self._stalls.pop(peer, None)


def _state(descriptor: int) -> _State | None:
    """Return the state of a connection; None if it is gone, which libzmq is about to report."""
    try:
        left: int = _SIZE.unpack(ioctl(descriptor, termios.TIOCOUTQ, bytes(_SIZE.size)))[0]
    except OSError:
        return None
    return _State(descriptor, left, _acknowledged(descriptor) if left else 0)


def _acknowledged(descriptor: int) -> int:
    info = _tcp_info(descriptor)
    if not info:
        return 0  # on such a system only the taken bytes are known
    acknowledged: int = _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0]
    return acknowledged


def _silent_seconds(descriptor: int) -> float:
    """Return the seconds since the last byte of a connection; 0 where unknown, or with bytes to read."""
    info = _tcp_info(descriptor)
    try:
        unread = info and _SIZE.unpack(ioctl(descriptor, termios.FIONREAD, bytes(_SIZE.size)))[0]
    except OSError:  # libzmq closes it whenever the connection ends
        return 0.0
    if not info or unread:
        return 0.0
    silent_ms: int = _SILENT.unpack_from(info, _SILENT_AT)[0]
    return silent_ms / 1000


def _tcp_info(descriptor: int) -> bytes:
    """Return the `tcp_info` of a TCP connection; empty for another one, or one that is gone."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return b""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return b""
    finally:
        connection.detach()
