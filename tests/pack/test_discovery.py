"""Announcements of brokers: they are found, they go, and what no broker would announce is left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from malamute.errors import InvalidValue
from malamute.pack.discovery import SERVICE, FoundBroker, announced, discover, found_broker

aio = pytest.importorskip("zeroconf.asyncio")

HERE = ("127.0.0.1",)
BROKER = "ab" * 16
TXT: dict[bytes, bytes | None] = {b"name": b"centre", b"id": BROKER.encode(), b"urls": b"tcp://10.0.0.1:9999"}


def test_a_broker_is_found_while_it_is_announced_and_a_forgery_is_left_out() -> None:
    urls = ["tcp://10.0.0.1:9999", "tcp://10.0.0.2:9999"]

    async def look() -> None:
        async with announced("centre", BROKER, urls, HERE):
            net = aio.AsyncZeroconf(interfaces=list(HERE))
            wrong = {**TXT, b"name": b"a\nb"}
            forged = aio.AsyncServiceInfo(
                SERVICE, f"x.{SERVICE}", parsed_addresses=[*HERE], port=1, properties=wrong
            )
            await (await net.async_register_service(forged))
            found = await discover(2.5, HERE)
            await net.async_close()
        assert found.brokers == [FoundBroker("centre", BROKER, tuple(urls))]
        assert found.left_out == 1
        assert await discover(0.5, HERE) == ([], 0)

    asyncio.run(look())


@pytest.mark.parametrize(
    "wrong",
    [
        {b"name": b""},
        {b"name": b"a\x1b[2Jb"},
        {b"name": b"\xff"},
        {b"name": b"x" * 65_536},
        {b"id": b"ab"},
        {b"id": None},
        {b"urls": b""},
        {b"urls": b"http://10.0.0.1"},
        {b"urls": b"tcp://ann:secret@10.0.0.1:9999"},
        {b"urls": b",".join([b"tcp://10.0.0.1:9999"] * 9)},
        {b"urls": b"tcp://" + b"x" * 65_536 + b":9999"},
    ],
)
def test_a_record_that_no_broker_would_write_is_none(wrong: dict[bytes, Any]) -> None:
    assert found_broker(TXT) == FoundBroker("centre", BROKER, ["tcp://10.0.0.1:9999"])
    assert found_broker({**TXT, **wrong}) is None


def test_nothing_is_announced_that_would_be_left_out() -> None:
    async def announce() -> None:
        async with announced("a\nb", BROKER, ["tcp://10.0.0.1:9999"], HERE):
            raise AssertionError

    with pytest.raises(InvalidValue, match="expected a name, and URLs"):
        asyncio.run(announce())
