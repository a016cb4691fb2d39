"""History as tables of Delta Lake and of Iceberg, each message once: the work of `export --format`.

Theory. A commit of such a table is atomic, and it carries the last sequence that it has: as the version of an
application's transaction (Delta), or as a property of the table set in the same transaction (Iceberg). So an
export that is killed at any moment has either made a commit with its position, or neither. Who loses a race
against another writer looks at the position again before it goes on, so that two exports are no second copy.

Files, their checksums and their list are the business of the format. A table has one stream of one store,
partitioned by `date`; a header that is promoted later becomes a new column.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from malamute.errors import ConfigError, InvalidValue, StoreError
from malamute.protocol.batch import Columns
from malamute.spark.columns import DAY_NS, Gatherer
from malamute.spark.dependencies import need
from malamute.spark.export import Exported, Progress
from malamute.spark.history import ExportGap, HistorySource, range_of, sequence_at
from malamute.spark.layout import quoted
from malamute.spark.schema import KINDS, PREFIX, Kind, Promoted, arrow_schema

COMMIT_ROWS = 500_000
COMMIT_BYTES = 64 * 1024 * 1024
"""Messages or bytes of a commit, or a batch more."""

RETRIES = 10
"""Races against other writers that one commit may lose."""

APP, STREAM, STORE, LAST = "malamute", "malamute.stream", "malamute.store", "malamute.last"


class HistoryTable(Protocol):
    """A table of one stream. Any of its calls may raise `StoreError`."""

    def load(self) -> tuple[str, str, int, pa.Schema] | None:
        """Return stream, store, position and columns as they are now; None without a table."""

    def append(self, rows: pa.Table, stream: str, store: str, last: int) -> bool:
        """Commit rows and the position; False if another writer was faster, and nothing was committed."""


class DeltaTableOf:
    """A table of Delta Lake in a directory, or at a URL."""

    def __init__(self, target: str, stream: str) -> None:
        self._library = need("deltalake")
        self._exceptions = need("deltalake.exceptions")
        self._path = f"{target.rstrip('/')}/{quoted(stream)}"
        self._table: Any = None

    def load(self) -> tuple[str, str, int, pa.Schema] | None:
        """Return stream, store, position and columns as they are now; None without a table."""
        try:
            self._table = table = self._library.DeltaTable(self._path)
        except self._exceptions.TableNotFoundError:
            return None
        stream, _, store = (table.metadata().description or "").rpartition(" ")
        schema = pa.schema(table.schema().to_arrow())
        return stream, store, table.transaction_version(APP) or 0, schema

    def append(self, rows: pa.Table, stream: str, store: str, last: int) -> bool:
        """Commit rows and the position; False if another writer was faster, and nothing was committed."""
        position = self._library.Transaction(APP, last)
        try:
            # As it was when its position was read: commits since then are in conflict with this one.
            self._library.write_deltalake(
                self._table or self._path,
                rows,
                mode="append" if self._table else "error",
                partition_by=["date"],
                schema_mode="merge",
                description=f"{stream} {store}",
                commit_properties=self._library.CommitProperties(
                    max_commit_retries=0, app_transactions=[position]
                ),
            )
        except self._exceptions.CommitFailedError:
            return False
        except self._exceptions.DeltaError:
            # Two writers that find no table both make one.
            if self._table is None and self.load() is not None:
                return False
            raise
        if self._table is None:
            self.load()
        return True


class IcebergTableOf:
    """A table of Iceberg, in a namespace of a catalog."""

    def __init__(self, target: str, stream: str) -> None:
        catalog, _, namespace = target.rpartition(".")
        self._exceptions = need("pyiceberg.exceptions")
        try:
            self._catalog = need("pyiceberg.catalog").load_catalog(catalog or "default")
        except Exception as error:  # each kind of catalog has errors of its own
            raise ConfigError(f"cannot open the catalog {catalog or 'default'!r}: {error}") from error
        self._namespace = namespace
        self._name = namespace, stream
        self._table: Any = None

    def load(self) -> tuple[str, str, int, pa.Schema] | None:
        """Return stream, store, position and columns as they are now; None without a table."""
        try:
            self._table = self._catalog.load_table(self._name)
        except self._exceptions.NoSuchTableError:
            return None
        found = self._table.properties
        # A commit that is tried again by the library would not look at the position.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        schema = self._table.schema().as_arrow()
        return found.get(STREAM, ""), found.get(STORE, ""), int(found.get(LAST, 0)), schema

    def append(self, rows: pa.Table, stream: str, store: str, last: int) -> bool:
        """Commit rows and the position; False if another writer was faster, and nothing was committed."""
        try:
            if self._table is None:
                self._create(rows.schema, stream, store)
            if added := [name for name in rows.column_names if name not in self._names()]:
                with self._table.update_schema() as change:
                    change.union_by_name(rows.select(added).schema)
            with self._table.transaction() as transaction:
                transaction.append(rows, {LAST: str(last)})
                transaction.set_properties({LAST: str(last)})
        except (self._exceptions.CommitFailedException, self._exceptions.TableAlreadyExistsError):
            return False
        return True

    def _names(self) -> set[str]:
        return {field.name for field in self._table.schema().fields}

    def _create(self, schema: pa.Schema, stream: str, store: str) -> None:
        self._catalog.create_namespace_if_not_exists(self._namespace)
        about = {STREAM: stream, STORE: store}
        with (
            self._catalog.create_table_transaction(self._name, schema, properties=about) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_identity("date")
        self._table = self._catalog.load_table(self._name)


FORMATS: Mapping[str, Callable[[str, str], HistoryTable]] = {"delta": DeltaTableOf, "iceberg": IcebergTableOf}


def export_to_table(
    history: HistorySource,
    stream: str,
    table: HistoryTable,
    *,
    promoted: Promoted | None = None,
    since: str = "",
    until: str = "",
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Append the new messages of a stream to its table, from `since` and before `until`.

    Raises `StoreError` for a table of another stream or store, and when other writers are always faster;
    `InvalidValue` for a header that the table has with another type.
    """
    now = time.time_ns()
    kept, store = range_of(history, stream), history.store().partition(".")[0]
    position, promoted = _continued(table, stream, store, promoted or {})
    first, last = max(position + 1, kept.first), kept.last
    if since:
        first = max(first, sequence_at(history, stream, since, now))
    if until:
        last = min(last, sequence_at(history, stream, until, now) - 1)
    gaps: list[ExportGap] = []
    begin = end = count = commits = size = 0
    for rows in _commits(history, stream, first, last, promoted, gaps):
        reached = rows.column("sequence")[-1].as_py()
        written, position = _append(table, rows, stream, store, promoted, position)
        if written.num_rows:
            begin, end = begin or written.column("sequence")[0].as_py(), reached
            count, commits, size = count + written.num_rows, commits + 1, size + written.nbytes
        progress(reached - first + 1, last - first + 1)
    return Exported(stream, begin, end, count, commits, size, 0, gaps, stream in history.limited)


