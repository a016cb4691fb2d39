"""Exported history as tables of DuckDB: any query, and the analysis, on one machine without Spark.

The view `history` has the columns of `schema` (`h_NAME` too), with `stream` and `date`, of the files that the
manifests name. DuckDB asks Arrow for the columns and the row groups that a query needs, and Arrow verifies
the checksum of each page. Queries that need more memory than there is use a temporary directory.

The analysis is that of Spark with DuckDB in its place: threads make the partial sums, a table of DuckDB
holds them, and the tables are the same queries (`analyze_tables`). So its memory grows neither with the
messages, nor with the subjects and senders of all tasks together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from decimal import Decimal
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from malamute.errors import InvalidValue, NotFound, StoreError
from malamute.spark.analyze_tables import AnalyzeOptions, Tables, folds, known, tables
from malamute.spark.columns import BATCH_ROWS
from malamute.spark.dependencies import need
from malamute.spark.export import Progress, export
from malamute.spark.export_location import ExportLocation
from malamute.spark.final_aggregates import SPREAD, WHOLE, whole
from malamute.spark.history import HistorySource
from malamute.spark.options import SourceOptions
from malamute.spark.partial_aggregates import SCHEMA
from malamute.spark.scan import (
    TASKS_EACH_CORE,
    ExportedHistory,
    Function,
    Piece,
    deal,
    file_system,
    read,
)
from malamute.spark.schema import PARTITIONS, arrow_schema, to_arrow

HISTORY = "history"
"""The name of the view."""

ROWS_EACH = 250_000
"""Approximate rows of partial sums merged at once."""

MACROS = """
    create macro timestamp_micros(x) as make_timestamptz(cast(x as bigint));
    create macro unix_micros(x) as epoch_us(x);
    set TimeZone = 'UTC';
"""
"""Functions of Spark's SQL that DuckDB has under another name."""


class DuckEngine:
    """SQL run by DuckDB over an exported history. A table is the name of a view."""

    div = "//"
    """The operator that divides integers."""

    def __init__(self, history: ExportedHistory, directory: str) -> None:
        duckdb = need("duckdb")
        self._wrong = duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException
        self._failed = duckdb.Error
        self._history = history
        self._connection = duckdb.connect(config={"temp_directory": directory})
        self._lock = Lock()
        self._count = 0
        self._run(MACROS)
        self._connection.register(HISTORY, dataset_of(history))

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def sql(self, query: str, /, **tables: str) -> str:
        """Return the name of the result of a query, which is made whenever it is read."""
        return self._named("view", query.format_map(tables))

    def keep(self, schema: pa.Schema) -> str:
        """Return the name of a new table without rows."""
        self._connection.register("malamute_schema", schema.empty_table())
        return self._named("table", "from malamute_schema")

    def _named(self, kind: str, query: str) -> str:
        self._count += 1
        name = f"malamute_{self._count}"
        self._run(f"create temp {kind} {name} as {query}")
        return name

    def _run(self, query: str) -> None:
        with self._translated():
            self._connection.execute(query).complete()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._wrong as error:
            raise InvalidValue(str(error)) from error
        except self._failed as error:
            raise StoreError(str(error)) from error

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the result of a query. Raises `InvalidValue` for a wrong one, and `StoreError`."""
        with self._translated():
            yield from self.reader(query)

    def reader(self, query: str) -> pa.RecordBatchReader:
        """Return the result of a query, in batches. Raises `InvalidValue` for a wrong one."""
        with self._translated():
            if (found := self._connection.sql(query)) is None:
                return pa.schema([]).empty_table().to_reader()
            return found.to_arrow_reader(BATCH_ROWS)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return [*self.answer(f"from {table}")]

    def answer(self, query: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a query. Raises `InvalidValue` for a wrong one, and `StoreError`."""
        for batch in self.batches(query):
            for row in batch.to_pylist():
                # A sum of integers has more bits than Arrow has in one.
                yield {key: int(v) if isinstance(v, Decimal) and v == int(v) else v for key, v in row.items()}

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to a kept table; threads may do that at the same time."""
        with self._lock:
            self._connection.register("malamute_added", pa.table(batch))
            self._run(f"insert into {table} from malamute_added")

    def messages(self, streams: Sequence[str] = ()) -> str:
        """Return the messages within the bounds."""
        if not streams:
            return HISTORY
        # Files of other streams are not even opened: they may be damaged.
        name = f"malamute_messages_{len(streams)}"
        self._connection.register(name, dataset_of(self._history, streams))
        return name


@contextmanager
def opened(history: ExportedHistory) -> Iterator[DuckEngine]:
    """Open an exported history for queries."""
    with (
        TemporaryDirectory(prefix="malamute-") as directory,
        closing(DuckEngine(history, directory)) as engine,
    ):
        yield engine


def dataset_of(history: ExportedHistory, streams: Sequence[str] = ()) -> Any:
    """Return messages of an export within its bounds, for anything that reads Arrow's datasets."""
    ds = need("pyarrow.dataset")
    files, _ = file_system(history.location)
    form = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    only = history.bounds.streams[0] if len(history.bounds.streams) == 1 else ""
    promoted = SourceOptions(path=history.location, stream=only).promoted()
    schema = pa.schema([*arrow_schema(promoted), *to_arrow(PARTITIONS)])
    stream, date = ds.field("stream"), ds.field("date")
    fragments = [
        form.make_fragment(
            piece.path,
            files,
            (stream == piece.stream) & (date == pa.scalar(piece.date).cast(pa.date32())),
        )
        for piece in (history.of(*streams) if streams else history.pieces)
        if not piece.fault
    ]
    found = ds.FileSystemDataset(fragments, schema, form, files)
    bounds = history.bounds
    if bounds.whole:
        return found
    sequence, time_ns = ds.field("sequence"), ds.field("time_ns")
    within = (sequence >= bounds.first) & (sequence <= bounds.last)
    return found.filter(within & (time_ns >= bounds.since) & (time_ns < bounds.until))


