"""Access: the rights of a user by the rules."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, Words


class AccessExplained(Row):
    """Whether a user may do something, the rule that decided, and all rules about it.

    The action is `limited` if it is allowed for some subjects or rows. Without any rule everything is
    allowed, and no rule is `in_force`.
    """

    allowed: bool
    limited: bool
    in_force: bool
    rule: str
    owner: str
    rules: list[dict[str, Any]]


class AccessQuery(AdminQuery[AccessExplained]):
    """Whether a user may do something: the action, and the resource as in a rule."""

    topic = "access"

    user: Address
    action: Words
    target: Words
