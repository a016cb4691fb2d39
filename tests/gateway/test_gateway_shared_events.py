"""Pages that ask for the same messages share one subscription; one that is behind has its own for a while."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before
from server_events import following, make_stream, messages_of, publish_numbers

import malamute
from malamute.gateway.events import EventWriter
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.shared_events import SharedEventsTable
from malamute.gateway.sse import FollowingPage
from malamute.protocol.batch import Columns, pack_record
from malamute.testing import Broker, small_config


def test_pages_that_ask_for_the_same_share_a_subscription(
    gateway: RunningGateway, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 2)
    with gateway.client() as http, following(http) as first, following(http) as second:
        assert [next(first), next(second)] == [{"retry": "2000", "id": f"2@{client.store}"}] * 2
        publish_numbers(client, 3, 5)
        assert messages_of(first, 3) == messages_of(second, 3) == [(3, "3"), (4, "4"), (5, "5")]
        # Events in the buffer are not asked for again.
        with following(http, headers={"last-event-id": "3"}) as third:
            assert messages_of(third, 2) == [(4, "4"), (5, "5")]
            assert len(gateway.state._followed) == 1


@pytest.mark.usefixtures("weather")
@pytest.mark.parametrize(
    "other", [{"params": {"pattern": "s"}}, {"params": {"committed": "true"}}, {"params": {"where": "a = 1"}}]
)
def test_pages_that_ask_for_others_do_not(gateway: RunningGateway, other: dict[str, Any]) -> None:
    with gateway.client() as http, following(http) as first, following(http, **other) as second:
        next(first), next(second)
        assert len(gateway.state._followed) == 2


def test_a_page_that_is_behind_catches_up_and_shares_again(
    gateway: RunningGateway, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 10)
    with (
        gateway.client() as http,
        following(http) as first,
        following(http, params={"start": "first"}) as late,
    ):
        next(first)
        assert [number for number, _ in messages_of(late, 10)] == [*range(1, 11)]
        publish_numbers(client, 11, 12)
        assert messages_of(first, 2) == messages_of(late, 2) == [(11, "11"), (12, "12")]
        while len(gateway.state._followed) > 1:
            http.get("/live")


def test_a_page_that_does_not_read_takes_nothing_of_one_that_does(tmp_path: Path) -> None:
    with Broker(tmp_path, config=small_config()) as broker:
        make_stream(broker.url)
        with (
            gateway_before(broker) as gateway,
            gateway.client() as http,
            malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
            following(http) as slow,
            following(http) as quick,
        ):
            next(slow), next(quick)
            for first in range(1, 201, 10):
                bodies = [b"%d " % n + b"x" * 60_000 for n in range(first, first + 10)]
                client.publish_batch("weather", ["s"] * 10, bodies)
                assert [number for number, _ in messages_of(quick, 10)] == [*range(first, first + 10)]
            [shared] = gateway.state.shared_events._shared.values()
            assert shared._size_bytes <= gateway.state.settings.event_bytes
            assert [number for number, _ in messages_of(slow, 200)] == [*range(1, 201)]


@pytest.mark.usefixtures("weather")
def test_what_all_share_ends_with_the_last_of_them(gateway: RunningGateway) -> None:
    with gateway.client() as http, following(http) as first:
        with following(http) as second:
            next(first), next(second)
        while (page := next(iter(gateway.state.shared_events._shared.values())).pages) > 1:
            http.get("/live")
        assert page == 1
    with gateway.client() as http:
        while gateway.state._followed or len(gateway.state.shared_events):
            http.get("/live")


def test_why_it_ends_is_said_on_all_pages(gateway: RunningGateway, client: malamute.Client) -> None:
    publish_numbers(client, 1, 1)
    with gateway.client() as http, following(http) as first, following(http) as second:
        next(first), next(second)
        for row in client.query("clients"):
            if row["software"].startswith("malamute-gateway"):
                client.change("client.disconnect", id=row["id"])
        for blocks in (first, second):
            [problem] = [block for block in blocks if block.get("event") == "problem"]
            assert json.loads(problem["data"])["code"]


# Any schedule: each page has each message once


STORE = "11" * 16


class _FakeStream:
    """A stream whose messages are the numbers from 1 on."""

    def __init__(self) -> None:
        self.last = 0
        self.subscriptions: set[_FakeSubscription] = set()

    def publish(self) -> None:
        self.last += 1
        for one in self.subscriptions:
            one.changed.set()

    async def subscribe(self, stack: AsyncExitStack, start: str) -> Any:
        await asyncio.sleep(0)
        one = _FakeSubscription(self, self.last + 1 if start == "new" else _first(start))
        self.subscriptions.add(one)
        stack.callback(self.subscriptions.remove, one)
        return one


def _first(start: str) -> int:
    kind, _, rest = start.partition(":")
    return int(rest) if kind == "seq" else int(rest.removesuffix(f"@{STORE}")) + 1


class _FakeSubscription:
    """Delivers some messages at a time, and is live when it has had all of them."""

    gaps = popped = 0
    store = STORE

    def __init__(self, stream: _FakeStream, first: int) -> None:
        self.first = self._next = first
        # One that begins at the head is not said to have come there.
        self.state = ""
        self.changed = asyncio.Event()
        self._stream = stream

    async def columns(self, timeout: float, *, enough: Any) -> Columns | None:
        while self._next > self._stream.last:
            if enough():
                return None
            self.changed.clear()
            await self.changed.wait()
        last = min(self._next + 2, self._stream.last)
        sequences = [*range(self._next, last + 1)]
        self._next = last + 1
        self.state = "live" if last == self._stream.last else "replay"
        await asyncio.sleep(0)
        count = len(sequences)
        return Columns(sequences, 0, "", ["s"] * count, [pack_record(None, b"x")] * count)


async def _ids(events: AsyncIterator[bytes], chance: random.Random, last: int) -> list[int]:
    found: list[int] = []
    async for part in events:
        lines = part.decode().splitlines()
        found += [int(line[4:].partition("@")[0]) for line in lines if line.startswith("id: ")]
        if found[-1] == last:
            return found
        for _ in range(chance.choice((0, 0, 0, 1, 30))):
            await asyncio.sleep(0)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_every_page_has_every_message_once_whatever_its_pace(seed: int) -> None:
    chance = random.Random(seed)
    total = 150

    async def play() -> None:
        stream = _FakeStream()
        settings = GatewaySettings(event_bytes=chance.choice((100, 700, 5_000)))
        table = SharedEventsTable(settings)

        async def page() -> None:
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            begin = chance.choice(("new", f"seq:{chance.randint(1, stream.last + 1)}"))
            async with AsyncExitStack() as stack:
                shared = await stack.enter_async_context(table.joined("key", stream.subscribe))
                one = FollowingPage(shared, stream.subscribe, 60.0)
                stack.push_async_callback(one.leave)
                first, store = await one.begin(begin)
                events = one.events(EventWriter(first, store), stack.pop_all())
                stack.push_async_callback(events.aclose)
                assert await _ids(events, chance, total) == [*range(first, total + 1)]
                assert begin == "new" or first == int(begin[4:]) - 1

        pages = [asyncio.create_task(page()) for _ in range(6)]
        while stream.last < total or not all(one.done() for one in pages):
            if stream.last < total:
                stream.publish()
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            if any(one.done() and one.exception() for one in pages):
                break
        await asyncio.gather(*pages)
        await asyncio.sleep(0)
        assert not len(table)
        assert not stream.subscriptions

    asyncio.run(asyncio.wait_for(play(), WAIT_SECONDS))
