"""A disk that forgets what was not synced, below real processes: no promise hangs on that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lossy_disk
import pytest
from lossy_disk import SECTOR, LossyDisk
from test_torture import COMPILER, tortured

pytestmark = pytest.mark.skipif(bool(lossy_disk.why_not()), reason=lossy_disk.why_not() or "it is there")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    disk = LossyDisk(tmp_path / "place", tmp_path)
    yield disk
    disk.close()


def test_what_was_synced_is_there_and_of_the_rest_any_sectors_are(disk: LossyDisk) -> None:
    file = disk.place / "file"
    kept = lost = 0
    for seed in range(12):
        before, after = bytes([2 * seed + 1]), bytes([2 * seed + 2])
        with file.open("wb") as opened:
            opened.write(before * SECTOR * 8)
            opened.flush()
            os.fdatasync(opened.fileno())
            os.pwrite(opened.fileno(), after * SECTOR * 4, SECTOR * 2)
        disk.lose_power(seed)
        data = file.read_bytes()
        sectors = [data[place : place + SECTOR] for place in range(0, len(data), SECTOR)]
        assert {*sectors} <= {before * SECTOR, after * SECTOR}
        assert sectors[:2] + sectors[6:] == [before * SECTOR] * 4
        kept += sectors[2:6].count(after * SECTOR)
        lost += sectors[2:6].count(before * SECTOR)
    assert kept > 0
    assert lost > 0


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler (gcc)")
def test_what_was_confirmed_outlives_the_power(tmp_path: Path) -> None:
    faults = ("--lossy", "--only", "power lost", "--faults", "3", "--minutes", "0", "--seed", "5")
    summary = tortured(tmp_path, *faults)
    print(summary)
    assert summary["violations"] == []
    assert summary["faults"] == {"power lost": 3}
