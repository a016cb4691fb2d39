"""A fault says which command it is about, and its number or source; and each limit, at it and one past it."""

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import pytest

from malamute.errors import InvalidValue, MalamuteError, Malformed, TooLarge, UnknownCommand
from malamute.protocol import limits
from malamute.protocol.batch import (
    Columns,
    headers_of,
    join_large,
    pack_record,
    pack_stream_payload,
    split_large,
    unpack,
    unpack_payload,
    unpack_record,
)
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import (
    BATCH_MESSAGES_MAX,
    CRITERIA_MAX,
    DEPTH_MAX,
    DURATION_MS_MAX,
    ITEMS_MAX,
    NUMBER_MAX,
    RANGES_MAX,
    RECORD_LARGE_BYTES,
    SOURCE_MAX,
)
from malamute.protocol.messages import (
    SPECS,
    Ack,
    Credit,
    Deliver,
    Hello,
    Ok,
    Publish,
    Query,
    Reply,
    Request,
    Subscribe,
)

RECORD = pack_record(None, b"body")


def fault(*fields: Any, frames: tuple[bytes, ...] = ()) -> MalamuteError:
    with pytest.raises((Malformed, TooLarge, UnknownCommand)) as caught:
        decode([msgpack.packb(fields), *frames])
    return caught.value


def about(error: MalamuteError) -> tuple[type[MalamuteError], int, int]:
    return type(error), error.about, error.ref


# --- what a fault is about


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ((2, "", 7, ["s"], [RECORD]), (Malformed, 2, 7)),
        ((3, "bob", 8, ["s"], ["text"]), (Malformed, 3, 8)),
        ((4, "printer", 9, ["s"], [RECORD], [7]), (Malformed, 4, 9)),
        ((5, 2, 10, [0], [True], [RECORD]), (Malformed, 5, 10)),
        ((5, 2, 11, [1], [1], [RECORD]), (Malformed, 5, 11)),
        ((4, "printer", 12, ["s"], [RECORD], None, [[2, 1]]), (Malformed, 4, 12)),
        ((4, "printer", 13, ["s"], [RECORD], None, [1]), (Malformed, 4, 13)),
        ((4, "printer", 14, ["s"], [RECORD], None, None), (Malformed, 4, 14)),
        ((4, "printer", 15, ["s"], [RECORD], None, [[1, NUMBER_MAX + 1]]), (Malformed, 4, 15)),
        ((5, 2, 16, [1], [True], [RECORD], -2), (Malformed, 5, 16)),
        ((5, 2, 17, [1], [True], [RECORD], 1, True), (Malformed, 5, 17)),
        ((5, 2, 18, [1], [True], [RECORD], 1, 1, 1), (Malformed, 5, 18)),
        ((6, 4, "weather", []), (Malformed, 6, 4)),
        ((7, 5, "printer", [["exact"]]), (Malformed, 7, 5)),
        ((8, 0), (Malformed, 8, 0)),
        ((9, 3, -2), (Malformed, 9, 3)),
        ((10, 3, [[2, 1]]), (Malformed, 10, 3)),
        ((10, 3, [[1, 1]], -2), (Malformed, 10, 3)),
        ((11, 12, "status", None), (Malformed, 11, 12)),
        ((66, 6, 4, msgpack.Timestamp(1)), (Malformed, 66, 4)),
        ((72, 5, msgpack.ExtType(5, b"")), (Malformed, 72, 5)),
    ],
    ids=lambda value: str(value[0]) if isinstance(value[0], int) else "",
)
def test_a_wrong_field_shows_the_command_and_its_ref(fields: tuple[Any, ...], place: Any) -> None:
    assert about(fault(*fields)) == place


def test_a_fault_names_the_first_field_that_is_wrong() -> None:
    assert fault(2, "a", 7, "subjects", "records").text.startswith("PUBLISH: invalid subjects: ")
    assert fault(9, -1, -2).text.startswith("CREDIT: invalid source: ")


