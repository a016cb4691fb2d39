"""A small command is decoded by its types, and what that makes of it is what the rules make of it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_fuzz import VALUES, fuzz

from malamute.errors import MalamuteError
from malamute.protocol import codec
from malamute.protocol.batch import UNCHECKED_BYTES
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

OPCODE = BY_TYPE[Publish].opcode


def packed(*fields: Any) -> bytes:
    return msgpack.packb([OPCODE, *fields])


def by_the_rules(frame: bytes) -> Any:
    """What decoding comes to without the types."""
    with patch.object(codec, "decode_typed", lambda frames: None):
        return outcome(frame)


def outcome(frame: bytes) -> Any:
    try:
        return decode([frame])
    except MalamuteError as error:
        return type(error), str(error), error.about, error.ref


def test_it_is_decoded_by_its_types_up_to_its_largest_size_and_no_larger():
    rest = len(packed("s", 1, ["a"], [bytes(256)])) - 256
    for size, calls in ((UNCHECKED_BYTES, 0), (UNCHECKED_BYTES + 1, 1)):
        frame = packed("s", 1, ["a"], [bytes(size - rest)])
        assert len(frame) == size
        with patch.object(codec, "unpack", wraps=codec.unpack) as unpack:
            assert decode([frame]) == Publish("s", 1, ["a"], [bytes(size - rest)])
        assert unpack.call_count == calls


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
def test_what_is_right_is_decoded(fields):
    assert decode([packed(*fields)]) == Publish(*fields)


@pytest.mark.parametrize(
    "fields",
    [
        ("é" * 128, 1, ["a"], [b""]),
        ("s" * 256, 1, ["a"], [b""]),
        ("", 1, ["a"], [b""]),
        ("s\n", 1, ["a"], [b""]),
        ("s", -1, ["a"], [b""]),
        ("s", NUMBER_MAX + 1, ["a"], [b""]),
        ("s", 1.0, ["a"], [b""]),
        ("s", True, ["a"], [b""]),
        ("s", 1, ["a" * 256], [b""]),
        ("s", 1, ["é" * 128], [b""]),
        ("s", 1, [], []),
        ("s", 1, ["a"], [b"", b""]),
        ("s", 1, ["a"], [None]),
        ("s", 1, ["a"], ["text"]),
        ("s", 1, [b"a"], [b""]),
    ],
)
def test_what_is_wrong_is_refused_by_the_rules(fields):
    refused = outcome(packed(*fields))
    assert issubclass(refused[0], MalamuteError)
    assert refused == by_the_rules(packed(*fields))


NAMES = st.text(max_size=3) | VALUES
FIELDS = st.tuples(
    NAMES,
    st.integers(-1, 2**64 - 1) | VALUES,
    st.lists(NAMES, max_size=3) | VALUES,
    st.lists(st.binary(max_size=3) | VALUES, max_size=3) | VALUES,
)


@fuzz
@given(FIELDS, st.integers(0, 30), st.binary(max_size=3))
@example(("s", 1, ["a"], [b"x"]), 30, b"")
def test_whatever_the_fields_and_the_bytes_the_types_and_the_rules_agree(fields, place, instead):
    frame = packed(*fields)
    for some in (
        frame,
        frame[:place],
        frame[:place] + instead + frame[place + len(instead) :],
        frame + instead,
    ):
        assert outcome(some) == by_the_rules(some)


# The other commands that have types

SMALL: list[Message] = [
    Publish("s", 1, ["a"], [b"x"]),
    Send("bob", 0, ["a", "b"], [b"x", b""], [None, {"ttl": 1.5}]),
    Send("bob", 1, ["a"], [b"x"]),
    Request("printer", 7, ["a"], [b"x"], [{"correlation": "c-1", "key": None}], [[1, 3], [5, 5]]),
    Request("printer", 0, ["a"], [b"x"], None, []),
    Reply(1, 0, [1, 3], [True, False], [b"x", b""], 1, -1),
    Credit(MAILBOX, -1, 8),
    Ack(MAILBOX, [[1, 1], [4, NUMBER_MAX]], 1, 2),
    Stored([[1, 5, 9], [6, 6, 0]]),
]


@pytest.mark.parametrize("message", SMALL, ids=lambda message: type(message).__name__)
def test_each_is_decoded_by_its_types_alone(message):
    with patch.object(codec, "unpack") as unpack:
        assert decode(encode(message)) == message
    assert not unpack.called
    assert type(decode(encode(message))) is type(message)


def test_a_delivery_is_decoded_by_its_types_alone():
    delivery = Deliver(3, NUMBER_MAX, b"payload", (b"large",))
    with patch.object(codec, "unpack") as unpack:
        assert decode(encode(delivery)) == delivery
    assert not unpack.called


@pytest.mark.parametrize(
    "message",
    [
        Send("bob", 1, ["a"], [b"x"], [{"key": b"bytes"}]),
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
        Reply(1, 1, [1], [1], [b"x"], 0, 0),
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
def test_what_the_types_do_not_take_the_rules_decide_about(message):
    (frame,) = encode(message)
    assert outcome(frame) == by_the_rules(frame)


@fuzz
@given(st.sampled_from(SMALL), st.integers(0, 7), VALUES, st.integers(0, 40), st.binary(max_size=3))
def test_whatever_is_put_into_a_command_the_types_and_the_rules_agree(message, field, value, place, instead):
    fields = [BY_TYPE[type(message)].opcode, *message]
    fields[min(1 + field, len(fields) - 1)] = value
    for frame in (
        encode(message)[0],
        msgpack.packb(fields),
        msgpack.packb(fields[:-1]),
        encode(message)[0][:place] + instead + encode(message)[0][place + len(instead) :],
    ):
        assert outcome(frame) == by_the_rules(frame)
