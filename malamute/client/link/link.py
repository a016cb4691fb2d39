"""The socket.

One DEALER for one connection, and the monitor that reports when it is connected and when it broke. libzmq
makes the connection and keeps heartbeats going in its own thread, so a program that is busy with a message
stays connected. It does not reconnect: every attempt is a link of its own, to the URL that is next, and
nothing of an older connection can arrive on it. `IMMEDIATE` keeps frames out of a connection that is not
made yet, where they would overtake HELLO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EMFILE
from functools import partial
from struct import Struct
from typing import Any

import zmq
from zmq import backend

from malamute.client.link.credentials import SocketOptions
from malamute.client.link.greeting import Inquiry
from malamute.errors import AccessRefused, InvalidValue, OutOfSockets
from malamute.protocol.batch import Frame
from malamute.protocol.limits import RECORD_LARGE_BYTES

HEARTBEATS_MISSED = 3
"""A connection is taken for broken when nothing has come for so many heartbeats."""
HEARTBEAT_MIN = 0.01
HEARTBEAT_MAX = 20.0
"""In seconds. libzmq counts the time that the other side is given in 16 bits of milliseconds."""
WAIT_MAX_MS = 500
"""How long one poll may take. Python handles a signal that comes right before a poll only after it."""
SOCKETS_MAX = 16_384
"""Sockets in the context that clients share, three for each. libzmq's own 1023 are for 341 clients."""
RECEIVE_COMMANDS = 200
"""Commands taken from the socket in one go, so that sending and events are not starved."""

_OPTIONS: dict[int, int | bytes] = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    # Credit is what bounds them. While this is full, nobody reads the broker's heartbeats.
    zmq.RCVHWM: 1_000_000,
    zmq.RECONNECT_IVL: -1,
}
_EVENT = Struct("=HI")
# As plain integers: pyzmq makes values of its enumerations of them, which takes longer than what is asked.
_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_TAKEN = zmq.Event.CONNECTED
_UP = zmq.Event.HANDSHAKE_SUCCEEDED
_DOWN = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)

OTHER_PROOF = "the broker wants another proof: expected a password (plain), a key (curve), or neither"
_REFUSED = {
    (zmq.Event.HANDSHAKE_FAILED_AUTH, 400): "wrong user, password or key, or a disabled account",
    (zmq.Event.HANDSHAKE_FAILED_AUTH, 500): "the broker does not understand the credentials",
    (zmq.Event.HANDSHAKE_FAILED_PROTOCOL, 0x11000002): OTHER_PROOF,
}
"""What libzmq reports when there is no use in trying again."""

_DEFERRED = (zmq.Event.HANDSHAKE_FAILED_AUTH, 300)

_MECHANISMS = {int(zmq.NULL): b"NULL", int(zmq.PLAIN): b"PLAIN", int(zmq.CURVE): b"CURVE"}

NOBODY: SocketOptions = {}

AnyContext = zmq.Context[zmq.Socket[bytes]]


def shared_context() -> AnyContext:
    """The context of the process, for clients that are given none. Raises `OutOfSockets`."""
    with _as_ours():
        context: AnyContext = zmq.Context.instance()
    # It counts only before the first socket; a program that has set more is left alone.
    if context.get(zmq.MAX_SOCKETS) < SOCKETS_MAX:
        context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
    return context


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except zmq.ZMQError as error:
        if error.errno != EMFILE:
            raise
        raise OutOfSockets(f"no socket for one more connection: {error}") from error


_open: set[Link] = set()
"""Links that are open. A client that is dropped closes its own, which must not be gone before it."""


