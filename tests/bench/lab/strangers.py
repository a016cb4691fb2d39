"""Strangers: connections of those whom a broker does not know, from a process of their own."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from malamute.bench.processes import Measured, WorkloadProcess
from malamute.bench.workloads import Begin
from malamute.config.accounts import read_public_key
from malamute.server.process import BrokerProcess

FLOOD_NICENESS = 19
"""Those who flood have a machine of their own. Here they get what processor time the others leave."""

FLOOD_ADDRESS = "127.0.0.2"
"""Where they are: what a broker does about an address is not about those whom it knows."""

OPEN_SECONDS = 0.25
"""How long each connection of a stranger stays, so that its handshake comes to its end."""


@contextmanager
def flooding(broker: BrokerProcess | None, server_key: str, rate: int, counts: list[int]) -> Iterator[None]:
    """Strangers come during the block to the second listener of a broker, if there is one.

    `counts` gets how many tried.
    """
    if broker is None:
        yield
        return
    with WorkloadProcess(flood, broker.endpoints[1], server_key, rate) as flooder:
        flooder.get()
        flooder.go()
        flooder.get()
        yield
        flooder.go()
        counts.append(flooder.get()["count"])


def flood(begin: Begin, url: str, server_key_file: str, rate: int) -> Measured:
    """Connect with keys that nobody knows, so often in a second, until it is time to stop."""
    from malamute.door.files import raise_file_limit

    os.nice(FLOOD_NICENESS)
    raise_file_limit()
    url = url.replace("tcp://", f"tcp://{FLOOD_ADDRESS}:0;")
    stop = threading.Event()
    measured: Measured = {}
    public = read_public_key(Path(server_key_file)).encode()
    begin()
    thread = threading.Thread(target=lambda: measured.update(_connect_on(url, public, rate, stop)))
    thread.start()
    begin()
    stop.set()
    thread.join()
    return measured


def _connect_on(url: str, server_key: bytes, rate: int, stop: threading.Event) -> Measured:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * rate)
    public, secret = zmq.curve_keypair()
    opened: deque[tuple[float, zmq.Socket[bytes]]] = deque()
    start, count = time.monotonic(), 0
    while not stop.is_set():
        now = time.monotonic()
        while opened and opened[0][0] < now - OPEN_SECONDS:
            opened.popleft()[1].close(0)
        if count >= (now - start) * rate:
            time.sleep(1 / rate)
            continue
        try:
            stranger = context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            if error.errno != errno.EMFILE:
                raise
            # Those that were closed are not gone yet: on a busy machine they are the last to get their time.
            time.sleep(OPEN_SECONDS)
            continue
        stranger.curve_publickey, stranger.curve_secretkey = public, secret
        stranger.curve_serverkey = server_key
        stranger.setsockopt(zmq.RECONNECT_IVL, -1)
        stranger.connect(url)
        opened.append((now, stranger))
        count += 1
    for _, stranger in opened:
        stranger.close(0)
    context.term()
    return {"count": count}
