"""Opening stores with names: what tells that each is the one it should be."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from malamute.config.sections import StoreTable
from malamute.errors import MalamuteError, StorageFull
from malamute.journal.memory import MemoryStore
from malamute.journal.store import Store
from malamute.server import stores
from malamute.server.stores import NamedStores, open_named, open_stores
from malamute.store.operations import AppendChunk, Chunk, PutValue, Recovered
from malamute.store.tables import STORES

NOW = 1_700_000_000.0
MIB = 1024**2
PATIENCE = 30.0


class Broker:
    """The broker's own store, and a directory for another one."""

    def __init__(self, directory: Path, ident: bytes = b"1" * 16) -> None:
        self.own = MemoryStore(broker_id=ident)
        self.table = StoreTable("archive", directory / "archive", size=4 * MIB)

    def open(self, *tables: StoreTable) -> NamedStores:
        found = open_stores(tables or (self.table,), self.own, self.own.recover(), NOW, open_named)
        found.close()
        return found

    def error(self) -> str:
        """Why it could not be opened."""
        found = self.open().found["archive"].recovered
        assert isinstance(found, MalamuteError)
        return found.text


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_a_new_store_is_made_and_known_from_then_on(broker: Broker) -> None:
    first, second = broker.open(), broker.open()
    assert [*first.open] == [*second.open] == ["archive"]
    found = second.found["archive"].recovered
    assert isinstance(found, Recovered)
    assert broker.own.recover().table(STORES) == {("archive",): found.broker_id}
    assert (first.begin, second.begin) == (0, 0)


def test_a_directory_that_is_empty_again_is_a_disk_that_is_not_mounted(broker: Broker) -> None:
    broker.open()
    assert broker.table.directory is not None
    (broker.table.directory / "data.mdb").unlink()
    assert "is its disk mounted?" in broker.error()
    assert not (broker.table.directory / "data.mdb").exists()
    assert broker.open().begin > 1 << 40


def test_a_store_that_was_forgotten_is_made_anew_and_new_streams_begin_far_behind_it(broker: Broker) -> None:
    broker.open()
    assert broker.table.directory is not None
    (broker.table.directory / "data.mdb").unlink()
    broker.own.write([PutValue(STORES, ("archive",), b"")])
    found = broker.open()
    assert [*found.open] == ["archive"]
    assert found.begin > 1 << 40


def test_a_store_that_is_not_configured_any_more_is_named(broker: Broker) -> None:
    broker.open()
    other = StoreTable("other", kind="memory", size=MIB)
    found = broker.open(other)
    assert found.unknown == ("archive",)
    assert found.begin > 1 << 40


def test_the_store_of_another_broker_is_refused(broker: Broker, tmp_path: Path) -> None:
    Broker(tmp_path, b"2" * 16).open()
    assert broker.error().endswith("has a store of another broker")
    assert not broker.own.recover().table(STORES)


def test_the_data_directory_of_a_broker_is_refused(broker: Broker) -> None:
    store = open_named(broker.table)
    store.recover()
    store.write([AppendChunk("s", Chunk(1, 1, 1, b"payload"), 1)])
    store.close()
    assert "is the data directory of a broker" in broker.error()


def test_another_store_of_this_broker_is_refused_under_the_name_of_one_that_is_gone(broker: Broker) -> None:
    broker.open()
    broker.own.write([PutValue(STORES, ("archive",), b"another store id")])
    assert "has another store than the one that was called 'archive'" in broker.error()


def test_a_new_store_that_the_broker_cannot_note_is_not_used(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(operations: object) -> None:
        raise StorageFull("the disk is full")

    recovered = broker.own.recover()
    monkeypatch.setattr(broker.own, "write", full)
    found = open_stores([broker.table], broker.own, recovered, NOW, open_named)
    assert not found.open
    monkeypatch.undo()
    assert [*broker.open().open] == ["archive"]


def test_a_disk_that_hangs_holds_up_the_start_only_so_long_and_is_let_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.open()
    monkeypatch.setattr(stores, "OPEN_SECONDS", 0.05)
    hangs, opened, closed = Event(), Event(), Event()

    def slow(table: StoreTable) -> Store:
        hangs.wait()
        store = open_named(table)
        monkeypatch.setattr(store, "close", lambda close=store.close: (close(), closed.set()))
        opened.set()
        return store

    recovered = broker.own.recover()
    found = open_stores([broker.table], broker.own, recovered, NOW, slow).found["archive"].recovered
    assert isinstance(found, MalamuteError)
    assert found.text.endswith("has not answered for 0.05 s")
    hangs.set()
    assert opened.wait(PATIENCE)
    assert closed.wait(PATIENCE)
    monkeypatch.setattr(stores, "OPEN_SECONDS", PATIENCE)
    assert [*broker.open().open] == ["archive"]


def test_a_directory_that_is_open_to_others_is_refused(broker: Broker) -> None:
    assert broker.table.directory is not None
    broker.table.directory.mkdir(0o700)
    broker.table.directory.chmod(0o755)
    assert "is open to others" in broker.error()


def test_a_store_in_memory_is_another_incarnation_each_time(broker: Broker) -> None:
    table = StoreTable("quick", kind="memory", size=MIB)
    found = broker.open(table).found["quick"].recovered
    assert isinstance(found, Recovered)
    assert found.incarnation > 1 << 40
    assert not broker.own.recover().table(STORES)