class Link:
    """One connection to a broker, or the attempt.

    Raises `InvalidValue` for an address that is none, and `OutOfSockets`.

    Every `heartbeat` seconds the broker is asked for a sign of life, which is one of ours, too: HELLO
    promises it. The time to live that libzmq could announce would be cancelled by our next word.
    """

    def __init__(
        self,
        context: AnyContext,
        url: str,
        identity: bytes,
        heartbeat: float,
        credentials: SocketOptions = NOBODY,
    ) -> None:
        with _as_ours():
            self.socket = context.socket(zmq.DEALER)
            try:
                self._monitor = self.socket.get_monitor_socket(_TAKEN | _UP | _DOWN)
            except zmq.ZMQError:
                self.socket.close(0)
                raise
        self._url = url
        for option, value in {**_OPTIONS, **credentials}.items():
            self.socket.set(option, value)
        every_ms = int(heartbeat * 1000)
        self.socket.set(zmq.HEARTBEAT_IVL, every_ms)
        self.socket.set(zmq.HEARTBEAT_TIMEOUT, every_ms * HEARTBEATS_MISSED)
        self.socket.set(zmq.ROUTING_ID, identity)
        self._monitor.linger = 0
        _open.add(self)
        self.unexplained = False
        """Whether the handshake failed, and libzmq does not say why."""
        self.taken = False
        """Whether a listener has taken the connection: it may be one whose broker is busy, or hangs."""
        self.deferred = False
        """Whether the broker did not look at the credentials, and wants them later."""
        self.quiet = False
        """Whether nothing had happened to the connection when a wait was over a moment ago."""
        # Without what pyzmq does for other kinds of sockets at each frame.
        self._send = partial(backend.Socket.send, self.socket)
        self._has_input = [(self.socket, _POLLIN)]
        self._reading = [(self.socket, _POLLIN), (self._monitor, _POLLIN)]
        self._writing = [(self.socket, _POLLIN | _POLLOUT), (self._monitor, _POLLIN)]
        try:
            self.socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidValue(
                f"invalid URL {url!r}: expected one such as tcp://HOST:9999 ({error})"
            ) from error

    @property
    def files(self) -> tuple[int, int]:
        """What to watch to learn that something may have come. See `pending`."""
        return int(self.socket.get(zmq.FD)), int(self._monitor.get(zmq.FD))

    @property
    def pending(self) -> bool:
        """Whether there is something to take.

        The files are edge-triggered: they become readable when something changes, and any look at the socket,
        even sending, may take that sign away. So the one that watches them has to ask here afterwards.
        """
        return any(int(socket.get(zmq.EVENTS)) & zmq.POLLIN for socket in (self.socket, self._monitor))

    def changes(self) -> Iterator[bool]:
        """What happened to the connection: True where it was made, False where it broke or failed.

        Raises:
            AccessRefused: the broker does not take this client.
        """
        while self._monitor.poll(0):
            # pyzmq can read this too, but would import asyncio for it: the number of the event comes first.
            event, value = _EVENT.unpack_from(self._monitor.recv_multipart()[0])
            if event == _TAKEN:
                self.taken = True
                continue
            if (event, value) in _REFUSED:
                raise AccessRefused(f"connection to {self._url} is refused: {_REFUSED[event, value]}")
            self.deferred = self.deferred or (event, value) == _DEFERRED
            if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
                self.unexplained = True
            yield event == _UP

    def inquire(self) -> Inquiry:
        """Ask the listener for the reason."""
        return Inquiry(self._url, _MECHANISMS[int(self.socket.get(zmq.MECHANISM))])

    def receive(self) -> Iterator[list[bytes]]:
        """The commands that are there, without waiting."""
        receive = self.socket.recv
        for count in range(RECEIVE_COMMANDS):
            # Behind a first one there often is none, and the exception costs more than to ask.
            if count and not zmq.zmq_poll(self._has_input, 0):
                return
            try:
                part = receive(_LAST, copy=False)
            except zmq.Again:
                return
            frames = [part.bytes]
            # Libzmq's own frame says whether another follows, which to ask the socket takes longer.
            while part.more:
                part = receive(copy=False)
                frames.append(part.bytes)
            yield frames

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send a command without waiting. False if the connection takes none now."""
        try:
            last = len(frames) - 1
            for place, frame in enumerate(frames):
                flags = _LAST if place == last else _MORE
                self._send(frame, flags, copy=len(frame) < RECORD_LARGE_BYTES)
        except zmq.Again:
            return False
        return True

    def wait(self, timeout: float | None, *, sending: bool, wake_fd: int | None = None) -> None:
        """Wait for something to take, or to send, or until `timeout` seconds are over, or a while.

        `wake_fd` is a file that ends the wait too, when it becomes readable.
        """
        sources: list[tuple[Any, int]] = self._writing if sending else self._reading
        if wake_fd is not None:
            sources = [*sources, (wake_fd, _POLLIN)]
        # Rounded up: a wait that is a little short would spin through the last millisecond.
        wait_ms = WAIT_MAX_MS if timeout is None else min(int(timeout * 1000) + 1, WAIT_MAX_MS)
        ready = zmq.zmq_poll(sources, wait_ms)
        self.quiet = (self._monitor, _POLLIN) not in ready

    def close(self) -> None:
        """Close it at once. What was not sent is dropped."""
        _open.discard(self)
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)
