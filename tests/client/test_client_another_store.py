"""A client that goes on at a broker with another store: a position in the first one counts there no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import malamute
import malamute.aio
from malamute.client.events import Gap
from malamute.testing import Broker

SECONDS = 20.0
HAD = 10


@pytest.fixture(params=[30, 5])
def brokers(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, Broker, int]]:
    """Two brokers, and how many messages the second one has: more than are had of the first, or fewer."""
    with Broker() as first, Broker() as second:
        fill(first, HAD)
        fill(second, request.param)
        yield first, second, request.param


def fill(broker: Broker, count: int) -> None:
    with malamute.connect(broker.url) as client:
        for number in range(1, count + 1):
            client.publish("orders", "order", b"%s %d" % (broker.url.encode(), number), assurance="stored")


OPTIONS: list[dict[str, Any]] = [
    {"start": "first"},
    {"start": "first", "cursor": "billing"},
    {"start": "first", "committed": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_all_of_the_other_store_comes_behind_a_gap(
    brokers: tuple[Broker, Broker, int], options: dict[str, Any]
) -> None:
    first, second, there = brokers
    with malamute.connect([first.url, second.url]) as client:
        messages = client.subscribe("orders", **options)
        kept = [messages.receive(SECONDS) for _ in range(HAD)]
        first.stop()
        found = [messages.receive(SECONDS) for _ in range(there)]
        assert [message.sequence for message in found] == [*range(1, there + 1)]
        assert messages.recent_gaps == [Gap("orders", 1, 0, "another-store", client.store)]
        assert {message.store for message in found} == {client.store} != {message.store for message in kept}
        if "cursor" in options:
            # A message that came from the first broker moves no cursor of this one.
            messages.commit(kept[-1])
            assert cursor_of(second) == 0
            messages.commit(found[2])
            assert cursor_of(second) == 3


def cursor_of(broker: Broker) -> int:
    with malamute.connect(broker.url) as client:
        return int(client.query("stream", name="orders")["cursors"][0]["sequence"])


def test_what_was_there_before_a_reader_of_new_messages_came_is_a_gap(
    brokers: tuple[Broker, Broker, int],
) -> None:
    first, second, there = brokers
    with malamute.connect([first.url, second.url]) as client:
        messages = client.subscribe("orders")
        fill(first, 1)
        assert messages.receive(SECONDS).sequence == HAD + 1
        gaps: list[Any] = []
        client.on_event = lambda event: gaps.append(event) if isinstance(event, Gap) else None
        first.stop()
        with malamute.connect(second.url) as writer:
            while not gaps:
                client.query("status", timeout=SECONDS)
            writer.publish("orders", "order", b"", assurance="stored")
        assert messages.receive(SECONDS).sequence == there + 1
        assert gaps == [Gap("orders", 1, there, "another-store", client.store)]


def test_a_position_that_a_program_keeps_is_of_one_store(brokers: tuple[Broker, Broker, int]) -> None:
    first, second, there = brokers
    with malamute.connect(first.url) as client, client.subscribe("orders", start="first") as messages:
        kept = [messages.receive(SECONDS) for _ in range(3)][-1].position
        with client.subscribe("orders", start=kept) as same:
            assert same.receive(SECONDS).sequence == 4
            assert same.recent_gaps == []
    with malamute.connect(second.url) as client, client.subscribe("orders", start=kept) as other:
        assert [other.receive(SECONDS).sequence for _ in range(there)] == [*range(1, there + 1)]
        assert [gap.reason for gap in other.recent_gaps] == ["another-store"]


def test_all_of_the_other_store_comes_to_a_task(brokers: tuple[Broker, Broker, int]) -> None:
    first, second, there = brokers

    async def read() -> list[int]:
        async with malamute.aio.connect([first.url, second.url]) as client:
            messages = await client.subscribe("orders", start="first")
            for _ in range(HAD):
                await messages.receive(SECONDS)
            await asyncio.to_thread(first.stop)
            return [(await messages.receive(SECONDS)).sequence for _ in range(there)]

    assert asyncio.run(read()) == [*range(1, there + 1)]
