"""A file system that forgets what was not synced, or cannot read, as `power` and `reads` say. By FUSE.

What is written is in `cached`, and in `durable` when `fsync` or `fdatasync` of that file has returned. When
the power fails, each sector of 512 bytes that was not synced is as it was, or as it was to be, by chance; so
is the length of the file. Names are durable at once. The kernel caches pages of it as it does of any disk,
until the next mount, or until a file is opened.

It needs `fusepy`, libfuse 2 and /dev/fuse: `why_not` says what is missing.
"""

from __future__ import annotations

import ctypes.util
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from real_machine import may_mount

SECTOR, BLOCK = 512, 4096
NO_BLOCKS, ALL_BLOCKS = range(0), range(1 << 40)
POWER, READS = "/power", "/reads"
"""What is no file, and does something when it is written to."""
MOUNT_SECONDS = 20.0


def why_not() -> str:
    """Why there can be no such file system here; empty if there can."""
    if not sys.platform.startswith("linux"):
        return "no Linux"
    if not (os.access("/dev/fuse", os.R_OK | os.W_OK) and may_mount()):
        return "no /dev/fuse, or no right to mount"
    if ctypes.util.find_library("fuse") is None:
        return "no libfuse 2 (apt-get install libfuse2 fuse)"
    if shutil.which("fusermount") is None:
        return "no fusermount (apt-get install fuse)"
    try:
        import fuse  # noqa: F401
    except (ImportError, OSError) as error:
        return f"no fusepy (pip install fusepy): {error}"
    return ""


