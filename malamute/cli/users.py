"""`malamute user`: the accounts of users, in a running broker or in a file."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from malamute.cli.admin import removes
from malamute.cli.options import (
    ConnectionOptions,
    Function,
    ask_password,
    asks,
    examples,
)
from malamute.cli.quotas import quotas, show
from malamute.cli.tables import show_map, show_rows
from malamute.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from malamute.access import Account, Accounts

Row = dict[str, Any]


@dataclass
class BrokerBook:
    """The accounts of a running broker, which stores and applies changes at once."""

    connection: ConnectionOptions

    def add(self, name: str, **fields: Any) -> Row:
        """Add an account to the store."""
        from malamute.protocol.admin import UserAdd

        return self._change(UserAdd(name=name, **fields))

    def set(self, name: str, **fields: Any) -> Row:
        """Change an account in the store."""
        from malamute.protocol.admin import UserSet

        given = {field: value for field, value in fields.items() if value is not None}
        return self._change(UserSet(name=name, **given))

    def remove(self, name: str, *, dry_run: bool) -> Row:
        """Remove an account from the store."""
        from malamute.protocol.admin import UserRemove

        return self._change(UserRemove(name=name, dry_run=dry_run))

    def list(self) -> Iterable[Row]:
        """Return the accounts of the broker's file and of its store, each with the use of its quota."""
        from malamute.protocol.admin import UsersQuery, encode

        with self.connection.open() as client:
            # Fields with their default are in no map.
            return [{**row.as_map(), "quotas": encode(row.quotas)} for row in client.query(UsersQuery())]

    def _change(self, change: Any) -> Row:
        with self.connection.open() as client:
            done: Row = client.change(change).as_map()
        return done


@dataclass
class FileBook:
    """The accounts of a file. A broker applies changes with its next reload."""

    path: Path

    def add(self, name: str, **fields: Any) -> Row:
        """Add an account; the first one creates the file."""
        from malamute.access import Account, Accounts

        accounts = self._load() if self.path.exists() else Accounts()
        if accounts.named(name) is not None:
            raise ConfigError(f"there is an account {name!r} already: change it with `malamute user set`")
        return self._put(accounts, Account(name), fields)

    def set(self, name: str, **fields: Any) -> Row:
        """Change an account."""
        accounts = self._load()
        return self._put(accounts, _account(accounts, name), fields)

    def remove(self, name: str, *, dry_run: bool) -> Row:
        """Remove an account."""
        from malamute.config.accounts import save_accounts

        accounts = self._load()
        accounts.remove(_account(accounts, name).name)
        if not dry_run:
            save_accounts(accounts, self.path)
        return {"name": name}

    def list(self) -> Iterable[Row]:
        """Return all accounts, in their order."""
        return [_row(account) for account in self._load().by_name.values()]

    def _load(self) -> Accounts:
        from malamute.config.accounts import load_accounts

        return load_accounts(self.path)

    def _put(self, accounts: Accounts, before: Account, fields: Row) -> Row:
        from malamute.config.accounts import save_accounts

        given = {field: value for field, value in fields.items() if value is not None}
        if any(given.pop(field, ()) for field in ("access_rules", "added_rules", "removed_rules")):
            raise ConfigError("--rule with --accounts: rules stand in [[access.user]] of the configuration")
        if "groups" in given:
            given["groups"] = tuple(given["groups"])
        account = before._replace(**given)
        if (fault := accounts.conflict(account)) is not None:
            raise ConfigError(fault)
        accounts.put(account)
        save_accounts(accounts, self.path)
        return _row(account)


Book = BrokerBook | FileBook
"""A store of accounts. The fields of a change are those of `user.set`; None leaves one as it is."""


def _account(accounts: Accounts, name: str) -> Account:
    account = accounts.named(name)
    if account is None:
        raise NotFound(f"there is no account {name!r}")
    return account


def _row(account: Account) -> Row:
    return {
        "name": account.name,
        "source": "file",
        "key": account.key or None,
        "password": bool(account.password),
        "uid": account.uid,
        "groups": [*account.groups],
        "access_rules": [],
        "disabled": account.disabled,
    }


@click.group()
def user() -> None:
    """Add, change and list accounts.

    A running broker stores accounts, and applies each change at once. With --accounts they are in a file for
    its owner alone, the one of `access.accounts` in the configuration, and a broker applies changes with
    `malamute broker reload`. The file has precedence for a name, a key or a uid. `show` and `quotas` have the
    use of quotas.
    """


