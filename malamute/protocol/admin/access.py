"""Access: what the rules allow a user to do."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, Words


class AccessExplained(Row):
    """Whether a user may do something, the rule that decided, and all rules about it.

    It is `limited` if the user may do it in part: under some subjects, or for some rows. Without any rule
    everything is allowed, and none is `in_force`.
    """

    allowed: bool
    limited: bool
    in_force: bool
    rule: str
    owner: str
    rules: list[dict[str, Any]]


class AccessQuery(AdminQuery[AccessExplained]):
    """Whether a user may do something: the action, and the thing as it stands in a rule."""

    topic = "access"

    user: Address
    action: Words
    target: Words
