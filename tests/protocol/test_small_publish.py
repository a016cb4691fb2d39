"""A small PUBLISH is decoded by its types, and what that makes of it is what the rules make of it."""

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
from malamute.protocol.codec import decode
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import BY_TYPE, Publish

OPCODE = BY_TYPE[Publish].opcode


def packed(*fields: Any) -> bytes:
    return msgpack.packb([OPCODE, *fields])


def by_the_rules(frame: bytes) -> Any:
    """What decoding comes to without the types."""
    with patch.object(codec, "_PUBLISH", b"no command"):
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
