"""The log of a disk, and what each file of a store may be after the power has failed at any moment of it.

Theory. A disk keeps what was synced. Of what was written since then it has any part, in any order, by sectors
of 512 bytes: none of it, all of it, or some; and of a sector that was written twice either version. A write
through a descriptor with O_DSYNC is durable when it returns, but that says nothing of others. So the states
of the file at a moment are the durable image with any subset of the pending sectors on it, and to sample them
is to draw subsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

WRITE, SYNC, LENGTH, MARK, SYNCED, NAMED = range(1, 7)
"""The entries of a log, as disk_recorder.c writes them."""

SECTOR = 512
_HEAD = struct.Struct("=IIq")


class Entry(NamedTuple):
    """One entry of a log."""

    kind: int
    offset: int
    data: bytes
    file: int = 0
    """0 is the data file, 1 the write-ahead log."""


class Write(NamedTuple):
    """A sector that may or may not be on the disk."""

    offset: int
    data: bytes


def read_log(path: Path) -> list[Entry]:
    """All entries. One that the end of the broker has cut off is none."""
    raw = path.read_bytes()
    entries, place = [], 0
    while place + _HEAD.size <= len(raw):
        kind, size, offset = _HEAD.unpack_from(raw, place)
        place += _HEAD.size
        if place + size > len(raw):
            break
        entries.append(Entry(kind & 0xFF, offset, raw[place : place + size], kind >> 8))
        place += size
    return entries


class Disk:
    """One file as the log has it so far."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.length = 0
        """Of the file, as far as that is durable."""
        self.pending: list[Write] = []
        self.pending_length = 0
        self.is_there = False
        """Whether the file has its name."""
        self._last: list[Write] = []

    def take(self, entry: Entry) -> None:
        """Go on by one entry."""
        if entry.kind == WRITE:
            self._last = [*_sectors(entry)]
            self.pending += self._last
            self.pending_length = max(self.pending_length, entry.offset + len(entry.data))
        elif entry.kind == LENGTH:
            self.pending_length = max(self.pending_length, entry.offset)
        elif entry.kind == SYNC:
            self._keep(self.pending)
            self.pending = []
            self.length = self.pending_length
        elif entry.kind == SYNCED:
            self._keep(self._last)
            written = {write.offset for write in self._last}
            self.pending = [write for write in self.pending if write.offset not in written]
            self.length = max(self.length, max(w.offset + len(w.data) for w in self._last))
        elif entry.kind == NAMED:
            self.is_there = True

    def _keep(self, writes: Sequence[Write]) -> None:
        for offset, data in writes:
            if len(self.durable) < offset + len(data):
                self.durable.extend(bytes(offset + len(data) - len(self.durable)))
            self.durable[offset : offset + len(data)] = data


def _sectors(entry: Entry) -> Iterator[Write]:
    at, data = entry.offset, entry.data
    while data:
        size = SECTOR - at % SECTOR
        yield Write(at, data[:size])
        at, data = at + size, data[size:]


SHARES = (0.02, 0.2, 0.5, 0.8, 0.98)
"""How much of what is pending may have reached the disk."""


def sample(pending: Sequence[Write], count: int, chance: Random) -> Iterator[Sequence[Write]]:
    """So many subsets of what is pending: none and all of it, cut off anywhere, single sectors, at random."""
    size = len(pending)
    if not size:
        yield ()
        return
    wholes: list[Sequence[Write]] = [(), pending]
    yield from wholes[:count]
    for number in range(2, count):
        where = chance.randrange(size)
        if number % 4 == 0:
            yield pending[: where + 1]
        elif number % 4 == 1:
            few = {chance.randrange(size) for _ in range(1 + number % 3)}
            only = bool(chance.getrandbits(1))
            yield [write for place, write in enumerate(pending) if (place in few) == only]
        else:
            share = chance.choice(SHARES)
            yield [write for write in pending if chance.random() < share]
