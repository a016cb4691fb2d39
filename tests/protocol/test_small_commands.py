"""Commands of the usual types are decoded in one pass; the same types decide about every other frame."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz import VALUES, fuzz
from wire_strategies import ANY_MESSAGE

from malamute.errors import MalamuteError, Malformed, TooLarge
from malamute.protocol import codec
from malamute.protocol.batch import SCANNED_BYTES
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Ack,
    Credit,
    Deliver,
    Message,
    Publish,
    Reply,
    Request,
    Send,
    Stored,
)

USUAL: list[Message] = [
    Publish("s", 1, ["a"], [b"x"]),
    Publish("s", 1, ["a"] * 1000, [b"x"] * 1000, 5),
    Send("bob", 0, ["a", "b"], [b"x", b""], [None, {"ttl": 1.5}]),
    Send("bob", 1, ["a"], [b"x"]),
    Request("printer", 7, ["a"], [b"x"], [{"correlation": "c-1", "key": None}], [[1, 3], [5, 5]]),
    Request("printer", 0, ["a"], [b"x"], None, []),
    Reply(1, 0, [1, 3], [True, False], [b"x", b""], 1, -1),
    Credit(MAILBOX, -1, 8),
    Ack(MAILBOX, [[1, 1], [4, NUMBER_MAX]], 1, 2),
    Stored([[1, 5, 9], [6, 6, 0]]),
]


@pytest.mark.parametrize("message", USUAL, ids=lambda message: type(message).__name__)
def test_a_usual_command_is_decoded_in_one_pass(message: Message) -> None:
    with patch.object(codec, "unpack") as unpack:
        assert decode(encode(message)) == message
    assert not unpack.called
    assert type(decode(encode(message))) is type(message)


def test_a_delivery_is_decoded_in_one_pass() -> None:
    delivery = Deliver(3, NUMBER_MAX, b"payload", (b"large",))
    with patch.object(codec, "unpack") as unpack:
        assert decode(encode(delivery)) == delivery
    assert not unpack.called


def test_a_frame_is_scanned_before_its_lists_get_room() -> None:
    publish = Publish("s", 1, ["a"] * 100, [bytes(SCANNED_BYTES // 100)] * 100)
    with patch.object(codec, "unpack", wraps=codec.unpack) as unpack:
        assert decode(encode(publish)) == publish
    assert unpack.called


@pytest.mark.parametrize(
    "fields",
    [
        ("s", 0, ["a", "b"], [b"", b"x"]),
        ("é" * 127, NUMBER_MAX, ["a"], [b""]),
        ("s" * 255, 1, ["a" * 63], [b""]),
        ("s", 1, ["a" * 64], [b""]),
        ("s", 1, ["a" * 255], [b""]),
        ("s", 1, ["é" * 127], [b""]),
    ],
)
def test_a_command_within_its_bounds_is_decoded(fields: tuple[Any, ...]) -> None:
    assert decode([packed(Publish, *fields)]) == Publish(*fields)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (("é" * 128, 1, ["a"], [b""]), TooLarge),
        (("s" * 256, 1, ["a"], [b""]), TooLarge),
        (("", 1, ["a"], [b""]), Malformed),
        (("s\n", 1, ["a"], [b""]), Malformed),
        (("s", -1, ["a"], [b""]), Malformed),
        (("s", NUMBER_MAX + 1, ["a"], [b""]), Malformed),
        (("s", 1.0, ["a"], [b""]), Malformed),
        (("s", True, ["a"], [b""]), Malformed),
        (("s", 1, ["a" * 256], [b""]), TooLarge),
        (("s", 1, ["é" * 128], [b""]), TooLarge),
        (("s", 1, [], []), Malformed),
        (("s", 1, ["a"], [b"", b""]), Malformed),
        (("s", 1, ["a"], [None]), Malformed),
        (("s", 1, ["a"], ["text"]), Malformed),
        (("s", 1, [b"a"], [b""]), Malformed),
    ],
)
def test_a_command_past_its_bounds_is_refused(fields: tuple[Any, ...], error: type[MalamuteError]) -> None:
    with pytest.raises(error) as raised:
        decode([packed(Publish, *fields)])
    assert raised.value.about == BY_TYPE[Publish].opcode


@pytest.mark.parametrize(
    "message",
    [
        Send("bob", 1, ["a"], [b"x"], []),
        Send("bob", 1, ["a"], [b"x"], [None, None]),
        Send("b\n", 1, ["a"], [b"x"], [None]),
        Request("s", 1, ["a"], [b"x"], None, [[2, 1]]),
        Request("s", 1, ["a"], [b"x"], None, [[1, 2, 3]]),
        Request("s", 1, ["a", "b"], [b"x"], None, [[1, 2]]),
        Reply(1, 1, [], [], [], 0, 0),
        Reply(1, 1, [1], [True, False], [b"x"], 0, 0),
        Reply(0, 1, [1], [True], [b"x"], 0, 0),
        Reply(1, 1, [0], [True], [b"x"], 0, 0),
        Reply(1, 1, [1], [1], [b"x"], 0, 0),  # type: ignore[list-item]  # that is the point
        Reply(1, 1, [1], [True], [b"x"], -2, 0),
        Credit(-1, 1, 1),
        Ack(1, [], 0, 0),
        Ack(1, [[2, 1]], 0, 0),
        Ack(1, [[0, 1]], 0, 0),
        Stored([]),
        Stored([[0, 1, 1]]),
        Stored([[2, 1, 1]]),
    ],
    ids=repr,
)
def test_a_field_past_its_bounds_is_malformed(message: Message) -> None:
    with pytest.raises(Malformed) as raised:
        decode(encode(message))
    assert raised.value.about == BY_TYPE[type(message)].opcode


def packed(kind: type[Any], *fields: Any) -> bytes:
    data: bytes = msgpack.packb([BY_TYPE[kind].opcode, *fields])
    return data


def outcome(frames: list[Any]) -> Any:
    try:
        return decode(frames)
    except MalamuteError as error:
        return type(error), error.text, error.about, error.ref


@fuzz
@given(ANY_MESSAGE, st.integers(0, 12), VALUES, st.booleans())
def test_the_length_of_an_array_in_two_bytes_changes_nothing(
    message: Message, field: int, value: Any, is_changed: bool
) -> None:
    # No decoder in one pass begins with such a length.
    fields = [BY_TYPE[type(message)].opcode, *message]
    if isinstance(message, Deliver):
        fields = fields[:3]
    if is_changed:
        fields[min(1 + field, len(fields) - 1)] = value
    beside = [message.payload, *message.large] if isinstance(message, Deliver) else []
    usual = msgpack.packb(fields)
    long = b"\xdc" + len(fields).to_bytes(2, "big") + usual[1:]
    assert outcome([usual, *beside]) == outcome([long, *beside])
