"""`malamute top`: its pictures and keys without a broker, and the program on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from fcntl import ioctl
from typing import TypeVar

import pytest
from cli_commands import ROOT, TIMEOUT, Run
from rich.console import Console

import malamute
from malamute.cli.screen import HELP, VIEWS, Look, Snapshot, arranged, picture, press, rate, summary
from malamute.protocol.admin import BrokerStatus, ClientRow, QueueRow, StreamRow
from malamute.testing import Broker

AnyRow = TypeVar("AnyRow")

STATUS = {"uptime": 90061.0, "clients": 2, "messages_published": 100, "queue_bytes": 5, "backlog_bytes": 0}


def _row(kind: Callable[..., AnyRow], **given: object) -> AnyRow:
    """A row with 0 in all other fields."""
    return kind(**{**dict.fromkeys(kind.__annotations__, 0), **given})


def _stream(name: str, published: int) -> StreamRow:
    return _row(StreamRow, name=name, published=published, last=published, first=1)


def _snapshot(time: float, **published: int) -> Snapshot:
    status = _row(BrokerStatus, **{**STATUS, "messages_published": sum(published.values())})
    queue = _row(QueueRow, name="bob", messages=2, ready=1, oldest_age=None, bytes=9)
    return Snapshot(time, status, [_stream(n, p) for n, p in published.items()], [queue], [], [])


BEFORE = _snapshot(10.0, calm=5, busy=100)
NOW = _snapshot(12.0, calm=5, busy=300, new=7)


def _text(look: Look, lines: int = 24) -> str:
    shown = io.StringIO()
    Console(width=80, height=lines, file=shown).print(picture(look, NOW, BEFORE, title="title", lines=lines))
    return shown.getvalue()


def test_rates_are_what_has_come_in_between() -> None:
    rows = {row["stream"]: row["messages/s"] for row in VIEWS["streams"](NOW, BEFORE)}
    assert rows == {"calm": 0.0, "busy": 100.0, "new": None}
    assert rate(5, 9, NOW, BEFORE) is None  # it was deleted meanwhile
    assert rate(5, 1, NOW, NOW) is None
    assert rate(5, 1, NOW, None) is None


def _client(name: str, user: str, sent: int | None, received: int | None) -> ClientRow:
    given = {"id": name, "address": name, "user": user, "by": "", "sent": sent, "received": received}
    return ClientRow(**{**dict.fromkeys(ClientRow.__struct_fields__, 0), **given})


def test_rates_of_clients_are_by_client_and_by_user() -> None:
    before = BEFORE._replace(clients=[_client("a", "ann", 5, 0), _client("b", "ann", 10, 10)])
    clients = [
        _client("a", "ann", 25, 2),
        _client("b", "ann", 10, 30),
        _client("c", "", 9, 9),
        _client("d", "", None, None),
    ]
    now = NOW._replace(clients=clients)
    shown = {row["client"]: (row["sent/s"], row["received/s"]) for row in VIEWS["clients"](now, before)}
    assert shown == {"a": (10.0, 1.0), "b": (0.0, 10.0), "c": (None, None), "d": (None, None)}
    users = {
        row["user"]: (row["sent/s"], row["received/s"], row["clients"]) for row in VIEWS["users"](now, before)
    }
    assert users == {"ann": (10.0, 11.0, 2), "(no name)": (None, None, 2)}
    assert [row["sent/s"] for row in VIEWS["users"](now, None)] == [None, None]


def test_a_broker_in_a_line() -> None:
    assert summary(NOW, BEFORE).startswith("up 1 d 01:01:01   2 clients   104 messages/s")
    assert "- messages/s" in summary(NOW, None)


def test_rows_are_sorted_and_what_is_missing_is_last() -> None:
    rows = VIEWS["streams"](NOW, BEFORE)

    def order(look: Look) -> list[str]:
        return [row["stream"] for row in arranged(look, rows)]

    assert order(Look()) == ["busy", "calm", "new"]
    assert order(Look(reverse=True)) == ["new", "calm", "busy"]
    assert order(Look(column=1)) == ["busy", "calm", "new"]
    assert order(Look(column=1, reverse=True)) == ["calm", "busy", "new"]
    assert order(Look(column=len(rows[0]))) == order(Look())
    assert arranged(Look(), []) == []


@pytest.mark.parametrize(
    ("keys", "look"),
    [
        (["\t"], Look(view=1)),
        (["\t", "\t", "\t", "\t"], Look(view=0)),
        (["3", " "], Look(view=2, paused=True)),
        ([" ", "2", " "], Look(view=1)),
        (["s", "\x1b[C", "S"], Look(column=1)),
        (["\x1b[D"], Look()),
        (["r", "r", "r"], Look(reverse=True)),
        (["j", "\x1b[B", "k"], Look(top=1)),
        (["\x1b[A"], Look()),
        (["j", "s"], Look(column=1)),
        (["x", "\x1b[Z"], Look()),
    ],
)
def test_what_keys_do(keys: list[str], look: Look) -> None:
    pressed: Look | None = Look()
    for key in keys:
        assert pressed is not None
        pressed = press(pressed, key)
    assert pressed == look


@pytest.mark.parametrize("key", ["q", "Q", "\x03", "\x04", "\x1b"])
def test_keys_that_end_it(key: str) -> None:
    assert press(Look(), key) is None


def test_a_picture_has_the_table_of_the_view_and_the_keys() -> None:
    text = _text(Look(column=1))
    assert "messages/s ↓" in text
    assert text.index("busy") < text.index("calm") < text.index("new")
    assert HELP in text
    assert "mailbox bob" in _text(Look(view=1))
    assert "no clients" in _text(Look(view=2))
    assert "paused" in _text(Look(paused=True))


def test_a_picture_never_has_more_lines_than_the_screen() -> None:
    rows = {f"stream{number}": number for number in range(100)}
    many = _snapshot(1.0, **rows)
    for lines in (8, 24):
        shown = io.StringIO()
        console = Console(width=80, height=lines, file=shown)
        console.print(picture(Look(top=50), many, None, title="t", lines=lines))
        assert len(shown.getvalue().splitlines()) <= lines


def test_scrolling_stops_at_the_last_row() -> None:
    assert "new" in _text(Look(top=1000))


def test_without_a_terminal_all_views_are_printed(run: Run, client: malamute.Client) -> None:
    client.publish("weather", "a", b"", assurance="stored")
    client.send("bob", "a", b"")
    text = run("top").stdout
    assert text.startswith("up 00:00:0")
    assert all(words in text for words in ("\nstreams\n", "weather", "mailbox bob", "test"))


def test_json_has_what_the_broker_reported(run: Run, client: malamute.Client) -> None:
    client.publish("weather", "a", b"", assurance="stored")
    lines = run("top", "--json", "--count", "2", "--interval", "0.1").stdout.splitlines()
    printed = [{row["name"] for row in json.loads(line)["streams"]} for line in lines]
    assert printed == [{"$audit", "$sys", "weather"}] * 2


class _Terminal:
    """A command on a terminal of its own."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.screen, inner = pty.openpty()
        ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "malamute", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environ, "PYTHONPATH": str(ROOT), "MALAMUTE_URL": url, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(inner)
        self.text = ""

    def until(self, words: str) -> None:
        """Read until the words have come since the last time."""
        while words not in self.text:
            self.text += os.read(self.screen, 65536).decode("utf-8", "replace")
        self.text = self.text.partition(words)[2]

    def press(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def ended(self) -> int:
        """The exit code."""
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """End it in any case."""
        self.process.kill()
        self.process.wait()
        os.close(self.screen)


@pytest.fixture
def terminal(broker: Broker) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(_Terminal(broker.url, *arguments)))


