"""Arguments of calls are taken for their meaning, or refused before anything is sent."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import malamute
import malamute.aio
from malamute.errors import LinkError
from malamute.protocol.texts import fitting, shown, words_of
from malamute.testing import Broker


def pandas() -> ModuleType:
    """Return the library, whose import would be a sixth of the time that each process of a run collects."""
    return importlib.import_module("pandas")


async def asynchronous(message: object) -> bytes:
    return b""


class Asynchronous:
    async def __call__(self, message: object) -> bytes:
        return b""


@pytest.mark.parametrize("handler", [asynchronous, Asynchronous(), partial(asynchronous), 5, None])
def test_what_nobody_would_await_or_call_is_refused_as_a_handler(
    malamute_broker: Broker, handler: Any
) -> None:
    with malamute.connect(malamute_broker.url, address="worker") as client:
        for decorate in (client.service("s"), client.on_mail(), client.subscription("s")):
            with pytest.raises(malamute.InvalidValue, match="invalid handler"):
                decorate(handler)
        assert not client._handlers


@pytest.mark.parametrize("reason", ["\ud800", "x" * 256, b"bytes", object()])
def test_a_reason_that_cannot_be_sent_is_refused_and_the_message_is_still_there(
    malamute_broker: Broker, reason: Any
) -> None:
    with malamute.connect(malamute_broker.url, address="me") as client:
        client.send("me", "a", b"")
        mail = client.receive(5)
        with pytest.raises(malamute.InvalidValue, match="invalid reason"):
            mail.reject(reason)
        with pytest.raises(malamute.InvalidValue):
            mail.nak(10**9)
        assert not mail.settled


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("text", "most", "fits"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "…"),
        ("abcde", 4, "a…"),
        ("", 0, ""),
        ("\udce9", 6, r"\udce9"),
        ("\udce9", 5, r"\u…"),
        ("\N{SNOWMAN}" * 2, 6, "\N{SNOWMAN}" * 2),
        ("\N{SNOWMAN}" * 2, 5, "…"),
        ("x" * 10_000_000, 10, "xxxxxxx…"),
    ],
)
def test_a_text_fits_and_has_a_form_in_utf8(text: str, most: int, fits: str) -> None:
    assert fitting(text, most) == fits


def test_what_is_shown_of_a_value_or_an_exception_is_short_and_never_raises() -> None:
    nested: Any = "x" * 1_000_000
    for value in (nested, nested.encode(), bytearray(nested.encode()), [nested] * 100, {nested: nested}):
        assert len(shown(value)) < 1_000
    assert "Mute" in shown(Mute())
    assert shown("\ud800") == r"'\ud800'"
    assert words_of(Mute(), 100) == "Mute"
    assert words_of(ValueError(), 100) == "ValueError"
    assert words_of(ValueError("caf\udce9"), 100) == r"ValueError: caf\udce9"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Number(float):
    pass


HUGE = "x" * 5_000_000
WRONG: dict[str, Callable[[Any], Any]] = {
    **{
        f"timeout={shown(value)} of {name}": partial(call, value)
        for value in ("5", math.nan, True, b"5", HUGE, object(), 10**400)
        for name, call in {
            "publish": lambda value, client: client.publish("s", "a", b"", assurance="stored", timeout=value),
            "publish_batch": lambda value, client: client.publish_batch("s", ["a"], [b""], timeout=value),
            "publisher": lambda value, client: client.publisher("s", timeout=value),
            "send": lambda value, client: client.send("b", "a", b"", timeout=value),
            "request": lambda value, client: client.request("b", "a", b"", timeout=value),
            "receive": lambda value, client: client.receive(timeout=value),
            "subscribe": lambda value, client: client.subscribe("s", timeout=value),
            "work": lambda value, client: client.work("s", timeout=value),
            "query": lambda value, client: client.query("status", timeout=value),
            "withdraw": lambda value, client: client.withdraw("mailbox", "b", 1, timeout=value),
            "flush": lambda value, client: client.flush(timeout=value),
        }.items()
    },
    **{
        f"credit={shown(value)} of {name}": partial(call, value)
        for value in ("5", None, 1.5, 0, -2, 2**63, 2**64, True, math.nan, HUGE, [])
        for name, call in {
            "subscribe": lambda value, client: client.subscribe("s", credit=value),
            "subscribe, bytes": lambda value, client: client.subscribe("s", credit_bytes=value),
            "work": lambda value, client: client.work("s", credit=value),
            "mailbox": lambda value, client: client.mailbox(credit=value),
            "service": lambda value, client: client.service("s", credit=value),
            "on_mail": lambda value, client: client.on_mail(credit=value),
        }.items()
    },
    **{
        f"{name}={shown(value)}": partial(
            lambda name, value, client: client.send("b", "a", b"", **{name: value}), name, value
        )
        for name, values in {
            "at": (datetime.max, "now", 5, datetime.max.replace(tzinfo=UTC)),
            "ttl": (0, -1, "5", math.nan, math.inf, True, timedelta(days=5000), 10**400),
            "delay": (-1, "5", math.nan, math.inf, timedelta.max, timedelta.min),
            "priority": (10, -1, 1.0, "1", True, 2**70),
            "immediate": (1, "yes"),
            "id": ("", 5, HUGE, "x" * 256),
            "reply_to": ("", "$x", 5, "a\nb", HUGE),
            "correlation": (1.5, HUGE, 2**64, True, object()),
            "unknown": (1,),
        }.items()
        for value in values
    },
    **{
        f"start={shown(value)}": partial(lambda value, client: client.subscribe("s", start=value), value)
        for value in (datetime.max, 2**63, 0, -1, 1.5, True, HUGE, "\ud800", b"first", timedelta(-1))
    },
    "at=NaT": lambda client: client.send("b", "a", b"", at=pandas().NaT),
    "start=NaT": lambda client: client.subscribe("s", start=pandas().NaT),
    **{
        f"{name}={shown(value)} of subscribe": partial(
            lambda name, value, client: client.subscribe("s", "p", **{name: value}), name, value
        )
        for name, values in {
            "where": (5, None, "\ud800", b"a = 1"),
            "family": (5, None, "\ud800"),
            "criteria": (5, "topic", [5], [("topic",)], [("topic", object())], [(HUGE, "a"), 5]),
            "cursor": (5, None, "a\nb", "\ud800", HUGE),
            "committed": (1, None, "yes"),
            "existing": (0, "no"),
        }.items()
        for value in values
    },
    **{
        f"headers={shown(value)}": partial(lambda value, client: client.publish("s", "a", b"", value), value)
        for value in (
            [("a", 1)],
            "text",
            {"a": b"x"},
            {1: "a"},
            {"a": 2**64},
            {"\ud800": 1},
            {"a": [HUGE]},
            5,
        )
    },
    **{
        f"body={shown(value)}": partial(lambda value, client: client.publish("s", "a", value), value)
        for value in ("half \udce9", None, 5, [b"a", "b"], {"a": 1}, object(), HUGE)
    },
    **{
        f"columns {name}": partial(lambda values, client: client.publish_batch("s", *values), values)
        for name, values in {
            "generators": ((x for x in "ab"), (x for x in "ab")),
            "numbers": (1, 2),
            "of two lengths": (["a"], [b"", b""]),
            "of odd subjects": (["a", 5], [b"", b""]),
            "empty": ([], []),
        }.items()
    },
    "a name that is none": lambda client: client.publish(5, "a", b""),
    "a service that is none": lambda client: client.work(None),
    "a subject that is none": lambda client: client.publish("s", 5, b""),
    "an assurance that is none": lambda client: client.publish("s", "a", b"", assurance=[]),
    "a topic that is none": lambda client: client.query(5),
    "a batch of none": lambda client: client.publisher("s", batch=0),
    "a batch of text": lambda client: client.publisher("s", batch="5"),
    "a linger without end": lambda client: client.publisher("s", linger=math.inf),
    "half a call at a time": lambda client: client.service("s", concurrency=1.5),
    "an outcome of a handler": lambda client: client.on_mail(on_error=[]),
}
"""The fault of each."""


REFUSALS = (malamute.InvalidValue, malamute.InvalidName, malamute.TooLarge)


async def awaited(call: Callable[[Any], Any], client: Any) -> None:
    result = call(client)
    if inspect.isawaitable(result):
        await result


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(REFUSALS) as found:
        call()
    return str(found.value)


def test_a_value_that_is_none_is_refused_at_once_and_named_in_short(broker: Broker) -> None:
    with malamute.connect(broker.url, address="me") as client:
        for what, call in WRONG.items():
            words = refused(partial(call, client))
            assert len(words) < 1_000, (what, len(words))
        sent = client.query("mailboxes")
    assert not [mailbox for mailbox in sent if mailbox["name"] == "b"]


def test_the_same_is_refused_on_an_event_loop(broker: Broker) -> None:
    async def all_of_them() -> None:
        async with malamute.aio.connect(broker.url, address="me") as client:
            for what, call in WRONG.items():
                with pytest.raises(REFUSALS) as found:
                    await awaited(call, client)
                assert len(str(found.value)) < 1_000, what

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "5"},
        {"timeout": math.nan},
        {"heartbeat": "5"},
        {"heartbeat": math.inf},
        {"address": 5},
        {"address": "a\nb"},
        {"software": "\ud800"},
        {"software": HUGE},
        {"token": 5},
        {"act_as": b"ann"},
        {"user": 5, "password": "x"},
        {"user": "ann", "password": 5},
    ],
    ids=shown,
)
def test_an_option_of_connect_that_is_none_is_refused(broker: Broker, options: Any) -> None:
    assert len(refused(lambda: malamute.connect(broker.url, **options))) < 1_000


def test_what_means_a_text_a_number_or_a_time_is_taken(broker: Broker) -> None:
    span = timedelta(seconds=5)
    with malamute.connect(broker.url, address=Text("taken"), timeout=span, heartbeat=span) as client:
        headers = {Colour.RED: Colour.RED, "text": Text("x"), "level": Level.HIGH, "number": Number(1.5)}
        plain = {"red": "red", "text": "x", "level": 3, "number": 1.5}
        client.publish(Colour.RED, Colour.RED, bytearray(b"one"), headers, assurance="stored", timeout=span)
        client.publish_batch("red", [Text("two")], [memoryview(b"two")], [headers], timeout=span)
        with client.publisher("red", batch=Level.HIGH, linger=span, timeout=span) as out:
            out.publish(Text("three"), [b"th", bytearray(b"ree")], headers)
        options = {"credit": Level.HIGH, "timeout": span, "family": Text("topic"), "where": Text("level = 3")}
        with client.subscribe(Text("red"), Text("#"), start=Text("first"), **options) as messages:
            got = [messages.receive(timeout=span) for _ in range(3)]
        assert [message.subject for message in got] == ["red", "two", "three"]
        assert [message.body for message in got] == [b"one", b"two", b"three"]
        assert [message.headers for message in got] == [plain] * 3
        client.send("taken", "a", b"", timeout=span, ttl=span, priority=Level.HIGH, id=Text("i"))
        mail = client.receive(timeout=span)
        assert mail.properties["priority"] == 3
        client.send("taken", "a", b"", at=pandas().Timestamp("2020-01-01"), correlation=Text("c"))
        assert client.receive(timeout=math.inf).correlation == "c"


def test_a_client_of_another_loop_is_refused(broker: Broker) -> None:
    async def connect() -> tuple[Any, Any, Any]:
        client = await malamute.aio.connect(broker.url, address="me")
        await client.publish("s", "a", b"")
        return client, client.publisher("s"), await client.subscribe("s")

    client, out, messages = asyncio.run(connect())

    async def refuse() -> None:
        for call in (
            lambda: client.publish("s", "a", b""),
            lambda: out.publish("a", b""),
            lambda: messages.receive(timeout=1),
            lambda: client.receive(timeout=1),
            lambda: client.query("status"),
            lambda: client.close(),
        ):
            with pytest.raises(LinkError, match="another event loop"):
                await call()

    asyncio.run(refuse())


def test_replies_that_are_dropped_or_never_iterated_do_not_pile_up_on_the_broker(broker: Broker) -> None:
    with (
        malamute.connect(broker.url, address="asker") as asker,
        malamute.connect(broker.url) as worker,
        worker.work("echo", credit=500) as work,
    ):
        kept = [asker.request("echo", "a", b"kept") for _ in range(300)]
        for _ in range(300):
            asker.request("echo", "a", b"dropped")
        for _ in range(600):
            work.receive(timeout=30).reply(b"good", assurance="stored").wait(30)
        asker.flush()
        asker.query("status")
        asker.flush()
        (held,) = [box for box in worker.query("mailboxes") if box["name"] == "asker"]
        assert held["in_flight"] <= 200, held
        assert [reply.body for replies in kept for reply in replies] == [b"good"] * 300
