"""Frames of the link between the nodes of a pair, and the value of their register.

Chance finds no checksum. So it is put on here.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from zlib import crc32

from malamute.errors import Malformed
from malamute.pair import codec, state

HEADER = struct.Struct(">2sBI")


def frames(data: bytes) -> None:
    """Hold that any bytes are a frame that comes back as it was, or malformed."""
    for one in (data, HEADER.pack(b"MP", codec.VERSION, crc32(data)) + data):
        with suppress(Malformed):
            frame = codec.decode(one)
            assert codec.decode(codec.encode(frame)) == frame
            if isinstance(frame, codec.Greeting):
                assert frame.history.timeline >= 0


def value(data: bytes) -> None:
    """Hold that any bytes are a value that comes back as it was, or malformed."""
    with suppress(Malformed):
        found = state.decode(data)
        assert state.decode(state.encode(found)) == found
        assert found.primary in found.members
