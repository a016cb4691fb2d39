"""A store as a standby holds it: records of the log are synced, write sets applied, nothing else is known.

There is neither a ring nor a log in memory. The records of the primary's write-ahead log go into the
standby's own log, each durable after one fdatasync; write sets follow, several in one transaction, and
outdate the records as at the primary. So a takeover is `close`, and `DiskStore.open` with another timeline:
its recovery replays the log, as after a crash.

Pages that a transaction frees serve later ones only, and where the free pages are differs from the other
file. So write sets without room together are applied in two transactions, and a file whose free pages are too
scattered grows, up to twice the size.

A directory that is not *whole* is half a catch-up (`catch_up`): nothing but another catch-up uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import lmdb

from malamute.errors import StorageFull, StoreCorrupt, StoreError
from malamute.journal import pair_record
from malamute.journal.blocks import encode_block
from malamute.journal.directory import (
    acquire_lock,
    allocate,
    decode_meta,
    lengthen,
    open_environment,
    read_meta,
    sync_directory,
    translated,
)
from malamute.journal.format import ASIDE, META, Meta, key
from malamute.journal.pair_record import ALONE, PairRecord, Timelines, parting
from malamute.journal.states import newest_lsn, read_states
from malamute.journal.tail import Item, LogRecord
from malamute.journal.write_ahead import (
    FILE,
    FILE_BYTES_MAX,
    WriteAheadFile,
    find_records,
    read_header,
    read_log,
)
from malamute.journal.write_set import WriteSet, encode

DAMAGED_WORDS = "the copy has damaged values: expected it to follow a primary, which has it catch up"

DIVERGED = "diverged"
"""The directory beside the store for records that a former primary alone had."""


class Standby:
    """A copy of a store in a directory, by `Standby.open`; `lsn` is its last transaction.

    `synced` is the number up to which all is durable: as a transaction, or as a record of the log.
    """

    def __init__(self, environment: lmdb.Environment, lock: int, record: PairRecord) -> None:
        """Used by `open`."""
        self.path = Path(environment.path())
        self._environment = environment
        self._lock = lock
        self._file: WriteAheadFile | None = None
        self._is_failed = self._is_damaged = False
        self.record = record
        self.lsn = self.synced = 0
        with environment.begin() as transaction:
            self.meta = read_meta(transaction)
        if record.whole:
            self._find_lsn()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        size: int,
        preallocate: bool = True,
        joins: PairRecord | None = None,
    ) -> Standby:
        """Open the copy in a directory; one that `joins` a pair gets its record, and is not whole at first.

        Nothing of a copy is changed by that, so a primary opens its directory before it serves, too. Raises
        the errors of `DiskStore.open`, StoreError for a directory in no pair.
        """
        path = Path(directory)
        if joins is None and not (path / "data.mdb").is_file():
            raise StoreError(f"there is no store in {path}")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = acquire_lock(path)
        environment = None
        try:
            environment, _ = open_environment(path, 2 * size, preallocate=False)
            if preallocate:
                allocate(path / "data.mdb", size)
            record = joins and joins._replace(timelines=(), whole=False)
            with translated(), environment.begin(write=record is not None) as transaction:
                if record is None:
                    record = pair_record.read(transaction)
                else:
                    pair_record.put(transaction, record)
            if record is None:
                raise StoreError(f"{path} is in no pair: expected one by `malamute pair create` or `join`")
            return cls(environment, lock, record)
        except BaseException:
            if environment is not None:
                environment.close()
            os.close(lock)
            raise

    def _find_lsn(self) -> None:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            states = read_states(cursor)
            self.lsn = self.synced = newest_lsn(cursor, self.meta.lsn, states)
        written = read_log(self.path)
        try:
            found = find_records(written, self.meta)
        except StoreCorrupt:
            self._is_damaged = True
            return
        self._is_damaged = bool(states.repairs or found.later)
        if found.records:
            self.synced = max(self.synced, found.records[-1].lsn)

    # --- following a primary

    def take(self, items: Sequence[Item]) -> None:
        """Append records and apply write sets, in their order, durable on return.

        Items that it has already are left out, and so are records that a write set behind them outdates.
        Raises StoreError for another store, for a missing item and for faults of the disk, StorageFull
        without room: what is durable then is up to `synced`.
        """
        for is_record, run in groupby(self._needed(items), lambda item: isinstance(item, LogRecord)):
            if is_record:
                self._append([one for one in run if isinstance(one, LogRecord)])
            else:
                self.apply([one for one in run if isinstance(one, WriteSet)])

    def _needed(self, items: Sequence[Item]) -> Iterable[Item]:
        needed: list[Item] = []
        taken = 0
        for item in reversed(items):
            if isinstance(item, WriteSet):
                taken = max(taken, _meta_after(self.meta, item).taken)
            elif read_header(item.data).base < taken:
                continue
            needed.append(item)
        return reversed(needed)

    def _append(self, records: Sequence[LogRecord]) -> None:
        self._check_usable()
        new: list[bytes] = []
        synced = self.synced
        for record in records:
            header = read_header(record.data)
            if header.store != self.meta.broker_id:
                raise StoreError("a record of another store: expected those of the store copied")
            if header.lsn <= synced or header.base < self.meta.taken:
                continue
            if header.lsn != synced + 1 or header.base != self.meta.taken:
                raise StoreError(
                    f"record {header.lsn} stands on {header.base}: expected {synced + 1} on {self.meta.taken}"
                )
            new.append(record.data)
            synced = header.lsn
        if not new:
            return
        written, file = b"".join(new), self._opened_log()
        if not file.has_room(len(written)):
            raise StoreError(f"{FILE} has no room for the records of one take-over")
        try:
            file.append(written)
        except OSError as error:
            self._is_failed, self._file = True, None
            file.give_up()
            raise StoreError(f"cannot write {self.path / FILE}: {error.strerror}") from error
        self.synced = synced

    def apply(self, write_sets: Sequence[WriteSet]) -> None:
        """Apply write sets in order, durable on return; those that it has already are left out."""
        try:
            self._apply(write_sets)
        except StorageFull:
            if len(write_sets) < 2:
                raise
            middle = len(write_sets) // 2
            self.apply(write_sets[:middle])
            self.apply(write_sets[middle:])

    def _apply(self, write_sets: Sequence[WriteSet]) -> None:
        if self.record.whole:
            self._check_usable()
        lsn, meta = self.lsn, self.meta
        begins = {first for _, first in self.record.timelines}
        with translated(), self._environment.begin(write=True) as transaction:
            for one in write_sets:
                if one.store != self.meta.broker_id:
                    raise StoreError("write set of another store: expected those of the store copied")
                if one.lsn <= lsn:
                    continue
                if one.after != lsn:
                    raise StoreError(f"write set {one.lsn} follows {one.after}: expected one after {lsn}")
                if one.lsn in begins and self.synced >= one.lsn:
                    self._put_records_aside(one.lsn)
                _change(transaction, one.changes)
                lsn, meta = one.lsn, _meta_after(meta, one)
        is_taken = meta.taken > self.meta.taken
        self.lsn, self.meta = lsn, meta
        self.synced = lsn if is_taken else max(lsn, self.synced)
        if is_taken:
            # Without the bytes of messages that were deleted meanwhile.
            try:
                if self._file is not None:
                    self._file.restart(is_cleared=True)
                else:
                    (self.path / FILE).unlink(missing_ok=True)
            except OSError as error:
                self._is_failed = True
                raise StoreError(f"cannot write {self.path / FILE}: {error.strerror}") from error

    def _put_records_aside(self, lsn: int) -> None:
        """Put what the log alone has aside: the primary of the new timeline has begun it without that."""
        self.put_diverged(self.records_since(lsn), lsn)

    def records_since(self, lsn: int) -> dict[bytes, bytes]:
        """Return the records of the log from `lsn` on that LMDB lacks, as blocks."""
        found = find_records(read_log(self.path), self.meta).records
        return {
            key(ASIDE, 0, number): encode_block(entries, number) for number, entries in found if number >= lsn
        }

    def follow(self, timelines: Timelines) -> None:
        """Note the history of the primary that is followed from now on.

        Raises StoreError if this store has more than its beginning, or is not whole: it has to catch up. A
        damaged copy is not whole from then on.
        """
        if self._is_damaged:
            self.begin_catch_up()
        self._check_usable()
        part = parting(self.record.timelines, timelines)
        if part is not None and part <= self.lsn:
            raise StoreError(f"the history parts at {part}, and this store is at {self.lsn}: catch up first")
        if timelines != self.record.timelines:
            self._put_record(self.record._replace(timelines=timelines))

    # --- catching up

    def begin_catch_up(self) -> None:
        """Mark the directory as not whole, durably, before its first change."""
        self._put_record(self.record._replace(whole=False))
        if self._file is not None:
            self._file.close()
            self._file = None
        with suppress(FileNotFoundError):
            (self.path / FILE).unlink()
            sync_directory(self.path)
        self.lsn = self.synced = 0

    def change(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Put and delete values of a directory that is not whole."""
        assert not self.record.whole, "begin_catch_up comes first"
        if changes:
            with translated(), self._environment.begin(write=True) as transaction:
                _change(transaction, changes)

    def resume(self, lsn: int) -> None:
        """Go on with the write sets after a transaction: all values are of that one or of later ones."""
        assert not self.record.whole, "begin_catch_up comes first"
        with translated(), self._environment.begin() as transaction:
            self.meta = read_meta(transaction)
        self.lsn = lsn

    def finish(self, timelines: Timelines) -> None:
        """Mark the directory as whole again. Raises StoreCorrupt if its values do not fit together."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            states = read_states(cursor)
            found = newest_lsn(cursor, read_meta(transaction).lsn, states)
        if states.repairs or found != self.lsn:
            raise StoreCorrupt(f"the copy is at {found}: expected {self.lsn}; the primary has damaged values")
        self._put_record(self.record._replace(timelines=timelines, whole=True))
        self.synced = self.lsn
        self._is_damaged = False

    def put_diverged(self, values: Mapping[bytes, bytes], lsn: int, *, is_first: bool = True) -> None:
        """Write what this store alone has since `lsn` into `diverged/`, durably, before it is overwritten.

        The `is_first` of these values replace those of a pass that was broken off.
        """
        if not values:
            return
        directory = self.path / DIVERGED
        directory.mkdir(exist_ok=True)
        before = [number for number, first in self.record.timelines if first < lsn]
        timeline = before[-1] if before else ALONE
        with open(directory / f"{timeline}-{lsn}", "wb" if is_first else "ab") as file:
            file.write(encode(WriteSet(self.meta.broker_id, lsn, self.synced, values)))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
        sync_directory(self.path)

    def reading(self) -> lmdb.Transaction:
        """Begin a read transaction, which gives views."""
        return self._environment.begin(buffers=True)

    def close(self) -> None:
        """Release the file and the lock. The log stays for a takeover."""
        if self._file is not None:
            self._file.close()
        with suppress(lmdb.Error):
            lengthen(self._environment)
        self._environment.close()
        os.close(self._lock)

    def _put_record(self, record: PairRecord) -> None:
        with translated(), self._environment.begin(write=True) as transaction:
            pair_record.put(transaction, record)
        self.record = record

    def _opened_log(self) -> WriteAheadFile:
        """Return the log; a file that another process has left is replaced by one with its records."""
        if self._file is None:
            written = read_log(self.path)
            found = find_records(written, self.meta)
            try:
                self._file = WriteAheadFile(self.path, FILE_BYTES_MAX, written[: found.end])
            except OSError as error:
                raise StoreError(f"cannot write {self.path / FILE}: {error.strerror}") from error
        return self._file

    def _check_usable(self) -> None:
        pair_record.refuse_half(self.record)
        if self._is_failed or self._is_damaged:
            fault = "has failed: expected the directory to be opened again"
            raise StoreError(f"{self.path / FILE} {fault}" if self._is_failed else DAMAGED_WORDS)


def _change(transaction: lmdb.Transaction, changes: Mapping[bytes, bytes | None]) -> None:
    for place, value in changes.items():
        if value is None:
            transaction.delete(place)
        else:
            transaction.put(place, value)


def _meta_after(meta: Meta, write_set: WriteSet) -> Meta:
    value = write_set.changes.get(key(META))
    return meta if value is None else decode_meta(value)
