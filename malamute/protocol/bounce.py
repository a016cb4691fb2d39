"""Bounces: the messages of a mailbox that can return to their senders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malamute.protocol.names import RESERVED_PREFIX

BOUNCED = "bounced"
"""The outcome of a bounced message, and the property of the returned one: its mailbox."""

_NOT_SENT = {
    BOUNCED: "it has bounced already",
    "outcome": "it is an outcome, which the broker has written",
    "service": "it is a reply",
    "source": "a feed has made it",
}
"""Properties of messages that no client sent to their mailbox, and why they stay there."""


def why_not_bounced(sender: str, properties: Mapping[str, Any] | None) -> str:
    """Return why a message cannot return to its sender; empty if it can."""
    for name, words in _NOT_SENT.items():
        if properties and name in properties:
            return words
    return "" if sender and not sender.startswith(RESERVED_PREFIX) else "its sender has no address"
