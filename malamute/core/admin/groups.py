"""Groups: their rules, and what an operator changes in those of the store."""

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
    from malamute.core.admin.answered import Answered, Failed
    from malamute.core.engines import Engines
    from malamute.core.identity.access import AccessControl
    from malamute.core.identity.groups import GroupDirectory
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.session.session import Session
    from malamute.errors import MalamuteError


def groups(core: Engines, query: GroupsQuery) -> list[GroupRow]:
    """The groups, by name."""
    known = {*core.access.policy.groups, *core.groups.stored, *core.groups.unreadable}
    behind = iter(sorted(name for name in known if name > query.after_name))
    return [_row(core.access, core.groups, name) for name in first(core.effects, behind, query.limit)]


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


def add_group(core: Engines, session: Session, wanted: GroupAdd, answered: Answered, failed: Failed) -> None:
    """Add a group.

    Raises:
        InvalidValue: there is a group of this name.
        InvalidRule: a rule is none.
        TooMany: there are as many stored groups as may be.
    """
    name = wanted.name
    core.groups.check(name, core.access.policy)
    if name in core.groups.stored or name in core.groups.unreadable:
        raise InvalidValue(f"there is a group {name!r} already: change it, or remove it first")
    _put(core, name, _parsed(wanted.access_rules), answered, dry_run=wanted.dry_run)


def set_group(core: Engines, session: Session, wanted: GroupSet, answered: Answered, failed: Failed) -> None:
    """Change the rules of a group.

    Raises:
        NotFound: there is no group of this name in the store, or it cannot be read.
        InvalidValue: a rule to be taken away is not there, or as `add_group`.
        InvalidRule: a rule is none.
    """
    name = wanted.name
    core.groups.check_name(name, core.access.policy)
    if wanted.access_rules is not None:
        if name not in core.groups.unreadable:
            core.groups.known(name)
        rules = _parsed(wanted.access_rules)
    else:
        rules = [*core.groups.known(name)]
    rules = changed_rules(rules, wanted, f"the group {name!r}")
    _put(core, name, rules, answered, _row(core.access, core.groups, name), dry_run=wanted.dry_run)


def _parsed(rules: Sequence[str]) -> list[AccessRule]:
    return [*map(AccessRule.parse, rules)]


def _put(
    core: Engines,
    name: str,
    rules: Sequence[AccessRule],
    answered: Answered,
    before: GroupRow | None = None,
    *,
    dry_run: bool,
) -> None:
    core.groups.check_rules(name, rules)
    if rules:
        check_first_rule(core.access)
    else:
        check_last_rule(core.access, group=name)
    if not dry_run:
        core.groups.put(name, rules)
        core.effects.stage.when_stored(partial(_settled, core.recovery, name), awaited=False)
    answered(_row_of(name, rules), before=before)


def remove_group(
    core: Engines, session: Session, wanted: GroupRemove, answered: Answered, failed: Failed
) -> None:
    """Remove a group: its users lose what it allows. Raises `NotFound`, or `InvalidValue`."""
    name = wanted.name
    if name not in core.groups.stored and name not in core.groups.unreadable:
        core.groups.check_name(name, core.access.policy)
        raise NotFound(f"there is no group {name!r} in the store")
    check_last_rule(core.access, group=name)
    before = _stored_row(core.groups, name)
    if not wanted.dry_run:
        core.groups.remove(name)
        core.effects.stage.when_stored(partial(_settled, core.recovery, name), awaited=False)
    answered(GroupRemoved(name=name), before=before)


def _settled(recovery: Recovery, name: str, error: MalamuteError | None) -> None:
    if error is None:
        recovery.settled("group", name)