@contextmanager
def analysed(
    history: ExportedHistory, options: AnalyzeOptions, progress: Progress = lambda done, total: None
) -> Iterator[tuple[DuckEngine, Tables]]:
    """Analyze, and return the tables by name, as long as the block runs."""
    with opened(history) as engine:
        parts, rows = engine.keep(SCHEMA), engine.keep(WHOLE)
        _add_parts(engine, parts, history, options, progress)
        facts, count = known(engine, parts)
        shares = max(1, -(-count // ROWS_EACH))
        spread = ", ".join(f"'{kind}'" for kind in SPREAD)
        place = f"hash(stream, name, if(kind in ({spread}), hash(value, slot, first), null)) % {shares}"
        for share in range(shares):
            query = f"from {parts} where kind <> 'window' and {place} = {share}"
            found = [batch.cast(SCHEMA) for batch in engine.batches(query)]
            for batch in whole(found, facts):
                engine.add(rows, batch)
        yield engine, tables(engine, rows, options)


def _add_parts(
    engine: DuckEngine, parts: str, history: ExportedHistory, options: AnalyzeOptions, progress: Progress
) -> None:
    cores = os.cpu_count() or 1
    work = [
        (hand, columns, function)
        for pieces, columns, function in folds(history, options)
        for hand in deal(pieces, cores * TASKS_EACH_CORE)
    ]

    def task(hand: Sequence[Piece], columns: Sequence[str], function: Function) -> None:
        for batch in function(read(history.location, hand, columns, history.bounds)):
            engine.add(parts, batch)

    with ThreadPoolExecutor(cores) as threads:
        tasks = [threads.submit(task, *one) for one in work]
        for number, done in enumerate(as_completed(tasks), 1):
            done.result()
            progress(number, len(work))


def save(engine: DuckEngine, made: Tables, target: str) -> None:
    """Write each table as a directory of Parquet in `target`, in place of one that is there."""
    files, root = file_system(target)
    for name, table in made.items():
        folder = f"{root.rstrip('/')}/{name}"
        if files.get_file_info(folder).type == pa.fs.FileType.Directory:
            files.delete_dir_contents(folder)
        files.create_dir(folder, recursive=True)
        found = engine.reader(f"from {table}")
        with pq.ParquetWriter(f"{folder}/part-0.parquet", found.schema, filesystem=files) as writer:
            for batch in found:
                writer.write_batch(batch)


@contextmanager
def exported(
    source: HistorySource, streams: Sequence[str], progress: Progress, since: str = "", until: str = ""
) -> Iterator[str]:
    """Export streams, or all of them, to a temporary directory. Raises `NotFound` if there is no message."""
    with TemporaryDirectory(prefix="malamute-") as directory:
        place = ExportLocation(f"{directory}/history")
        names = streams or sorted(source.streams())
        found = [
            export(source, name, place, since=since, until=until, progress=progress).messages
            for name in names
        ]
        if not any(found):
            raise NotFound("there are no messages: expected some, in these streams and times")
        yield place.root
