"""The repair of a store that no broker uses, for `malamute journal repair`.

If pages that lead to values are damaged, a new file is made of all readable values first (`salvage`). States
of streams, even missing ones, and the meta record are rebuilt from other values. Damaged values, and values
that were put aside before, move into files beside the store, named by their keys, and so does the old file:
nothing is deleted. A damaged chunk stays, since readers get a gap of its range as long as it exists. So does
a damaged block of the log: the broker settles its messages at the next start, and then puts it aside.

The repair is one transaction, and the files are durable before its commit. A write-ahead log with a damaged
record is replaced by one with its intact records, which the next start takes over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb

from malamute.errors import StoreCorrupt, StoreError
from malamute.journal import format as codec
from malamute.journal import pair_record
from malamute.journal.backup import SLACK_BYTES
from malamute.journal.blocks import decode_block
from malamute.journal.directory import (
    META_TWIN,
    acquire_lock,
    put_meta,
    read_meta,
    sync_directory,
    translated,
    used_bytes,
)
from malamute.journal.format import ASIDE, BLOCK, CHUNK, META, QUARANTINE, Damaged, key
from malamute.journal.lmdb_pages.pages import check_pages, words
from malamute.journal.lmdb_pages.salvage import salvage
from malamute.journal.states import LSN_STEP, States, made_anew, newest_lsn, read_states
from malamute.journal.store import Progress, no_progress
from malamute.journal.write_ahead import (
    FILE,
    FoundRecords,
    WriteAheadFile,
    encode_record,
    find_records,
    read_log,
)

DAMAGED = "damaged"
"""The directory beside the store for the values that were moved out."""

NEW = "new-data.mdb"
"""The name of the new file until it replaces the old one."""

REBUILT, MOVED_OUT, LEFT = "rebuilt", "moved out", "left"


class Repair(NamedTuple):
    """One damaged value, and the action on it: rebuilt, moved out, or left in its place."""

    kind: str
    name: str
    first: int
    last: int
    action: str
    reason: str


def repair(
    directory: str | os.PathLike[str], *, dry_run: bool = False, progress: Progress = no_progress
) -> list[Repair]:
    """Repair the store in a directory, or only report the repairs with `dry_run`.

    Raises StoreLocked if a broker uses the store, StoreTooNew if a newer format is in it, StoreCorrupt if
    no value is readable, StoreError otherwise.
    """
    path = Path(directory)
    data = path / "data.mdb"
    if not data.is_file():
        raise StoreError(f"there is no store in {path}")
    lock = acquire_lock(path)
    try:
        done = _salvage(path, data, dry_run=dry_run)
        if done and dry_run:
            return done
        with translated(), _open(path, data, is_new=bool(done)) as environment:
            if not done and used_bytes(environment) > data.stat().st_size:
                raise StoreCorrupt(f"{data} was cut off: it has {data.stat().st_size} bytes")
            with environment.begin(write=True, buffers=True) as transaction:
                rest = _Repairing(transaction, path / DAMAGED, dry_run, progress).run()
                if dry_run:
                    transaction.abort()
                elif done or rest:
                    pair_record.remove(transaction)
            rest += _repair_log(path, environment, dry_run=dry_run)
        if done:
            _replace(path, data)
        return done + rest
    finally:
        os.close(lock)


def _salvage(path: Path, data: Path, *, dry_run: bool) -> list[Repair]:
    """Make a new file if pages that lead to values are damaged; return the lost pages."""
    faults = check_pages(data, values=True)
    if faults and not dry_run:
        with translated():
            faults = [*dict.fromkeys([*faults, *salvage(data, path / NEW)])]
    return [Repair("page", "", fault.number, fault.number, MOVED_OUT, words(fault)) for fault in faults]


def _open(path: Path, data: Path, *, is_new: bool) -> lmdb.Environment:
    size = data.stat().st_size + SLACK_BYTES
    if is_new:
        return lmdb.open(str(path / NEW), subdir=False, lock=False, map_size=2 * size)
    return lmdb.open(str(path), map_size=size, create=False)


def _replace(path: Path, data: Path) -> None:
    """Replace the old file by the new one, repaired and durable; the old one stays under another name."""
    aside = path / DAMAGED
    aside.mkdir(exist_ok=True)
    kept = aside / f"data.mdb.{len([*aside.glob('data.mdb.*')])}"
    try:
        os.link(data, kept)
    except OSError:  # a file system without links: for a moment no file has the name
        os.rename(data, kept)
    sync_directory(aside)
    os.rename(path / NEW, data)
    sync_directory(path)


def _repair_log(path: Path, environment: lmdb.Environment, *, dry_run: bool) -> list[Repair]:
    """Move a write-ahead log with damage out, and put its intact records into a new one."""
    data = read_log(path)
    try:
        with environment.begin() as transaction:
            meta = read_meta(transaction)
        found = find_records(data, meta)
        if not found.cut_off and not found.later:
            return []
        reason = f"a record does not check; {len(found.records) + len(found.later)} others stay"
    except StoreCorrupt as error:
        found, reason = FoundRecords(), error.text
    if not dry_run:
        with environment.begin(write=True) as transaction:
            pair_record.remove(transaction)
        aside = path / DAMAGED
        aside.mkdir(exist_ok=True)
        (aside / f"{FILE}.{len([*aside.glob(f'{FILE}.*')])}").write_bytes(data)
        sync_directory(aside)
        records = [*found.records, *found.later]
        first = records[0].lsn if records else 0
        kept = [
            encode_record(meta, number, record.operations) for number, record in enumerate(records, first)
        ]
        WriteAheadFile(path, len(data), b"".join(kept)).close()
    return [Repair("log", "", found.end, found.end, MOVED_OUT, reason)]


class _Repairing:
    """One repair, in one transaction."""

    def __init__(
        self, transaction: lmdb.Transaction, directory: Path, dry_run: bool, progress: Progress
    ) -> None:
        self._transaction = transaction
        self._directory = directory
        self._dry_run = dry_run
        self._progress = progress
        self._done: list[Repair] = []
        self._is_ours = False
        self._lsn = 0
        self._is_lsn_known = True

    def run(self) -> list[Repair]:
        """Check every value, make the repairs, and return them."""
        self._check_pair()
        with self._transaction.cursor() as cursor:
            states = read_states(cursor)
            names = {stream.identifier: stream.name for stream in states.streams}
            chunks, moves = self._look(cursor, names)
            self._repair_states(cursor, states, chunks - names.keys())
            self._lsn = newest_lsn(cursor, 0, states)
            is_damaged = any(repair.place[0] == codec.STREAM for repair in states.repairs)
            self._is_lsn_known = not is_damaged and chunks <= names.keys()
        for place, value in moves:
            self._move_out(place, value)
            if not self._dry_run:
                self._transaction.delete(place)
        self._repair_meta()
        if self._directory.is_dir() and not self._dry_run:
            sync_directory(self._directory)
            sync_directory(self._directory.parent)
        return self._done

    def _look(self, cursor: lmdb.Cursor, names: dict[int, str]) -> tuple[set[int], list[tuple[bytes, bytes]]]:
        """Check all values; return the identifiers with chunks, and the values to move out."""
        chunks: set[int] = set()
        moves: list[tuple[bytes, bytes]] = []
        total = self._transaction.stat()["entries"]
        for number, (raw, value) in enumerate(_items(cursor)):
            if number % 256 == 0:
                self._progress(number, total)
            place = bytes(raw)
            try:
                kind, identifier, sequence = codec.split_key(place)
            except Damaged:
                kind = identifier = sequence = 0
            if kind == CHUNK:
                chunks.add(identifier)
                reason = codec.fault_of(codec.decode_chunk, value)
                self._is_ours |= not reason
                if reason:
                    name = names.get(identifier, "")
                    self._done.append(Repair("chunk", name, sequence, sequence, LEFT, reason))
            elif kind == BLOCK:
                reason = codec.fault_of(decode_block, value)
                self._is_ours |= not reason
                if reason:
                    self._done.append(Repair("block", "", sequence, sequence, LEFT, reason))
            elif kind in (QUARANTINE, ASIDE) or not META <= kind <= ASIDE:
                name = {QUARANTINE: "block", ASIDE: "aside"}.get(kind, "unknown")
                reason = "put aside before" if kind in (QUARANTINE, ASIDE) else "no key of a store"
                moves.append((place, bytes(value)))
                self._done.append(Repair(name, "", sequence, sequence, MOVED_OUT, reason))
        self._progress(total, total)
        return chunks, moves

    def _repair_states(self, cursor: lmdb.Cursor, states: States, orphans: set[int]) -> None:
        self._is_ours |= bool(states.cards) or len(states.streams) > len(states.repairs)
        for defect in states.defects:
            self._done.append(Repair(*defect[:4], REBUILT, defect.outcome))
        for place, found, value in states.repairs:
            if found is not None:
                self._move_out(place, found)
            self._put(place, value)
        for identifier in sorted(orphans):
            stream = made_anew(cursor, identifier, states, None)
            states.streams.append(stream)
            self._put(key(codec.STREAM, identifier), codec.encode_stream(stream))
            reason = "its state was gone"
            self._done.append(Repair("stream", stream.name, stream.first, stream.last, REBUILT, reason))

    def _check_pair(self) -> None:
        """Refuse half a copy of a primary; move a damaged record of the pair out."""
        value = bytes(self._transaction.get(pair_record.PLACE) or b"")
        try:
            pair_record.refuse_half(pair_record.read(self._transaction))
        except StoreCorrupt as error:
            self._done.append(Repair("pair", "", 0, 0, MOVED_OUT, error.text))
            self._move_out(pair_record.PLACE, value)

    def _repair_meta(self) -> None:
        places = key(META), META_TWIN
        found = {
            place: bytes(value) for place in places if (value := self._transaction.get(place)) is not None
        }
        try:
            meta = read_meta(self._transaction)
            reason = "it was rebuilt from its twin"
        except StoreCorrupt:
            if not self._is_ours:
                raise
            # The sequences used before a restore are unknown without the record, as in a copy.
            meta = codec.Meta(codec.STORE_VERSION, os.urandom(16), copied=True)
            self._is_lsn_known = False
            reason = "it is lost with its twin: for clients this is another broker, restored, from now on"
        value = codec.encode_meta(meta)
        damaged = {place: old for place, old in found.items() if codec.fault_of(codec.decode_meta, old)}
        if not self._is_lsn_known:
            meta = meta._replace(lsn=max(meta.lsn, self._lsn) + LSN_STEP)
        is_repaired = bool(damaged) or found.get(key(META)) != value
        if is_repaired:
            self._done.append(Repair("meta", "", 0, 0, REBUILT, reason))
            for place, old in damaged.items():
                self._move_out(place, old)
        if not self._dry_run and (is_repaired or not self._is_lsn_known):
            put_meta(self._transaction, meta)

    def _put(self, place: bytes, value: bytes | None) -> None:
        if self._dry_run:
            return
        if value is None:
            self._transaction.delete(place)
        else:
            self._transaction.put(place, value)

    def _move_out(self, place: bytes, value: bytes) -> None:
        """Write a value to a new file, and fsync it."""
        if self._dry_run:
            return
        self._directory.mkdir(exist_ok=True)
        for number in range(1_000_000):
            path = self._directory / f"{place.hex()}.{number}"
            try:
                with path.open("xb") as file:
                    file.write(value)
                    file.flush()
                    os.fsync(file.fileno())
                return
            except FileExistsError:
                continue
        raise StoreError(f"too many files in {self._directory}: move those of earlier repairs away")


def _items(cursor: lmdb.Cursor) -> Iterator[tuple[bytes, memoryview]]:
    found = cursor.first()
    while found:
        place, value = cursor.item()
        yield bytes(place), memoryview(value)
        found = cursor.next()
