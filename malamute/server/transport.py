"""The socket: one ROUTER with several listeners, and what is kept for peers whose pipe is full.

`ROUTER_MANDATORY` makes a send tell what became of it. "Host unreachable" means that the peer is gone.
"Would block" means that its pipe is full: what was to go is kept, in order and up to a limit, the core treats
the peer as being without credit, and the transport tries again until the pipe has room. libzmq's heartbeats
find out about peers that stay connected and are dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import zmq
from zmq.backend import Socket as Backend

from malamute.errors import ConfigError, MalamuteError, UnexpectedCommand
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.protocol.messages import Error, Frame, Message, Ping

TURN_MESSAGES = 2_000
"""Commands that one turn takes in."""

TURN_BYTES = 1 << 19
"""Bytes that one turn takes in; the command that passes it is the last."""

KEPT_MESSAGES = 1_000
"""Messages kept for a peer whose pipe is full; with one more, the peer is given up."""

SHARED_BYTES = 8_192
"""A frame of this size or more that goes to several peers is shared instead of copied."""


_GIVEN_UP = Error(UnexpectedCommand.code, "too much was waiting for this client: say HELLO again")


class Transport:
    """The ROUTER socket. `lost` and `unblocked` gather what happened to peers until they are taken."""

    def __init__(self, context: zmq.Context[Any], options: dict[int, int]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.endpoints: list[str] = []
        self.blocked: dict[bytes, deque[Sequence[Frame]]] = {}
        self.lost: list[bytes] = []
        # The backend's own `get`: the public one looks every option up in an enumeration first, which
        # takes longer than receiving the message.
        self._has_more = partial(Backend.get, self.socket, int(zmq.RCVMORE))
        self._shared: tuple[Any, Any] = (None, None)

    def bind(self, endpoint: str) -> str:
        """Listen on an endpoint; returns it with the port that was chosen. Raises `ConfigError`."""
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from error
        bound = cast(bytes, self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        # An abstract socket is told with a NUL, which nobody could type.
        self.endpoints.append(endpoint if endpoint.startswith("ipc://@") else bound)
        return self.endpoints[-1]

    def receive(self) -> Iterator[tuple[bytes, Message | MalamuteError]]:
        """What peers have sent, up to the limits of a turn: messages, or the error that they are."""
        receive, has_more = self.socket.recv, self._has_more
        size_bytes = 0
        for _ in range(TURN_MESSAGES):
            try:
                peer = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            frames: list[Any] = [receive()]
            while has_more():
                # The core and the store know bytes and views of bytes, not libzmq's own frames.
                frames.append(receive(copy=False).buffer)
            try:
                yield peer, decode(frames)
            except MalamuteError as error:
                yield peer, error
            size_bytes += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
            if size_bytes >= TURN_BYTES:
                return

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a message, or keep it if the pipe is full. Returns whether the peer blocks since now."""
        kept = self.blocked.get(peer)
        if kept is None:
            frames = encode(message)
            if self._transmit(peer, frames):
                return False
            kept = self.blocked[peer] = deque()
        elif isinstance(message, Ping):
            return False
        else:
            frames = encode(message)
        kept.append(frames)
        if len(kept) > KEPT_MESSAGES:
            self._give_up(peer)
            # The pipe is still there. When it has room, the peer learns that it has to begin anew.
            self.blocked[peer] = deque([encode(_GIVEN_UP)])
        return True

    def retry(self) -> list[bytes]:
        """Send what was kept. Returns the peers for which nothing is kept any more."""
        free = []
        for peer, kept in list(self.blocked.items()):
            while kept and self._transmit(peer, kept[0]):
                kept.popleft()
            if not kept and self.blocked.pop(peer, None) is not None:
                free.append(peer)
        return free

    def take_lost(self) -> list[bytes]:
        """The peers that turned out to be gone since the last time."""
        lost, self.lost = self.lost, []
        return lost

    def forget(self, peer: bytes) -> None:
        """Keep only the last message for a peer whose session has ended: it says why."""
        kept = self.blocked.get(peer)
        while kept and len(kept) > 1:
            kept.popleft()

    def close(self, linger_ms: int) -> None:
        """Close the socket; what is under way has `linger_ms` milliseconds to leave."""
        self.socket.close(linger=linger_ms)

    def _transmit(self, peer: bytes, frames: Sequence[Frame]) -> bool:
        """Send now. Returns False if the pipe is full; a peer that is gone counts as sent."""
        send = self.socket.send
        try:
            send(peer, zmq.SNDMORE | zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._give_up(peer)
            return True
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            flags = zmq.NOBLOCK if place == last else zmq.SNDMORE | zmq.NOBLOCK
            if len(frame) < SHARED_BYTES:
                send(frame, flags)
            else:
                send(self._share(frame), flags, copy=False)
        return True

    def _share(self, frame: Frame) -> Any:
        """A frame as libzmq's own, which counts references: the same one for each peer in a row."""
        if self._shared[0] is not frame:
            # Copied once: libzmq would otherwise call back into Python when the last peer is done.
            self._shared = (frame, zmq.Frame(frame, copy=len(frame) < RECORD_LARGE_BYTES))
        return self._shared[1]

    def _give_up(self, peer: bytes) -> None:
        if self.blocked.pop(peer, None) is not None or peer not in self.lost:
            self.lost.append(peer)
