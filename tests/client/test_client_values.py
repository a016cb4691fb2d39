"""What a program gives to a client, taken for what it means or refused before it is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import malamute
from malamute.protocol.texts import fitting, shown, words_of
from malamute.testing import Broker


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
