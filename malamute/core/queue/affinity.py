"""Key affinity: requests of one key go to the worker that got the first of them, while it lasts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

C = TypeVar("C")

AFFINITY_KEYS_MAX = 10_000
"""Keys of one queue that are remembered. The one that was not used for longest is forgotten first."""


class KeyAffinity(Generic[C]):
    """Which consumer each key belongs to."""

    def __init__(self) -> None:
        # Its first entry is at hand, however many were taken out before it.
        self._owners: OrderedDict[str, C] = OrderedDict()

    def owner(self, key: str) -> C | None:
        """The consumer that a key belongs to."""
        return self._owners.get(key)

    def bind(self, key: str, consumer: C) -> None:
        """A consumer gets a message with this key."""
        self._owners.setdefault(key, consumer)
        self._owners.move_to_end(key)
        if len(self._owners) > AFFINITY_KEYS_MAX:
            self._owners.popitem(last=False)

    def release(self, consumer: C) -> None:
        """A consumer is gone: its keys are free."""
        for key in [key for key, holder in self._owners.items() if holder is consumer]:
            del self._owners[key]
