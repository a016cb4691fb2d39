"""The link of a node to the other one of its pair: two connections of ZeroMQ, one for each direction.

A node sends by a connection of its own and receives by its listener, so each reconnects alone, and frames on
one of them keep their order. A frame that cannot leave at once is not sent: it would be of an earlier
connection when it arrives. Not encrypted, so on the loopback only.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import Any

import zmq

from malamute.errors import ConfigError, Malformed
from malamute.pair import codec
from malamute.pair.codec import Frame

QUEUE_FRAMES = 4096
"""Frames that wait in one direction."""

BYTES_IN_GO = 8 * 1024 * 1024
"""Bytes of frames that are received together."""

RECONNECT_MS = 50
PROBE_SECONDS = 0.2
LINGER_MS = 500

_LOOPBACK = re.compile(r"tcp://(127(?:\.[0-9]{1,3}){3}|localhost):([0-9]{1,5})")


def check_link(url: str) -> None:
    """Raise ConfigError for an address of a link that is not on the loopback."""
    if not _LOOPBACK.fullmatch(url):
        raise ConfigError(
            f"pair.listen {url!r}: expected one of the loopback, such as tcp://127.0.0.1:9998: the link is "
            "not encrypted"
        )


def ask_switch(url: str) -> None:
    """Ask the node that listens at a URL to hand over."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        sender.set(zmq.LINGER, LINGER_MS)
        sender.connect(url)
        sender.send(codec.encode(codec.HandOver(0, 0)))


class PairLink:
    """The link of one node, which listens at `listen`. Used by one thread. Raises ConfigError."""

    def __init__(self, listen: str) -> None:
        check_link(listen)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener = self._context.socket(zmq.ROUTER)
        self._sender: zmq.Socket[bytes] | None = None
        self._peer = ""
        for option, value in (
            (zmq.RCVHWM, QUEUE_FRAMES),
            (zmq.MAXMSGSIZE, codec.FRAME_BYTES_MAX),
            (zmq.LINGER, 0),
        ):
            self._listener.set(option, value)
        try:
            self._listener.bind(listen)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise ConfigError(f"pair.listen {listen!r} cannot be bound: {error}") from error

    @property
    def input(self) -> Any:
        """The socket to poll."""
        return self._listener

    def connect(self, peer: str) -> None:
        """Send to the listener of another node from now on."""
        if peer == self._peer:
            return
        if self._sender is not None:
            self._sender.close(0)
        self._peer, self._sender = peer, self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, QUEUE_FRAMES),
            (zmq.IMMEDIATE, 1),
            (zmq.LINGER, LINGER_MS),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
        ):
            self._sender.set(option, value)
        self._sender.connect(peer)

    def send(self, frame: Frame) -> bool:
        """Send a frame; return False if it cannot leave now."""
        if self._sender is not None:
            with suppress(zmq.Again):
                self._sender.send(codec.encode(frame), zmq.NOBLOCK)
                return True
        return False

    def receive(self) -> list[Frame]:
        """Return frames that are there; those that are damaged are left out: what they had will be missed."""
        found: list[Frame] = []
        size = 0
        while size < BYTES_IN_GO:
            try:
                _, *frames = self._listener.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            size += sum(map(len, frames))
            with suppress(Malformed):
                found.append(codec.decode(b"".join(frames)))
        return found

    def is_refused(self) -> bool:
        """Return whether nobody listens at the other node."""
        found = _LOOPBACK.fullmatch(self._peer)
        if found is None:
            return False
        try:
            socket.create_connection((found[1], int(found[2])), PROBE_SECONDS).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close both connections, once the last frames have left."""
        self._listener.close(0)
        if self._sender is not None:
            self._sender.close(LINGER_MS)
        self._context.term()
