"""A disk that forgets what was not synced, below real processes: no promise hangs on that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import lossy_disk
import pytest
from depth import NIGHT, nightly
from lossy_disk import BLOCK, NO_BLOCKS, SECTOR, LossyDisk
from rig_daemon import Daemon, small
from rig_load import read_back
from rig_waiting import PATIENCE
from test_torture import COMPILER, tortured

import malamute
from malamute.errors import TimedOut
from malamute.journal.repair import repair

FAULTS = ("power lost", "disk, lossy: cannot read")
COUNT, BODY_BYTES, SOON = 60, 100_000, 2.0
BAD = b"\xa5" * BODY_BYTES

pytestmark = pytest.mark.skipif(bool(lossy_disk.why_not()), reason=lossy_disk.why_not() or "it is there")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    disk = LossyDisk(tmp_path / "place", tmp_path)
    yield disk
    disk.close()


def journal(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`malamute journal` as a process of its own, which a page that cannot be read might end."""
    command = [sys.executable, "-m", "malamute", "journal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_what_was_synced_is_there_and_of_the_rest_any_sectors_are(disk: LossyDisk) -> None:
    file = disk.place / "file"
    kept = lost = 0
    for seed in range(5):
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
def test_what_was_confirmed_outlives_the_power_and_reads_that_fail(tmp_path: Path) -> None:
    only = [word for name in FAULTS for word in ("--only", name)]
    count = ("--faults", "5") if NIGHT else ("--each",)
    summary = tortured(tmp_path, "--lossy", *only, *count, "--minutes", "0", "--seed", "5")
    print(summary)
    assert summary["violations"] == []
    power_lost, unreadable = (3, 2) if NIGHT else (1, 1)
    assert summary["faults"] == {"power lost": power_lost, "disk, lossy: cannot read": unreadable}


def test_a_page_that_cannot_be_read_ends_one_broker_and_no_other(disk: LossyDisk, tmp_path: Path) -> None:
    """It dies of that. The next refuses to start, and a repair leaves readers a gap, and all the rest."""
    daemon = Daemon(tmp_path / "broker", small(32 << 20), data=disk.place)
    daemon.start()
    with malamute.connect(daemon.url) as client:
        for number in range(COUNT):
            body = BAD if number == COUNT // 2 else bytes(BODY_BYTES)
            client.publish("load", "a", body, assurance="stored")
        client.send("absent", "a", b"mail", assurance="stored")
    second = (disk.place / "data.mdb").read_bytes().index(BAD) // BLOCK + 1
    disk.fail_reads(range(second, second + 1))
    with suppress(TimedOut), malamute.connect(daemon.url, timeout=SOON) as client:  # none answers in the end
        messages = client.subscribe("load", start="first")
        while not daemon.has_ended:
            messages.receive(SOON)
    assert daemon.wait() == -signal.SIGBUS
    with pytest.raises(AssertionError, match=r"error 803: .*cannot be read"):
        daemon.start()
    daemon.end()
    looked = journal("inspect", "--data", disk.place)
    assert (looked.returncode, "error 803: " in looked.stderr) == (1, True), looked.stderr
    repaired = repair(disk.place)
    assert [(row.name, row.action) for row in repaired if row.kind == "chunk"] == [("load", "left")]
    daemon.start()
    read, gaps = read_back(daemon.url)
    lost = {*range(1, COUNT + 1)} - {message.sequence for message in read}
    assert 0 < len(lost) < COUNT // 4
    assert lost == {n for gap in gaps for n in range(gap.first, min(gap.last, COUNT) + 1)}
    with malamute.connect(daemon.url, address="absent") as client:
        assert client.mailbox().receive(PATIENCE).body == b"mail"
    daemon.stop()


def test_an_inspection_that_a_page_ends_is_the_last_one_it_does(disk: LossyDisk, tmp_path: Path) -> None:
    """Nobody could catch that; the next says why, until the page can be read again."""
    daemon = Daemon(tmp_path / "broker", small(32 << 20), data=disk.place)
    daemon.start()
    with malamute.connect(daemon.url) as client:
        client.send("absent", "a", BAD * 2, assurance="stored")
    daemon.stop()
    second = (disk.place / "data.mdb").read_bytes().index(BAD) // BLOCK + 1
    inspect = ("inspect", "--data", disk.place)
    disk.fail_reads(range(second, second + 1))
    assert journal(*inspect).returncode == -signal.SIGBUS
    looked = journal(*inspect)
    assert (looked.returncode, "error 803: " in looked.stderr) == (1, True), looked.stderr
    disk.fail_reads(NO_BLOCKS)
    assert journal(*inspect).returncode == 0
    daemon.start()
    with malamute.connect(daemon.url, address="absent") as client:
        assert client.mailbox().receive(PATIENCE).body == BAD * 2
    daemon.stop()


@nightly
def test_an_export_says_that_it_cannot_read_and_goes_on_once_it_can(disk: LossyDisk, tmp_path: Path) -> None:
    """Beside a broker. Of what it had read, and not finished, nothing is taken for good."""
    out = tmp_path / "out"
    source = ("--stream", "load", "--data", disk.place, "--to", out)
    daemon = Daemon(tmp_path / "broker", small(32 << 20), data=disk.place)
    daemon.start()
    with malamute.connect(daemon.url) as client:
        for number in range(COUNT):
            client.publish("load", "a", bytes(BODY_BYTES), assurance="stored")
            if number == COUNT // 3:
                first = journal("export", *source)
        client.publish("load", "a", BAD, assurance="stored")
    assert first.returncode == 0, first.stderr
    whole = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    bad = (disk.place / "data.mdb").read_bytes().index(BAD) // BLOCK + 1
    disk.fail_reads(range(bad, bad + 1))
    failed = journal("export", *source)
    assert failed.returncode == 1
    assert f"error 803: {disk.place / 'data.mdb'} is damaged, or cannot be read" in failed.stderr
    assert "Input/output error" in failed.stderr
    assert "malamute journal repair" in failed.stderr
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == whole
    checked = journal("export", "verify", "--from", out)
    assert (checked.returncode, checked.stdout.endswith("good\n")) == (0, True), checked.stderr
    disk.fail_reads(NO_BLOCKS)
    assert journal("export", *source).returncode == 0
    assert journal("export", "verify", "--from", out, "--data", disk.place).returncode == 0
    with malamute.connect(daemon.url) as client:
        assert client.publish("load", "a", b"", assurance="stored") == COUNT + 2
    daemon.stop()
