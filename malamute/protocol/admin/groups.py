"""Groups: those of the configuration and those in the store, and the rules of each."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Name, RuleTexts


class GroupRow(Row):
    """A group with its rules, and where it is: in the `file` of the configuration or in the `store`.

    One that is `unreadable` is in the store, and its users are allowed nothing. One in the store that the
    configuration has too does not count.
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
    """Change the rules of a group in the store: all of them, or some that are added or taken away.

    Rules that are added or taken away leave what others have changed meanwhile as it is.
    """

    topic = "group.set"

    name: Name
    access_rules: RuleTexts | None = None
    added_rules: RuleTexts = ()
    removed_rules: RuleTexts = ()


class GroupRemoved(Row):
    """The group that was removed."""

    name: str


class GroupRemove(AdminChange[GroupRemoved]):
    """Remove a group from the store. The accounts that name it keep its name, which then means nothing."""

    topic = "group.remove"

    name: Name
