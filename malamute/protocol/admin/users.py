"""Users: the accounts in the file and in the store."""

from __future__ import annotations

from malamute.protocol.admin.quotas import QuotaFigure
from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Boolean, Name, Names, PasswordHash, RuleTexts, Uid, Words


class UserRow(Row):
    """An account without its password; its source is the `file` or the `store`.

    An `unreadable` account is in the store, and no login with it succeeds. An account of the file hides one
    of the store. A list of accounts has the use of each own quota.
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
    """The users who may log in: the accounts of the file and of the store."""

    topic = "users"
    page_key = "name"


class UserRemoved(Row):
    """The removed account."""

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
        # No output shows the hash.
        return f"{type(self).__name__}(name={self.name!r})"


class UserAdd(_UserChange):
    """Add an account to the store. `password` is a hash of it, as `malamute user` makes it."""

    topic = "user.add"


class UserSet(_UserChange):
    """Change an account in the store. A field that is None stays; an empty password or key removes it.

    Added and removed rules keep meanwhile changes of others.
    """

    topic = "user.set"

    added_rules: RuleTexts = ()
    removed_rules: RuleTexts = ()


class UserRemove(AdminChange[UserRemoved]):
    """Remove an account from the store."""

    topic = "user.remove"

    name: Name
