"""Requests that stay with a worker: those of one key go to who got the first of them, while it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.delivery.consumer import Consumer

KEYS_MAX = 10_000
"""Keys of one queue that are remembered. The one that was not used for longest is forgotten first."""


class Keys:
    """Which consumer each key belongs to."""

    def __init__(self) -> None:
        self._holders: dict[str, Consumer] = {}

    def holder(self, key: str) -> Consumer | None:
        """Whom a key belongs to."""
        return self._holders.get(key)

    def bind(self, key: str, consumer: Consumer) -> None:
        """A consumer gets a message with this key."""
        if key in self._holders:
            consumer = self._holders.pop(key)
        elif len(self._holders) >= KEYS_MAX:
            del self._holders[next(iter(self._holders))]
        self._holders[key] = consumer

    def forget(self, consumer: Consumer) -> None:
        """A consumer is gone: its keys are free."""
        for key in [key for key, holder in self._holders.items() if holder is consumer]:
            del self._holders[key]