class LossyDisk:
    """Such a file system at a place, which is there until `close`."""

    def __init__(self, place: Path, scratch: Path) -> None:
        self.place = place
        self._backing = scratch / "lossy"
        for name in ("cached", "durable"):
            (self._backing / name).mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.mount()

    def mount(self) -> None:
        """Have it in its place."""
        self.place.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen([sys.executable, __file__, str(self._backing), str(self.place)])
        deadline = time.monotonic() + MOUNT_SECONDS
        while not os.path.ismount(self.place):
            assert self._process.poll() is None, "it cannot be mounted"
            assert time.monotonic() < deadline, "it is not mounted in time"
            time.sleep(0.01)
        self.place.chmod(0o700)

    def lose_power(self, seed: int) -> None:
        """Forget what was not synced, or most of it, and begin again. Nobody may use it."""
        self._tell(POWER, str(seed))
        self.unmount()
        self.mount()

    def fail_reads(self, blocks: range) -> None:
        """These blocks of each file that is there cannot be read from now on: EIO, also where it is open."""
        self._tell(READS, f"{blocks.start} {blocks.stop}")
        for file in self.place.glob("*.mdb"):
            file.open("rb").close()

    def _tell(self, what: str, text: str) -> None:
        (self.place / what.lstrip("/")).write_text(text)

    def unmount(self) -> None:
        """Take it away. What it has is kept."""
        deadline = time.monotonic() + MOUNT_SECONDS
        # Files of a process that has just ended are closed a moment later.
        while subprocess.run(["fusermount", "-u", self.place], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, "somebody uses it"
            time.sleep(0.01)
        assert self._process is not None
        self._process.wait(MOUNT_SECONDS)

    def close(self) -> None:
        """Take it away, whoever uses it."""
        subprocess.run(["fusermount", "-uz", self.place], check=False, capture_output=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class _Files:
    """The calls of FUSE: `fusepy` calls the method of each name with a path and more."""

    def __init__(self, backing: Path) -> None:
        self._cached, self._durable = backing / "cached", backing / "durable"
        self._dirty: dict[str, set[int]] = {}
        self._unreadable, self._bad_files = NO_BLOCKS, set[int]()

    def __call__(self, name: str, *arguments: Any) -> Any:
        from fuse import FuseOSError

        method = getattr(self, name, None)
        if method is None:
            raise FuseOSError(errno.ENOSYS)
        try:
            return method(*arguments)
        except OSError as error:
            raise FuseOSError(error.errno or errno.EIO) from error

    def _at(self, path: str) -> Path:
        return self._cached / path.lstrip("/")

    def _both(self, path: str) -> Sequence[Path]:
        return self._at(path), self._durable / path.lstrip("/")

    # What is there

    def init(self, path: str) -> None:
        """Begin."""

    def destroy(self, path: str) -> None:
        """End."""

    def getattr(self, path: str, handle: int | None = None) -> Mapping[str, Any]:
        """What the system says of a file."""
        if path in (POWER, READS):
            return {"st_mode": 0o100600, "st_nlink": 1, "st_size": 0}
        found = os.lstat(self._at(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_mtime", "st_ctime", "st_atime")
        return {**{name: getattr(found, name) for name in names}, "st_blocks": found.st_blocks}

    def readdir(self, path: str, handle: int) -> Sequence[str]:
        """The names in a directory."""
        return [".", "..", *os.listdir(self._at(path))]

    def statfs(self, path: str) -> Mapping[str, int]:
        """How much room there is."""
        found = os.statvfs(self._cached)
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_namemax")
        return {name: getattr(found, name) for name in names}

    def open(self, path: str, flags: int) -> int:
        """A descriptor."""
        return 0 if path in (POWER, READS) else os.open(self._at(path), os.O_RDWR)

    def create(self, path: str, mode: int, information: Any = None) -> int:
        """A new file."""
        cached, durable = self._both(path)
        durable.touch(mode)
        return os.open(cached, os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        """Bytes of a file."""
        bad = self._unreadable
        is_hit = bad.start * BLOCK < offset + size and offset < bad.stop * BLOCK
        if is_hit and os.fstat(handle).st_ino in self._bad_files:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(handle, size, offset)

    def release(self, path: str, handle: int) -> None:
        """Nobody has it open any more under this descriptor."""
        if handle:
            os.close(handle)

    def flush(self, path: str, handle: int) -> None:
        """A descriptor is closed: that syncs nothing."""

    def access(self, path: str, mode: int) -> None:
        """All may be done."""

    # What is written, and what of it is durable

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        """Write, to where it may be lost."""
        if path == POWER:
            self._lose(Random(int(data)))
            return len(data)
        if path == READS:
            self._unreadable = range(*map(int, data.split()))
            self._bad_files = {file.stat().st_ino for file in self._cached.iterdir()}
            return len(data)
        last = (offset + len(data) - 1) // SECTOR
        self._dirty.setdefault(path, set()).update(range(offset // SECTOR, last + 1))
        return os.pwrite(handle, data, offset)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        """Set the length, which is durable with the next sync."""
        if path not in (POWER, READS):
            os.truncate(self._at(path), length)
            self._dirty.setdefault(path, set())

    def fsync(self, path: str, only_data: int, handle: int) -> None:
        """All that was written of a file is durable."""
        if path in self._dirty:
            self._copy(
                self._at(path), self._durable / path.lstrip("/"), self._dirty.pop(path), keeps_length=True
            )

    def _copy(self, source: Path, target: Path, sectors: set[int], *, keeps_length: bool) -> None:
        with source.open("rb") as reading, target.open("r+b") as writing:
            for first, last in _runs(sectors):
                data = os.pread(reading.fileno(), (last - first + 1) * SECTOR, first * SECTOR)
                os.pwrite(writing.fileno(), data, first * SECTOR)
            if keeps_length:
                os.truncate(writing.fileno(), os.fstat(reading.fileno()).st_size)

    def _lose(self, chance: Random) -> None:
        for path, dirty in self._dirty.items():
            share = chance.choice([0.0, 0.1, 0.5, 0.9])
            lost = {sector for sector in sorted(dirty) if chance.random() >= share}
            cached, durable = self._both(path)
            if cached.exists():
                self._copy(durable, cached, lost, keeps_length=chance.random() < 0.5)
                shutil.copyfile(cached, durable)
        self._dirty.clear()

    # Names

    def unlink(self, path: str) -> None:
        """Remove a file."""
        for each in self._both(path):
            each.unlink()
        self._dirty.pop(path, None)

    def mkdir(self, path: str, mode: int) -> None:
        """Make a directory."""
        for each in self._both(path):
            each.mkdir(mode)

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        for each in self._both(path):
            each.rmdir()

    def rename(self, before: str, after: str) -> None:
        """Give a file another name. What was not synced of it may still be lost."""
        for old, new in zip(self._both(before), self._both(after), strict=True):
            old.rename(new)
        self._dirty[after] = self._dirty.pop(before, set())

    def chmod(self, path: str, mode: int) -> None:
        """Set its mode."""
        for each in self._both(path):
            each.chmod(mode)

    def chown(self, path: str, user: int, group: int) -> None:
        """Whose it is makes no difference here."""

    def utimens(self, path: str, times: Any = None) -> None:
        """Nor does when."""


def _runs(sectors: set[int]) -> Iterator[tuple[int, int]]:
    first = last = -2
    for sector in sorted(sectors):
        if sector != last + 1:
            if first >= 0:
                yield first, last
            first = sector
        last = sector
    if first >= 0:
        yield first, last


if __name__ == "__main__":
    from fuse import FUSE

    FUSE(_Files(Path(sys.argv[1])), sys.argv[2], foreground=True, nothreads=True, default_permissions=False)