def _keeps(function: Function) -> Function:
    """Add --accounts, the options of a connection and --json; the command gets the accounts as `book`."""

    @click.option(
        "--accounts",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="MALAMUTE_ACCESS__ACCOUNTS",
        help="The file of the accounts, in place of a running broker.",
    )
    @asks
    @functools.wraps(function)
    def command(*args: Any, path: Path | None, connection: ConnectionOptions, **more: Any) -> Any:
        context = click.get_current_context()
        named = {
            option: context.get_parameter_source(option) is ParameterSource.COMMANDLINE
            for option in ("path", "url", "context")
        }
        broker = named["url"] or named["context"]
        if named["path"] and broker:
            raise click.UsageError("--accounts with --url or --context: expected a file or a broker")
        book = BrokerBook(connection) if path is None or broker else FileBook(path)
        return function(*args, book=book, **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


def _describes(function: Function) -> Function:
    """Add the properties of an account; the command gets them as `fields`, with None for omitted ones."""

    @click.option("--key", "-k", help="The public half of a CURVE key, or the file that has it.")
    @click.option(
        "--password",
        "asks",
        is_flag=True,
        help="Ask for a password; where there is no terminal it is a line of standard input.",
    )
    @click.option("--uid", type=click.IntRange(0), help="The uid of the system, for endpoints with `peer+`.")
    @click.option("--group", "-g", "groups", multiple=True, help="A group; may be repeated.")
    @click.option(
        "--rule",
        "-r",
        "rules",
        multiple=True,
        help="A rule of its own, on a running broker; may be repeated.",
    )
    @functools.wraps(function)
    def command(
        *args: Any,
        key: str | None,
        asks: bool,
        uid: int | None,
        groups: Sequence[str],
        rules: Sequence[str],
        **more: Any,
    ) -> Any:
        fields = {
            "password": _asked() if asks else None,
            "key": _key(key) if key else None,
            "uid": uid,
            # An empty group means none, so that all can be removed.
            "groups": [*filter(None, groups)] if groups else None,
        }
        return function(*args, fields=fields, rules=rules, **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


@user.command(
    epilog=examples(
        "malamute user add ann --key ann.key --group traders",
        "malamute user add bob --password --rule 'subscribe stream/prices'",
        "malamute user add carl --uid 1000 --accounts accounts.toml",
    )
)
@click.argument("name")
@_describes
@_keeps
def add(name: str, *, fields: Row, rules: Sequence[str], book: Book, as_json: bool) -> None:
    """Add an account, with a key, a password, a uid, or more than one of them."""
    fields["access_rules"] = [*filter(None, rules)] or None
    if all(fields[proof] is None for proof in ("key", "password", "uid")):
        raise ConfigError(
            "no --key, no --password and no --uid: expected at least one of them",
            hint=f"malamute user add {name} --password asks for one",
        )
    show_map(book.add(name, **fields), as_json=as_json)


@user.command(
    "set",
    epilog=examples(
        "malamute user set ann --group traders --group staff",
        "malamute user set bob --rule 'receive mailbox/bob' --remove-rule 'subscribe stream/prices'",
        "malamute user set bob --group ''",
    ),
)
@click.argument("name")
@_describes
@click.option("--remove-rule", "removed", multiple=True, help="A rule of its own to remove; may be repeated.")
@_keeps
def set_(
    name: str, *, fields: Row, rules: Sequence[str], removed: Sequence[str], book: Book, as_json: bool
) -> None:
    """Change an account: given options replace its properties.

    --rule and --remove-rule preserve its other rules. With --group '' the account is in no group, and with
    --rule '' it has no rules except others given as well.
    """
    added = [*filter(None, rules)]
    fields["access_rules"] = [] if "" in rules else None
    fields |= {"added_rules": added or None, "removed_rules": [*removed] or None}
    if all(value is None for value in fields.values()):
        raise click.UsageError("nothing to change: expected at least one of the options")
    show_map(book.set(name, **fields), as_json=as_json)


@user.command()
@click.argument("name")
@_keeps
def passwd(name: str, *, book: Book, as_json: bool) -> None:
    """Give an account another password."""
    show_map(book.set(name, password=_asked()), as_json=as_json)


@user.command()
@click.argument("name")
@_keeps
def disable(name: str, *, book: Book, as_json: bool) -> None:
    """Disable the login of an account. Its sessions end."""
    show_map(book.set(name, disabled=True), as_json=as_json)


@user.command()
@click.argument("name")
@_keeps
def enable(name: str, *, book: Book, as_json: bool) -> None:
    """Enable the login of a disabled account."""
    show_map(book.set(name, disabled=False), as_json=as_json)


@user.command()
@click.argument("name")
@removes("Remove the account {name}? Its sessions end.")
@_keeps
def remove(name: str, *, dry_run: bool, book: Book, as_json: bool) -> None:
    """Remove an account. Its sessions end."""
    show_map(book.remove(name, dry_run=dry_run), as_json=as_json)


user.add_command(show)
user.add_command(quotas)


@user.command("list")
@_keeps
def listing(*, book: Book, as_json: bool) -> None:
    """List the accounts, with the use of their own quota in a running broker.

    Passwords are not shown. `quotas` shows the use by groups.
    """
    rows = [*book.list()]
    if not as_json:
        rows = [{**row, "quotas": _used(row["quotas"])} if "quotas" in row else row for row in rows]
    show_rows(rows, as_json=as_json)


def _used(quotas: Iterable[Row]) -> list[str]:
    return [f"{figure['name']} {figure['used']}/{figure['limit']}" for figure in quotas]


def _asked() -> str:
    from malamute.config.accounts import hash_password

    return hash_password(ask_password(twice=True))


def _key(text: str) -> str:
    from malamute.access.account import KEY
    from malamute.config.accounts import read_public_key

    return text if KEY.fullmatch(text) else read_public_key(Path(text))
