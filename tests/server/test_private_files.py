"""Files of a broker are its owner's alone, and it uses none that others can read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import malamute
from malamute.errors import MalamuteError, StoreError
from malamute.journal.directory import check_private
from malamute.protocol.admin import JournalBackup
from malamute.server.process import BrokerProcess

OPTIONS = (
    "--set",
    "storage.size=16MiB",
    "--set",
    "limits.message_bytes=1MiB",
)


@pytest.fixture(autouse=True)
def lenient_umask() -> Iterator[None]:
    """The caller's own umask hides nothing from anybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """Rights of group and others to each file below a directory, and with itself."""
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o077 for path in found}


def test_all_that_a_broker_makes_is_its_owners_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, *OPTIONS) as broker, malamute.connect(broker.url) as client:
        client.publish("s", "a", b"x", assurance="stored")
        client.change(JournalBackup(directory="monday"))
    found = modes(tmp_path / "data")
    assert {".", "data.mdb", "lock"} < found.keys()
    assert any("monday" in name for name in found)
    assert {name: mode for name, mode in found.items() if mode} == {}


@pytest.mark.parametrize("name", ["data", "data/data.mdb"])
def test_a_broker_does_not_start_on_data_that_others_can_read(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path, *OPTIONS):
        pass
    (tmp_path / "data").chmod(0o711)
    path = tmp_path / name
    path.chmod(path.stat().st_mode | 0o004)
    words = rf"{re.escape(str(path))} is open to others \(mode \d+\): expected chmod o-rwx, .*\(error 800\)"
    with pytest.raises(MalamuteError, match=words), BrokerProcess(tmp_path, *OPTIONS):
        pass
    path.chmod(path.stat().st_mode & ~0o004)
    with BrokerProcess(tmp_path, *OPTIONS):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o704, 0o702])
def test_a_directory_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match=rf"open to others \(mode {mode:04o}\): expected chmod o-rwx"):
        check_private(tmp_path)


def test_a_data_file_that_nobody_else_can_reach_may_have_any_mode(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    (tmp_path / "data.mdb").chmod(0o644)
    tmp_path.chmod(0o700)
    check_private(tmp_path)
    tmp_path.chmod(0o701)
    with pytest.raises(StoreError, match=r"data\.mdb is open to others \(mode 0644\)"):
        check_private(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2770, 0o711])
def test_the_group_of_a_directory_is_its_owners_choice(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    check_private(tmp_path)
    check_private(tmp_path / "new")


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot use"):
        check_private(tmp_path / "file" / "data")
