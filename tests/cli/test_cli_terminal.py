"""What other people wrote, on a terminal: it shows all of it and obeys none of it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest
from cli_commands import ROOT

import malamute
from malamute.cli.escaping import printable, to_json, visible
from malamute.cli.root import cli
from malamute.errors import MalamuteError
from malamute.testing import Broker

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\x08\rfake\x00"
"""It sets the title, clears the screen, turns the text around and goes back to write over what is there."""

OBEYED = ("\x1b]0;owned", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x08", "\rfake", "\x00")

OnTerminal = Callable[..., str]


@pytest.fixture
def on_terminal(broker: Broker) -> OnTerminal:
    """Run a command whose output is a terminal. Returns what that was sent, without its own ends of lines."""

    def run(*arguments: str, errors: bool = True) -> str:
        screen, inner = pty.openpty()
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = subprocess.Popen(
            [sys.executable, "-m", "malamute", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=inner if errors else subprocess.DEVNULL,
            env={**environ, "PYTHONPATH": str(ROOT), "MALAMUTE_URL": broker.url, "TERM": "xterm"},
        )
        os.close(inner)
        text = io.BytesIO()
        try:
            while piece := os.read(screen, 65_536):
                text.write(piece)
        except OSError:
            pass  # how a terminal tells that its last writer has gone
        finally:
            os.close(screen)
        process.wait()
        return text.getvalue().decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def others(broker: Broker, client: malamute.Client) -> Iterator[malamute.Client]:
    """Somebody who has put hostile words wherever words can be put."""
    headers = {"note": HOSTILE, HOSTILE: "name"}
    with malamute.connect(broker.url, address="other", software=HOSTILE) as other:
        for _ in range(3):
            other.publish("s", HOSTILE, HOSTILE.encode(), headers, assurance="stored")
        other.send("bob", HOSTILE, HOSTILE.encode(), headers, assurance="stored").wait(40)
        other.request("svc", HOSTILE, HOSTILE.encode(), headers, id=HOSTILE, key=HOSTILE)
        other.flush()
        with other.subscribe("s", HOSTILE, family="exact"), other.work("done", HOSTILE, family="exact"):
            other.flush()
            yield other


_STREAM = cli.get_command(click.Context(cli), "stream")
INFO = "show" if "show" in _STREAM.commands else "info"

COMMANDS = [
    ("sub", "s", "--start", "first", "-n", "3"),
    ("sub", "s", "--start", "first", "-n", "3", "--json"),
    ("sub", "s", "--start", "first", "-n", "3", "--body"),
    ("sub", "s", "--start", "first", "-n", "3", "--raw"),
    ("sub", "s", "--start", "first", "-n", "1", "--format", "{subject} {headers} {header[note]} {body}"),
    ("stream", "view", "s", "--page", "100"),
    ("stream", INFO, "s"),
    ("stream", "explain", "s", HOSTILE.replace("\0", "")),
    ("service", "browse", "svc"),
    ("service", "browse", "svc", "--json"),
    ("service", INFO, "done"),
    ("mailbox", "browse", "bob"),
    ("mailbox", "browse", "bob", "--json"),
    ("client", "list"),
    ("client", "list", "--json"),
    ("client", INFO, "other"),
    ("client", INFO, "other", "--json"),
    ("recv", "bob", "-n", "1"),
    ("top", "--count", "1", "--json"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(printable, command)))
def test_no_command_lets_a_terminal_obey_what_others_wrote(
    others: malamute.Client, on_terminal: OnTerminal, command: tuple[str, ...]
) -> None:
    text = on_terminal(*command)
    assert text.strip()
    assert "Usage:" not in text
    assert not [words for words in OBEYED if words in text]


@pytest.mark.parametrize("form", ["--raw", "--body"])
def test_what_is_piped_is_passed_on_as_it_is(others: malamute.Client, broker: Broker, form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "malamute", "sub", "s", "--start", "first", "-n", "1", form],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALAMUTE_URL": broker.url},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout.removesuffix(b"\n") == HOSTILE.encode()


def test_json_has_the_same_value_with_what_cannot_be_seen_escaped() -> None:
    value = {HOSTILE: [HOSTILE, "ø", "\U0001f600", "\U000e0001", 1.5, None]}
    text = to_json(value)
    assert json.loads(text) == value
    assert text.isprintable()
    assert "ø" in text
    assert "\U0001f600" in text


def test_lines_and_tabs_stay_where_a_text_has_several_lines() -> None:
    assert visible("a\tb\nc\x1b[1m\x7f\x85") == "a\tb\nc\\x1b[1m\\x7f\\x85"
    assert printable("a\tb\n") == "a\\tb\\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_told_so_too(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from malamute.cli.trouble import tell

    tell(MalamuteError(HOSTILE), as_json=as_json)
    shown = capsys.readouterr().err
    assert shown.strip().isprintable()
