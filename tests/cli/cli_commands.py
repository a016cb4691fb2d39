"""Helpers of the tests of the command line, beside fixtures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from click.testing import Result

ROOT = Path(__file__).parents[2]
TIMEOUT = 120
PATIENCE = 60.0

Run = Callable[..., Result]
"""Runs a command in this process."""

Start = Callable[..., subprocess.Popen[str]]
"""Starts a command as a process of its own."""


def code_of_one_asked_again(process: subprocess.Popen[str], number: int) -> int:
    """The exit code of a process that gets a signal again and again until it has ended."""
    while process.poll() is None:
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.002)
    return process.returncode
