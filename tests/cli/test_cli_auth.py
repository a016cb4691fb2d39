"""`malamute auth`: which rule decides, of a file and of a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import zmq
from cli_commands import Run

import malamute
from malamute.access import Account, Accounts
from malamute.cli.auth import as_refusal
from malamute.client.session.message import Message
from malamute.config import Config, ListenConfig
from malamute.config.accounts import save_accounts
from malamute.protocol.batch import pack_record
from malamute.server.daemon import open_broker
from malamute.testing import Broker, small_config

RULES = """
[access]
rules = ["view broker/access", "publish stream/prices", "deny publish stream/prices/internal.#"]

[[access.user]]
name = "ann"
rules = ["receive mailbox/{user}", "subscribe stream/patients where ward = '3'"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def endpoints() -> Iterator[tuple[str, str]]:
    """The endpoints of a broker without rules: an open one, and one that asks for passwords."""
    context: zmq.Context[Any] = zmq.Context()
    config = small_config()
    both = ListenConfig(endpoints=("tcp://127.0.0.1:*", "plain+tcp://127.0.0.1:*"))
    storage = replace(config.storage, kind="memory")
    loop = open_broker(replace(config, storage=storage, listen=both), context)
    thread = Thread(target=loop.run)
    thread.start()
    yield loop.endpoints[0], loop.endpoints[1]
    loop.stop()
    thread.join()
    context.term()


def test_rules_begin_on_a_running_broker_with_an_administrator(run: Run, endpoints: tuple[str, str]) -> None:
    asks_nobody, asks = endpoints
    enable = ("auth", "enable", "root", "--url", asks_nobody)
    assert "Begin rules? [y/N]" in run(*enable, stdin="n\n", exit_code=1).stderr
    # The open endpoint proves no user: nothing begins, and the account is removed.
    assert "error" in run(*enable, "--yes", stdin="secret\n", exit_code=1).stderr
    assert json.loads(run("user", "list", "--url", asks_nobody, "--json").stdout) == []
    at = ("--at", asks, "--json")
    assert json.loads(run(*enable, *at, "--dry-run", stdin="secret\n").stdout)["added"] is True
    assert json.loads(run("user", "list", "--url", asks_nobody, "--json").stdout) == []
    done = json.loads(run(*enable, *at, "--yes", stdin="secret\n").stdout)
    assert (done["name"], done["added"], done["access_rules"][0]) == ("root", True, "* */#")
    assert "error 401" in run("stream", "list", "--url", asks_nobody, exit_code=1).stderr
    with malamute.connect(asks, user="root", password="secret") as client:
        client.publish("weather", "temp.oslo", b"1", assurance="stored")
        client.admin.user_add(name="ann", access_rules=["view broker/#"])
        with client.subscribe("$sys", start="last"):
            pass


@pytest.fixture(params=["file", "broker"])
def rules(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[str, ...]]:
    """The options that name the rules."""
    if request.param == "file":
        yield ("--config", str(path))
    else:
        with Broker(config=Config.load(path, {})) as broker:
            yield ("--url", broker.url)


def test_check_says_whether_and_by_which_rule(run: Run, rules: tuple[str, ...]) -> None:
    checks = [
        ("bob publish stream/prices/fx", 0, "allowed: publish stream/prices (everybody)\n"),
        ("bob publish stream/prices", 0, "allowed in part: publish stream/prices (everybody)\n"),
        (
            "bob publish stream/prices/internal.x",
            1,
            "refused: deny publish stream/prices/internal.# (everybody)\n",
        ),
        ("ann receive mailbox/ann", 0, "allowed: receive mailbox/{user} (user ann)\n"),
        ("bob receive mailbox/bob", 1, "refused: no rule allows it\n"),
        (
            "ann subscribe stream/patients",
            0,
            "allowed in part: subscribe stream/patients where ward = '3' (user ann)\n",
        ),
    ]
    for asked, exit_code, words in checks:
        assert run("auth", "check", *asked.split(), *rules, exit_code=exit_code).stdout == words


def test_explain_lists_all_rules_about_it(run: Run, rules: tuple[str, ...]) -> None:
    asked = ("auth", "explain", "bob", "publish", "stream/prices/internal.x", *rules)
    assert json.loads(run(*asked, "--json").stdout) == [
        {"rule": "deny publish stream/prices/internal.#", "owner": "everybody", "decides": True},
        {"rule": "publish stream/prices", "owner": "everybody", "decides": False},
    ]
    assert "deny publish stream/prices/internal.#" in run(*asked).stdout
    nothing = run("auth", "explain", "bob", "send", "mailbox/ann", *rules)
    assert (nothing.stdout, nothing.stderr) == ("", "refused: no rule allows it\n")


@pytest.mark.parametrize(
    ("action", "target", "words"),
    [
        ("pub", "stream/a", "unknown action 'pub': did you mean 'publish'?"),
        ("publish", "mailbox/a", "publish is nothing to do with a mailbox"),
        ("publish", "stream/#", "expected one action, on one thing"),
        ("publish", "stream/{user}", "expected one action, on one thing"),
        ("deny publish", "stream/a", "expected one action, on one thing"),
        ("*", "stream/a", "expected one action, on one thing"),
        ("publish,subscribe", "stream/a", "invalid action 'publish,subscribe': expected one"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    run: Run, rules: tuple[str, ...], action: str, target: str, words: str
) -> None:
    failed = run("auth", "check", "ann", action, target, *rules, exit_code=1)
    assert "417" in failed.stderr
    assert words in failed.stderr


def test_without_rules_everything_is_allowed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    asked = ("auth", "check", "ann", "admin", "broker/reload", "--config", str(path))
    assert run(*asked).stdout == "allowed: there are no rules\n"
    assert json.loads(run(*asked, "--json").stdout)["in_force"] is False


def test_groups_of_the_accounts_that_a_file_names_count(run: Run, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    save_accounts(Accounts([Account("ann", groups=("traders",)), Account("bob")]), accounts)
    path = tmp_path / "rules.toml"
    path.write_text(
        f"[access]\naccounts = '{accounts}'\n"
        "[[access.group]]\nname = 'traders'\nrules = ['view broker/status']"
    )
    asked = ("view", "broker/status", "--config", str(path))
    assert run("auth", "check", "ann", *asked).stdout == "allowed: view broker/status (group traders)\n"
    assert run("auth", "check", "bob", *asked, exit_code=1).stdout == "refused: no rule allows it\n"
    accounts.chmod(0o644)
    assert "open to others" in run("auth", "explain", "ann", *asked, exit_code=1).stderr


def test_the_log_has_what_was_refused_to_whom_and_by_which_rule(run: Run, path: Path) -> None:
    path.write_text(
        RULES.replace("prices", "s").replace('rules = ["view', 'rules = ["subscribe stream/$sys", "view', 1)
    )
    with Broker(config=Config.load(path, {})) as broker:
        run("pub", "s", "internal.x", "1", "--url", broker.url, exit_code=1)
        run("pub", "other", "x", "1", "--url", broker.url, exit_code=1)
        shown = run("auth", "log", "--url", broker.url, "-n", "2").stdout.splitlines()
        assert [line.split("  ", 3)[2:] for line in shown] == [
            ["127.0.0.1", "publish stream/s/internal.x  deny publish stream/s/internal.#"],
            ["127.0.0.1", "publish stream/other/x  no rule"],
        ]
        (row,) = run("auth", "log", "--url", broker.url, "-n", "1", "--json").stdout.splitlines()
        assert json.loads(row)["headers"]["rule"] == "deny publish stream/s/internal.#"
        run("auth", "log", "ann", "--url", broker.url, "--wait", "0", "-n", "1", exit_code=3)


def test_a_line_of_the_log_stands_for_those_that_were_left_out() -> None:
    headers = {"user": "eve\n", "origin": "", "action": "receive", "target": "mailbox/b", "rule": "no rule"}
    event = Message(7, 0, "$broker", "access.refused", pack_record({**headers, "count": 5}, b""))
    assert as_refusal(event).decode() == (
        "1970-01-01T00:00:00.000Z  eve\\n  -  receive mailbox/b  no rule  the last of 5 that were left out\n"
    )


def test_the_changes_of_operators_are_followed_with_what_came_of_them(
    run: Run, client: malamute.Client
) -> None:
    run("stream", "create", "made", "--count", "5")
    run("stream", "delete", "none", "--yes", exit_code=1)
    done, refused = run("auth", "changes", "-n", "2").stdout.splitlines()
    assert "  127.0.0.1  stream.create  done  {" in done
    assert "  127.0.0.1  stream.delete  refused: there is no stream 'none'  {" in refused
    (row,) = run("auth", "changes", "-n", "1", "--json").stdout.splitlines()
    assert json.loads(json.loads(row)["body"])["after"]["count"] == 5


def test_sub_says_that_it_gets_a_part(run: Run, path: Path) -> None:
    path.write_text("[access]\nrules = [\"subscribe stream/s where ward = 3\", 'create,publish stream/s']")
    with Broker(config=Config.load(path, {})) as broker:
        for ward in "2", "3":
            run("pub", "s", "a", ward, "-H", f"ward={ward}", "--url", broker.url)
        found = run("sub", "s", "--start", "first", "-n", "1", "--url", broker.url)
        assert (found.stdout.split("\t")[2], found.stderr) == ("3", "limited: stream s\n")
        found = run("sub", "s", "--start", "first", "-n", "1", "--json", "--url", broker.url)
        assert json.loads(found.stderr) == {"limited": {"stream": "s"}}
