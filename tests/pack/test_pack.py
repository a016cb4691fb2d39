"""The runner between real brokers: each message comes once, in order, whatever becomes of anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import malamute.aio
from malamute.access import AccessRule
from malamute.client.aio.client import Client
from malamute.client.aio.driver import AioDriver
from malamute.client.contexts import Context, Contexts, InvalidContext, save
from malamute.client.link.client import open_driver
from malamute.config import AccessConfig, Config, LimitsConfig
from malamute.pack import carrier
from malamute.pack.credentials import credentials_for
from malamute.pack.runner import Runner, _connected
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Broker]]:
    """Three brokers that keep their data."""
    made = [Broker(tmp_path / name) for name in ("a", "b", "c")]
    for broker in made:
        broker.start()
    yield made
    for broker in made:
        broker.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and changes of runners come soon."""
    monkeypatch.setattr(carrier, "REPORT_SECONDS", 0.2)
    monkeypatch.setattr(carrier, "QUIET_SECONDS", 2.0)


@asynccontextmanager
async def running(url: str) -> AsyncIterator[None]:
    """A runner for the broker at a URL, which ends as if it was killed."""
    driver = await open_driver(AioDriver, url)
    runner = Runner(url, {}, Client(driver), driver.check)
    task = asyncio.ensure_future(runner.follow())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await runner.end()
        with suppress(asyncio.CancelledError, malamute.MalamuteError):
            await task
        driver.close()


def link(source: Broker, target: Broker, stream: str, name: str = "link", **more: Any) -> Any:
    """Set a link between streams of one name."""
    given = {"link": name, "urls": [source.url], "remote": stream, "stream": stream, "start": "first", **more}
    with malamute.connect(target.url) as client:
        return client.change("link.set", **given)


def publish(broker: Broker, stream: str, numbers: range, **more: Any) -> None:
    with (
        malamute.connect(broker.url, address="alice", timeout=PATIENCE) as client,
        client.publisher(stream, **more) as out,
    ):
        for number in numbers:
            out.publish(f"n.{number % 7}", b"%d" % number)


def history(broker: Broker, stream: str) -> list[tuple[int, str]]:
    """All messages of a stream, and the number of each sender."""
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        last = client.query("stream", name=stream)["last"]
        found = islice(client.subscribe(stream, start="first", committed=True), last)
        return [(int(message.body), message.sender) for message in found]


async def until(done: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to a question when that is true."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await done()):
            await asyncio.sleep(0.02)
    return found


async def row(broker: Broker, name: str = "link") -> Any:
    async with malamute.aio.connect(broker.url) as client:
        return await client.query("link", link=name)


async def have(broker: Broker, stream: str, count: int) -> None:
    async def done() -> bool:
        async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
            try:
                return bool((await client.query("stream", name=stream))["last"] >= count)
            except malamute.NotFound:
                return False

    await until(done)


def new_stream() -> str:
    return f"s-{uuid4().hex[:8]}"


def test_messages_go_over_two_links_in_order_with_their_senders(brokers: list[Broker]) -> None:
    first, second, third = brokers
    stream = new_stream()
    publish(first, stream, range(500))
    link(first, second, stream)
    link(second, third, stream)

    async def carry() -> None:
        async with running(second.url), running(third.url):
            await asyncio.to_thread(publish, first, stream, range(500, 1000))
            await have(third, stream, 1000)
            found = await until(lambda: _running_without_lag(third))
            assert found["taken"] == 1000

    asyncio.run(carry())
    assert history(third, stream) == [(number, "alice") for number in range(1000)]


async def _running_without_lag(broker: Broker) -> Any:
    found = await row(broker)
    return found if found["state"] == "running" and found["lag"] == 0 else None


def test_each_message_comes_once_over_ends_of_runners_and_restarts_of_brokers(brokers: list[Broker]) -> None:
    first, second, third = brokers
    stream = new_stream()
    link(first, second, stream)
    link(second, third, stream)
    total = 6000

    async def restart(broker: Broker) -> None:
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)

    async def carry() -> None:
        publishing = asyncio.ensure_future(asyncio.to_thread(publish, first, stream, range(total)))
        async with running(third.url):
            for broker in (first, second, third):
                async with running(second.url):
                    await have(second, stream, 1)
                    await restart(broker)
                # Its runner has ended with what was under way.
            async with running(second.url), running(second.url):
                await publishing
                await have(third, stream, total)

    asyncio.run(carry())
    assert [number for number, _ in history(third, stream)] == [*range(total)]


