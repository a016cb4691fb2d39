"""Copying a store while it is in use: what `journal backup` and `journal restore` do.

Theory. LMDB can copy its file, in one read transaction. While that runs, no page that the writer frees can be
used again, and a ring that is full runs out of pages before the copy is done. So this copies values, in steps
that each have a short transaction on both sides, and makes one moment out of them:

1. The log of queues and values is copied forwards. Blocks never change and leave from the old end
   only. If the writer drops blocks that were not copied yet, nothing in them or before them is needed any
   more, and the copy of the log begins anew. A writer that outruns this is followed until as much was copied
   as the store can hold; then one step takes all of it.
2. The step that reaches the end of the log also reads the states of the streams. Its transaction is the
   moment that the copy is of.
3. The chunks of each stream are copied from the newest of that moment backwards, as far as they are still
   there. The ring drops from the other end, so there is no gap: what it dropped meanwhile has left the copy
   just as it has left the stream.

The states are written last, and the meta record with them, so that what was cut off is never taken for a
store. A copy that fails is removed.

The meta record says that this is a copy. What the store gave out after that moment, the copy does not know:
so the broker that begins on it takes another incarnation, with sequences far beyond (`next_incarnation`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from malamute.errors import StoreError
from malamute.journal import format as codec
from malamute.journal.chunk_cursor import ChunkCursor
from malamute.journal.directory import (
    META_TWIN,
    acquire_lock,
    lengthen,
    read_meta,
    sync_directory,
    translated,
)
from malamute.journal.format import BLOCK, CARD, CHUNK, META, QUARANTINE, STREAM, Damaged, StreamMeta, key
from malamute.journal.states import Card, encode_card, newest_lsn, read_states
from malamute.journal.store import Copied
from malamute.store.operations import Damage

STEP_BYTES = 8 * 1024 * 1024
"""What one step copies: the longest time that old pages of the store in use are held."""

SLACK_BYTES = 1024 * 1024
"""How far the copy may outgrow twice the store: its pages are filled otherwise. Its file grows as needed."""

LOCK_BYTES_MAX = 32
_LOCK = re.compile(rb"(\d+\n)?")
"""What stands in the file of a lock: the id of a process, or nothing."""

Reading = Callable[[], AbstractContextManager[lmdb.Transaction]]
"""Begins a read transaction with values as views."""


class Copy:
    """One copy of a store into a directory that has none; a context, which removes what was not finished."""

    def __init__(self, reading: Reading, directory: Path, size: int, progress: Callable[[int], None]) -> None:
        self._reading = reading
        self._directory = directory
        self._progress = progress
        self._size = size
        self._done = 0
        self._chunks = 0
        self._blocks: list[int] = []
        self._damages: list[tuple[str, Damage]] = []
        self._cards: list[Card] = []
        self._is_complete = False
        _check_free(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = acquire_lock(directory)
        except OSError as error:
            raise StoreError(f"cannot use {directory}: {error.strerror}") from error
        try:
            _check_free(directory)
            with translated():
                try:
                    self._target = lmdb.open(str(directory), map_size=2 * size + SLACK_BYTES, mode=0o640)
                except BaseException:  # LMDB leaves a part of its file on a full disk
                    self._remove()
                    raise
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lengthen(self._target)
        self._target.close()
        if not self._is_complete:
            self._remove()
        os.close(self._lock)

    def _remove(self) -> None:
        for name in ("data.mdb", "lock.mdb"):
            with suppress(OSError):
                (self._directory / name).unlink()

    def run(self) -> Copied:
        """Copy everything."""
        meta, states = self._copy_log()
        copies = [self._copy_chunks(state) for state in states if state.name]
        with translated(), self._target.begin(write=True) as target:
            for state in copies:
                target.put(key(STREAM, state.identifier), codec.encode_stream(state))
            for card in self._cards:
                target.put(key(CARD, card.identifier), encode_card(card))
            target.put(key(META), meta)
            target.put(META_TWIN, meta)
        sync_directory(self._directory)
        sync_directory(self._directory.parent)
        self._is_complete = True
        return Copied(len(copies), self._chunks, self._done, len(self._blocks), tuple(self._damages))

    # --- the log

    def _copy_log(self) -> tuple[bytes, list[StreamMeta]]:
        """Copy the log; returns the meta record and the states of the moment of its end."""
        while True:
            step_bytes = STEP_BYTES if self._done < self._size else sys.maxsize
            with self._reading() as source, source.cursor() as cursor:
                oldest = next((number for number, _ in _values(cursor, BLOCK)), None)
                if self._blocks and (oldest is None or oldest > self._blocks[-1] + 1):
                    self._drop_log()
                if self._copy_blocks(cursor, step_bytes):
                    self._copy_quarantine(cursor)
                    found = read_states(cursor)
                    states, self._cards = found.streams, list(found.cards.values())
                    meta = read_meta(source)
                    copied = meta._replace(lsn=newest_lsn(cursor, meta.lsn, found), copied=True)
                    return codec.encode_meta(copied), states
            self._progress(self._done)

    def _copy_blocks(self, cursor: lmdb.Cursor, step_bytes: int) -> bool:
        """Copy blocks from where the last step ended; True at the end of the log."""
        end = self._done + step_bytes
        after = self._blocks[-1] if self._blocks else 0
        with self._target.begin(write=True) as target:
            for number, value in _values(cursor, BLOCK, after + 1):
                if self._done >= end:
                    return False
                target.put(key(BLOCK, 0, number), value)
                self._blocks.append(number)
                self._done += len(value)
        return True

    def _copy_quarantine(self, cursor: lmdb.Cursor) -> None:
        with self._target.begin(write=True) as target:
            for number, value in _values(cursor, QUARANTINE):
                target.put(key(QUARANTINE, 0, number), value)

    def _drop_log(self) -> None:
        with self._target.begin(write=True) as target:
            for number in self._blocks:
                target.delete(key(BLOCK, 0, number))
        self._blocks.clear()

    # --- the streams

    def _copy_chunks(self, state: StreamMeta) -> StreamMeta:
        """Copy the chunks of a stream, the newest first; returns the state of what was copied."""
        copied = state._replace(first=state.last + 1, bytes=0, count=0, chunks=0)
        while copied.first > state.first:
            before = copied.first
            with (
                self._reading() as source,
                source.cursor() as cursor,
                self._target.begin(write=True) as target,
            ):
                for first, value in ChunkCursor(cursor, state).backwards(before - 1, STEP_BYTES):
                    copied = self._copy_chunk(target, copied, first, value)
            if copied.first == before:
                break
            self._progress(self._done)
        return copied

    def _copy_chunk(self, target: lmdb.Transaction, copied: StreamMeta, first: int, value: Any) -> StreamMeta:
        target.put(key(CHUNK, copied.identifier, first), value)
        count, time_ns, era = copied.first - first, copied.first_time, copied.first_era
        try:
            chunk = codec.decode_chunk(value)
            count, time_ns, era = chunk.count, chunk.time_ns, codec.decode_chunk_header(value).era
        except Damaged:
            self._damages.append((copied.name, Damage(first, copied.first - 1, "corrupt")))
        self._chunks += 1
        self._done += len(value)
        return copied._replace(
            first=first,
            first_time=time_ns,
            first_era=era,
            bytes=copied.bytes + len(value),
            count=copied.count + count,
            chunks=copied.chunks + 1,
        )


def _check_free(directory: Path) -> None:
    """Raise `StoreError` unless a copy may be made here; nothing is touched before that is known."""
    if (directory / "data.mdb").exists():
        raise StoreError(f"there is a store in {directory} already: expected an empty directory")
    lock = directory / "lock"
    # It is written to. Only what an earlier copy left behind may be there.
    if lock.is_symlink() or (lock.exists() and not _LOCK.fullmatch(lock.read_bytes()[:LOCK_BYTES_MAX])):
        raise StoreError(f"{lock} does not belong to a store: expected an empty directory")


def _values(cursor: lmdb.Cursor, kind: int, sequence: int = 0) -> Iterator[tuple[int, Any]]:
    """The sequences of a kind of keys and their values, from one sequence on."""
    found = cursor.set_range(key(kind, 0, sequence))
    while found and cursor.key()[0] == kind:
        yield codec.split_key(cursor.key())[2], cursor.value()
        found = cursor.next()
