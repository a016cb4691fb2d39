"""History as tables of Delta Lake and Iceberg, read back by their own readers and by DuckDB."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec
from uuid import uuid4

import pyarrow as pa
import pytest
from depth import some
from histories import ROOT, numbered, operations, run, store

from malamute.errors import ConfigError, InvalidValue, StoreError
from malamute.spark import columns, table_formats
from malamute.spark.export import Exported
from malamute.spark.history import open_history
from malamute.spark.maintenance import Joined, Left
from malamute.spark.table_formats import FORMATS, TableFile, export_to_table, maintain

pytest.importorskip("deltalake")
pytest.importorskip("sqlalchemy")


class Place:
    """Somewhere for tables of one format, and a data directory."""

    def __init__(self, form: str, root: Path) -> None:
        self.form = form
        self.data = root / "data"
        self.namespace = f"n{uuid4().hex}"
        self.target = str(root / "tables") if form == "delta" else f"default.{self.namespace}"

    def table(self) -> Any:
        return FORMATS[self.form](self.target, "s")

    def export(self, table: Any = None, data: Path | None = None, **promoted: Any) -> Exported:
        with open_history(data=str(data or self.data)) as history:
            return export_to_table(history, "s", table or self.table(), promoted=promoted)

    def rows(self) -> pa.Table:
        """The rows, as the library of the format reads them."""
        if self.form == "delta":
            from deltalake import DeltaTable

            return pa.table(DeltaTable(f"{self.target}/s").to_pyarrow_table())
        from pyiceberg.catalog import load_catalog

        return load_catalog("default").load_table((self.namespace, "s")).scan().to_arrow()

    def files(self) -> list[TableFile]:
        table = self.table()
        assert table.load() is not None
        return list(table.files())

    def on_disk(self) -> set[Path]:
        if self.form == "delta":
            return {*Path(self.target).rglob("*.parquet")}
        location = self.table()._catalog.load_table((self.namespace, "s")).location()
        return {*Path(location.removeprefix("file://")).rglob("*.parquet")}

    def sequences(self) -> list[int]:
        """The sequences, as DuckDB reads the rows."""
        import duckdb

        rows = self.rows()
        with duckdb.connect() as connection:
            connection.register("found", rows)
            return [one for (one,) in connection.execute("select sequence from found order by 1").fetchall()]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A catalog in a file: pyiceberg reads the environment once."""
    root = tmp_path_factory.mktemp("catalog")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{root}/catalog.db")
        patch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{root}/warehouse")
        yield


