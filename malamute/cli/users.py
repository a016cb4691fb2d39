"""`malamute user`: the accounts of those who may log in, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.options import ask_password, examples, json_option
from malamute.cli.tables import show_map, show_rows
from malamute.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from malamute.config.accounts import Account, Accounts


@click.group()
def user() -> None:
    """Add, change and list those who may log in.

    They are in a file for its owner alone, which `access.accounts` of the configuration names. A running
    broker takes a change with `malamute broker reload`.
    """


_file = click.option(
    "--accounts",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MALAMUTE_ACCESS__ACCOUNTS",
    help="The file of the accounts.",
)
_password = click.option(
    "--password",
    "asks",
    is_flag=True,
    help="Ask for a password; where there is no terminal it is a line of standard input.",
)


@user.command(
    epilog=examples(
        "malamute user add ann --key ann.key --accounts accounts.toml",
        "malamute user add bob --password --group staff --accounts accounts.toml",
        "malamute user add carl --uid 1000 --accounts accounts.toml",
    )
)
@click.argument("name")
@click.option("--key", "-k", help="The public half of a CURVE key, or the file that has it.")
@_password
@click.option("--uid", type=click.IntRange(0), help="The uid of the system, for endpoints with `peer+`.")
@click.option("--group", "-g", "groups", multiple=True, help="A group; may be given again.")
@_file
@json_option
def add(
    name: str,
    *,
    key: str | None,
    asks: bool,
    uid: int | None,
    groups: Sequence[str],
    path: Path,
    as_json: bool,
) -> None:
    """Add an account, with a key, a password, a uid, or more than one of them."""
    from malamute.config.accounts import Account, Accounts

    accounts = _load(path) if path.exists() else Accounts()
    if name in accounts.by_name:
        raise ConfigError(f"there is an account {name!r} already: change it with `malamute user passwd`")
    if not (key or asks or uid is not None):
        raise ConfigError("no --key, no --password and no --uid: expected at least one of them")
    password, public = _asked() if asks else None, _key(key) if key else None
    account = Account(name, password, public, tuple(groups) or None, uid=uid)
    _save(accounts, account, path, as_json=as_json)


@user.command()
@click.argument("name")
@_file
@json_option
def passwd(name: str, *, path: Path, as_json: bool) -> None:
    """Give an account another password."""
    accounts = _load(path)
    _save(accounts, replace(_account(accounts, name), password=_asked()), path, as_json=as_json)


@user.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it log in again.")
@_file
@json_option
def disable(name: str, *, undo: bool, path: Path, as_json: bool) -> None:
    """Keep an account from logging in; with the next reload its sessions end."""
    accounts = _load(path)
    _save(accounts, replace(_account(accounts, name), disabled=None if undo else True), path, as_json=as_json)


@user.command("list")
@_file
@json_option
def listing(*, path: Path, as_json: bool) -> None:
    """List the accounts. Passwords are not shown."""
    show_rows([_row(account) for account in _load(path).by_name.values()], as_json=as_json)


def _load(path: Path) -> Accounts:
    from malamute.config.accounts import Accounts

    return Accounts.load(path)


def _account(accounts: Accounts, name: str) -> Account:
    if name not in accounts.by_name:
        raise NotFound(f"there is no account {name!r}")
    return accounts.by_name[name]


def _save(accounts: Accounts, account: Account, path: Path, *, as_json: bool) -> None:
    from malamute.config.accounts import Accounts

    changed = {**accounts.by_name, account.name: account}
    Accounts(changed.values()).save(path)
    show_map(_row(account), as_json=as_json)


def _row(account: Account) -> dict[str, Any]:
    return {
        "name": account.name,
        "key": account.key,
        "password": account.password is not None,
        "uid": account.uid,
        "groups": [*(account.groups or ())],
        "disabled": bool(account.disabled),
    }


def _asked() -> str:
    from malamute.config.accounts import hash_password

    return hash_password(ask_password(twice=True))


def _key(text: str) -> str:
    from malamute.config.accounts import KEY, read_public_key

    return text if KEY.fullmatch(text) else read_public_key(Path(text))
