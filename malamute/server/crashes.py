"""Reports of crashes: the file that a process leaves when the system kills it.

LMDB maps its file, so a page that the disk cannot read ends the process (SIGBUS) wherever that page is read.
The signal cannot be handled: Python writes its position to a file, and dies. A broker with such a report at
its start reads all of its store first, with calls that return errors. So a bad disk ends one
process, and not one after the other.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from malamute.journal.directory import open_own

REPORT = "crash.txt"
"""Name of the report in a data directory."""

READ = "crash.before.txt"
"""Name of the last report that a start has handled, kept for the operator."""


def report_in(directory: Path) -> str:
    """Return the report of a crashed process in a directory; empty without one."""
    with suppress(OSError), open(open_own(directory / REPORT, os.O_RDONLY), errors="replace") as report:
        return report.read().strip()
    return ""


class CrashReport:
    """Report of a data directory: of the previous process, and of this one if it crashes.

    A crash is reported until `close`, unless there is no directory, or no file can be made.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._is_new = False
        self.found = "" if directory is None else report_in(directory)
        """Report of the previous process; empty if it did not crash."""
        self._open()

    def acted_upon(self) -> None:
        """Rename a report that was handled: the store is open, and was read as a whole."""
        if self._directory is not None and self.found:
            with suppress(OSError):
                (self._directory / REPORT).replace(self._directory / READ)
        self._open()

    def _open(self) -> None:
        self.close()
        if self._directory is not None:
            with suppress(OSError):
                self._is_new = not (self._directory / REPORT).exists()
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._file = os.fdopen(open_own(self._directory / REPORT, flags), "a")
                faulthandler.enable(self._file)

    def close(self) -> None:
        """Report no crash any more, and remove the file: another user might not be able to write it."""
        if self._file is not None and self._directory is not None:
            faulthandler.disable()
            self._file.close()
            self._file = None
            # An older file may be that of a broker that has the directory, and this process is refused.
            if self._is_new and not report_in(self._directory):
                with suppress(OSError):
                    (self._directory / REPORT).unlink()
