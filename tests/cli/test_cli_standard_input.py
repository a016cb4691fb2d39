"""The body of a message for which none is typed: what a pipe or a file holds; an error if nobody writes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_commands import ROOT, TIMEOUT, Run, Start

import malamute
from malamute.protocol.admin import MessagesQuery
from malamute.testing import Broker

SEND = ("send", "bob", "s")
COMMANDS: dict[str, tuple[str, ...]] = {
    "pub": ("pub", "bob", "s"),
    "send": SEND,
    "request": ("request", "bob", "s", "--wait", "0.1", "--ttl", "1h"),
}
NO_REPLY = 3
"""The exit code of a request that nobody answers."""


def _codes(command: str) -> set[int]:
    return {NO_REPLY} if command == "request" else {0}


def _stored(client: malamute.Client, command: str) -> list[bytes]:
    """The bodies of all messages that a command has stored."""
    if command == "pub":
        stream = client.query("stream", name="bob")
        with client.subscribe("bob", start="first") as found:
            return [found.receive(TIMEOUT).body for _ in range(stream["published"])]
    kind = {"send": "mailbox", "request": "service"}[command]
    return [row.body for row in client.query(MessagesQuery(kind=kind, name="bob"))]


@contextmanager
def _open_pipe() -> Iterator[int]:
    """A pipe that has a writer, who writes nothing."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_the_body(start: Start, client: malamute.Client, command: str) -> None:
    process = start(*COMMANDS[command], stdin=subprocess.PIPE)
    process.communicate("x\n", timeout=TIMEOUT)
    assert process.returncode in _codes(command)
    assert _stored(client, command) == [b"x\n"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_body_that_was_typed_is_the_body_whatever_comes_on_a_pipe(
    start: Start, client: malamute.Client, command: str
) -> None:
    name, *places = COMMANDS[command]
    with _open_pipe() as pipe:
        process = start(name, *places[:2], "typed", *places[2:], stdin=pipe)
        assert process.wait(TIMEOUT) in _codes(command)
    assert _stored(client, command) == [b"typed"]


def test_a_pipe_that_is_closed_without_a_byte_is_an_empty_body(start: Start, client: malamute.Client) -> None:
    process = start(*SEND, stdin=subprocess.PIPE)
    process.communicate("", timeout=TIMEOUT)
    assert process.returncode == 0
    assert _stored(client, "send") == [b""]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_open_pipe_to_which_nobody_writes_is_an_error_and_nothing_is_stored(
    start: Start, client: malamute.Client, command: str
) -> None:
    with _open_pipe() as pipe:
        process = start(*COMMANDS[command], "--timeout", "0.2", stdin=pipe)
        _, words = process.communicate(timeout=TIMEOUT)
    assert process.returncode not in (0, NO_REPLY)
    assert "no body came on standard input in 0.2 s" in words
    assert client.query("mailboxes") == client.query("services") == []
    assert "bob" not in {row["name"] for row in client.query("streams")}


def test_who_writes_late_and_slowly_is_waited_for_to_the_end(start: Start, client: malamute.Client) -> None:
    process = start(*SEND, "--timeout", "60", stdin=subprocess.PIPE)
    assert process.stdin is not None
    for part in ("one ", "two"):
        process.stdin.write(part)
        process.stdin.flush()
    process.communicate(timeout=TIMEOUT)
    assert _stored(client, "send") == [b"one two"]


def test_with_a_dash_a_pipe_is_waited_for_however_long(start: Start, client: malamute.Client) -> None:
    process = start(*SEND, "-", "--timeout", "0.2", stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.communicate("late", timeout=TIMEOUT)
    assert _stored(client, "send") == [b"late"]


@pytest.mark.parametrize(
    ("redirection", "body"), [("< /dev/null", b""), ("<&-", b""), ("< {file}", b"a\nb\n"), ("", b"")]
)
def test_what_a_shell_gives_it(
    broker: Broker, client: malamute.Client, tmp_path: Path, redirection: str, body: bytes
) -> None:
    """The last one has the terminal of whoever started it."""
    (tmp_path / "file").write_bytes(b"a\nb\n")
    _shell(broker, f"malamute send bob s {redirection.format(file=tmp_path / 'file')}")
    assert _stored(client, "send") == [body]


def test_a_loop_over_the_lines_of_a_file_keeps_its_lines(
    broker: Broker, client: malamute.Client, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a\nb\nc\n")
    _shell(broker, f'while read -r subject; do malamute send bob "$subject"; done < {tmp_path / "file"}')
    rows = client.query(MessagesQuery(kind="mailbox", name="bob"))
    assert [(row.subject, row.body) for row in rows] == [("a", b""), ("b", b""), ("c", b"")]


def _shell(broker: Broker, script: str) -> None:
    """Run a script in a shell on a terminal of its own."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            ["bash", "-c", f'malamute() {{ python -m malamute "$@"; }}; {script}'],
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MALAMUTE_URL": broker.url, "PATH": _path()},
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, done.stderr


def _path() -> str:
    """A search path that begins with the interpreter of this process."""
    import sys

    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _dead_letter(client: malamute.Client) -> None:
    client.send("test", "order", b"brocken", {"shop": 7})
    with client.mailbox(auto_ack=False) as mails:
        mails.receive(TIMEOUT).reject("no such thing")
    client.flush()


@pytest.fixture
def dead(client: malamute.Client, until: Callable[[Callable[[], object]], None]) -> int:
    """The sequence of a dead letter in the mailbox `test`."""
    _dead_letter(client)

    def found() -> list[Any]:
        return client.query(MessagesQuery(kind="mailbox", name="test", dead=True))

    until(found)
    return found()[0].sequence  # type: ignore[no-any-return]


@pytest.mark.parametrize("given", ["broken no more", "-"])
def test_a_dead_letter_is_mended_and_sent_again(
    run: Run, client: malamute.Client, dead: int, given: str
) -> None:
    redrive = ("mailbox", "redrive", "test", "--sequence", str(dead))
    run(*redrive, "--body", given, stdin="broken no more")
    [mended] = client.query(MessagesQuery(kind="mailbox", name="test"))
    assert (mended.subject, mended.headers, mended.body) == ("order", {"shop": 7}, b"broken no more")
    assert client.query(MessagesQuery(kind="mailbox", name="test", dead=True)) == []


def test_a_body_without_one_sequence_is_wrong_usage(run: Run, client: malamute.Client, dead: int) -> None:
    assert "one --sequence" in run("mailbox", "redrive", "test", "--body", "x", exit_code=2).stderr


def test_a_dead_letter_that_was_printed_is_sent_again_from_a_file(
    run: Run, client: malamute.Client, dead: int, tmp_path: Path
) -> None:
    letter = run("mailbox", "message", "test", str(dead), "--dead", "--json").stdout
    (tmp_path / "letter").write_text(letter.replace("brocken", "whole"))
    assert run("send", "bob", "--file", str(tmp_path / "letter")).stdout.startswith("1 message stored")
    rows = '{"body": "1"}\n{"subject": "b", "body_base64": "/w=="}\n'
    shown = json.loads(run("send", "bob", "a", "-H", "n=1", "--file", "-", "--json", stdin=rows).stdout)
    assert shown["messages"] == 2
    found = client.query(MessagesQuery(kind="mailbox", name="bob"))
    assert [(row.subject, row.headers, row.body) for row in found] == [
        ("order", {"shop": 7}, b"whole"),
        ("a", {"n": 1}, b"1"),
        ("b", {"n": 1}, b"\xff"),
    ]


def test_of_a_file_with_a_wrong_line_nothing_is_sent(run: Run, client: malamute.Client) -> None:
    failed = run("send", "bob", "a", "--file", "-", stdin='{"body": "1"}\nnonsense\n', exit_code=1)
    assert "line 2" in failed.stderr
    assert client.query("mailboxes") == []


@pytest.mark.parametrize(
    "arguments", [("bob",), ("bob", "s", "body", "--file", "-"), ("bob", "--file", "-", "--id", "x")]
)
def test_wrong_usage_of_a_file(run: Run, client: malamute.Client, arguments: tuple[str, ...]) -> None:
    assert "--file" in run("send", *arguments, exit_code=2).stderr
