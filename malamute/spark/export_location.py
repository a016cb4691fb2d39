"""The directory of an export, on this machine or at a URL of an object store (`s3://bucket/path`, `hdfs://…`).

A file appears whole or not at all: it is written beside the manifests, and renamed. Here it is fsynced before
that, and its directory after, so that it is also there after a power loss. Stores at a URL have promises of
their own: those in use keep confirmed files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from malamute.errors import ConfigError, StorageFull, StoreError, StoreLocked
from malamute.spark.checksums import BLOCK_BYTES, Blocks, footer_lead
from malamute.spark.dependencies import need
from malamute.spark.layout import INNER_MANIFEST, MANIFEST, STREAM, SUFFIX, quoted

TEMPORARY = "_writing."
"""The prefix of the directories of files being written, one for each stream; once it was that of files."""


class WrittenFile(NamedTuple):
    """A written file: its bytes, and their CRC32."""

    size: int
    crc: int


class Sink:
    """A file being written, with its position and checksums, for pyarrow."""

    def __init__(self, path: str, stream: Any) -> None:
        self.path = path
        """Its final path; may be changed during the writing, within its directory."""
        self._stream = stream
        self.size = 0
        self.crc = 0
        self.blocks = Blocks([0], [0])
        self._footer: bytearray | None = None
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes, and count them. Raises `StoreError`, `StorageFull`."""
        view = memoryview(data)
        if self._footer is not None:
            self._footer += view
            return view.nbytes
        if self.size + view.nbytes - self.blocks.ends[-1] > BLOCK_BYTES:
            self.end_block()
        self.crc = zlib.crc32(view, self.crc)
        self.size += view.nbytes
        with translated(self.path):
            self._stream.write(view)
        return view.nbytes

    def end_block(self) -> None:
        """End a block: later data is verified by itself."""
        if self.size > self.blocks.ends[-1]:
            self.blocks.ends.append(self.size)
            self.blocks.crcs.append(self.crc)

    @contextmanager
    def footer(self) -> Iterator[None]:
        """Write the footer during the block, with its checksum before it."""
        self._footer = bytearray()
        yield
        footer, self._footer = bytes(self._footer), None
        self.write(footer_lead(footer))
        self.write(footer)

    def tell(self) -> int:
        """Return the number of written bytes."""
        return self.size + len(self._footer or b"")

    def flush(self) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """The file is ended by its opener."""
        self.closed = True