@pytest.mark.parametrize("ref", [True, -1, NUMBER_MAX + 1, "7", None, 7.0])
def test_a_ref_that_is_no_number_is_not_reported(ref: Any) -> None:
    assert about(fault(2, "weather", ref, ["s"], [RECORD])) == (Malformed, 2, 0)


def test_a_list_with_too_many_messages_shows_the_number() -> None:
    many = BATCH_MESSAGES_MAX + 1
    assert about(fault(2, "weather", 7, ["s"] * many, [b""] * many)) == (TooLarge, 2, 7)
    assert about(fault(2, "weather", 7, ["s" * 256], [b""])) == (TooLarge, 2, 7)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_too_many_fields_and_too_few_are_malformed(spec: Any) -> None:
    assert about(fault(spec.opcode, *[1] * (len(spec.rules) + 1)))[:2] == (Malformed, spec.opcode)
    if spec.required:
        assert about(fault(spec.opcode, *[1] * (spec.required - 1)))[:2] == (Malformed, spec.opcode)


def test_too_few_fields_still_show_the_number() -> None:
    assert about(fault(2, "weather", 7, ["s"])) == (Malformed, 2, 7)
    assert about(fault(2, "weather")) == (Malformed, 2, 0)


def test_columns_of_unequal_length_show_the_number() -> None:
    assert about(fault(2, "weather", 7, ["s", "t"], [RECORD])) == (Malformed, 2, 7)
    assert about(fault(3, "bob", 8, ["s"], [RECORD], [None, None])) == (Malformed, 3, 8)
    assert about(fault(5, 2, 9, [1], [True, True], [RECORD])) == (Malformed, 5, 9)


def test_too_many_frames_and_too_few_show_the_number() -> None:
    assert about(fault(2, "weather", 7, ["s"], [None])) == (Malformed, 2, 7)
    assert about(fault(2, "weather", 7, ["s"], [RECORD], frames=(b"x",))) == (Malformed, 2, 7)
    assert about(fault(9, 3, 1, frames=(b"",))) == (Malformed, 9, 3)
    assert about(fault(69, 3, 0)) == (Malformed, 69, 3)


@pytest.mark.parametrize(("opcode", "reported"), [(63, 63), (127, 127), (128, 0), (-1, 0), (2**64 - 1, 0)])
def test_an_unknown_opcode_is_reported_when_it_could_be_one(opcode: int, reported: int) -> None:
    assert about(fault(opcode, 1, 2)) == (UnknownCommand, reported, 0)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [b"\x90"],
        [b"\x80"],
        [b"\x91\xc3"],
        [b"\x91\xa11"],
        [b"\x91\x0c\x00"],
        [b"\xaa\xa8\x01"],
    ],
    ids=str,
)
def test_what_is_no_command_at_all_is_malformed(frames: list[bytes]) -> None:
    with pytest.raises(Malformed) as caught:
        decode(frames)
    assert about(caught.value) == (Malformed, 0, 0)


# --- values that msgpack can hold and a command cannot


@pytest.mark.parametrize(
    "value",
    [
        msgpack.Timestamp(1),
        msgpack.ExtType(5, b"x"),
        [msgpack.Timestamp(1)],
        {"a": {"b": [msgpack.ExtType(5, b"x")]}},
        {"a": {5: 1}},
        {"a": {b"b": 1}},
    ],
    ids=repr,
)
def test_no_extension_type_and_no_other_key_gets_in_where_any_value_may_be(value: Any) -> None:
    fault(72, 1, value)
    fault(66, 6, 1, value)
    fault(11, 1, "status", {"argument": value})
    fault(6, 1, "weather", [["fields", value]])
    fault(3, "bob", 1, ["s"], [RECORD], [{"correlation": value}])


def test_properties_are_maps_of_single_values() -> None:
    fault(3, "bob", 1, ["s"], [RECORD], [{"correlation": [1]}])
    fault(3, "bob", 1, ["s"], [RECORD], [{"correlation": {}}])
    assert decode([msgpack.packb((3, "bob", 1, ["s"], [RECORD], [{"a": 1, "b": "c", "d": None, "e": b"f"}]))])


