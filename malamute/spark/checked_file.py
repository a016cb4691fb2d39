"""Reading an exported file so that nothing of it is believed which is not as it was written.

Theory. A file is written in blocks (`checksums`), which end where Parquet's pages do, and at each row group.
Their checksums are in the footer, and that of the footer stands before it. So a reader checks what it reads
and nothing else: also footers and heads of pages, for which Parquet has no checksum. A footer says of which
stream and range it is, too, which has to be what the name of the file says.

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
"""What is raised for a file, or a part of it, that is not there or not as it was written."""


class CheckedFile:
    """An open file, as pyarrow wants one. Whenever something of a block is read, the block is looked at.

    What is not as it was written is read as zeros, and raised by `whole`: pyarrow keeps an exception that is
    raised under it for ever, and with that all that its frames hold. `tail` is what follows the blocks: the
    footer, which whoever opens the file has looked at.
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
        """Raises `StoreCorrupt` if anything that is read until the block ends is not as it was written."""
        self._fault = ""
        try:
            yield
        except Exception:  # whatever zeros are to pyarrow
            if not self._fault:
                raise
        if self._fault:
            raise StoreCorrupt(self._fault)

    def read(self, size: int = -1) -> bytes | memoryview:
        """The next bytes."""
        footer, start = self._blocks.ends[-1], min(self._place, self._end)
        stop = self._end if size < 0 else min(start + size, self._end)
        self._place = stop
        if start < stop <= footer:
            return self._checked(start, stop)
        # Who reads the footer reads more at once, and uses nothing of that.
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
        """Where to read next."""
        self._place = offset + (0, self._place, self._end)[whence]
        return self._place

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._place

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is not."""
        return False

    def flush(self) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """Close the file."""
        self.closed = True
        self._source.close()


def whole(source: CheckedFile | pa.NativeFile) -> AbstractContextManager[None]:
    """As the method of a `CheckedFile`; one of an earlier version was looked at when it was opened."""
    return source.whole() if isinstance(source, CheckedFile) else nullcontext()


def open_checked(
    system: Any, path: str, file: File | None
) -> tuple[CheckedFile | pa.NativeFile, pq.FileMetaData]:
    """Open a file of an export for pyarrow, and read its footer.

    `file` is what the manifest says of it; None if nothing does. Raises one of `UNREADABLE`.
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
    # What is behind the end that the manifest says was not written by us.
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
    """Whether a file is what the manifest says, as far as it says that."""
    source.seek(0)
    return not file.size or measured(source) == (file.size, file.crc)
