"""A store opened for reading only, beside the broker that writes it or without one.

LMDB lets any number of processes read while one writes: a reader sees the last commit, and the writer does
not reuse the pages of an open read transaction. So this module takes no lock of the directory, and each
call is one short transaction: the writer never has to wait, and no old page is pinned for long. The pages
are read by system calls (`lmdb_pages.cursor`), so an unreadable page is an error and no crash.

Everything that was confirmed before a store is opened is read: the records that only the write-ahead log had
then, from an overlay until LMDB has taken them over. Later, messages of the last tenth of a second may be in
the log of the broker only.

In the directory of a primary, nothing is read that its pair has not confirmed: `streams` waits for that.

A reader changes nothing: it neither repairs nor recovers a store. Chunks that the ring drops between two
calls are missing in the second, as for any slow consumer of a stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

import lmdb

from malamute.errors import StoreError
from malamute.journal.chunk_cursor import ChunkCursor
from malamute.journal.directory import (
    READING_TRIES,
    check_pages_for_reading,
    read_meta,
    refuse_links,
    translated,
)
from malamute.journal.format import StreamMeta
from malamute.journal.lmdb_pages.cursor import PageCursor
from malamute.journal.overlay import NOTHING, Overlay
from malamute.journal.released import read_released
from malamute.journal.states import newest_lsn, read_states
from malamute.journal.write_ahead import find_records, operations_of, read_log
from malamute.protocol.position import store_name
from malamute.store.operations import ReadResult

RELEASE_SECONDS = 10.0
"""Seconds to wait until a pair has confirmed the read values."""


class StoreReader:
    """A store opened for reading, by `StoreReader.open`; as a context manager it closes itself."""

    def __init__(self, environment: lmdb.Environment, data: Path) -> None:
        """Used by `open`."""
        self._environment = environment
        self._data = data
        self._file = data.open("rb", buffering=0)
        self._behind, self._base, self._behind_lsn = NOTHING, 0, 0

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> StoreReader:
        """Open the store in `directory`.

        One process can open a store once, so a broker in the same process excludes a reader. Raises
        StoreTooNew or StoreCorrupt for an unreadable store, StoreError without a store.
        """
        data = Path(directory) / "data.mdb"
        if not data.is_file():
            raise StoreError(f"there is no store in {Path(directory)}")
        refuse_links(data.parent)
        check_pages_for_reading(data.parent)
        with translated():
            environment = lmdb.open(str(directory), readonly=True, create=False, map_size=0)
        reader = cls(environment, data)
        try:
            reader._read_log(data.parent)
        except BaseException:
            reader.close()
            raise
        return reader

    def _read_log(self, directory: Path) -> None:
        """Read records of the log alone. While a broker writes it, a part may be older than the rest."""
        for _ in range(READING_TRIES):
            written = read_log(directory)
            with self._cursor() as cursor:
                meta = read_meta(cursor)
            found = find_records(written, meta)
            if not found.later:
                break
        self._behind, self._base = Overlay(operations_of(found, directory)), meta.taken
        self._behind_lsn = max((record.lsn for record in found.records), default=0)

    def store(self) -> str:
        """Return the name of the store, as in positions of its messages."""
        with self._cursor() as cursor:
            meta = read_meta(cursor)
        return store_name(meta.broker_id, meta.incarnations[-1] if meta.incarnations else 0)

    def streams(self) -> Mapping[str, StreamMeta]:
        """Return the state of each stream, by its name."""
        with self._cursor() as cursor:
            states = {state.name: state for state in _states(cursor) if state.name}
            found, lsn = self._added(cursor).states(states), self._newest_lsn(cursor)
        self._await_release(lsn)
        return found

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """Return the chunk that holds `start`, and the chunks after it, until `bytes_max` is reached."""
        with self._cursor() as cursor:
            state = _state(cursor, stream)
            chunks = ChunkCursor(cursor, state)
            chunks.seek_holder(start)
            found, behind = chunks.collect(start, bytes_max), self._added(cursor)
            if chunks.first is None:
                found = behind.chunks(state, start, bytes_max=bytes_max, found=found)
            return ReadResult(found, behind.state(state).first)

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence stored at or after a broker time; last + 1 if there is none."""
        with self._cursor() as cursor:
            state = _state(cursor, stream)
            found = ChunkCursor(cursor, state).find_time(time_ns)
            return found if found <= state.last else self._added(cursor).find_time(state, time_ns)

    def _newest_lsn(self, cursor: PageCursor) -> int:
        """Return the number of the newest transaction that is read; 0 where no pair has to release it."""
        if read_released(self._data.parent) == inf:
            return 0
        newest = newest_lsn(cursor, read_meta(cursor).lsn, read_states(cursor))
        return newest if self._behind is NOTHING else max(newest, self._behind_lsn)

    def _await_release(self, lsn: int) -> None:
        """Wait until all that is read is confirmed, if this is the directory of a primary."""
        ends = monotonic() + RELEASE_SECONDS
        while read_released(self._data.parent) < lsn:
            if monotonic() >= ends:
                raise StoreError(
                    f"the pair has not confirmed all that is in {self._data.parent}: try again "
                    "when both brokers run"
                )
            sleep(RELEASE_SECONDS / 1000)

    def _added(self, cursor: PageCursor) -> Overlay:
        """Return the values that this state of LMDB lacks."""
        if self._behind is not NOTHING and read_meta(cursor).taken != self._base:
            self._behind = NOTHING
        return self._behind

    def close(self) -> None:
        """Release the store."""
        self._environment.close()
        self._file.close()

    @contextmanager
    def _cursor(self) -> Iterator[PageCursor]:
        with translated():
            for _ in range(READING_TRIES):
                with self._environment.begin() as transaction:
                    cursor = PageCursor(self._file.fileno(), self._data)
                    if cursor.find_root(transaction.id()):
                        yield cursor
                        return
        raise StoreError(f"cannot read {self._data}: it is another file, or is written to all the time")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _state(cursor: PageCursor, name: str) -> StreamMeta:
    """Return the state of a stream; an empty state for an unknown stream."""
    # Identifiers begin with 1, so an unknown stream has no chunk.
    return next((state for state in _states(cursor) if state.name == name), StreamMeta(0, name))


def _states(cursor: PageCursor) -> Sequence[StreamMeta]:
    """Return all states; damaged ones are rebuilt."""
    return read_states(cursor).streams
