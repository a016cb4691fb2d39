"""Bytes of clients with a session that libzmq holds.

libzmq counts the commands that wait for us, not their bytes, and does not hand over a command before its
last frame is there: a client that sends frames with MORE and never the last one fills the memory without
being seen. But the system counts the bytes that came on a TCP connection, and the broker those that it has
read. libzmq holds the rest.

A check of every connection is expensive, so it follows growth of the anonymous memory of the process, which
is measured now and then while bytes come. Without input, the watch rests until the system reports that one of
the connections has bytes to read.

Frames are pieces: libzmq takes `FRAME_BYTES` for each, however short it is. So memory that bytes do not
explain is that of short frames, and they are on a connection of which bytes come and no command.

Other connections are not counted by the system; their socket is a file with a mode.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from malamute.server.guard import received

CHECK_SECONDS = 0.02
"""Least seconds between two measurements of the memory."""

IDLE_SECONDS = 0.1
"""Seconds between two measurements while bytes come and nothing else happens."""

ARRIVALS = 1_000
"""Connections with new bytes in one check; the others are next."""

GROWTH_BYTES = 16 * 1024 * 1024
"""Growth of the memory after which all connections are checked."""

LOOKS_MAX = 500
"""Connections in one step of that check."""

UNCOUNTED_BYTES = 32
"""Bytes a second for libzmq's own heartbeats."""

SEAL_BYTES = 33
"""Bytes that CURVE adds to a frame: a name, a nonce, an authenticator and the flags (RFC 26)."""

FRAME_BYTES = 64
"""Memory of libzmq for a frame, beside the bytes of one that is longer than 32. The shortest is two bytes on
a connection."""

EXPLAINED_FACTOR = 4
"""Memory that a byte which came may take: in libzmq, as a command, and as a message."""

