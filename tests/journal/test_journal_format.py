"""The bytes on the disk: round trips, any bytes at all, and the examples of docs/journal-format.md."""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.journal import blocks, write_set
from malamute.journal import format as codec
from malamute.journal.states import decode_card
from malamute.journal.write_ahead import encode_record, find_records
from malamute.journal.write_set import WriteSet
from malamute.protocol.limits import NUMBER_MAX
from malamute.store.operations import (
    Chunk,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetIdentities,
    MarkDelivered,
    PutIdentity,
    PutMessages,
    PutValue,
    SetAttempts,
    SetCounters,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
NAMES, KINDS = (
    st.text(min_size=1, max_size=20),
    st.sampled_from(["mailbox", "service", "mailbox-dead", "service-dead"]),
)
CHUNKS = st.builds(
    Chunk,
    st.integers(0, NUMBER_MAX - 2**32),
    st.integers(1, 2**32 - 1),
    TIMES,
    st.binary(max_size=200),
    st.lists(st.binary(max_size=50), max_size=4).map(tuple),
)
SEQUENCES = st.integers(0, 2**63)
PROPERTIES = st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | U32 | st.text())
ROWS = st.lists(st.tuples(NAMES, st.binary(), PROPERTIES), min_size=1, max_size=5)


def puts(kind, queue, first, sender, rows, *, plain):
    subjects, records, properties = map(list, zip(*rows, strict=True))
    return PutMessages(kind, queue, first, 7, sender, subjects, records, None if plain else properties)


ENTRIES = st.one_of(
    st.builds(puts, KINDS, NAMES, SEQUENCES, NAMES, ROWS, plain=st.booleans()),
    st.builds(DeleteMessages, KINDS, NAMES, st.lists(st.tuples(SEQUENCES, SEQUENCES))),
    st.builds(MarkDelivered, KINDS, NAMES, SEQUENCES),
    st.builds(DeleteQueue, KINDS, NAMES),
    st.builds(PutValue, NAMES, st.tuples(NAMES, SEQUENCES), st.binary()),
    st.builds(DeleteValue, NAMES, st.tuples(NAMES)),
    st.builds(DeleteStream, NAMES),
    st.builds(SetAttempts, KINDS, NAMES, SEQUENCES, SEQUENCES, TIMES),
    st.builds(PutIdentity, KINDS, NAMES, NAMES, SEQUENCES, TIMES),
    st.builds(ForgetIdentities, KINDS, NAMES, TIMES),
    st.builds(SetCounters, KINDS, NAMES, SEQUENCES, SEQUENCES),
)
ERAS = st.integers(0, codec.ERA_MAX)
STREAMS = st.builds(codec.StreamMeta, U32, NAMES, U64, U64, U64, U64, U64, U64, TIMES, TIMES, ERAS, ERAS)
DECODERS = (
    codec.split_key,
    codec.decode_meta,
    codec.decode_chunk_header,
    codec.decode_chunk,
    codec.decode_index,
    codec.decode_stream,
    blocks.decode_block,
    blocks.decode_lsn,
    blocks.decode_records,
)


@given(CHUNKS)
def test_a_chunk_round_trips(chunk):
    value = codec.encode_chunk(chunk)
    assert codec.decode_chunk(value) == codec.decode_chunk(memoryview(value)) == chunk
    header = codec.decode_chunk_header(value[: codec.CHUNK_HEADER_SIZE])
    assert (header.first, header.last, header.time_ns) == (chunk.first, chunk.last, chunk.time_ns)


@given(CHUNKS, ERAS)
def test_the_header_of_a_chunk_has_its_era(chunk, era):
    assert codec.decode_chunk_header(codec.encode_chunk(chunk, b"", era)).era == era


def test_a_chunk_of_an_era_that_no_state_can_have_is_damaged():
    chunk = Chunk(1, 1, 1, b"p")
    assert codec.decode_chunk_header(codec.encode_chunk(chunk, b"", codec.ERA_MAX)).era == codec.ERA_MAX
    with pytest.raises(codec.Damaged, match="of the era 4096"):
        codec.decode_chunk_header(codec.encode_chunk(chunk, b"", codec.ERA_MAX + 1))