def test_two_runners_bring_each_message_once(brokers: list[Broker]) -> None:
    source, target, _ = brokers
    stream = new_stream()
    link(source, target, stream)

    async def carry() -> None:
        async with running(target.url), running(target.url):
            await asyncio.to_thread(publish, source, stream, range(3000))
            await have(target, stream, 3000)

    asyncio.run(carry())
    assert [number for number, _ in history(target, stream)] == [*range(3000)]


def test_criteria_choose_and_a_link_that_begins_anew_has_all_that_came_since(brokers: list[Broker]) -> None:
    source, target, _ = brokers
    stream = new_stream()
    publish(source, stream, range(3))
    link(source, target, stream, criteria=[["topic", "n.1"]], start="new")

    async def carry() -> None:
        async with running(target.url):
            await until(lambda: _running_without_lag(target))
        # The position of its beginning is stored, so nothing is left out while no runner is there.
        await asyncio.to_thread(publish, source, stream, range(7, 28))
        async with running(target.url):
            await have(target, stream, 3)

    asyncio.run(carry())
    assert [number for number, _ in history(target, stream)] == [8, 15, 22]


def test_a_link_that_nothing_matches_stands_behind_all_that_it_has_seen(brokers: list[Broker]) -> None:
    source, target, _ = brokers
    stream = new_stream()
    link(source, target, stream, criteria=[["topic", "n.1"]])

    async def seen() -> bool:
        return str((await row(target))["position"]).startswith("30@")

    async def carry() -> None:
        async with running(target.url):
            await until(lambda: _running_without_lag(target))
            await asyncio.to_thread(publish, source, stream, range(0, 210, 7))
            await until(seen)
            await asyncio.to_thread(publish, source, stream, range(1, 2))
            await have(target, stream, 1)
        assert (await row(target))["gaps"] == {}

    asyncio.run(carry())
    assert [number for number, _ in history(target, stream)] == [1]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_circle_of_three_ends_at_the_newest_link(brokers: list[Broker], at_once: bool) -> None:
    stream = new_stream()
    first, second, third = brokers

    async def carry() -> None:
        async with running(first.url), running(second.url), running(third.url):
            link(first, second, stream)
            link(second, third, stream)
            if not at_once:
                await until(lambda: _running_without_lag(third))
                await until(lambda: _ways(third, 2))
            link(third, first, stream)
            found = await until(lambda: _stopped(first))
            assert "it would close a circle" in found["reason"]
            assert found["reason"].count(" > link link > ") == 3
            # Nothing goes round any more.
            await asyncio.to_thread(publish, first, stream, range(50))
            await have(third, stream, 50)
            assert (await row(second))["state"] == (await row(third))["state"] == "running"

    async def _ways(broker: Broker, count: int) -> bool:
        async with malamute.aio.connect(broker.url) as client:
            return len((await client.query("link.origin", stream=stream))["ways"]) == count

    asyncio.run(carry())
    for broker in brokers:
        assert [number for number, _ in history(broker, stream)] == [*range(50)]


async def _stopped(broker: Broker) -> Any:
    found = await row(broker)
    return found if found["state"] == "stopped" else None


