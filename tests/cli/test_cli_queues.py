"""Queries and changes of mailboxes, services and clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cli_commands import Run

import malamute
from malamute.cli.queues import STATES
from malamute.config import Config, QueuesConfig
from malamute.errors import Disconnected, NotFound
from malamute.protocol.fields import MESSAGE_STATES
from malamute.testing import Broker

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One that makes a dead letter of a message that comes back once."""
    with Broker(config=replace(Config(), queues=QueuesConfig(max_deliver=1))) as broker:
        yield broker


def _rows(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture(params=["mailbox", "service"])
def kind(request: pytest.FixtureRequest, client: malamute.Client) -> str:
    """A queue `q` of each kind with three messages."""
    for number in range(3):
        headers = {"n": number}
        if request.param == "mailbox":
            client.send("q", f"s.{number}", b"body%d" % number, headers)
        else:
            client.request("q", f"s.{number}", b"body%d" % number, headers)
    client.flush()
    return str(request.param)


def _taken(broker: Broker, kind: str) -> None:
    """Somebody takes the three messages, and goes without a word."""
    with malamute.connect(broker.url, address="q" if kind == "mailbox" else "") as worker:
        source: Any = worker.mailbox(auto_ack=False) if kind == "mailbox" else worker.work("q", credit=3)
        for _ in range(3):
            source.receive(timeout=30)


def test_messages_are_shown_by_how_they_stand(
    run: Run, kind: str, client: malamute.Client, broker: Broker
) -> None:
    if kind == "mailbox":
        client.send("q", "later", b"", delay=3600)
    else:
        client.request("q", "later", delay=3600)
        client.flush()
    with malamute.connect(broker.url, address="q") as worker:
        source: Any = worker.mailbox(auto_ack=False, credit=1) if kind == "mailbox" else worker.work("q")
        held = source.receive(timeout=60)
        rows = {state: _rows(run, kind, "browse", "q", "--state", state) for state in STATES}
        subjects = {state: [row["subject"] for row in found] for state, found in rows.items() if found}
        assert subjects == {"in-flight": [held.subject], "ready": ["s.1", "s.2"], "delayed": ["later"]}
        assert {row["state"] for row in rows["ready"]} == {"ready"}
        held.release()
    run(kind, "browse", "q", "--state", "lost", exit_code=2)
    assert {*STATES, "dead-lettered"} == {*MESSAGE_STATES}


@pytest.fixture
def dead(run: Run, kind: str, broker: Broker, until: Until) -> str:
    """The same with dead letters, and nothing else."""
    _taken(broker, kind)
    until(lambda: _rows(run, kind, "show", "q")["dead_letters"] == 3)
    return kind


def test_one_queue_is_shown(run: Run, kind: str) -> None:
    shown = _rows(run, kind, "show", "q")
    assert (shown["name"], shown["messages"], shown["consumers"]) == ("q", 3, 0)
    assert "messages" in run(kind, "show", "q").stdout
    assert "error 404" in run(kind, "show", "none", exit_code=1).stderr


def test_the_settings_of_a_queue_are_edited_and_shown(run: Run, kind: str) -> None:
    edit = (kind, "edit", "q", "--attempts", "3", "--backoff", "1s, 1m")
    assert _rows(run, *edit, "--dry-run")["attempts"] == 3
    assert _rows(run, kind, "show", "q")["attempts"] == 1
    run(*edit)
    shown = run(kind, "show", "q").stdout
    assert "1.0 s, 1 m 0 s" in shown
    assert "default; at run time: attempts, backoff" in shown
    assert _rows(run, kind, "edit", "q", "--backoff", "")["backoff"] == []
    assert _rows(run, kind, "edit", "q", "--reset")["settings_source"] == "default"
    assert "nothing to edit" in run(kind, "edit", "q", exit_code=2).stderr
    run(kind, "edit", "none", "--attempts", "1", exit_code=1)


def test_who_works_for_a_service_is_notified(run: Run, client: malamute.Client) -> None:
    with client.work("q", "bw.*", credit=3):
        (worker,) = _rows(run, "service", "show", "q")["workers"]
        words = run("service", "show", "q").stdout
    assert (worker["address"], worker["patterns"], worker["credit"]) == ("test", ["bw.*"], 3)
    assert "\nworkers\n" in words
    assert words.splitlines()[-1].split()[1:3] == ["test", "bw.*"]


def test_what_a_client_has_is_shown(run: Run, client: malamute.Client) -> None:
    client.mailbox()
    with client.subscribe("weather", "temp.*", where="n > 3"), client.work("q"):
        shown = _rows(run, "client", "show", "test")
        words = run("client", "show", "test").stdout
    assert [row["stream"] for row in shown["subscriptions"]] == ["weather"]
    assert [row["service"] for row in shown["offers"]] == ["q"]
    assert len(shown["mailbox"]) == 1
    assert "topic temp.*" in words
    assert all(f"\n{title}\n" in words for title in ("subscriptions", "offers", "mailbox"))


def test_messages_are_browsed_and_stay(run: Run, kind: str) -> None:
    for _ in range(2):
        rows = _rows(run, kind, "browse", "q")
        assert [(row["sequence"], row["subject"], row["headers"], row["body"]) for row in rows] == [
            (number + 1, f"s.{number}", {"n": number}, f"body{number}") for number in range(3)
        ]
    assert {(row["sender"], row["state"], row["attempts"]) for row in rows} == {("test", "ready", 0)}
    first, *lines = run(kind, "browse", "q").stdout.splitlines()
    assert " ".join(first.split()) == "sequence time sender subject attempts state headers body"
    assert [line.split()[-1] for line in lines] == ["body0", "body1", "body2"]


@pytest.mark.parametrize(
    ("arguments", "sequences"),
    [
        (["--count", "2"], [1, 2]),
        (["--after", "1"], [2, 3]),
        (["--after", "1", "--count", "1"], [2]),
        (["--where", "n > 0"], [2, 3]),
        (["--where", "n > 0", "--count", "1"], [2]),
        (["--after", "3"], []),
    ],
)
def test_browsing_selects(run: Run, kind: str, arguments: list[str], sequences: list[int]) -> None:
    assert [row["sequence"] for row in _rows(run, kind, "browse", "q", *arguments)] == sequences


def test_browsing_pages(run: Run, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malamute.cli.queues.PAGE", 2)
    assert [row["sequence"] for row in _rows(run, kind, "browse", "q")] == [1, 2, 3]


def test_nothing_to_browse(run: Run, kind: str) -> None:
    assert run(kind, "browse", "q", "--after", "3").stderr == "no messages\n"
    assert run(kind, "dead", "q").stderr == "no dead letters\n"
    run(kind, "browse", "none", exit_code=1)
    run(kind, "browse", "q", "--where", "n >", exit_code=1)


def test_one_message_is_shown_whole_by_its_sequence_and_stays(
    run: Run, kind: str, client: malamute.Client
) -> None:
    row = json.loads(run(kind, "message", "q", "2", "--json").stdout)
    assert (row["sequence"], row["subject"], row["body"], row["headers"]) == (2, "s.1", "body1", {"n": 1})
    assert "body1" in run(kind, "message", "q", "2").stdout
    long = "x" * 10_000
    if kind == "mailbox":
        client.send("q", "s", long.encode(), assurance="stored")
    else:
        client.request("q", "s", long.encode(), assurance="stored")
    assert run(kind, "message", "q", "4", "--raw").stdout == long
    assert "there is no message 5" in run(kind, "message", "q", "5", exit_code=1).stderr
    run(kind, "message", "q", "1", "--dead", exit_code=1)
    run(kind, "message", "none", "1", exit_code=1)
    run(kind, "message", "q", "1", "--raw", "--json", exit_code=2)
    assert len(_rows(run, kind, "browse", "q")) == 4


def test_dead_letters_are_reported_with_their_reason(run: Run, dead: str) -> None:
    rows = _rows(run, dead, "dead", "q")
    assert [row["body"] for row in rows] == ["body0", "body1", "body2"]
    assert {row["properties"]["dead"]["attempts"] for row in rows} == {1}
    first, *lines = run(dead, "dead", "q").stdout.splitlines()
    assert "reason" in first.split()
    assert len(lines) == 3
    assert rows[0]["properties"]["dead"]["reason"] in lines[0]
    assert run(dead, "message", "q", "2", "--dead", "--raw").stdout == "body1"


def test_dead_letters_are_sent_again(run: Run, dead: str) -> None:
    redrive = (dead, "redrive", "q")
    assert _rows(run, *redrive, "--dry-run")["messages"] == 3
    assert _rows(run, dead, "browse", "q") == []
    assert _rows(run, *redrive, "--where", "n = 1")["messages"] == 1
    assert [row["body"] for row in _rows(run, dead, "browse", "q")] == ["body1"]
    left = [str(row["sequence"]) for row in _rows(run, dead, "dead", "q")]
    assert _rows(run, *redrive, "--sequence", left[1])["messages"] == 1
    assert _rows(run, *redrive, "--count", "5")["messages"] == 1
    assert [row["body"] for row in _rows(run, dead, "browse", "q")] == ["body1", "body2", "body0"]
    run(*redrive, "--sequence", "1", exit_code=1)


def test_dead_letters_are_removed(run: Run, dead: str) -> None:
    assert _rows(run, dead, "purge", "q", "--dead", "--where", "n < 2", "--yes")["messages"] == 2
    assert [row["body"] for row in _rows(run, dead, "dead", "q")] == ["body2"]


def test_a_message_is_cancelled_by_its_id(run: Run, client: malamute.Client) -> None:
    client.send("bob", "s", b"", id="mail-1", delay=3600)
    client.enqueue("w", "s", b"", id="task-1", assurance="stored")
    assert run("mailbox", "cancel", "bob", "mail-1").stdout == "1 cancelled, 0 in flight\n"
    assert _rows(run, "service", "cancel", "w", "task-1") == {"cancelled": 1, "in_flight": 0}
    assert run("mailbox", "cancel", "bob", "mail-1", exit_code=4).stdout == "0 cancelled, 0 in flight\n"
    client.send("bob", "s", b"", id="mail-2")
    with client.consume("bob", auto_ack=False) as mailbox:
        mailbox.receive(40.0)
        assert run("mailbox", "cancel", "bob", "mail-2", exit_code=4).stdout == "0 cancelled, 1 in flight\n"


def test_messages_are_removed_after_asking(run: Run, kind: str) -> None:
    purge = (kind, "purge", "q")
    assert "all messages" in run(*purge, stdin="n\n", exit_code=1).stderr
    assert "some messages" in run(*purge, "--count", "1", stdin="n\n", exit_code=1).stderr
    assert _rows(run, *purge, "--dry-run")["messages"] == 3
    assert _rows(run, *purge, "--sequence", "2", "--yes")["messages"] == 1
    assert [row["sequence"] for row in _rows(run, kind, "browse", "q")] == [1, 3]
    run(*purge, stdin="y\n")
    assert _rows(run, kind, "browse", "q") == []


def test_with_cascade_a_queue_takes_its_consumers_and_feeds_along(
    run: Run, kind: str, client: malamute.Client, broker: Broker
) -> None:
    run("feed", "set", "in", "stream/orders", f"{kind}/q")
    with malamute.connect(broker.url) as worker:
        source: Any = worker.consume("q", auto_ack=False) if kind == "mailbox" else worker.work("q")
        source.receive(timeout=60)
        refused = run(kind, "delete", "q", "--yes", exit_code=1).stderr
        assert "1 consumer" in refused
        assert "1 feed: in from stream/orders" in refused
        shown = _rows(run, kind, "delete", "q", "--cascade", "--dry-run")
        assert (shown["messages"], shown["consumers"], len(shown["feeds"])) == (3, 1, 1)
        run(kind, "delete", "q", "--cascade", "--yes")
        with pytest.raises(NotFound, match=f"{kind} 'q' was deleted"):
            source.receive(timeout=60)
    assert _rows(run, "feed", "list") == []


def test_a_body_that_is_no_text_is_browsed(run: Run, client: malamute.Client) -> None:
    client.send("q", "a", b"\xff")
    (row,) = _rows(run, "mailbox", "browse", "q")
    assert (row["body_base64"], row["headers"]) == ("/w==", {})
    assert "1 bytes" in run("mailbox", "browse", "q").stdout


def test_a_client_is_shown_by_its_address_and_by_its_id(run: Run, client: malamute.Client) -> None:
    shown = _rows(run, "client", "show", "test")
    assert (shown["address"], shown["connected"]) == ("test", True)
    assert _rows(run, "client", "show", shown["id"])["address"] == "test"
    run("client", "show", "none", exit_code=1)
    assert any(row["address"] == "test" for row in _rows(run, "client", "list"))
    rates = json.loads(run("client", "list", "--rates", "--json").stdout)
    assert [row["client"] for row in rates["clients"] if row["client"] == "test"] == ["test"]
    assert {"user", "clients", "sent/s", "received/s"} <= rates["users"][0].keys()


def test_a_client_is_sent_away_and_stays_away(run: Run, broker: Broker) -> None:
    guest = malamute.connect(broker.url, address="guest")
    assert _rows(run, "client", "disconnect", "guest", "--dry-run")["connected"]
    run("client", "disconnect", "guest", stdin="n\n", exit_code=1)
    assert guest.query("status")["clients"] == 1
    run("client", "disconnect", "guest", "--yes")
    with malamute.connect(broker.url) as other:
        assert [row["address"] for row in other.query("clients")] == [""]
    with pytest.raises(Disconnected):
        guest.query("status")
    guest.close()


def test_dead_letters_are_for_the_monitoring(run: Run, dead: str) -> None:
    text = run("broker", "check", "--dead", "1,10", exit_code=1).stdout
    assert text.startswith(f"MALAMUTE WARNING - dead 3 ({dead} q) is at or over 1 |")
