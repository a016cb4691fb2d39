"""A machine that is bad as we please: writes fail, its wall clock is wrong, and all clocks run fast.

It is a library (`bad_machine.c`) that is preloaded into processes, and goes by a file that they share.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
FILE = "BAD_MACHINE"
"""The variable that names the file."""


class Machine(ctypes.Structure):
    """What the library goes by: `struct machine`."""

    _fields_ = (
        ("error", ctypes.c_int64),
        ("offset_seconds", ctypes.c_int64),
        ("speed", ctypes.c_int64),
        ("origin_ns", ctypes.c_int64),
    )


def build(directory: Path, speed: int) -> dict[str, str] | None:
    """The variables for processes on such a machine; None where nothing can be compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library, file = directory / "bad_machine.so", directory / "machine"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    file.write_bytes(bytes(Machine(speed=speed, origin_ns=time.monotonic_ns())))
    return {"LD_PRELOAD": str(library), FILE: str(file)}


def machine(file: Path) -> Machine:
    """What all processes go by from now on, as it is changed."""
    with file.open("r+b") as opened:
        return Machine.from_buffer(mmap.mmap(opened.fileno(), ctypes.sizeof(Machine)))


SPEED: int = machine(Path(os.environ[FILE])).speed if FILE in os.environ else 1
"""How many times as fast the clocks of this process run. Who waits for what takes the machine some time, and
not for a timer, multiplies by it."""


def true_seconds() -> float:
    """The clock that runs as it does, where there is one."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW) if SPEED > 1 else time.monotonic()
