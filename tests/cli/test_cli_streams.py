"""Queries and changes of streams and cursors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_commands import Run

import malamute
from malamute.cli.pacing import Pacer
from malamute.errors import NotFound
from malamute.testing import Broker


@pytest.fixture(autouse=True)
def weather(client: malamute.Client) -> None:
    """A stream with five messages."""
    for number in range(5):
        client.publish("weather", f"temp.{number % 2}", b"%d" % number, {"n": number}, assurance="stored")


def test_a_stream_shows_what_it_holds_and_who_reads_it(run: Run, client: malamute.Client) -> None:
    with client.subscribe("weather"):
        shown = json.loads(run("stream", "show", "weather", "--json").stdout)
        words = run("stream", "show", "weather").stdout
    assert (shown["first"], shown["last"], shown["chunks"]) == (1, 5, 5)
    assert shown["bytes"] > 0
    assert [reader["state"] for reader in shown["readers"]] == ["live"]
    assert "\nreaders\n" in words
    run("stream", "show", "nothing", exit_code=1)


def test_explain_says_who_gets_a_message_and_why_others_do_not(run: Run, client: malamute.Client) -> None:
    with client.subscribe("weather", "temp.*"), client.subscribe("weather", "temp.*", where="n > 3"):
        arguments = ("stream", "explain", "weather", "temp.0", "-H", "n=1")
        rows = json.loads(run(*arguments, "--json").stdout)
        assert sorted(row["matched"] for row in rows) == [False, True]
        assert "n > 3" in run(*arguments, "--failed").stdout
    assert run(*arguments).stderr == "no subscription\n"


def _info(run: Run, name: str = "weather") -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("stream", "show", name, "--json").stdout)
    return shown


def test_retention_is_edited_and_a_dry_run_only_shows(run: Run) -> None:
    edit = ("stream", "edit", "weather")
    shown = json.loads(run(*edit, "--count", "2", "--dry-run", "--json").stdout)
    assert shown == {"stream": "weather", "bytes": 0, "count": 2, "age": 0.0}
    assert _info(run)["chunks"] == 5
    run(*edit, "--count", "2")
    assert _info(run)["chunks"] == 2
    run(*edit, "--age", "7d", "--bytes", "1MiB")
    kept = _info(run)
    assert [kept[f"retain_{limit}"] for limit in ("bytes", "count", "age")] == [1 << 20, 2, 604_800.0]


def test_a_stream_shows_what_says_how_much_of_it_is_kept(run: Run) -> None:
    assert _info(run)["retain_source"] == "default"
    assert _info(run, "$sys")["retain_source"] == "default"
    run("stream", "edit", "weather", "--count", "2")
    assert _info(run)["retain_source"] == "run time"


def test_what_cannot_be_edited(run: Run) -> None:
    edit = ("stream", "edit", "weather")
    assert "error 412" in run(*edit, "--count", "8", "--expect", "count=123", exit_code=1).stderr
    assert "LIMIT=VALUE" in run(*edit, "--count", "8", "--expect", "size=1", exit_code=2).stderr
    run("stream", "edit", "weather", exit_code=2)
    run("stream", "edit", "nothing", "--count", "1", exit_code=1)
    assert "invalid duration" in run("stream", "edit", "weather", "--age", "long", exit_code=2).stderr
    assert "invalid size" in run("stream", "edit", "weather", "--bytes", "-1", exit_code=2).stderr


def test_a_stream_is_created_with_its_retention(run: Run) -> None:
    run("stream", "create", "new", "--bytes", "1GiB", "--dry-run")
    run("stream", "show", "new", exit_code=1)
    run("stream", "create", "new", "--bytes", "1GiB")
    shown = _info(run, "new")
    assert (shown["last"], shown["chunks"], shown["retain_bytes"]) == (0, 0, 1 << 30)
    assert "is in use" in run("stream", "create", "weather", exit_code=1).stderr


def test_a_stream_is_purged_after_asking(run: Run, client: malamute.Client) -> None:
    purge = ("stream", "purge", "weather")
    run(*purge, stdin="n\n", exit_code=1)
    assert json.loads(run(*purge, "--dry-run", "--json").stdout) == {
        "stream": "weather",
        "first": 1,
        "last": 5,
    }
    assert _info(run)["chunks"] == 5
    run(*purge, "--yes")
    assert _info(run)["chunks"] == 0
    assert client.publish("weather", "a", b"", assurance="stored") == 6


def test_messages_of_a_stream_are_deleted_after_asking(run: Run, client: malamute.Client) -> None:
    delete = ("stream", "delete-messages", "weather")
    asked = run(*delete, "--sequence", "2", stdin="n\n", exit_code=1).stderr
    assert "Delete the message 2 from the stream weather for good? [y/N]" in asked
    both = (*delete, "--subject", "#", "--up-to", "3")
    assert "with the subject # up to 3 from" in run(*both, stdin="n\n", exit_code=1).stderr
    assert json.loads(run(*both, "--dry-run", "--json").stdout)["messages"] == 3
    assert json.loads(run(*delete, "--sequence", "2", "--yes", "--json").stdout)["messages"] == 1
    assert run("stream", "view", "weather", "--raw").stdout == "0234"
    run(*both, stdin="y\n")
    assert run("stream", "view", "weather", "--raw").stdout == "34"
    assert "no messages to delete" in run(*delete, exit_code=2).stderr
    assert client.admin.stream_delete_messages(stream="weather", sequence=5).messages == 1


def test_view_shows_what_is_kept_and_ends(run: Run) -> None:
    table = run("stream", "view", "weather").stdout.splitlines()
    assert table[0].split() == ["sequence", "time", "sender", "subject", "headers", "body"]
    assert [line.split()[0] for line in table[1:]] == [*"12345"]
    assert run("stream", "view", "weather", "--raw").stdout == "01234"
    rows = [json.loads(line) for line in run("stream", "view", "weather", "--json").stdout.splitlines()]
    assert [row["headers"]["n"] for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        (["temp.1"], "13"),
        (["temp.1", "temp.0"], "01234"),
        (["--where", "n > 2"], "34"),
        (["temp.0", "--where", "n = 1"], ""),
        (["--count", "2"], "01"),
        (["--count", "2", "--page", "1"], "01"),
        (["--page", "2"], "01234"),
        (["--start", "seq:4"], "34"),
        (["--start", "last"], "4"),
        (["--start", "new"], ""),
        (["--since", "1h"], "01234"),
        (["--since", "2000-01-01"], "01234"),
        (["--since", "2099-01-01"], ""),
        (["--family", "prefix", "temp.0"], "024"),
    ],
)
def test_view_selects(run: Run, arguments: list[str], bodies: str) -> None:
    viewed = run("stream", "view", "weather", *arguments, "--raw")
    assert (viewed.stdout, viewed.stderr) == (bodies, "" if bodies else "no messages\n")


def test_view_ends_where_nothing_is_kept(run: Run, client: malamute.Client) -> None:
    run("stream", "purge", "weather", "--yes")
    assert run("stream", "view", "weather").stderr.endswith("no messages\n")
    run("stream", "create", "empty")
    assert run("stream", "view", "empty").stderr == "no messages\n"
    run("stream", "view", "nothing", exit_code=1)
    run("stream", "view", "weather", "--since", "1h", "--start", "first", exit_code=2)
    run("stream", "view", "weather", "--since", "yesterday", exit_code=1)


def test_view_cuts_long_bodies_in_a_table_and_shows_the_size_of_what_is_no_text(
    run: Run, client: malamute.Client
) -> None:
    client.publish("long", "a", b"x" * 200, assurance="stored")
    client.publish("long", "a", b"\xff" * 200, assurance="stored")
    first, second = run("stream", "view", "long").stdout.splitlines()[1:]
    assert first.endswith("x" * 120 + "…")
    assert second.endswith("200 bytes")


def test_a_stream_is_deleted_after_asking(run: Run, client: malamute.Client) -> None:
    assert run("stream", "delete", "weather", stdin="n\n", exit_code=1)
    assert client.query("stream", name="weather")["published"] == 5
    run("stream", "delete", "weather", "--yes")
    with pytest.raises(NotFound):
        client.query("stream", name="weather")


def test_with_cascade_a_stream_takes_its_readers_cursors_and_feeds_along(
    run: Run, client: malamute.Client
) -> None:
    run("sub", "weather", "--start", "first", "--cursor", "mine", "-n", "1", "--body")
    run("feed", "set", "out", "stream/weather", "stream/copies")
    with client.subscribe("weather") as reader:
        refused = run("stream", "delete", "weather", "--yes", exit_code=1).stderr
        assert "1 reader" in refused
        assert "1 cursor: mine" in refused
        assert "1 feed: out" in refused
        shown = json.loads(run("stream", "delete", "weather", "--cascade", "--dry-run", "--json").stdout)
        assert (shown["readers"], shown["cursors"], shown["feeds"]) == (1, 1, ["out from stream/weather"])
        assert client.query("stream", name="weather")["published"] == 5
        run("stream", "delete", "weather", "--cascade", "--yes")
        with pytest.raises(NotFound, match="stream 'weather' was deleted"):
            reader.receive(timeout=60)
    assert json.loads(run("feed", "list", "--json").stdout) == []
    assert json.loads(run("cursor", "list", "weather", "--json").stdout) == []


def test_sub_continues_where_its_cursor_is(run: Run) -> None:
    first = run("sub", "weather", "--start", "first", "--cursor", "c", "-n", "2", "--body").stdout
    rest = run("sub", "weather", "--cursor", "c", "-n", "3", "--body").stdout
    assert (first, rest) == ("0\n1\n", "2\n3\n4\n")


def test_a_cursor_is_reset_listed_and_forgotten(run: Run) -> None:
    assert run("cursor", "list").stderr == "no cursors\n"
    reset = ("cursor", "reset", "weather", "c", "--to", "seq:3")
    assert json.loads(run(*reset, "--dry-run", "--json").stdout)["sequence"] == 2
    assert run("cursor", "list").stderr == "no cursors\n"
    run(*reset)
    (row,) = json.loads(run("cursor", "list", "weather", "--json").stdout)
    assert row == {"stream": "weather", "name": "c", "sequence": 2, "lag": 3}
    run("cursor", "delete", "weather", "c", "--yes")
    run("cursor", "delete", "weather", "c", "--yes", exit_code=1)


def test_replay_keeps_the_pace_of_publishing() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    messages = [SimpleNamespace(time_ns=int(t * 1e9)) for t in (5, 6, 6, 9)]
    paced = Pacer(2.0, clock=lambda: now, sleep=sleep).paced(messages)
    next(paced)
    now += 0.7
    assert len(list(paced)) == 3
    assert slept == pytest.approx([1.3])


def test_sub_takes_a_speed(run: Run, broker: Broker) -> None:
    assert run(
        "sub", "weather", "--start", "first", "-n", "5", "--speed", "1000", "--body"
    ).stdout.split() == [*"01234"]


def test_a_running_broker_is_backed_up_and_the_copy_serves(run: Run, tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as durable, malamute.connect(durable.url) as client:
        client.publish("s", "a", b"kept", assurance="stored")
        url = ("--url", durable.url)
        copy_path = tmp_path / "data" / "backups" / "copy"
        run("broker", "backup", "copy", *url, "--dry-run")
        assert not copy_path.exists()
        run("broker", "backup", "copy", *url)
        run("broker", "backup", str(copy_path), *url, exit_code=1)
    with (
        Broker(copy_path) as copy,
        malamute.connect(copy.url) as client,
        client.subscribe("s", start="first") as messages,
    ):
        assert messages.receive(timeout=10).body == b"kept"


def test_feeds_are_set_listed_switched_and_deleted(run: Run, client: malamute.Client) -> None:
    feed = ("feed", "set", "billing", "stream/weather", "service/billing", "temp.1", "--where", "n > 2")
    run(*feed, "--start", "first", "--dry-run")
    assert run("feed", "list").stderr == "no feeds\n"
    assert json.loads(run(*feed, "--start", "first", "--json").stdout)["created"]
    with client.work("billing") as requests:
        request = requests.receive()
        assert (request.subject, request.body) == ("temp.1", b"3")
        request.reply(b"done")
    (row,) = json.loads(run("feed", "list", "--json").stdout)
    assert (row["source"], row["target"], row["taken"]) == ("stream/weather", "service/billing", 1)
    assert "topic temp.1" in run("feed", "list").stdout
    named = ("billing", "stream/weather")
    assert not json.loads(run("feed", "disable", *named, "--json").stdout)["enabled"]
    assert json.loads(run("feed", "show", *named, "--json").stdout)["state"] == "disabled"
    assert json.loads(run("feed", "enable", *named, "--json").stdout)["enabled"]
    assert "topic temp.1" in run("feed", "show", *named).stdout
    assert "expected stream/NAME" in run("feed", "show", "billing", "weather", exit_code=1).stderr
    run("feed", "delete", *named, "--yes")
    assert json.loads(run("feed", "list", "--json").stdout) == []


def test_a_purge_holds_over_a_restart_and_takes_only_the_history(run: Run, tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as durable:
        url = ("--url", durable.url)
        with malamute.connect(durable.url) as client:
            for number in range(3):
                client.publish("kept", "a", b"%d" % number, assurance="stored")
        run("cursor", "reset", "kept", "c", "--to", "seq:2", *url)
        run("stream", "edit", "kept", "--count", "100", *url)
        run("stream", "purge", "kept", "--yes", *url)
        durable.restart()
        shown = json.loads(run("stream", "show", "kept", "--json", *url).stdout)
        assert (shown["chunks"], shown["retain_count"]) == (0, 100)
        assert [(row["name"], row["sequence"]) for row in shown["cursors"]] == [("c", 1)]
        assert run("stream", "view", "kept", *url).stderr.endswith("no messages\n")
        with malamute.connect(durable.url) as client:
            assert client.publish("kept", "a", b"", assurance="stored") == 4


def test_links_are_added_listed_paused_resumed_and_removed(run: Run) -> None:
    stream = "linked"
    add = (
        "link",
        "add",
        stream,
        "--from",
        "tcp://a:9999,tcp://b:9999",
        "sensors",
        "temp.#",
        "--into",
        stream,
    )
    assert json.loads(run(*add, "--dry-run", "--json").stdout)["created"]
    assert json.loads(run(*add, "--json").stdout)["created"]
    listed = run("link", "list").stdout
    assert "tcp://a:9999, tcp://b:9999" in listed
    shown = json.loads(run("link", "show", stream, "--json").stdout)
    assert (shown["state"], shown["start"], shown["criteria"]) == ("waiting", "new", [["topic", "temp.#"]])
    assert "temp.#" in run("link", "show", stream).stdout
    assert json.loads(run("link", "pause", stream, "--json").stdout)["state"] == "paused"
    assert json.loads(run("link", "resume", stream, "--json").stdout)["state"] == "waiting"
    # A removal asks first, and a dry run does not.
    run("link", "remove", stream, stdin="n\n", exit_code=1)
    run("link", "remove", stream, "--dry-run")
    run("link", "remove", stream, "--yes")
    run("link", "show", stream, exit_code=1)
    wrong = ("link", "add", stream, "--from", "tcp://ann:secret@a:9999", "sensors", "--into", stream)
    bad = run(*wrong, exit_code=1)
    assert "expected a list of 1 to 8 URLs" in bad.stderr
