"""A power failure at any moment leaves a disk on which the broker starts, with all that it had confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_disk import Disk, read_log
from crash_promises import Broken
from crash_recorder import build, compiler, record
from crash_states import Count, check

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler (gcc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("recorder"))


def check_record(directory: Path, library: Path, *, steps: int, each: int, **faults: str) -> Count:
    log = record(directory, library, 1, steps, **faults)
    return check(log, directory / "states", each=each, seed=1, processes=1)


def test_every_state_of_the_disk_has_what_was_confirmed(tmp_path: Path, library: Path) -> None:
    count = check_record(tmp_path, library, steps=30, each=6)
    print(count)
    assert (count.states > 200, count.promises > 30, count.confirmed > 15) == (True, True, True)


def test_the_recorder_misses_nothing(tmp_path: Path, library: Path) -> None:
    """The log has all content of the files, but for a write that its end cut off."""
    disks = Disk(), Disk()
    for entry in read_log(record(tmp_path, library, 2, 5)):
        disks[entry.file].take(entry)
    for disk, name in zip(disks, ("data.mdb", "write-ahead.log"), strict=True):
        data = bytearray((tmp_path / "data" / name).read_bytes())
        expected = disk.durable.ljust(len(data), b"\0")
        for offset, sector in disk.pending:
            data[offset : offset + len(sector)] = expected[offset : offset + len(sector)]
        assert (len(data), data == expected) == (disk.length, True)


@pytest.mark.parametrize(
    "fault",
    [{"DISK_FAULT": "nosync"}, {"DISK_FAULT": "nometasync"}, {"CRASH_FAULT": "early"}],
    ids=["pages that were never synced", "a root that is never synced", "confirmed before it is written"],
)
def test_the_checker_notices(tmp_path: Path, library: Path, fault: dict[str, str]) -> None:
    with pytest.raises(Broken) as found:
        check_record(tmp_path, library, steps=5, each=12, **fault)
    print(found.value)
