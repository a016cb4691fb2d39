"""A broker of its own for a benchmark, in a directory that is gone afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from malamute.cli.daemon import Daemon
from malamute.errors import StorageFull

SIZE_LEAST = 1 << 30
"""The size of a store that has not to hold more."""

PREFIX = "malamute-bench-"
SPARE = 1.1
"""What has to be free on the disk, in parts of what is needed."""


@contextmanager
def broker(directory: Path, *settings: str) -> Iterator[Daemon]:
    """A broker with these settings, each `section.option=value`."""
    with place(directory) as own, Daemon(own, *set_options(*settings)) as daemon:
        yield daemon


@contextmanager
def place(directory: Path) -> Iterator[Path]:
    """A directory within this one, for as long as the block takes."""
    with TemporaryDirectory(prefix=PREFIX, dir=directory) as own:
        yield Path(own)


def set_options(*settings: str) -> list[str]:
    """The options of `malamute broker run` for settings."""
    return [word for setting in settings for word in ("--set", setting)]


def store_bytes(history_bytes: int) -> int:
    """The size of a store whose share for streams holds so much, with room for what LMDB takes."""
    return max(SIZE_LEAST, history_bytes * 8 // 5)


def check_room(directory: Path, size_bytes: int) -> None:
    """Raise `StorageFull` unless so much is free on the disk, and a little more."""
    free = shutil.disk_usage(directory).free
    if free < size_bytes * SPARE:
        raise StorageFull(f"{directory} has {free:,} bytes free, and {size_bytes:,} are needed")