@pytest.mark.parametrize("key", [1, 1.5, None, True], ids=repr)
def test_keys_whose_hash_can_be_chosen_are_refused_before_a_map_is_made(key: Any) -> None:
    with pytest.raises(Malformed, match="not msgpack"):
        unpack(msgpack.packb({key: 1}))


def test_lists_that_declare_more_than_they_hold_get_no_room() -> None:
    declared = b"\xdd\x00\x40\x00\x00" * 1000
    frame = declared + bytes(0x400000 - len(declared))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode([frame])
        assert tracemalloc.get_traced_memory()[1] < 2 * len(frame)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [512, 513, 5_000, 60_000])
@pytest.mark.parametrize(
    "announced", [b"\xdc\xff\xff", b"\xdd\x00\x01\x86\xa0", b"\xdc\x13\x88"], ids=bytes.hex
)
def test_lists_in_lists_that_are_not_there_take_little(announced: bytes, size: int) -> None:
    frame = (announced * size)[: size - size % len(announced)]
    tracemalloc.start()
    try:
        for read in (lambda: decode([frame]), lambda: unpack_record(frame), lambda: headers_of([frame])):
            with suppress(Malformed):
                read()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("announced", [b"\xdd\xff\xff\xff\xff", b"\xdd\x00\x40\x00\x00"], ids=bytes.hex)
@pytest.mark.parametrize("place", range(5))
def test_columns_that_are_not_there_take_little(announced: bytes, place: int) -> None:
    columns = [b"\x01", b"\x01", b"\xa0", b"\x91\xa0", b"\x91\xc4\x00"]
    payload = b"\x95" + b"".join(columns[:place]) + announced + bytes(0x400000 - 10)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            unpack_payload(payload)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(payload)
    finally:
        tracemalloc.stop()


def test_a_boolean_is_no_integer_and_an_integer_no_boolean() -> None:
    fault(9, 1, True)
    fault(2, "weather", False, ["s"], [RECORD])
    fault(5, 2, 1, [True], [True], [RECORD])
    fault(10, 1, [[True, True]])
    fault(68, [[True, 1, 0]])
    fault(65, 2, b"s", b"b", 1, "", {})
    fault(65, 2, b"s", b"b", True, "", {"unconfirmed": True})


# --- limits, at them and one past them