class ExportLocation:
    """A directory, named by a path or a URL. Raises `ConfigError` for an invalid URL."""

    def __init__(self, target: str) -> None:
        need("numpy")
        self._fs = need("pyarrow.fs")
        self.is_local = "://" not in target or target.startswith("file://")
        path = target.removeprefix("file://")
        try:
            if self.is_local:
                self._system, self.root = self._fs.LocalFileSystem(), os.path.abspath(path)
            else:
                self._system, root = self._fs.FileSystem.from_uri(target)
                self.root = root.rstrip("/")
        except (ValueError, OSError) as error:
            raise ConfigError(f"cannot use {target}: {error}") from error

    @property
    def system(self) -> Any:
        """Return its file system, as pyarrow has it."""
        return self._system

    def full(self, path: str) -> str:
        """Return the path of a file, for `system`."""
        if path == MANIFEST or path.startswith(f"{MANIFEST}/"):
            return self._manifests + path.removeprefix(MANIFEST)
        return f"{self.root}/{path}"

    @cached_property
    def _manifests(self) -> str:
        """The directory of the manifests: one that is there, or the place of a new one."""
        beside, within = self.root + MANIFEST, self.root + INNER_MANIFEST
        with translated(self.root):
            found, inner = (info.type for info in self._system.get_file_info([beside, within]))
        if found == self._fs.FileType.Directory:
            return beside
        return within if inner == self._fs.FileType.Directory or not self._has_room() else beside

    def _has_room(self) -> bool:
        """Return whether there may be a directory beside this one, from which files can be renamed."""
        if not self.is_local:
            return "/" in self.root
        there = self.root
        while not os.path.exists(there):
            there = os.path.dirname(there)
        parent = os.path.dirname(there) if there == self.root else there
        return not os.path.ismount(self.root) and os.access(parent, os.W_OK)

    def _take_up(self) -> None:
        """Move the manifests of an earlier version out of the data. An open lock in there goes on."""
        beside, within = self.root + MANIFEST, self.root + INNER_MANIFEST
        if self._has_room() and not os.path.exists(beside):
            with translated(within), suppress(FileNotFoundError):
                os.rename(within, beside)
                self.__dict__.pop("_manifests", None)
                self._sync("")
                self._sync("..")

    @contextmanager
    def writing(self, path: str) -> Iterator[Sink]:
        """Write a file, which appears at the end of the block, except after an exception."""
        folder, _, name = path.rpartition("/")
        temporary = f"{_writing_of(folder)}/{name}"
        with translated(path):
            for needed in (folder, _writing_of(folder)):
                self._system.create_dir(self.full(needed), recursive=True)
            stream = self._system.open_output_stream(self.full(temporary), compression=None)
        try:
            sink = Sink(path, stream)
            yield sink
            with translated(path):
                stream.close()
                self._sync(temporary)
                self._system.move(self.full(temporary), self.full(sink.path))
                self._sync(folder)
        except BaseException:
            stream.close()
            self.remove(temporary)
            raise

    def _sync(self, path: str) -> None:
        if self.is_local:
            descriptor = os.open(self.full(path), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        if self.is_there(path):
            with translated(path):
                self._system.delete_file(self.full(path))

    def remove_empty(self, folders: Iterable[str]) -> None:
        """Remove those of the directories that have nothing in them. Object stores have none."""
        if self.is_local:
            for folder in folders:
                with suppress(OSError):
                    os.rmdir(self.full(folder))

    def is_gone(self) -> bool:
        """Return whether the directory does not exist, as one that was removed."""
        with translated(self.root):
            return bool(self._system.get_file_info(self.root).type == self._fs.FileType.NotFound)

    def is_there(self, path: str) -> bool:
        """Return whether a file exists."""
        with translated(path):
            return bool(self._system.get_file_info(self.full(path)).type == self._fs.FileType.File)

    def files(self, folder: str) -> list[str]:
        """Return all files below a directory, in order, relative to the location; none without it."""
        selector = self._fs.FileSelector(self.full(folder), allow_not_found=True, recursive=True)
        with translated(folder):
            found = self._system.get_file_info(selector)
        full = self.full(folder)
        return sorted(
            f"{folder}{info.path.removeprefix(full)}" for info in found if info.type == self._fs.FileType.File
        )

    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raises `StoreError`."""
        with translated(path), self._system.open_input_stream(self.full(path), compression=None) as stream:
            data: bytes = stream.read()
            return data

    def measure(self, path: str) -> WrittenFile:
        """Read a whole file. Returns its size and CRC. Raises `StoreError`."""
        with translated(path), self._system.open_input_stream(self.full(path), compression=None) as stream:
            return measured(stream)

    def write_json(self, path: str, value: Any) -> None:
        """Write a small file, or write it anew."""
        with self.writing(path) as sink:
            sink.write(json.dumps(value, indent=1).encode())

    def folders(self) -> list[str]:
        """Return the names of the directories in it."""
        selector = self._fs.FileSelector(self.root, allow_not_found=True)
        with translated(self.root):
            found = self._system.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == self._fs.FileType.Directory)

    def data_files(self, folder: str) -> list[str]:
        """Return the Parquet files below a directory that readers see."""
        return [
            path
            for path in self.files(folder)
            if path.endswith(SUFFIX) and not _is_hidden(path.rpartition("/")[2])
        ]

    def clean(self, folder: str) -> None:
        """Remove leftovers of a killed writer below a directory, also of an earlier version."""
        earlier = (path for path in self.files(folder) if path.rpartition("/")[2].startswith(TEMPORARY))
        for path in (*earlier, *self.files(_writing_of(folder))):
            self.remove(path)

    @contextmanager
    def lock(self, stream: str) -> Iterator[None]:
        """Lock a stream against other writers on this machine. Raises `StoreLocked`."""
        if not self.is_local:
            yield
            return
        self._take_up()
        path = Path(self.full(MANIFEST), f".{quoted(stream)}.lock")
        with translated(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StoreLocked(f"another process exports {stream!r} to {self.root}") from None
        finally:
            os.close(descriptor)


def measured(stream: Any) -> WrittenFile:
    """Return the size and the CRC of the rest of a file."""
    size = crc = 0
    while piece := stream.read(1 << 20):
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    return WrittenFile(size, crc)


def _writing_of(folder: str) -> str:
    """Return the directory of files being written below a directory: that of its stream."""
    first = folder.partition("/")[0]
    return f"{MANIFEST}/{TEMPORARY}{first}" if first.startswith(STREAM) else f"{MANIFEST}/{TEMPORARY}"


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise the errors of a file system as `StoreError` or `StorageFull`, with the path."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"{path}: {error}") from error
