"""Reading exported history by tasks: every row group becomes a small table, and Spark puts those together.

Between Spark's Java and Python every row costs about a microsecond, before any work on it. So the jobs do not
let Spark read the files: a task gets their *names*, reads them by pyarrow where it runs, and returns only its
results. Then Spark joins the parts of all tasks with all available memory and disk.

    files ──dealt──▶ tasks ──row group by row group──▶ Parts ──function──▶ small tables ──▶ Spark

A task gets files that follow each other, and holds one row group at a time, or a few that are small. So its
memory does not grow with the number of messages. Subjects, senders, and the names and texts of headers come
as dictionaries, which Parquet has on the disk already: a result for a subject is computed once for each row
group.

A damaged file or row group (`checked_file`) is an `ExportDamage` in place of a `HistoryPart`; all others are
read. The files are those of the directories and of the manifest, if there is one: it has the missing ones,
and checksums of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from malamute.errors import InvalidValue, NotFound, StoreError, StoreTooNew
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.time_units import to_seconds
from malamute.spark.checked_file import UNREADABLE, open_checked, whole
from malamute.spark.export_location import ExportLocation
from malamute.spark.layout import (
    DATE,
    MANIFEST,
    STREAM,
    SUFFIX,
    date_of,
    manifest_path,
    range_of_file,
)
from malamute.spark.manifest import File, load, stream_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DICTIONARIES = ("subject", "sender")
ENCODED = (*DICTIONARIES, "headers.key_value.key", "headers.key_value.value.text")
"""Columns read as dictionaries. Without them, repeated texts are most of the time of a reader."""

TASKS_EACH_CORE = 3
"""Tasks for each core, so that a long one does not keep all waiting."""

SHARES_EACH_TASK = 4
"""About so many shares are dealt to a task, so that each task gets as much as the others."""

FEW = 8
"""Number of codes up to which a search for each is faster than sorting."""

Numbers = np.ndarray[Any, Any]

SHARE_BYTES = 8 * 1024 * 1024
"""Smaller files are not shared."""

OPEN_BYTES = 256 * 1024
"""To open a file takes as long as to read so much."""

PART_ROWS = 65_536
PART_BYTES = 16 * 1024 * 1024
"""Row groups are put together up to so much: an export that follows makes small files, and each part has a
price."""


class HistoryBounds(NamedTuple):
    """A part of the history: no streams means all; times in nanoseconds; `until` is not included."""

    streams: tuple[str, ...] = ()
    since: int = 0
    until: int = NUMBER_MAX
    first: int = 0
    last: int = NUMBER_MAX

    def overlaps(self, group: Any) -> bool:
        """Return whether a row group may have a message within the bounds, according to its statistics."""
        columns = [group.column(number) for number in range(group.num_columns)]
        found = {column.path_in_schema: column.statistics for column in columns}
        ranges = {"sequence": (self.first, self.last), "time_ns": (self.since, self.until - 1)}
        return all(
            statistics is None
            or not statistics.has_min_max
            or (statistics.min <= high and statistics.max >= low)
            for name, (low, high) in ranges.items()
            for statistics in (found.get(name),)
        )

    @property
    def whole(self) -> bool:
        """Return whether the bounds include all messages of these streams."""
        return self[1:] == (0, NUMBER_MAX, 0, NUMBER_MAX)

    def keeps(self, table: pa.Table) -> pa.Table:
        """Return the rows within the bounds."""
        if self.whole:
            return table
        times, numbers = table.column("time_ns"), table.column("sequence")
        tests = (
            pc.greater_equal(times, self.since),
            pc.less(times, self.until),
            pc.greater_equal(numbers, self.first),
            pc.less_equal(numbers, self.last),
        )
        mask = tests[0]
        for test in tests[1:]:
            mask = pc.and_(mask, test)
        return table.filter(mask)


class Piece(NamedTuple):
    """A file of the history, or a share of it: the row groups of one of `shares` equal parts.

    The order of pieces is the order of the messages of a stream. `file` is its entry in the manifest. A piece
    with a `fault` stands for an unreadable manifest.
    """

    stream: str
    date: str
    path: str
    size_bytes: int
    share: int = 0
    shares: int = 1
    file: File | None = None
    fault: str = ""

    def split(self, most_bytes: int) -> list[Piece]:
        """Return pieces of about `most_bytes` each."""
        is_shared = not (self.file and self.file.is_checked_whole)
        shares = max(1, -(-self.size_bytes // max(1, most_bytes))) if is_shared else 1
        return [
            self._replace(size_bytes=self.size_bytes // shares, share=n, shares=shares) for n in range(shares)
        ]

    def row_groups(self, count: int) -> range:
        """Return the row groups of the piece."""
        return range(count * self.share // self.shares, count * (self.share + 1) // self.shares)


class HistoryPart(NamedTuple):
    """A row group, or small ones together, within the bounds; never empty."""

    stream: str
    date: str
    batch: pa.RecordBatch


class ExportDamage(NamedTuple):
    """An unreadable row group of a file, or all of it (-1), with its messages if known (0)."""

    path: str
    stream: str
    row_group: int
    messages: int
    reason: str


class ExportedHistory:
    """An exported directory: a path, or a URL of a file system that pyarrow knows, such as `s3://`."""

    def __init__(self, location: str, bounds: HistoryBounds = HistoryBounds()) -> None:  # noqa: B008  # it is a value
        self.location = location
        self.bounds = bounds
        self.pieces = _pieces(location, bounds)

    @property
    def streams(self) -> list[str]:
        """Return the streams that have files within the bounds."""
        return sorted({piece.stream for piece in self.pieces})

    def seconds(self) -> float:
        """Return its duration, by the footers of the outermost files of each stream; 0 if none has one."""
        files, _ = file_system(self.location)
        pieces: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            if not piece.fault:
                pieces.setdefault(piece.stream, []).append(piece)
        outermost = {piece for of in pieces.values() for piece in (of[0], of[-1])}
        times = [time for piece in outermost for time in _times(files, piece, self.bounds)]
        return to_seconds(max(times) - min(times)) if times else 0.0

    def of(self, *streams: str) -> list[Piece]:
        """Return the pieces of some streams."""
        return [piece for piece in self.pieces if piece.stream in streams]


def _times(files: fs.FileSystem, piece: Piece, bounds: HistoryBounds) -> Iterator[int]:
    """Yield the times of the first and the last message in each row group of a file within the bounds."""
    try:
        source, metadata = open_checked(files, piece.path, piece.file)
    except UNREADABLE:
        return  # its reader reports the damage
    source.close()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        found = {column.path_in_schema: column.statistics for column in columns}
        if (times := found.get("time_ns")) and times.has_min_max and bounds.overlaps(group):
            yield from (max(times.min, bounds.since), min(times.max, bounds.until))


def _pieces(location: str, bounds: HistoryBounds) -> list[Piece]:
    """Return the files within the bounds, as far as their names show.

    Raises `InvalidValue`, `NotFound`, or `StoreTooNew` for files of a newer version.
    """
    files, root = file_system(location)
    try:
        infos = files.get_file_info(fs.FileSelector(root, recursive=True))
    except OSError as error:
        raise NotFound(f"cannot read {location} as exported history: {error}") from error
    there = {info.path.removeprefix(root).strip("/"): info for info in infos if info.type == fs.FileType.File}
    place = ExportLocation(location)
    name_of = cache(partial(stream_of, place))
    pieces = ((path, _piece(path, info.path, info.size, name_of)) for path, info in there.items())
    found = {path: piece for path, piece in pieces if piece}
    faults = []
    for stream in map(name_of, _with_manifest(place.files(MANIFEST))):
        if not bounds.streams or stream in bounds.streams:
            try:
                found |= _entered(place, root, stream)
            except StoreTooNew:
                raise
            except StoreError as error:
                faults.append(Piece(stream, "", place.full(manifest_path(stream)), 0, fault=error.text))
    known = {piece.stream for piece in found.values()}
    if not known:
        raise NotFound(f"no exported history in {location}: export to it with `malamute journal export`")
    if unknown := sorted(set(bounds.streams) - known):
        raise NotFound(
            f"no stream {', '.join(map(repr, unknown))} in {location}: expected {', '.join(sorted(known))}"
        )
    since, until = date_of(bounds.since), date_of(min(bounds.until, NUMBER_MAX))
    within = (piece for piece in found.values() if since <= piece.date <= until and _numbered(piece, bounds))
    wanted = set(bounds.streams) or known
    return sorted(piece for piece in (*faults, *within) if piece.stream in wanted)


def _with_manifest(paths: Iterable[str]) -> Iterator[str]:
    """Yield the directories of streams that have a manifest. Files alone are exported history, too."""
    for path in paths:
        if path.startswith(f"{MANIFEST}/{STREAM}"):
            yield path.removeprefix(f"{MANIFEST}/").removesuffix(".json")


def _entered(place: ExportLocation, root: str, stream: str) -> dict[str, Piece]:
    """Return the files in the manifest of a stream, missing ones too. Raises `StoreError`."""
    manifest = load(place, stream)
    pieces = (
        (file, _piece(file.path, f"{root}/{file.path}", file.size, lambda _: stream))
        for file in (manifest.files if manifest else ())
    )
    return {file.path: piece._replace(file=file) for file, piece in pieces if piece}


def _numbered(piece: Piece, bounds: HistoryBounds) -> bool:
    """Return whether the sequences in a file's name are within the bounds, so that a task has to read it."""
    first, last = range_of_file(piece.path) or (bounds.first, bounds.last)
    return first <= bounds.last and last >= bounds.first


