"""Users: the accounts, and their changes. No hash of a password leaves the broker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from malamute.access import AccessRule, Account, explain
from malamute.access.quota import USER
from malamute.core.admin.pages import first
from malamute.core.admin.quotas import quota_figures
from malamute.errors import InvalidValue, NotFound
from malamute.protocol.admin import UserAdd, UserRemove, UserRemoved, UserRow, UserSet, UsersQuery

if TYPE_CHECKING:
    from malamute.core.admin.outcome import ChangeOutcome
    from malamute.core.identity.access import AccessControl
    from malamute.core.identity.accounts import AccountDirectory
    from malamute.core.identity.quotas import QuotaTable
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.iteration.settings import ConfigurationInForce, Settings
    from malamute.core.session.session import Session
    from malamute.errors import MalamuteError
    from malamute.protocol.admin import GroupSet

FILE, STORE, UNREADABLE = "file", "store", "unreadable"
"""Where an account is."""


def users(
    effects: Effects, accounts: AccountDirectory, quotas: QuotaTable, query: UsersQuery
) -> list[UserRow]:
    """The users who may log in, by name."""
    names = first(effects, accounts.names_after(query.after_name), query.limit)
    return [_with_quotas(effects, quotas, _row(accounts, name)) for name in names]


def _with_quotas(effects: Effects, quotas: QuotaTable, row: UserRow) -> UserRow:
    figures = quota_figures(effects, quotas, (USER, row.name)) if quotas.in_force else []
    return replace(row, quotas=figures)


def _row(accounts: AccountDirectory, name: str) -> UserRow:
    account = accounts.named(name)
    if account is None:
        return _row_of(Account(name, disabled=True), UNREADABLE)
    return _row_of(account, FILE if accounts.configured.named(name) else STORE)


def _row_of(account: Account, source: str = STORE) -> UserRow:
    return UserRow(
        name=account.name,
        source=source,
        key=account.key or None,
        password=bool(account.password),
        uid=account.uid,
        groups=[*account.groups],
        access_rules=[*map(str, account.rules)],
        disabled=account.disabled,
    )


def add_user(
    configuration: ConfigurationInForce,
    access: AccessControl,
    accounts: AccountDirectory,
    wanted: UserAdd,
    outcome: ChangeOutcome,
) -> None:
    """Add a user who may log in.

    Raises:
        InvalidValue: there is an account of this name, or another one has its key or its uid.
        InvalidRule: a rule is invalid.
        TooMany: there are as many stored accounts as may be.
    """
    name = wanted.name
    accounts.check_name(name)
    if accounts.named(name) is not None or name in accounts.unreadable:
        raise InvalidValue(f"there is an account {name!r} already: change it, or remove it first")
    rules = tuple(map(AccessRule.parse, wanted.access_rules or ()))
    _put(accounts, configuration.settings, access, Account(name, rules=rules), wanted, outcome)


def set_user(
    configuration: ConfigurationInForce,
    access: AccessControl,
    accounts: AccountDirectory,
    wanted: UserSet,
    outcome: ChangeOutcome,
) -> None:
    """Change a user who may log in. None leaves a field as it is.

    Raises:
        NotFound: there is no account of this name in the store that can be read.
        InvalidValue: a rule to be taken away is not there, or as `add_user`.
        InvalidRule: a rule is invalid.
    """
    accounts.check_name(wanted.name)
    before = accounts.stored.named(wanted.name)
    if before is None:
        raise _no_account(accounts, wanted.name)
    rules = before.rules if wanted.access_rules is None else map(AccessRule.parse, wanted.access_rules)
    whole = changed_rules(rules, wanted, f"the account {wanted.name!r}")
    account = before._replace(rules=tuple(whole))
    _put(accounts, configuration.settings, access, account, wanted, outcome, _row_of(before))


def changed_rules(rules: Iterable[AccessRule], wanted: UserSet | GroupSet, owner: str) -> list[AccessRule]:
    """Return rules without those that a change takes away, and with those that it adds.

    Raises:
        InvalidValue: a rule to be taken away is not there.
        InvalidRule: a rule is invalid.
    """
    found = [*rules]
    for rule in map(AccessRule.parse, wanted.removed_rules):
        if rule not in found:
            raise InvalidValue(f"{owner} has no rule {str(rule)!r}: expected one that it has")
        found.remove(rule)
    return found + [rule for rule in map(AccessRule.parse, wanted.added_rules) if rule not in found]


def _put(
    accounts: AccountDirectory,
    settings: Settings,
    access: AccessControl,
    before: Account,
    wanted: UserAdd | UserSet,
    outcome: ChangeOutcome,
    row_before: UserRow | None = None,
) -> None:
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    fields = {**before._asdict(), "rules": tuple(map(str, before.rules)), **given}
    account = Account.of(*(fields[name] for name in Account._fields))
    accounts.check(account, settings.limits.accounts)
    if account.rules and not _begins_rules(access, outcome.session, account):
        check_first_rule(access)
    else:
        check_last_rule(access, user=account.name)
    if not wanted.dry_run:
        accounts.put(account)
    outcome.answered(_row_of(account), before=row_before)


def _begins_rules(access: AccessControl, session: Session, account: Account) -> bool:
    """Return whether the first rules may be those of an account.

    Its user asks for them, was proved by the account, and may change accounts by these rules.
    """
    asking = session.may.principal
    if access.in_force or account.disabled or asking.by is not None or not asking.proof:
        return False
    found = explain(
        access.policy, account.name, "admin", f"user/{account.name}", rules=account.rules, in_force=True
    )
    return asking.user == account.name and found.decision.allowed


def check_first_rule(access: AccessControl) -> None:
    """Raise `InvalidValue` for rules that would be the first ones of all."""
    if not access.in_force:
        raise InvalidValue(
            "there are no rules in the configuration, and with the first one all others may do nothing: "
            "begin with the rules of an administrator, by `malamute auth enable NAME`, or write access.rules "
            "there, and reload"
        )


def check_last_rule(access: AccessControl, *, group: str = "", user: str = "") -> None:
    """Raise `InvalidValue` if without those of a stored group, or user, there were no rules at all."""
    if access.in_force and not access.in_force_without(group=group, user=user):
        raise InvalidValue(
            "these are the last rules that there are, and without any everybody may do everything: "
            "write access.rules in the configuration first, and reload"
        )


def remove_user(
    effects: Effects,
    access: AccessControl,
    accounts: AccountDirectory,
    recovery: Recovery,
    wanted: UserRemove,
    outcome: ChangeOutcome,
) -> None:
    """Remove a user who may log in; the user's sessions end. Raises `NotFound`, or `InvalidValue`."""
    name = wanted.name
    before = accounts.stored.named(name)
    if before is None and name not in accounts.unreadable:
        accounts.check_name(name)
        raise _no_account(accounts, name)
    check_last_rule(access, user=name)
    if not wanted.dry_run:
        accounts.remove(name)
        effects.stage.when_stored(partial(_removed, recovery, name), awaited=False)
    outcome.answered(UserRemoved(name=name), before=_row_of(before) if before else _row(accounts, name))


def _removed(recovery: Recovery, name: str, error: MalamuteError | None) -> None:
    if error is None:
        recovery.settled("account", name)


def _no_account(accounts: AccountDirectory, name: str) -> NotFound:
    if name in accounts.unreadable:
        return NotFound(f"the account {name!r} in the store cannot be read: remove it, and add it again")
    return NotFound(f"there is no account {name!r}")
