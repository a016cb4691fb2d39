"""Ids of published messages: one message under each, whatever is killed between sending and confirmation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

import malamute
from malamute.aio import connect
from malamute.server.process import BrokerProcess
from malamute.testing import Broker

CONFIRMED = 30
"""Confirmations that a producer has before it is killed."""

PRODUCER = """
import sys
from itertools import count
import malamute

with malamute.connect(sys.argv[1]) as client:
    for number in count(int(sys.argv[2])):
        client.publish("orders", "new", str(number).encode(), assurance="stored", id=str(number))
        print(number, flush=True)
"""


def _publish_until_killed(url: str, first: int, *, broker: int = 0) -> int:
    """Publish under ascending ids, kill the producer, and a broker. Return the last number confirmed."""
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, url, str(first)], stdout=subprocess.PIPE, text=True
    ) as producer:
        assert producer.stdout is not None
        confirmed = [int(producer.stdout.readline()) for _ in range(CONFIRMED)]
        if broker:
            os.kill(broker, signal.SIGKILL)
        producer.kill()
    return confirmed[-1]


def test_each_id_is_stored_once_over_kills_of_producer_and_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        last = _publish_until_killed(process.url, 0)
        # The next producer knows less: the first half of what it publishes is stored.
        last = _publish_until_killed(process.url, last - CONFIRMED // 2, broker=process.pid)
        process.wait(10.0)
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url) as client:
        again = [
            client.publish("orders", "new", str(number).encode(), assurance="stored", id=str(number))
            for number in range(last + 1)
        ]
        assert all(duplicate(sequence) for sequence in again)
        client.publish("orders", "end", b"", assurance="stored")
        with client.subscribe("orders", start="first") as messages:
            bodies = [int(m.body) for m in takewhile(lambda m: m.subject != "end", messages)]
    # A producer may have published more than was read of its confirmations.
    assert bodies == [*range(max(last + 1, len(bodies)))]


def duplicate(sequence: int) -> bool:
    """Whether a message that was published with an id had been stored before."""
    assert isinstance(sequence, malamute.StoredSequence)
    return sequence.duplicate


def test_a_confirmation_says_that_it_was_a_duplicate() -> None:
    with Broker() as broker, malamute.connect(broker.url) as client:
        first = client.publish("orders", "new", b"7", assurance="stored", id="order-7")
        again = client.publish("orders", "new", b"7", assurance="stored", id="order-7")
        assert not duplicate(first)
        assert duplicate(again)
        assert again == first > 0
        batch = client.publish_batch("orders", ["a", "b"], [b"1", b"2"], id="batch-1")
        repeated = client.publish_batch("orders", ["a", "b"], [b"1", b"2"], id="batch-1")
        assert (repeated, duplicate(repeated), duplicate(batch)) == (batch, True, False)
        # Without a confirmation, too.
        client.publish("orders", "new", b"7", id="order-7")
        assert client.publish("orders", "end", b"", assurance="stored") == batch + 2


def test_an_id_that_is_no_name_is_refused() -> None:
    with Broker() as broker, malamute.connect(broker.url) as client, pytest.raises(malamute.InvalidName):
        client.publish("orders", "new", b"7", id="a" * 300)


def test_an_id_with_another_content_is_refused_and_a_trace_is_no_content() -> None:
    with Broker() as broker, malamute.connect(broker.url) as client:
        first = client.publish("orders", "new", b"7", {"traceparent": "1"}, assurance="stored", id="7")
        again = client.publish("orders", "new", b"7", {"traceparent": "2"}, assurance="stored", id="7")
        assert (again, duplicate(again)) == (first, True)
        with pytest.raises(malamute.InvalidValue, match="id '7' was used for another content") as caught:
            client.publish("orders", "new", b"8", assurance="stored", id="7")
        assert caught.value.about == 2
        assert client.publish("orders", "end", b"", assurance="stored") == first + 1


def test_asyncio_knows_ids_too() -> None:
    async def publish_twice(url: str) -> tuple[int, int, bool]:
        async with connect(url) as client:
            first = await client.publish("orders", "new", b"7", assurance="stored", id="7")
            again = await client.publish("orders", "new", b"7", assurance="stored", id="7")
            return first, again, duplicate(again)

    with Broker() as broker:
        first, again, known = asyncio.run(publish_twice(broker.url))
    assert (again, known) == (first, True)
