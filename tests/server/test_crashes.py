"""The report of a crash: a process that the system ends leaves one, and the next finds it."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from malamute.server.crashes import READ, REPORT, CrashReport

CRASH = """
import os, sys
from pathlib import Path
from malamute.server.crashes import CrashReport

def reading():
    os.kill(os.getpid(), int(sys.argv[2]))

report = CrashReport(Path(sys.argv[1]))
reading()
"""


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT])
def test_who_crashes_says_where_and_still_dies_of_it(tmp_path: Path, number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH, tmp_path, str(int(number))], capture_output=True, check=False
    )
    assert done.returncode == -number
    with closing(CrashReport(tmp_path)) as next_one:
        assert "in reading" in next_one.found
        next_one.acted_upon()
        assert (tmp_path / READ).read_text().strip() == next_one.found
    with closing(CrashReport(tmp_path)) as after:
        assert after.found == ""


def test_a_report_stays_until_it_was_acted_upon(tmp_path: Path) -> None:
    (tmp_path / REPORT).write_text("Fatal Python error: Bus error\n")
    for _ in range(2):
        with closing(CrashReport(tmp_path)) as found:
            assert found.found == "Fatal Python error: Bus error"


def test_who_is_killed_or_ends_leaves_none(tmp_path: Path) -> None:
    for number in (0, signal.SIGKILL):
        command = [sys.executable, "-c", CRASH, tmp_path, str(int(number))]
        assert subprocess.run(command, check=False).returncode == -number
    with closing(CrashReport(tmp_path)) as found:
        assert found.found == ""


def test_who_ends_takes_a_file_with_him_that_he_has_made_and_no_other(tmp_path: Path) -> None:
    with closing(CrashReport(tmp_path)):
        with closing(CrashReport(tmp_path)):
            pass
        assert (tmp_path / REPORT).exists()
    assert not [*tmp_path.iterdir()]


def test_without_a_directory_or_where_no_file_can_be_made_there_is_none(tmp_path: Path) -> None:
    for directory in (None, tmp_path / "missing", Path(os.devnull)):
        with closing(CrashReport(directory)) as report:
            report.acted_upon()
            assert report.found == ""
