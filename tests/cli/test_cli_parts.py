"""Messages as they are typed and printed, without a broker."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import click
import pytest
from cli_commands import Run

from malamute.cli.error_output import BadInput
from malamute.cli.options import ConnectionOptions
from malamute.cli.payload import OutgoingMessage, chunks_of_lines, parse_header, row_of
from malamute.cli.printing import as_body, as_format, as_json, as_line, as_raw
from malamute.cli.tables import cell, show_rows
from malamute.cli.work import environment
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
        "body": "ä",
    }
    assert json.loads(as_json(_message(b"\xff")))["body_base64"] == "/w=="


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
