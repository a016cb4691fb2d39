"""Messages as they are typed and printed, without a broker."""

from __future__ import annotations

import io
import json
import math
import sys
from typing import Any

import click
import msgpack
import pytest
from cli_commands import Run
from hypothesis import given
from hypothesis import strategies as st

from malamute.cli.error_output import BadInput
from malamute.cli.options import ConnectionOptions
from malamute.cli.payload import OutgoingMessage, chunks_of_lines, parse_header, row_of, rows_of
from malamute.cli.printing import as_body, as_format, as_json, as_line, as_raw
from malamute.cli.tables import cell, show_rows
from malamute.cli.work import environment
from malamute.client.session.batch import record_of
from malamute.client.session.message import Message
from malamute.client.sync.consumers import Request
from malamute.errors import InvalidName
from malamute.protocol.batch import Headers, pack_record


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ('"5"', "5"),
        ("C", "C"),
        ("", ""),
        ("a=b", "a=b"),
        ("007", "007"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("[1]", "[1]"),
        ('{"a": 1}', '{"a": 1}'),
        pytest.param("[" * 100_000, "[" * 100_000, id="nested"),
    ],
)
def test_a_header_has_the_type_that_it_looks_like(text: str, value: object) -> None:
    name, parsed = parse_header(f"unit={text}")
    assert (name, type(parsed), parsed) == ("unit", type(value), value)


def test_a_header_without_a_value_is_null() -> None:
    assert parse_header("urgent") == ("urgent", None)
    with pytest.raises(click.BadParameter):
        parse_header("=5")


def test_a_line_of_json_is_a_message() -> None:
    line = b'{"subject": "a", "headers": {"n": 1}, "body": "\xc3\xa4", "sequence": 7}'
    assert row_of(line, "") == OutgoingMessage("a", {"n": 1}, "ä".encode())
    assert row_of(b'{"body_base64": "/w=="}', "b") == OutgoingMessage("b", None, b"\xff")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"5",
        b'{"headers": 5}',
        b'{"body": 5}',
        b'{"body_base64": "!"}',
        b'{"body_base64": 5}',
        pytest.param(b"[" * 100_000, id="nested"),
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(BadInput):
        row_of(line, "a")


