"""History as Parquet files, for any data tool: the work of `malamute journal export`.

Theory. An export continues where the last one ended, so it may be repeated at any time, and its memory is two
batches and the unwritten part of a file. A file ends with its UTC date, at a size, or at the end of the
range. `place` makes it visible as a whole, `manifest` accounts for it. So an export that is killed at any
moment leaves whole files, and the next one continues behind the last of them.

Each batch is a row group, whose statistics give a reader its sequences, times and subjects. The numbers
are stored as differences, which take next to nothing; texts that repeat are stored once for each group.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from malamute.errors import StoreError
from malamute.protocol.batch import Columns
from malamute.spark.columns import Gatherer, by_day
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import ExportGap, HistorySource, SequenceRange, check_store, range_of, sequence_at
from malamute.spark.layout import date_of, file_path
from malamute.spark.manifest import File, FileContents, Manifest, encode_footer, save, settle
from malamute.spark.schema import Promoted

FILE_ROWS = 4_000_000
FILE_BYTES = 256 * 1024 * 1024
"""Messages or bytes with which a file ends, with the batch that exceeds them."""

LEFT_OUT = "left-out"
"""The reason of a gap between the last export and the start of this one."""

DIFFERENCES = ("sequence", "time", "time_ns", "size")
REPEATED = (
    "sender",
    "subject",
    "parts.list.element",
    "headers.key_value.key",
    "headers.key_value.value.text",
)

Progress = Callable[[int, int], None]
"""Called with the number of messages done, and the number of all."""


class Exported(NamedTuple):
    """The result of one export of a stream: the messages and files added, and the gaps.

    If it is `limited`, rules keep more back from the user that exports.
    """

    stream: str
    first: int
    last: int
    messages: int
    files: int
    bytes: int
    malformed: int
    gaps: Sequence[ExportGap]
    limited: bool = False


def export(
    history: HistorySource,
    stream: str,
    place: ExportLocation,
    *,
    promoted: Promoted | None = None,
    since: str = "",
    until: str = "",
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Export the new messages of a stream, from `since` and before `until`, as `sequence_at` reads them.

    Earlier files stay as they are, with their promoted headers. Raises `NotFound` for an unknown stream,
    `StoreLocked` when another process exports it, `StoreError` and `StorageFull`.
    """
    now = time.time_ns()
    kept = range_of(history, stream)
    with place.lock(stream):
        manifest = settle(place, stream, promoted)
        check_same_store(history, place, manifest, kept)
        first = manifest.last + 1 if manifest.last else kept.first
        last = kept.last
        if since:
            first = max(first, sequence_at(history, stream, since, now))
        if until:
            last = min(last, sequence_at(history, stream, until, now) - 1)
        writer = _Writer(place, manifest, history.store())
        gaps: list[ExportGap] = []
        if manifest.last and manifest.last < first - 1 < last:
            # The caller does not want these messages, and later exports begin behind them.
            gaps.append(ExportGap(manifest.last + 1, first - 1, LEFT_OUT))
            writer.gaps += gaps
        with writer, ThreadPoolExecutor(1, "malamute-export") as thread:
            writing: Future[None] | None = None
            for item in _batches(history, stream, first, last, writer.gatherer):
                writer.limited = stream in history.limited
                # One batch is written, which is mostly compressing, while the next is gathered.
                if writing is not None:
                    writing.result()
                if isinstance(item, ExportGap):
                    gaps.append(item)
                    writer.gaps.append(item)
                    writing = None
                else:
                    writing = thread.submit(writer.write, item)
                    progress(item.column("sequence")[-1].as_py() - first + 1, last - first + 1)
            if writing is not None:
                writing.result()
    added = writer.manifest.files[len(manifest.files) :]
    return Exported(
        stream,
        added[0].part.first if added else 0,
        added[-1].part.last if added else 0,
        sum(file.part.count for file in added),
        len(added),
        sum(file.size for file in added),
        sum(file.part.malformed for file in added),
        gaps,
        stream in history.limited,
    )


def check_same_store(
    history: HistorySource, place: ExportLocation, manifest: Manifest, kept: SequenceRange
) -> None:
    """Raise `StoreError` unless an export can go on from this history."""
    whose, remedy = f"the export of {manifest.stream!r} in {place.root}", "export to another directory"
    check_store(manifest.store, history, whose, remedy)
    if not manifest.store and kept.last < manifest.last:
        raise StoreError(
            f"{whose} ends with {manifest.last}, and the stream with {kept.last}: it is of another store, or"
            f" this one has lost messages; {remedy}"
        )


