"""A bare ROUTER that passes requests to a worker and replies back: the least that a broker could do.

The relay stores nothing and drops messages that do not fit: its figure is the cost of a round trip by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Never

import zmq

from malamute.bench.processes import Measured
from malamute.bench.workloads import Workload

WORKER, ASKER = b"worker", b"asker"
TIMEOUT_MS = 60_000


def relay(begin: Callable[[str], object]) -> Measured:
    """Pass frames on, until the process is ended. The first report is the endpoint."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        begin(f"tcp://127.0.0.1:{port}")
        pass_on(router)


def pass_on(router: zmq.Socket[bytes]) -> Never:
    """Pass frames on without end."""
    while True:
        sender, recipient, body = router.recv_multipart()
        router.send_multipart([recipient, sender, body])


def answer(begin: Callable[[], object], workload: Workload) -> Measured:
    """Answer each request with its own body."""
    with zmq.Context() as context, _dealer(context, workload.url, WORKER) as socket:
        socket.send_multipart([WORKER, b"are we connected?"])
        socket.recv_multipart()
        begin()
        for _ in range(workload.messages):
            socket.send_multipart(socket.recv_multipart())
    return {}


def ask(begin: Callable[[], object], workload: Workload) -> Measured:
    """Make a request when the one before it is answered; how long each took."""
    latencies = []
    body = workload.body
    with zmq.Context() as context, _dealer(context, workload.url, ASKER) as socket:
        socket.send_multipart([ASKER, b"are we connected?"])
        socket.recv_multipart()
        begin()
        first_ns = time.monotonic_ns()
        for _ in range(workload.messages):
            start_ns = time.monotonic_ns()
            socket.send_multipart([WORKER, body])
            socket.recv_multipart()
            latencies.append(time.monotonic_ns() - start_ns)
    return {
        "start_ns": first_ns,
        "end_ns": time.monotonic_ns(),
        "received": workload.messages,
        "latencies": latencies,
    }


def _dealer(context: zmq.Context[zmq.Socket[bytes]], url: str, identity: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, identity)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, TIMEOUT_MS)
    socket.connect(url)
    return socket
