"""A TCP relay between clients and a broker that breaks connections in every way a network does."""

import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from free_ports import free_port

PIECE_BYTES = 16_384
KEPT_BYTES = 256 * 1024
"""Bytes that the relay holds for one side before it takes no more from the other."""


class Link(NamedTuple):
    """What a network does to a direction of a connection. TCP hides what it loses or reorders: it is late.

    All is late by `delay_seconds`, and a part of the pieces, `late`, by `late_seconds` more, with all that is
    behind them. No more than `bytes_per_second` go through, if that is not 0; `kept_bytes` may be under way.
    """

    delay_seconds: float = 0.0
    late: float = 0.0
    late_seconds: float = 0.2
    bytes_per_second: int = 0
    kept_bytes: int = KEPT_BYTES


class Pipe:
    """What is under way to one end, and when each piece arrives."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._last = 0.0

    def put(self, piece: bytes, link: Link, chance: random.Random) -> None:
        """Send a piece: it arrives behind all others."""
        due = time.monotonic() + link.delay_seconds
        if link.late and chance.random() < link.late:
            due += link.late_seconds
        self._last = max(self._last, due)
        if link.bytes_per_second:
            self._last += len(piece) / link.bytes_per_second
        self._pieces.append((self._last, piece))
        self.size_bytes += len(piece)

    def arrived(self) -> bytes:
        """What has arrived by now."""
        now, found = time.monotonic(), []
        while self._pieces and self._pieces[0][0] <= now:
            found.append(self._pieces.popleft()[1])
        data = b"".join(found)
        self.size_bytes -= len(data)
        return data

    @property
    def due(self) -> float:
        """When the next piece arrives."""
        return self._pieces[0][0] if self._pieces else float("inf")


class Proxy:
    """Relays from `url` to a target. All its sockets live on one thread."""

    def __init__(self, target: str) -> None:
        host, _, number = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(number))
        port = free_port()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setblocking(False)
        self.url = f"tcp://127.0.0.1:{port}"
        self.cuts = 0
        """Connections that were cut."""
        self.carried = 0
        """Bytes that went through, in both directions."""
        self._other: dict[socket.socket, socket.socket] = {}
        self._waiting: dict[socket.socket, bytearray] = {}
        self._bytes_left: int | None = None
        self._stalled = self._refusing = self._muted = False
        self._link = Link()
        self._chance = random.Random(1)
        self._pipes: dict[socket.socket, Pipe] = {}
        self._brokers: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lock = threading.RLock()
        self._bell, self._rung = socket.socketpair()
        self._selector.register(self._rung, selectors.EVENT_READ)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def cut(self) -> None:
        """Reset every connection, now."""
        with self._lock:
            self._cut_all()

    def cut_after(self, size_bytes: int) -> None:
        """Reset every connection as soon as so many bytes more went through: often within a frame."""
        with self._lock:
            self._bytes_left = size_bytes

    def stall(self) -> None:
        """Carry nothing any more, and break nothing: to both sides the other one is silent."""
        with self._lock:
            self._stalled = True

    def mute(self) -> None:
        """Carry nothing from the broker any more, and all to it: its answers are lost with it."""
        with self._lock:
            self._muted = True
            for end in self._other:
                self._watch(end)
        self._ring()

    def impair(self, link: Link) -> None:
        """Carry everything as a bad link does, from now on."""
        with self._lock:
            self._link = link
        self._ring()

    def refuse(self) -> None:
        """Reset every connection, and every new one."""
        with self._lock:
            self._refusing = True
            self._cut_all()

    def relent(self) -> None:
        """Carry everything again, as a good link does."""
        with self._lock:
            self._link = Link()
            self._stalled = self._refusing = self._muted = False
            for end in self._other:
                self._watch(end)
        self._ring()

    def close(self) -> None:
        """End it."""
        self._ending = True
        self._ring()
        self._thread.join()
        self._cut_all()
        for end in (self._listener, self._bell, self._rung):
            end.close()
        self._selector.close()

    def _ring(self) -> None:
        self._bell.send(b"!")

    def _run(self) -> None:
        while not self._ending:
            due = min((pipe.due for pipe in self._pipes.values()), default=float("inf"))
            wait = None if due == float("inf") else max(0.0, due - time.monotonic())
            ready = self._selector.select(wait)
            with self._lock:
                for key, events in ready:
                    self._serve(key.fileobj, events)
                self._arrive()

    def _arrive(self) -> None:
        """Hand on what has arrived."""
        for end, pipe in [*self._pipes.items()]:
            if end in self._other and (data := pipe.arrived()):
                self._waiting[end] += data
                try:
                    self._give(end)
                except OSError:
                    self._drop(end)

    def _serve(self, end: object, events: int) -> None:
        assert isinstance(end, socket.socket)
        if end is self._rung:
            end.recv(PIECE_BYTES)
        elif end is self._listener:
            self._accept()
        elif end not in self._other:
            return  # cut a moment ago
        elif self._stalled:
            self._selector.unregister(end)
        else:
            try:
                if events & selectors.EVENT_READ:
                    self._take(end)
                if events & selectors.EVENT_WRITE and end in self._other:
                    self._give(end)
            except OSError:
                self._drop(end)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._refusing:
                raise ConnectionRefusedError
            broker = socket.create_connection(self._target, timeout=5)
        except OSError:
            _reset(client)
            return
        for end, other in ((client, broker), (broker, client)):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other[end] = other
            self._waiting[end] = bytearray()
            self._pipes[end] = Pipe()
        self._brokers.add(broker)
        for end in (client, broker):
            self._watch(end)

    def _take(self, end: socket.socket) -> None:
        data = end.recv(min(PIECE_BYTES, self._link.kept_bytes))
        if not data:
            self._drop(end)
            return
        other = self._other[end]
        cutting = self._bytes_left is not None and len(data) >= self._bytes_left
        if cutting:
            data = data[: self._bytes_left]
        elif self._bytes_left is not None:
            self._bytes_left -= len(data)
        self.carried += len(data)
        self._pipes[other].put(data, self._link, self._chance)
        self._waiting[other] += self._pipes[other].arrived()
        self._give(other)
        if cutting:
            self._bytes_left = None
            self._cut_all()

    def _give(self, end: socket.socket) -> None:
        waiting = self._waiting[end]
        if waiting:
            with suppress(BlockingIOError):
                del waiting[: end.send(waiting)]
        self._watch(end)
        self._watch(self._other[end])

    def _watch(self, end: socket.socket) -> None:
        muted = self._muted and end in self._brokers
        other = self._other[end]
        full = muted or len(self._waiting[other]) + self._pipes[other].size_bytes > self._link.kept_bytes
        events = (0 if full else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self._waiting[end] else 0)
        known = end in self._selector.get_map()
        if known and not events:
            self._selector.unregister(end)
        elif known:
            self._selector.modify(end, events)
        elif events:
            self._selector.register(end, events)

    def _cut_all(self) -> None:
        while self._other:
            self.cuts += 1
            self._drop(next(iter(self._other)))

    def _drop(self, end: socket.socket) -> None:
        for one in (end, self._other[end]):
            del self._other[one], self._waiting[one], self._pipes[one]
            self._brokers.discard(one)
            if one in self._selector.get_map():
                self._selector.unregister(one)
            _reset(one)


def _reset(end: socket.socket) -> None:
    # Lingering for no time sends a reset instead of an orderly end.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
