"""A large frame is refused for many small values before any of them is made."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import msgpack
import pytest
from depth import some
from hypothesis import given
from hypothesis import strategies as st

from malamute.errors import Malformed, TooLarge
from malamute.protocol import scan
from malamute.protocol.batch import SCANNED_BYTES, headers_of, unpack
from malamute.protocol.codec import decode
from malamute.protocol.limits import ITEMS_MAX, VALUES_MAX
from malamute.protocol.scan import has_too_many_values

MIB = 1024 * 1024

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.sampled_from(
        [b"x" * 70_000, "x" * 70_000, msgpack.ExtType(5, b"x" * 16), msgpack.ExtType(5, b"abc")]
    ),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=40,
)


def count(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    return 1 + sum(1 + count(v) for v in value.values()) if isinstance(value, dict) else 1


@given(VALUES)
def test_each_value_counts_as_one(value: object) -> None:
    data = msgpack.packb(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "VALUES_MAX", count(value))
        assert not has_too_many_values(data)
        patch.setattr(scan, "VALUES_MAX", count(value) - 1)
        assert has_too_many_values(data) == isinstance(value, list | dict)


@given(VALUES, st.data())
def test_what_is_cut_short_is_no_value(value: object, data: st.DataObject) -> None:
    packed = msgpack.packb(value)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(ValueError):  # noqa: PT011  # its words are those of `unpack`
        has_too_many_values(cut)


@given(st.binary(max_size=100))
def test_no_bytes_do_harm(data: bytes) -> None:
    with suppress(ValueError):
        has_too_many_values(data)


def lists_of(item: bytes, total: int) -> bytes:
    """A frame of lists with so many items in all."""
    rows = [ITEMS_MAX] * (total // ITEMS_MAX) + [total % ITEMS_MAX]
    return (
        b"\xdc"
        + len(rows).to_bytes(2, "big")
        + b"".join(b"\xdd" + row.to_bytes(4, "big") + item * row for row in rows)
    )


def padded(frame: bytes) -> bytes:
    """A list of a frame and of bytes that make it large."""
    return b"\x92" + frame + msgpack.packb(bytes(SCANNED_BYTES))


def test_a_large_frame_holds_250_000_values_and_not_one_more() -> None:
    # Besides the items there are three lists for them, the list of these, and the outermost with the padding.
    full = padded(lists_of(b"\x01", VALUES_MAX - 6))
    assert len(unpack(full)[0]) == 3
    with pytest.raises(TooLarge):
        unpack(padded(lists_of(b"\x01", VALUES_MAX - 5)))


MANY = {
    "lists": lambda: lists_of(b"\x90", 3 * MIB),
    "maps": lambda: lists_of(b"\x80", 3 * MIB),
    "texts": lambda: lists_of(b"\xa0", 3 * MIB),
    "maps of one": lambda: lists_of(b"\x81\xa1a\x01", MIB),
    "lists in lists": lambda: (
        (b"\xdd" + ITEMS_MAX.to_bytes(4, "big") + b"\x01" * (ITEMS_MAX - 1)) * 30 + b"\x01"
    ),
    "a map": lambda: b"\xdf" + MIB.to_bytes(4, "big") + b"\xa2ab\x01" * MIB,
}
"""Frames of 3 or 4 MiB, each made by the test that needs it."""


@pytest.mark.parametrize("name", some(MANY, "lists in lists", "maps of one", "a map"))
def test_what_is_refused_takes_no_memory(name: str) -> None:
    frame = MANY[name]()
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode([frame])
        assert headers_of([frame]) == [{}]
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_large_frame_that_is_cut_short_is_malformed() -> None:
    frame = padded(lists_of(b"\x01", 10))
    with pytest.raises(Malformed):
        unpack(frame[:-1])
    with pytest.raises(Malformed):
        unpack(b"\x92" + b"\xc1" + frame)
