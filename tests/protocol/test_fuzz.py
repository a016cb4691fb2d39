"""Any bytes decode to a message or to Malformed, TooLarge or UnknownCommand, and to nothing else, ever.

The same for what travels inside: a record, a payload, a name and a URI have one error each. And every
message that a rule allows comes back from its bytes as it was. `MALAMUTE_FUZZ_EXAMPLES` sets how many
examples each test tries.
"""

import os
from typing import Any

import msgpack
import wire_strategies as wire
from depth import DEPTH
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from wire_checks import check_decode, check_payload, check_record, check_uri

from malamute.client.session.batch import record_of, records_of
from malamute.errors import InvalidName, InvalidValue, Malformed
from malamute.protocol import batch
from malamute.protocol.batch import (
    Columns,
    headers_of,
    is_plain,
    join_large,
    pack_queue_payload,
    pack_record,
    pack_stream_payload,
    split_large,
    unpack_payload,
    unpack_record,
)
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import DURATION_MS_MAX, NUMBER_MAX
from malamute.protocol.messages import BY_TYPE, SPECS
from malamute.protocol.names import Kind, Uri, is_name

fuzz = settings(
    max_examples=int(os.environ.get("MALAMUTE_FUZZ_EXAMPLES", f"{12 * DEPTH}")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

# Values of msgpack that the protocol cannot hold: extension types, timestamps, maps with keys of any kind.
EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=9)) | st.builds(
    msgpack.Timestamp, st.integers(0, 2**33), st.integers(0, 999_999_999)
)
KEYS = st.text(max_size=5) | st.integers(-5, 5) | st.binary(max_size=5) | st.none() | st.booleans()
VALUES = st.recursive(
    wire.SCALARS | st.floats() | EXTENSIONS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=4),
)
OPCODES = st.sampled_from([spec.opcode for spec in SPECS]) | st.integers(-(2**63), 2**64 - 1)
FRAMES = st.lists(st.binary(max_size=200), max_size=3)
HEADERS = st.none() | st.dictionaries(
    st.text(max_size=10),
    st.text(max_size=10)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none(),
    max_size=4,
)


# --- commands


@fuzz
@given(wire.ANY_MESSAGE)
def test_any_message_comes_back_from_its_bytes(message: Any) -> None:
    decoded = decode(encode(message))
    assert type(decoded) is type(message)
    assert decoded == message


@fuzz
@given(wire.ANY_MESSAGE)
def test_any_message_comes_back_from_memoryviews(message: Any) -> None:
    assert decode([memoryview(frame) for frame in encode(message)]) == message


@fuzz
@given(wire.ANY_MESSAGE)
def test_fields_with_a_default_may_be_left_out(message: Any) -> None:
    spec = BY_TYPE[type(message)]
    first, *others = encode(message)
    short = msgpack.packb(msgpack.unpackb(first)[: 1 + spec.required])
    defaults = spec.message._field_defaults
    left_out = spec.message._fields[spec.required : len(spec.rules)]
    assert decode([short, *others]) == message._replace(**{field: defaults[field] for field in left_out})


@fuzz
@given(FRAMES)
@example([])
@example([b""])
@example([b"\xaa\xa8\x01"])
@example([b"\x91" * 5000])
@example([b"\xdd\xff\xff\xff\xff" * 1000])
@example([b"\x93\x0b\x00\xa2\xed\xa0"])
def test_any_bytes_are_a_message_or_a_fault(frames: list[bytes]) -> None:
    check_decode(frames)


@fuzz
@given(VALUES, FRAMES)
def test_any_value_is_a_message_or_a_fault(value: Any, frames: list[bytes]) -> None:
    check_decode([msgpack.packb(value), *frames])


@fuzz
@given(OPCODES, st.lists(VALUES, max_size=8), FRAMES)
def test_any_fields_of_any_opcode_are_a_message_or_a_fault(
    opcode: int, fields: list[Any], frames: list[bytes]
) -> None:
    check_decode([msgpack.packb([opcode, *fields]), *frames])


@fuzz
@given(wire.ANY_MESSAGE, st.data())
def test_a_message_with_another_value_in_a_field_is_a_message_or_a_fault(
    message: Any, data: st.DataObject
) -> None:
    first, *others = encode(message)
    fields = msgpack.unpackb(first)
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(VALUES)
    check_decode([msgpack.packb(fields), *others])


