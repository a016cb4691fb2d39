"""Codecs: any value as a body, handlers of values, and the header that says what a body is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgpack
import msgspec
import pytest

import malamute
from malamute import aio, errors
from malamute.testing import Broker

PATIENCE = 60


@dataclass
class Order:
    item: str
    count: int


class Price(msgspec.Struct):
    cents: int


class Model:
    """As a model of pydantic is used."""

    def __init__(self, item: str) -> None:
        self.item = item

    def model_dump(self, mode: str) -> dict[str, str]:
        return {"item": self.item}

    @classmethod
    def model_validate(cls, value: dict[str, str]) -> Model:
        return cls(**value)

    @classmethod
    def model_validate_json(cls, body: bytes) -> Model:
        return cls.model_validate(json.loads(body))


class Reversed:
    """A codec of a program's own."""

    content_type = "text/reversed"

    def encode(self, value: Any, /) -> bytes:
        return str(value)[::-1].encode()

    def decode(self, body: bytes, kind: Any, /) -> Any:
        return kind(body.decode()[::-1])


@pytest.fixture
def name() -> str:
    return uuid4().hex


@pytest.mark.parametrize(
    ("codec", "content_type", "read"),
    [("json", "application/json", json.loads), ("msgpack", "application/msgpack", msgpack.unpackb)],
)
def test_a_value_is_sent_by_each_call_and_read(
    broker: Broker, name: str, codec: Any, content_type: str, read: Any
) -> None:
    with malamute.connect(broker.url, address=name, codec=codec, timeout=PATIENCE) as client:
        client.publish(name, "a", Order("ink", 2))
        client.publish_nowait(name, "a", {"item": "pen", "count": 1}, {"unit": "box"})
        with client.publisher(name) as out:
            out.publish("a", Model("cap"))
        first, second, third = client.history(name)
        assert first.headers == {"content-type": content_type}
        assert read(first.body) == {"item": "ink", "count": 2}
        assert first.value(Order) == Order("ink", 2)
        assert second.value() == {"item": "pen", "count": 1}
        assert second.headers == {"content-type": content_type, "unit": "box"}
        assert third.value(Model).item == "cap"

        client.send(name, "a", [1, 2])
        assert client.receive(PATIENCE).value(list[int]) == [1, 2]
        with client.work(name) as requests:
            replies = client.request(name, "a", Price(5), timeout=PATIENCE)
            request = requests.receive(PATIENCE)
            request.reply(Price(2 * request.value(Price).cents))
            assert [reply.value(Price) for reply in replies] == [Price(10)]


def test_bytes_text_and_frames_are_sent_as_they_are(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, codec="json", timeout=PATIENCE) as client:
        for body in (b"", bytearray(b"x"), "ü", [b"a", b"b"]):
            client.publish(name, "a", body)
        messages = [*client.history(name)]
    assert [message.body for message in messages] == [b"", b"x", "ü".encode(), b"ab"]
    assert not any(message.headers for message in messages)


def test_without_a_codec_a_value_is_refused(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        with pytest.raises(errors.InvalidValue, match="invalid body"):
            client.publish(name, "a", Order("ink", 2))
        with pytest.raises(errors.InvalidValue, match="json and a body"):
            client.publish(name, "a", "text", json=1)
    with pytest.raises(
        errors.InvalidValue, match="invalid codec 'xml': expected 'json', 'msgpack', or a codec"
    ):
        malamute.connect(broker.url, codec="xml")  # type: ignore[arg-type]
    with (
        malamute.connect(broker.url, codec="msgpack", timeout=PATIENCE) as client,
        pytest.raises(errors.InvalidValue, match="invalid msgpack <object"),
    ):
        client.publish(name, "a", object())


def test_a_codec_of_ones_own(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, codec=Reversed(), timeout=PATIENCE) as client:

        @client.service(name)
        def double(number: malamute.Request) -> int:
            client.stop()
            return 2 * number.value(int, Reversed())

        replies = client.request(name, "a", 21, timeout=PATIENCE)  # type: ignore[arg-type]
        client.run()
        [reply] = replies
        assert (reply.body, reply.headers) == (b"24", {"content-type": "text/reversed"})
        with pytest.raises(errors.InvalidValue, match="content type 'text/reversed' is unknown"):
            reply.value()


def test_a_handler_of_values(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:

        @client.service(name)
        def price(order: Order) -> Price:
            client.stop()
            return Price(100 * order.count)

        replies = client.request(name, "a", json=Order("ink", 2), timeout=PATIENCE)
        client.run()
        [reply] = replies
        assert reply.json(Price) == Price(200)
        assert reply.headers == {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [(list[int], [1, 2]), (dict[str, int], {"a": 1}), (dict, {}), (int, 7), (list[Order], [])],
)
def test_a_handler_of_plain_values(broker: Broker, name: str, kind: Any, value: object) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:

        def same(value: Any) -> Any:
            client.stop()
            return {"same": value}

        same.__annotations__["value"] = kind
        client.service(name)(same)
        replies = client.request(name, "a", json=value, timeout=PATIENCE)
        client.run()
        assert [reply.json() for reply in replies] == [{"same": value}]


def test_a_handler_gets_the_message_behind_its_value(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, address=name, codec="msgpack", timeout=PATIENCE) as client:
        found: list[Any] = []

        @client.on_mail()
        def handle(order: Order, mail: malamute.Mail) -> None:
            found.append((order, mail.subject))
            client.stop()

        client.send(name, "new", Order("ink", 2))
        client.run()
        assert found == [(Order("ink", 2), "new")]


def test_a_body_that_is_no_such_value_is_rejected_at_once(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, address=name, timeout=PATIENCE) as client:
        calls = 0

        @client.service(name)
        def price(order: Order) -> None:
            nonlocal calls
            calls += 1

        @client.service(f"{name}-end")
        def end(request: malamute.Request) -> None:
            client.stop()

        replies = client.request(name, "a", json={"item": "ink"}, assurance="confirmed", timeout=PATIENCE)
        client.enqueue(f"{name}-end", "a", delay=0.2)
        client.run()
        assert replies.wait(PATIENCE) == "rejected"
        assert replies.reason.startswith("Unreadable: handler price takes Order: body of message 1: ")
        assert calls == 0


def test_handlers_of_values_on_asyncio(broker: Broker, name: str) -> None:
    async def program() -> None:
        async with aio.connect(broker.url, codec="json", timeout=PATIENCE) as client:

            @client.service(name)
            async def price(order: Order, request: aio.Request) -> dict[str, int]:
                client.stop()
                return {"cents": 100 * order.count, "sequence": request.sequence}

            replies = await client.request(name, "a", Order("ink", 2), timeout=PATIENCE)
            await client.run()
            assert [reply.value() async for reply in replies] == [{"cents": 200, "sequence": 1}]

    asyncio.run(program())
