"""The checksums of a file that is written once: of its blocks, and of its footer, which has them. Pure.

`zlib.crc32` continues from any value. So of each block only the CRC32 of the file up to its end is kept: a
block is as it was written if it leads from the value before it to its own, and no other has to be read.
Before the footer stands its own CRC32: Parquet finds everything from the end, and does not read that.
"""

from __future__ import annotations

import base64
import struct
import zlib
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import NamedTuple

BLOCK_BYTES = 16 * 1024
"""Bytes up to which writes are merged: a reader reads as much again, at most, at either end."""

_LEAD = struct.Struct("<4sI")
_TAG = b"MLMT"


def footer_lead(footer: bytes) -> bytes:
    """Return the data before a footer, for the end of the file."""
    return _LEAD.pack(_TAG, zlib.crc32(footer))


def is_footer(data: bytes) -> bool | None:
    """Return whether a footer agrees with the checksum before it; None without a checksum."""
    tag, crc = _LEAD.unpack_from(data)
    return None if tag != _TAG else bool(crc == zlib.crc32(memoryview(data)[_LEAD.size :]))


class Blocks(NamedTuple):
    """The ends of blocks, and the CRC32 of the file up to there; the first of each is 0."""

    ends: list[int]
    crcs: list[int]

    def around(self, start: int, stop: int) -> range:
        """Return the blocks with the bytes from `start` to `stop`, which are not behind the last block."""
        return range(bisect_right(self.ends, start), bisect_left(self.ends, stop) + 1)

    def is_right(self, number: int, block: memoryview) -> bool:
        """Return whether a block is as it was written."""
        return (
            len(block) == self.ends[number] - self.ends[number - 1]
            and zlib.crc32(block, self.crcs[number - 1]) == self.crcs[number]
        )

    def encode(self) -> str:
        """Return a text of eleven characters for each block."""
        sizes = [end - start for start, end in pairwise(self.ends)]
        return base64.b64encode(struct.pack(f"<{2 * len(sizes)}I", *sizes, *self.crcs[1:])).decode()

    @classmethod
    def decode(cls, text: str) -> Blocks:
        """Read a text of `encode`. Raises `ValueError` for any other."""
        data = base64.b64decode(text, validate=True)
        try:
            numbers = struct.unpack(f"<{len(data) // 8 * 2}I", data)
        except struct.error as error:
            raise ValueError(str(error)) from error
        sizes, crcs = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        if not all(sizes):
            raise ValueError("an empty block")
        return cls([*accumulate(sizes, initial=0)], [0, *crcs])
