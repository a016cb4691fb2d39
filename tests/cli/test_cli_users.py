"""`malamute keys` and `malamute user`: files for their owners, and nothing secret that is printed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cli_commands import Run

from malamute.config.accounts import Accounts, PasswordHash


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
    nothing = {"key": None, "password": False, "uid": None, "groups": [], "disabled": False}
    assert listed == [
        {**nothing, "name": "ann", "key": key["public"], "groups": ["a", "b"], "disabled": True},
        {**nothing, "name": "bob", "password": True},
        {**nothing, "name": "carl", "uid": 1000},
    ]
    kept = Accounts.load(path).by_name["bob"].password
    assert kept is not None
    assert PasswordHash.parse(kept).fits(b"second")
    assert kept not in run("user", "list", *accounts).stdout
    run("user", "disable", "ann", "--undo", *accounts)
    assert Accounts.load(path).enabled.keys() == {"ann", "bob", "carl"}


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("add", "ann"), "", "no --key, no --password and no --uid"),
        (("add", "ann", "--key", "nothing"), "", "nothing: key cannot be read"),
        (("add", "ann", "--password"), "\n", "invalid password"),
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


def test_an_account_is_added_once_and_changed_only_if_it_is_there(run: Run, path: Path) -> None:
    accounts = ("--accounts", str(path))
    run("user", "add", "bob", "--password", *accounts, stdin="x\n")
    assert "already" in run("user", "add", "bob", "--password", *accounts, stdin="x\n", exit_code=1).stderr
    assert "there is no account 'ann'" in run("user", "disable", "ann", *accounts, exit_code=1).stderr
