"""The writer of a store with a write-ahead log.

Theory. A small group of operations is durable once its record is in the log. A large group, or one for which
LMDB might have no room, goes to LMDB at once, in one transaction with all before it, so batches are written
once. LMDB takes the records over as one transaction when the log is full, when its oldest record is
`BEHIND_SECONDS` old, and before anything is read. The operations of the log are in memory until then,
`FILE_BYTES_MAX` bytes at the most. If LMDB refuses them, readings have them from an `Overlay`. So readers
never see less than was confirmed.

Operations in the log were promised room. So a group goes into the log only if all that is in it fits into
the store beside the promised room of the ring and the reserve. That has to be certain, so a store whose file
was not allocated at its full size has no log.

A record whose write or fdatasync has failed is never tried again: the page cache may claim to be written. The
group goes to LMDB with all before it, which changes the base of the log, so the doubtful record is outdated.
Until that succeeds, every write fails; then the log begins in a new file. And as long as LMDB refuses a
take-over, it refuses all further writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from malamute.errors import StorageFull, StoreError, StoreLost
from malamute.journal.directory import PAGE, is_allocated
from malamute.journal.disk_writer import DiskWriter
from malamute.journal.opened import OpenedStore
from malamute.journal.overlay import NOTHING, Overlay
from malamute.journal.write_ahead import FILE, FILE_BYTES_MAX, WriteAheadFile, encode_record
from malamute.store.operations import (
    AppendChunk,
    DeleteStream,
    DeleteStreamMessages,
    ForgetStream,
    Operation,
    PutMessages,
)

RECORD_BYTES_MAX = 64 * 1024
"""The bytes of messages at which a group goes to LMDB at once."""

BEHIND_SECONDS = 0.1
"""Seconds for which an operation may be in the log only."""

RETRY_SECONDS = 1.0
"""Seconds until a failed take-over, or a failed file, is tried again without a write."""

ADDED_BYTES_MAX = 4 * 1024 * 1024
"""The bytes that the records of the log may add to LMDB, by a generous estimate."""

_AT_ONCE: frozenset[type[Any]] = frozenset((DeleteStream, DeleteStreamMessages, ForgetStream))
"""Operations that are rare, and go to LMDB at once."""


class AheadWriter:
    """The writer of an opened store; any thread may call it."""

    def __init__(self, store: OpenedStore, writer: DiskWriter, *, has_log: bool) -> None:
        self._store = store
        self._writer = writer
        self._has_log = has_log
        self._file: WriteAheadFile | None = None
        self._file_due = 0.0
        self._is_doubtful = False
        """Whether a record may be in the file that was not confirmed."""
        self._is_stuck = False
        """Whether the last take-over has failed: what LMDB does not take is not confirmed any more."""
        self._behind = NOTHING
        self._pending: list[Operation] = []
        self._records = 0
        self._lasts: dict[str, int] = {}
        self._added = self._room = 0
        self._due = 0.0
        store.behind = self.behind
        if has_log and self._spare():
            self._new_file()  # later, the disk may be full

    @property
    def take_over_at(self) -> float | None:
        """The time by the monotonic clock at which the log has to be taken over; None for an empty log."""
        return self._due if self._pending else None

    @property
    def lsn(self) -> int:
        """The log sequence number of the last group."""
        return self._store.lsn + self._records

    def write(self, operations: Sequence[Operation]) -> None:
        """Make the operations durable, in the log or in LMDB, or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        with self._store.settled:
            if self._is_small(operations) and self._append(operations):
                return
            if self._pending:
                try:
                    self._transact([*self._pending, *operations], records=self._records + 1)
                    return
                except StoreLost:
                    raise
                except Exception:
                    # The records of the log do not fail because of other operations.
                    self.take_over()
            self._transact(operations, records=self._records + 1)

    def take_over(self) -> None:
        """Store all records of the log in LMDB. Raises StoreError; the log keeps them then."""
        if not self._pending:
            return
        with self._store.settled:
            if self._pending:
                try:
                    self._transact(self._pending, records=self._records, is_promised=True)
                except BaseException:
                    self._due = time.monotonic() + RETRY_SECONDS
                    if not self._is_stuck:
                        self._is_stuck, self._behind = True, Overlay(self._pending)
                    raise

    def behind(self) -> Overlay:
        """Have LMDB take over the log before a reading; return the operations that it refuses.

        Raises StoreLost if the state of the disk is unknown.
        """
        if not self._is_stuck or self._due <= time.monotonic():
            try:
                self.take_over()
            except StoreLost:
                raise
            except (StoreError, StorageFull):
                return self._behind
        return self._behind

    def close(self) -> None:
        """Close the file of the log, and remove it if LMDB has all that is in it."""
        if self._file is not None:
            self._file.close()
            if not self._pending:
                with suppress(OSError):
                    (self._store.path / FILE).unlink()

    def _transact(self, operations: Sequence[Operation], *, records: int, is_promised: bool = False) -> None:
        takes = bool(self._pending) or self._is_doubtful
        self._writer.write(operations, numbers=records, takes_over=takes, is_promised=is_promised)
        self._pending, self._records, self._added = [], 0, 0
        self._is_doubtful = self._is_stuck = False
        self._behind = NOTHING
        self._lasts.clear()
        if self._file is not None:
            self._restart(self._file, is_cleared=any(type(one) in _AT_ONCE for one in operations))

    def _restart(self, file: WriteAheadFile, *, is_cleared: bool) -> None:
        """Go back to the beginning of the file; without the old bytes after a deletion."""
        try:
            file.restart(is_cleared=is_cleared)
        except OSError:
            self._give_up(file)

    def _give_up(self, file: WriteAheadFile) -> None:
        file.give_up()
        self._file, self._file_due = None, time.monotonic() + RETRY_SECONDS

    def _is_small(self, operations: Sequence[Operation]) -> bool:
        """Return whether a group goes into the log: it is small, and cannot fail in LMDB."""
        if not operations or self._rests():
            return False
        size = 0
        for operation in operations:
            if type(operation) is AppendChunk:
                if not self._follows(operation):
                    return False
                size += len(operation.chunk.payload) + sum(map(len, operation.chunk.large))
            elif type(operation) is PutMessages:
                size += sum(map(len, operation.records))
            elif type(operation) in _AT_ONCE:
                return False
            if size > RECORD_BYTES_MAX:
                return False
        return self._has_room(size + 2 * PAGE * len(operations))

    def _rests(self) -> bool:
        """Return whether the log takes nothing now."""
        is_well = self._has_log and not self._is_stuck and not self._is_doubtful
        return not is_well or self._file_due > time.monotonic()

    def _follows(self, operation: AppendChunk) -> bool:
        """Return whether a chunk is behind the last one of its stream: LMDB refuses any other."""
        stream, chunk = operation.stream, operation.chunk
        known = self._store.ring.streams.get(stream)
        last = self._lasts.get(stream, known.last if known else 0)
        return chunk.first > last and chunk.count > 0

    def _has_room(self, added: int) -> bool:
        """Return whether LMDB certainly has room for all records of the log and so many bytes more."""
        if not self._pending:
            self._room = min(ADDED_BYTES_MAX, self._spare())
        return self._added + added <= self._room

    def _spare(self) -> int:
        """Return the bytes that LMDB can take without dropping or refusing anything."""
        data = self._store.path / "data.mdb"
        if not is_allocated(data, self._store.size):
            return 0
        return self._writer.spare()

    def _append(self, operations: Sequence[Operation]) -> bool:
        """Append a record; return False if the group has to go to LMDB."""
        if not self._writer.announce_log():
            return False
        lsn = self._store.lsn + self._records + 1
        record = encode_record(self._store.meta, lsn, operations)
        file = self._file or self._new_file()
        if file is None or not file.has_room(len(record)):
            return False
        with self._store.calls:
            if self._store.on_append is not None:
                self._store.on_append(record, lsn)
            try:
                file.append(record)
            except OSError:
                self._give_up(file)
                self._is_doubtful = True
                self._records += 1  # a standby may have the record: its number has no other content
                return False
        if not self._pending:
            self._due = time.monotonic() + BEHIND_SECONDS
        self._pending += operations
        self._records += 1
        self._added += len(record) + 2 * PAGE * len(operations)
        for operation in operations:
            if type(operation) is AppendChunk:
                self._lasts[operation.stream] = operation.chunk.last
        return True

    def _new_file(self) -> WriteAheadFile | None:
        """Begin the log in a new file; return None if the disk refuses it."""
        store = self._store
        try:
            with store.calls:
                self._file = WriteAheadFile(store.path, min(FILE_BYTES_MAX, store.size // 16))
        except OSError:
            self._file_due = time.monotonic() + RETRY_SECONDS
        return self._file
