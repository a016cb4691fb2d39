"""Bodies as JSON and as text, by the blocking and by the asyncio client."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

import malamute
from malamute import aio
from malamute.errors import InvalidValue
from malamute.testing import Broker


@dataclass
class Reading:
    station: str
    celsius: float


READING = Reading("oslo", -3.5)


def test_a_value_is_published_sent_requested_and_replied_as_json(malamute_broker: Broker) -> None:
    with malamute.connect(malamute_broker.url, address="me") as client:
        client.publish("log", "a", json=READING, assurance="stored")
        with client.publisher("log") as out:
            out.publish("b", json={"n": None}, headers={"unit": "C"})
        with client.subscribe("log", start="first") as messages:
            first, second = messages.receive(5), messages.receive(5)
        assert first.json(Reading) == READING
        assert json.loads(first.body) == first.json() == {"station": "oslo", "celsius": -3.5}
        assert second.json() == {"n": None}
        assert second.headers == {"content-type": "application/json", "unit": "C"}

        client.send("me", "mail", json=[1, 2])
        mail = client.receive(timeout=5)
        assert mail.json(list[int]) == [1, 2]
        mail.ack()

        with client.work("double") as requests:
            replies = client.request("double", "x", json=21, timeout=5)
            request = requests.receive(5)
            request.reply(json=2 * request.json(int))
            assert [reply.json() for reply in replies] == [42]


def test_the_asyncio_client_sends_and_reads_json(malamute_broker: Broker) -> None:
    async def program() -> None:
        async with await aio.connect(malamute_broker.url) as client:
            await client.publish("log", "a", json={"ü": 1}, assurance="stored")
            async with client.publisher("log") as out:
                await out.publish("b", json=READING)
            async with client.subscribe("log", start="first") as messages:
                assert (await messages.receive(5)).json() == {"ü": 1}
                assert (await messages.receive(5)).json(Reading) == READING

    asyncio.run(program())


def test_text_is_utf_8_and_read_back_as_text(malamute_broker: Broker) -> None:
    with malamute.connect(malamute_broker.url) as client:
        client.publish("log", "a", "Blåbær", assurance="stored")
        client.publish("log", "a", b"\xff", assurance="stored")
        with client.subscribe("log", start="first") as messages:
            first, second = messages.receive(5), messages.receive(5)
    assert (first.text, first.body) == ("Blåbær", "Blåbær".encode())
    with pytest.raises(InvalidValue, match="body of message 2 is no text"):
        _ = second.text
    with pytest.raises(InvalidValue, match="body of message 2"):
        second.json()
    with pytest.raises(InvalidValue, match="body of message 1"):
        first.json(Reading)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": object()}, "object has no form in JSON"),
        ({"json": {1: {2: {object(): 3}}}}, "invalid json"),
        ({"json": 1, "body": b"x"}, "json and a body: expected one of them"),
        ({"body": "\udce9"}, "expected text that has a form in UTF-8"),
    ],
)
def test_a_body_that_cannot_be_is_refused_and_nothing_is_published(
    malamute_broker: Broker, given: dict[str, Any], words: str
) -> None:
    with malamute.connect(malamute_broker.url) as client:
        with pytest.raises(InvalidValue, match=words):
            client.publish("log", "a", assurance="stored", **given)
        assert client.publish("log", "a", json=math.inf, assurance="stored") == 1, "infinite is null in JSON"