def _piece(path: str, full: str, size_bytes: int, name_of: Callable[[str], str]) -> Piece | None:
    """Return the piece of a file, whose path is relative to the export; None for any other file."""
    names = path.split("/")
    if len(names) != 3 or not names[2].endswith(SUFFIX):
        return None
    folder, date, name = names
    if not (folder.startswith(STREAM) and date.startswith(DATE)) or name[0] in "_.":
        return None
    return Piece(name_of(folder), date.removeprefix(DATE), full, size_bytes)


def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or a URL, and the path in it. Raises `InvalidValue`."""
    try:
        if "://" in location:
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(location)
            return found
        return fs.LocalFileSystem(), str(fs.LocalFileSystem().normalize_path(location))
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidValue(f"invalid location {location}: expected a path or URL: {error}") from error


def read(
    location: str, pieces: Iterable[Piece], columns: Sequence[str], bounds: HistoryBounds
) -> Iterator[HistoryPart | ExportDamage]:
    """Yield the row groups of files, in order; small ones of a stream and a date as one."""
    files, _ = file_system(location)
    held: list[pa.Table] = []
    of = ("", "")
    rows = size_bytes = 0
    for piece in pieces:
        for found in _row_groups(files, piece, columns, bounds):
            if isinstance(found, ExportDamage):
                yield found
                continue
            rows, size_bytes = rows + found.num_rows, size_bytes + found.nbytes
            fits = rows <= PART_ROWS and size_bytes <= PART_BYTES and of == (piece.stream, piece.date)
            if held and not (fits and found.schema.equals(held[0].schema)):
                yield HistoryPart(*of, _one_batch(held))
                held, rows, size_bytes = [], found.num_rows, found.nbytes
            held.append(found)
            of = piece.stream, piece.date
    if held:
        yield HistoryPart(*of, _one_batch(held))


def _row_groups(
    files: fs.FileSystem, piece: Piece, columns: Sequence[str], bounds: HistoryBounds
) -> Iterator[pa.Table | ExportDamage]:
    """Yield the rows of row groups within the bounds; none is empty."""
    if piece.fault:
        yield ExportDamage(piece.path, piece.stream, -1, 0, piece.fault)
        return
    try:
        source, metadata = open_checked(files, piece.path, piece.file)
        with closing(source):
            yield from _row_groups_of(source, metadata, piece, columns, bounds)
    except UNREADABLE as error:
        if not piece.share:
            count = piece.file.part.count if piece.file else 0
            yield ExportDamage(piece.path, piece.stream, -1, count, str(error))


def _row_groups_of(
    source: Any, metadata: pq.FileMetaData, piece: Piece, columns: Sequence[str], bounds: HistoryBounds
) -> Iterator[pa.Table | ExportDamage]:
    names = [*dict.fromkeys([*columns, *(() if bounds.whole else ("time_ns", "sequence"))])]
    if missing := sorted(set(names) - set(metadata.schema.to_arrow_schema().names)):
        raise pa.ArrowInvalid(f"no column {', '.join(missing)}: it is not a file of an export")
    encoded = [leaf for leaf in ENCODED if leaf.partition(".")[0] in columns]
    file = pq.ParquetFile(source, metadata=metadata, read_dictionary=encoded, page_checksum_verification=True)
    for number in piece.row_groups(file.num_row_groups):
        if not (bounds.whole or bounds.overlaps(file.metadata.row_group(number))):
            continue
        try:
            with whole(source):
                table = bounds.keeps(file.read_row_group(number, columns=names, use_threads=False))
        except UNREADABLE as error:
            rows = file.metadata.row_group(number).num_rows
            yield ExportDamage(piece.path, piece.stream, number, rows, str(error))
            continue
        if table.num_rows:
            yield table


def _one_batch(tables: Sequence[pa.Table]) -> pa.RecordBatch:
    columns = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in columns.columns], schema=columns.schema)


def places_by(codes: Numbers, count: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the occurring codes, all below `count`, and the places of each, in order."""
    if count <= FEW:
        places = ((code, np.flatnonzero(codes == code)) for code in range(count))
        yield from ((code, found) for code, found in places if len(found))
        return
    order, counts = sorted_places(codes, count), np.bincount(codes, minlength=count)
    ends = np.cumsum(counts)
    for code in np.flatnonzero(counts).tolist():
        yield code, order[ends[code] - counts[code] : ends[code]]