@given(CHUNKS, U64, st.lists(st.text(max_size=9), max_size=9))
def test_an_index_travels_with_its_chunk(chunk, first, subjects):
    value = codec.encode_chunk(chunk, codec.encode_index(first, subjects))
    assert codec.decode_index(value) == codec.decode_index(memoryview(value)) == (first, subjects)
    assert codec.decode_chunk(value) == chunk
    assert codec.decode_index(codec.encode_chunk(chunk)) is None


@pytest.mark.parametrize(
    "index", [b"short", bytes(8), bytes(8) + b"\xc0", bytes(8) + b"\x91\x01", bytes(9) + b"x"]
)
def test_an_index_that_is_none_is_a_damage(index):
    with pytest.raises(codec.Damaged):
        codec.decode_index(codec.encode_chunk(Chunk(1, 1, 1, b"p"), index))


@given(st.lists(ENTRIES, max_size=8), U64)
def test_a_block_round_trips(entries, lsn):
    value = blocks.encode_block(entries, lsn)
    assert blocks.decode_lsn(value) == lsn
    decoded = blocks.decode_block(value)
    assert decoded == entries
    assert list(map(type, decoded)) == list(map(type, entries))
    put = [entry for entry in entries if type(entry) is PutMessages]
    records = {(e.kind, e.queue, message.sequence): message.record for e in put for message in e.messages()}
    found = blocks.decode_records(value)
    assert {(*name, n): record for name, held in found.items() for n, record in held.items()} == records


@given(STREAMS, U64)
def test_a_stream_round_trips(stream, lsn):
    value = codec.encode_stream(stream, lsn)
    assert codec.decode_stream(value) == stream
    assert codec.decode_stream_and_lsn(value) == (stream, lsn)


@given(U32.filter(lambda n: n > 0), U64, U64)
def test_keys_sort_as_their_numbers(identifier, one, other):
    keys = [codec.key(codec.CHUNK, identifier, n) for n in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)
    assert codec.split_key(keys[0]) == (codec.CHUNK, identifier, one)
    assert codec.key(codec.CHUNK, identifier - 1, 2**64 - 1) < keys[0] < codec.key(codec.BLOCK)


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_damage(decode, data):
    with suppress(codec.Damaged):
        decode(data)


@given(body=st.binary(max_size=100), count=U32)
def test_a_block_of_any_content_with_a_good_crc_gives_entries_or_a_damage(body, count):
    header = struct.pack(">B3xIQ", codec.VERSION, count, 7)
    value = header + struct.pack(">I", codec.crc32(body, codec.crc32(header))) + body
    with suppress(codec.Damaged):
        blocks.decode_block(value)
    with suppress(codec.Damaged):
        blocks.decode_records(value)


def with_crc(body):
    return struct.pack(">I", codec.crc32(body)) + body


@pytest.mark.parametrize(
    ("ceiling", "said"),
    [
        (2**63, ("s", [], [])),
        (1, (5, [], [])),
        (1, ("s", [[5, ["c"], 1]], [])),
        (1, ("s", [["cursors", [None], 1]], [])),
        (1, ("s", [], [[1, 2, "x"]])),
    ],
)
def test_a_card_that_says_what_none_can_is_a_damage(ceiling, said):
    with pytest.raises(codec.Damaged):
        decode_card(1, with_crc(struct.pack(">B3xQ", codec.VERSION, ceiling) + msgpack.packb(said)))


def test_a_chunk_behind_the_last_sequence_that_can_be_is_a_damage():
    codec.decode_chunk_header(codec.encode_chunk(Chunk(NUMBER_MAX, 1, 7, b"x")))
    with pytest.raises(codec.Damaged):
        codec.decode_chunk_header(codec.encode_chunk(Chunk(NUMBER_MAX, 2, 7, b"x")))


def test_a_record_that_is_none_is_a_damage():
    entry = PutMessages("mailbox", "q", 1, 0, "alice", ["a"], [None])
    with pytest.raises(codec.Damaged):
        blocks.decode_records(blocks.encode_block([entry], 1))


@given(CHUNKS, st.data())
def test_a_flipped_bit_of_a_chunk_is_seen(chunk, data):
    value = bytearray(codec.encode_chunk(chunk))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(codec.Damaged):
        codec.decode_chunk(bytes(value))


@given(CHUNKS, st.integers(1, 300))
def test_a_chunk_cut_short_is_seen(chunk, missing):
    value = codec.encode_chunk(chunk)
    with pytest.raises(codec.Damaged):
        codec.decode_chunk(value[: max(0, len(value) - missing)])


