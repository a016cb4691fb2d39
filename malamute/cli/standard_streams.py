"""Standard input, output and error of a process started without them, as by `>&-` or some supervisors.

Python has None for such a stream then, and the number is free for the next socket or file that is opened,
into which others would write. So /dev/null is opened in place of each. A service runs with it; a command
without its output or input is refused.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from malamute.cli.error_output import BadInput


class _NoInput(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise BadInput("standard input is closed: expected something to read, such as `< /dev/null`")


def open_all() -> None:
    """Open /dev/null in place of missing streams. To be called before any other file is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_NoInput()))
    if sys.stderr is None:
        sys.stderr = _writer(2)


def _writer(number: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8", write_through=True)


def has_input() -> bool:
    """Return whether there is a standard input."""
    source = getattr(sys.stdin, "buffer", None)
    return source is not None and not source.closed and type(getattr(source, "raw", None)) is not _NoInput


def check_output(command: str) -> None:
    """Use /dev/null for the missing standard output of a service.

    Raises:
        BadInput: standard output is missing, and the command is no service.
    """
    if sys.stdout is None:
        if command not in _SERVICES:
            raise BadInput("standard output is closed: expected somewhere to write, such as `> /dev/null`")
        sys.stdout = _writer(1)


_SERVICES = ("broker", "gateway")
"""Commands that are started by supervisors, and whose output is optional."""
