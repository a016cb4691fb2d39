"""One message of a queue, as the book has it."""

from __future__ import annotations

from sim_options import Wishes
from sim_origin import Key

from malamute.store.operations import StoredMessage

Holder = tuple[bytes, int]
"""A peer and its source."""

MOMENT = 1e-5
"""Seconds that times may differ by where they are computed in another way."""


class Mail:
    """A queued message: what it is, who has it, and how it stands with the disk."""

    __slots__ = (
        "attempts",
        "body",
        "damaged",
        "dead_lettered",
        "deadline",
        "delivered",
        "holder",
        "kept_until",
        "key",
        "leaving",
        "message",
        "not_before",
        "rejected",
        "replied",
        "spared",
        "stored",
        "stranded",
        "tied",
        "timeout",
        "wishes",
    )

    def __init__(self, key: Key, body: bytes, message: StoredMessage, wishes: Wishes, *, tied: bool) -> None:
        self.key = key
        self.body = body
        self.message = message._replace(record=bytes(message.record))
        self.wishes = wishes
        self.stored = False
        self.tied = tied
        """Whether it is nowhere if it cannot be stored."""
        self.attempts = 0
        self.delivered = False
        """Whether it was ever sent to anybody."""
        self.holder: Holder | None = None
        self.timeout = self.deadline = 0.0
        """How long its holder may have it, and until when."""
        self.not_before = 0.0
        self.kept_until = 0.0
        """When it is redelivered, as far as that is durable."""
        self.replied = ""
        self.rejected: str | None = None
        """Why somebody has said that it is dead. It leaves when its record was brought."""
        self.dead_lettered = False
        """Whether the broker has taken that word: it is with nobody, and nobody gets it."""
        self.spared = False
        """Whether it was to leave, and the disk would not have it."""
        self.damaged = False
        """Whether the disk cannot read it any more."""
        self.stranded = False
        """Whether that happened while this broker runs: it may have it in memory."""
        self.leaving = ""
        """How it has ended, once the broker has told the disk to remove it."""

    def stay(self) -> None:
        """It does not leave after all, and whatever was said of it is void."""
        self.holder = None
        self.leaving = self.replied = ""
        self.rejected = None
        self.dead_lettered = False

    def hold(self, holder: Holder, now: float, timeout: float) -> None:
        """It is delivered."""
        self.holder = holder
        self.delivered = True
        self.timeout = timeout
        self.deadline = now + timeout if timeout else float("inf")