Open = Callable[..., _Terminal]


def test_top_on_a_terminal_obeys_its_keys(client: malamute.Client, terminal: Open) -> None:
    client.publish("weather", "a", b"", assurance="stored")
    client.send("bob", "a", b"")
    top = terminal("top", "--interval", "0.1")
    top.until("weather")
    top.press("2")
    top.until("mailbox bob")
    client.send("carol", "a", b"")
    top.until("mailbox carol")
    top.press("\x1b[C")
    top.until("messages ↓")
    top.press("q")
    assert top.ended() == 0


def test_top_on_a_terminal_outlives_its_broker(
    client: malamute.Client, terminal: Open, broker: Broker
) -> None:
    client.publish("weather", "a", b"", assurance="stored")
    top = terminal("top", "--interval", "0.1", "--timeout", "0.2")
    top.until("weather")
    broker.stop()
    top.until("no connection")
    broker.start()
    top.press("2")
    top.until("no queues")
    top.until("up 00:00:0")
    top.press("q")
    assert top.ended() == 0


def test_view_stops_after_each_page_on_a_terminal(client: malamute.Client, terminal: Open) -> None:
    for number in range(5):
        client.publish("weather", "a", b"body%d" % number, assurance="stored")
    view = terminal("stream", "view", "weather", "--page", "2")
    view.until("body1")
    view.until("more")
    view.press("\r")
    view.until("body3")
    view.until("more")
    view.press("q")
    assert view.ended() == 0
    assert "body4" not in view.text
