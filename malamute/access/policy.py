"""All rules with the users and groups that have them, and their grants for one user.

Without any rule everything is allowed. With at least one, an action needs a rule that allows it. A rule is
one for everybody, of a group or of a user; a user has all of them that concern the user.

A rule with a placeholder is resolved for each user. A user without a named claim gets nothing by a rule that
allows; a rule that denies applies to such a user without that part, so a missing claim opens nothing.

Names that begin with `$` are the broker's own. A rule is about them if its name begins so; a wildcard is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from malamute.access.quota import NO_QUOTAS, Owner, Quotas
from malamute.access.rule import AccessRule, resolve_where
from malamute.access.scope import ALL_SUBJECTS, Decision, Grant, Scope, Term
from malamute.access.template import PatternTable, Values, marked, resolve
from malamute.protocol.names import RESERVED_PREFIX

EVERYBODY = "everybody"

Claims = tuple[tuple[str, str], ...]


class User(NamedTuple):
    """The groups, rules and claims of a user in the configuration."""

    groups: tuple[str, ...] = ()
    rules: tuple[AccessRule, ...] = ()
    claims: Claims = ()


_UNKNOWN = User()

NO_GROUPS: Mapping[str, tuple[AccessRule, ...]] = {}


class Policy:
    """Rules for everybody, for groups and for users. A policy never changes."""

    def __init__(
        self,
        rules: Iterable[AccessRule] = (),
        groups: Mapping[str, tuple[AccessRule, ...]] | None = None,
        users: Mapping[str, User] | None = None,
        keys: frozenset[str] = frozenset(),
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        """Make a policy; `keys` are the keys that sign tokens."""
        self.rules = tuple(rules)
        self.groups = dict(groups or {})
        self.users = dict(users or {})
        self.keys = keys
        self.quotas = quotas
        self.in_force = bool(self.rules) or any(
            [*self.groups.values(), *(u.rules for u in self.users.values())]
        )
        """Whether there is any rule: without one, everything is allowed."""
        self._tables: dict[str, tuple[tuple[AccessRule, ...], RuleTable]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return all(getattr(self, part) == getattr(other, part) for part in _PARTS)

    __hash__ = None  # type: ignore[assignment]  # it has mappings

    def grants(
        self,
        user: str,
        groups: Iterable[str] = (),
        claims: Claims = (),
        rules: Iterable[AccessRule] = (),
        stored: Mapping[str, tuple[AccessRule, ...]] = NO_GROUPS,
    ) -> Grants:
        """Return the grants of a user of this name, with further groups and rules of the user.

        The rules of groups that this has none of are among the `stored` ones.
        """
        known = self.users.get(user, _UNKNOWN)
        values = {f"claim.{name}": value for name, value in (*known.claims, *claims)}
        if user:
            values["user"] = user
        own = [Grant(f"user {user}", rule) for rule in (*known.rules, *rules)]
        shared = [(EVERYBODY, self.rules)]
        for group in sorted({*known.groups, *groups}):
            if rules := self.groups[group] if group in self.groups else stored.get(group, ()):
                shared.append((f"group {group}", rules))
        tables = []
        for owner, rules in shared:
            own += [Grant(owner, rule) for rule in rules if rule.is_template]
            tables.append(self._table_of(owner, rules))
        return Grants([*tables, RuleTable(own, values)])

    def groups_of(self, user: str) -> tuple[str, ...]:
        """Return the groups of a user of this name in this policy."""
        return self.users.get(user, _UNKNOWN).groups

    def _table_of(self, owner: str, rules: tuple[AccessRule, ...]) -> RuleTable:
        """Return the rules without placeholders of everybody or of a group; made anew after a change."""
        known = self._tables.get(owner)
        if known is None or known[0] is not rules:
            plain = [Grant(owner, rule) for rule in rules if not rule.is_template]
            if len(self._tables) >= len(self.groups) + _TABLES_MAX:
                # Of a group that was removed nothing else would let go.
                del self._tables[next(iter(self._tables))]
            known = self._tables[owner] = rules, RuleTable(plain, {})
        return known[1]

    def quota_owners(self, user: str, groups: Iterable[str] = ()) -> list[Owner]:
        """Return the owners of the quotas of a user of this name, with other groups of that user."""
        known = self.users.get(user, _UNKNOWN)
        return [*self.quotas.owners(user, {*known.groups, *groups})]


_TABLES_MAX = 1_001
"""Tables beside those of the groups of a policy: of everybody, and of stored groups."""
_PARTS = ("rules", "groups", "users", "keys", "quotas")


class Grants:
    """The rights of one user."""

    def __init__(self, tables: list[RuleTable]) -> None:
        self._tables = [table for table in tables if table.by_thing]

    def scope(self, action: str, kind: str, name: str) -> Scope:
        """Return the scope of an action of the user on one resource."""
        thing = (action, kind, name.startswith(RESERVED_PREFIX))
        text = marked(name)
        found = [table.by_thing[thing] for table in self._tables if thing in table.by_thing]
        return Scope(term for names in found for term in names.fitting(text))

    def decide(self, action: str, kind: str, name: str, subject: str | None = None) -> Decision:
        """Return the decision about an action of the user."""
        return self.scope(action, kind, name).decide(subject)


class RuleTable:
    """Rules by action and resource, whose names are patterns."""

    __slots__ = ("by_thing",)

    def __init__(self, grants: Iterable[Grant], values: Values) -> None:
        self.by_thing: dict[tuple[str, str, bool], PatternTable[Term]] = {}
        for grant in grants:
            for name, reserved, term in _resolved(grant, values):
                for action, kind in grant.rule.pairs():
                    table = self.by_thing.setdefault((action, kind, reserved), PatternTable())
                    table.add(name, term)


def _resolved(grant: Grant, values: Values) -> Iterator[tuple[str, bool, Term]]:
    """Names of resources in a rule, whether they are reserved, and its term for them."""
    rule = grant.rule
    name, subject = resolve(rule.name, values), resolve(rule.subject, values)
    where = resolve_where(rule.where, values)
    if rule.deny:
        term = Term(grant, subject or "", where or "")
        if name is None:
            yield from ((ALL_SUBJECTS, reserved, term) for reserved in (False, True))
            return
    elif name is None or subject is None or where is None:
        return
    else:
        term = Term(grant, subject, where)
    yield name, name.startswith(RESERVED_PREFIX), term
