"""Requests that stay with a worker: those of one key go to who got the first of them, while it lasts."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.delivery.consumer import Consumer

KEYS_MAX = 10_000
"""Keys of one queue that are remembered. The one that was not used for longest is forgotten first."""


class Keys:
    """Which consumer each key belongs to."""

    def __init__(self) -> None:
        # Its first entry is at hand, however many were taken out before it.
        self._holders: OrderedDict[str, Consumer] = OrderedDict()

    def holder(self, key: str) -> Consumer | None:
        """Whom a key belongs to."""
        return self._holders.get(key)

    def bind(self, key: str, consumer: Consumer) -> None:
        """A consumer gets a message with this key."""
        self._holders.setdefault(key, consumer)
        self._holders.move_to_end(key)
        if len(self._holders) > KEYS_MAX:
            self._holders.popitem(last=False)

    def forget(self, consumer: Consumer) -> None:
        """A consumer is gone: its keys are free."""
        for key in [key for key, holder in self._holders.items() if holder is consumer]:
            del self._holders[key]
