"""Accounts: who may log in, by a password, a key or a uid, in a file that the command line writes.

    [[account]]
    name = "ann"
    password = "scrypt$16384$8$1$…$…"
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    uid = 1000
    groups = ["traders"]

The file is its owner's alone to read, and is read as a whole or not at all. Passwords are kept as scrypt
makes them; a key is the public half of a CURVE key, and a uid the number of a user of this system.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import tomllib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from malamute.config import option_types
from malamute.config.sections import Section, option, read_table, write_table
from malamute.errors import ConfigError

SCRYPT_COST, SCRYPT_BLOCKS, SCRYPT_LANES = 1 << 14, 8, 1
"""What a password costs whoever tries it: 16 MiB, and some 50 ms."""

SCRYPT_COST_MAX = 1 << 20
PASSWORD_BYTES_MAX = 1_024

KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""A CURVE key in Z85, as pyzmq writes it."""


def hash_password(password: str) -> str:
    """A password as it is kept. Raises `ConfigError` for one that is empty or too long."""
    given = password.encode()
    if not 1 <= len(given) <= PASSWORD_BYTES_MAX:
        raise ConfigError(f"invalid password: expected 1 to {PASSWORD_BYTES_MAX} bytes")
    salt = os.urandom(16)
    cost = SCRYPT_COST, SCRYPT_BLOCKS, SCRYPT_LANES
    words = [
        "scrypt",
        *map(str, cost),
        *(b64encode(part).decode() for part in (salt, _scrypt(given, salt, *cost))),
    ]
    return "$".join(words)


class PasswordHash(NamedTuple):
    """A password as it is kept, apart."""

    cost: int
    blocks: int
    lanes: int
    salt: bytes
    hashed: bytes

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Read what `hash_password` made. Raises `ValueError` for anything else."""
        scheme, cost, blocks, lanes, salt, hashed = text.split("$")
        found = cls(
            int(cost),
            int(blocks),
            int(lanes),
            b64decode(salt, validate=True),
            b64decode(hashed, validate=True),
        )
        if scheme != "scrypt" or not 2 <= found.cost <= SCRYPT_COST_MAX or found.cost & (found.cost - 1):
            raise ValueError
        if not (
            1 <= found.blocks <= 32 and 1 <= found.lanes <= 16 and found.salt and len(found.hashed) == 32
        ):
            raise ValueError
        return found

    def fits(self, password: bytes) -> bool:
        """Whether this is the password. It takes as long as making the hash did."""
        tried = _scrypt(password, self.salt, self.cost, self.blocks, self.lanes)
        return hmac.compare_digest(tried, self.hashed)


def _scrypt(password: bytes, salt: bytes, cost: int, blocks: int, lanes: int) -> bytes:
    memory_bytes = 256 * cost * blocks * lanes + (1 << 20)
    return hashlib.scrypt(password, salt=salt, n=cost, r=blocks, p=lanes, maxmem=memory_bytes, dklen=32)


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


_HASH = option_types.OptionType("what `malamute user passwd` writes", _read_hash, option_types.quoted)
_UID = option_types.count(0, 2**32 - 2)
_KEY = option_types.OptionType("40 characters of Z85", read_key, option_types.quoted)


@dataclass(frozen=True)
class Account(Section):
    """Somebody who may log in."""

    table: ClassVar[str] = "account"

    name: str = option("", option_types.OWNER)
    password: str | None = option(None, _HASH)
    key: str | None = option(None, _KEY)
    groups: tuple[str, ...] | None = option(None, option_types.OWNERS)
    disabled: bool | None = option(None, option_types.FLAG)
    uid: int | None = option(None, _UID)


class Accounts:
    """All accounts, by their names, by their keys and by their uids."""

    def __init__(self, accounts: Iterable[Account] = ()) -> None:
        """Raises `ConfigError` for a name, a key or a uid that stands twice."""
        self.by_name: dict[str, Account] = {}
        self.by_key: dict[str, Account] = {}
        self.by_uid: dict[int, Account] = {}
        for account in accounts:
            if account.name in self.by_name:
                raise ConfigError(f"account {account.name!r} stands twice: expected each name once")
            self.by_name[account.name] = account
            if account.key and self.by_key.setdefault(account.key, account) is not account:
                other = self.by_key[account.key].name
                raise ConfigError(f"accounts {other!r} and {account.name!r} have one key: expected two")
            if account.uid is not None and self.by_uid.setdefault(account.uid, account) is not account:
                other = self.by_uid[account.uid].name
                raise ConfigError(f"accounts {other!r} and {account.name!r} have one uid: expected two")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Accounts) and self.by_name == other.by_name

    __hash__ = None  # type: ignore[assignment]  # it has mappings

    @property
    def enabled(self) -> dict[str, tuple[str, ...]]:
        """Those who may log in, each with his groups."""
        found = self.by_name.values()
        return {account.name: account.groups or () for account in found if not account.disabled}

    @property
    def disabled(self) -> frozenset[str]:
        """Those who may not log in."""
        return frozenset(account.name for account in self.by_name.values() if account.disabled)

    @classmethod
    def load(cls, path: Path) -> Accounts:
        """Read a file. Raises `ConfigError`, also if others may read it."""
        tables = read_private(path, "accounts")
        try:
            return cls(_accounts(tables))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.text}") from None

    def save(self, path: Path) -> None:
        """Write them beside the file and then in its place, for its owner alone. Raises `ConfigError`."""
        accounts = (self.by_name[name] for name in sorted(self.by_name))
        write_private(path, "\n\n".join(write_table("", account) for account in accounts) + "\n")


def _accounts(tables: Mapping[str, object]) -> Iterable[Account]:
    for name, listed in tables.items():
        if name != "account" or not isinstance(listed, list):
            raise ConfigError(f"unexpected {name!r}: expected [[account]] and nothing else")
        for number, table in enumerate(listed, 1):
            try:
                yield read_table(Account, table)
            except (ConfigError, ValueError) as error:
                raise ConfigError(f"account {number}: {getattr(error, 'text', 'expected a table')}") from None


def read_private(path: Path, what: str) -> dict[str, object]:
    """A file of TOML with secrets in it. Raises `ConfigError`, also if others may read it."""
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()).st_mode, what)
            return tomllib.loads(file.read().decode())
    except OSError as error:
        raise ConfigError(f"{path}: {what} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from None


def check_private(path: Path, mode: int, what: str) -> None:
    """Raise `ConfigError` if others than the owner may read or write a file."""
    if mode & 0o077:
        raise ConfigError(f"{path}: {what} are open to others (mode {mode & 0o777:04o}): expected chmod 600")


def write_private(path: Path, text: str) -> None:
    """Write a file as a whole, for its owner alone to read. Raises `ConfigError`."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
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
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: key cannot be read: {error}") from None
    found = re.search(rf'^\s*{half}-key\s*=\s*"([^"\n]*)"', text, re.MULTILINE)
    if found is None or not KEY.fullmatch(found[1]):
        raise ConfigError(f"{path}: there is no {half} key in it: expected what `malamute keys new` writes")
    return found[1]
