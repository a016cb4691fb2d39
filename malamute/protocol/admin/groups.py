"""Groups of the configuration and of the store, with the rules of each."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Name, RuleTexts


class GroupRow(Row):
    """A group with its rules; its source is the `file` of the configuration or the `store`.

    An `unreadable` group is in the store, and its users have no right. A group of the configuration hides one
    of the store.
    """

    name: str
    source: str
    access_rules: list[str]


class GroupsQuery(PagedQuery[list[GroupRow]]):
    """The groups of the configuration, and those in the store."""

    topic = "groups"
    page_key = "name"


class GroupAdd(AdminChange[GroupRow]):
    """Add a group to the store."""

    topic = "group.add"

    name: Name
    access_rules: RuleTexts = ()


class GroupSet(AdminChange[GroupRow]):
    """Change the rules of a group in the store: all of them, or some that are added or removed.

    Added and removed rules keep meanwhile changes of others.
    """

    topic = "group.set"

    name: Name
    access_rules: RuleTexts | None = None
    added_rules: RuleTexts = ()
    removed_rules: RuleTexts = ()


class GroupRemoved(Row):
    """The removed group."""

    name: str


class GroupRemove(AdminChange[GroupRemoved]):
    """Remove a group from the store. Accounts keep its name, which then has no meaning."""

    topic = "group.remove"

    name: Name
