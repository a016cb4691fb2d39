"""The socket: real ROUTER and DEALER, and pipes that fill up.

Nothing here sleeps: whoever waits polls a socket, and the time-out is there for a broken test alone.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator

import pytest
import zmq

from malamute.errors import ConfigError, InvalidValue, Malformed, UnexpectedCommand
from malamute.protocol.batch import pack
from malamute.protocol.codec import PROTOCOL_2, decode, encode
from malamute.protocol.messages import (
    BY_TYPE,
    Deliver,
    Error,
    Hello,
    Ok,
    Ping,
    Pong,
    Publish,
    Received,
    Welcome,
)
from malamute.server import transport as module
from malamute.server.flow import PING_BYTES, Windows
from malamute.server.stalls import CAN_TELL, Stalls
from malamute.server.transport import RETRIES_MAX, Transport

PEER = b"\x01" * 16
OTHER = b"\x02" * 16
HWM = 2
WAIT_MS = 60_000
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


@pytest.fixture
def transport(context) -> Iterator[Transport]:
    transport = Transport(context, {zmq.SNDHWM: HWM})
    transport.bind("inproc://broker")
    yield transport
    transport.close(0)


def connect(transport: Transport, context: zmq.Context, peer: bytes = PEER) -> zmq.Socket:
    """A client that the broker has heard of."""
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.ROUTING_ID, peer)
    client.setsockopt(zmq.RCVHWM, 1)
    client.connect(transport.endpoints[0])
    client.send_multipart(encode(Ping()))
    assert transport.socket.poll(WAIT_MS)
    assert list(transport.receive()) == [(peer, Ping())]
    return client


def next_from(client: zmq.Socket):
    assert client.poll(WAIT_MS), "nothing came"
    return decode(client.recv_multipart())


def fill(transport: Transport, peer: bytes = PEER) -> int:
    """Send until the pipe is full. Returns how many went; the one behind them is kept."""
    sent = 0
    while not transport.send(peer, Ok(6, sent)):
        sent += 1
    return sent


def take(transport: Transport, client: zmq.Socket, count: int) -> list:
    """Take messages while the transport tries again, as the loop does."""
    taken = []
    while len(taken) < count:
        transport.retry()
        if client.poll(1):
            taken.append(next_from(client))
    return taken


def test_what_was_sent_arrives_and_what_comes_is_decoded(transport, context):
    client = connect(transport, context)
    client.send_multipart(encode(Hello([2], "alice")))
    client.send_multipart([b"\xc1"])
    first, (peer, error) = transport.receive()
    assert first == (PEER, Hello([2], "alice"))
    assert peer == PEER
    assert isinstance(error, Malformed)
    assert transport.send(PEER, Pong()) is False
    assert next_from(client) == Pong()


def test_large_records_come_as_frames_of_their_own(transport, context):
    client = connect(transport, context)
    client.send_multipart([pack((2, "s", 0, ["a", "b"], [None, b"x"])), b"y" * 100_000])
    [(_, message)] = transport.receive()
    assert isinstance(message, Publish)
    assert [bytes(record) for record in message.records] == [b"y" * 100_000, b"x"]


def test_an_iteration_ends_after_its_messages(transport, context, monkeypatch):
    monkeypatch.setattr(module, "INTAKE_MESSAGES", 2)
    client = connect(transport, context)
    for _ in range(3):
        client.send_multipart(encode(Ping()))
    assert [len(list(transport.receive())) for _ in range(3)] == [2, 1, 0]


def test_an_iteration_ends_after_its_bytes(transport, context, monkeypatch):
    monkeypatch.setattr(module, "INTAKE_BYTES", 2)
    client = connect(transport, context)
    for _ in range(3):
        client.send_multipart(encode(Ping()))
    assert [len(list(transport.receive())) for _ in range(4)] == [1, 1, 1, 0]


def test_what_a_full_pipe_cannot_take_is_kept_in_order(transport, context):
    client = connect(transport, context)
    sent = fill(transport)
    for ref in range(sent + 1, sent + 5):
        assert transport.send(PEER, Ok(6, ref)) is True
    assert len(transport.blocked[PEER]) == 5
    assert take(transport, client, sent + 5) == [Ok(6, ref) for ref in range(sent + 5)]
    assert transport.blocked == {}


def test_a_peer_is_free_when_nothing_is_kept_for_it(transport, context):
    client = connect(transport, context)
    fill(transport)
    free: list[bytes] = transport.retry()
    assert free == []
    while not free:
        if client.poll(1):
            next_from(client)
        free = transport.retry()
    assert free == [PEER]
    assert transport.retry() == []


def test_a_blocked_peer_does_not_hold_up_another(transport, context):
    connect(transport, context)
    other = connect(transport, context, OTHER)
    fill(transport)
    assert transport.send(OTHER, Pong()) is False
    assert next_from(other) == Pong()


def test_a_blocked_peer_is_not_probed(transport, context):
    connect(transport, context)
    fill(transport)
    transport.send(PEER, Ping())
    assert len(transport.blocked[PEER]) == 1


def test_a_peer_is_given_up_when_more_is_kept_than_the_limit(transport, context, monkeypatch):
    monkeypatch.setattr(module, "KEPT_MESSAGES", 3)
    client = connect(transport, context)
    sent = fill(transport)
    for _ in range(2):
        transport.send(PEER, Pong())
    assert transport.pop_lost() == []
    assert len(transport.blocked[PEER]) == 3
    transport.send(PEER, Pong())
    assert transport.pop_lost() == [PEER]
    # The client learns, when it takes messages again, that it has to begin anew.
    *taken, reported = take(transport, client, sent + 1)
    assert taken == [Ok(6, ref) for ref in range(sent)]
    assert reported.code == UnexpectedCommand.code


def test_who_waits_for_a_welcome_has_it_before_it_learns_that_it_is_given_up(transport, context, monkeypatch):
    """A client passes over what comes before its WELCOME."""
    monkeypatch.setattr(module, "KEPT_MESSAGES", 3)
    client = connect(transport, context)
    sent = fill(transport)
    assert transport.send(PEER, WELCOME) is True
    for _ in range(9):
        transport.send(PEER, Pong())
    assert set(transport.pop_lost()) == {PEER}, "more than once"
    welcome, reported = take(transport, client, sent + 2)[sent:]
    assert welcome == WELCOME
    assert reported.code == UnexpectedCommand.code


def test_a_peer_that_nobody_knows_is_lost(transport):
    assert transport.send(OTHER, Pong()) is False
    assert transport.pop_lost() == [OTHER]
    assert transport.pop_lost() == []


def test_a_peer_that_goes_away_while_it_is_blocked_is_lost(context):
    transport = Transport(context, {zmq.SNDHWM: HWM})
    transport.bind("tcp://127.0.0.1:*")
    client = connect(transport, context)
    fill(transport)
    monitor = transport.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.close(0)
    assert monitor.poll(WAIT_MS)
    transport.socket.disable_monitor()
    monitor.close(0)
    # The socket learns of it a little after the monitor, and may take what was kept before that. A pipe ends
    # when all that came through it was read.
    while not (lost := transport.pop_lost()):
        if PEER not in transport.blocked:
            transport.send(PEER, Pong())
        transport.retry()
        assert list(transport.receive()) == []
    assert lost == [PEER]
    assert transport.blocked == {}
    transport.close(0)


def test_nothing_is_kept_for_a_peer_that_is_forgotten(transport, context):
    connect(transport, context)
    fill(transport)
    transport.forget(PEER)
    assert transport.retry() == []
    assert transport.pop_lost() == []


def test_a_new_connection_with_a_known_id_takes_the_place_of_the_old_one(context):
    transport = Transport(context, {})
    transport.bind("tcp://127.0.0.1:*")
    old = connect(transport, context)
    new = connect(transport, context)
    transport.send(PEER, Pong())
    assert next_from(new) == Pong()
    assert not old.poll(0)
    transport.close(0)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_file_of_a_socket_has_its_mode(context, tmp_path, mode):
    transport = Transport(context, {})
    before = os.umask(0o022)
    try:
        transport.bind(f"ipc://{tmp_path}/broker", mode)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "broker").stat().st_mode) == mode
    transport.close(0)


def test_the_socket_file_of_a_broker_that_listens_is_not_taken_from_it(context, tmp_path):
    """libzmq would remove it, and whoever connects next would come to the other broker."""
    endpoint = f"ipc://{tmp_path}/broker"
    first, second = Transport(context, {}), Transport(context, {})
    first.bind(endpoint)
    with pytest.raises(ConfigError, match="address already in use"):
        second.bind(endpoint)
    connect(first, context)
    first.close(0)
    second.close(0)


def test_the_socket_file_that_a_broker_has_left_behind_is_in_nobodys_way(context, tmp_path):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/broker")
    transport = Transport(context, {})
    transport.bind(f"ipc://{tmp_path}/broker")
    connect(transport, context)
    transport.close(0)


def test_a_file_that_is_no_socket_is_not_removed_for_one(context, tmp_path):
    file = tmp_path / "notes"
    file.write_text("important")
    transport = Transport(context, {})
    with pytest.raises(ConfigError, match="no socket"):
        transport.bind(f"ipc://{file}")
    assert file.read_text() == "important"
    transport.close(0)


def test_several_listeners_are_one_broker(context, tmp_path):
    transport = Transport(context, {})
    transport.bind("tcp://127.0.0.1:*")
    transport.bind(f"ipc://{tmp_path}/broker")
    abstract = transport.bind(f"ipc://@{tmp_path}")
    assert abstract == f"ipc://@{tmp_path}"
    for number, endpoint in enumerate(transport.endpoints, 1):
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.ROUTING_ID, bytes([number]) * 16)
        client.connect(endpoint)
        client.send_multipart(encode(Ping()))
        assert transport.socket.poll(WAIT_MS)
        assert list(transport.receive()) == [(bytes([number]) * 16, Ping())]
    transport.close(0)


@pytest.mark.parametrize("endpoint", ["tcp://256.0.0.1:1", "carrier-pigeon://roof", "nonsense"])
def test_an_endpoint_that_cannot_be_bound_is_named(transport, endpoint):
    with pytest.raises(ConfigError, match=endpoint):
        transport.bind(endpoint)


# Unread messages, in bytes

WINDOW = 4 * PING_BYTES
STEP = Deliver(1, 0, bytes(PING_BYTES))


@pytest.fixture
def reader(context) -> Iterator[tuple[Transport, zmq.Socket]]:
    """A transport whose pipes have room for any number of commands, and a client that was welcomed."""
    transport = Transport(context, {zmq.SNDHWM: 10_000}, Windows(WINDOW, 100 * WINDOW))
    transport.bind("tcp://127.0.0.1:*")
    client = connect(transport, context)
    client.setsockopt(zmq.RCVHWM, 1000)
    assert transport.send(PEER, WELCOME) is False
    assert next_from(client) == WELCOME
    yield transport, client
    transport.close(0)


WELCOME = Welcome(2, PEER, b"b", False, "", {})


def until_full(transport: Transport) -> int:
    """Send until the window is full. Returns how many went."""
    sent = 1
    while not transport.send(PEER, STEP):
        sent += 1
    return sent


def test_a_peer_that_reads_nothing_gets_no_more_than_its_window(reader):
    transport, _ = reader
    assert WINDOW - 2 * PING_BYTES < until_full(transport) * PING_BYTES <= WINDOW
    assert transport.send(PEER, Pong()) is True
    assert len(transport.blocked[PEER]) == 1
    assert transport.retry() == []


def test_a_peer_that_reads_gets_what_was_kept(reader):
    transport, client = reader
    sent = until_full(transport)
    transport.send(PEER, Pong())
    tokens = []
    while len(tokens) < sent:
        message = next_from(client)
        if isinstance(message, Ping):
            tokens.append(message.token)
    client.send_multipart(encode(Received(tokens[-1])))
    assert transport.socket.poll(WAIT_MS)
    assert list(transport.receive()) == [(PEER, Received(tokens[-1]))]
    assert transport.retry() == [PEER]
    assert next_from(client) == Pong()
    assert not transport.blocked


def test_hello_makes_no_room_for_a_peer_that_reads_nothing(reader):
    transport, _ = reader
    until_full(transport)
    for _ in range(10):
        assert transport.send(PEER, WELCOME) is True
        assert transport.send(PEER, STEP) is True
    assert list(transport.blocked[PEER]) == [encode(STEP)]


def test_a_welcome_comes_though_pipe_and_window_are_full_and_the_question_behind_it(context):
    """A client answers no PING between HELLO and WELCOME, so a WELCOME must not wait for an answer."""
    transport = Transport(context, {zmq.SNDHWM: HWM}, Windows(PING_BYTES, 100 * WINDOW))
    transport.bind("inproc://broker")
    client = connect(transport, context)
    transport.send(PEER, WELCOME)
    assert next_from(client) == WELCOME
    assert transport.send(PEER, STEP) is True
    assert transport.flows.is_full(PEER)
    # The peer takes none of that, and says HELLO until the pipe is full, too.
    for _ in range(HWM):
        transport.send(PEER, WELCOME)
    assert PEER in transport.blocked
    *_, ping = taken = take(transport, client, 4)
    assert [type(message) for message in taken] == [Deliver, Ping, Welcome, Ping]
    transport.received(PEER, ping.token)
    assert transport.retry() == [PEER]
    assert not transport.flows.is_full(PEER)
    transport.close(0)


def test_a_peer_is_given_up_when_more_bytes_are_kept_than_the_limit(reader, monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * sum(map(len, encode(STEP))))
    transport, _ = reader
    until_full(transport)
    transport.send(PEER, STEP)
    transport.send(PEER, STEP)
    assert transport.pop_lost() == []
    transport.send(PEER, Pong())
    assert transport.pop_lost() == [PEER]
    assert transport.blocked[PEER].size_bytes < 200


def test_while_much_is_kept_for_all_peers_little_is_for_each(reader, monkeypatch):
    """At the limit of all, and one command past it."""
    size = sum(map(len, encode(STEP)))
    monkeypatch.setattr(module, "KEPT_BYTES_ALL", 3 * size)
    monkeypatch.setattr(module, "KEPT_BYTES_CROWDED", 2 * size)
    transport, _ = reader
    until_full(transport)
    transport.send(PEER, STEP)
    other = module.Unsent(transport.unsent)
    other.add(encode(STEP), STEP)
    transport.send(PEER, STEP)
    assert transport.unsent.size_bytes == 3 * size
    assert not transport.blocked[PEER].too_large
    other.add(encode(STEP), STEP)
    assert not transport.blocked[PEER].too_large, "it has no more than it may in any case"
    transport.send(PEER, STEP)
    assert transport.pop_lost() == [PEER]
    other.drop()
    assert transport.unsent.size_bytes == transport.blocked[PEER].size_bytes < 200


def test_what_is_kept_no_more_does_not_count(reader):
    transport, client = reader
    until_full(transport)
    for _ in range(5):
        transport.send(PEER, STEP)
    assert transport.unsent.size_bytes == transport.blocked[PEER].size_bytes > 0
    client.close(0)
    while not transport.pop_lost():
        transport.retry()
        transport.send(PEER, Ping())
    assert transport.unsent.size_bytes == 0


def test_a_probe_finds_out_whether_a_peer_that_reads_nothing_is_there(reader):
    transport, client = reader
    until_full(transport)
    client.close(0)
    while not (lost := transport.pop_lost()):
        transport.send(PEER, Ping())
    assert lost == [PEER]
    assert not transport.blocked
    assert transport.flows.unread == 0


def test_a_small_frame_does_not_hold_on_to_the_buffer_it_was_read_into(transport, context):
    client = connect(transport, context)
    client.send_multipart([pack((2, "s", 0, ["a", "b"], [None, None])), b"y" * 65_535, b"z" * 65_536])
    [(_, message)] = transport.receive()
    assert [type(record) for record in message.records] == [bytes, memoryview]


def test_a_welcomed_peer_that_breaks_its_promise_of_heartbeats_is_cut_off(context, monkeypatch):
    looked: list[float] = []

    def has_stalled(self, peer, descriptor, now, heartbeat):
        looked.extend([heartbeat] if peer in (PEER, OTHER) else [])
        return peer in (PEER, OTHER) and heartbeat > 0

    monkeypatch.setattr(Stalls, "has_stalled", has_stalled)
    transport = Transport(context, {})
    transport.bind("tcp://127.0.0.1:*")
    try:
        for peer, promised_ms in ((PEER, 0), (OTHER, 250)):
            client = context.socket(zmq.DEALER)
            client.setsockopt(zmq.ROUTING_ID, peer)
            monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            client.connect(transport.endpoints[0])
            client.send_multipart(encode(Hello([2], "", heartbeat=promised_ms)))
            assert transport.socket.poll(WAIT_MS)
            list(transport.receive())
            transport.send(peer, WELCOME)
            assert next_from(client) == WELCOME
            transport.send(peer, Ping())
            if promised_ms:
                assert monitor.poll(WAIT_MS)
            else:
                assert next_from(client) == Ping()
            # One that is closed first holds up the thread of libzmq that reports the next event, for ever.
            client.disable_monitor()
            monitor.close(0)
    finally:
        transport.close(0)
    assert looked == [0.0, 0.25]


@pytest.mark.skipif(not CAN_TELL, reason="this system does not tell when something came")
def test_over_tcp_libzmq_asks_nobody_for_heartbeats_and_elsewhere_it_does(context, tmp_path):
    """A connection without an answer to them stands for as long as they take to break the other one."""
    options = {zmq.HEARTBEAT_IVL: 20, zmq.HEARTBEAT_TIMEOUT: 20}
    transport = Transport(context, options)
    tcp, ipc = transport.bind("tcp://127.0.0.1:*"), transport.bind(f"ipc://{tmp_path}/s")
    try:
        with socket.socket() as over_tcp, socket.socket(socket.AF_UNIX) as over_ipc:
            over_tcp.connect(("127.0.0.1", int(tcp.rpartition(":")[2])))
            over_ipc.connect(ipc.removeprefix("ipc://"))
            for stranger in (over_tcp, over_ipc):
                stranger.settimeout(WAIT_MS / 1000)
                stranger.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
            while over_ipc.recv(4096):
                pass
            over_tcp.settimeout(0)
            said = over_tcp.recv(4096)
            assert b"PING" not in said
            with pytest.raises(BlockingIOError):
                over_tcp.recv(4096)
    finally:
        transport.close(0)


def test_nothing_is_kept_of_a_peer_whose_session_was_ended_when_its_connection_goes(context):
    transport = Transport(context, {})
    transport.bind("tcp://127.0.0.1:*")
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.ROUTING_ID, PEER)
    client.connect(transport.endpoints[0])
    client.send_multipart(encode(Hello([2], "")))
    while PEER not in transport._descriptors:
        assert transport.socket.poll(WAIT_MS)
        list(transport.receive())
        transport.send(PEER, Welcome(2, b"s", b"b", False, "", {}))
    transport.flows.open(PEER)
    transport.blocked[PEER] = module.Unsent(transport.unsent)
    transport._stuck.add(PEER)
    transport.forget(PEER)
    client.close(0)
    while PEER in transport._stuck:
        assert transport.guard.monitor.poll(WAIT_MS)
        transport.watch(0.0, [transport.guard.monitor])
    transport.retry()
    assert not transport.blocked
    transport.close(0)


ENDED = Error(410, "session ended by an operator", BY_TYPE[Hello].opcode)
REFUSED = Error(405, "PUBLISH before HELLO: expected HELLO first", BY_TYPE[Publish].opcode)


def refuse(transport: Transport, times: int = 1) -> None:
    for _ in range(times):
        transport.send(PEER, REFUSED)


def test_refusals_after_the_end_of_a_session_do_not_hide_why_it_ended(transport, context):
    client = connect(transport, context)
    sent = fill(transport)
    transport.send(PEER, ENDED)
    refuse(transport)
    transport.forget(PEER)
    refuse(transport)
    assert take(transport, client, sent + 2)[sent:] == [ENDED, REFUSED]
    assert transport.blocked == {}


def test_who_is_given_up_still_learns_why_his_session_ended(transport, context, monkeypatch):
    monkeypatch.setattr(module, "KEPT_MESSAGES", 2)
    client = connect(transport, context)
    sent = fill(transport)
    transport.send(PEER, ENDED)
    refuse(transport)
    assert transport.pop_lost() == [PEER]
    transport.forget(PEER)
    assert take(transport, client, sent + 1)[sent:] == [ENDED]


def test_refusals_that_are_too_many_do_not_hide_it_either(transport, context, monkeypatch):
    monkeypatch.setattr(module, "KEPT_MESSAGES", 2)
    client = connect(transport, context)
    sent = fill(transport)
    transport.send(PEER, ENDED)
    transport.forget(PEER)
    refuse(transport, 3)
    assert take(transport, client, sent + 1)[sent:] == [ENDED]


class Plain:
    """Another protocol, whose peers say what begins with its signature."""

    signature = b"\xaa\xa8"

    def check_hello(self, peer, hello):
        raise AssertionError("it has no HELLO")

    def decode(self, frames):
        return Ping() if frames[0] == b"\xaa\xa8ping" else Pong()

    def encode(self, message):
        return [b"\xaa\xa8" + type(message).__name__.encode()]


def test_each_peer_has_the_codec_of_its_first_bytes(context):
    transport = Transport(context, {}, codecs=(PROTOCOL_2, Plain()))
    transport.bind("tcp://127.0.0.1:*")
    plain, other = connect(transport, context), connect(transport, context, OTHER)
    plain.send(b"\xaa\xa8ping")
    other.send_multipart(encode(Ping()))
    came: list = []
    while len(came) < 2:
        assert transport.socket.poll(WAIT_MS)
        came += transport.receive()
    assert sorted(came) == [(PEER, Ping()), (OTHER, Ping())]
    for peer in (PEER, OTHER):
        transport.send(peer, Pong())
    assert plain.recv() == b"\xaa\xa8Pong"
    assert decode(other.recv_multipart()) == Pong()
    # Another connection with its routing id may speak the other protocol.
    transport.forget(PEER)
    plain.send_multipart(encode(Ping()))
    assert transport.socket.poll(WAIT_MS)
    assert [*transport.receive()] == [(PEER, Ping())]
    transport.send(PEER, Pong())
    assert decode(plain.recv_multipart()) == Pong()
    transport.close(0)


def test_a_hello_with_an_id_that_no_client_chooses_is_refused(transport, context):
    client = connect(transport, context, b"short")
    client.send_multipart(encode(Hello([2], "alice", attempt=3)))
    assert transport.socket.poll(WAIT_MS)
    [(peer, error)] = transport.receive()
    assert peer == b"short"
    assert (type(error), error.about, error.ref) == (InvalidValue, 1, 3)


def test_the_end_of_what_came_is_known_without_a_refusal(transport, context, monkeypatch):
    """Most iterations are of one command, and to run into "nothing there" is dear."""
    client = connect(transport, context)
    client.send_multipart(encode(Ping()))
    assert transport.socket.poll(WAIT_MS)
    refused = []
    recv = transport.socket.recv

    def receive(*arguments, **options):
        try:
            return recv(*arguments, **options)
        except zmq.Again:
            refused.append(1)
            raise

    monkeypatch.setattr(transport.socket, "recv", receive)
    assert list(transport.receive()) == [(PEER, Ping())]
    assert transport.drained
    assert not refused
    assert list(transport.receive()) == []
    assert refused


def test_of_very_many_full_pipes_some_are_tried_again_at_a_time_and_all_in_their_turn(context):
    """Everybody else waits for that, and each costs as much as a message."""
    transport = Transport(context, {zmq.SNDHWM: HWM})
    transport.bind("inproc://many")
    peers = [bytes([number]) * 16 for number in range(1, 201)]
    clients = [connect(transport, context, peer) for peer in peers]
    filled = [fill(transport, peer) for peer in peers]
    for client, count in zip(clients, filled, strict=True):
        for _ in range(count):
            next_from(client)
    unblocked: list[bytes] = []
    while len(unblocked) < len(peers):
        turn = transport.retry()
        assert len(turn) <= RETRIES_MAX
        unblocked += turn
        assert (transport.next_check(100.0) is None) == (len(unblocked) == len(peers))
    assert sorted(unblocked) == peers
    transport.close(0)


class Compared(bytes):
    """A routing id that counts how often it is compared with another."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_many_peers_that_are_gone_at_once_are_found_one_by_one(transport):
    """A fan-out finds out about all of them, and must not look for each among the others."""
    peers = [Compared(number.to_bytes(16, "big")) for number in range(1, 1_001)]
    for peer in peers:
        assert not transport.send(peer, Pong())
        assert not transport.send(peer, Pong())
    assert transport.pop_lost() == peers
    assert Compared.count < 20 * len(peers)
