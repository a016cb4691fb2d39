"""Brokers as peers by ZRE: Zyre's programs see them, and what no broker would announce is left out."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from click.testing import CliRunner

from malamute.cli.root import cli
from malamute.errors import InvalidValue
from malamute.pack.discovery import FOUND_MAX, Discovered, FoundBroker
from malamute.pack.zre import GROUP, Peers, _node, announced, discover

pytest.importorskip("pyre")

# The library leaves sockets unclosed.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

BROKER = "ab" * 16
URLS = ["tcp://10.0.0.1:9999", "tcp://10.0.0.2:9999"]
HEADERS = {"malamute-name": "centre", "malamute-id": BROKER, "malamute-urls": ",".join(URLS)}


@pytest.fixture
def port() -> int:
    """A port of beacons that no other test has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def test_a_broker_is_a_peer_while_it_is_announced_and_a_forgery_is_left_out(port: int) -> None:
    def met() -> dict[bytes, list[bytes]]:
        """The messages that a plain peer gets of a broker until that is in the group."""
        heard: dict[bytes, list[bytes]] = {}
        with _node("plain", {}, port) as node:
            while b"JOIN" not in heard and node.socket().poll(10_000):
                kind, _, name, *more = node.recv()
                if name == b"centre":
                    heard[kind] = more
        return heard

    async def look() -> None:
        async with announced("centre", BROKER, URLS, port):
            heard = await asyncio.to_thread(met)
            assert json.loads(heard[b"ENTER"][0]) == HEADERS
            assert heard[b"JOIN"] == [GROUP.encode()]
            with _node("forged", {**HEADERS, "malamute-name": "a\x1b[2J"}, port):
                found = await discover(1.0, port)
        assert found == ([FoundBroker("centre", BROKER, tuple(URLS))], 1)
        assert await discover(0.3, port) == ([], 0)

    asyncio.run(look())


def test_the_command_shows_the_brokers_of_both_ways_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (FoundBroker(name, BROKER, tuple(URLS)) for name in ("centre", "edge"))

    async def by_dns(seconds: float, interfaces: Any) -> Discovered:
        return Discovered([one], 1)

    async def by_zre(seconds: float) -> Discovered:
        return Discovered([one, other], 2)

    monkeypatch.setattr("malamute.pack.discovery.discover", by_dns)
    monkeypatch.setattr("malamute.pack.zre.discover", by_zre)
    for more, names, left_out in (([], ["centre"], "1"), (["--zre"], ["centre", "edge"], "3")):
        done = CliRunner().invoke(cli, ["pack", "discover", "--json", *more])
        assert [row["name"] for row in json.loads(done.stdout)] == names
        assert f"{left_out} announcements are of no broker" in done.stderr


def hear(peers: Peers, headers: Any, peer: bytes = b"p" * 16, group: str = GROUP) -> None:
    text = headers if isinstance(headers, bytes) else json.dumps(headers).encode()
    peers.hear([b"ENTER", peer, b"name", text, b"tcp://10.0.0.1:4242"])
    peers.hear([b"JOIN", peer, b"name", group.encode()])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        b"\xff",
        b"[" * 65_536,
        {**HEADERS, "malamute-id": 7},
        {**HEADERS, "malamute-name": None},
        {**HEADERS, "malamute-name": "x" * 65_536},
        {**HEADERS, "malamute-name": "\ud800"},
        {**HEADERS, "malamute-urls": "http://10.0.0.1"},
    ],
)
def test_headers_that_no_broker_would_have_are_left_out(wrong: Any) -> None:
    peers = Peers()
    hear(peers, HEADERS)
    hear(peers, wrong, b"q" * 16)
    assert peers.discovered() == ([FoundBroker("centre", BROKER, tuple(URLS))], 1)


def test_peers_of_other_groups_and_those_that_have_left_are_not_shown() -> None:
    peers = Peers()
    hear(peers, HEADERS, group="chat")
    assert peers.discovered() == ([], 0)
    hear(peers, HEADERS)
    peers.hear([b"EXIT", b"p" * 16, b"name"])
    assert peers.discovered() == ([], 0)


def test_of_a_flood_of_peers_the_rest_is_left_out() -> None:
    peers = Peers()
    for number in range(FOUND_MAX + 1):
        hear(peers, {}, b"%016d" % number)
    assert peers.discovered().left_out == FOUND_MAX


def test_nothing_is_announced_that_would_be_left_out(port: int) -> None:
    async def announce() -> None:
        async with announced("a\nb", BROKER, URLS, port):
            raise AssertionError

    with pytest.raises(InvalidValue, match="expected a name, and URLs"):
        asyncio.run(announce())
