"""A real disk of the rig: what it does, and that it leaves nothing of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_machine import MIB, RealDisk, why_not

# It takes the right to mount, as all that torture does with it.
pytestmark = pytest.mark.skipif(bool(why_not("disk")), reason=why_not("disk") or "it is there")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(tmp_path / "place", tmp_path, size_mib=1)
    yield disk
    disk.close()


def refusal(file: Path) -> int | None:
    """Why a file cannot be written, as `errno` has it; None if it can."""
    try:
        file.write_bytes(bytes(MIB))
    except OSError as error:
        return error.errno
    return None


def test_it_is_full_for_a_while_and_that_does_not_come_back_with_an_error(disk: RealDisk) -> None:
    for number in range(3):
        file = disk.place / str(number)
        with disk.full():
            assert refusal(file) == errno.ENOSPC
        disk.fail()
        assert refusal(file) == errno.EROFS
        disk.mend()
        assert refusal(file) is None
        assert {each.name for each in disk.place.iterdir()} == {"lost+found", *map(str, range(number + 1))}
