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

from malamute.errors import StoreError
from malamute.journal.directory import (
    acquire_lock,
    lengthen,
    open_environment,
)
from malamute.journal.disk_reader import DiskReader
from malamute.journal.disk_recovery import recover
from malamute.journal.disk_writer import DiskWriter
from malamute.journal.opened import OpenedStore
from malamute.journal.ring import Counted
from malamute.store.operations import (
    Operation,
    Recovered,
)

STREAMS_SHARE = 0.7
"""The share of the file that streams may fill unless given otherwise."""

STREAMS_SHARE_MAX = 0.85
"""The largest share that streams may be given; the rest is for queues, the reserve and free pages."""


class DiskStore(DiskReader):
    """A store in a directory. Make one by `DiskStore.open`."""

    def __init__(self, store: OpenedStore) -> None:
        """Used by `open`, which checks the arguments."""
        super().__init__(store)
        self._writer = DiskWriter(store)

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
    ) -> DiskStore:
        """Open the store in `directory`, creating it if needed; with `names_process` the lock has its id.

        `size` is the size of the file in bytes; an existing larger file keeps its size. The space is
        allocated at once unless `preallocate` is false. `streams_budget` bounds the bytes of all streams
        together, 70 % of the size unless given. `counted` returns the seconds of a monotonic clock, which
        limits by age prefer to a clock that runs ahead of it (`ring`). With `reads_all`, every value is read
        first: an unreadable page is an error at the start, and would end the process later.

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
            return cls(OpenedStore(environment, lock, size, streams_budget, counted))
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
        return recover(self._store, records_bytes=records_bytes, now=now)

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations in one transaction, fsynced on return; or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        self._writer.write(operations)

    def close(self) -> None:
        """Release the file and the lock. Waits for calls under way; may be called again."""
        if self._store.calls.close():
            with suppress(lmdb.Error):  # the environment is closed already if opening it again has failed
                lengthen(self._store.environment)
            self._store.environment.close()
            os.close(self._store.lock)
