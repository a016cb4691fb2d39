"""The reading of a query's tasks: slices of streams, as Arrow batches, and their gaps.

A *slice* is a range of sequences of one stream at the source, or a share of the row groups of an exported
file. The driver cuts the source into slices within the bounds of the options; a task reads its slice on any
machine, so only a slice and the options travel.

In an exported file each row group is read by itself, by one task: a damaged one (`checked_file`) is reported,
and the others are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from malamute.errors import InvalidValue, NotFound
from malamute.protocol.limits import NUMBER_MAX
from malamute.spark.checked_file import UNREADABLE, open_checked, whole
from malamute.spark.columns import DAY_NS, Gatherer
from malamute.spark.export_location import ExportLocation
from malamute.spark.filters import RowFilter
from malamute.spark.history import ALL, ExportGap, HistorySource, SequenceRange, check_store
from malamute.spark.layout import manifest_path
from malamute.spark.manifest import File
from malamute.spark.options import ROWS, SourceOptions, check_column
from malamute.spark.scan import HistoryBounds
from malamute.spark.schema import Column, Promoted, arrow_schema, to_arrow

BATCH_ROWS = 32_768
"""Maximum rows of a file passed to Spark at once: more fill the caches, and fewer have a price each."""


SHARE_ROWS = 500_000
"""Approximate messages of a file for one task. With fewer, the price of a task shows where columns are few;
with more, the last task of a query keeps a core waiting."""


class Slice(InputPartition):
    """A range of sequences of a stream, both ends included, at the source or in a file of an export.

    At the source it counts in `store`, if that is known. In a file it is the row groups of one of `shares`
    equal parts of those that the range is in. `file` is its entry in the manifest. A slice with a `fault`
    stands for an unreadable manifest.
    """

    def __init__(
        self,
        stream: str,
        first: int,
        last: int,
        path: str = "",
        share: int = 0,
        shares: int = 1,
        *,
        store: str = "",
        file: File | None = None,
        fault: str = "",
    ) -> None:
        super().__init__((stream, first, last, path, share, shares))
        self.stream = stream
        self.first = first
        self.last = last
        self.path = path
        self.share = share
        self.shares = shares
        self.store = store
        self.file = file
        self.fault = fault


class LostRange(NamedTuple):
    """Unavailable messages: place, and reason. The path is empty outside of files.

    For a damaged manifest the range is empty, and ends before it begins.
    """

    stream: str
    first: int
    last: int
    reason: str
    path: str = ""


Read = Iterator[pa.RecordBatch | LostRange]


class ReadQuery(NamedTuple):
    """A query as it travels to the tasks: its source, its rows, and its columns at least."""

    options: SourceOptions
    promoted: Promoted
    bounds: HistoryBounds
    columns: tuple[str, ...]


# --- in the driver


def slices(query: ReadQuery) -> list[Slice]:
    """Return the slices to read. Raises `NotFound` for an unknown stream."""
    options, bounds = query.options, query.bounds
    if options.is_export:
        rows = options.rows or SHARE_ROWS
        return [piece for file in _files(options, bounds) for piece in deal(file, rows)]
    with options.history() as history:
        there = history.streams()
        if options.stream and options.stream not in there:
            raise NotFound(f"there is no stream {options.stream!r}")
        names = [options.stream] if options.stream else sorted(there)
        ranges = {name: _within(history, name, there[name], bounds) for name in names}
        store = history.store()
    return [piece for name, of in ranges.items() for piece in cut(name, *of, options.rows, store)]


def _within(history: HistorySource, stream: str, kept: SequenceRange, bounds: HistoryBounds) -> SequenceRange:
    first, last = max(kept.first, bounds.first), min(kept.last, bounds.last)
    if first <= last and bounds.since > 0:
        first = max(first, history.find_time(stream, bounds.since))
    if first <= last and bounds.until < NUMBER_MAX:
        last = min(last, history.find_time(stream, bounds.until) - 1)
    return SequenceRange(first, last)


def _files(options: SourceOptions, bounds: HistoryBounds) -> Iterator[Slice]:
    """Yield the possible slices of files within the bounds, and faults of manifests."""
    for manifest in options.manifests():
        if manifest.fault:
            yield Slice(manifest.stream, 1, 0, manifest_path(manifest.stream), fault=manifest.fault)
        for file in manifest.files:
            part = file.part
            if part.first_time < bounds.until and part.last_time >= bounds.since:
                first, last = max(part.first, bounds.first), min(part.last, bounds.last)
                yield Slice(manifest.stream, first, last, file.path, file=file)


def cut(stream: str, first: int, last: int, rows: int, store: str = "") -> list[Slice]:
    """Return a range in slices of `rows` sequences, or of a million, as even as can be."""
    count = max(last - first + 1, 0)
    parts = -(-count // (rows or ROWS))
    edges = [first + count * part // parts for part in range(parts)] + [last + 1]
    return [Slice(stream, start, stop - 1, store=store) for start, stop in pairwise(edges)]


def deal(file: Slice, rows: int) -> list[Slice]:
    """Return a file's part of a range, in slices of about `rows` sequences."""
    if file.fault:
        return [file]
    shares = -(-max(file.last - file.first + 1, 0) // rows)
    if file.file and file.file.is_checked_whole:
        shares = min(shares, 1)  # all of it is read for that, and once is enough
    of = file.stream, file.first, file.last, file.path
    return [Slice(*of, share, shares, file=file.file) for share in range(shares)]


# --- in the tasks


def read(query: ReadQuery, piece: Slice) -> Read:
    """Return the rows of a slice, with the requested columns at least."""
    if piece.fault:
        return iter([LostRange(piece.stream, piece.first, piece.last, piece.fault, piece.path)])
    return _read_file(query, piece) if piece.path else _read_history(query, piece)


def _read_history(query: ReadQuery, piece: Slice) -> Read:
    # A broker has filtered its rows already, with numbers of every size.
    rows = RowFilter(ALL if query.options.url else query.options.wanted)
    bounded = () if query.bounds.whole else ("sequence", "time_ns")
    gatherer = Gatherer(query.promoted, {*query.columns, *rows.columns, *bounded})

    def taken() -> pa.RecordBatch:
        return rows.keeps(query.bounds.keeps(gatherer.take()))

    with query.options.history() as history:
        check_store(piece.store, history, f"what was planned of {piece.stream!r}", "load it again")
        for item in history.read(piece.stream, piece.first, piece.last, query.options.wanted):
            if isinstance(item, ExportGap):
                yield LostRange(piece.stream, *item)
                continue
            gatherer.add(item)
            if gatherer.is_full:
                yield taken()
    if len(gatherer):
        yield taken()


def _read_file(query: ReadQuery, piece: Slice) -> Read:
    import pyarrow.dataset as ds  # takes half of the time that planning a query would need to begin

    place = ExportLocation(query.options.path)
    # A remote store would be asked for a whole row group at once; here that would be memory for nothing.
    reading = ds.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=not place.is_local)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=reading)
    if piece.file and not piece.share:
        for gap in piece.file.part.gaps:
            if gap.first <= query.bounds.last and gap.last >= query.bounds.first:
                yield LostRange(piece.stream, *gap, piece.path)
    try:
        source, _ = open_checked(place.system, place.full(piece.path), piece.file)
        with closing(source):
            yield from _row_groups(query, piece, source, parquet.make_fragment(source))
    except UNREADABLE as error:
        if not piece.share:
            yield LostRange(piece.stream, piece.first, piece.last, f"cannot be read: {error}", piece.path)


