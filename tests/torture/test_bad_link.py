"""A way on which packets are lost, repeated and overtake each other brings TCP's bytes as they were sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random
from threading import Thread

import pytest
from bad_link import LOST, OVERTAKEN, PASSED, REPEATED, Packets, why_no_link
from real_machine import RealNetwork, why_not
from rig_daemon import enter_namespace
from rig_waiting import PATIENCE

MISSING = why_not("network") or why_no_link()
# Namespaces and virtual devices take root on Linux. What is missing stands in the report.
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SAID = Random(7).randbytes(300_000)


@pytest.fixture
def network() -> Iterator[RealNetwork]:
    with closing(RealNetwork(os.getpid())) as network:
        yield network


@pytest.fixture
def standing(network: RealNetwork) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection between the namespaces that was made before anything is bad: its end here, and there."""
    with socket.create_server((network.host, 0)) as server:
        with ThreadPoolExecutor(1, initializer=enter_namespace, initargs=(network.name,)) as inside:
            there = inside.submit(socket.create_connection, server.getsockname(), PATIENCE).result()
        here, _ = server.accept()
        with here, there:
            here.settimeout(PATIENCE)
            there.settimeout(PATIENCE)
            yield here, there


def received(end: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        got += end.recv(count - len(got))
    return bytes(got)


@pytest.mark.parametrize(
    ("packets", "happens"),
    [
        (Packets(), [PASSED]),
        (Packets(lost=0.05), [PASSED, LOST]),
        (Packets(repeated=0.2), [PASSED, REPEATED]),
        (Packets(delay_seconds=0.001, more_seconds=0.01), [PASSED, OVERTAKEN]),
        (Packets(bytes_per_second=300_000, kept_bytes=20_000), [PASSED, LOST]),
    ],
)
def test_what_is_said_comes_through_whatever_happens_to_packets(
    network: RealNetwork,
    standing: tuple[socket.socket, socket.socket],
    packets: Packets,
    happens: list[str],
) -> None:
    here, there = standing
    with network.bad(packets, 1.0) as link:
        for sender, reader in ((here, there), (there, here)):
            thread = Thread(target=sender.sendall, args=(SAID,))
            thread.start()
            assert received(reader, len(SAID)) == SAID
            thread.join()
    assert {kind for kind, number in link.counts.items() if number} >= {*happens}
    there.sendall(b"over")
    assert received(here, 4) == b"over", "the good way is taken again"


def test_what_is_lost_wholly_does_not_come(
    network: RealNetwork, standing: tuple[socket.socket, socket.socket]
) -> None:
    here, there = standing
    with network.bad(Packets(lost=1.0), 1.0) as link:
        here.sendall(b"said")
        there.settimeout(0.3)
        with pytest.raises(TimeoutError):
            there.recv(4)
        there.settimeout(PATIENCE)
    assert link.counts[PASSED] == 0
    assert received(there, 4) == b"said"
