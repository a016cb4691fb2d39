"""Clients that mean harm, on default settings: the others get what is theirs, and memory has its limits.

Times are not judged here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from rig_daemon import MIB, Daemon
from rig_peer import Peer, peers
from rig_waiting import PATIENCE

import malamute
from malamute.config import Config
from malamute.protocol.messages import Query, Subscribe

BODY = bytes(100_000)
MESSAGES = 300
READERS = 5
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


@pytest.fixture
def broker(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker as users have it."""
    return new_daemon(Config()).start()


def connection(broker: Daemon) -> socket.socket:
    """A connection of bare bytes, that libzmq takes for a DEALER."""
    host, _, port = broker.url.removeprefix("tcp://").partition(":")
    made = socket.create_connection((host, int(port)), PATIENCE)
    made.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
    received = 0
    while received < len(GREETING) + 2:
        more = made.recv(4096)
        assert more
        received += len(more)
    return made


def serve_others(broker: Daemon) -> float:
    """A normal load: what was published arrives, and requests are answered. Returns the memory meanwhile."""
    most = 0.0
    with (
        malamute.connect(broker.url, timeout=PATIENCE) as client,
        malamute.connect(broker.url, timeout=PATIENCE) as reader,
    ):
        messages = iter(reader.subscribe("s", timeout=PATIENCE))
        for number in range(MESSAGES):
            # Confirmed: what the disk is too slow for would be refused, and nobody told.
            client.publish("s", "a", BODY, assurance="stored")
            assert next(messages).body == BODY
            if number % 100 == 0:
                most = max(most, broker.anonymous_mib)
    return max(most, broker.anonymous_mib)


@contextmanager
def clients_that_never_read(broker: Daemon) -> Iterator[list[Peer]]:
    """Clients that subscribe without limit and read nothing."""
    with peers(broker.url, READERS) as readers:
        for reader in readers:
            reader.socket.rcvhwm = 1
            reader.open()
            reader.send(Subscribe(1, "s", [["all", ""]], credit=-1, credit_bytes=-1))
        yield readers


def test_clients_that_never_read_hold_no_more_than_their_windows(broker: Daemon) -> None:
    before = broker.anonymous_mib
    window = broker.config.listen.send_bytes / MIB
    with clients_that_never_read(broker):
        # Beside the windows: what the normal load itself takes.
        assert serve_others(broker) - before < READERS * (window + 2) + 64


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["empty", "large"])
def test_frames_without_end_before_hello_are_cut_off(broker: Daemon, size: int) -> None:
    before = broker.anonymous_mib
    frames = b"\x01\x00" * 5000 if not size else b"\x03" + size.to_bytes(8, "big") + bytes(size)
    with connection(broker) as stranger:
        stranger.settimeout(1)
        with suppress(OSError):
            for _ in range(400 << 20 if not size else 400):
                stranger.sendall(frames)
                assert broker.anonymous_mib - before < 100
            pytest.fail("nobody ended the connection")
    serve_others(broker)


def test_answers_to_whoever_does_not_read_them_are_not_made(broker: Daemon) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        for number in range(500):
            client.publish(f"stream-{number:0>200}", "a", b"")
        client.publish("s", "a", b"", assurance="stored")
    before = broker.anonymous_mib
    with peers(broker.url, 1) as (greedy,):
        greedy.socket.rcvhwm = 1
        greedy.open()
        for ref in range(1, 500):
            greedy.send(Query(ref, "streams", {}))
        assert serve_others(broker) - before < 100


def test_connections_without_hello_leave_files_for_the_others(new_daemon: Callable[..., Daemon]) -> None:
    broker = new_daemon(Config()).start(files=400)
    host, _, port = broker.url.removeprefix("tcp://").partition(":")
    silent = []
    try:
        for _ in range(600):
            silent.append(socket.create_connection((host, int(port)), PATIENCE))
        serve_others(broker)
    finally:
        for each in silent:
            each.close()
