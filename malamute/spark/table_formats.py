"""History as tables of Delta Lake and of Iceberg, each message once: the work of `export --format`.

Theory. A commit of such a table is atomic, and it carries the last sequence that it has: as the version of an
application's transaction (Delta), or as a property of the table set in the same transaction (Iceberg). So an
export that is killed at any moment has either made a commit with its position, or neither. Who loses a race
against another writer looks at the position again before it goes on, so that two exports are no second copy.

Files, their checksums and their list are the business of the format. A table has one stream of one store,
partitioned by `date`; a header that is promoted later becomes a new column. Maintenance is a commit as well,
which loses each race; then the next one has the same to do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from malamute.errors import ConfigError, InvalidValue, MalamuteError, StoreError
from malamute.protocol.batch import Columns
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark.columns import DAY_NS, Gatherer
from malamute.spark.dependencies import need
from malamute.spark.export import Exported, Progress
from malamute.spark.history import ExportGap, HistorySource, range_of, sequence_at
from malamute.spark.layout import date_of, quoted
from malamute.spark.maintenance import OPEN_FILES, Joined, Left
from malamute.spark.schema import KINDS, PREFIX, Kind, Promoted, arrow_schema

COMMIT_ROWS = 500_000
COMMIT_BYTES = 64 * 1024 * 1024
"""Messages or bytes of a commit, or a batch more."""

JOINED_BYTES = 256 * 1024 * 1024
"""Files of a day of Iceberg that are larger together stay as they are: joining holds them in memory."""

KEPT = timedelta(days=7)
"""How long earlier versions of a table can be read after its maintenance."""

RETRIES = 10
"""Races against other writers that one commit may lose."""

APP, STREAM, STORE, LAST = "malamute", "malamute.stream", "malamute.store", "malamute.last"

_EPOCH = date(1970, 1, 1)


class TableFile(NamedTuple):
    """A file of a table."""

    day: date
    messages: int
    size: int


class HistoryTable(Protocol):
    """A table of one stream. Any of its calls may raise `StoreError`.

    `load` comes before the calls of maintenance, which do nothing when another writer is faster.
    """

    def load(self) -> tuple[str, str, int, pa.Schema] | None:
        """Return stream, store, position and columns as they are now; None without a table."""

    def append(self, rows: pa.Table, stream: str, store: str, last: int) -> bool:
        """Commit rows and the position; False if another writer was faster, and nothing was committed."""

    def files(self) -> list[TableFile]:
        """Return the files as they are now."""

    def join(self, day: date) -> None:
        """Make few files of those of a day."""

    def remove_before(self, day: date) -> None:
        """Remove the days before one."""

    def forget(self) -> None:
        """Give up versions of the table that are older than `KEPT`, and their files."""


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

    def files(self) -> list[TableFile]:
        """Return the files as they are now."""
        self.load()
        found = pa.table(self._table.get_add_actions(flatten=True))
        columns = (found.column(name).to_pylist() for name in ("partition.date", "num_records", "size_bytes"))
        return [*map(TableFile, *columns)]

    def join(self, day: date) -> None:
        """Make few files of those of a day."""
        with suppress(self._exceptions.CommitFailedError):
            self._table.optimize.compact([("date", "=", str(day))])

    def remove_before(self, day: date) -> None:
        """Remove the days before one."""
        with suppress(self._exceptions.CommitFailedError):
            self._table.delete(f"date < date '{day}'")

    def forget(self) -> None:
        """Give up versions of the table that are older than `KEPT`, and their files."""
        self._table.vacuum(int(KEPT.total_seconds()) // 3600, dry_run=False, enforce_retention_duration=False)


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

    def files(self) -> list[TableFile]:
        """Return the files as they are now."""
        self.load()
        found = [task.file for task in self._table.scan().plan_files()]
        return [
            TableFile(_EPOCH + timedelta(file.partition[0]), file.record_count, file.file_size_in_bytes)
            for file in found
        ]

    def join(self, day: date) -> None:
        """Make one file of those of a day, unless they are large."""
        condition = f"date = '{day}'"
        if sum(file.size for file in self.files() if file.day == day) <= JOINED_BYTES:
            rows = self._table.scan(condition).to_arrow().sort_by("sequence")
            with suppress(self._exceptions.CommitFailedException):
                self._table.overwrite(rows, condition)

    def remove_before(self, day: date) -> None:
        """Remove the days before one."""
        with suppress(self._exceptions.CommitFailedException):
            self._table.delete(f"date < '{day}'")

    def forget(self) -> None:
        """Give up versions of the table that are older than `KEPT`, and their files."""
        oldest, old = datetime.now(UTC) - KEPT, self._paths()
        with suppress(self._exceptions.CommitFailedException):
            self._table.maintenance.expire_snapshots().older_than(oldest.replace(tzinfo=None)).commit()
            self.load()
            # The library forgets snapshots alone.
            for path in old - self._paths():
                self._table.io.delete(path)

    def _paths(self) -> set[str]:
        """Return the files of data in all versions that are known."""
        manifests = {m for snapshot in self._table.snapshots() for m in snapshot.manifests(self._table.io)}
        return {
            entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(self._table.io)
        }

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


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except MalamuteError:
        raise
    except Exception as error:  # each kind of catalog and of storage has errors of its own
        raise StoreError(f"the table cannot be used: {error}") from error


@_in_words()
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


def _day(time_ns: int) -> date:
    return date.fromisoformat(date_of(time_ns))


@_in_words()
def maintain(
    table: HistoryTable, stream: str, *, compact: bool = False, age_seconds: float | None = None
) -> tuple[Left, Joined]:
    """Remove the days of a table that ended `age_seconds` ago, join small files, and forget old versions."""
    if table.load() is None:
        return Left(stream, 0, 0, 0), Joined(stream, 0, 0, 0)
    now = time.time_ns()
    today, before = _day(now), table.files()
    if age_seconds is not None:
        oldest = _day(now - int(age_seconds * NS_PER_SECOND))
        if any(file.day < oldest for file in before):
            table.remove_before(oldest)
    kept = table.files()
    if compact:
        for day, count in sorted(Counter(file.day for file in kept).items()):
            if count >= (2 if day < today else OPEN_FILES):
                table.join(day)
    joined = table.files()
    table.forget()
    gone = sum(file.messages for file in before) - sum(file.messages for file in kept)
    return Left(stream, len(before) - len(kept), gone, 0), Joined(stream, len(kept), len(joined), 0)
