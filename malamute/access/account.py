"""Accounts: the users who may log in, by a password, a key or a uid, and the rights of each.

An account is in the file that the configuration names, or in the store of the broker, where an operator has
put it while the broker runs. Passwords are kept as scrypt makes them; a key is the public half of a CURVE
key, and a uid the number of a user of the broker's system.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

from malamute.access.rule import AccessRule
from malamute.errors import ConfigError, InvalidName, InvalidValue
from malamute.protocol.limits import UID_MAX
from malamute.protocol.names import RESERVED_PREFIX, is_name
from malamute.protocol.passwords import PASSWORD_FORM, is_password

SCRYPT_COST, SCRYPT_BLOCKS, SCRYPT_LANES = 1 << 14, 8, 1
"""The cost of trying a password: 16 MiB, and some 50 ms."""

SCRYPT_COST_MAX = 1 << 20

SCRYPT_WORK_MAX = 1 << 20
"""The limit for the cost of a stored hash, eight times that of `malamute user`: 128 MiB for a try. An
administrator of accounts must not be able to exhaust the memory of the broker."""

KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""A CURVE key in Z85, as pyzmq writes it."""


PROOFS = {"plain": "password", "password": "password", "curve": "key", "peer": "uid"}
"""The field of an account that proves a peer, by the method of that."""


