"""No file of a store is opened through a link, and who only reads writes nothing into its lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from malamute.errors import StoreError, StoreLocked
from malamute.journal.directory import acquire_lock
from malamute.journal.disk import DiskStore
from malamute.journal.reader import StoreReader
from malamute.journal.repair import repair
from malamute.server.crashes import REPORT, CrashReport, report_in

WAYS: dict[str, Callable[[Path], object]] = {
    "broker": lambda path: DiskStore.open(path, size=1 << 20),
    "inspect": DiskStore.open_existing,
    "reader": StoreReader.open,
    "repair": lambda path: repair(path),
}

LINKS: dict[str, Callable[[Path, Path], None]] = {
    "symbolic": os.symlink,
    "hard": os.link,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with closing(DiskStore.open(path, size=1 << 20)) as made:
        made.recover()
    return path


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["lock", "lock.mdb"])
@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_refused_and_what_it_leads_to_is_as_it_was(
    tmp_path: Path, store: Path, way: str, name: str, link: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (store / name).unlink()
    LINKS[link](victim, store / name)
    if (way, name) == ("reader", "lock"):  # it takes no lock
        StoreReader.open(store).close()
    else:
        with pytest.raises(StoreError, match=f"{name} is a link, or no file: .* remove it"):
            WAYS[way](store)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("link", LINKS)
def test_a_report_of_a_crash_is_neither_written_nor_read_through_a_link(tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "data"
    directory.mkdir()
    LINKS[link](victim, directory / REPORT)
    with closing(CrashReport(directory)) as report:
        assert report.found == report_in(directory) == ""
    assert victim.read_text() == "precious"


def test_who_only_reads_locks_the_store_and_writes_nothing_into_the_lock(store: Path) -> None:
    before = (store / "lock").read_bytes()
    with closing(DiskStore.open_existing(store)):
        assert (store / "lock").read_bytes() == before
        with pytest.raises(StoreLocked, match="is in use by"):
            acquire_lock(store)


def test_a_process_that_has_ended_is_not_named_as_the_one_that_has_the_store(store: Path) -> None:
    (store / "lock").write_text("4194305\n")  # no process has such an id
    with closing(DiskStore.open_existing(store)), pytest.raises(StoreLocked, match="by another process"):
        acquire_lock(store)
