"""Users: the accounts in the file and in the store."""

from __future__ import annotations

from malamute.protocol.admin.quotas import QuotaFigure
from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Boolean, Name, Names, PasswordHash, RuleTexts, Uid, Words


class UserRow(Row):
    """An account without its password, and where it is: in the `file` or in the `store`.

    One that is `unreadable` is in the store, and lets nobody in. One in the store that the file has too does
    not count. A list of accounts tells what each has of its own quota.
    """

    name: str
    source: str
    key: str | None
    password: bool
    uid: int | None
    groups: list[str]
    access_rules: list[str]
    disabled: bool
    quotas: list[QuotaFigure] = []


class UsersQuery(PagedQuery[list[UserRow]]):
    """The users who may log in: the accounts of the file, and those in the store."""

    topic = "users"
    page_key = "name"


class UserRemoved(Row):
    """The account that was removed."""

    name: str


class _UserChange(AdminChange[UserRow]):
    name: Name
    password: PasswordHash | None = None
    key: Words | None = None
    uid: Uid | None = None
    groups: Names | None = None
    access_rules: RuleTexts | None = None
    disabled: Boolean | None = None

    def __repr__(self) -> str:
        # Whatever prints it prints no hash.
        return f"{type(self).__name__}(name={self.name!r})"


class UserAdd(_UserChange):
    """Add an account to the store. `password` is a hash of it, as `malamute user` makes it."""

    topic = "user.add"


class UserSet(_UserChange):
    """Change an account in the store. What is None stays as it is; an empty password or key is none.

    Rules that are added or taken away leave what others have changed meanwhile as it is.
    """

    topic = "user.set"

    added_rules: RuleTexts = ()
    removed_rules: RuleTexts = ()


class UserRemove(AdminChange[UserRemoved]):
    """Remove an account from the store."""

    topic = "user.remove"

    name: Name
