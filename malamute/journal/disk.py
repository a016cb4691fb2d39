"""The store on LMDB.

Theory. One environment with one table (`format` has the keys), one writer, any number of readers. A write is
one LMDB transaction: new chunks, the states of their streams, the deletion of the oldest chunks, and the
blocks of the log. LMDB writes changed pages to free places, fsyncs, then writes the root and fsyncs again.
So after a crash of the process or the machine, the file has either the old root or the new one, and needs no
repair. The environment is always opened with sync on, and the file has its full size from the beginning.

opened          the environment, and the values of the store in memory
disk_recovery   the start: the log is read
disk_writer     groups of operations, each in one transaction
compaction      deletion of old blocks in such a transaction
disk_reader     history and records, from any thread
disk            all of them as one store: opening and closing

py-lmdb must not be closed under a running call: `CallGuard` counts them, and `close` waits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from malamute.errors import StorageFull, StoreError
from malamute.journal import format as codec
from malamute.journal import pair_record
from malamute.journal.ahead_writer import AheadWriter
from malamute.journal.catch_up import CatchUpSource
from malamute.journal.directory import (
    acquire_lock,
    lengthen,
    open_environment,
    translated,
)
from malamute.journal.disk_reader import DiskReader
from malamute.journal.disk_recovery import begun_incarnations, recover
from malamute.journal.disk_writer import DiskWriter
from malamute.journal.opened import OpenedStore
from malamute.journal.pair_record import ALONE, PairRecord
from malamute.journal.ring import Counted
from malamute.journal.store import Copied, Progress, no_progress
from malamute.journal.tail import Tail
from malamute.journal.write_ahead import OnAppend, find_records, operations_of, read_log
from malamute.journal.write_set import OnCommit
from malamute.store.operations import (
    Defect,
    Operation,
    Recovered,
)

STREAMS_SHARE = 0.7
"""The share of the file that streams may fill unless given otherwise."""

CUT_OFF_WORDS = "a record that was being written, or the last one, does not check: the log ends before it"

STREAMS_SHARE_MAX = 0.85
"""The largest share that streams may be given; the rest is for queues, the reserve and free pages."""


class DiskStore(DiskReader):
    """A store in a directory. Make one by `DiskStore.open`."""

    def __init__(self, store: OpenedStore, *, has_log: bool) -> None:
        """Used by `open`, which checks the arguments."""
        super().__init__(store)
        self._writer = DiskWriter(store)
        self._ahead = AheadWriter(store, self._writer, has_log=has_log)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        size: int,
        preallocate: bool = True,
        streams_budget: int | None = None,
        counted: Counted | None = None,
        reads_all: bool = False,
        names_process: bool = True,
        has_log: bool = False,
        on_commit: OnCommit | None = None,
        on_append: OnAppend | None = None,
        timeline: int | None = None,
    ) -> DiskStore:
        """Open the store in `directory`, creating it if needed; with `names_process` the lock has its id.

        `size` is the size of the file in bytes; an existing larger file keeps its size. The space is
        allocated at once unless `preallocate` is false. `streams_budget` bounds the bytes of all streams
        together, 70 % of the size unless given. `counted` returns the seconds of a monotonic clock, which
        limits by age prefer to a clock that runs ahead of it (`ring`). With `reads_all`, every value is read
        first: an unreadable page is an error at the start, and would end the process later. With `has_log`,
        small writes are durable in the write-ahead log before they are in LMDB. `on_commit` is given the
        write set of each transaction, and `on_append` each record of the log before it is durable. With a
        `timeline`, the primary of a pair writes; without one, the first write leaves the pair.

        Raises StoreLocked if another process has the store open, StoreTooNew if a newer format is in it,
        StoreCorrupt if the file is not a store, StorageFull if the disk has no room, StoreError otherwise.
        """
        path = Path(directory)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = acquire_lock(path, names_process=names_process)
        except OSError as error:
            raise StoreError(f"cannot use {path}: {error.strerror}") from error
        environment = None
        try:
            environment, size = open_environment(path, size, preallocate, reads_all=reads_all)
            if streams_budget is None:
                streams_budget = int(size * STREAMS_SHARE)
            elif streams_budget > size * STREAMS_SHARE_MAX:
                raise StoreError(
                    f"streams_budget {streams_budget} is too large: expected at most 85 % of the size {size}"
                )
            opened = OpenedStore(environment, lock, size, streams_budget, counted, on_commit, on_append)
            if _take_up(opened, timeline):
                environment, found = opened.environment, opened.defects.known
                opened = OpenedStore(environment, lock, size, streams_budget, counted, on_commit, on_append)
                for defect in found.values():
                    opened.defects.add(defect)
            opened.leaves_pair = timeline is None and opened.pair_record is not None
            return cls(opened, has_log=has_log)
        except BaseException:
            if environment is not None:
                environment.close()
            os.close(lock)
            raise

    @classmethod
    def open_existing(cls, directory: str | os.PathLike[str], *, reads_all: bool = False) -> DiskStore:
        """Open an existing store unchanged, to inspect or to copy it while no broker uses it.

        `reads_all` is as in `open`. Raises StoreError without a store, and the errors of `open`.
        """
        if not (Path(directory) / "data.mdb").is_file():
            raise StoreError(f"there is no store in {Path(directory)}")
        return cls.open(directory, size=0, preallocate=False, reads_all=reads_all, names_process=False)

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """Return the state of the core. Costs the number of streams and of queued messages.

        With `now`, a broker begins on the store; on a copy, another incarnation begins. At most
        `records_bytes` bytes of records are read into memory; None is no limit.
        """
        found = recover(self._store, records_bytes=records_bytes, now=now)
        if found.restored and now is not None:
            self._writer.put_meta(copied=False, incarnations=begun_incarnations(self._store, now))
        meta = self._store.meta
        return found._replace(incarnations=meta.incarnations, lsn=self._store.lsn)

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations, durably on return; or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        self._ahead.write(operations)

    @property
    def format(self) -> int:
        """The format of the store."""
        return self._store.meta.version

    @property
    def lsn(self) -> int:
        """The log sequence number of the last write. Read by the writing thread."""
        return self._ahead.lsn

    @property
    def pair_record(self) -> PairRecord | None:
        """The record of the pair as it was when the store was opened."""
        return self._store.pair_record

    def catch_up_source(self, tail: Tail) -> CatchUpSource:
        """Return this store as the source of a standby's catch-up; `tail` has its newest write sets."""
        return CatchUpSource(self._store, tail)

    @property
    def take_over_at(self) -> float | None:
        """The time of the monotonic clock at which to call `take_over`; None without a reason."""
        return self._ahead.take_over_at

    def take_over(self) -> None:
        """Store what is in the write-ahead log only in LMDB. Raises StoreError; the log keeps it then."""
        self._ahead.take_over()

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Copy the store as `DiskReader.backup` does, once LMDB has taken over the log."""
        self.take_over()
        return super().backup(directory, progress)

    def close(self) -> None:
        """Release the file and the lock. Waits for calls under way; may be called again."""
        with suppress(StoreError, StorageFull, lmdb.Error):  # the log keeps it for the next start
            self.take_over()
        if self._store.calls.close():
            self._ahead.close()
            with suppress(lmdb.Error):  # the environment is closed already if opening it again has failed
                lengthen(self._store.environment)
            self._store.environment.close()
            os.close(self._store.lock)


def _take_up(store: OpenedStore, timeline: int | None) -> bool:
    """Store what the last process has left in the write-ahead log; return whether there was anything.

    The primary of a pair takes the log over even if it is empty: a standby may have records of the last
    primary that this one lacks, and the new base outdates them.
    """
    found = find_records(read_log(store.path), store.meta)
    operations = operations_of(found, store.path)
    is_left = bool(found.records) or found.cut_off
    newest = max([store.lsn, *(record.lsn for record in found.records)])
    # A value that another replica has under the number of a record is of the timeline before.
    lsn = newest + (timeline is not None or newest == store.lsn)
    if timeline is not None or (is_left and store.pair_record is not None):
        _begin_timeline(store, ALONE if timeline is None else timeline, lsn)
    if not is_left:
        if timeline is not None:
            DiskWriter(store).put_meta(version=codec.STORE_VERSION, taken=lsn)
        return False
    recover(store)
    if found.cut_off:
        store.defects.add(Defect("log", "", found.end, found.end, CUT_OFF_WORDS))
    DiskWriter(store).write(operations, numbers=lsn - store.lsn, takes_over=True, is_promised=True)
    return True


def _begin_timeline(store: OpenedStore, timeline: int, lsn: int) -> None:
    """Note the timeline of the next transaction `lsn`. Raises: StoreError."""
    if store.pair_record is None:
        raise StoreError(f"{store.path} is in no pair: expected one by `malamute pair create` or `join`")
    store.pair_record = store.pair_record.begun(timeline, lsn)
    with translated(), store.environment.begin(write=True) as transaction:
        pair_record.put(transaction, store.pair_record)
