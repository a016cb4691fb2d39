"""A peer that speaks the protocol in batches and does nothing else: it is the broker that is measured."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

import zmq

from malamute.errors import MalamuteError, TimedOut
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import VERSION, Error, Hello, Message, Ping, Received, Welcome

TIMEOUT_MS = 120_000

Kind = TypeVar("Kind", bound=Message)


class RawPeer:
    """A connection to a broker under an address, open during its block.

    Raises `TimedOut`, and what the broker refuses.
    """

    def __init__(
        self,
        url: str,
        address: str,
        options: Mapping[int, int] | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        """`options` are those of its socket, beyond the usual ones; without a `context` it has its own."""
        self._own_context: zmq.Context[zmq.Socket[bytes]] | None = None
        if context is None:
            context = self._own_context = zmq.Context()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, b"\1" + secrets.token_bytes(15))
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        for option, value in (options or {}).items():
            self._socket.setsockopt(option, value)
        self._socket.connect(url)
        self.send(Hello([VERSION], address))

    def send(self, message: Message) -> None:
        """Send a message."""
        self._socket.send_multipart(encode(message), copy=False)

    def send_frames(self, *frames: bytes) -> None:
        """Send frames, whatever they are."""
        self._socket.send_multipart(frames, copy=False)

    def receive(self) -> Message:
        """The next message that is not the broker's own question whether all before it has come."""
        while True:
            try:
                message = decode(self._socket.recv_multipart())
            except zmq.Again:
                raise TimedOut("no answer from the broker in time") from None
            if not isinstance(message, Ping) or not message.token:
                return message
            self.send(Received(message.token))

    def next(self, *kinds: type[Kind]) -> Kind:
        """The next message of these kinds; whatever else comes is passed over."""
        while True:
            message = self.receive()
            if isinstance(message, Error):
                raise MalamuteError(f"{message.text} (error {message.code})")
            if isinstance(message, kinds):
                return message

    def __enter__(self) -> Self:
        self.next(Welcome)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        if self._own_context is not None:
            self._own_context.term()
