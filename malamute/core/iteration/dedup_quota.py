"""The limit in bytes of the ids by which duplicates are found.

Past the limit, the holder that has most forgets its oldest, so that no holder makes another one forget.
"""

from __future__ import annotations

from typing import Protocol

SHRINK_SHARE = 16
"""The part of all that is forgotten at a time, so that looking for the largest holder is seldom."""


class IdHolder(Protocol):
    """A holder of ids: a queue, or a user who publishes."""

    bytes: int

    def evict(self, size_bytes: int) -> None:
        """Forget the oldest ids, of so many bytes at least."""


class DedupQuota:
    """The bytes of the ids of all holders, and their limit."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        # In the order in which they came: which of two equals forgets is not left to chance.
        self._holders: dict[IdHolder, None] = {}

    def count(self, holder: IdHolder, size_bytes: int) -> None:
        """Count the bytes of ids of a holder, or give them back if negative."""
        holder.bytes += size_bytes
        self.bytes += size_bytes
        if holder.bytes:
            self._holders[holder] = None
        else:
            self._holders.pop(holder, None)

    def evict(self) -> None:
        """Let the holders that have most forget their oldest until there is room."""
        while self.bytes > self._bytes_max:
            largest = max(self._holders, key=lambda holder: holder.bytes)
            largest.evict(self.bytes - self._bytes_max + self._bytes_max // SHRINK_SHARE)