def test_another_broker_at_the_url_stops_the_link_until_it_is_set_again(
    brokers: list[Broker], tmp_path: Path
) -> None:
    source, target, other = brokers
    stream = new_stream()
    publish(source, stream, range(10))
    publish(other, stream, range(100, 105))
    link(source, target, stream)

    async def carry() -> None:
        async with running(target.url):
            await have(target, stream, 10)
            link(other, target, stream, start="")
            found = await until(lambda: _stopped(target))
            assert "and not" in found["reason"]
            link(other, target, stream, start="first")
            await have(target, stream, 15)

    asyncio.run(carry())
    assert [number for number, _ in history(target, stream)] == [*range(10), *range(100, 105)]


def test_a_target_that_starts_again_is_told_of_a_link_at_rest(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "REPORT_SECONDS", 10 * PATIENCE)
    source, target, _ = brokers
    link(source, target, new_stream())

    async def carry() -> None:
        async with running(target.url):
            await until(lambda: _running_without_lag(target))
            await asyncio.to_thread(target.stop)
            await asyncio.to_thread(target.start)
            await until(lambda: _running_without_lag(target))

    asyncio.run(carry())


def test_trouble_at_the_source_is_told_and_ends(brokers: list[Broker]) -> None:
    source, target, _ = brokers
    stream = new_stream()
    publish(source, stream, range(5))
    source.stop()
    link(source, target, stream)

    async def away() -> Any:
        found = await row(target)
        return found if found["state"] == "away" else None

    async def carry() -> None:
        async with running(target.url):
            found = await until(away)
            assert "no broker answered" in found["reason"]
            await asyncio.to_thread(source.start)
            await have(target, stream, 5)

    asyncio.run(carry())


def test_a_message_that_is_too_large_for_the_target_is_a_gap_and_the_rest_comes(tmp_path: Path) -> None:
    stream = new_stream()
    config = Config(limits=LimitsConfig(message_bytes=70_000))
    with Broker() as source, Broker(tmp_path / "small", config=config) as target:
        with malamute.connect(source.url) as client:
            for size in (30_000, 30_000, 30_000, 80_000, 10):
                client.publish(stream, "a", b"x" * size)
        link(source, target, stream)

        async def carry() -> None:
            async with running(target.url):
                await have(target, stream, 4)
                assert (await row(target))["gaps"] == {"TooLarge": 1}

        asyncio.run(carry())


# --- rights and credentials


def test_a_source_without_the_right_is_trouble_in_the_words_of_its_broker(tmp_path: Path) -> None:
    stream = new_stream()
    rules = AccessConfig(rules=(AccessRule.parse("subscribe stream/other"),))
    with Broker(config=Config(access=rules)) as source, Broker(tmp_path / "t") as target:
        link(source, target, stream)

        async def refused() -> Any:
            found = await row(target)
            return found if "is not allowed" in found["reason"] else None

        async def carry() -> None:
            async with running(target.url):
                assert (await until(refused))["state"] == "away"

        asyncio.run(carry())


def test_credentials_are_those_of_the_context_and_for_its_own_urls_alone(tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    there = Context(url="tcp://a:9999,tcp://b:9999", user="edge", password="secret")
    save(file, Contexts("there", {"there": there, "nowhere": Context(user="x")}))
    assert credentials_for(str(file), ["tcp://b:9999"], {}) == {"user": "edge", "password": "secret"}
    assert credentials_for("", ["tcp://b:9999"], {"MALAMUTE_PASSWORD": "own"}) == {}
    with pytest.raises(InvalidContext, match="has no credentials for tcp://evil:9999"):
        credentials_for(str(file), ["tcp://a:9999", "tcp://evil:9999"], {})
    with pytest.raises(InvalidContext, match="there is no context 'none'"):
        credentials_for("none", ["tcp://a:9999"], {"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_runner_waits_for_a_broker_that_starts_after_it(brokers: list[Broker]) -> None:
    broker = brokers[0]
    broker.stop()

    async def begin() -> None:
        over = asyncio.Event()
        waiting = asyncio.ensure_future(_connected(broker.url, {"timeout": 0.2}, over))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(broker.start)
        driver = await waiting
        assert driver is not None
        driver.close()
        over.set()
        assert await _connected(broker.url, {}, over) is None

    asyncio.run(begin())