@fuzz
@given(wire.ANY_MESSAGE, st.data())
def test_a_mutated_message_is_a_message_or_a_fault(message: Any, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in encode(message)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check_decode([bytes(frame) for frame in frames])


@fuzz
@given(wire.ANY_MESSAGE, st.data())
def test_a_truncated_message_is_malformed(message: Any, data: st.DataObject) -> None:
    first, *others = encode(message)
    cut = data.draw(st.integers(0, len(first) - 1))
    try:
        decode([first[:cut], *others])
    except Malformed:
        return
    raise AssertionError("decoded from less than all of its bytes")


@fuzz
@given(VALUES)
def test_what_is_plain_can_be_packed_and_comes_back(value: Any) -> None:
    plain = msgpack.unpackb(msgpack.packb(value), strict_map_key=False)
    if is_plain(plain):
        assert msgpack.packb(msgpack.unpackb(msgpack.packb(plain))) == msgpack.packb(plain)


# --- records and payloads


@fuzz
@given(HEADERS, st.lists(st.binary(max_size=20), max_size=4))
def test_a_record_comes_back_as_it_was(headers: dict[str, Any] | None, body: list[bytes]) -> None:
    assert unpack_record(pack_record(headers, body)) == (headers or {}, body)


@fuzz
@given(VALUES, st.lists(VALUES, max_size=3) | VALUES)
def test_packing_any_headers_and_body_gives_a_record_or_invalid_value(headers: Any, body: Any) -> None:
    try:
        record = pack_record(headers, body)
    except InvalidValue:
        return
    unpack_record(record)


@fuzz
@given(st.binary(max_size=200) | st.lists(VALUES, max_size=4).map(msgpack.packb))
def test_any_bytes_are_a_record_or_malformed(data: bytes) -> None:
    check_record(data)


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """A record with any values for headers and frames, of which some bytes may be others."""
    names, values = KEYS, wire.PLAIN | VALUES
    pairs = draw(st.lists(st.tuples(names, values), max_size=4))
    frames = draw(st.lists(st.binary(max_size=5), min_size=1, max_size=2) | st.lists(VALUES, max_size=2))
    # By pairs: a name may be there twice.
    packer = msgpack.Packer(autoreset=True)
    headers = packer.pack_map_pairs(pairs) if draw(st.booleans()) else packer.pack(draw(values))
    data = bytearray(packer.pack_array_header(1 + len(frames)) + headers + b"".join(map(packer.pack, frames)))
    for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[place] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


@fuzz
@given(st.lists(damaged_records(), max_size=6))
def test_headers_of_many_records_are_those_of_each_by_itself(records: list[bytes]) -> None:
    expected = []
    for record in records:
        try:
            expected.append(unpack_record(record)[0])
        except Malformed:
            expected.append({})
    assert repr(headers_of(records)) == repr(expected)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(1, 5))

    def column(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(items, min_size=count, max_size=count)

    numbers, texts = st.integers(1, NUMBER_MAX), st.text(max_size=10)
    ttls = st.integers(0, DURATION_MS_MAX)
    return Columns(
        draw(numbers | column(numbers)),
        draw(numbers | column(numbers)),
        draw(texts | column(texts)),
        draw(column(texts)),
        draw(column(st.binary(max_size=20))),
        draw(numbers | column(numbers)),
        draw(st.none() | column(wire.PROPERTIES)),
        draw(st.just(0) | ttls | column(ttls)),
    )


@fuzz
@given(columns())
def test_both_payloads_come_back_as_they_were(before: Columns) -> None:
    first, count = before.sequences, len(before.subjects)
    assume(type(first) is not int or first + count - 1 <= NUMBER_MAX)
    assert unpack_payload(*pack_queue_payload(before)) == Columns(*before[:7])
    assert unpack_payload(*pack_stream_payload(before)) == Columns(*before[:5], ttls=before.ttls)


@fuzz
@given(columns(), st.data())
def test_a_mutated_payload_gives_columns_or_malformed(before: Columns, data: st.DataObject) -> None:
    payload = bytearray(pack_queue_payload(before)[0])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    check_payload(bytes(payload), [])


@fuzz
@given(
    columns(),
    st.sampled_from([pack_stream_payload, pack_queue_payload]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2),
    st.data(),
)
def test_columns_read_by_their_types_are_what_any_columns_are(
    before: Columns, pack: Any, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    payload = bytearray(pack(before)[0])
    for place, byte in changes:
        payload[place % len(payload)] = byte
    cut = bytes(payload[: data.draw(st.sampled_from([None, -1, len(payload) // 2]))])
    found = batch._plain_columns(cut)
    # Columns that it does not read are left to the other, which names the fault.
    assert not found or repr(found) == repr(batch._any_columns(cut))
    assert changes or cut != bytes(payload) or found or _has_bytes(before.properties)


def _has_bytes(properties: Any) -> bool:
    return any(type(value) is bytes for asked in properties or () for value in (asked or {}).values())


@fuzz
@given(HEADERS, st.binary(max_size=70_000) | st.lists(st.binary(max_size=20), max_size=3), columns())
def test_both_ways_to_pack_make_the_same_bytes(headers: Any, body: Any, before: Columns) -> None:
    frames = [body] if type(body) is bytes else body
    record = pack_record(headers, body)
    assert record == msgpack.packb([headers or None, *frames]) == record_of(headers, body)
    assert records_of([headers or {}], [body]) == [msgpack.packb([headers or {}, *frames])] or not headers
    ttls = [before.ttls] if before.ttls else []
    assert pack_stream_payload(before)[0] == msgpack.packb([*before[:5], *ttls])
    assert pack_queue_payload(before)[0] == msgpack.packb([*before[:7]])


@fuzz
@given(st.binary(max_size=200) | VALUES.map(msgpack.packb), FRAMES)
def test_any_bytes_are_a_payload_or_malformed(payload: bytes, large: list[bytes]) -> None:
    check_payload(payload, large)


@fuzz
@given(st.lists(st.lists(VALUES, max_size=2) | VALUES, min_size=5, max_size=7), FRAMES)
def test_any_columns_are_a_payload_or_malformed(fields: list[Any], large: list[bytes]) -> None:
    check_payload(msgpack.packb(fields), large)


@fuzz
@given(st.lists(st.sampled_from([b"", b"a" * 65_535, b"b" * 65_536, b"c" * 65_537]), max_size=6))
def test_records_taken_out_of_a_column_find_their_places(records: list[bytes]) -> None:
    inline, large = split_large(records)
    assert all(record is None or len(record) < 65_536 for record in inline)
    assert all(len(record) >= 65_536 for record in large)
    assert join_large(inline, large) == records


@fuzz
@given(st.lists(st.none() | st.binary(max_size=3), max_size=5), st.lists(st.binary(max_size=3), max_size=5))
def test_a_column_joins_with_as_many_frames_as_it_has_places(
    inline: list[bytes | None], large: list[bytes]
) -> None:
    try:
        records = join_large(inline, large)
    except Malformed:
        assert inline.count(None) != len(large)
        return
    assert inline.count(None) == len(large)
    assert len(records) == len(inline)


# --- names


@fuzz
@given(st.text(st.characters(), max_size=300))
@example("\ud800")
@example("a\x85")
def test_a_name_is_what_its_rule_says(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    plain = all(c >= " " and not "\x7f" <= c <= "\x9f" and not "\ud800" <= c <= "\udfff" for c in text)
    assert is_name(text) == (1 <= size <= 255 and plain)


HOSTS = st.sampled_from(["localhost", "127.0.0.1", "a-b.example.org", "::1", "fe80::1%eth0"])
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["stream", "mailbox", "service"])


@fuzz
@given(st.builds(Uri, HOSTS, st.integers(1, 65_535), KINDS, wire.NAMES))
def test_a_uri_reads_back_as_it_was(uri: Uri) -> None:
    assert Uri.parse(str(uri)) == uri


PIECES = st.sampled_from(
    ["malamute://", "host", "[::1]", ":", "80", "/", "stream", "%41", "%", "\ud800", "?", "#", "@"]
)


@fuzz
@given(
    st.text(st.characters(), max_size=40) | st.lists(PIECES | st.text(max_size=5), max_size=9).map("".join)
)
def test_any_text_is_a_uri_or_an_invalid_name(text: str) -> None:
    check_uri(text)


@fuzz
@given(st.sampled_from(["h", "[::1]", "h:1"]), KINDS, st.text(max_size=10))
def test_a_uri_with_any_name_is_a_uri_or_an_invalid_name(host: str, kind: str, name: str) -> None:
    try:
        uri = Uri.parse(f"malamute://{host}/{kind}/{name}")
    except InvalidName:
        return
    assert uri.kind == kind
    assert Uri.parse(str(uri)) == uri
