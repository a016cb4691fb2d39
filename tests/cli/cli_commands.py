"""What the tests of the command line share beside fixtures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

ROOT = Path(__file__).parents[2]
TIMEOUT = 120
PATIENCE = 60.0

Run = Callable[..., Result]
"""Runs a command in this process."""

Start = Callable[..., subprocess.Popen[str]]
"""Starts a command as a process of its own."""
