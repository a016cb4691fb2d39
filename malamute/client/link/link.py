"""The socket.

One DEALER for one connection, and the monitor that reports when it is connected and when it broke. libzmq
makes the connection and keeps heartbeats going in its own thread, so a program that is busy with a message
stays connected. A link does not reconnect: every attempt is a link of its own, to the URL that is next, and
nothing of an older connection can arrive on it. `IMMEDIATE` keeps frames out of a connection that is not
made yet, where they would overtake HELLO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EMFILE
from functools import partial
from struct import Struct
from typing import Any

import zmq
from zmq import backend

from malamute.client.link.credentials import SocketOptions
from malamute.client.link.greenlets import poll_function
from malamute.client.link.greeting import Inquiry
from malamute.client.link.lookup import lookup_of, with_address
from malamute.errors import AccessRefused, InvalidValue, OutOfSockets
from malamute.protocol.batch import Frame
from malamute.protocol.limits import RECORD_LARGE_BYTES

HEARTBEATS_MISSED = 3
"""A connection is taken for broken after so many heartbeats without data."""
HEARTBEAT_MIN = 0.01
HEARTBEAT_MAX = 20.0
"""In seconds. libzmq counts the other side's time in 16 bits of milliseconds."""
WAIT_MAX_MS = 500
"""Maximum time of one poll. Python handles a signal that arrives right before a poll only after it."""
_WAIT_MAX_SECONDS = WAIT_MAX_MS / 1000
SOCKETS_MAX = 16_384
"""Sockets in the context that clients share, three for each. libzmq's own 1023 are for 341 clients."""
RECEIVE_COMMANDS = 200
"""Commands taken from the socket in one go, so that sending and events are not starved."""

_OPTIONS: dict[int, int | bytes] = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    # Credit bounds the messages. While this limit is reached, the broker's heartbeats are not read.
    zmq.RCVHWM: 1_000_000,
    zmq.RECONNECT_IVL: -1,
}
_EVENT = Struct("=HI")
# Plain integers: pyzmq makes enumeration values of these, which takes longer than the poll itself.
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
"""Errors of libzmq for which a retry is useless."""

_DEFERRED = (zmq.Event.HANDSHAKE_FAILED_AUTH, 300)

_MECHANISMS = {int(zmq.NULL): b"NULL", int(zmq.PLAIN): b"PLAIN", int(zmq.CURVE): b"CURVE"}

NOBODY: SocketOptions = {}

AnyContext = zmq.Context[zmq.Socket[bytes]]


def shared_context() -> AnyContext:
    """Return the context of the process, for clients without one. Raises `OutOfSockets`."""
    with _as_ours():
        context: AnyContext = zmq.Context.instance()
    # The limit counts only before the first socket; a higher one is left alone.
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
"""Open links. A dropped client closes its own link, which must not be collected before it."""


class Link:
    """One connection to a broker, or the attempt.

    Raises `InvalidValue` for an invalid address, and `OutOfSockets`.

    Every `heartbeat` seconds the broker is pinged, which is a sign of life of the client, too: HELLO promises
    it. The time to live that libzmq could announce would be cancelled by the client's next command.

    A URL with the name of a host is connected by `go_on`, once the link `is_looking` no more.
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
        """Whether the handshake failed without a reason from libzmq."""
        self.taken = False
        """Whether a listener has accepted the connection: its broker may be busy, or hang."""
        self.deferred = False
        """Whether the broker deferred the verification of the credentials."""
        self.quiet = False
        """Whether the last wait has found no change of the connection."""
        self._readable = False
        """Whether it has found a command, which nothing has received since."""
        self.received = False
        """Whether a command was received, for a loop that is to be notified of it."""
        self._poll = poll_function()
        # The direct call avoids work that pyzmq does for other kinds of sockets at each frame.
        self._send = partial(backend.Socket.send, self.socket)
        self._receive: Callable[..., Any] = partial(backend.Socket.recv, self.socket, copy=False)
        self._has_input = [(self.socket, _POLLIN)]
        self._reading = [(self.socket, _POLLIN), (self._monitor, _POLLIN)]
        self._writing = [(self.socket, _POLLIN | _POLLOUT), (self._monitor, _POLLIN)]
        self._lookup = lookup_of(url)
        if self._lookup is None:
            self._connect(url)

    def _connect(self, url: str) -> None:
        try:
            self.socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            words = zmq.strerror(error.errno or 0).lower()
            raise InvalidValue(
                f"invalid URL {self._url!r}, {words}: expected one such as tcp://HOST:9999"
            ) from error

    @property
    def is_looking(self) -> bool:
        """Return whether the address of the host is still looked up."""
        return self._lookup is not None and not self._lookup.over.is_set()

    def go_on(self) -> bool:
        """Connect after the lookup. Return False if the name of the host is not known."""
        lookup, self._lookup = self._lookup, None
        if lookup is not None and lookup.address:
            self._connect(with_address(self._url, lookup.address))
        return lookup is None or lookup.address != ""

    @property
    def files(self) -> tuple[int, int]:
        """Return the files to watch for readiness.

        The files are edge-triggered: they become readable when something changes, and any use of the socket,
        even sending, may clear that state. So a watcher has to `wait` for 0 seconds afterwards.
        """
        return int(self.socket.get(zmq.FD)), int(self._monitor.get(zmq.FD))

    def changes(self) -> Iterator[bool]:
        """Yield changes of the connection: True for a new one, False for one that broke or failed.

        Raises:
            AccessRefused: the broker refuses this client.
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

    def receive(self) -> list[list[bytes]]:
        """Return available commands, without waiting."""
        commands: list[list[bytes]] = []
        receive, readable, self._readable = self._receive, self._readable, False
        for _ in range(RECEIVE_COMMANDS):
            # A poll costs less than the exception for nothing to receive.
            if not readable and not zmq.zmq_poll(self._has_input, 0):
                break
            readable = False
            try:
                part = receive(_LAST)
            except zmq.Again:
                break
            frames = [part.bytes]
            # The frame itself has the flag, which the socket returns more slowly.
            while part.more:
                part = receive()
                frames.append(part.bytes)
            commands.append(frames)
        if commands:
            self.received = True
        return commands

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send a command without waiting. Return False if the connection takes none now."""
        try:
            for frame in frames[:-1]:
                self._send(frame, _MORE, copy=len(frame) < RECORD_LARGE_BYTES)
            self._send(frames[-1], _LAST, copy=len(frames[-1]) < RECORD_LARGE_BYTES)
        except zmq.Again:
            return False
        return True

    def wait(self, timeout: float, *, sending: bool, wake_fd: int | None = None) -> bool:
        """Wait until receiving, or `sending`, is possible; for `timeout` seconds or a while at most.

        `wake_fd` is a file that ends the wait as well, when it becomes readable. Return whether anything is
        possible.
        """
        sources: list[tuple[Any, int]] = self._writing if sending else self._reading
        if wake_fd is not None:
            sources = [*sources, (wake_fd, _POLLIN)]
        wait_ms = 0
        if timeout > 0.0:
            # Rounded up: a wait that is a little short would spin through the last millisecond.
            wait_ms = int(timeout * 1000) + 1 if timeout < _WAIT_MAX_SECONDS else WAIT_MAX_MS
        ready = self._poll(sources, wait_ms)
        self.quiet, self._readable = True, False
        for source, events in ready:
            if source is self._monitor:
                self.quiet = False
            elif source is self.socket:
                self._readable = events & _POLLIN != 0
        return bool(ready)

    def close(self) -> None:
        """Close the link at once. Unsent commands are dropped."""
        _open.discard(self)
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)
