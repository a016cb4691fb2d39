"""Bare ZeroMQ: `zmq.proxy`, which is C alone, and our relay of a few lines. Nothing is stored or confirmed.

The proxy runs twice in one process: for PUB and SUB on the first two ports, for REQ and REP on the others.

    python -m lab.peers.zeromq proxy|relay PORT...
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import zmq

from lab.peers.server import HOST
from lab.peers.work import NAME, PeerWork, ask_one_by_one
from malamute.bench import relay
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch

TOPIC = NAME.encode()
READY = "ready"
AT_ONCE = 100
"""Messages that are taken from one socket before the next one's turn."""

TIMEOUT_MS = int(TIMEOUT_SECONDS * 1e3)

Context = zmq.Context[zmq.Socket[bytes]]


# The servers


def serve_proxy(ports: Sequence[int]) -> None:
    """Pass on messages of publishers, and requests with their replies, until the process is ended."""
    context: Context = zmq.Context()
    kinds = (zmq.XSUB, zmq.XPUB, zmq.ROUTER, zmq.DEALER)
    sockets = [_socket(context, kind) for kind in kinds]
    for socket, port in reversed([*zip(sockets, ports, strict=True)]):
        socket.bind(f"tcp://{HOST}:{port}")
    threading.Thread(target=zmq.proxy, args=sockets[2:], daemon=True).start()
    zmq.proxy(*sockets[:2])


def serve_relay(ports: Sequence[int]) -> None:
    """Be the bare ROUTER."""
    router = _socket(zmq.Context(), zmq.ROUTER)
    router.bind(f"tcp://{HOST}:{ports[0]}")
    relay.pass_on(router)


SERVERS = {"proxy": serve_proxy, "relay": serve_relay}


def _socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    """A socket that drops nothing, and whose memory is its only limit."""
    socket = context.socket(kind)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.RCVTIMEO, TIMEOUT_MS)
    return socket


def _connected(context: Context, kind: int, work: PeerWork, place: int) -> zmq.Socket[bytes]:
    socket = _socket(context, kind)
    socket.connect(f"tcp://{work.host}:{work.ports[place]}")
    return socket


# The workloads


def publish(begin: Begin, work: PeerWork) -> Measured:
    """Publish, when all subscriptions have come. libzmq packs what waits into one write."""
    frames = [TOPIC, work.body]
    with zmq.Context() as context, _connected(context, zmq.XPUB, work, 0) as socket:
        ready = 0
        while ready < work.subscribers:
            ready += socket.recv()[1:].startswith(READY.encode())
        begin()
        stopwatch = Stopwatch()
        for _ in range(work.messages):
            socket.send_multipart(frames)
        return stopwatch.measured()


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """Subscribers with a socket each, read as they have something."""
    expected, received = work.messages * work.subscribers, 0
    with zmq.Context() as context, ExitStack() as stack:
        poller = zmq.Poller()
        for number in range(work.subscribers):
            socket = stack.enter_context(_connected(context, zmq.SUB, work, 1))
            socket.subscribe(TOPIC)
            socket.subscribe(f"{READY}{number}")  # each comes to the publisher, behind the one before
            poller.register(socket, zmq.POLLIN)
        begin()
        stopwatch = Stopwatch()
        while received < expected and (events := poller.poll(TIMEOUT_MS)):
            received += sum(_drain(socket) for socket, _ in events)
        return stopwatch.measured(received=received)


def _drain(socket: zmq.Socket[bytes]) -> int:
    """Take what is there. Returns how many messages."""
    for taken in range(AT_ONCE):
        try:
            socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return taken
    return AT_ONCE


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request with its body."""
    with zmq.Context() as context, _connected(context, zmq.REP, work, 3) as socket:
        begin()
        stopwatch = Stopwatch()
        for _ in range(work.messages):
            socket.send(socket.recv())
        return stopwatch.measured()


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Make a request when the one before it is answered."""
    body = work.body
    with zmq.Context() as context, _connected(context, zmq.REQ, work, 2) as socket:

        def ask_once() -> None:
            socket.send(body)
            socket.recv()

        return ask_one_by_one(begin, work, ask_once)


if __name__ == "__main__":
    SERVERS[sys.argv[1]]([int(port) for port in sys.argv[2:]])
