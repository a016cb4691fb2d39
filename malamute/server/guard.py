"""Connections without HELLO: few, for a short time, and with few bytes.

libzmq puts the frames of a command together before it hands any of them over. A client that sends frames with
MORE and never the last one is invisible, and there is no option against that; neither does libzmq end a
silent connection. So each connection is watched by its file descriptor, from its event of
libzmq's monitor until its HELLO (`SRCFD`) was answered by WELCOME. A connection that
takes too long, or has more bytes than HELLO can have, is shut down; libzmq then finds it broken and
frees it.

The system counts the bytes that came on a TCP connection. On others it counts bytes not read yet, which are
many only where many come.

A connection that ends without a session counts against its address (`bans.py`).

When libzmq has no descriptor for a new connection, it tries again at once and for ever. So some are
reserved: when too many are in use, the connections that have waited longest for HELLO are ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
import termios
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import zmq

from malamute.door.addresses import NO_GATEWAYS, Gateways
from malamute.server.bans import Bans
from malamute.server.edge import RefusedConnection

HELLO_BYTES_MAX = 64 * 1024
"""Bytes of a connection before WELCOME. HELLO and the handshake of libzmq take below 2 KiB."""

HELLO_BYTES_MIN = 12 * 1024
"""Bytes of each, where very many share `WAITING_BYTES_MAX`: room for a HELLO with the longest token."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all these connections, unless that is less than `HELLO_BYTES_MIN` for each."""

PENDING_BYTES_MAX = 16 * 1024
"""Unread bytes of a connection other than TCP, at the most."""

BEHIND_FACTOR = 6
"""Factor of the time for HELLO while the broker or libzmq is behind."""

CHECK_SECONDS = 0.01
"""Seconds between two checks of connections without HELLO."""

CHECK_COUNT = 64
"""Connections in each check, in turns."""

NO_HELLO = "no HELLO in time"
TOO_MANY = "too many connections without HELLO"
TOO_MANY_BYTES = "too many bytes before HELLO"
TOO_MANY_FRAMES = "too many frames"
BANNED = "too many connections without a session: the address is banned for a while"

_EVENT = Struct("=Hi")
_RECEIVED = Struct("=Q")
_PENDING = Struct("=i")
_RECEIVED_AT = 128
"""Offset of the received bytes in `struct tcp_info`."""
_COUNTED = sys.platform == "linux"


class Rules(NamedTuple):
    """Limits before HELLO: seconds, connections, and connections in all.

    An address with more than `failures_max` connections in a second that end without a session is banned,
    unless it is one of the `gateways`; 0 is for no limit.
    """

    hello_seconds: float = 10.0
    waiting_max: int = 10_000
    open_max: int = sys.maxsize
    failures_max: int = 100
    gateways: Gateways = NO_GATEWAYS


RULES = Rules()


class PendingConnection(NamedTuple):
    """Connection without HELLO. `inode` tells it from a later one with the same descriptor.

    The `address` is empty if there is none. `new` is whether it never had a session, and `sealed` whether
    CURVE encrypts its frames.
    """

    since: float
    inode: int
    tcp: bool
    bytes_max: int
    address: str
    new: bool = True
    sealed: bool = False


