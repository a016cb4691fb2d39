"""A store as a standby holds it: write sets are applied, and nothing else is known of it.

There is neither a ring nor a log in memory. Several write sets are one transaction, so a standby needs fewer
commits than the store that it follows. Pages that a transaction frees serve later ones only, and where the
free pages are differs from the other file. So write sets without room together are applied in two
transactions, and a file whose free pages are too scattered grows, up to twice the size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from malamute.errors import StorageFull, StoreCorrupt, StoreError
from malamute.journal.directory import (
    acquire_lock,
    allocate,
    lengthen,
    open_environment,
    read_meta,
    translated,
)
from malamute.journal.states import newest_lsn, read_states
from malamute.journal.write_ahead import find_records, read_log
from malamute.journal.write_set import WriteSet


class Replica:
    """A copy of a store in a directory, by `Replica.open`; `lsn` is its last transaction."""

    def __init__(self, environment: lmdb.Environment, lock: int) -> None:
        """Used by `open`."""
        self._environment = environment
        self._lock = lock
        with environment.begin() as transaction, transaction.cursor() as cursor:
            self.meta = read_meta(transaction)
            states = read_states(cursor)
            self.lsn = newest_lsn(cursor, self.meta.lsn, states)
        if states.repairs:
            raise StoreCorrupt("the copy has damaged values: expected a new copy")

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, size: int, preallocate: bool = True) -> Replica:
        """Open the copy in a directory. Raises the errors of `DiskStore.open`, StoreError without a store."""
        path = Path(directory)
        if not (path / "data.mdb").is_file():
            raise StoreError(f"there is no store in {path}")
        lock = acquire_lock(path)
        environment = None
        try:
            environment, _ = open_environment(path, 2 * size, preallocate=False)
            if preallocate:
                allocate(path / "data.mdb", size)
            replica = cls(environment, lock)
            if find_records(read_log(path), replica.meta).records:
                raise StoreError(f"{path} has a write-ahead log: expected a store that has taken it over")
        except BaseException:
            if environment is not None:
                environment.close()
            os.close(lock)
            raise
        return replica

    def apply(self, write_sets: Sequence[WriteSet]) -> None:
        """Apply write sets in order, durable on return; those that it has already are left out.

        Raises StoreError for another store, for a missing write set and for faults of the disk, StorageFull
        without room: `lsn` is that of the last one applied then.
        """
        try:
            self._apply(write_sets)
        except StorageFull:
            if len(write_sets) < 2:
                raise
            middle = len(write_sets) // 2
            self.apply(write_sets[:middle])
            self.apply(write_sets[middle:])

    def _apply(self, write_sets: Sequence[WriteSet]) -> None:
        lsn = self.lsn
        with translated(), self._environment.begin(write=True) as transaction:
            for one in write_sets:
                if one.store != self.meta.broker_id:
                    raise StoreError("write set of another store: expected those of the store copied")
                if one.lsn <= lsn:
                    continue
                if one.after != lsn:
                    raise StoreError(f"write set {one.lsn} follows {one.after}: expected one after {lsn}")
                for place, value in one.changes.items():
                    if value is None:
                        transaction.delete(place)
                    else:
                        transaction.put(place, value)
                lsn = one.lsn
        self.lsn = lsn

    def close(self) -> None:
        """Release the file and the lock."""
        with suppress(lmdb.Error):
            lengthen(self._environment)
        self._environment.close()
        os.close(self._lock)
