"""The client with a real broker, where no dialogue of `tests/scenarios` shows it."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest

import malamute
import malamute.aio
from malamute import errors
from malamute.client.events import Event, Gap
from malamute.config.sections import StreamsConfig
from malamute.protocol.admin import StoredQuery
from malamute.testing import Broker, small_config


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="alice", timeout=20) as client:
        client.on_event = lambda event: None
        yield client


def test_the_newest_owner_of_an_address_wins(broker, client):
    with malamute.connect(broker.url, address="alice"), pytest.raises(errors.AddressTaken):
        client.mailbox().receive(10)


def test_a_program_that_seeds_its_random_numbers_gets_them_beside_a_client_that_reconnects(broker, client):
    random.seed(1)
    expected = random.getstate()
    client.publish("s", "a", b"", assurance="stored")
    broker.restart()
    client.publish("s", "a", b"", assurance="stored")
    assert random.getstate() == expected


def test_columns_come_as_they_were_published_and_end_when_there_is_enough(client):
    for number in range(2500):
        client.publish_nowait("s", f"a.{number % 3}", b"%d" % number)
    # A subscription to what is on its way to the disk is live from there on, and has had nothing yet.
    client.publish("s", "end", b"", assurance="stored")
    live: list[Event] = []
    client.on_event = live.append
    with client.subscribe("s", "a.1", "a.2", start=11, credit=100) as subscription:
        assert subscription.first == 11
        runs = []
        while (columns := subscription.columns(20, enough=lambda: live)) is not None or not live:
            runs += [columns] if columns is not None else []
    numbers = [number for number in range(10, 2500) if number % 3]
    assert [sequence for run in runs for sequence in run.each_sequence()] == [
        number + 1 for number in numbers
    ]
    assert [subject for run in runs for subject in run.subjects] == [f"a.{number % 3}" for number in numbers]
    assert [event.state for event in live] == ["live"]
    assert max(map(len, runs)) <= 25


def test_waiting_for_columns_ends_with_the_time_and_with_the_subscription(client):
    subscription = client.subscribe("s", start="new")
    assert subscription.first == 1
    with pytest.raises(errors.TimedOut):
        subscription.columns(0.01)
    assert subscription.columns(20, enough=lambda: True) is None
    subscription.cancel()
    assert subscription.columns(20) is None


# Messages that expire, and streams that age


def test_messages_expire_for_programs_of_both_kinds(client: malamute.Client, broker: Broker) -> None:
    async def publish_and_read() -> list[tuple[bytes, datetime | None]]:
        async with await malamute.aio.connect(broker.url) as other:
            await other.publish("quotes", "eur", b"old", ttl=timedelta(milliseconds=1), assurance="stored")
            await other.publish_batch("quotes", ["eur"], [b"old"], ttl=0.001)
            async with other.publisher("quotes", ttl=0.001) as out:
                await out.publish("eur", b"old")
            await other.publish("quotes", "eur", b"new", ttl=3600, assurance="stored")
            await asyncio.sleep(0.002)
            async with other.subscribe("quotes", start=1) as quotes:
                message = await quotes.receive(timeout=10)
                assert [*quotes.recent_gaps] == [Gap("quotes", 1, 3, "expired")]
                return [(message.body, message.expires)]

    (body, expires), *more = asyncio.run(publish_and_read())
    assert body == b"new"
    assert not more
    with client.subscribe("quotes", start="last") as quotes:
        client.publish_nowait("quotes", "eur", b"for ever")
        found = [quotes.receive(timeout=10) for _ in range(2)]
    assert [message.expires for message in found] == [expires, None]
    assert expires == found[0].time + timedelta(hours=1)
    for ttl in (0, -1, 11 * 365 * 86_400, "1s"):
        with pytest.raises(errors.InvalidValue):
            client.publish_nowait("quotes", "eur", b"", ttl=ttl)


def test_a_stream_at_rest_loses_what_is_too_old(tmp_path: Path) -> None:
    config = replace(small_config(), streams=StreamsConfig(age=0.2))
    with Broker(tmp_path, config=config) as broker, malamute.connect(broker.url, timeout=20) as client:
        client.publish("s", "a", b"1", assurance="stored")
        client.publish("s", "a", b"2", assurance="stored")
        deadline = monotonic() + 20
        while client.query(StoredQuery(stream="s"))[0].count:
            assert monotonic() < deadline, "a stream at rest does not age"
            sleep(0.05)
        assert client.query(StoredQuery(stream="s"))[0].last == 2