def _row_groups(query: ReadQuery, piece: Slice, source: Any, fragment: Any) -> Read:
    schema, within = arrow_schema(query.promoted), _within_file(piece, query.bounds)
    rows = RowFilter(query.options.wanted)
    columns = [*dict.fromkeys((*query.columns, *rows.columns))]
    groups = fragment.split_by_row_group(within, schema)
    # The row groups that may have rows outside the bounds, according to their statistics.
    partly = {_number(group) for group in fragment.split_by_row_group(~within, schema)}
    count = len(groups)
    for group in groups[count * piece.share // piece.shares : count * (piece.share + 1) // piece.shares]:
        # A filter copies every column, so it is left out where the statistics say that all rows stay.
        kept = within if _number(group) in partly else None
        try:
            with whole(source):
                found = group.to_table(schema, columns, kept, use_threads=False)
        except UNREADABLE as error:
            first, last = _sequences(group, piece)
            yield LostRange(piece.stream, first, last, f"cannot be read: {error}", piece.path)
        else:
            yield from map(rows.keeps, found.to_batches(BATCH_ROWS))


def _within_file(piece: Slice, bounds: HistoryBounds) -> pc.Expression:
    """Return the expression for a file's rows within the bounds. Neither column has nulls."""
    sequence, time_ns = pc.field("sequence"), pc.field("time_ns")
    within = (sequence >= piece.first) & (sequence <= piece.last)
    if bounds.since > 0:
        within &= time_ns >= bounds.since
    if bounds.until < NUMBER_MAX:
        within &= time_ns < bounds.until
    return within


def _number(group: Any) -> int:
    """Return the number of a row group in its file."""
    number: int = group.row_groups[0].id
    return number


def _sequences(group: Any, piece: Slice) -> tuple[int, int]:
    """Return the sequences of a row group, as far as they are in the slice."""
    bounds = (group.row_groups[0].statistics or {}).get("sequence")
    if bounds is None:  # that is damaged, too
        return piece.first, piece.last
    return max(bounds["min"], piece.first), min(bounds["max"], piece.last)


# --- as Spark wants it


class RequestedColumns:
    """The columns requested by Spark, in its types. Raises `InvalidValue` for an unknown one."""

    def __init__(self, asked: StructType, columns: Sequence[Column]) -> None:
        there = {column.name: column for column in columns}
        self.schema = to_arrow_schema(asked, timezone="UTC")
        ours = {field.name: field.type for field in to_arrow(columns)}
        for field in self.schema:
            check_column(field.name, there)
            if _plain(field.type) != _plain(ours[field.name]):
                raise InvalidValue(
                    f"invalid type {field.type} of column {field.name!r}: expected {there[field.name].ddl}"
                )

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the columns of a file that are needed for these."""
        sources = {"stream": "sequence", "date": "time_ns"}
        return tuple(dict.fromkeys(sources.get(name, name) for name in self.schema.names)) or ("sequence",)

    def of(self, batch: pa.RecordBatch, stream: str) -> pa.RecordBatch:
        """Return the columns of a batch of one stream."""
        arrays = [self._column(batch, stream, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, batch: pa.RecordBatch, stream: str, field: pa.Field) -> pa.Array:
        if field.name == "stream":
            return pa.repeat(pa.scalar(stream, field.type), batch.num_rows)
        if field.name == "date":
            days = batch.column("time_ns").to_numpy() // DAY_NS
            return pa.array(days, pa.int32()).view(field.type)
        return batch.column(field.name).cast(field.type)

    def of_lost(self, lost: LostRange) -> pa.RecordBatch:
        """Return a lost range as a row of the table of gaps."""
        row = lost._asdict()
        return pa.RecordBatch.from_pylist([{name: row[name] for name in self.schema.names}], self.schema)


def _plain(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "")
