"""The rule that decides about an action of a user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from malamute.access.policy import NO_GROUPS, Claims, Policy
from malamute.access.rule import IMPERSONATE, AccessRule, Thing
from malamute.access.scope import Decision, Grant


class DecisionReport(NamedTuple):
    """A decision, and all rules about the resource. `in_force` is false without any rule at all."""

    decision: Decision
    in_force: bool
    about: tuple[Grant, ...] = ()

    def as_map(self) -> dict[str, Any]:
        """Return the report as plain values."""
        allowed, limited, by = self.decision
        return {
            "allowed": allowed,
            "limited": limited,
            "in_force": self.in_force,
            "rule": str(by.rule) if by else "",
            "owner": by.owner if by else "",
            "rules": [
                {"rule": str(grant.rule), "owner": grant.owner, "decides": grant == by}
                for grant in self.about
            ],
        }


def explain(
    policy: Policy,
    user: str,
    action: str,
    target: str,
    groups: Iterable[str] = (),
    claims: Claims = (),
    rules: Iterable[AccessRule] = (),
    stored: Mapping[str, tuple[AccessRule, ...]] = NO_GROUPS,
    *,
    in_force: bool = False,
) -> DecisionReport:
    """Explain whether a user may do something to `KIND/NAME[/SUBJECT]`.

    `groups`, `claims` and `rules` are those of the user beside the policy, and `stored` the rules of groups
    outside of the policy, which may be `in_force` without any rule in it.

    Raises:
        InvalidRule: the action or the target does not exist.
    """
    kind, name, subject = Thing.parse(action, target)
    if not (policy.in_force or in_force):
        # To act as others is the one thing that takes a rule in any case.
        return DecisionReport(Decision(action != IMPERSONATE), in_force=False)
    scope = policy.grants(user, groups, claims, rules, stored).scope(action, kind, name)
    about = tuple(term.by for term in (*scope.deny, *scope.allow))
    return DecisionReport(scope.decide(subject), in_force=True, about=about)