PIECES_BYTES = 128 * 1024 * 1024
"""Growth of the memory that bytes need not explain, since the broker works: a replay takes some."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Allowance(NamedTuple):
    """Limits of bytes in libzmq: of one connection, and of all together."""

    peer_bytes: int = 128 * 1024 * 1024
    all_bytes: int = 512 * 1024 * 1024


ALLOWANCE = Allowance()


class _Connection(NamedTuple):
    descriptor: int
    begun: int
    """Bytes that had come when the session was opened."""
    since: float


class _Served(NamedTuple):
    """Bytes of a connection in one check."""

    came: int
    taken: int
    held: int


class _Progress(NamedTuple):
    """The state of a check, when a connection had its last command."""

    came: int
    taken: int
    memory: int
    all_came: int


class Intake:
    """TCP connections with a session. `taken` has the bytes read from each peer since it was opened.

    Encrypted bytes are more on the connection, so `taken_sealed` has those of peers with CURVE.
    """

    def __init__(self, allowance: Allowance, end: Callable[[int], None]) -> None:
        self.taken: dict[bytes, int] = {}
        self.taken_sealed: dict[bytes, int] = {}
        self._allowance = allowance
        self._end = end
        self._connections: dict[bytes, _Connection] = {}
        self._memory = -1
        self._least = 0
        """Memory after the last check of all connections, or less."""
        self._left: list[bytes] = []
        """Connections still to be checked."""
        self._found: dict[bytes, _Served] = {}
        self._marks: dict[bytes, _Progress] = {}
        self._came: dict[bytes, int] = {}
        """Bytes of each connection in its last check."""
        self._all_came = 0
        """Bytes of all connections, as far as checks have seen them."""
        self._checked_at = 0.0
        self.resting = False
        """Whether no bytes come: `fileno` has input with the next one."""
        self._arrivals: select.epoll | None = None
        self._blind = False
        """Whether the system could not watch one of the connections."""

    def begin(self, peer: bytes, descriptor: int, now: float, *, sealed: bool = False) -> None:
        """Add a TCP connection with a session, which is `sealed` with CURVE."""
        if CAN_TELL:
            self.forget(peer)
            (self.taken_sealed if sealed else self.taken)[peer] = 0
            self._connections[peer] = _Connection(descriptor, received(descriptor, tcp=True), now)
            self._await(descriptor)
            self.wake(now)

    def _await(self, descriptor: int) -> None:
        """Have the system report new bytes of a connection, until that is closed."""
        try:
            if self._arrivals is None:
                self._arrivals = select.epoll()
            self._arrivals.register(descriptor, select.EPOLLIN | select.EPOLLET)
        except OSError as error:
            # The descriptor is known from an earlier session, or closed, and may be another file by now.
            self._blind |= error.errno not in (errno.EEXIST, errno.EBADF, errno.EPERM, errno.EINVAL)

    def fileno(self) -> int:
        """The file descriptor to poll for input while the watch is resting."""
        return self._arrivals.fileno() if self._arrivals is not None else -1

    def wake(self, now: float) -> None:
        """End the rest: bytes have come."""
        if self.resting:
            self.resting = False
            self._checked_at = now

    def forget(self, peer: bytes) -> None:
        """Remove a connection: it or its session has ended."""
        self.taken.pop(peer, None)
        self.taken_sealed.pop(peer, None)
        self._connections.pop(peer, None)
        self._came.pop(peer, None)
        self._marks.pop(peer, None)

    def next_check(self) -> float | None:
        """Return the time of the next `check` without input, or None."""
        return self._checked_at + IDLE_SECONDS if self._connections and not self.resting else None

    def check(self, now: float) -> None:
        """End connections with too many held bytes."""
        if not self._connections or now < self._checked_at + CHECK_SECONDS:
            return
        quiet = now >= self._checked_at + IDLE_SECONDS
        self._checked_at = now
        if not self._left:
            memory = self.anonymous_bytes()
            self._least = min(self._least, memory)
            if memory < self._least + GROWTH_BYTES:
                self.resting = quiet and not self._something_came()
                return
            self._least, self._left, self._found = memory, [*self._connections], {}
        looked_at, self._left = self._left[:LOOKS_MAX], self._left[LOOKS_MAX:]
        self._look(looked_at, now)
        if not self._left:
            self._end_largest()
            self._end_pieces()

    def _something_came(self) -> bool:
        """Whether a connection has new bytes since the last call that libzmq has not read yet.

        Bytes that libzmq was quicker to read are noticed with the next ones, or after a second.
        """
        return self._arrivals is None or self._blind or bool(self._arrivals.poll(0, ARRIVALS))

    def _look(self, peers: Sequence[bytes], now: float) -> None:
        for peer in peers:
            connection = self._connections.get(peer)
            if connection is not None:
                came = received(connection.descriptor, tcp=True) - connection.begun
                taken = self.taken.get(peer, 0) + self.taken_sealed.get(peer, 0)
                held = came - taken - int(UNCOUNTED_BYTES * (now - connection.since))
                self._all_came += came - self._came.get(peer, 0)
                self._came[peer] = came
                self._found[peer] = _Served(came, taken, max(0, held))
                if held > self._allowance.peer_bytes:
                    self._give_up(peer)

    def _end_largest(self) -> None:
        total = sum(found.held for found in self._found.values())
        for peer, found in sorted(self._found.items(), key=lambda item: item[1].held, reverse=True):
            if total <= self._allowance.all_bytes:
                return
            total -= found.held
            self._give_up(peer)

    def _end_pieces(self) -> None:
        """End the connections that send short frames without end. Encrypted ones are not short."""
        marks, self._marks = self._marks, {}
        pieces: dict[bytes, int] = {}
        for peer, (came, taken, _) in self._found.items():
            if peer in self.taken:
                mark = marks.get(peer)
                if mark is None or mark.taken != taken:
                    mark = _Progress(came, taken, self._least, self._all_came)
                self._marks[peer] = mark
                pieces[peer] = (came - mark.came) * FRAME_BYTES // 2
        for peer in [peer for peer, size in pieces.items() if 2 * size > max(pieces.values())]:
            mark = self._marks[peer]
            explained = EXPLAINED_FACTOR * (self._all_came - mark.all_came)
            if PIECES_BYTES < self._least - mark.memory - explained < 2 * sum(pieces.values()):
                self._give_up(peer)

    def _give_up(self, peer: bytes) -> None:
        connection = self._connections.get(peer)
        self.forget(peer)
        if connection is not None:
            self._end(connection.descriptor)

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of the process; where that is unknown, it counts as grown."""
        try:
            if self._memory < 0:
                self._memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            _, resident, shared, *_ = map(int, os.pread(self._memory, 200, 0).split())
        except OSError:  # there is no /proc here, or no descriptor left
            return self._least + GROWTH_BYTES
        return (resident - shared) * _PAGE

    def close(self) -> None:
        """Close the watch."""
        self._connections.clear()
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals, self.resting = None, False
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


CAN_TELL = sys.platform == "linux"
"""Whether the system counts the bytes of a connection."""


def size_of(frames: Sequence[Any]) -> int:
    """Return the bytes of a command on a connection."""
    return sum(size + (2 if size < 256 else 9) for size in map(len, frames))


def sealed_size_of(frames: Sequence[Any]) -> int:
    """Return the bytes of a command on a connection with CURVE."""
    return sum(size + (2 if size < 256 else 9) for size in (len(frame) + SEAL_BYTES for frame in frames))
