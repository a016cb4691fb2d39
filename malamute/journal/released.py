"""The file beside the store of a primary that has the newest log sequence number that its pair has released.

Readers of the directory have no part in the acknowledgements of a pair. So they stop at this number. The
file says nothing after a crash of the host: who starts the primary again writes it anew.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from math import inf
from pathlib import Path

FILE = "released"

_NUMBER = struct.Struct(">Q")


class ReleasedFile:
    """The file, as its primary writes it. Raises OSError, except by `write`."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, lsn: int) -> None:
        """Note the newest released number; readers stay behind where the disk refuses that."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.pwrite(self._descriptor, _NUMBER.pack(lsn), 0)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def read_released(directory: Path) -> float:
    """Return the newest released number of a directory; infinity for a store in no pair."""
    try:
        found = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return inf
    return _NUMBER.unpack(found)[0] if len(found) == _NUMBER.size else 0


def remove_released(directory: Path) -> None:
    """Remove the file of a directory that is not of a primary any more."""
    (directory / FILE).unlink(missing_ok=True)
