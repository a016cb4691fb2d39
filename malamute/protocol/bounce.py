"""Bounces: which messages of a mailbox can be given back to their senders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malamute.protocol.names import RESERVED_PREFIX

BOUNCED = "bounced"
"""The outcome of a message that was given back, and the property of what came back: the mailbox it was in."""

_NOT_SENT = {
    BOUNCED: "it has bounced already",
    "outcome": "it is an outcome, which the broker has written",
    "service": "it is a reply",
    "source": "a feed has made it",
}
"""Properties of messages that nobody has sent to the mailbox where they are, and why they stay there."""


def why_not_bounced(sender: str, properties: Mapping[str, Any] | None) -> str:
    """Why a message cannot be given back to its sender; empty if it can."""
    for name, words in _NOT_SENT.items():
        if properties and name in properties:
            return words
    return "" if sender and not sender.startswith(RESERVED_PREFIX) else "its sender has no address"
