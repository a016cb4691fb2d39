"""The floor: the least that a server of pyzmq with a writer thread and msgpack can take for our works.

A message is a msgpack of recipient, number and body. One without a recipient is published: it is answered
when it is stored. A request for the worker is stored first by a server that stores; the reply only passes.

    python -m lab.peers.floor relay|lmdb|log DIRECTORY PORT
"""

from __future__ import annotations

import os
import socket as sockets
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Never

import lmdb
import msgpack
import zmq

from lab.peers.server import HOST
from lab.peers.work import PeerWork, ask_one_by_one
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch

WORKER, CLIENT = b"worker", b"client"
STORE_BYTES = 1 << 28
LOG_BYTES = 1 << 24
TIMEOUT_MS = int(TIMEOUT_SECONDS * 1e3)

Frames = Sequence[bytes]
Store = Callable[[Sequence[bytes]], None]
"""Makes bodies durable."""


# The server


def _lmdb_store(directory: Path) -> Store:
    """One transaction for a group, as our store has it."""
    environment = lmdb.open(str(directory), map_size=STORE_BYTES)
    number = 0

    def store(bodies: Sequence[bytes]) -> None:
        nonlocal number
        with environment.begin(write=True) as transaction:
            for body in bodies:
                number += 1
                transaction.put(number.to_bytes(8, "big"), body, append=True)

    return store


def _log_store(directory: Path) -> Store:
    """One write and one fdatasync for a group, to a file that has its size already."""
    descriptor = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, bytes(LOG_BYTES), 0)
    os.fsync(descriptor)
    place = 0

    def store(bodies: Sequence[bytes]) -> None:
        nonlocal place
        record = b"".join(bodies)
        place = place if place + len(record) <= LOG_BYTES else 0
        os.pwrite(descriptor, record, place)
        os.fdatasync(descriptor)
        place += len(record)

    return store


STORES = {"lmdb": _lmdb_store, "log": _log_store}


class _Writer:
    """A thread that stores all that waits as one group, and wakes the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: SimpleQueue[tuple[bytes, Frames]] = SimpleQueue()
        self.put = self._waiting.put
        self.done: deque[Frames] = deque()
        self.woken, self._wake = sockets.socketpair()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> Never:
        while True:
            group = [self._waiting.get()]
            while not self._waiting.empty():
                group.append(self._waiting.get())
            self._store([body for body, _ in group])
            self.done.extend(frames for _, frames in group)
            self._wake.send(b"!")


def serve(kind: str, directory: Path, port: int) -> Never:
    """Serve until the process is ended."""
    router = _socket(zmq.Context(), zmq.ROUTER)
    router.bind(f"tcp://{HOST}:{port}")
    writer = _Writer(STORES[kind](directory)) if kind in STORES else None
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    if writer:
        poller.register(writer.woken, zmq.POLLIN)
    while True:
        for source, _ in poller.poll():
            if source is router:
                _take_in(router, writer)
            elif writer:
                writer.woken.recv(16)
                while writer.done:
                    router.send_multipart(writer.done.popleft())


def _take_in(router: zmq.Socket[bytes], writer: _Writer | None) -> None:
    sender, packed = router.recv_multipart()
    recipient, number, body = msgpack.unpackb(packed)
    if recipient == WORKER or not recipient:
        answer = [recipient or sender, msgpack.packb((sender, number, body if recipient else b""))]
        if writer:
            writer.put((packed, answer))
            return
    else:
        answer = [recipient, msgpack.packb((sender, number, body))]
    router.send_multipart(answer)


# The clients


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, TIMEOUT_MS if kind == zmq.DEALER else -1)
    return socket


def _connect(context: zmq.Context[zmq.Socket[bytes]], work: PeerWork, name: bytes) -> zmq.Socket[bytes]:
    """A DEALER whom the server knows."""
    socket = _socket(context, zmq.DEALER)
    socket.set(zmq.ROUTING_ID, name)
    socket.connect(f"tcp://{work.host}:{work.port}")
    _send(socket, b"", 0, b"")
    socket.recv()
    return socket


def _send(socket: zmq.Socket[bytes], recipient: bytes, number: int, body: bytes) -> None:
    socket.send(msgpack.packb((recipient, number, body)))


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request with its body."""
    with zmq.Context() as context, _connect(context, work, WORKER) as socket:
        begin()
        stopwatch = Stopwatch()
        for _ in range(work.messages):
            _send(socket, *msgpack.unpackb(socket.recv()))
        return stopwatch.measured()


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Make a request when the one before it is answered."""
    return _one_by_one(begin, work, WORKER)


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """Publish a message when the one before it is stored."""
    return _one_by_one(begin, work, b"")


def _one_by_one(begin: Begin, work: PeerWork, recipient: bytes) -> Measured:
    body = work.body
    with zmq.Context() as context, _connect(context, work, CLIENT) as socket:

        def once() -> None:
            _send(socket, recipient, 1, body)
            msgpack.unpackb(socket.recv())

        return ask_one_by_one(begin, work, once)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