def sorted_places(codes: Numbers, count: int) -> Numbers:
    """Return the places of equal codes side by side, each in order; codes are below `count`."""
    # Numbers of 16 bits are sorted by their digits, which takes a tenth of the time of comparing.
    return np.argsort(codes.astype(np.min_scalar_type(count)), kind="stable")


Function = Callable[[Iterator[HistoryPart | ExportDamage]], Iterator[pa.RecordBatch]]
"""The function of a task: it makes small tables of the parts that it reads."""


def fold(
    spark: SparkSession,
    history: ExportedHistory,
    pieces: Sequence[Piece],
    columns: Sequence[str],
    function: Function,
    schema: pa.Schema,
) -> DataFrame:
    """Deal files to tasks; return the rows of the function in all tasks, as a data frame."""
    location, bounds = history.location, history.bounds
    hands = deal(pieces, _cores(spark) * TASKS_EACH_CORE)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from function(read(location, hands[number], columns, bounds))

    return run(spark, len(hands), task, schema)


def _cores(spark: SparkSession) -> int:
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql.functions import spark_partition_id

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # a client of Spark Connect asks by a job
        return int(spark.range(1024).select(spark_partition_id()).distinct().count())


def run(spark: SparkSession, count: int, task: Any, schema: pa.Schema) -> DataFrame:
    """Run a task for each number below `count`, each in a partition of its own."""
    from pyspark.sql.pandas.types import from_arrow_schema

    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(task, from_arrow_schema(schema))


def deal(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Divide files, or shares of large ones, among tasks: a run of them to each, of about as many bytes."""
    most_bytes = sum(piece.size_bytes for piece in pieces) // (SHARES_EACH_TASK * count) + 1
    shares = [share for piece in pieces for share in piece.split(max(most_bytes, SHARE_BYTES))]
    whole = sum(share.size_bytes + OPEN_BYTES for share in shares)
    hands: list[list[Piece]] = [[] for _ in range(count)]
    before = 0
    for share in shares:
        cost = share.size_bytes + OPEN_BYTES
        hands[(before + cost // 2) * count // whole].append(share)
        before += cost
    return [hand for hand in hands if hand]
