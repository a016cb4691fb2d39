"""Verified reading of exported files: every byte is checked against the checksums of its writing.

Theory. A file is written in blocks (`checksums`), which end where Parquet's pages do, and at each row group.
Their checksums are in the footer, and that of the footer stands before it. So a reader checks exactly the
blocks that it reads: also footers and heads of pages, for which Parquet has no checksum. A footer has its
stream and range, too, which have to agree with the name of the file.

A file that an earlier version has exported has no such checksums. There all of it is held against the
manifest before anything is read, each time that it is opened; without a manifest it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malamute.errors import StoreCorrupt, StoreError
from malamute.spark.checksums import Blocks
from malamute.spark.export_location import measured
from malamute.spark.layout import range_of_file, stream_directory
from malamute.spark.manifest import File, decode_blocks, decode_footer, find_footer

UNREADABLE = (OSError, pa.ArrowException, StoreError)
"""Errors for a file, or a part of it, that is missing or damaged."""


class CheckedFile:
    """An open file for pyarrow. Every block is verified when a part of it is read.

    Damaged data is read as zeros, and raised by `whole`: pyarrow keeps an exception that is raised under it
    for ever, with all objects of its frames. `tail` is the data behind the blocks: the footer, verified at
    the opening.
    """

    def __init__(self, source: pa.NativeFile, blocks: Blocks, tail: bytes) -> None:
        self._source = source
        self._blocks = blocks
        self._tail = tail
        self._place = 0
        self._fault = ""
        self.closed = False

    @property
    def _end(self) -> int:
        return self._blocks.ends[-1] + len(self._tail)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Raise `StoreCorrupt` if any data read during the block is damaged."""
        self._fault = ""
        try:
            yield
        except Exception:  # any error that pyarrow raises for zeros
            if not self._fault:
                raise
        if self._fault:
            raise StoreCorrupt(self._fault)

    def read(self, size: int = -1) -> bytes | memoryview:
        """Return the next bytes."""
        footer, start = self._blocks.ends[-1], min(self._place, self._end)
        stop = self._end if size < 0 else min(start + size, self._end)
        self._place = stop
        if start < stop <= footer:
            return self._checked(start, stop)
        # A reader of the footer reads more at once, and uses nothing of that.
        return bytes(max(footer - start, 0)) + self._tail[max(start - footer, 0) : max(stop - footer, 0)]

    def _checked(self, start: int, stop: int) -> bytes | memoryview:
        ends, numbers = self._blocks.ends, self._blocks.around(start, stop)
        before = ends[numbers[0] - 1]
        # Into memory of Arrow, which keeps it: that of Python would be had from the system each time.
        try:
            self._source.seek(before)
            data = memoryview(self._source.read_buffer(ends[numbers[-1]] - before))
        except OSError as error:
            self._fault = str(error)
            return bytes(stop - start)
        for number in numbers:
            first, last = ends[number - 1], ends[number]
            if not self._blocks.is_right(number, data[first - before : last - before]):
                self._fault = f"wrong CRC of the bytes {first} to {last - 1}"
                return bytes(stop - start)
        return data[start - before : stop - before]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the next position."""
        self._place = offset + (0, self._place, self._end)[whence]
        return self._place

    def tell(self) -> int:
        """Return the next position."""
        return self._place

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """Close the file."""
        self.closed = True
        self._source.close()


def whole(source: CheckedFile | pa.NativeFile) -> AbstractContextManager[None]:
    """As the method of a `CheckedFile`; a file of an earlier version was verified at its opening."""
    return source.whole() if isinstance(source, CheckedFile) else nullcontext()


def open_checked(
    system: Any, path: str, file: File | None
) -> tuple[CheckedFile | pa.NativeFile, pq.FileMetaData]:
    """Open a file of an export for pyarrow, and read its footer.

    `file` is its entry in the manifest; None without one. Raises one of `UNREADABLE`.
    """
    source = system.open_input_file(path)
    try:
        return _checked(source, path, file)
    except BaseException:
        source.close()
        raise


def _checked(
    source: pa.NativeFile, path: str, file: File | None
) -> tuple[CheckedFile | pa.NativeFile, pq.FileMetaData]:
    # Data behind the end in the manifest was not written by an export.
    size = file.size if file is not None and file.size else source.size()
    footer = find_footer(source, size)
    if footer is None and file is not None and (file.has_checksums or not _is_whole(source, file)):
        raise StoreCorrupt("the file is not as it was written")
    metadata = pq.read_metadata(source if footer is None else pa.BufferReader(footer))
    blocks = decode_blocks(metadata.metadata or {})
    if footer is None and blocks is None:
        return source, metadata
    if footer is None or blocks is None or blocks.ends[-1] + len(footer) != size:
        raise StoreCorrupt("the footer is not as it was written")
    stream, _, part = decode_footer(metadata.metadata)
    if stream_directory(stream) not in path.split("/") or range_of_file(path) != (part.first, part.last):
        raise StoreCorrupt(f"it is the file of {part.first} to {part.last} of the stream {stream!r}")
    return CheckedFile(source, blocks, footer), metadata


def _is_whole(source: pa.NativeFile, file: File) -> bool:
    """Return whether a file agrees with the size and checksum of its entry in the manifest, if any."""
    source.seek(0)
    return not file.size or measured(source) == (file.size, file.crc)