@pytest.fixture(params=sorted(FORMATS))
def place(
    request: pytest.FixtureRequest, catalog: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(columns, "BATCH_ROWS", 100)
    monkeypatch.setattr(table_formats, "COMMIT_ROWS", 200)
    found = Place(request.param, tmp_path)
    store(found.data, *(operations("s", first, numbered(100, first)) for first in range(1, 901, 100)))
    return found


def test_a_table_has_each_message_once_and_grows(place: Place) -> None:
    assert place.export()[:5] == ("s", 1, 900, 900, 5)
    assert place.export().messages == 0
    store(place.data, operations("s", 901, numbered(10, 901)))
    # A header that is promoted later is a new column, and the others stay.
    assert place.export(n="integer").messages == 10
    assert place.export(n="integer").messages == 0
    store(place.data, operations("s", 911, numbered(10, 911)))
    assert place.export().messages == 10
    assert place.sequences() == [*range(1, 921)]
    rows = place.rows().sort_by("sequence")
    assert rows.column("h_n").to_pylist() == [None] * 900 + [*range(901, 921)]
    assert rows.column("body").to_pylist()[-1] == b"920"
    assert dict(rows.column("headers")[899].as_py())["n"]["integer"] == 900
    assert {str(day) for day in rows.column("date").to_pylist()} == {"2024-10-04"}
    with pytest.raises(InvalidValue, match="is integer in the table"):
        place.export(n="text")


def test_a_table_of_another_store_is_refused(place: Place, tmp_path: Path) -> None:
    place.export()
    store(tmp_path / "other", operations("s", 1, numbered(2000)))
    with pytest.raises(StoreError, match="and this is 's' out of"):
        place.export(data=tmp_path / "other")
    assert place.sequences() == [*range(1, 901)]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_commit_lost_to_another_writer_is_no_second_copy(place: Place, is_there: bool) -> None:
    if is_there:
        place.export()
    store(place.data, operations("s", 901, numbered(1100, 901)))
    slow = place.table()
    append = slow.append
    with open_history(data=str(place.data)) as history:

        def overtaken(*arguments: Any) -> bool:
            slow.append = append
            assert export_to_table(history, "s", place.table(), until="seq:1201").last == 1200
            return bool(append(*arguments))

        slow.append = overtaken
        assert export_to_table(history, "s", slow).messages == 800
    assert place.sequences() == [*range(1, 2001)]


KILLED = """
import os, signal, sys
from malamute.spark import columns, table_formats
from malamute.spark.history import open_history

columns.BATCH_ROWS, table_formats.COMMIT_ROWS = 100, 200
form, target, data, number, when = sys.argv[1:]
table = table_formats.FORMATS[form](target, "s")
append, left = table.append, [int(number)]

def killing(*arguments):
    left[0] -= 1
    if not left[0] and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = append(*arguments)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

table.append = killing
with open_history(data=data) as history:
    table_formats.export_to_table(history, "s", table)
"""


@pytest.mark.parametrize(
    ("number", "when"),
    some([(n, w) for n in (1, 2, 3) for w in ("before", "after")], (2, "after")),
)
def test_an_export_that_is_killed_continues(place: Place, number: int, when: str) -> None:
    arguments = [place.form, place.target, str(place.data), str(number), when]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    place.export()
    assert place.sequences() == [*range(1, 901)]


def test_the_command(place: Place) -> None:
    words = ("journal", "export", "--data", str(place.data), "--to", place.target, "--format", place.form)
    [row] = json.loads(run(*words, "--json").splitlines()[0])
    assert row["messages"] == 900
    # The day is over.
    assert json.loads(run(*words, "--compact", "--json").splitlines()[0])[0]["messages"] == 0
    assert len(place.files()) == 1
    assert place.sequences() == [*range(1, 901)]
    # A joined table is continued, and its position outlives its days.
    store(place.data, operations("s", 901, numbered(10, 901)))
    assert (
        json.loads(run(*words, "--compact", "--expire", "90d", "--json").splitlines()[0])[0]["messages"] == 10
    )
    assert place.files() == []
    assert place.sequences() == []
    store(place.data, operations("s", 911, numbered(10, 911)))
    assert place.export(n="integer").messages == 10
    assert place.sequences() == [*range(911, 921)]


def test_old_versions_leave_with_their_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.export()
    there = place.on_disk()
    assert len(there) == 5
    maintain(place.table(), "s", compact=True)
    assert place.on_disk() > there
    monkeypatch.setattr(table_formats, "KEPT", timedelta(0))
    assert maintain(place.table(), "s") == (Left("s", 0, 0, 0), Joined("s", 1, 1, 0))
    assert len(place.on_disk()) == 1
    assert place.on_disk().isdisjoint(there)
    assert place.sequences() == [*range(1, 901)]


def test_a_catalog_that_is_away_is_named(place: Place) -> None:
    with pytest.raises(ConfigError, match="cannot open the catalog 'nosuch'"):
        FORMATS["iceberg"]("nosuch.history", "s")
    table = place.table()
    table.load = create_autospec(table.load, side_effect=ConnectionError("nobody answers"))
    with pytest.raises(StoreError, match="table cannot be used: nobody answers"):
        place.export(table)
    assert place.export().messages == 900


def test_maintenance_loses_a_race_and_nothing_else(place: Place) -> None:
    place.export()
    store(place.data, operations("s", 901, numbered(100, 901)))
    slow = place.table()
    join = slow.join

    def overtaken(day: date) -> None:
        assert place.export().messages == 100
        join(day)

    slow.join = overtaken
    maintain(slow, "s", compact=True)
    assert place.sequences() == [*range(1, 1001)]
    maintain(place.table(), "s", compact=True)
    assert len(place.files()) == 1
    assert place.export().messages == 0
    assert place.sequences() == [*range(1, 1001)]