@pytest.mark.parametrize("size", [0, 1, 5119, 5120, 5121, 10_240, 65_536, 65_537])
def test_the_crc_is_the_usual_one(size):
    data = bytes(range(256)) * 257
    assert codec.crc32(data[:size], 7) == codec.zlib_crc32(data[:size], 7)


@pytest.mark.parametrize("version", range(1, codec.VERSION))
def test_an_older_format_is_not_taken_for_damage(version):
    older = codec.encode_meta(codec.Meta(version, bytes(16)))
    with pytest.raises(codec.TooOld, match=f"format {version}"):
        codec.decode_meta(older)
    chunk = bytearray(codec.encode_chunk(Chunk(1, 1, 1, b"")))
    chunk[0] = version
    with pytest.raises(codec.Damaged, match=f"format {version}"):
        codec.decode_chunk(bytes(chunk))


def test_a_newer_format_is_not_taken_for_damage():
    newer = codec.encode_meta(codec.Meta(codec.STORE_VERSION + 1, bytes(16)))
    with pytest.raises(codec.TooNew, match=f"format {codec.STORE_VERSION + 1}"):
        codec.decode_meta(newer + b"with more fields")
    chunk = bytearray(codec.encode_chunk(Chunk(1, 1, 1, b"")))
    chunk[0] = codec.VERSION + 1
    with pytest.raises(codec.TooNew):
        codec.decode_chunk(bytes(chunk))


# --- the examples in the documentation

LOGGED = codec.Meta(7, bytes(range(16)), taken=1200)

EXAMPLES = {
    "meta": (
        codec.Meta(7, bytes(range(16)), 1234, copied=True, incarnations=(500_380_467_200_000,), taken=1200),
        codec.encode_meta,
        codec.decode_meta,
    ),
    "record": (
        [MarkDelivered("mailbox", "bob", 4)],
        lambda operations: encode_record(LOGGED, 1235, operations),
        lambda data: find_records(data, LOGGED).records[0].operations,
    ),
    "changes": (
        WriteSet(
            bytes(range(16)),
            1233,
            1234,
            {codec.key(codec.BLOCK, 0, 7): b"value", codec.key(codec.BLOCK, 0, 6): None},
        ),
        write_set.encode,
        write_set.decode,
    ),
    "stream": (
        codec.StreamMeta(
            1, "weather", 7, 9, 1000, 49, 3, 1, 1_700_000_000_000_000_000, 1_700_000_000_000_000_000
        ),
        lambda stream: codec.encode_stream(stream, 1234),
        codec.decode_stream,
    ),
    "chunk": (
        Chunk(7, 3, 1_700_000_000_000_000_000, b"\x93abc", (b"large",)),
        codec.encode_chunk,
        codec.decode_chunk,
    ),
    "indexed": (
        Chunk(7, 3, 1_700_000_000_000_000_000, b"\x93abc", (b"large",)),
        lambda chunk: codec.encode_chunk(chunk, codec.encode_index(1, ["oslo", "rome"])),
        codec.decode_chunk,
    ),
    "block": (
        [
            PutMessages("mailbox", "bob", 4, 1_700_000_000_000_000_000, "alice", ["hello"], [b"\x90"]),
            DeleteMessages("mailbox", "bob", [(1, 3)]),
        ],
        lambda entries: blocks.encode_block(entries, 1234),
        blocks.decode_block,
    ),
}


def documented():
    text = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text(encoding="utf-8")
    blocks = re.findall(r'```hex title="(\w+)"\n(.*?)```', text, re.DOTALL)
    return {name: bytes.fromhex(re.sub(r"#.*", "", body)) for name, body in blocks}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documented_example(name):
    value, encode, decode = EXAMPLES[name]
    assert encode(value).hex(" ") == documented()[name].hex(" ")
    assert decode(documented()[name]) == value


def test_the_documented_key():
    assert codec.key(codec.CHUNK, 1, 7) == documented()["key"]


@given(U64, st.booleans(), st.lists(U64, max_size=5).map(tuple), st.integers(1, 8))
def test_a_meta_record_that_was_cut_is_damaged(lsn, copied, incarnations, cut):
    meta = codec.Meta(codec.STORE_VERSION, bytes(16), lsn, copied, incarnations, lsn)
    value = codec.encode_meta(meta)
    assert codec.decode_meta(value) == meta
    with pytest.raises(codec.Damaged):
        codec.decode_meta(value[:-cut])
