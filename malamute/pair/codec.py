"""Frames of the link between the two nodes of a pair: the form of each, and its checksum.

A frame is the letters `MP`, the version, the CRC32 of the rest, and a MessagePack array that begins with the
number of its kind. Decoding any bytes gives a frame or raises `Malformed`, and nothing else.
"""

from __future__ import annotations

import struct
from typing import Annotated
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from malamute.errors import Malformed
from malamute.pair.replication import WINDOW_BYTES, Began, History
from malamute.pair.state import Address, Bits, Level, Lsn, Name, Timeline

VERSION = 1
"""The protocol of a pair: `Level.protocol`."""

FRAME_BYTES_MAX = 2 * WINDOW_BYTES
"""The size of a frame; one with many write sets is far smaller."""

TIMELINES_MAX = 1024
"""The number of last timelines in a greeting: a directory that parted earlier is compared as a whole."""

_HEADER = struct.Struct(">2sBI")
_MAGIC = b"MP"

Seconds = Annotated[float, Meta(ge=0, lt=2**53)]
"""A time by the shipment's clock, which the answer returns as it is."""
Words = Annotated[str, Meta(max_length=1024)]


class Greeting(Struct, frozen=True, array_like=True, tag=1):
    """The first frame of either node, and that with which a standby begins again behind `lsn`.

    `serves` is the timeline in which the node serves, or 0. `is_whole` tells that no catch-up is half done.
    """

    pair: Bits
    name: Name
    replica: Bits
    level: Level
    timelines: Annotated[tuple[Began, ...], Meta(max_length=TIMELINES_MAX)]
    lsn: Lsn
    applied: Lsn
    serves: Lsn
    is_whole: bool
    size: Lsn

    @property
    def history(self) -> History:
        """How far the directory has come."""
        return History(tuple(Began(*one) for one in self.timelines), self.lsn)


class RecordFrame(Struct, frozen=True, array_like=True, tag=2):
    """A record of the primary's write-ahead log, which follows `after`."""

    timeline: Timeline
    after: Lsn
    lsn: Lsn
    data: bytes


class WriteSets(Struct, frozen=True, array_like=True, tag=3):
    """Encoded write sets, of which the first follows the write set `after` and the last is `lsn`."""

    timeline: Timeline
    after: Lsn
    lsn: Lsn
    data: tuple[bytes, ...]


class Heartbeat(Struct, frozen=True, array_like=True, tag=4):
    """A sign of life of a node that serves in a timeline, or of one that does not (0)."""

    serves: Lsn
    at: Seconds
    lsn: Lsn
    released: Lsn


class Synced(Struct, frozen=True, array_like=True, tag=5):
    """The last numbers on a standby's disk: of log and LMDB, and of LMDB. `at` is that of a heartbeat."""

    timeline: Timeline
    synced: Lsn
    applied: Lsn
    at: Seconds


class CatchUp(Struct, frozen=True, array_like=True, tag=6):
    """A part of a catch-up in either direction, in its own form."""

    timeline: Timeline
    data: bytes


class Goodbye(Struct, frozen=True, array_like=True, tag=7):
    """The end of a node's taking part: it stops, or its disk refuses (`failed`)."""

    reason: Words
    failed: bool = False


class HandOver(Struct, frozen=True, array_like=True, tag=8):
    """Told by a primary: the register names the other node now; asked by a standby: switch over."""

    timeline: Lsn
    lsn: Lsn


class GreetingRefused(Struct, frozen=True, array_like=True, tag=9):
    """A greeting is refused: the number of the error, its words, and the primary's link if it is known."""

    code: Annotated[int, Meta(ge=0, lt=1000)]
    text: Words
    link: Address = ""


Frame = (
    Greeting | RecordFrame | WriteSets | Heartbeat | Synced | CatchUp | Goodbye | HandOver | GreetingRefused
)

_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame. Raises: Malformed for one over the limit."""
    body = _encoder.encode(frame)
    if len(body) + _HEADER.size > FRAME_BYTES_MAX:
        raise Malformed(f"frame of {len(body)} bytes: expected at most {FRAME_BYTES_MAX}")
    return _HEADER.pack(_MAGIC, VERSION, crc32(body)) + body


def decode(data: bytes) -> Frame:
    """Return a frame. Raises: Malformed."""
    if not _HEADER.size < len(data) <= FRAME_BYTES_MAX:
        raise Malformed(f"frame of {len(data)} bytes: expected up to {FRAME_BYTES_MAX}")
    magic, version, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Malformed("not a frame of a pair: expected the link of the other node")
    if version != VERSION:
        raise Malformed(f"protocol {version} of a pair: expected {VERSION}; update the standby first")
    body = memoryview(data)[_HEADER.size :]
    if crc32(body) != crc:
        raise Malformed("damaged frame of a pair")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"frame of a pair with other fields: {error}") from error
