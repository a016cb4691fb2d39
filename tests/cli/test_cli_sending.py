"""The options of messages that wait, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_commands import TIMEOUT, Run, Start

import malamute
from malamute.testing import Broker

OUTCOME = ("--outcome", "--address", "alice")
Until = Callable[[Callable[[], object]], None]


def _browsed(run: Run, kind: str = "mailbox", name: str = "bob") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(kind, "browse", name, "--json").stdout)
    return rows


def test_a_message_has_the_options_that_are_given(run: Run, client: malamute.Client) -> None:
    options = ("--ttl", "1h", "--priority", "7", "--delay", "10m", "--id", "x", "--reply-to", "carol")
    run("send", "bob", "a", "body", *options)
    (row,) = _browsed(run)
    assert row["state"] == "delayed"
    shown = {name: row["properties"][name] for name in ("ttl", "priority", "delay", "id", "reply_to")}
    assert shown == {"ttl": 3_600_000, "priority": 7, "delay": 600_000, "id": "x", "reply_to": "carol"}


def test_a_message_comes_not_before_its_time(run: Run, client: malamute.Client) -> None:
    later = datetime.now(UTC) + timedelta(days=365)
    run("send", "bob", "a", "later", "--at", later.strftime("%Y-%m-%d"))
    run("send", "bob", "a", "now", "--at", "2001-01-01T12:00+01:00")
    assert {row["body"]: row["state"] for row in _browsed(run)} == {"later": "delayed", "now": "ready"}


def test_higher_priority_comes_first(run: Run, client: malamute.Client) -> None:
    run("send", "bob", "a", "low")
    run("send", "bob", "a", "high", "--priority", "9")
    assert run("recv", "bob", "-n", "2", "--body").stdout == "high\nlow\n"


def test_the_same_id_is_taken_once(run: Run, client: malamute.Client) -> None:
    for body in ("one", "two"):
        run("send", "bob", "a", body, "--id", "x")
    assert [row["body"] for row in _browsed(run)] == ["one"]


def test_a_request_expires_when_nobody_waits_for_it_any_more(run: Run, client: malamute.Client) -> None:
    for options in ((), ("--ttl", "1h"), ("--delay", "10m")):
        said = run("request", "nobody", "a", "", "--wait", "0.1", *options, exit_code=3).stderr
        assert said.startswith("nobody works for nobody now: the request waits\n")
    said = run("request", "nobody", "a", "", "--wait", "0.1", "--json", exit_code=3).stderr.splitlines()
    assert json.loads(said[0]) == {"note": "nobody works for nobody now: the request waits"}
    found = [row["properties"].get("ttl") for row in _browsed(run, "service", "nobody")]
    assert found == [3_600_000, None]


def test_a_message_with_an_id_is_published_once(run: Run, client: malamute.Client) -> None:
    once = ("pub", "orders", "new", "7", "--confirm", "--json", "--id", "x")
    first, again = (json.loads(run(*once).stdout) for _ in range(2))
    assert again == first
    assert "error 416" in run("pub", "orders", "new", "8", "--confirm", "--id", "x", exit_code=1).stderr
    assert (
        "--id with --lines"
        in run("pub", "orders", "new", "7", "--count", "2", "--id", "x", exit_code=2).stderr
    )


def test_immediate_is_refused_where_nobody_is(run: Run, client: malamute.Client) -> None:
    assert "error 504" in run("send", "bob", "a", "--immediate", exit_code=1).stderr
    assert "error 504" in run("request", "none", "a", "--immediate", exit_code=1).stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--ttl", "long"),
        ("--priority", "10"),
        ("--delay", "-1"),
        ("--at", "noon"),
        ("--delay", "1s", "--at", "2099-01-01"),
    ],
)
def test_options_that_are_none_are_wrong_usage(run: Run, options: tuple[str, ...]) -> None:
    run("send", "bob", "a", *options, exit_code=2)
    run("request", "s", "a", *options, exit_code=2)


def test_an_outcome_is_waited_for(start: Start, client: malamute.Client, until: Until) -> None:
    send = start("send", "bob", "a", "body", *OUTCOME, "--wait", str(TIMEOUT))
    until(lambda: [row for row in client.query("mailboxes") if row["name"] == "bob" and row["messages"]])
    recv = start("recv", "bob", "--body")
    assert recv.communicate(timeout=TIMEOUT) == ("body\n", "")
    output, errors = send.communicate(timeout=TIMEOUT)
    assert (output, errors) == ("1 message stored in the mailbox bob, acknowledged\n", "")
    assert send.returncode == 0


def test_an_outcome_that_is_not_good_is_exit_code_4(run: Run, client: malamute.Client) -> None:
    shown = json.loads(run("send", "bob", "a", "--ttl", "10ms", *OUTCOME, "--json", exit_code=4).stdout)
    assert (shown["outcome"], shown["confirmed"]) == ("expired", True)


def test_no_outcome_in_time_is_exit_code_3(run: Run, client: malamute.Client) -> None:
    run("send", "bob", "a", *OUTCOME, "--wait", "0.3", exit_code=3)
    assert len(_browsed(run)) == 1


def test_an_outcome_needs_somebody_to_come_to(run: Run, client: malamute.Client) -> None:
    for command in (("send", "bob"), ("request", "shout")):
        assert "--address" in run(*command, "a", "--outcome", exit_code=2).stderr


def test_the_outcome_of_a_request_is_reported_beside_its_replies(
    run: Run, start: Start, broker: Broker
) -> None:
    start("work", "shout", "--", "tr a-z A-Z")
    shown = run("request", "shout", "a", "body", *OUTCOME, "--wait", str(TIMEOUT))
    # The worker may come after the request.
    said = shown.stderr.removeprefix("nobody works for shout now: the request waits\n")
    assert (shown.stdout, said) == ("BODY\n", "acknowledged\n")


def test_the_outcome_of_a_request_that_nobody_answers_is_exit_code_4(run: Run, broker: Broker) -> None:
    asked = ("request", "nobody", "a", *OUTCOME, "--wait", str(TIMEOUT), "--ttl", "10ms")
    # The request may have expired before the command asks for workers.
    assert run(*asked, exit_code=4).stderr.splitlines()[-1] == "expired"
    shown = run(*asked, "--json", exit_code=4)
    said = json.loads(shown.stderr.splitlines()[-1])
    assert (shown.stdout, said) == ("", {"outcome": "expired", "reason": None})


def test_requests_of_one_key_go_to_one_worker(
    run: Run, start: Start, client: malamute.Client, until: Until
) -> None:
    for _ in range(2):
        start("work", "who", "--", "echo $PPID")
    until(lambda: sum(row["offers"] for row in client.query("clients")) == 2)
    asked = {run("request", "who", "a", "--key", "k", "--ttl", "1m").stdout for _ in range(6)}
    assert len(asked) == 1
