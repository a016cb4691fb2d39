"""A broker of its own for a benchmark, in a directory that is removed afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from malamute.errors import StorageFull
from malamute.server.process import BrokerProcess

STORE_BYTES_MIN = 1 << 30
"""The size of a store, unless it has to hold more."""

PREFIX = "malamute-bench-"
SPARE_FACTOR = 1.1
"""Free space on the disk, in parts of the bytes needed."""


@contextmanager
def broker(directory: Path, *settings: str) -> Iterator[BrokerProcess]:
    """A broker with these settings, each `section.option=value`."""
    with temporary_directory(directory) as own, BrokerProcess(own, *set_options(*settings)) as daemon:
        yield daemon


@contextmanager
def temporary_directory(directory: Path) -> Iterator[Path]:
    """A directory within this one, removed after the block."""
    with TemporaryDirectory(prefix=PREFIX, dir=directory) as own:
        yield Path(own)


def set_options(*settings: str) -> list[str]:
    """The options of `malamute broker run` for settings."""
    return [word for setting in settings for word in ("--set", setting)]


def store_bytes(history_bytes: int) -> int:
    """Return the size of a store whose share for streams holds so many bytes, with room for LMDB."""
    return max(STORE_BYTES_MIN, history_bytes * 8 // 5)


def check_free_space(directory: Path, size_bytes: int) -> None:
    """Check that so many bytes, and a tenth more, are free on the disk. Raises `StorageFull`."""
    free = shutil.disk_usage(directory).free
    if free < size_bytes * SPARE_FACTOR:
        raise StorageFull(
            f"too little space in {directory}: {free:,} bytes are free, expected {size_bytes:,}"
        )
