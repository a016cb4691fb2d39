"""Users: the accounts in the file and in the store."""

from __future__ import annotations

from collections.abc import Sequence

from malamute.protocol.admin.quotas import QuotaFigure
from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row, argument
from malamute.protocol.arguments import NAMES, PASSWORD, RULES, UID
from malamute.protocol.messages import BOOLEAN, NAME, WORDS


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
    name: str = argument(NAME)
    password: str | None = argument(PASSWORD, default=None)
    key: str | None = argument(WORDS, default=None)
    uid: int | None = argument(UID, default=None)
    groups: Sequence[str] | None = argument(NAMES, default=None)
    access_rules: Sequence[str] | None = argument(RULES, default=None)
    disabled: bool | None = argument(BOOLEAN, default=None)

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

    added_rules: Sequence[str] = argument(RULES, default=())
    removed_rules: Sequence[str] = argument(RULES, default=())


class UserRemove(AdminChange[UserRemoved]):
    """Remove an account from the store."""

    topic = "user.remove"

    name: str = argument(NAME)
