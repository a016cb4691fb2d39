"""Groups of a running broker, over the command line: at once for open sessions, and over a kill."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from forked_commands import forked_malamute
from rig_daemon import Daemon, environment, small
from rig_waiting import PATIENCE

import malamute
from malamute.access import AccessRule, Account, Accounts
from malamute.config import AccessConfig, UserRules
from malamute.config.accounts import hash_password, save_accounts
from malamute.errors import AccessRefused


@pytest.fixture
def secured(new_daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A broker whose operator is the user of this process, and where ann of `staff` has a password."""
    accounts = [Account("op", uid=os.getuid()), Account("ann", hash_password("secret"), groups=("staff",))]
    save_accounts(Accounts(accounts), tmp_path / "accounts.toml")
    operator = UserRules("op", rules=tuple(map(AccessRule.parse, ("* */#", "subscribe stream/$audit"))))
    access = AccessConfig(accounts=str(tmp_path / "accounts.toml"), user=(operator,))
    daemon = new_daemon(replace(small(), access=access))
    endpoints = (f"peer+ipc://{tmp_path}/peer", f"plain+{daemon.url}")
    daemon.configure(replace(daemon.config, listen=replace(daemon.config.listen, endpoints=endpoints)))
    return daemon.start()


def run(daemon: Daemon, *words: str, code: int = 0) -> str:
    """What a command of the operator prints."""
    url = daemon.config.listen.endpoints[0].removeprefix("peer+")
    found = subprocess.run(
        [forked_malamute(), *words, "--url", url],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert found.returncode == code, found.stderr
    return found.stdout + found.stderr


def test_a_group_is_in_force_at_once_and_after_a_kill(secured: Daemon) -> None:
    with malamute.connect(secured.url, user="ann", password="secret", timeout=PATIENCE) as ann:
        with pytest.raises(AccessRefused, match="'publish stream/s/a' is not allowed"):
            ann.publish("s", "a", b"0", assurance="stored")
        run(secured, "group", "add", "staff", "--rule", "create,publish,subscribe stream/s")
        subscription = ann.subscribe("s", "a")
        ann.publish("s", "a", b"1", assurance="stored")
        assert subscription.receive(timeout=PATIENCE).body == b"1"
        run(secured, "group", "set", "staff", "--remove-rule", "create,publish,subscribe stream/s")
        with pytest.raises(AccessRefused):
            subscription.receive(timeout=PATIENCE)
        assert "no rule allows it" in run(secured, "auth", "check", "ann", "publish", "stream/s", code=1)
        run(secured, "group", "set", "staff", "--add-rule", "publish stream/s")
        secured.kill()
        secured.start()
        ann.publish("s", "a", b"2", assurance="stored")
        explained = run(secured, "auth", "explain", "ann", "publish", "stream/s")
        assert "group staff" in explained
    row = {"name": "staff", "source": "store", "access_rules": ["publish stream/s"]}
    assert json.loads(run(secured, "group", "show", "staff", "--json")) == row
    assert "there is no group 'none'" in run(secured, "group", "set", "none", "--rule", "", code=1)
    run(secured, "group", "remove", "staff", "--yes")
    assert json.loads(run(secured, "group", "list", "--json")) == []
    changes = run(secured, "auth", "changes", "op", "--start", "first", "-n", "4")
    assert changes.count("group.") == 4


def test_what_is_no_change_of_a_group_is_refused_by_the_command(secured: Daemon) -> None:
    assert "nothing to change" in run(secured, "group", "set", "staff", code=2)
    assert "invalid rule" in run(secured, "group", "add", "staff", "--rule", "nonsense", code=1)
    told = run(secured, "group", "add", "staff", "--rule", "publish stream/s", "--dry-run")
    assert "staff" in told
    assert run(secured, "group", "list", "--json").strip() == "[]"
    assert "there is no group" in run(secured, "group", "show", "staff", code=1)
