"""`malamute keys` and `malamute user`: files for their owners, and nothing secret that is printed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cli_commands import Run

from malamute.access.account import PasswordHash
from malamute.config.accounts import load_accounts
from malamute.testing import Broker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "accounts.toml"


def test_a_new_key_has_a_half_for_everybody_and_one_for_its_owner(run: Run, tmp_path: Path) -> None:
    made = json.loads(run("keys", "new", "ann", "--dir", str(tmp_path / "keys"), "--json").stdout)
    secret = Path(made["secret_file"])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert made["public"] in Path(made["file"]).read_text()
    assert "secret-key" not in Path(made["file"]).read_text()
    for shown in (
        run("keys", "show", str(secret)).stdout,
        run("keys", "list", "--dir", str(tmp_path / "keys")).stdout,
    ):
        assert made["public"] in shown
        assert secret.read_text().split('"')[3] not in shown
    again = run("keys", "new", "ann", "--dir", str(tmp_path / "keys"), exit_code=1)
    assert "cannot be written: File exists" in again.stderr
    assert run("keys", "list", "--dir", str(tmp_path)).stderr == "no keys\n"
    assert "invalid name" in run("keys", "new", "../x", "--dir", str(tmp_path), exit_code=1).stderr


def test_pyzmq_reads_the_files(run: Run, tmp_path: Path) -> None:
    from zmq.auth import load_certificate

    made = json.loads(run("keys", "new", "ann", "--dir", str(tmp_path), "--json").stdout)
    public, secret = load_certificate(made["secret_file"])
    assert public == made["public"].encode()
    assert secret is not None
    assert load_certificate(made["file"]) == (public, None)


def test_accounts_are_added_changed_disabled_and_listed(run: Run, tmp_path: Path, path: Path) -> None:
    accounts = ("--accounts", str(path))
    key = json.loads(run("keys", "new", "ann", "--dir", str(tmp_path), "--json").stdout)
    run("user", "add", "ann", "--key", key["file"], "-g", "a", "-g", "b", *accounts)
    run("user", "add", "bob", "--password", *accounts, stdin="first\n")
    run("user", "passwd", "bob", *accounts, stdin="second\n")
    run("user", "disable", "ann", *accounts)
    run("user", "add", "carl", "--uid", "1000", *accounts)
    listed = json.loads(run("user", "list", "--json", *accounts).stdout)
    nothing = {"source": "file", "key": None, "password": False, "uid": None, "groups": []}
    nothing |= {"access_rules": [], "disabled": False}
    assert listed == [
        {**nothing, "name": "ann", "key": key["public"], "groups": ["a", "b"], "disabled": True},
        {**nothing, "name": "bob", "password": True},
        {**nothing, "name": "carl", "uid": 1000},
    ]
    kept = load_accounts(path).by_name["bob"].password
    assert PasswordHash.parse(kept).fits(b"second")
    assert kept not in run("user", "list", *accounts).stdout
    run("user", "enable", "ann", *accounts)
    assert not load_accounts(path).is_disabled("ann")
    run("user", "set", "bob", "--group", "c", *accounts)
    assert load_accounts(path).by_name["bob"].groups == ("c",)
    run("user", "set", "bob", "--group", "", *accounts)
    assert load_accounts(path).by_name["bob"].groups == ()
    assert json.loads(run("user", "remove", "bob", "--yes", "--json", *accounts).stdout) == {"name": "bob"}
    assert load_accounts(path).by_name.keys() == {"ann", "carl"}


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("add", "ann"), "", "no --key, no --password and no --uid"),
        (("add", "ann", "--key", "nothing"), "", "nothing: key cannot be read"),
        (("add", "ann", "--password"), "\n", "invalid password"),
        (("add", "ann", "--password"), "x\0\n", "invalid password"),
        (("add", "$ann", "--password"), "x\n", "account.name = '$ann'"),
        (("passwd", "ann"), "x\n", "accounts cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(
    run: Run, path: Path, arguments: tuple[str, ...], stdin: str, words: str
) -> None:
    failed = run("user", *arguments, "--accounts", str(path), stdin=stdin, exit_code=1)
    assert words in failed.stderr
    assert not path.exists()


def test_rules_of_an_account_and_a_broker_go_with_no_file(run: Run, path: Path) -> None:
    accounts = ("--accounts", str(path))
    failed = run("user", "add", "bob", "--uid", "7", "--rule", "view broker/#", *accounts, exit_code=1)
    assert "rules stand in [[access.user]]" in failed.stderr
    assert not path.exists()
    failed = run("user", "list", *accounts, "--url", "tcp://127.0.0.1:1", exit_code=2)
    assert "expected a file or a broker" in failed.stderr
    assert "nothing to change" in run("user", "set", "bob", *accounts, exit_code=2).stderr


def test_two_accounts_of_a_file_have_two_keys_and_uids(run: Run, path: Path) -> None:
    accounts = ("--accounts", str(path))
    run("user", "add", "ann", "--uid", "7", *accounts)
    failed = run("user", "add", "bob", "--uid", "7", *accounts, exit_code=1)
    assert "accounts 'ann' and 'bob' have one uid" in failed.stderr
    run("user", "set", "ann", "--uid", "8", *accounts)
    run("user", "add", "bob", "--uid", "7", *accounts)


def test_accounts_of_a_running_broker_are_changed_and_listed(run: Run, broker: Broker, path: Path) -> None:
    run("user", "add", "ann", "--password", "-g", "a", stdin="secret\n")
    run("user", "set", "ann", "--uid", "7")
    run("user", "disable", "ann")
    # A file named in the environment is for the broker that is started there.
    listed = run("user", "list", "--json", "--url", broker.url, MALAMUTE_ACCESS__ACCOUNTS=str(path)).stdout
    (row,) = json.loads(listed)
    assert row == {
        "name": "ann",
        "source": "store",
        "key": None,
        "password": True,
        "uid": 7,
        "groups": ["a"],
        "access_rules": [],
        "disabled": True,
        "quotas": [],
    }
    refused = run("user", "add", "bob", "--uid", "7", exit_code=1).stderr
    assert "accounts 'ann' and 'bob' have one uid" in refused
    run("user", "enable", "ann")
    run("user", "remove", "ann", "--yes")
    assert json.loads(run("user", "list", "--json").stdout) == []


def test_an_account_is_added_once_and_changed_only_if_it_is_there(run: Run, path: Path) -> None:
    accounts = ("--accounts", str(path))
    run("user", "add", "bob", "--password", *accounts, stdin="x\n")
    assert "already" in run("user", "add", "bob", "--password", *accounts, stdin="x\n", exit_code=1).stderr
    assert "there is no account 'ann'" in run("user", "disable", "ann", *accounts, exit_code=1).stderr
