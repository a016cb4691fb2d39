"""Accounts: who may log in, by a password, a key or a uid, in a file that the command line writes.

    [[account]]
    name = "ann"
    password = "scrypt$16384$8$1$…$…"
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    uid = 1000
    groups = ["traders"]

The file is its owner's alone to read, and is read as a whole or not at all. Passwords are kept as scrypt
makes them; a key is the public half of a CURVE key, and a uid the number of a user of this system.

There may be 100,000 of them in a broker that has other things to do. So each is kept as a plain tuple of
texts, which the garbage collector need not look into, and is an `Account` when it is asked for. The file is
read one account after the other, and let go in the same way: no step of it keeps the interpreter for long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from malamute.access.account import KEY, Account, Accounts, PasswordHash, salted_hash
from malamute.config import option_types
from malamute.config.sections import AccessConfig, Section, option, read_table, write_table
from malamute.errors import ConfigError
from malamute.protocol.limits import UID_MAX

SALT_BYTES = 16


def hash_password(password: str) -> str:
    """Return the hash of a password. Raises `ConfigError` for an invalid password."""
    return salted_hash(password, os.urandom(SALT_BYTES))


def _read_hash(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    PasswordHash.parse(value)
    return value


def read_key(value: object) -> str:
    """The public half of a CURVE key. Raises `ValueError`."""
    if not isinstance(value, str) or not KEY.fullmatch(value):
        raise ValueError
    return value


_HASH = option_types.OptionType(
    "what `malamute user passwd` writes", _read_hash, option_types.quoted, secret=True
)
_UID = option_types.count(0, UID_MAX)
_KEY = option_types.OptionType("40 characters of Z85", read_key, option_types.quoted, secret=True)


@dataclass(frozen=True)
class AccountTable(Section):
    """A user who may log in, as the file has it."""

    table: ClassVar[str] = "account"

    name: str = option("", option_types.OWNER)
    password: str | None = option(None, _HASH)
    key: str | None = option(None, _KEY)
    groups: tuple[str, ...] | None = option(None, option_types.OWNERS)
    disabled: bool | None = option(None, option_types.FLAG)
    uid: int | None = option(None, _UID)

    def account(self) -> Account:
        """Return the account of the broker."""
        return Account(
            self.name, self.password or "", self.key or "", self.groups or (), bool(self.disabled), self.uid
        )

    @classmethod
    def of(cls, account: Account) -> AccountTable:
        """Return the table of an account. Raises `ConfigError` for one that cannot be in a file."""
        if account.rules:
            raise ConfigError(
                f"account {account.name!r} has rules: in a configuration they stand in [[access.user]]"
            )
        name, password, key, groups, disabled, uid, _ = account
        return cls(name, password or None, key or None, groups or None, disabled or None, uid)


def load_accounts(path: Path) -> Accounts:
    """Read a file. Raises `ConfigError`, also if others may read it."""
    text = _read_private_text(path, "accounts")
    try:
        return Accounts(_accounts(text))
    except ValueError as error:
        raise ConfigError(f"{path}: invalid TOML: {_fault(text, error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.text}") from None


def accounts_of(access: AccessConfig) -> Accounts:
    """Return the accounts of the file of a configuration, if any. Raises `ConfigError`."""
    return load_accounts(Path(access.accounts)) if access.accounts else Accounts()


def save_accounts(accounts: Accounts, path: Path) -> None:
    """Write them beside the file and then in its place, for its owner alone. Raises `ConfigError`."""
    found = (AccountTable.of(accounts.by_name[name]) for name in sorted(accounts.by_name))
    write_private(path, "\n\n".join(write_table("", account) for account in found) + "\n")


_BEGIN = re.compile(r"^(?=\[\[account\]\])", re.MULTILINE)
"""Where an account begins. Within a text of several lines it ends that text where TOML has no end of it."""


def _accounts(text: str) -> Iterator[Account]:
    """Each account of a file. Raises `ConfigError`, or `ValueError` if it is no TOML."""
    begins = [found.start() for found in _BEGIN.finditer(text)]
    if option_types.read_toml(text[: begins[0]] if begins else text):
        # Text before the first account is parsed with all that follows.
        begins = [0]
    number = 0
    for begin, end in pairwise([*begins, len(text)]):
        for name, listed in option_types.read_toml(text[begin:end]).items():
            if name != "account" or not isinstance(listed, list):
                raise ConfigError(f"unexpected {name!r}: expected [[account]] and nothing else")
            for table in listed:
                number += 1
                try:
                    yield read_table(AccountTable, table).account()
                except (ConfigError, ValueError) as error:
                    words = getattr(error, "text", "expected a table")
                    raise ConfigError(f"account {number}: {words}") from None


def _fault(text: str, found: ValueError) -> ValueError:
    """Return the fault of a text, with its line in the whole of it."""
    try:
        option_types.read_toml(text)
    except ValueError as error:
        return error
    return found


def _read_private_text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()).st_mode, what)
            return file.read().decode()
    except OSError as error:
        raise ConfigError(f"{path}: {what} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from None


def check_private(path: Path, mode: int, what: str) -> None:
    """Raise `ConfigError` if others than the owner may read or write a file."""
    if mode & 0o077:
        raise ConfigError(f"{path}: {what} are open to others (mode {mode & 0o777:04o}): expected chmod 600")


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file as a whole, for its owner alone to read unless `mode` says more. Raises `ConfigError`."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def read_secret_key(path: Path) -> str:
    """The secret half of a CURVE key, from a file as pyzmq writes it.

    Raises:
        ConfigError: there is none in it, or others may read it.
    """
    key = _half(path, "secret")
    check_private(path, path.stat().st_mode, "secret keys")
    return key


def read_public_key(path: Path) -> str:
    """The public half of a CURVE key, from a file as pyzmq writes it. Raises `ConfigError`."""
    return _half(path, "public")


def _half(path: Path, half: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: key cannot be read: {error}") from None
    found = re.search(rf'^\s*{half}-key\s*=\s*"([^"\n]*)"', text, re.MULTILINE)
    if found is None or not KEY.fullmatch(found[1]):
        raise ConfigError(f"{path}: there is no {half} key in it: expected what `malamute keys new` writes")
    return found[1]
