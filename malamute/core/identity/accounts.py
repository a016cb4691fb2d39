"""The accounts that may log in, of the configuration and of the store.

For a name, a key or a uid of the configuration's file, the file counts: the owner of the broker relies on it,
and no client can change it. A change of a stored account is seen at once, and undone if the disk refuses it.
An account that cannot be read at the start, or may be outdated, lets nobody in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, Any

from malamute.access.account import Account, Accounts
from malamute.core.iteration.stored_values import StoredValues
from malamute.errors import InvalidValue, TooMany
from malamute.store.operations import DeleteValue, Key, PutValue, Recovered, Stranded
from malamute.store.tables import ACCOUNTS

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.recovery import Recovery
    from malamute.errors import MalamuteError

DOUBTFUL = "an account is disabled: what was stored of it last may be lost; look at it, and enable it"
"""The words of the log for an account that may be outdated by damage."""


class StoredAccounts(StoredValues[str, Account]):
    """The stored accounts, and an index that follows each change of them."""

    def __init__(self, effects: Effects, index: Accounts, changed: Callable[[str], None]) -> None:
        super().__init__(effects.stage)
        self._index = index
        self._changed = changed

    def _become(self, name: str, value: Account | None) -> None:
        if self.get(name) == value:
            return
        super()._become(name, value)
        if value is None:
            self._index.remove(name)
        else:
            self._index.put(value)
        self._changed(name)


class AccountDirectory:
    """All accounts. `changed` is called with the name of a stored one that is other than before."""

    def __init__(self, effects: Effects, configured: Accounts, changed: Callable[[str], None]) -> None:
        self.configured = configured
        self.stored = Accounts()
        self.unreadable: set[str] = set()
        """Unreadable stored accounts."""
        self._effects = effects
        self._values = StoredAccounts(effects, self.stored, changed)

    def configure(self, configured: Accounts) -> bool:
        """Go by another file from now on. Returns whether it is another.

        There may be very many, so the loader of the configuration compares them.
        """
        if configured is self.configured:
            return False
        self.configured = configured
        return True

    # Who they are

    def named(self, name: str) -> Account | None:
        """The account of a name."""
        return self.configured.named(name) or self.stored.named(name)

    def with_key(self, key: str) -> Account | None:
        """The account that has a key."""
        return self.configured.with_key(key) or self._counting(self.stored.with_key(key))

    def with_uid(self, uid: int) -> Account | None:
        """The account that has a uid."""
        return self.configured.with_uid(uid) or self._counting(self.stored.with_uid(uid))

    def _counting(self, stored: Account | None) -> Account | None:
        """A stored account, unless the file has one of its name."""
        return None if stored is None or self.configured.named(stored.name) else stored

    def is_disabled(self, name: str) -> bool:
        """Whether nobody may log in by this name, however it is proved."""
        account = self.named(name)
        return name in self.unreadable if account is None else account.disabled

    def have_rules_beside(self, name: str) -> bool:
        """Whether another account than this one has rules of its own."""
        return self.stored.have_rules_beside(name)

    @property
    def have_passwords(self) -> bool:
        """Whether any of them has a password."""
        return self.configured.have_passwords or self.stored.have_passwords

    def there_are(self) -> bool:
        """Whether there is any account."""
        return bool(self.configured.by_name or self.stored.by_name)

    def groups_of(self, name: str) -> tuple[str, ...]:
        """The groups of the account of a name; none if there is no such account."""
        account = self.named(name)
        return () if account is None else account.groups

    def names_after(self, name: str) -> Iterator[str]:
        """The names of all that come behind this one, in order."""
        unreadable = sorted(other for other in self.unreadable if other > name)
        names = merge(self.configured.names_after(name), self.stored.names_after(name), unreadable)
        return (each for each, _ in groupby(names))

    # Stored accounts

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the accounts that the store kept."""
        for key, value in recovered.table(ACCOUNTS).items():
            doubtful = (ACCOUNTS, key) in recovered.doubtful
            recovery.take_up("account", str(key[0]), self._restore, key, value, doubtful)

    def _restore(self, key: Key, value: Any, doubtful: bool) -> None:
        """Restore one account.

        Raises:
            MalamuteError, TypeError, ValueError: the value is no account, and lets nobody log in.
        """
        name = str(key[0])
        self.unreadable.add(name)
        account = Account.of(*value)
        if (account.name,) != key:
            raise ValueError(f"it is the account {account.name!r}: expected {name!r}")
        if (fault := self.stored.conflict(account)) is not None:
            raise ValueError(fault)
        if doubtful:
            account = account._replace(disabled=True)
            self._effects.notice(DOUBTFUL, name=name)
        # The value is the store's, so nothing is under way that could fail.
        self._values[name] = account
        self.stored.put(account)
        self.unreadable.discard(name)

    def check(self, account: Account, accounts_max: int) -> None:
        """Raise `InvalidValue` or `TooMany` if an account cannot be stored beside the others."""
        self.check_name(account.name)
        for accounts in (self.configured, self.stored):
            if (fault := accounts.conflict(account)) is not None:
                raise InvalidValue(fault)
        if account.name not in self._values and len(self._values) >= accounts_max:
            raise TooMany(f"too many accounts: expected at most {accounts_max} in the store")

    def check_name(self, name: str) -> None:
        """Raise `InvalidValue` if the file has an account of this name."""
        if self.configured.named(name) is not None:
            raise InvalidValue(
                f"the account {name!r} is in the file of the configuration (access.accounts): "
                "change it there, with --accounts, and reload"
            )

    def put(self, account: Account) -> None:
        """Add or change a stored account, with all else that this iteration stores."""
        self._change(account.name, account)
        self._effects.stage.store(PutValue(ACCOUNTS, (account.name,), account.stored()))

    def remove(self, name: str) -> None:
        """Remove a stored account, with all else that this iteration stores."""
        self._change(name, None)
        self._effects.stage.store(DeleteValue(ACCOUNTS, (name,)))
        if name in self.unreadable:
            self.unreadable.discard(name)
            self._effects.stage.when_stored(partial(self._removed, name), awaited=False)

    def _removed(self, name: str, error: MalamuteError | None) -> None:
        if error is not None:
            self.unreadable.add(name)

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: accounts that are in it are stored once more as they are."""
        for (name,) in stranded.keys(ACCOUNTS):
            if (account := self._values.get(name)) is not None:
                self._values.rely_on_changes(name.__eq__)
                self._effects.stage.store(PutValue(ACCOUNTS, (name,), account.stored()))

    def _change(self, name: str, account: Account | None) -> None:
        # A change that is valid beside others under way depends on these.
        self._values.rely_on_changes(lambda other: True)
        self._values.put(name, account)
