"""docs/protocol.md says what the code does: every example and every table."""

import re
import runpy
from pathlib import Path
from typing import Annotated, Any, get_origin

import page
import pytest
import wire_strategies as wire

from malamute import errors
from malamute.protocol import fields, limits, messages
from malamute.protocol.batch import pack, pack_record, unpack_payload, unpack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.fields import Rule, rule_of
from malamute.protocol.limits import Limits
from malamute.protocol.messages import BY_OPCODE, SPECS, Spec

ROOT = Path(__file__).parents[2]
EXAMPLES = page.examples()
MESSAGES = [example for example in EXAMPLES if example.kind in messages.__dict__]
BYTES = [example for example in EXAMPLES if example not in MESSAGES]


RULES: dict[str, Rule] = {
    rule.words: rule
    for name, hint in vars(fields).items()
    if get_origin(hint) is Annotated and not name.startswith("_")
    for rule in (rule_of(hint),)
}
COMMANDS = [pytest.param(spec, id=spec.name) for spec in SPECS]


def words(example: page.Example) -> str:
    return example.words[:40]


# --- examples


@pytest.mark.parametrize("example", MESSAGES, ids=words)
def test_an_example_decodes_to_the_message_that_it_describes(example: page.Example) -> None:
    decoded = decode(example.frames)
    assert type(decoded) is type(example.value)
    assert decoded == example.value


@pytest.mark.parametrize("example", MESSAGES, ids=words)
def test_the_message_of_an_example_encodes_to_its_bytes(example: page.Example) -> None:
    assert encode(example.value) == example.frames
    assert encode(decode(example.frames)) == example.frames


@pytest.mark.parametrize("example", BYTES, ids=words)
def test_records_and_payloads_have_the_bytes_of_their_examples(example: page.Example) -> None:
    (data,) = example.frames
    assert example.value == data
    if example.kind == "record":
        headers, body = unpack_record(data)
        assert pack_record(headers, body) == data
    else:
        columns = unpack_payload(data)
        ttls = (columns.ttls,) if columns.ttls else ()
        assert pack((*columns[: 5 if example.kind == "stream_payload" else 7], *ttls)) == data


def test_the_payload_of_a_delivery_holds_its_large_record() -> None:
    (delivery,) = (decode(e.frames) for e in MESSAGES if e.kind == "Deliver" and len(e.frames) > 2)
    columns = unpack_payload(delivery.payload, delivery.large)
    assert [len(record) for record in columns.records] == [limits.RECORD_LARGE_BYTES]
    assert columns.properties == [{"correlation": "job-1", "service": "printer", "final": True}]


def test_every_command_has_an_example_and_so_have_records_and_payloads() -> None:
    kinds = {spec.message.__name__ for spec in SPECS} | {"record", "stream_payload", "queue_payload"}
    assert {example.kind for example in EXAMPLES} == kinds


@pytest.mark.parametrize("spec", COMMANDS)
def test_the_examples_of_a_command_stand_in_its_section(spec: Spec) -> None:
    assert f"```hex\n{spec.message.__name__}(" in page.section(f"{spec.name} ({spec.opcode})")


# --- commands


@pytest.mark.parametrize("spec", COMMANDS)
def test_the_fields_of_a_command_are_those_of_its_table(spec: Spec) -> None:
    rows = page.table(page.section(f"{spec.name} ({spec.opcode})"), "field")
    defaults = spec.message._field_defaults
    fields = spec.message._fields[: len(spec.rules)]
    optional = fields[spec.required :]
    assert [row[:3] for row in rows] == [
        [field, rule.words, _literal(defaults[field]) if field in optional else ""]
        for field, rule in zip(fields, spec.rules, strict=True)
    ]
    assert all(row[3] for row in rows)


def _literal(value: Any) -> str:
    if value is None:
        return "nil"
    return str(value) if isinstance(value, int | list | dict) else f'"{value}"'


@pytest.mark.parametrize("spec", COMMANDS)
def test_the_syntax_of_a_command_is_the_one_of_its_spec(spec: Spec) -> None:
    fields = spec.message._fields[: len(spec.rules)]
    marked = [field + "?" * (place >= spec.required) for place, field in enumerate(fields)]
    frames = {"": "", "large": " + large records", "payload": " + payload + large records"}[spec.frames]
    syntax = f"    [{', '.join([str(spec.opcode), *marked])}]{frames}\n"
    assert page.section(f"{spec.name} ({spec.opcode})").startswith(f"\n{syntax}")


def test_the_page_has_a_section_for_each_command_and_no_other() -> None:
    sections = {
        (name, int(opcode)) for name, opcode in re.findall(r"^### ([A-Z]+) \((\d+)\)", page.TEXT, re.M)
    }
    assert sections == {(spec.name, spec.opcode) for spec in SPECS}


