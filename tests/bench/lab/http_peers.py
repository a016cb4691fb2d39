"""What the processes of `make bench ARGS="gateway"` do: HTTP on plain sockets, which takes little of them."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from malamute.bench.processes import Measured
from malamute.bench.workloads import QUIET_SECONDS, Begin, Stopwatch
from malamute.errors import MalamuteError

READ_BYTES = 1 << 18

DATA = b"\ndata: "
"""What each event has once, be it a message or a gap."""

GAP = b"event: "
"""What an event has that is no message."""


class HttpAddress(NamedTuple):
    """Where a gateway listens."""

    host: str
    port: int


class EventCounter:
    """A connection that follows a stream and counts its events. It fails where one is no message."""

    def __init__(self, address: HttpAddress, path: str) -> None:
        self.count = 0
        self.socket = socket.create_connection(address, QUIET_SECONDS)
        self.socket.sendall(_head("GET", path, address))
        self._tail = b""
        seen = b""
        while b"\nid: " not in seen:
            seen += self._received()
        if not seen.startswith(b"HTTP/1.1 200"):
            raise MalamuteError(f"expected events, but the gateway says {seen[:300]!r}")
        self._look(seen)

    def read(self) -> int:
        """Take what is there, or wait for it. Returns how many events ended in it."""
        before = self.count
        self._look(self._received())
        return self.count - before

    def _received(self) -> bytes:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise MalamuteError("the gateway has closed a connection")
        return data

    def _look(self, data: bytes) -> None:
        data = self._tail + data
        if GAP in data:
            raise MalamuteError(f"expected messages alone: {data[data.index(GAP) :][:300]!r}")
        self.count += data.count(DATA)
        self._tail = data[1 - len(DATA) :]


def _head(method: str, path: str, address: HttpAddress, fields: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: {address.host}:{address.port}\r\n{fields}\r\n".encode()


def read_page(begin: Begin, address: HttpAddress, path: str, events: int) -> Measured:
    """Read so many events of one page."""
    begin()
    stopwatch = Stopwatch()
    page = EventCounter(address, path)
    while page.count < events:
        page.read()
    page.socket.close()
    return stopwatch.measured()


def read_pages(begin: Begin, address: HttpAddress, path: str, pages: int, events: int) -> Measured:
    """Follow a stream by many pages, until so many events have come to all of them together.

    `path` has `{}` where the number of the page is to be.
    """
    from malamute.door.files import raise_file_limit

    raise_file_limit()
    selector = selectors.DefaultSelector()
    for number in range(pages):
        page = EventCounter(address, path.format(number))
        selector.register(page.socket, selectors.EVENT_READ, page)
    begin()
    stopwatch, count = Stopwatch(), 0
    while count < events:
        ready = selector.select(QUIET_SECONDS)
        if not ready:
            raise MalamuteError(f"{count:,} events came, expected {events:,}")
        count += sum(key.data.read() for key, _ in ready)
    measured = stopwatch.measured()
    # Others look at the memory of the gateway while all pages are here.
    begin()
    return measured


def post(
    begin: Begin, address: HttpAddress, path: str, kind: str, body: bytes, connections: int, requests: int
) -> Measured:
    """Post this body so often, over several connections that are kept, one request at a time on each."""
    words = _head("POST", path, address, f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n") + body
    begins = threading.Barrier(connections + 1)

    def play(share: int) -> None:
        with socket.create_connection(address, QUIET_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begins.wait()
            for _ in range(share):
                connection.sendall(words)
                _check(connection)

    with ThreadPoolExecutor(connections) as threads:
        shares = [len(range(place, requests, connections)) for place in range(connections)]
        played = [threads.submit(play, share) for share in shares]
        begin()
        begins.wait()
        stopwatch = Stopwatch()
        for one in played:
            one.result()
        return stopwatch.measured()


def _check(connection: socket.socket) -> None:
    """Read an answer whose body is JSON in a line."""
    answer = b""
    while not answer.endswith(b"}\n"):
        data = connection.recv(READ_BYTES)
        answer += data
        if not data or not answer.startswith(b"HTTP/1.1 201"[: len(answer)]):
            raise MalamuteError(f"expected that messages are stored: {answer[:300]!r}")


def get_ms(address: HttpAddress, path: str) -> float:
    """How long a page takes until all of it is here, in ms."""
    begun = time.perf_counter()
    with socket.create_connection(address, QUIET_SECONDS) as connection:
        connection.sendall(_head("GET", path, address, "connection: close\r\n"))
        answer = b"".join(iter(lambda: connection.recv(READ_BYTES), b""))
    if not answer.startswith(b"HTTP/1.1 200"):
        raise MalamuteError(f"expected {path}: {answer[:300]!r}")
    return (time.perf_counter() - begun) * 1e3
