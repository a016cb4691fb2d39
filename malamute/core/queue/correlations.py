"""Correlations: the messages of a sender under each of them, which it may withdraw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.queue.entry import Entry


class Correlations:
    """Which messages of a queue have which sender and correlation.

    They are looked through when somebody asks first, and known while there are messages: most queues never
    need it.
    """

    def __init__(self, entries: Mapping[int, Entry]) -> None:
        """`entries` are those of the queue, as they come and go."""
        self._entries = entries
        self.known: dict[tuple[str, int | str], set[int]] | None = None

    def of(self, sender: str, correlation: int | str) -> list[int]:
        """The sequences of a sender's messages under a correlation."""
        if self.known is None:
            self.known = {}
            self.add(self._entries.values())
        return sorted(self.known.get((sender, correlation), ()))

    def add(self, entries: Iterable[Entry]) -> None:
        """Messages came into the queue."""
        if self.known is None:
            return
        for entry in entries:
            properties = entry.properties
            # The correlation of a reply is the requester's word, not that of its sender.
            if properties and "correlation" in properties and "service" not in properties:
                key = (entry.sender, properties["correlation"])
                self.known.setdefault(key, set()).add(entry.sequence)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Messages have left the queue."""
        if self.known is None:
            return
        for entry in entries:
            key = (entry.sender, (entry.properties or {}).get("correlation", ""))
            found = self.known.get(key)
            if found is not None:
                found.discard(entry.sequence)
                if not found:
                    del self.known[key]
        if not self._entries:
            self.known = None
