"""The copy of a store in use, for `journal backup` and `journal restore`.

Theory. LMDB can copy its file, in one read transaction. During that transaction, no page that the writer
frees can be used again, and a full ring runs out of pages before the copy is done. So this module copies
values, in steps with a short transaction on both sides, and the copy is still of one moment:

1. The log of queues and values is copied forwards. Blocks never change and leave from the old end only. If
   the writer deletes blocks before they were copied, all blocks up to them are dead, and the copy of the log
   begins anew. If the writer outruns the copy until as many bytes were copied as the store can hold, one
   step copies the whole log.
2. The step that reaches the end of the log also reads the states of the streams. Its transaction is the
   moment of the copy.
3. The chunks of each stream are copied from the newest of that moment backwards, as far as they still exist.
   The ring drops chunks from the other end, so the copy has no gap; it lacks the chunks dropped meanwhile,
   as the stream does.

The states and the meta record are written last, so that a partial copy is never taken for a store. A copy
that fails is removed.

The meta record marks the store as a copy. Sequences that the original gave out after the moment of the copy
are unknown in the copy. So the broker that begins on it takes another incarnation, with sequences far beyond
(`next_incarnation`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from malamute.errors import StoreError
from malamute.journal import format as codec
from malamute.journal.chunk_cursor import ChunkCursor, values_of
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
from malamute.journal.write_ahead import FILE
from malamute.store.operations import Damage

STEP_BYTES = 8 * 1024 * 1024
"""The bytes of one step, which pins old pages of the store in use for its duration."""

SLACK_BYTES = 1024 * 1024
"""The room of the copy beyond twice the store, as its pages may be filled less. Its file grows as needed."""

LOCK_BYTES_MAX = 32
_LOCK = re.compile(rb"(\d+\n)?")
"""The content of a lock file: the id of a process, or nothing."""

Reading = Callable[[], AbstractContextManager[lmdb.Transaction]]
"""Begins a read transaction that returns values as views."""


class Copy:
    """One copy of a store into a directory without a store; the context removes an unfinished copy."""

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
        """Copy the log, then the chunks, then the states; return the contents of the copy."""
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
        """Copy the log; return the meta record, and the states at the moment of its end."""
        while True:
            step_bytes = STEP_BYTES if self._done < self._size else sys.maxsize
            with self._reading() as source, source.cursor() as cursor:
                oldest = next((number for number, _ in values_of(cursor, BLOCK)), None)
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
        """Copy the next blocks; return True at the end of the log."""
        end = self._done + step_bytes
        after = self._blocks[-1] if self._blocks else 0
        with self._target.begin(write=True) as target:
            for number, value in values_of(cursor, BLOCK, after + 1):
                if self._done >= end:
                    return False
                target.put(key(BLOCK, 0, number), value)
                self._blocks.append(number)
                self._done += len(value)
        return True

    def _copy_quarantine(self, cursor: lmdb.Cursor) -> None:
        with self._target.begin(write=True) as target:
            for number, value in values_of(cursor, QUARANTINE):
                target.put(key(QUARANTINE, 0, number), value)

    def _drop_log(self) -> None:
        with self._target.begin(write=True) as target:
            for number in self._blocks:
                target.delete(key(BLOCK, 0, number))
        self._blocks.clear()

    # --- the streams

    def _copy_chunks(self, state: StreamMeta) -> StreamMeta:
        """Copy the chunks of a stream, the newest first; return the state of the copied stream."""
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
            codec.decode_chunk(value)
            header = codec.decode_chunk_header(value)
            count, time_ns, era = header.messages, header.time_ns, header.era
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
    """Raise `StoreError` if the directory has a store or another file of this name, before any change."""
    if (directory / "data.mdb").exists() or (directory / FILE).exists():
        raise StoreError(f"there is a store in {directory} already: expected an empty directory")
    lock = directory / "lock"
    # The copy overwrites the lock file, so only one of an earlier copy may exist.
    if lock.is_symlink() or (lock.exists() and not _LOCK.fullmatch(lock.read_bytes()[:LOCK_BYTES_MAX])):
        raise StoreError(f"{lock} does not belong to a store: expected an empty directory")