class Guard:
    """Connections of a ROUTER, as reported by its monitor."""

    def __init__(self, context: zmq.Context[Any], router: zmq.Socket[Any], rules: Rules) -> None:
        self.rules = rules
        self.waiting: OrderedDict[int, PendingConnection] = OrderedDict()
        self.ended: list[int] = []
        """Descriptors of connections that have ended, until the transport takes them."""
        self.refused = 0
        """Count of connections that were shut down."""
        self.on_refusal: Callable[[RefusedConnection], object] = lambda refusal: None
        """Called with each refused connection, and with each ban."""
        self._bans = Bans(rules.failures_max, rules.gateways)
        self.read_until = 0.0
        """Time up to which input was read. A peer silent until then is late; a later one may be unread."""
        self.sealed: set[bytes] = set()
        """Endpoints with CURVE."""
        self._now = 0.0
        self._open: set[int] = set()
        self._welcomed: dict[int, PendingConnection] = {}
        self._checked_at = 0.0
        self._last = -1
        self._router = router
        name = f"inproc://connections-{id(self)}"
        router.monitor(name, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.monitor = context.socket(zmq.PAIR)
        # libzmq's thread must never wait for us to read its events.
        self.monitor.rcvhwm = 0
        self.monitor.linger = 0
        self.monitor.connect(name)
        # Shutting a connection down must work when there is no descriptor left.
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def check(self, now: float) -> None:
        """End connections past the limits."""
        self._now = now
        if self._bans.until:
            self._bans.check(now)
        if not self.waiting:
            return
        self._end_those_too_many(now)
        if self.waiting and now >= self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            share = max(HELLO_BYTES_MIN, WAITING_BYTES_MAX // len(self.waiting))
            less = max(HELLO_BYTES_MAX - share, 0)
            for descriptor in self._turns():
                waiting = self.waiting[descriptor]
                if received(descriptor, tcp=waiting.tcp) > waiting.bytes_max - less:
                    self.end(descriptor, TOO_MANY_BYTES)

    def update(self, now: float) -> None:
        """Read the events of libzmq's monitor."""
        self._now = now
        while True:
            try:
                event, endpoint = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            number, descriptor = _EVENT.unpack_from(event)
            tcp = endpoint.startswith(b"tcp:")
            if number == zmq.EVENT_ACCEPTED:
                self._accepted(descriptor, tcp, now, sealed=endpoint in self.sealed)
            elif number == zmq.EVENT_DISCONNECTED:
                self._disconnected(descriptor)
            elif tcp:
                self._bans.watch(descriptor)

    def _accepted(self, descriptor: int, tcp: bool, now: float, *, sealed: bool) -> None:
        self._open.add(descriptor)
        inode = _inode(descriptor)
        if inode:
            self.waiting.pop(descriptor, None)
            address = _address(descriptor) if tcp else ""
            self.waiting[descriptor] = PendingConnection(
                now, inode, tcp, HELLO_BYTES_MAX, address, sealed=sealed
            )

    def _disconnected(self, descriptor: int) -> None:
        self._open.discard(descriptor)
        waiting = self.waiting.pop(descriptor, None)
        self._welcomed.pop(descriptor, None)
        self.ended.append(descriptor)
        if waiting is not None and waiting.new:
            self._count(waiting.address)

    def refuse(self, refusal: RefusedConnection) -> None:
        """Report a refused connection, and count it against its address.

        A connection that was refused in its handshake may stay until its time for HELLO is over, and counts
        again when it ends.
        """
        self.on_refusal(refusal)
        if refusal.busy:
            self._bans.excuse(refusal.address, self._now)
        else:
            self._count(refusal.address)

    def _count(self, address: str) -> None:
        if self._bans.count(address, self._now):
            self.on_refusal(RefusedConnection(address, "", BANNED))

    def welcome(self, descriptor: int) -> None:
        """Note a session on a connection."""
        waiting = self.waiting.pop(descriptor, None)
        if waiting is not None:
            self._welcomed[descriptor] = waiting

    def is_tcp(self, descriptor: int) -> bool:
        """Whether a connection has a session, and the system counts its bytes."""
        welcomed = self._welcomed.get(descriptor)
        return welcomed is not None and welcomed.tcp

    def is_sealed(self, descriptor: int) -> bool:
        """Whether a connection has a session and CURVE."""
        welcomed = self._welcomed.get(descriptor)
        return welcomed is not None and welcomed.sealed

    def dismiss(self, descriptor: int, now: float) -> None:
        """Note the end of a session: the connection needs another one, or is ended."""
        welcomed = self._welcomed.pop(descriptor, None)
        if welcomed is not None:
            bytes_max = received(descriptor, tcp=welcomed.tcp) + HELLO_BYTES_MAX
            self.waiting[descriptor] = welcomed._replace(since=now, bytes_max=bytes_max, new=False)

    def next_check(self) -> float | None:
        """Return the time of the next `update` without input, or None."""
        if self.waiting:
            return self._checked_at + CHECK_SECONDS
        return self._bans.next_check() if self._bans.until else None

    def _end_those_too_many(self, now: float) -> None:
        rules = self.rules
        over = len(self._open) - rules.open_max
        while self.waiting:
            descriptor, oldest = next(iter(self.waiting.items()))
            age = max(self.read_until - oldest.since, (now - oldest.since) / BEHIND_FACTOR)
            crowded = len(self.waiting) > rules.waiting_max
            # Many come at once when a broker starts again. A client that is quick is not in the way.
            if age >= rules.hello_seconds and _pending(descriptor):
                # Its HELLO may be there: libzmq's own thread is behind.
                age = (now - oldest.since) / BEHIND_FACTOR
            if age < rules.hello_seconds and not (crowded and age >= rules.hello_seconds / 10) and over <= 0:
                return
            over -= 1
            self.end(descriptor, NO_HELLO if age >= rules.hello_seconds else TOO_MANY)

    def _turns(self) -> list[int]:
        """Return the next of the waiting connections, in turns."""
        descriptors = sorted(self.waiting)
        place = bisect_right(descriptors, self._last)
        turns = (descriptors[place:] + descriptors[:place])[:CHECK_COUNT]
        self._last = turns[-1]
        return turns

    def end(self, descriptor: int, reason: str = "") -> None:
        """Shut a connection down; libzmq will report its end.

        The reason is for a connection without HELLO; it is empty after a report.
        """
        waiting = self.waiting.pop(descriptor, None) if reason else self.waiting.get(descriptor)
        known = waiting or self._welcomed.get(descriptor)
        try:
            os.dup2(descriptor, self._spare, inheritable=False)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return  # it has ended, which the monitor is about to report
        # The descriptor may be that of another connection meanwhile.
        inode = _inode(self._spare)
        if inode and (known is None or inode == known.inode):
            self._shut_down()
            if waiting is not None and reason:
                self.refuse(RefusedConnection(waiting.address, "", reason))
        os.dup2(self._null, self._spare, inheritable=False)

    def _shut_down(self) -> None:
        connection = socket.socket(fileno=self._spare)
        try:
            connection.shutdown(socket.SHUT_RDWR)
            self.refused += 1
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        finally:
            connection.detach()

    def close(self) -> None:
        """Close the monitor."""
        self._router.disable_monitor()
        self.monitor.close(0)
        os.close(self._null)
        os.close(self._spare)


def descriptor_of(part: Any) -> int:
    """Return the file descriptor of the connection of a frame; -1 for a frame of this process."""
    try:
        return int(part.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _inode(descriptor: int) -> int:
    """Return the inode of a socket; 0 if the descriptor is none."""
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return 0
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else 0


def _address(descriptor: int) -> str:
    """Return the remote address of a TCP connection; empty if it is gone, which may happen at any moment."""
    try:
        # Named as one of IPv6, it has room for either kind of address.
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return ""
    try:
        name = connection.getpeername()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return ""
    finally:
        connection.detach()
    # A connection that ends at this moment may have an address of no kind.
    return str(name[0]) if isinstance(name, tuple) and name else ""


def received(descriptor: int, *, tcp: bool) -> int:
    """Return the bytes that came on a connection, as far as the system counts them; 0 if it is gone."""
    try:
        if tcp and _COUNTED:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            finally:
                connection.detach()
            received: int = _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]
            return received
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return 0
    pending = _pending(descriptor)
    # So many unread bytes mean that more than HELLO can have has come.
    return pending if pending <= PENDING_BYTES_MAX else sys.maxsize


def _pending(descriptor: int) -> int:
    """Return the bytes that libzmq has not read yet; 0 on a connection that is gone."""
    try:
        pending: int = _PENDING.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return 0
    return pending


_GONE = frozenset((errno.EBADF, errno.ENOTSOCK, errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTCONN))