def depth(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" + "é" * 127, "€" * 85, "😀" * 63])
def test_a_name_of_255_bytes_is_held_and_one_more_byte_is_too_large(name: str) -> None:
    longer = name + "x" * (256 - len(name.encode()))
    for opcode, fields in ((2, (1, ["s"], [RECORD])), (3, (1, ["s"], [RECORD])), (4, (1, ["s"], [RECORD]))):
        assert decode([msgpack.packb((opcode, name, *fields))])
        assert type(fault(opcode, longer, *fields)) is TooLarge
    assert decode([msgpack.packb((6, 1, name, [["all", ""]]))])
    assert type(fault(6, 1, longer, [["all", ""]])) is TooLarge
    assert decode([msgpack.packb((1, [2], name))])
    assert type(fault(1, [2], longer)) is TooLarge


def test_an_empty_name_and_one_with_a_control_character_are_malformed() -> None:
    assert type(fault(2, "", 1, ["s"], [RECORD])) is Malformed
    assert type(fault(2, "a\x00", 1, ["s"], [RECORD])) is Malformed
    assert type(fault(1, [2], "a\x9f")) is Malformed
    assert decode([msgpack.packb((1, [2], ""))]) == Hello([2], "")


@pytest.mark.parametrize("subject", ["", "x" * 255, "x" + "é" * 127, "x" * 63, "é" * 63])
def test_a_subject_has_up_to_255_bytes(subject: str) -> None:
    message = Publish("weather", 1, ["short", subject], [RECORD, RECORD])
    assert decode(encode(message)) == message
    longer = subject + "é" * 128
    assert type(fault(2, "weather", 1, ["short", longer], [RECORD, RECORD])) is TooLarge


def test_a_subject_one_byte_too_long_is_refused_whatever_its_characters() -> None:
    for subject in ("x" * 256, "é" * 128, "xx" + "é" * 127):
        assert type(fault(2, "weather", 1, [subject], [RECORD])) is TooLarge


@pytest.mark.parametrize("opcode", [2, 3, 4])
def test_a_batch_has_up_to_10_000_messages(opcode: int) -> None:
    full = [msgpack.packb((opcode, "name", 1, ["s"] * BATCH_MESSAGES_MAX, [b""] * BATCH_MESSAGES_MAX))]
    assert len(decode(full).subjects) == BATCH_MESSAGES_MAX  # type: ignore[union-attr]  # one of three
    over = BATCH_MESSAGES_MAX + 1
    assert about(fault(opcode, "name", 1, ["s"] * over, [b""] * over)) == (TooLarge, opcode, 1)
    assert type(fault(opcode, "name", 1, [], [])) is Malformed


def test_replies_come_up_to_10_000_at_once() -> None:
    full = Reply(1, 1, [1] * BATCH_MESSAGES_MAX, [True] * BATCH_MESSAGES_MAX, [b""] * BATCH_MESSAGES_MAX)
    assert decode(encode(full)) == full
    over = BATCH_MESSAGES_MAX + 1
    assert about(fault(5, 1, 1, [1] * over, [True] * over, [b""] * over)) == (TooLarge, 5, 1)


def test_properties_come_up_to_10_000_at_once() -> None:
    over = BATCH_MESSAGES_MAX + 1
    assert type(fault(3, "bob", 1, ["s"], [b""], [None] * over)) is TooLarge


def test_a_subscription_and_an_offer_have_up_to_100_criteria() -> None:
    full = [["exact", str(place)] for place in range(CRITERIA_MAX)]
    assert decode(encode(Subscribe(1, "weather", full))) == Subscribe(1, "weather", full)
    assert about(fault(6, 1, "weather", [*full, ["all", ""]])) == (TooLarge, 6, 1)
    assert about(fault(7, 1, "printer", [*full, ["all", ""]])) == (TooLarge, 7, 1)


def test_an_ack_has_up_to_1000_ranges() -> None:
    full = [[place, place] for place in range(1, RANGES_MAX + 1)]
    assert decode(encode(Ack(0, full))) == Ack(0, full)
    over = [*full, [RANGES_MAX + 1, RANGES_MAX + 1]]
    assert about(fault(10, 0, over)) == (TooLarge, 10, 0)
    asked = Request("printer", 7, ["s"], [RECORD], None, full)
    assert decode(encode(asked)) == asked
    assert about(fault(4, "printer", 7, ["s"], [RECORD], None, over)) == (TooLarge, 4, 7)


def test_a_range_ends_where_numbers_end() -> None:
    assert decode(encode(Ack(0, [[1, NUMBER_MAX]])))
    fault(10, 0, [[1, NUMBER_MAX + 1]])
    fault(10, 0, [[0, 1]])
    fault(68, [[1, 1, NUMBER_MAX + 1]])
    fault(68, [[2, 1, 0]])
    fault(5, 1, 1, [NUMBER_MAX + 1], [True], [b""])


@pytest.mark.parametrize("text", ["x", "é", "€"])
def test_text_and_match_expressions_end_at_their_bytes(text: str) -> None:
    size = len(text.encode())
    where = text * (limits.WHERE_BYTES_MAX // size)
    software = text * (limits.TEXT_BYTES_MAX // size)
    assert decode([msgpack.packb((6, 1, "weather", [["all", ""]], where))])
    assert type(fault(6, 1, "weather", [["all", ""]], where + text)) is TooLarge
    assert decode([msgpack.packb((1, [2], "", software))])
    assert type(fault(1, [2], "", software + text)) is TooLarge


@pytest.mark.parametrize(
    ("low", "high", "place"), [(0, SOURCE_MAX, 0), (-1, NUMBER_MAX, 1), (-1, NUMBER_MAX, 2)]
)
def test_credit_holds_at_both_ends(low: int, high: int, place: int) -> None:
    for value in (low, high):
        message = Credit(*[value if place == here else 1 for here in range(3)])
        assert decode(encode(message)) == message
    for value in (low - 1, high + 1):
        fault(9, *[value if place == here else 1 for here in range(3)])


def test_values_lie_in_up_to_32_lists_and_maps() -> None:
    assert decode(encode(Ok(6, 1, depth(DEPTH_MAX)))) == Ok(6, 1, depth(DEPTH_MAX))
    fault(66, 6, 1, depth(DEPTH_MAX + 1))
    fault(66, 6, 1, depth(1000))
    assert decode(encode(Query(1, "status", {"a": depth(DEPTH_MAX - 1)})))
    fault(11, 1, "status", {"a": depth(DEPTH_MAX)})


def test_a_list_declares_up_to_100_000_items() -> None:
    full = msgpack.packb([None] * ITEMS_MAX)
    assert len(unpack(full)) == ITEMS_MAX
    with pytest.raises(Malformed):
        unpack(msgpack.packb([None] * (ITEMS_MAX + 1)))


def test_a_payload_may_hold_more_messages_than_a_command() -> None:
    count = ITEMS_MAX + 1
    payload, large = pack_stream_payload(Columns(1, 1, "", ["s"] * count, [b""] * count))
    assert len(unpack_payload(payload, large)) == count


# --- records


def record_of(size: int) -> bytes:
    record = pack_record(None, b"x" * (size - 5))
    assert len(record) in (size, size + 2)
    return record if len(record) == size else pack_record(None, b"x" * (size - 7))


def test_a_record_of_65_535_bytes_stays_in_its_column_and_the_next_travels_alone() -> None:
    small, large = record_of(RECORD_LARGE_BYTES - 1), record_of(RECORD_LARGE_BYTES)
    assert split_large([small]) == ([small], ())
    assert split_large([small, large, small]) == ([small, None, small], (large,))
    assert join_large([small, None, small], (large,)) == [small, large, small]


def test_large_records_travel_through_a_command_and_a_payload() -> None:
    records = [
        record_of(RECORD_LARGE_BYTES - 1),
        record_of(RECORD_LARGE_BYTES),
        b"",
        record_of(RECORD_LARGE_BYTES + 1),
    ]
    frames = encode(Publish("weather", 1, ["s"] * 4, records))
    assert [*map(len, frames[1:])] == [RECORD_LARGE_BYTES, RECORD_LARGE_BYTES + 1]
    assert len(frames[0]) < RECORD_LARGE_BYTES + 100
    message = decode(frames)
    assert isinstance(message, Publish)
    assert message.records == records
    payload, large = pack_stream_payload(Columns(1, 1, "", ["s"] * 4, records))
    assert len(payload) < RECORD_LARGE_BYTES + 100
    delivery = decode(encode(Deliver(1, 0, payload, large)))
    assert isinstance(delivery, Deliver)
    assert unpack_payload(delivery.payload, delivery.large).records == records


def test_a_record_takes_any_bytes_for_a_body_and_nothing_else() -> None:
    assert unpack_record(pack_record(None, bytearray(b"abc"))) == ({}, [b"abc"])
    assert unpack_record(pack_record(None, memoryview(b"abc"))) == ({}, [b"abc"])
    assert unpack_record(pack_record({}, [b"a", bytearray(b"b"), memoryview(b"c")])) == (
        {},
        [b"a", b"b", b"c"],
    )
    for body in ("abc", [5], ["a"], 5, None, [None]):
        with pytest.raises(InvalidValue):
            pack_record(None, body)  # type: ignore[arg-type]  # a user's mistake


@pytest.mark.parametrize(
    "headers", [{1: "a"}, {"a": b"b"}, {"a": [1]}, {"a": 2**64}, {"a": object()}, {"\ud800": 1}, [1]]
)
def test_a_record_refuses_other_headers(headers: Any) -> None:
    with pytest.raises(InvalidValue):
        pack_record(headers, b"")


@pytest.mark.parametrize(
    "fields",
    [[], {}, 5, [[]], [None, "text"], [None, None], [{"a": []}, b""], [{"a": b"b"}, b""], [b"", b""]],
    ids=repr,
)
def test_what_is_no_record_is_malformed(fields: Any) -> None:
    with pytest.raises(Malformed):
        unpack_record(msgpack.packb(fields))


@pytest.mark.parametrize(
    "fields",
    [
        [1, 1, "", [], []],
        [1, 1, "", ["s"], "r"],
        [1, 1, "", ["s"], [b"", b""]],
        [[1, 2], 1, "", ["s"], [b""]],
        [True, 1, "", ["s"], [b""]],
        [1, 1, "", ["s"], [b""], -1],
        [1, 1, "", ["s"], [b""], [1, 2]],
        [1, 1, "", ["s"], [b""], 1, {"a": 1}],
        [1, 1, "", ["s"], [b""], 1, None, 1],
        [1, 1, "", ["s"], [b""], 1, [{"a": [1]}]],
        [1, 1, "", ["s"], [b""], 1, [{"a": msgpack.Timestamp(1)}]],
        [1, 1, "", ["s"], [b""], None, None],
        [1, 1, "", ["s"], [None]],
        [0, 1, "", ["s"], [b""]],
        [NUMBER_MAX, 1, "", ["s", "s"], [b"", b""]],
        [NUMBER_MAX + 1, 1, "", ["s"], [b""]],
        [[1, NUMBER_MAX + 1], 1, "", ["s", "s"], [b"", b""]],
        [[1, 0], 1, "", ["s", "s"], [b"", b""], 1, None],
        [1, NUMBER_MAX + 1, "", ["s"], [b""]],
        [1, [-NUMBER_MAX - 1], "", ["s"], [b""], 1, [{"a": b""}]],
        [1, 1, "", ["s"], [b""], -1, None],
        [1, 1, "", ["s"], [b""], [NUMBER_MAX + 1], None],
        [1, 1, "", ["s"], [b""], DURATION_MS_MAX + 1],
    ],
    ids=repr,
)
def test_what_is_no_payload_is_malformed(fields: Any) -> None:
    with pytest.raises(Malformed):
        unpack_payload(msgpack.packb(fields))


@pytest.mark.parametrize(
    "fields",
    [
        [NUMBER_MAX - 1, -NUMBER_MAX, "", ["s", "s"], [b"", b""]],
        [[1, NUMBER_MAX], NUMBER_MAX, "", ["s", "s"], [b"", b""], DURATION_MS_MAX],
        [1, 1, "", ["s", "s"], [b"", b""], [0, NUMBER_MAX], None],
        # Bytes among the properties are not for the types, but for the rules.
        [[1, NUMBER_MAX], 1, "", ["s", "s"], [b"", b""], [0, NUMBER_MAX], [None, {"a": b""}]],
    ],
    ids=repr,
)
def test_a_payload_at_its_limits_is_taken(fields: Any) -> None:
    assert len(unpack_payload(msgpack.packb(fields))) == 2


def test_columns_hand_out_each_message() -> None:
    columns = Columns(7, 100, "alice", ["s", "t", "u"], [b"1", b"2", b"3"])
    assert list(columns.each_sequence()) == [7, 8, 9]
    assert columns.take([0, 2]) == Columns([7, 9], 100, "alice", ["s", "u"], [b"1", b"3"])
    mixed = Columns(
        (3, 5, 8),
        [10, 20, 30],
        ["a", "b", "c"],
        ["s", "t", "u"],
        [b"1", b"2", b"3"],
        [1, 2, 1],
        [{}, None, {}],
    )
    assert mixed.take([1]) == Columns([5], [20], ["b"], ["t"], [b"2"], [2], [None])
    assert len(mixed) == 3
