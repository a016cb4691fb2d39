"""Who takes nothing for long: real sockets whose buffers are full, and times that are only told."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from malamute.server import stalls as module
from malamute.server.stalls import CAN_TELL, FOR_EVER, Patience, Stalls

pytestmark = pytest.mark.skipif(not CAN_TELL, reason="this system does not tell what was not taken")

PEER = b"\x01" * 16
PATIENCE = 8.0
LATE = 4.0
STEP = 0.5


@pytest.fixture(params=["ipc", "tcp"])
def pair(request) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection, the broker's first."""
    if request.param == "ipc":
        near, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


def fill(near: socket.socket) -> None:
    """Send until the system takes nothing more; for a moment it still moves bytes to the other side."""
    while select.select([], [near], [], 0.1)[1]:
        with suppress(BlockingIOError):
            while True:
                near.send(bytes(65_536))


def empty(far: socket.socket) -> None:
    with suppress(BlockingIOError):
        while far.recv(1 << 20):
            pass


def look_until(stalls: Stalls, descriptor: int, first: float, last: float) -> bool:
    """Look as often as a session with work is probed; what the last look found."""
    now = first
    while now < last:
        assert not stalls.has_stalled(PEER, descriptor, now)
        now += STEP
    return stalls.has_stalled(PEER, descriptor, last)


def test_who_takes_nothing_has_stalled_when_the_time_is_over_and_not_before(pair):
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    fill(near)
    assert not look_until(stalls, near.fileno(), 100.0, 100.0 + PATIENCE - 0.001)
    assert stalls.has_stalled(PEER, near.fileno(), 100.0 + PATIENCE)


def test_looks_that_are_far_apart_say_nothing(pair):
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    fill(near)
    for step in range(10):
        assert not stalls.has_stalled(PEER, near.fileno(), 100.0 + step * PATIENCE)


def test_as_much_may_be_on_its_way_at_each_look_if_what_was_before_has_arrived(pair, monkeypatch):
    """As on a connection with a long way, where one probe is always under way."""
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    arrived = iter(range(1000))
    monkeypatch.setattr(module, "_state", lambda descriptor: module._State(descriptor, 7, next(arrived)))
    assert not look_until(stalls, near.fileno(), 100.0, 100.0 + 10 * PATIENCE)


def test_what_arrives_over_tcp_is_acknowledged():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as far,
    ):
        near, _ = server.accept()
        with near:
            before = module._acknowledged(near.fileno())
            near.sendall(bytes(1000))
            far.sendall(b"!")  # takes the acknowledgement with it
            assert far.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            assert near.recv(1) == b"!"
            while module._state(near.fileno()).left:
                far.sendall(b"!")
                assert near.recv(1) == b"!"
            assert module._acknowledged(near.fileno()) - before == 1000


def test_who_takes_something_now_and_then_has_not(pair):
    near, far = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    for step in range(10):
        fill(near)
        assert not stalls.has_stalled(PEER, near.fileno(), 100.0 + step * PATIENCE)
        empty(far)
        assert not stalls.has_stalled(PEER, near.fileno(), 100.0 + step * PATIENCE + PATIENCE / 2)


def test_who_has_taken_everything_has_not_however_long_nothing_is_sent(pair):
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    for step in range(10):
        assert not stalls.has_stalled(PEER, near.fileno(), 100.0 + step * PATIENCE)
    assert not len(stalls)


def test_another_connection_of_the_same_peer_begins_anew(pair):
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    fill(near)
    assert not look_until(stalls, near.fileno(), 100.0, 100.0 + PATIENCE - STEP)
    with near.dup() as other:
        assert not stalls.has_stalled(PEER, other.fileno(), 100.0 + PATIENCE)
    assert not look_until(stalls, near.fileno(), 200.0, 200.0 + PATIENCE - STEP)
    stalls.forget(PEER)
    assert not stalls.has_stalled(PEER, near.fileno(), 200.0 + PATIENCE)


def test_a_connection_that_is_closed_is_nothing_to_wait_for(pair):
    near, _ = pair
    stalls = Stalls(Patience(PATIENCE, LATE))
    fill(near)
    assert not stalls.has_stalled(PEER, near.fileno(), 100.0)
    descriptor = near.fileno()
    near.close()
    assert not stalls.has_stalled(PEER, descriptor, 100.0 + PATIENCE)
    assert not len(stalls)


def test_without_patience_nobody_is_looked_at(pair, monkeypatch):
    near, _ = pair
    fill(near)
    monkeypatch.setattr(module, "_silent_seconds", lambda descriptor: 1e9)
    never = Stalls(FOR_EVER)
    assert not never.has_stalled(PEER, near.fileno(), 100.0, heartbeat=1.0)
    assert not never.has_stalled(PEER, near.fileno(), 1e9, heartbeat=1.0)


@pytest.mark.parametrize("promised", [0.5, 5.0, 20.0])
def test_who_is_late_with_a_heartbeat_has_stalled_and_who_promised_none_has_not(pair, monkeypatch, promised):
    near, _ = pair
    silent = [promised + LATE - 0.001]
    monkeypatch.setattr(module, "_silent_seconds", lambda descriptor: silent[0])
    stalls = Stalls(Patience(PATIENCE, LATE))
    assert not stalls.has_stalled(PEER, near.fileno(), 100.0, promised)
    silent[0] = promised + LATE
    assert stalls.has_stalled(PEER, near.fileno(), 100.0, promised)
    assert not stalls.has_stalled(PEER, near.fileno(), 100.0)


def test_the_system_shows_since_when_nothing_has_come_over_tcp():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as far,
    ):
        near, _ = server.accept()
        with near:
            far.sendall(b"!")
            select.select([near], [], [])
            assert module._silent_seconds(near.fileno()) == 0.0, "something is there to be read"
            assert near.recv(1) == b"!"
            while (before := module._silent_seconds(near.fileno())) < 0.05:
                pass
            silent = before
            while silent >= before:  # this process may stand still between the two
                far.sendall(b"!")
                assert near.recv(1) == b"!"
                silent = module._silent_seconds(near.fileno())


def test_of_another_connection_and_of_none_the_system_does_not_show():
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"!")
        assert near.recv(1) == b"!"
        assert module._silent_seconds(near.fileno()) == 0.0
        descriptor = near.fileno()
    assert module._silent_seconds(descriptor) == 0.0


def test_a_connection_that_libzmq_closes_between_two_looks_at_it_is_silent_for_no_time(monkeypatch):
    """Its own thread closes it, at any moment."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        near, _ = server.accept()
        look = module._tcp_info

        def look_and_close(descriptor: int) -> bytes:
            info = look(descriptor)
            near.close()
            return info

        monkeypatch.setattr(module, "_tcp_info", look_and_close)
        assert not Stalls(Patience(PATIENCE, LATE)).has_stalled(PEER, near.fileno(), 100.0, heartbeat=5.0)
