"""The machine that is measured on, and what a broker takes of it."""

from __future__ import annotations

import os
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from malamute import __version__

LOOK_SECONDS = 0.05
"""How often memory is looked at."""


def describe(directory: Path) -> dict[str, Any]:
    """The machine and the software; `directory` is where data will be."""
    return {
        "malamute": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "zmq": f"{zmq.zmq_version()} (pyzmq {zmq.__version__})",
        "lmdb": _version("lmdb"),
        "file system": _file_system(directory),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


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


class Watch:
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
            self._cpu_before = _cpu_seconds(self._pid)
            self.anonymous_bytes = anonymous_bytes(self._pid)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid:
            self._done.set()
            self._thread.join()
            self.cpu_seconds = _cpu_seconds(self._pid) - self._cpu_before

    def _look(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self.anonymous_bytes = max(self.anonymous_bytes or 0, anonymous_bytes(self._pid))


def _cpu_seconds(pid: int) -> float:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def anonymous_bytes(pid: int) -> int:
    """The anonymous memory of a process: not the store, which is a file."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(pid: int, file: str) -> str:
    """What /proc tells of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""
