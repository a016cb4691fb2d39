"""`malamute events`: what the broker tells of itself."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cli_commands import TIMEOUT, Run, Start

import malamute
from malamute.cli.events import as_event
from malamute.client.session.message import Message
from malamute.protocol.batch import pack_record


def _rows(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_an_event_as_a_line() -> None:
    event = Message(
        7, 1_500_000_000, "$broker", "a.b", pack_record({"n": 1, "text": "x\ny", "no": None}, b"")
    )
    assert as_event(event) == b"1970-01-01T00:00:01.500Z  a.b  n=1 text=x\\ny no=None\n"
    assert as_event(Message(7, 0, "", "a", pack_record(None, b""))) == b"1970-01-01T00:00:00.000Z  a\n"


def test_a_terminal_has_the_details_that_a_line_has_no_room_for_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    details = {"address": "alice-the-first", "software": "malamute-cli/0.1.0", "user": "x" * 90}
    event = Message(7, 1_500_000_000, "$broker", "client.connected.alice", pack_record(details, b""))
    assert as_event(event).decode().splitlines() == [
        "1970-01-01T00:00:01.500Z  client.connected.alice  address=alice-the-first",
        "    software=malamute-cli/0.1.0",
        f"    user={'x' * 90}",
    ]


def test_events_of_before_are_shown(run: Run, client: malamute.Client) -> None:
    line = run("events", "client.connected.#", "--start", "first", "-n", "1").stdout
    assert re.fullmatch(r"[\d-]+T[\d:.]+Z  client\.connected\.test  .*address=test.*\n", line)


def test_events_are_followed(start: Start, client: malamute.Client) -> None:
    events = start("events", "stream.created.#", "--start", "first", "--json", "-n", "1")
    client.publish("weather", "a", b"", assurance="stored")
    output, errors = events.communicate(timeout=TIMEOUT)
    shown = json.loads(output)
    assert (shown["subject"], shown["sender"], errors) == ("stream.created.weather", "$broker", "")


def test_events_end_when_none_comes(run: Run, client: malamute.Client) -> None:
    assert run("events", "nothing.#", "--wait", "0.1").stdout == ""
    run("events", "nothing.#", "--wait", "0.1", "-n", "1", exit_code=3)


def test_what_an_operator_does_to_a_stream_is_an_event(run: Run, client: malamute.Client) -> None:
    run("stream", "create", "made")
    client.publish("made", "a", b"", assurance="stored")
    run("stream", "purge", "made", "--yes")
    run("stream", "delete", "made", "--yes")
    lines = run("events", "stream.*.made", "--start", "first", "-n", "3", "--format", "{subject}").stdout
    assert lines.split() == ["stream.created.made", "stream.purged.made", "stream.deleted.made"]


def test_a_client_that_is_sent_away_is_an_event(run: Run, client: malamute.Client) -> None:
    run("client", "disconnect", "test", "--yes")
    (line,) = run("events", "client.left.test", "--start", "first", "-n", "1").stdout.splitlines()
    assert "reason=operator" in line
    with pytest.raises(malamute.MalamuteError):
        client.query("status")
