"""Addresses of which many connections come to nothing: the system drops what comes next from there."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterable, Iterator

import pytest

from malamute.door.addresses import Gateways, network_of
from malamute.server.bans import BAN_SECONDS, BANS_MAX, WINDOW_SECONDS, Bans, keep_out
from malamute.server.edge import RefusedConnection
from malamute.server.flow import Windows
from malamute.server.guard import BANNED, Rules
from malamute.server.transport import Transport
from tests.server.test_guard import PATIENCE, arrive, greet

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters at sockets are Linux's")

STRANGE, KNOWN = "127.0.0.2", "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", bytes([192, 0, 2, 7])),
        ("::ffff:192.0.2.7", bytes([192, 0, 2, 7])),
        ("2001:db8:1:2:3::4", bytes.fromhex("20010db800010002")),
        ("fe80::1%lo", bytes.fromhex("fe80000000000000")),
        ("localhost:0:0", b""),
        ("", b""),
        ("10.0.0.1\0", b""),
        ("::1\0", b""),
    ],
)
def test_of_ipv6_the_network_of_one_customer_is_banned(address, network):
    assert network_of(address) == network


OTHERS = [bytes([192, 0, 2, 7]), bytes.fromhex("20010db800010002"), bytes.fromhex("0000000000000001")]


@pytest.mark.parametrize(
    ("family", "here", "strange"),
    [(socket.AF_INET, KNOWN, STRANGE), (socket.AF_INET6, "::1", "::1")],
)
def test_the_filter_drops_what_comes_from_there_and_nothing_else(family, here, strange):
    with (
        socket.socket(family, socket.SOCK_DGRAM) as receiver,
        socket.socket(family, socket.SOCK_DGRAM) as sender,
    ):
        try:
            receiver.bind((here, 0))
        except OSError:
            pytest.skip(f"this machine has no {here}")
        receiver.settimeout(PATIENCE)
        sender.bind((strange, 0))
        for text, networks in (
            (b"not banned", OTHERS),
            (b"banned", [*OTHERS, network_of(strange)]),
            (b"banned among many", [network_of(f"192.0.2.{n}") for n in range(256)] + [network_of(strange)]),
            (b"no more", []),
        ):
            keep_out(receiver.fileno(), networks)
            sender.sendto(text, receiver.getsockname())
        assert [receiver.recv(100), receiver.recv(100)] == [b"not banned", b"no more"]


@pytest.fixture
def transport(context) -> Iterator[Transport]:
    transport = Transport(context, {}, Windows(), Rules(hello_seconds=10, failures_max=2))
    transport.bind("tcp://127.0.0.1:*")
    yield transport
    transport.close(0)


def come_from(address: str, transport: Transport) -> socket.socket:
    """A connection that is begun: over the loopback it stands at once, unless the system drops it."""
    connection = socket.socket()
    connection.bind((address, 0))
    connection.setblocking(False)
    connection.connect_ex((KNOWN, int(transport.endpoints[0].rpartition(":")[2])))
    return connection


def stands(connection: socket.socket) -> bool:
    try:
        return bool(connection.getpeername())
    except OSError:
        return False


def come_to_nothing(transport: Transport, now: float) -> None:
    """A connection that ends without HELLO, as the guard has learnt."""
    count = len(transport.guard.waiting)
    connection = come_from(STRANGE, transport)
    while len(transport.guard.waiting) == count:
        assert transport.guard.monitor.poll(PATIENCE * 1000)
        transport.guard.update(now)
    connection.close()
    while len(transport.guard.waiting) > count:
        assert transport.guard.monitor.poll(PATIENCE * 1000)
        transport.guard.update(now)


def test_an_address_is_banned_for_a_while_and_no_other(transport):
    reported: list[RefusedConnection] = []
    transport.guard.on_refusal = reported.append
    here = arrive(transport, 100.0)
    greet(transport, here)
    for _ in range(2):
        come_to_nothing(transport, 100.0)
    assert not reported
    come_to_nothing(transport, 100.5)
    assert reported == [RefusedConnection(STRANGE, "", BANNED)]
    assert transport.guard.next_check() == 100.5 + BAN_SECONDS
    with come_from(STRANGE, transport) as strange, come_from(KNOWN, transport) as known:
        assert stands(known)
        assert not stands(strange)
    assert here.is_open
    transport.watch(100.5 + BAN_SECONDS, ())
    with come_from(STRANGE, transport) as again:
        assert stands(again)
    here.close()


def test_few_failures_at_a_time_ban_nobody(transport):
    reported: list[RefusedConnection] = []
    transport.guard.on_refusal = reported.append
    for second in range(6):
        come_to_nothing(transport, 100.0 + second / 2)
    assert not reported


def test_those_who_had_a_session_do_not_count(transport):
    reported: list[RefusedConnection] = []
    transport.guard.on_refusal = reported.append
    for _ in range(4):
        here = arrive(transport, 100.0)
        greet(transport, here)
        transport.forget(b"\x01" * 16)
        assert transport.guard.waiting
        here.close()
        while transport.guard.waiting:
            assert transport.guard.monitor.poll(PATIENCE * 1000)
            transport.guard.update(100.0)
    assert not reported


def test_refused_handshakes_count_and_0_is_for_no_limit(context):
    for failures_max, bans in ((2, True), (0, False)):
        transport = Transport(context, {}, Windows(), Rules(failures_max=failures_max))
        transport.bind("tcp://127.0.0.1:*")
        transport.guard.update(100.0)
        reported: list[RefusedConnection] = []
        transport.guard.on_refusal = reported.append
        refusal = RefusedConnection(STRANGE, "CURVE", "unknown key")
        for _ in range(5):
            transport.guard.refuse(refusal)
        assert (RefusedConnection(STRANGE, "", BANNED) in reported) is bans
        assert reported.count(refusal) == 5
        transport.close(0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_nobody_of_this_machine_is_banned(address):
    with socket.socket() as listener:
        bans = Bans(1)
        bans.watch(listener.fileno())
        assert not any(bans.count(address, 1.0) for _ in range(5))


def test_a_gateway_is_not_banned_whatever_it_passes_on():
    with socket.socket() as listener:
        bans = Bans(1, Gateways(["192.0.2.0/24", "2001:db8::7"]))
        bans.watch(listener.fileno())
        for address in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7"):
            assert not any(bans.count(address, 1.0) for _ in range(5))
        for address in ("192.0.3.7", "::ffff:192.0.3.8", "2001:db8::8"):
            assert [bans.count(address, 1.0) for _ in range(2)] == [False, True]


def test_who_has_to_come_again_as_the_broker_is_busy_is_not_banned_for_it(context):
    transport = Transport(context, {}, Windows(), Rules(failures_max=2))
    transport.bind("tcp://127.0.0.1:*")
    transport.guard.update(100.0)
    reported: list[RefusedConnection] = []
    transport.guard.on_refusal = reported.append
    for _ in range(5):
        transport.guard.refuse(RefusedConnection(STRANGE, "PLAIN", "too many at a time", busy=True))
        come_to_nothing(transport, 100.0)
    assert RefusedConnection(STRANGE, "", BANNED) not in reported
    for _ in range(3):
        come_to_nothing(transport, 100.0 + WINDOW_SECONDS)
    assert reported[-1] == RefusedConnection(STRANGE, "", BANNED)
    transport.close(0)


def test_the_oldest_ban_makes_room_and_a_socket_without_filters_bans_nobody():
    with socket.socket() as listener:
        listener.bind((KNOWN, 0))
        bans = Bans(1)
        bans.watch(listener.fileno())
        for number in range(BANS_MAX + 1):
            address = f"192.0.{number // 256}.{number % 256}"
            assert [bans.count(address, float(number)) for _ in range(3)] == [False, True, False]
        assert bans.next_check() == 1 + BAN_SECONDS
    bans.check(BANS_MAX + 1 + BAN_SECONDS)
    assert bans.next_check() is None
    assert [bans.count(STRANGE, 1000.0) for _ in range(3)] == [False, False, False]
    assert bans.next_check() is None


def test_a_ban_holds_at_a_socket_that_listens_since_then_and_is_lifted_there():
    with socket.socket() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as later:
        later.bind((KNOWN, 0))
        later.setblocking(False)
        bans = Bans(1)
        bans.watch(listener.fileno())
        assert [bans.count(STRANGE, 1.0) for _ in range(2)] == [False, True]
        bans.watch(later.fileno())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((STRANGE, 0))
            sender.sendto(b"banned", later.getsockname())
            bans.check(1.0 + BAN_SECONDS)
            sender.sendto(b"no more", later.getsockname())
        assert later.recv(100) == b"no more"


def test_where_the_system_has_no_room_left_nobody_stays_banned(monkeypatch):
    with socket.socket() as listener:
        kept_out: list[list[bytes]] = []

        def keep_out_of_two(listener: int, networks: Iterable[bytes]) -> None:
            if len([*networks]) > 1:
                raise OSError(errno.ENOMEM, "no room")
            kept_out.append([*networks])

        monkeypatch.setattr("malamute.server.bans.keep_out", keep_out_of_two)
        bans = Bans(1)
        bans.watch(listener.fileno())
        assert [bans.count(STRANGE, 1.0) for _ in range(2)] == [False, True]
        assert [bans.count("192.0.2.7", 1.0) for _ in range(2)] == [False, False]
        assert kept_out == [[network_of(STRANGE)], []]
