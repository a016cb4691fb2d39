"""A program that acts as others at a real broker: by a uid, by a password, and with a kill in between."""

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
from malamute.protocol.admin import ClientsQuery

RULES = ("receive mailbox/{user}", "create,send mailbox/#", "view broker/clients")


@pytest.fixture
def secured(new_daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A broker where the user of this process is `proxy`, who may act as bob, and `clerk` has a password."""
    accounts = [
        Account("proxy", uid=os.getuid()),
        Account("clerk", hash_password("secret")),
        *map(Account, ("bob", "carl")),
    ]
    save_accounts(Accounts(accounts), tmp_path / "accounts.toml")
    of_proxy, of_clerk = (
        UserRules("proxy", rules=parsed("impersonate user/bob")),
        UserRules("clerk", rules=parsed("impersonate user/#", "deny impersonate user/proxy")),
    )
    config = replace(
        small(),
        access=AccessConfig(
            accounts=str(tmp_path / "accounts.toml"), rules=parsed(*RULES), user=(of_proxy, of_clerk)
        ),
    )
    daemon = new_daemon(config)
    endpoints = (f"peer+ipc://{tmp_path}/peer", f"plain+{daemon.url}")
    daemon.configure(replace(daemon.config, listen=replace(daemon.config.listen, endpoints=endpoints)))
    return daemon.start()


def parsed(*rules: str) -> tuple[AccessRule, ...]:
    return tuple(map(AccessRule.parse, rules))


def peer_url(daemon: Daemon) -> str:
    return daemon.config.listen.endpoints[0].removeprefix("peer+")


def test_mail_of_another_is_received_and_sent_in_that_name_over_a_kill_of_the_broker(secured: Daemon) -> None:
    url = peer_url(secured)
    with pytest.raises(AccessRefused, match="'receive mailbox/bob' is not allowed"):
        malamute.connect(url, address="bob")
    with malamute.connect(url, address="bob", act_as="bob", timeout=PATIENCE) as bob:
        bob.send("carl", "a", b"1", assurance="stored")
        (row,) = bob.query(ClientsQuery())
        assert (row.address, row.user, row.by) == ("bob", "bob", "proxy")
        secured.kill()
        secured.start()
        # The same session, which is that of both, goes on.
        bob.send("carl", "a", b"2", assurance="stored")
        (row,) = bob.query(ClientsQuery())
        assert (row.user, row.by) == ("bob", "proxy")
    with malamute.connect(
        secured.url, user="clerk", password="secret", act_as="carl", address="carl", timeout=PATIENCE
    ) as carl:
        mail = carl.mailbox()
        assert [(m.sender, m.body) for m in (mail.receive(timeout=PATIENCE) for _ in range(2))] == [
            ("bob", b"1"),
            ("bob", b"2"),
        ]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("proxy", "refused by 'deny impersonate user/proxy'"),
        ("nobody", "there is no user 'nobody' to act as"),
    ],
)
def test_who_may_not_is_refused_at_once_and_told_why(secured: Daemon, other: str, words: str) -> None:
    with pytest.raises(AccessRefused, match=words) as refused:
        malamute.connect(secured.url, user="clerk", password="secret", act_as=other, timeout=PATIENCE)
    assert refused.value.code == 401


def test_the_command_line_acts_as_others_by_an_option_a_context_or_the_environment(
    secured: Daemon, tmp_path: Path
) -> None:
    url = peer_url(secured)

    def malamute_command(*words: str, code: int = 0, **variables: str) -> str:
        found = subprocess.run(
            [forked_malamute(), *words],
            env={**environment(), "XDG_CONFIG_HOME": str(tmp_path), **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert found.returncode == code, found.stderr
        return found.stdout + found.stderr

    shown = json.loads(malamute_command("client", "list", "--url", url, "--act-as", "bob", "--json"))
    assert [(row["user"], row["by"]) for row in shown] == [("bob", "proxy")]
    malamute_command("context", "add", "desk", "--url", url, "--act-as", "bob")
    assert "bob" in malamute_command("client", "list", "--context", "desk", "--json")
    assert '"bob"' in malamute_command("client", "list", "--url", url, "--json", MALAMUTE_ACT_AS="bob")
    refused = malamute_command("client", "list", "--url", url, "--act-as", "carl", code=1)
    assert "'impersonate user/carl' is not allowed" in refused
