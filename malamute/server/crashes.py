"""What a process leaves behind that the system ends in the midst of its work.

LMDB maps its file, so a page that the disk cannot read ends the process (SIGBUS) wherever that page is looked
at. Nobody can catch that: Python writes where it was to a file, and dies. A broker that finds such a report
when it starts reads all of its store first, with calls that fail in an orderly way. So a bad disk ends one
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
"""The name of the report in a data directory."""

READ = "crash.before.txt"
"""The name of the newest report that was acted upon; it is kept for people."""


def report_in(directory: Path) -> str:
    """What a process that crashed has left in a directory; empty if none did."""
    with suppress(OSError), open(open_own(directory / REPORT, os.O_RDONLY), errors="replace") as report:
        return report.read().strip()
    return ""


class CrashReport:
    """The report of a data directory: of the process before, and of this one should it crash.

    From now until it is closed, a crash is reported; not where there is no directory, or no file can be made.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._is_new = False
        self.found = "" if directory is None else report_in(directory)
        """What the process before has left; empty if it did not crash."""
        self._open()

    def acted_upon(self) -> None:
        """The store is open, and was read as a whole if there was a report: that is an old one now."""
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
        """Report nothing any more. A file that was made for it goes: others might not be able to write it."""
        if self._file is not None and self._directory is not None:
            faulthandler.disable()
            self._file.close()
            self._file = None
            # One that was there may be that of a broker which has the directory, and this process is refused.
            if self._is_new and not report_in(self._directory):
                with suppress(OSError):
                    (self._directory / REPORT).unlink()