class _Slow(io.RawIOBase):
    """Gives what was written piece by piece, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces]

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def test_lines_are_given_as_they_come() -> None:
    source: Any = _Slow(b"a\nb", b"c\n", b"d", b"e")
    assert list(chunks_of_lines(source)) == [[b"a"], [b"bc"], [b"de"]]


def _message(body: bytes, headers: dict[str, Any] | None = None, subject: str = "a.b") -> Message:
    return Message(7, 1_500_000_000, "bob", subject, pack_record(headers, body))


def test_a_line_shows_nothing_that_a_terminal_would_obey() -> None:
    assert as_line(_message(b"hi", {"n": 1})) == b'7\ta.b\thi\t{"n": 1}\n'
    assert as_line(_message(b"\x1b[2J\n\xff", subject="x\ty")) == b"7\tx\\ty\t\\x1b[2J\\n\\xff\n"


def test_json_of_a_message() -> None:
    shown = json.loads(as_json(_message("ä".encode(), {"n": float("inf"), "p": None})))
    assert shown == {
        "sequence": 7,
        "time": "1970-01-01T00:00:01.500000+00:00",
        "sender": "bob",
        "subject": "a.b",
        "headers": {"n": "inf", "p": None},
        "floats": ["n"],
        "body": "ä",
    }
    assert json.loads(as_json(_message(b"\xff")))["body_base64"] == "/w=="


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, "nan", "inf", "-inf"])
    | st.text(max_size=5)
)


@given(
    subject=st.text(max_size=8),
    headers=st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    frames=st.lists(st.binary(max_size=8) | st.text(max_size=5).map(str.encode), max_size=3),
    ttl=st.sampled_from([0, 1, 999, 60_000, 315_360_000_000]),
)
def test_what_is_printed_as_json_is_the_same_message_again(
    subject: str, headers: dict[str, Any], frames: list[bytes], ttl: int
) -> None:
    record = record_of(headers, frames)
    message = Message(7, 1_500_000_000, "bob", subject, record).expiring(ttl)
    [row] = rows_of([(1, as_json(message))], "another", "a test")
    body = row.body if isinstance(row.body, list) else [row.body]
    assert (row.subject, body, row.ttl) == (subject, frames, ttl / 1000 or None)
    # NaN is not equal to itself, and -0.0 is to 0.0: what is packed says it all.
    assert record_of(row.headers, body) == record


@pytest.mark.parametrize(
    "line",
    [
        '{"floats": 5}',
        '{"floats": ["n"]}',
        '{"floats": ["n"], "headers": {"n": "x"}}',
        '{"floats": [[]], "headers": {"n": "nan"}}',
        '{"ttl": "5"}',
        '{"ttl": true}',
        '{"ttl": -1}',
        '{"ttl": Infinity}',
        '{"frames": "x"}',
        '{"frames": ["x"]}',
        '{"frames": [{"body": 5}]}',
        '{"frames": [{"body_base64": "?"}]}',
    ],
)
def test_fields_that_cannot_be_are_refused_with_the_line(line: str) -> None:
    with pytest.raises(BadInput, match="a test, line 3: invalid"):
        [*rows_of([(3, line.encode())], "s", "a test")]


def test_an_unreadable_message_is_shown_as_far_as_it_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    odd = Message(7, 1_500_000_000, "bob", "a.b", msgpack.packb([{1: 2}, b"x"]))
    assert as_line(odd) == b"7\ta.b\tx\n"
    assert json.loads(as_json(odd))["body"] == "x"
    broken = Message(8, 1_500_000_000, "bob", "a.b", b"\xc1")
    assert as_line(broken).startswith(b"8\ta.b\t(unreadable: ")
    assert json.loads(as_json(broken))["unreadable"].startswith("unreadable: ")
    assert as_format("{sequence} {header[x]} {body}")(broken).startswith(b"8  (unreadable: ")
    assert capsys.readouterr().err == ""
    assert (as_raw(broken), as_body(broken)) == (b"", b"\n")
    assert capsys.readouterr().err.startswith("message 8 is unreadable: ")
    assert [*rows_of([(4, as_json(broken))], "s", "a test")] == []
    assert capsys.readouterr().err == "a test, line 4: a message that was unreadable is left out\n"


def test_bodies_alone() -> None:
    assert as_body(_message(b"hi")) == as_body(_message(b"hi\n")) == b"hi\n"
    assert as_raw(_message(b"\xff")) == b"\xff"


def test_a_template() -> None:
    render = as_format("{sequence} {subject} {header[unit]}|{header[none]}|{body}")
    assert render(_message(b"-3", {"unit": "C"})) == b"7 a.b C||-3\n"


@pytest.mark.parametrize("template", ["{nonsense}", "{", "{body.nonsense}", "{sequence:q}"])
def test_a_wrong_template_is_wrong_usage(run: Run, template: str) -> None:
    assert "--format" in run("sub", "s", "--format", template, exit_code=2).stderr


def test_a_uri_names_the_broker_too() -> None:
    here = ConnectionOptions()
    assert here.to("weather", "stream") == (here, "weather")
    there, name = here.to("malamute://example.org/stream/a%20b", "stream")
    assert (there.url, name) == ("tcp://example.org:9999", "a b")
    assert here.to("malamute://[::1]:5/mailbox/bob", "mailbox")[0].url == "tcp://[::1]:5"
    with pytest.raises(InvalidName, match="expected that of a stream"):
        here.to("malamute://example.org/mailbox/bob", "stream")


def test_cells_of_tables() -> None:
    values = [None, True, 2.5, ["a", "b"], "\x1b", 7]
    assert [cell("any", value) for value in values] == ["-", "yes", "2.5", "a, b", "\\x1b", "7"]
    assert cell("since", 0.0) == "1970-01-01T00:00:00Z"


def test_the_environment_of_a_command() -> None:
    headers: Headers = {"content-type": "text", "_x__y": 5, "LD_PRELOAD": "a\0b", "on": True, "none": None}
    request = Request(1, 0, "bob", "s", pack_record(headers, b""), 2, None, None)
    assert environment("svc", request, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "MALAMUTE_SERVICE": "svc",
        "MALAMUTE_SUBJECT": "s",
        "MALAMUTE_SENDER": "bob",
        "MALAMUTE_ATTEMPTS": "2",
        "MALAMUTE_HEADER_CONTENT_TYPE": "text",
        "MALAMUTE_HEADER_X_Y": "5",
        "MALAMUTE_HEADER_LD_PRELOAD": "ab",
        "MALAMUTE_HEADER_ON": "true",
        "MALAMUTE_HEADER_NONE": "",
    }


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_rows([{"name": "[red]weather", "last": 5}], as_json=False)
    shown = capsys.readouterr().out
    assert "───" in shown
    assert "[red]weather" in shown