def _batches(
    history: HistorySource, stream: str, first: int, last: int, gatherer: Gatherer
) -> Iterator[pa.RecordBatch | ExportGap]:
    """Yield the batches of a range, and each gap before the batch that it is before or in."""
    for item in history.read(stream, first, last):
        if isinstance(item, Columns):
            gatherer.add(item)
            if gatherer.is_full:
                yield gatherer.take()
        else:
            yield item
    if len(gatherer):
        yield gatherer.take()


class _Writer:
    """Writes batches to files and enters them in the manifest; a context that removes unfinished files."""

    def __init__(self, place: ExportLocation, manifest: Manifest, store: str) -> None:
        self._place = place
        self._store = store
        self.manifest = manifest
        self.gatherer = Gatherer(manifest.promoted)
        self.gaps: list[ExportGap] = []
        self.limited = False
        self._file: ExportFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, which may have messages of several days."""
        for piece in by_day(batch):
            date = date_of(piece.column("time_ns")[0].as_py())
            if self._file is not None and self._file.date != date:
                self._finish()
            if self._file is None:
                self._file = ExportFile(self._place, self.manifest, date, piece)
            self._file.write(piece)
            if self._file.is_full:
                self._finish()

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            entry = file.finish(self.gaps, self._store, limited=self.limited)
            self.gaps = [gap for gap in self.gaps if gap.first > entry.part.last]
            self.manifest = self.manifest._replace(files=(*self.manifest.files, entry))
            save(self._place, self.manifest)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        elif self._file is not None:
            self._file.abandon()


class ExportFile:
    """A file being written: a row group for each batch."""

    def __init__(self, place: ExportLocation, manifest: Manifest, date: str, batch: pa.RecordBatch) -> None:
        self.date = date
        self._manifest = manifest
        self._first, self._first_time = _position(batch, 0)
        self._last, self._last_time = 0, 0
        self._count = self._malformed = 0
        with ExitStack() as stack:
            path = file_path(manifest.stream, date, self._first, self._first)
            self._sink = stack.enter_context(place.writing(path))
            self._parquet = pq.ParquetWriter(
                self._sink,
                batch.schema,
                compression="zstd",
                use_dictionary=[*REPEATED],
                column_encoding=dict.fromkeys(DIFFERENCES, "DELTA_BINARY_PACKED"),
                write_statistics=_with_statistics(batch.schema),
                sorting_columns=[pq.SortingColumn(0)],
                write_page_checksum=True,
            )
            # The head of a file belongs to no row group, and no reader reads it.
            self._sink.end_block()
            self._stack = stack.pop_all()

    @property
    def is_full(self) -> bool:
        """Return whether the file is to be finished."""
        return self._count >= FILE_ROWS or self._sink.size >= FILE_BYTES

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a row group."""
        self._parquet.write_batch(batch)
        self._sink.end_block()
        self._last, self._last_time = _position(batch, -1)
        self._count += batch.num_rows
        self._malformed += batch.column("headers").null_count

    def finish(self, gaps: Sequence[ExportGap], store: str = "", *, limited: bool) -> File:
        """Publish the file under its name. The gaps are those since the file before."""
        stream, promoted = self._manifest.stream, self._manifest.promoted
        within = tuple(gap for gap in gaps if gap.first <= self._last)
        times = self._first_time, self._last_time
        counted = self._first, self._last, self._count, *times
        part = FileContents(*counted, within, self._malformed, limited, store)
        self._sink.path = file_path(stream, self.date, self._first, self._last)
        with self._stack:
            self._parquet.add_key_value_metadata(encode_footer(stream, promoted, part, self._sink.blocks))
            with self._sink.footer():
                self._parquet.close()
        return File(self._sink.path, self._sink.size, self._sink.crc, part, has_checksums=True)

    def abandon(self) -> None:
        """Remove the file, after an exception."""
        self._parquet.is_open = False
        self._stack.__exit__(*sys.exc_info())


def _with_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics of each row group, by which readers skip it.

    Not floating-point numbers: statistics leave out NaN, which is the greatest number for Spark and others,
    so that they would pass over row groups that have it.
    """
    plain = (field for field in schema if not pa.types.is_nested(field.type))
    return [field.name for field in plain if not pa.types.is_floating(field.type)]


def _position(batch: pa.RecordBatch, row: int) -> tuple[int, int]:
    """Return the sequence and the time of a row."""
    return batch.column("sequence")[row].as_py(), batch.column("time_ns")[row].as_py()
