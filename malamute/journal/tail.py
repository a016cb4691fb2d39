"""The newest write sets of a store, and the records of its write-ahead log, in memory by their numbers.

A standby that was away for a moment gets what it lacks from here. Both `add` and `append` are called by the
writing thread of the store (`DiskStore.open`), `since` by any thread. All that leaves ends with a write set:
the records before it are outdated by it, or came before it.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from typing import NamedTuple, TypeAlias

from malamute.journal.write_set import HEADER_SIZE, WriteSet

BYTES_MAX = 64 * 1024 * 1024
"""The bytes of values and records that the tail keeps."""

HOLD_SECONDS = 2.0
"""Seconds after the last request of a catch-up for which it holds the tail."""

PIECES_MAX = 256 * 1024
"""The values and records that the tail keeps; each costs some memory beside its bytes."""


class LogRecord(NamedTuple):
    """The bytes of a record of the write-ahead log, and its log sequence number."""

    lsn: int
    data: bytes


Item: TypeAlias = WriteSet | LogRecord


class Tail:
    """The newest write sets and records of one life of a store."""

    def __init__(self, *, bytes_max: int = BYTES_MAX, pieces_max: int = PIECES_MAX) -> None:
        self._bytes_max, self._pieces_max = bytes_max, pieces_max
        self._items: list[Item] = []
        self._begin = 0  # the items before this place have left
        self._bytes = self._pieces = 0
        self._floor: int | None = None
        self._changed = threading.Condition()
        self._held_until = 0.0

    def add(self, write_set: WriteSet) -> None:
        """Add the write set of the newest transaction."""
        with self._changed:
            if self._floor is None:
                self._floor = write_set.after
            self._add(write_set)
            while self._is_full():
                self._drop()
            self._changed.notify_all()

    def append(self, record: bytes, lsn: int) -> None:
        """Add the newest record of the write-ahead log."""
        with self._changed:
            self._add(LogRecord(lsn, record))

    def since(self, lsn: int) -> list[Item] | None:
        """Return all that follows a transaction, in order; None if that is unknown, or has left.

        A standby may have records of it already.
        """
        with self._changed:
            if self._floor is None or lsn < self._floor:
                return None
            place = self._begin
            if lsn > self._floor:
                place = self._behind(lsn)
            return None if place < 0 else self._items[place:]

    def hold(self) -> None:
        """Have the writing thread wait in `wait` rather than lose what is in the tail.

        A catch-up that would never end by itself holds the tail with each of its requests, until `release`.
        """
        self._held_until = time.monotonic() + HOLD_SECONDS

    def release(self) -> None:
        """Let the writing thread go on."""
        with self._changed:
            self._held_until = 0.0
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait before a write as long as the tail is held and half full; return whether there is room."""
        seconds = min(seconds, self._held_until - time.monotonic())
        if seconds < 0 or self._has_room():
            return True
        with self._changed:
            return self._changed.wait_for(self._has_room, seconds)

    def _has_room(self) -> bool:
        return time.monotonic() > self._held_until or 2 * self._bytes <= self._bytes_max

    def _add(self, item: Item) -> None:
        size, pieces = _size_of(item)
        self._items.append(item)
        self._bytes += size
        self._pieces += pieces

    def _is_full(self) -> bool:
        return self._bytes > self._bytes_max or self._pieces > self._pieces_max

    def _drop(self) -> None:
        """Let the oldest items leave, up to a write set."""
        is_write_set = False
        while not is_write_set:
            item = self._items[self._begin]
            size, pieces = _size_of(item)
            self._begin += 1
            self._bytes -= size
            self._pieces -= pieces
            if is_write_set := isinstance(item, WriteSet):
                self._floor = item.lsn
        if 2 * self._begin > len(self._items):
            del self._items[: self._begin]
            self._begin = 0

    def _behind(self, lsn: int) -> int:
        """Return the place behind the write set of a transaction; -1 without one."""
        # The records before a write set have its number at most, and those behind it greater ones.
        place = bisect_right(self._items, lsn, self._begin, key=lambda item: item.lsn)
        before = self._items[place - 1] if place > self._begin else None
        return place if isinstance(before, WriteSet) and before.lsn == lsn else -1


def _size_of(item: Item) -> tuple[int, int]:
    if isinstance(item, LogRecord):
        return len(item.data), 1
    changes = item.changes
    return HEADER_SIZE + sum(map(len, changes)) + sum(map(len, filter(None, changes.values()))), len(changes)
