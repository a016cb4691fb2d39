"""Connections that have not said HELLO: for how long they stay, how many, and with how many bytes.

Time is what the test says. Nothing sleeps: whoever waits, waits for the monitor or for an end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import zmq

from malamute.errors import TooLarge
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import TOKEN_BYTES_MAX
from malamute.protocol.messages import Hello, Ok, Welcome
from malamute.server import guard as module
from malamute.server import transport as transport_module
from malamute.server.authentication import address_of, user_of
from malamute.server.edge import RefusedConnection
from malamute.server.flow import Windows
from malamute.server.guard import HELLO_BYTES_MAX, PendingConnection, Rules
from malamute.server.transport import Transport

PEER = b"\x01" * 16
WELCOME = Welcome(2, PEER, b"b", False, "", {})
PATIENCE = 60
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x10" + PEER
MORE = b"\x01\x00"
"""An empty frame that another one follows."""


@pytest.fixture
def make(context, tmp_path) -> Iterator[Callable[..., Transport]]:
    made: list[Transport] = []

    def make(**rules) -> Transport:
        made.append(Transport(context, {}, Windows(), Rules(**rules)))
        made[-1].bind("tcp://127.0.0.1:*")
        made[-1].bind(f"ipc://{tmp_path}/broker")
        return made[-1]

    yield make
    for transport in made:
        transport.close(0)


class Stranger:
    """A connection of bare bytes, that libzmq takes for a DEALER."""

    def __init__(self, transport: Transport, place: int = 0) -> None:
        kind, _, address = transport.endpoints[place].partition("://")
        if kind == "tcp":
            host, _, port = address.partition(":")
            self.socket = socket.create_connection((host, int(port)), PATIENCE)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE)
            self.socket.connect(address)
        self.socket.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
        received = 0
        while received < len(GREETING) + 2:
            received += len(self.socket.recv(4096))

    def say(self, *frames: bytes) -> None:
        for place, frame in enumerate(frames):
            self.socket.sendall(bytes([place < len(frames) - 1, len(frame)]) + frame)

    @property
    def is_open(self) -> bool:
        """Whether it stands; messages to it are taken."""
        self.socket.setblocking(False)
        try:
            while received := self.socket.recv(4096):
                assert received
            return False
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(PATIENCE)

    def until_ended(self, transport: Transport, now: float) -> None:
        """Wait until the broker has ended it."""
        while self.is_open:
            assert transport.guard.monitor.poll(PATIENCE * 1000)
            transport.watch(now, [transport.guard.monitor])

    def close(self) -> None:
        self.socket.close()


def arrive(transport: Transport, now: float, place: int = 0) -> Stranger:
    """A new connection that the guard knows of."""
    count = len(transport.guard.waiting)
    stranger = Stranger(transport, place)
    while len(transport.guard.waiting) == count:
        assert transport.guard.monitor.poll(PATIENCE * 1000)
        transport.guard.update(now)
    return stranger


def greet(transport: Transport, stranger: Stranger) -> None:
    """Let it say HELLO, and welcome it."""
    stranger.say(*encode(Hello([2], "")))
    assert transport.socket.poll(PATIENCE * 1000)
    assert list(transport.receive()) == [(PEER, Hello([2], ""))]
    transport.send(PEER, WELCOME)


@pytest.mark.parametrize("place", [0, 1])
def test_a_connection_without_hello_ends_at_its_deadline(make, place):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0, place)
    transport.watch(109.9, ())
    assert stranger.is_open
    assert transport.guard.waiting
    refused: list[RefusedConnection] = []
    transport.guard.on_refusal = refused.append
    transport.watch(110.0, ())
    assert not transport.guard.waiting
    assert refused == [RefusedConnection("" if place else "127.0.0.1", "", "no HELLO in time")]
    stranger.until_ended(transport, 110.0)
    stranger.close()


def test_a_hello_that_the_broker_has_not_read_yet_is_in_time(make):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    stranger.say(*encode(Hello([2], "")))
    assert transport.socket.poll(PATIENCE * 1000)
    transport.drained = False
    transport.watch(105.0, [transport.socket])
    transport.watch(159.9, [transport.socket])
    assert stranger.is_open
    assert list(transport.receive()) == [(PEER, Hello([2], ""))]
    transport.send(PEER, WELCOME)
    transport.watch(200.0, ())
    assert stranger.is_open
    stranger.close()


@pytest.mark.parametrize(("drained", "ends"), [(True, 110.1), (False, 160.0)])
def test_who_says_nothing_is_late_when_all_that_came_was_read_or_after_six_times_as_long(make, drained, ends):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    other = arrive(transport, 1000.0)
    other.say(*encode(Hello([2], "")))
    assert transport.socket.poll(PATIENCE * 1000)
    for now in (110.0, ends):
        transport.drained = drained
        assert len(transport.guard.waiting) == 2
        transport.watch(now, [transport.socket])
    assert len(transport.guard.waiting) == 1
    stranger.until_ended(transport, ends)
    stranger.close()
    other.close()


def test_what_libzmq_has_not_read_does_not_make_who_said_it_late(make):
    guard = make(hello_seconds=10).guard
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inode = os.fstat(ours.fileno()).st_ino
        guard.waiting[ours.fileno()] = PendingConnection(100.0, inode, False, HELLO_BYTES_MAX, "")
        theirs.send(b"HELLO")
        for now, waiting in ((110.0, 1), (159.9, 1), (160.0, 0)):
            guard.read_until = now
            guard.check(now)
            assert len(guard.waiting) == waiting
        assert theirs.recv(1) == b""


def test_a_descriptor_that_was_a_sessions_and_is_another_connections_by_now_is_not_shut_down(make):
    """libzmq closes one and accepts another at any moment, and tells of it later."""
    guard = make(hello_seconds=10).guard
    ours, theirs = socket.socketpair()
    with ours, theirs:
        descriptor = ours.fileno()
        inode = os.fstat(descriptor).st_ino
        guard.waiting[descriptor] = PendingConnection(100.0, inode, False, HELLO_BYTES_MAX, "")
        guard.welcome(descriptor)
        later, client = socket.socketpair()
        with later, client:
            os.dup2(later.fileno(), descriptor)
            guard.end(descriptor, "no heartbeat")
            client.send(b"HELLO")
            assert later.recv(5) == b"HELLO"


def test_a_connection_with_a_session_stays(make):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    transport.watch(1000.0, ())
    assert stranger.is_open
    assert transport.guard.next_check() is None
    stranger.close()


def test_when_its_session_has_ended_a_connection_has_to_begin_another(make):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    transport.watch(500.0, ())
    transport.forget(PEER)
    transport.watch(509.9, ())
    assert stranger.is_open
    transport.watch(510.0, ())
    stranger.until_ended(transport, 510.0)
    stranger.close()


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_was_sent_on_a_connection_takes_no_room_when_it_has_ended(make, forgotten):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    assert transport.flows.unread > 0
    if forgotten:
        transport.forget(PEER)
    stranger.close()
    while PEER in transport.flows:
        assert transport.guard.monitor.poll(PATIENCE * 1000)
        transport.watch(101.0, [transport.guard.monitor])
    assert transport.flows.unread == 0


def test_a_hello_that_was_refused_is_none(make):
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    stranger.say(*encode(Hello([2], "")))
    assert transport.socket.poll(PATIENCE * 1000)
    list(transport.receive())
    transport.watch(110.0, ())
    stranger.until_ended(transport, 110.0)
    stranger.close()


def test_a_peer_that_connects_again_is_known_by_its_new_connection(make):
    transport = make(hello_seconds=10)
    old = arrive(transport, 100.0)
    greet(transport, old)
    new = arrive(transport, 200.0)
    greet(transport, new)
    transport.watch(300.0, ())
    assert new.is_open
    old.close()
    new.close()


@pytest.mark.skipif(not module._COUNTED, reason="this system does not tell how many bytes came")
def test_frames_without_end_are_ended_after_so_many_bytes(make, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    transport = make()
    refused: list[RefusedConnection] = []
    transport.guard.on_refusal = refused.append
    stranger = arrive(transport, 100.0)
    sent = len(GREETING) + 2 + len(READY)
    stranger.socket.sendall(MORE * ((HELLO_BYTES_MAX - sent) // 2))
    transport.watch(101.0, ())
    assert transport.guard.waiting
    stranger.socket.sendall(MORE)
    while transport.guard.waiting:  # until the system counts it
        transport.watch(102.0, ())
    assert [refusal.reason for refusal in refused] == ["too many bytes before HELLO"]
    stranger.until_ended(transport, 102.0)
    stranger.close()


def test_however_many_wait_there_is_room_for_a_hello_with_the_longest_token():
    hello = encode(Hello([2], "a" * 255, token="t" * TOKEN_BYTES_MAX))
    assert len(GREETING) + len(READY) + sum(map(len, hello)) + 2_048 <= module.HELLO_BYTES_MIN


@pytest.mark.skipif(not module._COUNTED, reason="this system does not tell how many bytes came")
def test_the_more_connections_wait_the_fewer_bytes_each_may_send(make, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    sent = len(GREETING) + 2 + len(READY)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 3 * (sent + 1000))
    monkeypatch.setattr(module, "HELLO_BYTES_MIN", 1)
    transport = make()
    alone = arrive(transport, 100.0)
    alone.socket.sendall(MORE * 500)
    others = [arrive(transport, 100.0) for _ in range(2)]
    transport.watch(101.0, ())
    transport.watch(101.0, ())
    assert len(transport.guard.waiting) == 3
    alone.socket.sendall(MORE)
    while len(transport.guard.waiting) == 3:  # until the system counts it
        transport.watch(102.0, ())
    alone.until_ended(transport, 102.0)
    assert all(other.is_open for other in others)
    for stranger in (alone, *others):
        stranger.close()


def test_a_flood_on_a_local_connection_is_ended(make, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    transport = make()
    stranger = arrive(transport, 100.0, 1)
    stranger.socket.setblocking(False)
    while transport.guard.waiting:
        with suppress(BlockingIOError):
            stranger.socket.send(MORE * 100_000)
        transport.watch(101.0, ())
    stranger.close()


def test_one_connection_too_many_ends_those_that_wait_for_long(make):
    transport = make(hello_seconds=10, waiting_max=2)
    strangers = [arrive(transport, 100.0 + second) for second in range(3)]
    transport.watch(100.9, ())
    assert all(stranger.is_open for stranger in strangers)
    transport.watch(101.0, ())
    assert len(transport.guard.waiting) == 2
    strangers[0].until_ended(transport, 101.0)
    transport.watch(109.9, ())
    assert strangers[1].is_open
    for stranger in strangers:
        stranger.close()


def test_when_descriptors_run_out_those_that_wait_for_longest_go_at_once(make):
    transport = make(open_max=2)
    strangers = [arrive(transport, 100.0) for _ in range(2)]
    transport.watch(100.0, ())
    assert len(transport.guard.waiting) == 2
    strangers.append(arrive(transport, 100.0))
    transport.watch(100.0, ())
    strangers[0].until_ended(transport, 100.0)
    assert strangers[1].is_open
    assert strangers[2].is_open
    for stranger in strangers:
        stranger.close()


def test_a_connection_that_goes_by_itself_is_forgotten(make):
    transport = make()
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    stranger.close()
    while PEER in transport.flows:
        assert transport.guard.monitor.poll(PATIENCE * 1000)
        transport.watch(101.0, [transport.guard.monitor])
    assert not transport._peers
    assert not transport._descriptors
    assert not transport.guard.waiting


def test_a_command_with_too_many_frames_is_refused_and_passed_over(make, monkeypatch):
    monkeypatch.setattr(transport_module, "PARTS_MAX", 5)
    monkeypatch.setattr(transport_module, "SKIP_PARTS", 10)
    transport = make()
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    stranger.say(*[b"\xc0"] * 5)
    stranger.say(*[b"\xc0"] * 6)
    stranger.say(*[b"\xc0"] * 100)
    refused = []
    while len(refused) < 2 or transport._skipping:
        assert transport.socket.poll(PATIENCE * 1000)
        refused += [error for _, error in transport.receive() if not isinstance(error, Hello)]
        if len(refused) == 2 and isinstance(refused[1], TooLarge) and not transport._skipping:
            break
    assert not isinstance(refused[0], TooLarge)
    assert isinstance(refused[1], TooLarge)
    stranger.until_ended(transport, 101.0)
    stranger.close()


def test_one_too_many_for_the_limit_is_reported(make, context):
    """The error to a refused session reaches it before its connection ends."""
    transport = make(hello_seconds=10)
    stranger = arrive(transport, 100.0)
    greet(transport, stranger)
    transport.watch(100.0, ())
    transport.send(PEER, Ok(13, 0))
    transport.forget(PEER)
    transport.watch(100.0 + module.CHECK_SECONDS, ())
    wanted = b"".join(encode(Ok(13, 0)))
    received = b""
    while wanted not in received:
        more = stranger.socket.recv(4096)
        assert more, "the connection ended first"
        received += more
    assert decode([wanted]) == Ok(13, 0)
    stranger.close()


def test_who_is_gone_before_it_is_looked_at_has_no_address(tmp_path):
    with socket.socket() as connection:
        unconnected = connection.fileno()
        assert module._address(unconnected) == ""
    assert module._address(unconnected) == ""
    with open(tmp_path / "file", "w") as file:
        assert module._address(file.fileno()) == ""


def test_a_descriptor_that_is_another_files_by_now_is_left_alone(make, tmp_path):
    guard = make(hello_seconds=10).guard
    with open(tmp_path / "file", "w") as file:
        guard.end(file.fileno(), module.TOO_MANY_BYTES)
        assert not guard.refused
        file.write("it is open")


def test_a_frame_of_no_connection_has_no_descriptor_no_address_and_no_user():
    part = zmq.Frame(b"x")
    assert (module.descriptor_of(part), address_of(part), user_of(part)) == (-1, "", "")


@pytest.mark.parametrize("name", ["", b"", (), "/a/path"])
def test_an_address_of_no_kind_is_none(monkeypatch, name):
    monkeypatch.setattr(socket.socket, "getpeername", lambda connection: name)
    with socket.socket() as connection:
        assert module._address(connection.fileno()) == ""