def test_answers_repeat_the_field_that_the_page_names() -> None:
    found = {
        name: field
        for field, names in re.findall(r"^- the `(\w+)` of (.+)[;.]$", page.section("Opcodes"), re.MULTILINE)
        for name in re.findall(r"[A-Z]+", names)
    }
    clients = [spec for spec in SPECS if spec.opcode < 64 and spec.ref >= 0]
    assert found == {spec.name: spec.message._fields[spec.ref] for spec in clients}
    assert len(BY_OPCODE) == len(SPECS)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.opcode < 64], ids=lambda spec: spec.name)
def test_every_command_of_a_client_lists_its_replies(spec: Spec) -> None:
    rows = page.table(page.section(f"{spec.name} ({spec.opcode})"), "reply")
    assert rows
    for reply, meaning in rows:
        name, _, codes = reply.partition(" ")
        assert name in {"none", *(spec.name for spec in SPECS)}
        assert all(
            issubclass(errors.BY_CODE[int(code)], errors.MalamuteError) for code in re.findall(r"\d+", codes)
        )
        assert (name == "ERROR") == bool(codes)
        assert meaning


# --- types

SAMPLES: dict[str, Any] = {
    "versions": 2,
    "subjects": "",
    "records": b"",
    "flags": True,
    "sequences": 1,
    "senders": "alice",
    "urls": "tcp://edge:9999",
    "urls of a pair": "tcp://edge:9999",
    "ways": [["b", "s", "link", 1]],
    "properties": None,
    "criteria": ["exact", "a"],
    "ranges": [1, 1],
    "held ranges": [1, 1],
    "settled ranges": [1, 1],
    "stored ranges": [1, 1, 0],
    "delays": 1.5,
    "names": "a",
    "keys": "a",
    "rows of keys": ["a", 1, b"", 0],
    "rules": "view broker/status",
}
TYPES = page.table(page.section("Types"), "type")
ARGUMENT_TYPES = page.table(page.section("Types of arguments"), "type")
RANGED = [row for row in TYPES + ARGUMENT_TYPES if row[2]]


def sample(row: list[str], size: int) -> Any:
    words, form = row[:2]
    if form in ("integer", "number"):
        return size
    if form == "map":
        return {str(place): place for place in range(size)}
    if words == "path":
        return "/".ljust(size, "x")[:size]
    if form == "binary":
        return b"x" * size
    return "x" * size if form == "text" else [SAMPLES[words]] * size


def test_the_types_are_those_of_the_rules() -> None:
    assert {row[0] for row in TYPES} == {rule.words for spec in SPECS for rule in spec.rules}
    used = {rule.words for takes in wire.ARGUMENTS.values() for rule in takes.rules.values()}
    assert {row[0] for row in ARGUMENT_TYPES} == used - {row[0] for row in TYPES}
    assert set(RULES) == {row[0] for row in TYPES + ARGUMENT_TYPES}


@pytest.mark.parametrize("row", RANGED, ids=lambda row: row[0])
def test_a_type_holds_at_both_ends_of_its_range_and_not_beyond(row: list[str]) -> None:
    rule, low, high = RULES[row[0]], int(row[2]), int(row[3])
    assert rule.holds(sample(row, low))
    assert rule.holds(sample(row, high))
    assert not rule.holds(sample(row, high + 1))
    if low > 0 or row[1] in ("integer", "number"):
        assert not rule.holds(sample(row, low - 1))


@pytest.mark.parametrize("row", RANGED, ids=lambda row: row[0])
def test_one_past_the_size_of_a_list_or_a_text_is_too_large(row: list[str]) -> None:
    rule, high = RULES[row[0]], int(row[3])
    assert rule.is_over(sample(row, high + 1)) == (row[1] in ("list", "text", "binary"))
    assert not rule.is_over(sample(row, high))


# --- errors and limits


def test_common_errors_are_those_of_commands_and_of_the_tree() -> None:
    rows = page.table(page.section("Errors"), "commands")
    names = {spec.name for spec in SPECS}
    for commands, codes, meaning in rows:
        assert commands.startswith("all") or set(commands.split(", ")) <= names
        assert {int(code) for code in codes.split(", ")} <= set(errors.BY_CODE)
        assert meaning


def test_the_reference_has_every_limit_with_its_value_and_its_meaning() -> None:
    text = runpy.run_path(str(ROOT / "docs" / "make" / "limits_table.py"))["page"]()
    rows = {row[0]: int(row[1]) for kind in ("constant", "limit") for row in page.table(text, kind) if row[2]}
    constants = {name: value for name, value in vars(limits).items() if isinstance(value, int)}
    assert rows == constants | Limits()._asdict()
