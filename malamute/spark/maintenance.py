"""The maintenance of an export: small files become few, and old days leave.

Theory. The manifest says which files are the export. A joined file gets its name first, the manifest names it
in place of its parts next, and the parts go last; a day is taken out of the manifest before its files go. So
a process that is killed leaves files whose messages the manifest has elsewhere, or has expired: `settle`
removes them, as the next export and the next maintenance do. A reader without the manifest sees messages
twice between the first step and the last.

On a day that is over, files are joined up to the size at which an export ends one. Today, only many small
ones are: so a message is written anew twice, and seldom a third time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from malamute.errors import StoreCorrupt
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark import export
from malamute.spark.columns import BATCH_ROWS
from malamute.spark.export_location import ExportLocation
from malamute.spark.layout import date_of, date_of_file
from malamute.spark.manifest import Expired, File, Manifest, save, settle

OPEN_FILES = 60
"""Small files of today that are joined before the day is over."""

SMALL_PARTS = 64
"""A file of today is small below this part of the size at which an export ends a file."""


class Joined(NamedTuple):
    """The result for one stream: `files` became `into` files, of `messages` messages."""

    stream: str
    files: int
    into: int
    messages: int


class Left(NamedTuple):
    """The files and messages of a stream that have left, with everything up to a sequence."""

    stream: str
    files: int
    messages: int
    last: int


def compact(
    place: ExportLocation, stream: str, progress: export.Progress = lambda done, total: None
) -> Joined:
    """Join the small files of a stream, day by day.

    Raises `StoreLocked` while another process exports it, and `StoreCorrupt` for a file that is not as it was
    written, which stays with all behind it.
    """
    with place.lock(stream):
        manifest = settle(place, stream, None)
        groups = [*_groups(manifest.files, date_of(time.time_ns()))]
        total, done = sum(file.part.count for group in groups for file in group), 0
        for group in groups:
            joined = _join(place, manifest, group)
            at = manifest.files.index(group[0])
            files = (*manifest.files[:at], joined, *manifest.files[at + len(group) :])
            manifest = manifest._replace(files=files)
            save(place, manifest)
            _remove(place, group)
            done += joined.part.count
            progress(done, total)
    return Joined(stream, sum(map(len, groups)), len(groups), done)


def _groups(files: Sequence[File], today: str) -> Iterator[list[File]]:
    """Yield the files to be joined, those of one file in a group."""
    for (date, _), run in groupby(files, lambda file: (date_of_file(file.path), file.part.store)):
        if date < today:
            yield from (
                group for group in _packed(run, export.FILE_ROWS, export.FILE_BYTES) if len(group) > 1
            )
            continue
        for small, some in groupby(run, _is_small):
            if small and len(group := [*some]) >= OPEN_FILES:
                yield from _packed(group, export.FILE_ROWS, export.FILE_BYTES)


def _is_small(file: File) -> bool:
    return (
        file.part.count <= export.FILE_ROWS // SMALL_PARTS and file.size <= export.FILE_BYTES // SMALL_PARTS
    )


def _packed(files: Iterator[File] | list[File], rows_max: int, bytes_max: int) -> Iterator[list[File]]:
    group: list[File] = []
    rows = size = 0
    for file in files:
        if group and (rows + file.part.count > rows_max or size + file.size > bytes_max):
            yield group
            group, rows, size = [], 0, 0
        group.append(file)
        rows, size = rows + file.part.count, size + file.size
    if group:
        yield group


def _join(place: ExportLocation, manifest: Manifest, group: Sequence[File]) -> File:
    batches = _batches(place, group)
    first = next(batches)
    file = export.ExportFile(place, manifest, date_of_file(group[0].path), first)
    try:
        # One batch is written, which is mostly compressing, while the next is read.
        with ThreadPoolExecutor(1, "malamute-compact") as thread:
            writing = thread.submit(file.write, first)
            for batch in batches:
                writing.result()
                writing = thread.submit(file.write, batch)
            writing.result()
    except BaseException:
        file.abandon()
        raise
    gaps = [gap for part in group for gap in part.part.gaps]
    limited = any(part.part.limited for part in group)
    return file.finish(gaps, group[0].part.store, limited=limited)


def _batches(place: ExportLocation, group: Sequence[File]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of verified files, in batches of the size that an export writes."""
    held: list[pa.RecordBatch] = []
    for file in group:
        written = place.measure(file.path)
        if (written.size, written.crc) != (file.size, file.crc):
            raise StoreCorrupt(f"{file.path} is not as it was written: find out more with export verify")
        with pq.ParquetFile(place.full(file.path), filesystem=place.system) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS):
                if held and sum(map(len, held)) + len(batch) > BATCH_ROWS:
                    yield _one(held)
                    held = []
                held.append(batch)
    yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def expire(place: ExportLocation, stream: str, age_seconds: float) -> Left:
    """Remove the days of a stream that ended more than `age_seconds` ago, from the oldest on.

    `verify` and later exports know them as expired. Raises `StoreLocked`, `StoreCorrupt`.
    """
    # A day has ended when the next one has begun.
    oldest = date_of(time.time_ns() - int(age_seconds * NS_PER_SECOND))
    with place.lock(stream):
        manifest = settle(place, stream, None)
        kept = next(
            (at for at, file in enumerate(manifest.files) if date_of_file(file.path) >= oldest),
            len(manifest.files),
        )
        gone = manifest.files[:kept]
        if gone:
            expired = Expired(gone[-1].part.last, gone[-1].part.store)
            save(place, manifest._replace(files=manifest.files[kept:], expired=expired))
            _remove(place, gone)
    messages = sum(file.part.count for file in gone)
    return Left(stream, len(gone), messages, gone[-1].part.last if gone else manifest.expired.last)


def _remove(place: ExportLocation, files: Sequence[File]) -> None:
    for file in files:
        place.remove(file.path)
    place.remove_empty({file.path.rpartition("/")[0] for file in files})
