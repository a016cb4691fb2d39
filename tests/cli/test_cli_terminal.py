"""Text of other people on a terminal, which shows all of it and obeys none of it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import click
import pytest
from cli_commands import ROOT
from forked_broker import FORKS, play_on
from forked_commands import forked_malamute

import malamute
from malamute.cli.escaping import printable, to_json, visible
from malamute.cli.root import cli
from malamute.errors import AccessRefused, Disconnected, MalamuteError
from malamute.testing import Broker

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\x08\rfake\x00"
"""Text that sets the title, clears the screen, turns the text around and goes back to write over it."""

OBEYED = ("\x1b]0;owned", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x08", "\rfake", "\x00")

TURNED = "\u202e\u2066gnp.exe"
"""A name may have this, which turns the text around."""

OnTerminal = Callable[..., str]


@pytest.fixture
def on_terminal(broker: Broker) -> OnTerminal:
    """Run a command on a terminal."""
    return partial(run_on_terminal, broker.url)


def run_on_terminal(url: str, *arguments: str, columns: int = 0) -> str:
    """Run a command whose output is a terminal. Returns what that was sent, without its own ends of lines."""
    screen, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, columns))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    environ |= {"MALAMUTE_URL": url, "TERM": "xterm"}
    # A Connection is how a server of forks is given a file.
    with Connection(os.open(os.devnull, os.O_RDONLY)) as nothing, Connection(inner) as terminal:
        process = FORKS.Process(target=play_on, args=((nothing, terminal, terminal), arguments, environ))
        process.start()
    text = io.BytesIO()
    try:
        while piece := os.read(screen, 65_536):
            text.write(piece)
    except OSError:
        pass  # how a terminal tells that its last writer has gone
    finally:
        os.close(screen)
    process.join()
    return text.getvalue().decode().replace("\r\n", "\n")


@pytest.fixture
def others(broker: Broker) -> Iterator[malamute.Client]:
    """Others at the broker of a test."""
    with hostile_others(broker) as other:
        yield other


@pytest.fixture(scope="module")
def looked_at() -> Iterator[Broker]:
    """A broker with others, for those who only look."""
    with Broker() as broker, hostile_others(broker):
        yield broker


@contextmanager
def hostile_others(broker: Broker) -> Iterator[malamute.Client]:
    """Somebody who has put hostile words wherever words can be put, and has a worker and a dead letter."""
    headers = {"note": HOSTILE, HOSTILE: "name"}
    with malamute.connect(broker.url, address="other", software=HOSTILE) as other:
        for _ in range(3):
            other.publish("s", HOSTILE, HOSTILE.encode(), headers, assurance="stored")
        other.send("bob", HOSTILE, HOSTILE.encode(), headers, assurance="stored").wait(40)
        other.request("svc", HOSTILE, HOSTILE.encode(), headers, id=HOSTILE, key=HOSTILE)
        other.publish(TURNED, TURNED, b"", assurance="stored")
        other.request(TURNED, TURNED, b"")
        other.request("dead", HOSTILE, HOSTILE.encode(), headers)
        other.send("dead", HOSTILE, HOSTILE.encode(), headers)
        other.change("cursor.set", stream=TURNED, cursor=TURNED, start="first")
        other.change(
            "feed.set",
            source="stream/s",
            feed=TURNED,
            target=f"service/{TURNED}",
            criteria=[["exact", HOSTILE]],
        )
        other.bucket(TURNED).put(TURNED, HOSTILE)
        other.change(
            "link.set",
            link=TURNED,
            urls=["tcp://127.0.0.1:1"],
            remote=TURNED,
            stream=TURNED,
            criteria=[["exact", HOSTILE]],
        )
        other.change("group.add", name=TURNED)
        other.change("user.add", name=TURNED, uid=7, groups=[TURNED])
        other.flush()
        with suppress(AccessRefused):
            other.publish(f"${TURNED}", HOSTILE, b"", assurance="stored")
        with malamute.connect(broker.url, address="dead") as reader, reader.work("dead") as work:
            reader.receive(40).reject(TURNED)
            work.receive(40).reject(TURNED)
            reader.flush()
        with (
            suppress(Disconnected),  # one of the commands does that
            other.subscribe("s", HOSTILE, family="exact"),
            other.work("done", HOSTILE, family="exact"),
            malamute.connect(broker.url, address=TURNED) as turned,
        ):
            turned.subscribe(TURNED, credit=1)
            turned.send(TURNED, TURNED, b"")
            other.flush()
            yield other


LOOKING = [
    ("sub", "s", "--start", "first", "-n", "3"),
    ("sub", "s", "--start", "first", "-n", "3", "--json"),
    ("sub", "s", "--start", "first", "-n", "3", "--body"),
    ("sub", "s", "--start", "first", "-n", "3", "--raw"),
    ("sub", "s", "--start", "first", "-n", "1", "--format", "{subject} {headers} {header[note]} {body}"),
    ("stream", "view", "s", "--page", "100"),
    ("stream", "list"),
    ("stream", "show", "s"),
    ("stream", "show", TURNED),
    ("stream", "explain", "s", HOSTILE.replace("\0", "")),
    ("bucket", "list"),
    ("bucket", "get", TURNED, TURNED),
    ("bucket", "get", TURNED, TURNED, "--json"),
    ("bucket", "watch", TURNED, TURNED, "-n", "1"),
    ("bucket", "watch", TURNED, TURNED, "-n", "1", "--json"),
    ("cursor", "list"),
    ("service", "list"),
    ("feed", "list"),
    ("feed", "show", TURNED, "stream/s"),
    ("feed", "set", "fed", "stream/s", "service/fed", "--dry-run"),
    ("feed", "delete", TURNED, "stream/s", "--dry-run"),
    ("service", "dead", "dead"),
    ("service", "delete", "svc", "--cascade", "--dry-run"),
    ("service", "browse", "svc"),
    ("service", "browse", "svc", "--json"),
    ("service", "message", "svc", "1"),
    ("service", "message", "svc", "1", "--raw"),
    ("service", "show", "done"),
    ("service", "show", TURNED),
    ("mailbox", "list"),
    ("mailbox", "show", TURNED),
    ("mailbox", "dead", "dead"),
    ("mailbox", "delete", "bob", "--dry-run"),
    ("mailbox", "browse", "bob"),
    ("mailbox", "browse", "bob", "--json"),
    ("mailbox", "message", "bob", "1"),
    ("mailbox", "message", "bob", "1", "--json"),
    ("link", "list"),
    ("link", "show", TURNED),
    ("client", "list"),
    ("client", "list", "--json"),
    ("client", "show", "other"),
    ("client", "show", "other", "--json"),
    ("top", "--count", "1", "--json"),
    ("events", "--start", "first", "-n", "8"),
    ("broker", "check", "--lag", "1", "--oldest", "0s,1d", "--depth", "1"),
    ("broker", "check", "--lag", "1", "--json"),
    ("broker", "status"),
    ("auth", "check", TURNED, "publish", f"stream/{TURNED}"),
    ("auth", "explain", TURNED, "publish", f"stream/{TURNED}"),
    ("auth", "log", "-n", "1"),
    ("auth", "log", "-n", "1", "--json"),
    ("auth", "changes", "-n", "3"),
    ("group", "list"),
    ("group", "list", "--json"),
    ("group", "show", TURNED),
    ("user", "list"),
    ("user", "list", "--json"),
    ("user", "show", TURNED),
    ("user", "quotas"),
]
"""Commands that change nothing, for which one world is enough."""

CHANGING = [
    ("stream", "create", "new"),
    ("stream", "edit", "s", "--count", "2"),
    ("stream", "purge", "s", "--yes"),
    ("stream", "delete", TURNED, "--yes"),
    ("stream", "delete-messages", "s", "--sequence", "1", "--yes"),
    ("bucket", "put", TURNED, TURNED, "value"),
    ("bucket", "delete", TURNED, TURNED, "--yes"),
    ("service", "edit", TURNED, "--attempts", "2"),
    ("service", "cancel", "svc", HOSTILE.replace("\0", "")),
    ("mailbox", "edit", TURNED, "--attempts", "2"),
    ("mailbox", "cancel", "bob", TURNED),
    ("cursor", "reset", TURNED, "c", "--to", "first"),
    ("cursor", "delete", TURNED, TURNED, "--yes"),
    ("feed", "disable", TURNED, "stream/s"),
    ("feed", "enable", TURNED, "stream/s"),
    ("service", "redrive", "dead"),
    ("service", "purge", "svc", "--yes"),
    ("mailbox", "redrive", "dead"),
    ("mailbox", "purge", "bob", "--yes"),
    ("link", "add", f"{TURNED}2", TURNED, "--from", "127.0.0.1:1", "--into", TURNED),
    ("link", "pause", TURNED),
    ("link", "resume", TURNED),
    ("link", "remove", TURNED, "--yes"),
    ("client", "disconnect", TURNED, "--yes"),
    ("recv", "bob", "-n", "1"),
    ("pub", TURNED, "a", "b"),
    ("send", TURNED, "a", "b"),
    ("group", "add", f"{TURNED}2"),
    ("group", "set", TURNED, "--rule", ""),
    ("group", "remove", TURNED, "--yes"),
    ("user", "add", "new", "--uid", "8", "--group", TURNED),
    ("user", "set", TURNED, "--uid", "9"),
    ("user", "disable", TURNED),
    ("user", "enable", TURNED),
    ("user", "remove", TURNED, "--yes"),
]

OFFLINE = [
    ("journal", "inspect"),
    ("journal", "verify"),
    ("journal", "export", "--to", "out"),
    ("journal", "export", "verify", "--from", "out"),
    ("journal", "sql", "select * from history", "--from", "out"),
    ("journal", "analyze", "--to", "report", "--from", "out"),
    ("journal", "backup", "saved"),
    ("journal", "repair"),
    ("journal", "restore", "saved", "again"),
]
"""Commands that are given the data directory of a broker that has stopped."""

ELSEWHERE = {
    ("request",): "below, with a worker who is a stranger",
    ("work",): "it prints nothing of a request; its errors are reported as all are",
    ("auth", "enable"): "it prints the name that it was given, and asks for the password on a terminal",
    ("broker", "backup"): "a broker in memory has none; it prints what it was given",
    ("broker", "options"): "what the operator has configured; text of a file is printed as TOML writes it",
    ("broker", "reload"): "the names of options, and what is wrong with the operator's own file",
    ("broker", "run"): "what the operator has configured; its log is JSON",
    ("gateway", "run"): "its log is JSON, and what it prints is its own",
    ("mcp",): "its answers are JSON, and its host has no terminal there",
    ("pack", "run"): "its log is of links, whose words are escaped; it prints the URL that it was given",
    ("pack", "discover"): "tests/pack",
    ("pair", "create"): "the names and URLs of the operator's own configuration",
    ("pair", "join"): "the same",
    ("pair", "diverged"): "the messages are JSON",
    ("pair", "status"): "the same",
    ("pair", "switch"): "the same",
    ("user", "passwd"): "it prints what `user set` does, and asks for the password on a terminal",
    ("journal", "replay"): "it prints what `spark replay` does",
    ("spark", "analyze"): "tests/spark",
    ("spark", "match"): "tests/spark",
    ("spark", "replay"): "tests/spark",
}
OWN = {"context", "config", "bench", "cheat", "completion", "errors", "demo", "keys"}
"""Groups and commands that print what their user, or Malamute itself, has written."""


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*words, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def words(command: tuple[str, ...]) -> str:
    """How a test of this command is called."""
    return " ".join(map(printable, command))


def test_no_command_is_forgotten() -> None:
    assert isinstance(cli, click.Group)
    theirs = {names for names in _commands(cli) if names[0] not in OWN}
    named = {names[:size] for names in (*LOOKING, *CHANGING, *OFFLINE) for size in (1, 2, 3)} & theirs
    assert theirs - named == set(ELSEWHERE)


@pytest.mark.parametrize("command", LOOKING, ids=words)
def test_no_command_lets_a_terminal_obey_what_others_wrote(
    looked_at: Broker, command: tuple[str, ...]
) -> None:
    assert_obeyed_nothing(run_on_terminal(looked_at.url, *command))


@pytest.mark.parametrize("command", CHANGING, ids=words)
def test_nor_does_one_that_changes_something(
    others: malamute.Client, on_terminal: OnTerminal, command: tuple[str, ...]
) -> None:
    assert_obeyed_nothing(on_terminal(*command))


def assert_obeyed_nothing(text: str) -> None:
    assert text.strip()
    assert "Usage:" not in text
    assert not [words for words in OBEYED if words in text]


def test_nor_does_one_that_reads_a_journal(on_terminal: OnTerminal, tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "data") as broker,
        malamute.connect(broker.url, address=TURNED, software=HOSTILE) as other,
    ):
        other.publish(TURNED, HOSTILE, HOSTILE.encode(), {HOSTILE: HOSTILE}, assurance="stored")
        other.send(TURNED, HOSTILE, HOSTILE.encode())
    for command in OFFLINE:
        words = [
            str(tmp_path / word) if word in ("out", "report", "saved", "again") else word for word in command
        ]
        if command[1] == "repair":
            words.append(str(tmp_path / "data"))
        elif "restore" not in words:
            words += ["--data", str(tmp_path / "data")]
        assert_obeyed_nothing(on_terminal(*words))


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nor_does_the_answer_of_a_stranger(
    broker: Broker, on_terminal: OnTerminal, form: tuple[str, ...]
) -> None:
    def work() -> None:
        with malamute.connect(broker.url) as worker, worker.work("stranger") as requests:
            request = requests.receive(40)
            request.reply(HOSTILE.encode(), {HOSTILE: HOSTILE}, final=False)
            request.reply(HOSTILE.encode(), {"malamute.error": HOSTILE})
            worker.flush()

    thread = threading.Thread(target=work)
    thread.start()
    text = on_terminal("request", "stranger", HOSTILE.replace("\0", ""), *form)
    thread.join()
    assert "the worker failed" in text
    assert not [words for words in OBEYED if words in text]


@pytest.mark.parametrize("form", ["--raw", "--body"])
def test_what_is_piped_is_passed_on_as_it_is(others: malamute.Client, broker: Broker, form: str) -> None:
    done = subprocess.run(
        [forked_malamute(), "sub", "s", "--start", "first", "-n", "1", form],
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
def test_an_error_is_reported_too(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from malamute.cli.error_output import print_error

    print_error(MalamuteError(HOSTILE), as_json=as_json)
    shown = capsys.readouterr().err
    assert shown.strip().isprintable()


LONG = "no-such-name-" * 4


@pytest.mark.parametrize(
    "command",
    [
        ("sub", "weather", "--start", LONG),
        ("sub", "weather", "--where", "unit === 'C'"),
        ("stream", "show", LONG),
        ("send", "bob", "hello", "hi", "--delay", "tomorrow"),
        ("auth", "check", "ann", "fly", "stream/x"),
        ("--output", "none", "stream", "list"),
        ("broker", "run", "--memory", "--set", "foo.bar=2"),
        ("errors", "503"),
        ("request", LONG, "now", "--wait", "0.01"),
    ],
    ids=lambda command: command[0],
)
def test_a_terminal_of_80_columns_has_no_longer_line(command: tuple[str, ...], looked_at: Broker) -> None:
    shown = run_on_terminal(looked_at.url, *command, columns=80).split("\n")
    assert len(shown) > 2
    assert [line for line in shown if len(line) > 80 and " " in line.strip()] == []


def test_text_on_standard_error_is_fitted() -> None:
    """`report` and `report_json` write all of it, but for questions and prompts without an end of line."""
    elsewhere = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "malamute" / "cli").glob("**/*.py")
        if path.name != "error_output.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if "err=True" in line and "click.echo(" in line and "nl=False" not in line
    ]
    assert elsewhere == []
