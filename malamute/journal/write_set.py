"""Write sets: the changes that one transaction of LMDB made to a store, recorded and encoded.

Theory. The same operations make different stores in two processes: subjects are indexed, messages age, blocks
are compacted and room is found by what a process has seen. So what a standby gets is what was decided: keys
with their values, and deleted keys. Each transaction that changes a value has a log sequence number of its
own, and a write set names that of the transaction before it. So two stores with the same number have the same
values, byte for byte, and a missing write set is noticed.

Nothing is recorded unless somebody wants the write sets (`OpenedStore.on_commit`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import lmdb

from malamute.errors import StoreCorrupt, StoreTooNew
from malamute.journal.format import crc32

VERSION = 1
"""The format of a write set."""

MAGIC = b"MWST"

_HEADER = struct.Struct(">4sB3x16sQQII")
_CRC = struct.Struct(">I")
_CHANGE = struct.Struct(">HI")
_DELETED = (1 << 32) - 1

HEADER_SIZE = _HEADER.size + _CRC.size


class WriteSet(NamedTuple):
    """The changes of the transaction `lsn`, which follows the transaction `after`; a deleted key has None."""

    store: bytes
    after: int
    lsn: int
    changes: Mapping[bytes, bytes | None]


OnCommit = Callable[[WriteSet], None]
"""Called with the write set of each transaction, in their order, once it is durable. Raises nothing."""


class Recorder:
    """A write transaction that notes its changes."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        self.changes: dict[bytes, bytes | None] = {}

    def put(self, place: bytes, value: bytes) -> None:
        """Store a value."""
        self._transaction.put(place, value)
        self.changes[place] = bytes(value)

    def delete(self, place: bytes) -> None:
        """Delete a value, if there is one."""
        self._transaction.delete(place)
        self.changes[place] = None

    @contextmanager
    def cursor(self) -> Iterator[_Cursor]:
        """Begin a cursor, whose deletions are noted."""
        with self._transaction.cursor() as cursor:
            yield _Cursor(cursor, self.changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)


class _Cursor:
    def __init__(self, cursor: lmdb.Cursor, changes: dict[bytes, bytes | None]) -> None:
        self._cursor = cursor
        self._changes = changes

    def delete(self) -> None:
        self._changes[bytes(self._cursor.key())] = None
        self._cursor.delete()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def encode(write_set: WriteSet) -> bytes:
    """Return the bytes of a write set."""
    parts = []
    for place, value in write_set.changes.items():
        parts += [_CHANGE.pack(len(place), _DELETED if value is None else len(value)), place, value or b""]
    body = b"".join(parts)
    store, after, lsn, _ = write_set
    header = _HEADER.pack(MAGIC, VERSION, store, after, lsn, len(body), crc32(body))
    return b"".join((header, _CRC.pack(crc32(header)), body))


def decode(data: bytes) -> WriteSet:
    """Return a write set. Raises: StoreCorrupt, StoreTooNew."""
    header, body = data[: _HEADER.size], data[HEADER_SIZE:]
    if len(data) < HEADER_SIZE or _CRC.unpack_from(data, _HEADER.size)[0] != crc32(header):
        raise StoreCorrupt("write set with a damaged header")
    magic, version, store, after, lsn, size, body_crc = _HEADER.unpack(header)
    if magic != MAGIC:
        raise StoreCorrupt("not a write set")
    if version != VERSION:
        raise StoreTooNew(f"write set has format {version}: this Malamute reads format {VERSION}")
    if len(body) != size or crc32(body) != body_crc:
        raise StoreCorrupt(f"write set {lsn} is damaged")
    return WriteSet(store, after, lsn, dict(_changes(body)))


def decode_all(data: bytes) -> Iterator[WriteSet]:
    """Yield write sets that stand one behind the other. Raises: StoreCorrupt, StoreTooNew."""
    place = 0
    while place < len(data):
        if len(data) - place < HEADER_SIZE:
            raise StoreCorrupt("write set with a damaged header")
        end = place + HEADER_SIZE + _HEADER.unpack_from(data, place)[-2]
        yield decode(data[place:end])
        place = end


def _changes(body: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    start = 0
    while start < len(body):
        place_size, size = _CHANGE.unpack_from(body, start)
        middle = start + _CHANGE.size + place_size
        end = middle if size == _DELETED else middle + size
        yield body[middle - place_size : middle], None if size == _DELETED else body[middle:end]
        start = end
