"""The record of a pair beside the meta record: the pair, the directory and the history of its values.

A directory in a pair is a *replica*, with 128 random bits of its own. Its history is a list of timelines,
each with the log sequence number at which it began: a takeover begins one. A number and the timeline that
it belongs to name the values of a store. A replica that is not *whole* is half a catch-up: its values are of
several moments, so it is neither started nor repaired.

The record is of one directory: it is in no write set, no backup and no comparison. Who writes into the
directory alone takes it out (`DiskWriter`, `repair`). The log of such a writer, taken over at its start, has
the same operations as elsewhere, perhaps with other values: a timeline `ALONE` begins there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import lmdb

from malamute.errors import StoreCorrupt, StoreError
from malamute.journal.format import META, crc32, key
from malamute.journal.lmdb_pages.cursor import PageCursor

PLACE = key(META, 0, 2)
"""The key of the record."""

TIMELINES_MAX = 200
"""Timelines that a record remembers; the oldest are forgotten first. An older history is compared."""

ALONE = 0
"""The number of a timeline that a program began without the pair."""

_RECORD = struct.Struct(">B?2x16s16sI")
_TIMELINE = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_VERSION = 1

Timelines: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of timelines in their order, each with the log sequence number of its first transaction."""


class PairRecord(NamedTuple):
    """The record of a replica; `pair` and `replica` are 16 random bytes each."""

    pair: bytes
    replica: bytes
    timelines: Timelines = ()
    whole: bool = False

    def begun(self, timeline: int, lsn: int) -> PairRecord:
        """Return the record once a timeline has begun with the transaction `lsn`."""
        if self.timelines and self.timelines[-1][0] == timeline:
            return self
        return self._replace(timelines=(*self.timelines, (timeline, lsn))[-TIMELINES_MAX:])


def parting(ours: Timelines, theirs: Timelines) -> int | None:
    """Return the number of the first transaction that two histories do not share; None if they are equal.

    Histories whose common beginning is forgotten share nothing.
    """
    common = next((entry for entry in ours if entry in theirs), None)
    if common is None:
        return 0
    ours, theirs = ours[ours.index(common) :], theirs[theirs.index(common) :]
    place = 0
    while place < min(len(ours), len(theirs)) and ours[place] == theirs[place]:
        place += 1
    return min((rest[place][1] for rest in (ours, theirs) if place < len(rest)), default=None)


def encode(record: PairRecord) -> bytes:
    """Return the bytes of a record."""
    pair, replica, timelines, whole = record
    body = _RECORD.pack(_VERSION, whole, pair, replica, len(timelines))
    body += b"".join(_TIMELINE.pack(*timeline) for timeline in timelines)
    return body + _CRC.pack(crc32(body))


def decode(data: bytes) -> PairRecord:
    """Return the record in these bytes. Raises: StoreCorrupt, also for a record of a later version."""
    body = data[: -_CRC.size]
    if len(body) < _RECORD.size or _CRC.unpack(data[-_CRC.size :])[0] != crc32(body):
        raise _damaged("it does not check")
    version, whole, pair, replica, count = _RECORD.unpack_from(body)
    if version != _VERSION:
        raise _damaged(f"its version is {version}, expected {_VERSION}")
    if len(body) != _RECORD.size + count * _TIMELINE.size:
        raise _damaged(f"{len(body)} bytes do not have {count} timelines")
    timelines = tuple((number, lsn) for number, lsn in _TIMELINE.iter_unpack(body[_RECORD.size :]))
    return PairRecord(pair, replica, timelines, whole)


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the record of the pair is damaged: {reason}; expected one of `malamute pair create` or `join`: "
        "`malamute journal repair` takes it out"
    )


def read(transaction: lmdb.Transaction | PageCursor) -> PairRecord | None:
    """Return the record of a directory; None for one in no pair. Raises: StoreCorrupt."""
    value = transaction.get(PLACE)
    return None if value is None else decode(bytes(value))


def put(transaction: lmdb.Transaction, record: PairRecord) -> None:
    """Store the record of a directory."""
    transaction.put(PLACE, encode(record))


def remove(transaction: lmdb.Transaction) -> None:
    """Take the record out of a directory: its values are no longer those of the pair."""
    transaction.delete(PLACE)


def refuse_half(record: PairRecord | None) -> None:
    """Raise StoreError for a directory that is not whole."""
    if record is not None and not record.whole:
        raise StoreError(
            "the directory is half a copy of its pair's primary: expected a whole one; "
            "start it beside the primary again, or remove the directory"
        )
