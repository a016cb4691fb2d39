"""Correlations and ids: the messages under each of them, which a sender may withdraw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.queue.entry import Entries, Entry


class MessageIds:
    """The messages of a queue by their ids, for as long as they are there.

    Deduplication forgets an id when its window is over; a message may be delayed for longer.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, ...]] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Messages came into the queue."""
        for entry in entries:
            if entry.properties and (identity := entry.properties.get("id")) is not None:
                self.known[identity] = (*self.known.get(identity, ()), entry.sequence)

    def of(self, identity: str) -> tuple[int, ...]:
        """The sequences of the messages under an id."""
        return self.known.get(identity, ())

    def remove(self, entries: Iterable[Entry]) -> None:
        """Messages have left the queue."""
        for entry in entries:
            identity: str = (entry.properties or {}).get("id", "")
            if found := self.known.get(identity):
                if left := tuple(sequence for sequence in found if sequence != entry.sequence):
                    self.known[identity] = left
                else:
                    del self.known[identity]


class Correlations:
    """The messages of a queue by sender and correlation.

    The messages are searched at the first question, some at a time, and known while there are any: most
    queues never need it.
    """

    def __init__(self, entries: Entries) -> None:
        """`entries` are those of the queue, as they come and go."""
        self._entries = entries
        self.known: dict[tuple[str, int | str], set[int]] | None = None
        self._place = 0
        """Where to go on looking, until all of them are known."""
        self._is_whole = False

    def look(self, count: int) -> int:
        """Look at so many more messages. Returns how many these were; 0 once all are known."""
        if self.known is None:
            self.known, self._place, self._is_whole = {}, 0, False
        run = [] if self._is_whole else self._entries.run_from(self._place, count)
        self.add(run)
        if run:
            self._place = run[-1].sequence + 1
        self._is_whole = not run
        return len(run)

    def of(self, sender: str, correlation: int | str) -> list[int]:
        """The sequences of a sender's messages under a correlation, as far as they are known."""
        return sorted((self.known or {}).get((sender, correlation), ()))

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
