"""Access: rules in one language, and the rights that they grant to a user.

Pure, and without a broker: the configuration reads rules, the core decides by them, and the command line
explains them.

    rule        one rule: text in, a value out, and back
    template    names and subjects of rules: patterns with `{user}` and `{claim.…}` in them
    policy      all rules, users and groups, and their grants for one user
    explanation the deciding rule
    scope       the scope of an action on one resource: subjects and rows
    account     the users who may log in, with the rights of each
    quota       the limits of users and groups
    token       the user of a client by a bearer token
"""

from malamute.access.account import Account, AccountBook, Accounts
from malamute.access.explanation import DecisionReport, explain
from malamute.access.policy import EVERYBODY, Grants, Policy, User
from malamute.access.quota import Quota, Quotas
from malamute.access.rule import ACTIONS, KINDS, AccessRule
from malamute.access.scope import CommonScope, Decision, Grant, Scope

__all__ = [
    "ACTIONS",
    "EVERYBODY",
    "KINDS",
    "AccessRule",
    "Account",
    "AccountBook",
    "Accounts",
    "CommonScope",
    "Decision",
    "DecisionReport",
    "Grant",
    "Grants",
    "Policy",
    "Quota",
    "Quotas",
    "Scope",
    "User",
    "explain",
]
