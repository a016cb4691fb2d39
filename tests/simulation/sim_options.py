"""What senders ask for with their messages: the options, and what they mean, put as plainly as possible.

`wish` makes options of numbers. `Wishes` says what a stored message is owed for them, by the time that the
broker has stamped on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from malamute.core.queue.deduplication import DEDUP_BYTES
from malamute.store.operations import StoredMessage

DELAYS_MS = (0, 10, 300, 900)
TTLS_MS = (1, 400, 2_000, 60_000)
IDENTITIES = 3
KEYS = 2
TRACKERS = 3


def wish(share: int, now: float, a: int, b: int, c: int) -> dict[str, Any]:
    """Options for a message, all but the tracker: none, or each with a chance of `share` in 100."""
    chance = Random((a << 32) | (b << 16) | c)
    likely = lambda: chance.randrange(100) < share  # noqa: E731  # four times the same question
    options: dict[str, Any] = {}
    if likely() and likely():
        options["ttl"] = chance.choice(TTLS_MS)
    if likely():
        options["priority"] = chance.randrange(10)
    if likely():
        delay = chance.choice(DELAYS_MS)
        options |= {"delay": delay} if chance.random() < 0.5 else {"at": int(now * 1e9) + delay * 1_000_000}
    if likely():
        options["id"] = f"i{chance.randrange(IDENTITIES)}"
    if likely():
        options["key"] = f"k{chance.randrange(KEYS)}"
    if chance.randrange(400) < share:
        options["immediate"] = True
    return options


def identity_bytes(queue: str, identity: str) -> int:
    """What the broker takes for an identity."""
    return DEDUP_BYTES + len(queue.encode()) + len(identity.encode())


class Wishes:
    """What a stored message is owed. Times are in seconds since the epoch, as they are counted.

    It came at `came`, when the wall clock was `ahead` of that.
    """

    __slots__ = ("came", "due", "expires", "identity", "key", "priority", "tracker")

    def __init__(self, message: StoredMessage, came: float | None = None, ahead: float = 0.0) -> None:
        asked: Mapping[str, Any] = message.properties or {}
        self.came = came = message.time_ns / 1e9 if came is None else came
        self.due = asked["at"] / 1e9 - ahead if "at" in asked else came + asked.get("delay", 0) / 1e3
        self.expires = came + asked["ttl"] / 1e3 if "ttl" in asked else float("inf")
        self.priority: int = asked.get("priority", 0)
        self.identity: str = asked.get("id", "")
        self.key: str = asked.get("key", "")
        self.tracker: str = "" if "outcome" in asked else asked.get("tracker", "")
