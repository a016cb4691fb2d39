"""The codec of operations: round trips of every kind, and any bytes at all."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.errors import Malformed
from malamute.store import codec
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteStreamMessages,
    DeleteValue,
    ForgetIdentities,
    ForgetStream,
    MarkDelivered,
    NoteRefused,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueKind,
    Reserve,
    Retain,
    SetAttempts,
    SetCounters,
    TrimByAge,
)
from malamute.store.policies import StreamRetention

NAMES = st.text(min_size=1, max_size=20)
KINDS = st.sampled_from(get_args(QueueKind))
NUMBERS = st.integers(0, 2**63)
TIMES = st.integers(-(2**63), 2**63 - 1)
BODIES = st.binary(max_size=50)
CHUNKS = st.builds(Chunk, NUMBERS, NUMBERS, TIMES, BODIES, st.lists(BODIES, max_size=3).map(tuple))
PROPERTIES = st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | NUMBERS | NAMES)
ROWS = st.lists(st.tuples(NAMES, BODIES, PROPERTIES), min_size=1, max_size=5)
RETENTIONS = st.builds(StreamRetention, NUMBERS, NUMBERS, st.floats(0, 1e9))
KEYS = st.lists(NAMES | BODIES | NUMBERS, min_size=1, max_size=3).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | TIMES | st.floats(allow_nan=False) | NAMES | BODIES,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def puts(kind, queue, first, sender, rows, *, plain):
    subjects, records, properties = map(list, zip(*rows, strict=True))
    return PutMessages(kind, queue, first, 7, sender, subjects, records, None if plain else properties)


OF_EACH_KIND = {
    AppendChunk: st.builds(AppendChunk, NAMES, CHUNKS, NUMBERS, st.lists(NAMES, max_size=3), RETENTIONS),
    Retain: st.builds(Retain, NAMES, RETENTIONS),
    TrimByAge: st.builds(TrimByAge, TIMES),
    Reserve: st.builds(Reserve, NAMES, NUMBERS),
    PutMessages: st.builds(puts, KINDS, NAMES, NUMBERS, NAMES, ROWS, plain=st.booleans()),
    DeleteMessages: st.builds(DeleteMessages, KINDS, NAMES, st.lists(st.tuples(NUMBERS, NUMBERS))),
    MarkDelivered: st.builds(MarkDelivered, KINDS, NAMES, NUMBERS),
    SetAttempts: st.builds(SetAttempts, KINDS, NAMES, NUMBERS, NUMBERS, TIMES),
    PutIdentity: st.builds(PutIdentity, KINDS, NAMES, NAMES, NUMBERS, TIMES),
    ForgetIdentities: st.builds(ForgetIdentities, KINDS, NAMES, TIMES),
    DeleteQueue: st.builds(DeleteQueue, KINDS, NAMES),
    NoteRefused: st.builds(NoteRefused, NAMES, NUMBERS, NUMBERS, NUMBERS),
    DeleteStream: st.builds(DeleteStream, NAMES),
    DeleteStreamMessages: st.builds(DeleteStreamMessages, NAMES, st.lists(st.tuples(NUMBERS, NUMBERS))),
    ForgetStream: st.builds(ForgetStream, NAMES),
    PutValue: st.builds(PutValue, NAMES, KEYS, VALUES),
    DeleteValue: st.builds(DeleteValue, NAMES, KEYS),
    SetCounters: st.builds(SetCounters, KINDS, NAMES, NUMBERS, NUMBERS),
}


def test_every_kind_of_operation_has_a_code_and_is_tried_here():
    assert set(codec.CODES) == set(OF_EACH_KIND) == set(get_args(Operation))
    assert len(set(codec.CODES.values())) == len(codec.CODES)


@given(st.lists(st.one_of(*OF_EACH_KIND.values()), max_size=8))
def test_operations_round_trip(operations):
    value = codec.encode(operations)
    decoded = codec.decode(value)
    assert decoded == operations == codec.decode(memoryview(value)) == codec.salvage(value)
    assert [*map(type, decoded)] == [*map(type, operations)]
    assert codec.encode(decoded) == value


def test_what_is_large_goes_without_a_copy_and_comes_back_as_bytes():
    operation = AppendChunk("s", Chunk(1, 1, 1, b"p", (memoryview(b"large"),)), 1, ["a"])
    assert codec.decode(codec.encode([operation])) == [operation]


@given(st.binary(max_size=200))
def test_any_bytes_give_operations_or_are_malformed(data):
    with suppress(Malformed):
        codec.decode(data)
    with suppress(Malformed):
        codec.decode_records(data)
    codec.salvage(data)


@given(
    st.sampled_from([*codec.CODES.values(), 0, 99]),
    st.recursive(
        st.none() | st.booleans() | TIMES | st.floats() | NAMES | BODIES,
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(NAMES, inner, max_size=2),
        max_leaves=12,
    ),
)
def test_any_fields_give_operations_or_are_malformed(code, fields):
    data = msgpack.packb((bytes([code]), [fields]))
    with suppress(Malformed):
        codec.decode(data)


@pytest.mark.parametrize("value", [{"a": 1}, [[[[[[[[[1]]]]]]]]]])
def test_a_value_that_is_not_plain_is_malformed(value):
    with pytest.raises(Malformed):
        codec.decode(msgpack.packb((bytes([codec.CODES[PutValue]]), [["t", ["k"], value]])))


def test_salvaging_lists_that_declare_more_than_they_hold_gives_them_no_room():
    data = b"\x92\xc4\x01\x01\x91" + b"\xdd\x00\x10\x00\x00" * 100 + bytes(1 << 20)
    tracemalloc.start()
    try:
        assert codec.salvage(data) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
