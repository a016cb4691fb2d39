"""Quotas at a real broker with the default configuration: what a program sees that has too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import malamute
import malamute.aio
from malamute.access import Quota
from malamute.config import AccessConfig, Config
from malamute.protocol.admin import QuotasQuery, StatusQuery
from malamute.testing import Broker

# A command that brings so much more than a second allows keeps those behind it out for seconds.
RATE = Quota(messages_per_second=20)
BATCH = ["a"] * 60, [b"x"] * 60


@contextmanager
def broker_with(quota: Quota) -> Iterator[Broker]:
    with Broker(config=replace(Config(), access=AccessConfig(quota=quota))) as broker:
        yield broker


def test_a_rate_is_refused_with_the_time_after_which_it_is_not() -> None:
    with broker_with(RATE) as broker, malamute.connect(broker.url) as client:
        assert client.publish_batch("s", *BATCH) == 1
        with pytest.raises(malamute.QuotaExceeded, match="messages_per_second: 1 more") as caught:
            client.publish("s", "a", b"y", assurance="stored")
        assert 0 < caught.value.retry_after <= 2.05
        time.sleep(caught.value.retry_after)
        assert client.publish("s", "a", b"y", assurance="stored") == 61
        assert client.query(StatusQuery()).quotas_exceeded == 1
        (row,) = client.query(QuotasQuery())
        assert [(figure.name, figure.limit, figure.refused) for figure in row.quotas] == [
            ("messages_per_second", 20, 1)
        ]


def test_of_pipelined_messages_each_receipt_tells_what_became_of_it() -> None:
    with broker_with(RATE) as broker, malamute.connect(broker.url) as client:
        client.publish_batch("s", *BATCH)
        with client.publisher("s") as publisher:
            receipts = [publisher.publish("a", b"y") for _ in range(5)]
            with pytest.raises(malamute.QuotaExceeded):
                publisher.flush()
        errors = [receipt.error for receipt in receipts]
        assert all(isinstance(error, malamute.QuotaExceeded) and error.retry_after > 0 for error in errors)


def test_an_unconfirmed_message_that_is_refused_is_an_event() -> None:
    refused: list[malamute.MalamuteError] = []

    def note(event: object) -> None:
        if (error := getattr(event, "error", None)) is not None:
            refused.append(error)

    with broker_with(RATE) as broker, malamute.connect(broker.url) as client:
        client.on_event = note
        client.publish_batch("s", *BATCH)
        client.publish_nowait("s", "a", b"y")
        client.query(StatusQuery())
        assert [type(error) for error in refused] == [malamute.QuotaExceeded]
        assert refused[0].retry_after > 0


def test_one_connection_too_many_is_refused_at_once() -> None:
    with broker_with(Quota(connections=1)) as broker:
        with malamute.connect(broker.url):
            with pytest.raises(malamute.QuotaExceeded, match="connections: 1 used") as caught:
                malamute.connect(broker.url, timeout=20)
            assert caught.value.retry_after == 0
        malamute.connect(broker.url).close()


def test_a_coroutine_gets_the_same_error() -> None:
    async def play(url: str) -> None:
        async with await malamute.aio.connect(url) as client:
            await client.publish_batch("s", *BATCH)
            with pytest.raises(malamute.QuotaExceeded) as caught:
                await client.publish("s", "a", b"y", assurance="stored")
            assert caught.value.retry_after > 0

    with broker_with(RATE) as broker:
        asyncio.run(play(broker.url))
