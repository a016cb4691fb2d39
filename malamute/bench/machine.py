"""Description of the machine, and processor time and memory of a broker."""

from __future__ import annotations

import os
import platform
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

import zmq

from malamute.version import __version__

LOOK_SECONDS = 0.05
"""How often memory is looked at."""


OBJECTS = 200_000
"""Objects that show how fast Python is here; they take more memory than a cache has."""

TRIES = 9
"""How often the speed of the machine is measured: the best of Python and the median of the disk count."""


def describe(directory: Path) -> dict[str, Any]:
    """The machine, how fast it is now, and the software; `directory` is where data will be.

    Two machines, or one on two days, may differ by a factor of three. A figure of the program is relative to
    the speed of the machine.
    """
    return {
        "malamute": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "zmq": f"{zmq.zmq_version()} (pyzmq {zmq.__version__})",
        "lmdb": package_version("lmdb"),
        "file system": _file_system(directory),
        "speed of python": f"{_objects_per_second() / 1e6:.2f} million small objects a second, made and kept",
        "speed of fsync": f"{_fsync_seconds(directory) * 1e3:.2f} ms for 4 KiB",
    }


def _objects_per_second() -> float:
    def once() -> float:
        begun = time.process_time()
        assert len({number: (number, str(number)) for number in range(OBJECTS)}) == OBJECTS
        return time.process_time() - begun

    return OBJECTS / min(once() for _ in range(TRIES))


def _fsync_seconds(directory: Path) -> float:
    with TemporaryFile(dir=directory) as file:

        def once() -> float:
            os.pwrite(file.fileno(), bytes(4096), 0)
            begun = time.perf_counter()
            os.fsync(file.fileno())
            return time.perf_counter() - begun

        return median(once() for _ in range(TRIES))


def package_version(package: str) -> str:
    """The version of a package that may be installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The kind of file system that a directory is on: a tmpfs would make every fsync cheap."""
    resolved = directory.resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [(point, kind) for point, kind in mounts if resolved.is_relative_to(point)]
    return max(fitting, key=lambda mount: len(mount[0]))[1]


class ProcessWatch:
    """Watches a process during the block: `cpu_seconds` that it used, and the most `anonymous_bytes` it had.

    Both are None when it is not known which process to watch.
    """

    def __init__(self, pid: int) -> None:
        self.cpu_seconds: float | None = None
        self.anonymous_bytes: int | None = None
        self._pid = pid
        self._cpu_before = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Self:
        if self._pid:
            self._cpu_before = cpu_seconds(self._pid)
            self.anonymous_bytes = anonymous_bytes(self._pid)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid:
            self._done.set()
            self._thread.join()
            self.cpu_seconds = cpu_seconds(self._pid) - self._cpu_before

    def _look(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self.anonymous_bytes = max(self.anonymous_bytes or 0, anonymous_bytes(self._pid))


def cpu_seconds(pid: int) -> float:
    """The processor time of a process by its own clock (clock_getcpuclockid(3)); 0 when it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def anonymous_bytes(pid: int) -> int:
    """The anonymous memory of a process: not the store, which is a file."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(pid: int, file: str) -> str:
    """Return a file of a process in /proc; nothing when the process has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""
