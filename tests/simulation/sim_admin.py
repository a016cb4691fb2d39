"""What operators ask of the broker: every topic of QUERY, with arguments that mean something here, or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malamute.core.events import EVENTS
from malamute.core.inspection import TOPICS
from malamute.protocol.arguments import MESSAGE_STATES

VALUES: Mapping[str, tuple[Any, ...]] = {
    "name": ("kept", "more", "live", EVENTS, "print", "scan", "ann", "bob", "nobody"),
    "stream": ("kept", "more", "live", EVENTS, "nothing"),
    "kind": ("service", "mailbox"),
    "id": ("ann", "cat", "nobody"),
    "subject": ("a.x", "b.y", ""),
    "headers": ({}, {"n": 1}, {"n": None}),
    "sender": ("", "ann"),
    "where": ("", "n = 1", "subject = 'a.x'"),
    "state": ("", *MESSAGE_STATES),
    "after": (0, 1, 3),
    "after_name": ("", "kept", "m"),
    "limit": (1, 2, 1000),
    "dead": (True, False),
    "details": (True, False),
}
"""Values of each argument, by its name."""


def question(a: int, b: int, c: int) -> tuple[str, dict[str, Any]]:
    """A topic with the arguments that it needs, and some of those that it may have."""
    topic, (_, takes) = [*TOPICS.items()][a % len(TOPICS)]
    wanted = [*takes.required, *(name for place, name in enumerate(takes.optional) if b >> place & 1)]
    bits = a // len(TOPICS) + c
    return topic, {
        name: VALUES[name][(bits >> place) % len(VALUES[name])] for place, name in enumerate(wanted)
    }
