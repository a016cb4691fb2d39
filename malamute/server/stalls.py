"""Peers that stand still: those that say nothing though they promised to, and those that take nothing more.

A client's own thread sends heartbeats, however busy its program is, and HELLO says how often. Of a TCP
connection the system tells when something came last, so the broker need not ask anybody for signs of life.
libzmq would look for each answer among the timers of all connections, and ten thousand cost most of a core.
Where the system does not tell, on sockets of the file system and on other systems than Linux, libzmq asks.

It writes its question behind what it has begun to write. While the buffers of the system are full, there is
no question, and so nobody waits for an answer. But the system knows how much of what was written the other
side has not taken. A client's own thread takes everything at once, and on a slow network it becomes less
again and again. What stays the same for long tells of a process that was stopped, or of a machine that is
gone.

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
_SILENT = Struct("=I")
_SILENT_AT = 52
"""Where `struct tcp_info` has how long ago something came last, in milliseconds."""
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


class Patience(NamedTuple):
    """How long a peer may take nothing of what is there for it, and how late its heartbeat; 0 is for ever."""

    take_seconds: float = 0.0
    heartbeat_seconds: float = 0.0


FOR_EVER = Patience()


class Stalls:
    """The peers that had something left to take when they were looked at last. Times are in seconds."""

    def __init__(self, patience: Patience) -> None:
        self._patience, self._late = patience if CAN_TELL else FOR_EVER
        self._stalls: dict[bytes, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def has_stalled(self, peer: bytes, descriptor: int, now: float, heartbeat: float = 0.0) -> bool:
        """Look at the connection of a peer that promised a heartbeat every so many seconds; 0 is no promise.

        Returns whether it has said nothing, or taken nothing, for too long.
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
    info = _tcp_info(descriptor)
    if not info:
        return 0  # there, what was taken is all that is known
    acknowledged: int = _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0]
    return acknowledged


def _silent_seconds(descriptor: int) -> float:
    """Since when nothing has come on a connection; 0 where nobody tells, or something is there to be read."""
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
    """What the system tells of a TCP connection; nothing of another one, or one that is gone."""
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
