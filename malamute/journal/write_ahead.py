"""The file of the write-ahead log: records of operations, each durable after one fdatasync.

Theory. LMDB flushes twice for a commit, and writes some pages for a single message. So a small group of
operations is appended here first, and LMDB takes all records over in one transaction later (`ahead_writer`).
The file has its full size from the beginning, filled with zeros, so that an append changes neither its length
nor its extents. After each take-over the next record goes to the beginning of the file again.

A record names its store, and the *base* on which it stands: the log sequence number of the last take-over,
which the meta record of the store has, too. So a record counts if its base is that of the store. After a
take-over all records of the file are outdated at once, and none has to be deleted.

Each append writes the record and zeros in the place of the next header. So the records end with a header of
zeros, or with bytes that an append was writing when the power failed. The first record that does not check
ends the log; its append was never confirmed if no intact record of the same base follows, since each record
was durable before the next one. If one follows, the disk has lost confirmed data, which is an error.

Decoding any bytes gives records or raises `StoreCorrupt`, and nothing else. `docs/journal-format.md` is the
specification.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from malamute.errors import Malformed, StoreCorrupt, StoreError, StoreTooNew
from malamute.journal.directory import open_own, sync_directory
from malamute.journal.format import Meta, crc32
from malamute.store import codec
from malamute.store.operations import Operation

FILE = "write-ahead.log"
"""The name of the file in the directory of the store."""

VERSION = 1
"""The format of the records."""

FILE_BYTES_MAX = 1024 * 1024
"""The size of the file beside a store of 16 MiB or more; it bounds the bytes that LMDB is behind."""

MAGIC = b"MWAL"

_HEADER = struct.Struct(">4sB3xI16sQQI")
_CRC = struct.Struct(">I")

HEADER_SIZE = _HEADER.size + _CRC.size

OnAppend = Callable[[bytes, int], None]
"""Called with a record and its log sequence number before it is durable. Raises nothing."""

_END = bytes(HEADER_SIZE)


class Record(NamedTuple):
    """The operations of one group, and their log sequence number."""

    lsn: int
    operations: Sequence[Operation]


class FoundRecords(NamedTuple):
    """The records to be taken over, which end before the byte `end`.

    The log is `cut_off` if neither a record nor the end of the log is there.
    The `later` records are intact ones behind that place: the one between was confirmed, and is damaged.
    """

    records: Sequence[Record] = ()
    end: int = 0
    cut_off: bool = False
    later: Sequence[Record] = ()


class RecordHeader(NamedTuple):
    """The header of a record: it stands on the take-over `base`."""

    size: int
    store: bytes
    base: int
    lsn: int
    body_crc: int


def encode_record(meta: Meta, lsn: int, operations: Sequence[Operation]) -> bytes:
    """Return the bytes of a record that stands on the last take-over of a store."""
    body = codec.encode(operations)
    header = _HEADER.pack(MAGIC, VERSION, len(body), meta.broker_id, meta.taken, lsn, crc32(body))
    return b"".join((header, _CRC.pack(crc32(header)), body))


def find_records(data: bytes, meta: Meta) -> FoundRecords:
    """Return the records of a file that the store of this meta record lacks.

    Raises StoreCorrupt if the file is of another store or goes with a newer state of this one, StoreTooNew
    if a newer format is in it.
    """
    records: list[Record] = []
    place = 0
    while (record := _record_at(data, place, meta)) and (not records or record.lsn == records[-1].lsn + 1):
        records.append(record)
        place += _size_at(data, place)
    header = _header_at(data, place)
    is_end = not any(data[place : place + HEADER_SIZE])
    if header is not None:
        is_end = header.base < meta.taken  # a record of an earlier base
    # The body of a damaged record has bytes of clients, which may look like a record.
    after = place if header is None or record else place + HEADER_SIZE + header.size
    return FoundRecords(records, place, not is_end, [*_later(data, after, meta)])


def read_header(record: bytes) -> RecordHeader:
    """Return the header of a whole record. Raises: StoreCorrupt, StoreTooNew."""
    header, body = _header_at(record, 0), memoryview(record)[HEADER_SIZE:]
    if header is None or header.size != len(body) or header.body_crc != crc32(body):
        raise StoreCorrupt("a record of the write-ahead log is damaged")
    return header


def _header_at(data: bytes, place: int) -> RecordHeader | None:
    """Return the header at a place; None for other bytes."""
    header = data[place : place + _HEADER.size]
    if header[:4] != MAGIC or len(data) < place + HEADER_SIZE:
        return None
    if _CRC.unpack_from(data, place + _HEADER.size)[0] != crc32(header):
        return None
    _, version, size, store, base, lsn, body_crc = _HEADER.unpack(header)
    if version != VERSION:
        raise StoreTooNew(f"write-ahead log has format {version}: this Malamute reads format {VERSION}")
    return RecordHeader(size, store, base, lsn, body_crc)


def _size_at(data: bytes, place: int) -> int:
    header = _header_at(data, place)
    assert header is not None, "there is no record"
    return HEADER_SIZE + header.size


def _record_at(data: bytes, place: int, meta: Meta) -> Record | None:
    """Return the record at a place; None if there is none that the store lacks, or a damaged one."""
    header = _header_at(data, place)
    if header is None or header.base < meta.taken:
        return None
    if header.store != meta.broker_id:
        raise StoreCorrupt(f"{FILE} is of another store: expected the one of data.mdb; move it away")
    if header.base > meta.taken or meta.copied:
        raise StoreCorrupt(
            f"{FILE} continues the commit {header.base}, and data.mdb has an older state, of the commit "
            f"{meta.taken}: expected both of one moment; move {FILE} away if the older state is wanted"
        )
    body = data[place + HEADER_SIZE : place + HEADER_SIZE + header.size]
    if len(body) < header.size or crc32(body) != header.body_crc:
        return None
    try:
        return Record(header.lsn, codec.decode(body))
    except Malformed:
        return None


def _later(data: bytes, place: int, meta: Meta) -> Iterator[Record]:
    """Yield all intact records from a place on that the store lacks."""
    while (place := data.find(MAGIC, place)) >= 0:
        header = _header_at(data, place)
        if header is not None and (header.store, header.base) == (meta.broker_id, meta.taken):
            record = _record_at(data, place, meta)
            if record is not None:
                yield record
                place += HEADER_SIZE + header.size
                continue
        place += 1


def operations_of(found: FoundRecords, directory: Path) -> list[Operation]:
    """Return the operations of all records of a log. Raises StoreCorrupt if a confirmed one is damaged."""
    if found.later:
        raise StoreCorrupt(
            f"{directory / FILE} is damaged at byte {found.end}, and {len(found.later)} intact records "
            "are behind that"
        )
    return [operation for record in found.records for operation in record.operations]


def read_log(directory: Path) -> bytes:
    """Return the content of the file in a directory; empty without one. Raises: StoreError."""
    try:
        with open(open_own(directory / FILE, os.O_RDONLY), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"cannot read {directory / FILE}: {error.strerror}") from error


class WriteAheadFile:
    """A new file of the log, which replaces the one before it. Raises `OSError` where the disk refuses."""

    def __init__(self, directory: Path, size: int, records: bytes = b"") -> None:
        self._size = size
        self._place = self._used = len(records)
        path = directory / f"new-{FILE}"
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o640)
        try:
            # Written, not only allocated: otherwise the first fdatasync of each page would write metadata.
            _write(self._descriptor, records.ljust(size, b"\0"), 0)
            os.fsync(self._descriptor)
            os.rename(path, directory / FILE)
            sync_directory(directory)
        except BaseException:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise

    def has_room(self, size: int) -> bool:
        """Return whether a record of this size fits behind the records before it."""
        return self._place + size + HEADER_SIZE <= self._size

    def append(self, record: bytes) -> None:
        """Make a record durable. Raises `OSError`; the file must not be used any more then."""
        _write(self._descriptor, record + _END, self._place)
        os.fdatasync(self._descriptor)
        self._place += len(record)
        self._used = max(self._used, self._place)

    def restart(self, *, is_cleared: bool) -> None:
        """Go back to the beginning, as all records were taken over; a file that `is_cleared` forgets them."""
        self._place = 0
        if is_cleared and self._used:
            _write(self._descriptor, bytes(self._used), 0)
            os.fdatasync(self._descriptor)
            self._used = 0

    def give_up(self) -> None:
        """Close a file that has failed, and overwrite the record that was not confirmed if that is possible.

        Nothing relies on it. Without this, a process that is killed before LMDB works again would find the
        record at its next start.
        """
        with suppress(OSError):
            os.pwrite(self._descriptor, _END, self._place)
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _write(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, place)
        view, place = view[done:], place + done
