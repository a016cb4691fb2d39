"""Brokers on the local network, by ZRE, the protocol of Zyre: as a peer with headers in the group `malamute`.

A beacon can be forged like an announcement by DNS-SD, and counts as little: it is checked and shown.

Source: the headers and the group are those of the ZeroMQ Realtime Exchange Protocol, RFC 36 of ZeroMQ.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any

import zmq

from malamute.errors import NotInstalled
from malamute.pack.discovery import FOUND_MAX, Discovered, FoundBroker, found_broker, one_of_each, record_of

GROUP, HEADER = "malamute", "malamute-"
"""The group of all brokers, and the beginning of the names of their headers."""

PORT = 5670
"""The port of beacons that ZRE has of IANA."""

READ_SECONDS = 0.5
"""Time after which the thread of an announcement sees that it is to end."""


@asynccontextmanager
async def announced(name: str, broker: str, urls: Sequence[str], port: int = PORT) -> AsyncIterator[None]:
    """Announce a broker during the block, and leave at its end.

    Raises:
        InvalidValue: a broker cannot have this name, or these URLs.
        NotInstalled: the library is missing.
    """
    record = record_of(name, broker, urls)
    headers = {f"{HEADER}{key.decode()}": value.decode() for key, value in record.items()}
    _library()
    over = threading.Event()
    serving = asyncio.ensure_future(asyncio.to_thread(_serve, name, headers, port, over))
    try:
        yield
    finally:
        over.set()
        await serving


def _serve(name: str, headers: Mapping[str, str], port: int, over: threading.Event) -> None:
    with _node(name, headers, port) as node:
        while not over.is_set():
            # Messages of peers are dropped: a full inbox would stop the node.
            if node.socket().poll(READ_SECONDS * 1000):
                node.recv()


async def discover(seconds: float, port: int = PORT) -> Discovered:
    """Return the brokers among the peers of the group, after so many seconds."""
    _library()
    return await asyncio.to_thread(_look, seconds, port)


def _look(seconds: float, port: int) -> Discovered:
    end, peers = monotonic() + seconds, Peers()
    with _node("", {}, port) as node:
        while (left := end - monotonic()) > 0:
            if node.socket().poll(left * 1000):
                peers.hear(node.recv())
    return peers.discovered()


class Peers:
    """The peers of the group, by what a node hears of them."""

    def __init__(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._joined: set[bytes] = set()

    def hear(self, frames: Sequence[bytes]) -> None:
        """Take an event of a node: its type, the peer, the name of the peer, and more."""
        kind, peer, _, *more = frames
        if kind == b"ENTER" and len(self._headers) < FOUND_MAX:
            self._headers[peer] = more[0]
        elif kind == b"JOIN" and more[0] == GROUP.encode() and peer in self._headers:
            self._joined.add(peer)
        elif kind == b"EXIT":
            self._headers.pop(peer, None)
            self._joined.discard(peer)

    def discovered(self) -> Discovered:
        """Return the brokers in the group, and the number of peers there that are none."""
        return one_of_each([_broker_of(self._headers[peer]) for peer in self._joined])


def _broker_of(headers: bytes) -> FoundBroker | None:
    """Return the broker of the headers of a peer; None if a broker could not have them."""
    with suppress(ValueError, RecursionError):
        found = json.loads(headers)
        if isinstance(found, dict):
            texts = {key: found.get(f"{HEADER}{key}") for key in ("name", "id", "urls")}
            return found_broker({key.encode(): str(text or "").encode() for key, text in texts.items()})
    return None


@contextmanager
def _node(name: str, headers: Mapping[str, str], port: int) -> Iterator[Any]:
    context = zmq.Context()
    try:
        node = _library().Pyre(name or None, ctx=context)
        node.set_port(str(port).encode())
        for header, text in headers.items():
            node.set_header(header, text)
        node.join(GROUP)
        node.start()
        try:
            yield node
        finally:
            node.stop()
    finally:
        # The library leaves sockets open.
        context.destroy(linger=0)


def _library() -> Any:
    """Return the library. Raises `NotInstalled`."""
    try:
        import pyre
    except ImportError:
        raise NotInstalled("zeromq-pyre is missing: pip install 'malamute[discovery]'") from None
    return pyre