def _continued(table: HistoryTable, stream: str, store: str, promoted: Promoted) -> tuple[int, Promoted]:
    """Return the position of a table, and the promoted headers: its own, and new ones."""
    found = table.load()
    if found is None:
        return 0, promoted
    of, its, position, schema = found
    if (of, its) != (stream, store):
        raise StoreError(
            f"the table is of the stream {of!r} out of the store {its or 'of others'}, and this is {stream!r}"
            f" out of {store}: export to another place"
        )
    there: dict[str, Kind] = {}
    kinds = {arrow_schema({"x": kind}).field(f"{PREFIX}x").type: kind for kind in KINDS}
    for field in schema:
        if field.name.startswith(PREFIX):
            there[field.name.removeprefix(PREFIX)] = kinds.get(_plain(field.type), "text")
    for name, kind in promoted.items():
        if there.get(name, kind) != kind:
            raise InvalidValue(f"header {name!r} is {there[name]} in the table: expected that, not {kind}")
    return position, {**there, **promoted}


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind in (pa.large_string(), pa.string_view()) else kind


def _commits(
    history: HistorySource, stream: str, first: int, last: int, promoted: Promoted, gaps: list[ExportGap]
) -> Iterator[pa.Table]:
    gatherer = Gatherer(promoted)
    held: list[pa.RecordBatch] = []
    for item in history.read(stream, first, last):
        if not isinstance(item, Columns):
            gaps.append(item)
            continue
        gatherer.add(item)
        if gatherer.is_full:
            held.append(gatherer.take())
            if sum(map(len, held)) >= COMMIT_ROWS or sum(b.nbytes for b in held) >= COMMIT_BYTES:
                yield _dated(held)
                held = []
    if len(gatherer):
        held.append(gatherer.take())
    if held:
        yield _dated(held)


def _dated(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    rows = pa.Table.from_batches(batches)
    days = rows.column("time_ns").to_numpy() // DAY_NS
    return rows.append_column(pa.field("date", pa.date32()), pa.array(days, pa.int32()).view(pa.date32()))


def _append(
    table: HistoryTable, rows: pa.Table, stream: str, store: str, promoted: Promoted, position: int
) -> tuple[pa.Table, int]:
    """Commit those rows that are behind the position; return them, and the position from then on."""
    last = rows.column("sequence")[-1].as_py()
    for _ in range(RETRIES):
        rows = rows.filter(pc.greater(rows.column("sequence"), position))
        if not rows.num_rows:
            return rows, position
        if table.append(rows, stream, store, last):
            return rows, last
        position, _ = _continued(table, stream, store, promoted)
    raise StoreError(
        f"other writers were faster {RETRIES} times: try again, or have one export of {stream!r}"
    )
