"""What clients can make a broker hold, on default settings: the peak of its anonymous memory."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from secrets import token_bytes

import pytest
from rig_daemon import Daemon
from rig_peer import Peer, peer
from rig_waiting import PATIENCE

from malamute.errors import TooLarge
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import ITEMS_MAX
from malamute.protocol.messages import Answer, Error, Hello, Ping, Publish, Query, Stored

FRAME_BYTES = 60 * 1024 * 1024


MIB = 1024 * 1024
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x10"


def peak_until_answered(broker: Daemon, client: Peer) -> tuple[float, Error]:
    """The anonymous memory of the broker at its peak until it refuses what was sent."""
    most = broker.anonymous_mib
    for _ in range(int(PATIENCE * 100)):
        most = max(most, broker.anonymous_mib)
        if client.socket.poll(10):
            message = decode(client.socket.recv_multipart())
            if isinstance(message, Error):
                return most, message
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    "item", [b"\x90", b"\x80", b"\xa2ab", b"\x81\xa1a\x01"], ids=["lists", "maps", "texts", "ones"]
)
def test_a_large_frame_of_small_values_is_refused_before_they_are_made(broker: Daemon, item: bytes) -> None:
    """64 MiB of empty lists took 4.6 GB."""
    row = b"\xdd" + ITEMS_MAX.to_bytes(4, "big") + item * ITEMS_MAX
    rows = FRAME_BYTES // len(row)
    with peer(broker.url) as client:
        client.open()
        before = broker.anonymous_mib
        client.send_frames(b"\xdc" + rows.to_bytes(2, "big") + row * rows)
        most, error = peak_until_answered(broker, client)
    assert error.code == TooLarge.code
    # The frame itself, once as libzmq has it and once as bytes.
    assert most - before < 2 * FRAME_BYTES / 1024**2 + 30


def zmtp(body: bytes, *, more: bool = False) -> bytes:
    """A frame as it travels."""
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return bytes([2 | more]) + len(body).to_bytes(8, "big") + body


def session(broker: Daemon, address: str = "") -> socket.socket:
    """A connection of bare bytes on which HELLO was said and answered."""
    host, _, port = broker.url.removeprefix("tcp://").partition(":")
    made = socket.create_connection((host, int(port)), PATIENCE)
    ready = READY + b"\1" + token_bytes(15)
    made.sendall(GREETING)
    made.recv(len(GREETING), socket.MSG_WAITALL)
    made.sendall(b"\x04" + bytes([len(ready)]) + ready)
    # A frame that comes before libzmq has said its own READY is an error for it.
    size = made.recv(2, socket.MSG_WAITALL)[1]
    made.recv(size, socket.MSG_WAITALL)
    made.sendall(zmtp(encode(Hello([2], address, "a bare connection"))[0]))
    received = b""
    while b"streams" not in received:  # one of the limits that WELCOME tells
        more = made.recv(65536)
        assert more
        received += more
    made.settimeout(1)
    return made


def most_until_ended(broker: Daemon, connections: list[socket.socket], data: bytes, most_bytes: int) -> float:
    """Send the same on all connections until they are ended. Returns the memory at its peak."""
    most = broker.anonymous_mib
    sent = 0
    while connections and sent < most_bytes:
        for connection in [*connections]:
            try:
                connection.sendall(data)
            except OSError:
                connections.remove(connection)
            sent += len(data)
            most = max(most, broker.anonymous_mib)
    return most


def is_alive(broker: Daemon) -> bool:
    with peer(broker.url) as client:
        client.open()
        return isinstance(client.ask(Query(1, "status", {})), Answer)


def test_a_command_that_never_ends_is_bounded(broker: Daemon) -> None:
    """libzmq keeps its frames until the last one, and tells nobody."""
    before = broker.anonymous_mib
    with session(broker) as hostile:
        connections = [hostile]
        most = most_until_ended(broker, connections, zmtp(bytes(MIB), more=True), 2048 * MIB)
        assert not connections, "nobody ended the connection"
    # What comes within a tenth of a second is seen late.
    assert most - before < broker.config.connection_limits.receive_bytes / MIB + 512
    assert is_alive(broker)


def test_commands_that_never_end_are_bounded_together(broker: Daemon) -> None:
    before = broker.anonymous_mib
    with ExitStack() as stack:
        connections = [stack.enter_context(session(broker)) for _ in range(10)]
        most = most_until_ended(broker, connections, zmtp(bytes(MIB), more=True), 2048 * MIB)
        assert not connections, "nobody ended the connections"
    assert most - before < broker.config.connection_limits.receive_bytes_all / MIB + 512
    assert is_alive(broker)


def test_who_sends_faster_than_it_is_taken_is_bounded(broker: Daemon) -> None:
    before = broker.anonymous_mib
    command = encode(Publish("s", 0, ["a"], [pack_record(None, bytes(MIB))]))
    data = zmtp(command[0], more=True) + zmtp(bytes(command[1]))
    with session(broker) as hostile:
        most = most_until_ended(broker, [hostile], data, 512 * MIB)
    limits = broker.config.connection_limits.receive_bytes + broker.config.core_limits.backlog_bytes
    assert most - before < limits / MIB + 512
    assert is_alive(broker)


def test_who_sends_much_that_is_taken_is_not_ended(broker: Daemon) -> None:
    """What came and was taken does not count, however much it is."""
    with peer(broker.url) as client:
        client.open()
        for number in range(1, 301):
            client.send(Publish("s", number, ["a"], [pack_record(None, bytes(MIB))]))
            if not number % 10:
                client.answers()
        client.send(Query(1, "status", {}))
        # What is not confirmed yet comes when the disk has it.
        while not isinstance(answer := client.receive(), Answer):
            assert isinstance(answer, Stored | Error | Ping)
        assert answer.ref == 1
