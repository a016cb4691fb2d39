"""Groups: their rules, and changes of the stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from malamute.access import AccessRule
from malamute.core.admin.pages import first
from malamute.core.admin.users import (
    FILE,
    STORE,
    UNREADABLE,
    changed_rules,
    check_first_rule,
    check_last_rule,
)
from malamute.errors import InvalidValue, NotFound
from malamute.protocol.admin import GroupAdd, GroupRemove, GroupRemoved, GroupRow, GroupSet, GroupsQuery

if TYPE_CHECKING:
    from malamute.core.admin.outcome import ChangeOutcome
    from malamute.core.identity.access import AccessControl
    from malamute.core.identity.groups import GroupDirectory
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.recovery import Recovery
    from malamute.errors import MalamuteError


def groups(
    effects: Effects, access: AccessControl, groups: GroupDirectory, query: GroupsQuery
) -> list[GroupRow]:
    """The groups, by name."""
    known = {*access.policy.groups, *groups.stored, *groups.unreadable}
    behind = iter(sorted(name for name in known if name > query.after_name))
    return [_row(access, groups, name) for name in first(effects, behind, query.limit)]


def _row(access: AccessControl, groups: GroupDirectory, name: str) -> GroupRow:
    configured = access.policy.groups
    if name in configured:
        return _row_of(name, configured[name], FILE)
    return _stored_row(groups, name)


def _stored_row(groups: GroupDirectory, name: str) -> GroupRow:
    unreadable = name in groups.unreadable
    return _row_of(name, groups.stored.get(name, ()), UNREADABLE if unreadable else STORE)


def _row_of(name: str, rules: Sequence[AccessRule], source: str = STORE) -> GroupRow:
    return GroupRow(name=name, source=source, access_rules=[*map(str, rules)])


def add_group(
    effects: Effects,
    access: AccessControl,
    groups: GroupDirectory,
    recovery: Recovery,
    wanted: GroupAdd,
    outcome: ChangeOutcome,
) -> None:
    """Add a group.

    Raises:
        InvalidValue: there is a group of this name.
        InvalidRule: a rule is none.
        TooMany: there are as many stored groups as may be.
    """
    name = wanted.name
    groups.check(name, access.policy)
    if name in groups.stored or name in groups.unreadable:
        raise InvalidValue(f"there is a group {name!r} already: change it, or remove it first")
    rules = _parsed(wanted.access_rules)
    _put(effects, access, groups, recovery, name, rules, outcome, dry_run=wanted.dry_run)


def set_group(
    effects: Effects,
    access: AccessControl,
    groups: GroupDirectory,
    recovery: Recovery,
    wanted: GroupSet,
    outcome: ChangeOutcome,
) -> None:
    """Change the rules of a group.

    Raises:
        NotFound: there is no group of this name in the store, or it cannot be read.
        InvalidValue: a rule to be taken away is not there, or as `add_group`.
        InvalidRule: a rule is none.
    """
    name = wanted.name
    groups.check_name(name, access.policy)
    if wanted.access_rules is not None:
        if name not in groups.unreadable:
            groups.known(name)
        rules = _parsed(wanted.access_rules)
    else:
        rules = [*groups.known(name)]
    rules = changed_rules(rules, wanted, f"the group {name!r}")
    before = _row(access, groups, name)
    _put(effects, access, groups, recovery, name, rules, outcome, before, dry_run=wanted.dry_run)


def _parsed(rules: Sequence[str]) -> list[AccessRule]:
    return [*map(AccessRule.parse, rules)]


def _put(
    effects: Effects,
    access: AccessControl,
    groups: GroupDirectory,
    recovery: Recovery,
    name: str,
    rules: Sequence[AccessRule],
    outcome: ChangeOutcome,
    before: GroupRow | None = None,
    *,
    dry_run: bool,
) -> None:
    groups.check_rules(name, rules)
    if rules:
        check_first_rule(access)
    else:
        check_last_rule(access, group=name)
    if not dry_run:
        groups.put(name, rules)
        effects.stage.when_stored(partial(_settled, recovery, name), awaited=False)
    outcome.answered(_row_of(name, rules), before=before)


def remove_group(
    effects: Effects,
    access: AccessControl,
    groups: GroupDirectory,
    recovery: Recovery,
    wanted: GroupRemove,
    outcome: ChangeOutcome,
) -> None:
    """Remove a group: its users lose its rights. Raises `NotFound`, or `InvalidValue`."""
    name = wanted.name
    if name not in groups.stored and name not in groups.unreadable:
        groups.check_name(name, access.policy)
        raise NotFound(f"there is no group {name!r} in the store")
    check_last_rule(access, group=name)
    before = _stored_row(groups, name)
    if not wanted.dry_run:
        groups.remove(name)
        effects.stage.when_stored(partial(_settled, recovery, name), awaited=False)
    outcome.answered(GroupRemoved(name=name), before=before)


def _settled(recovery: Recovery, name: str, error: MalamuteError | None) -> None:
    if error is None:
        recovery.settled("group", name)