class PasswordHash(NamedTuple):
    """The parts of the stored hash of a password."""

    cost: int
    blocks: int
    lanes: int
    salt: bytes
    hashed: bytes

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Read a text of `salted_hash`. Raises `ValueError` for any other."""
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

    @property
    def work(self) -> int:
        """Return the cost of a try: 128 times as many bytes, and time in proportion."""
        return self.cost * self.blocks * self.lanes

    def fits(self, password: bytes) -> bool:
        """Return whether this is the password. The check takes as long as making the hash."""
        tried = scrypt(password, self.salt, self.cost, self.blocks, self.lanes)
        # To scrypt zero bytes at the end are none.
        return hmac.compare_digest(tried, self.hashed) and b"\0" not in password


def scrypt(password: bytes, salt: bytes, cost: int, blocks: int, lanes: int) -> bytes:
    """Return the hash of a password. The computation is slow by design."""
    memory_bytes = 256 * cost * blocks * lanes + (1 << 20)
    return hashlib.scrypt(password, salt=salt, n=cost, r=blocks, p=lanes, maxmem=memory_bytes, dklen=32)


def salted_hash(password: str, salt: bytes) -> str:
    """Return the stored form of a password. Raises `ConfigError` for a text that cannot be one."""
    if not is_password(password):
        raise ConfigError(f"invalid password: expected {PASSWORD_FORM}")
    cost = SCRYPT_COST, SCRYPT_BLOCKS, SCRYPT_LANES
    parts = (b64encode(part).decode() for part in (salt, scrypt(password.encode(), salt, *cost)))
    return "$".join(["scrypt", *map(str, cost), *parts])


class Account(NamedTuple):
    """A user who may log in. `rules` are its own, beside the rules of the configuration for its name."""

    name: str
    password: str = ""
    key: str = ""
    groups: tuple[str, ...] = ()
    disabled: bool = False
    uid: int | None = None
    rules: tuple[AccessRule, ...] = ()

    def __repr__(self) -> str:
        # No output shows the hash.
        return f"Account({self.name!r})"

    @classmethod
    def of(cls, *fields: Any) -> Account:
        """Return the account of plain values, as `stored` makes them and operators send them.

        Raises:
            InvalidName: the name of the account or of a group is invalid or reserved.
            InvalidValue: a password, a key or a uid is invalid; the text does not show the value.
            InvalidRule: a rule is invalid.
        """
        account = cls(*fields)
        for name in (account.name, *account.groups):
            if type(name) is not str or not is_name(name) or name.startswith(RESERVED_PREFIX):
                raise InvalidName(f"invalid name {name!r}: expected one that does not begin with $")
        if account.password and not is_stored_hash(account.password):
            raise InvalidValue(f"account {account.name!r}: the password is not as `malamute user` makes it")
        if account.key and (type(account.key) is not str or not KEY.fullmatch(account.key)):
            raise InvalidValue(f"account {account.name!r}: invalid key: expected 40 characters of Z85")
        if account.uid is not None and (type(account.uid) is not int or not 0 <= account.uid <= UID_MAX):
            raise InvalidValue(f"account {account.name!r}: invalid uid: expected 0 to {UID_MAX}")
        return account._replace(
            groups=tuple(account.groups), rules=tuple(AccessRule.parse(str(rule)) for rule in account.rules)
        )

    def proof(self, method: str) -> str:
        """Return the proof of a peer that logged in as this user by a method, valid while it is the same.

        Of a password it is a digest of its hash, which is in no message and no log.
        """
        proof = getattr(self, PROOFS[method])
        if PROOFS[method] == "password":
            return hashlib.blake2b(proof.encode(), digest_size=16).hexdigest()
        return str(proof)

    def stored(self) -> tuple[Any, ...]:
        """Return the fields as plain values, for the store."""
        return tuple(self._replace(rules=tuple(map(str, self.rules))))  # type: ignore[arg-type]


def is_stored_hash(text: Any) -> bool:
    """Return whether an operator may store this hash of a password."""
    try:
        return type(text) is str and PasswordHash.parse(text).work <= SCRYPT_WORK_MAX
    except ValueError:
        return False


class AccountBook(Protocol):
    """The users who may log in, for a lookup."""

    def named(self, name: str) -> Account | None:
        """Return the account of a name."""

    def with_key(self, key: str) -> Account | None:
        """Return the account that has a key."""

    def with_uid(self, uid: int) -> Account | None:
        """Return the account that has a uid."""

    def is_disabled(self, name: str) -> bool:
        """Return whether no user may log in by this name, by any proof."""

    @property
    def have_passwords(self) -> bool:
        """Whether any account has a password."""


_Row = tuple[Any, ...]
"""The fields of an account."""

_GROUPS = Account._fields.index("groups")


class AccountsByName(Mapping[str, Account]):
    """Accounts by their names, each made by its lookup."""

    def __init__(self, rows: Mapping[str, _Row]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Account:
        return Account(*self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Accounts:
    """Accounts by their names, by their keys and by their uids.

    A broker may have 100,000 accounts. So each is a plain tuple of texts, which the garbage collector need
    not visit, and becomes an `Account` at a lookup.
    """

    def __init__(self, accounts: Iterable[Account] = ()) -> None:
        """Raises `ConfigError` for a duplicate name, key or uid."""
        self._rows: dict[str, _Row] = {}
        self._keys: dict[str, str] = {}
        self._uids: dict[int, str] = {}
        self._groups: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Each list of groups once: there are far fewer lists than accounts."""
        self._with_rules: set[str] = set()
        self._passwords = 0
        """The number of accounts with a password."""
        self._names: list[str] = []
        """All names in order: a page of names must not look at each."""
        self.by_name = AccountsByName(self._rows)
        for account in accounts:
            if account.name in self._rows:
                raise ConfigError(f"account {account.name!r} stands twice: expected each name once")
            if (fault := self.conflict(account)) is not None:
                raise ConfigError(fault)
            self._add(account)
        self._names = sorted(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Accounts) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]  # it has mappings

    def conflict(self, account: Account) -> str | None:
        """Return why an account cannot be beside the others: another one has its key or its uid."""
        for what, other in (("key", self.with_key(account.key)), ("uid", self.with_uid(account.uid))):
            if other is not None and other.name != account.name:
                return f"accounts {other.name!r} and {account.name!r} have one {what}: expected two"
        return None

    def put(self, account: Account) -> None:
        """Add an account, or replace the one with its name."""
        self.remove(account.name)
        self._add(account)
        insort(self._names, account.name)

    def _add(self, account: Account) -> None:
        row = [*account]
        row[_GROUPS] = self._groups.setdefault(account.groups, account.groups)
        self._rows[account.name] = tuple(row)
        if account.key:
            self._keys[account.key] = account.name
        if account.uid is not None:
            self._uids[account.uid] = account.name
        if account.rules:
            self._with_rules.add(account.name)
        self._passwords += bool(account.password)

    def remove(self, name: str) -> None:
        """Remove an account, if there is one."""
        account = self.named(name)
        if account is not None:
            del self._rows[name]
            del self._names[bisect_left(self._names, name)]
            # Another account may have the key or the uid of the removed one by now.
            if self._keys.get(account.key) == name:
                del self._keys[account.key]
            if account.uid is not None and self._uids.get(account.uid) == name:
                del self._uids[account.uid]
            self._with_rules.discard(name)
            self._passwords -= bool(account.password)

    def clear(self) -> None:
        """Free all accounts one after the other: freeing them at once would hold up other threads."""
        for table in (self._rows, self._keys, self._uids):
            while table:
                table.popitem()
        while self._names:
            self._names.pop()
        self._passwords = 0

    def names_after(self, name: str) -> Iterator[str]:
        """Return the names behind this one, in order."""
        return islice(self._names, bisect_right(self._names, name), None)

    def have_rules_beside(self, name: str) -> bool:
        """Return whether an account other than this one has rules of its own."""
        return len(self._with_rules) > (name in self._with_rules)

    @property
    def have_passwords(self) -> bool:
        """Whether any account has a password."""
        return self._passwords > 0

    def named(self, name: str) -> Account | None:
        """Return the account of a name."""
        row = self._rows.get(name)
        return None if row is None else Account(*row)

    def with_key(self, key: str) -> Account | None:
        """Return the account that has a key."""
        name = self._keys.get(key)
        return None if name is None else self.named(name)

    def with_uid(self, uid: int | None) -> Account | None:
        """Return the account that has a uid."""
        name = None if uid is None else self._uids.get(uid)
        return None if name is None else self.named(name)

    def is_disabled(self, name: str) -> bool:
        """Return whether no user may log in by this name, by any proof."""
        account = self.named(name)
        return account is not None and account.disabled
