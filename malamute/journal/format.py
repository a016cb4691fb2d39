"""The bytes on the disk: keys and values. Pure; `docs/journal-format.md` is the specification.

Theory. The store is one ordered table. A key is a kind, an identifier and a sequence, big-endian,
so that the order of the bytes is the order of the numbers and one table serves any number of streams:

    (META, 0, 0)                 the id of the broker, and the format of the store
    (STREAM, stream, 0)          the state of one stream, with its name
    (CHUNK, stream, first)       one chunk of a stream
    (BLOCK, 0, number)           one block of the log of queues and values (`blocks`)
    (QUARANTINE, 0, number)      an unreadable block, as it was found
    (CARD, stream, 0)            a second record of a stream (`states`)
    (ASIDE, 0, number)           any other unreadable value, behind its key

A value carries its own format version and its own CRC32, so that a read finds every damage of the disk, and
never misinterprets a value of another version. A chunk has a second CRC over its header alone: searches by
time, the ring and inspection read headers only, without trusting them blindly or reading the whole history.

Decoding any bytes gives the value or raises `Damaged`, and nothing else. If you change any layout
here, follow the recipe in `docs/journal-format.md`: the version must change with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zlib import crc32 as zlib_crc32

import msgpack

from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import DELETED
from malamute.store.operations import Chunk, Damage

VERSION = 6
"""The format of values that this code writes, and the only one that it reads."""

STORE_VERSION = 7
"""The format of a store with a write-ahead log, which versions that know format 6 alone must not open."""

MAGIC = b"MALAMUTE"

META, STREAM, CHUNK, BLOCK, QUARANTINE, CARD, ASIDE = range(1, 8)

_KEY = struct.Struct(">BIQ")
_META = struct.Struct(">8sI16sQB3xI")
_TAKEN = struct.Struct(">Q")
_CHUNK = struct.Struct(">BBHIQqIII")
_INDEX = struct.Struct(">Q")
_STREAM = struct.Struct(">IIQQQQQQQqq")
_CRC = struct.Struct(">I")

ERA_BITS = 12
ERA_MAX = (1 << ERA_BITS) - 1
"""The last era: a start with a clock that was set back begins no further one."""

STREAM_NAME_PLACE = _CRC.size + _STREAM.size

CHUNK_HEADER_SIZE = _CHUNK.size + _CRC.size

_SLICE = 5 * 1024
_SLICED_MAX = 64 * 1024


def crc32(data: bytes | memoryview, crc: int = 0) -> int:
    """The CRC32 of zlib.

    zlib releases the interpreter's lock for more than 5 KiB at a time. Beside a busy thread, getting it back
    takes up to a switch interval, for a gain of microseconds. So up to 64 KiB are taken in slices of 5 KiB.
    """
    size = len(data)
    if not _SLICE < size <= _SLICED_MAX:
        return zlib_crc32(data, crc)
    view = memoryview(data)
    for start in range(0, size, _SLICE):
        crc = zlib_crc32(view[start : start + _SLICE], crc)
    return crc


class Damaged(ValueError):
    """Raised when bytes are not a valid value of their key. The text names the fault."""


def fault_of(decode: Callable[[Any], object], value: bytes | memoryview) -> str:
    """Return the fault of a value that cannot be decoded; empty for an intact one."""
    try:
        decode(value)
    except Damaged as error:
        return str(error)
    return ""


class TooNew(Damaged):
    """Raised when a value has a newer format."""


class TooOld(Damaged):
    """Raised when a store has an older format, which is no longer supported."""


def key(kind: int, identifier: int = 0, sequence: int = 0) -> bytes:
    """Return the 13 bytes of a key."""
    return _KEY.pack(kind, identifier, sequence)


def split_key(data: bytes | memoryview) -> tuple[int, int, int]:
    """Return the kind, the identifier and the sequence of a key.

    Raises:
        Damaged: `data` is not a key.
    """
    if len(data) != _KEY.size:
        raise Damaged(f"a key of {len(data)} bytes")
    return _KEY.unpack(data)


# --- the meta record


class Meta(NamedTuple):
    """The meta record: the format of the store, and the 16 random bytes of its broker.

    `lsn` is the log sequence number at the write of this record; later transactions have theirs in their own
    values. A `copied` store was made by a backup, and no broker has begun on it yet. `incarnations` has
    a number for each start of a broker on a copy, in order. `taken` is the log sequence number of the last
    take-over of the write-ahead log; a store of format 6 has none.
    """

    version: int
    broker_id: bytes
    lsn: int = 0
    copied: bool = False
    incarnations: tuple[int, ...] = ()
    taken: int = 0


def encode_meta(meta: Meta) -> bytes:
    """Return the bytes of the meta record."""
    count = len(meta.incarnations)
    body = _META.pack(MAGIC, meta.version, meta.broker_id, meta.lsn, meta.copied, count)
    if meta.version > VERSION:
        body += _TAKEN.pack(meta.taken)
    body += struct.pack(f">{count}Q", *meta.incarnations)
    return body + _CRC.pack(crc32(body))


def is_whole_meta(data: bytes) -> bool:
    """Return whether a meta record of any version is intact."""
    return len(data) > _CRC.size and _CRC.unpack(data[-_CRC.size :])[0] == crc32(data[: -_CRC.size])


def decode_meta(data: bytes | memoryview) -> Meta:
    """Return the meta record. Its version is checked first, since other versions may have another layout.

    Raises: TooNew, TooOld, Damaged.
    """
    if len(data) < 12 or bytes(data[:8]) != MAGIC:
        raise Damaged("not a Malamute store")
    version = int.from_bytes(data[8:12], "big")
    if version > STORE_VERSION:
        raise TooNew(f"store has format {version}: this Malamute reads format {STORE_VERSION}")
    if 0 < version < VERSION:
        raise TooOld(f"store has format {version}: this Malamute reads format {VERSION} and later")
    body = memoryview(data)[: -_CRC.size]
    if not version or _CRC.unpack(data[-_CRC.size :])[0] != crc32(body):
        raise Damaged("wrong CRC of the meta record")
    try:
        _, _, broker_id, lsn, copied, count = _META.unpack_from(body)
        place = _META.size
        taken = 0
        if version > VERSION:
            (taken,) = _TAKEN.unpack_from(body, place)
            place += _TAKEN.size
        incarnations = struct.unpack(f">{count}Q", body[place:])
    except struct.error as error:
        raise Damaged(f"a meta record of {len(data)} bytes") from error
    return Meta(version, broker_id, lsn, copied == 1, incarnations, taken)


# --- chunks


class ChunkHeader(NamedTuple):
    """The header of a chunk, readable without the payload. `time_ns` is UTC.

    An `indexed` chunk has a list of subjects behind its records. `era` is the era of the ring at the append.
    The messages of a `deleted` chunk were deleted: it has their sequences and their time.
    """

    first: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    time_ns: int
    payload_size: int
    large_count: int
    body_crc: int
    indexed: bool
    era: int = 0
    deleted: bool = False

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.first + self.count - 1

    @property
    def messages(self) -> int:
        """The number of messages that the chunk has."""
        return 0 if self.deleted else self.count


INDEXED, DELETED_MESSAGES = 1, 2
"""The flags of a chunk."""


def encode_deleted(first: int, count: int, time_ns: int, era: int) -> bytes:
    """Return the value in place of the messages of a chunk that were deleted."""
    return _encode(Chunk(first, count, time_ns, b""), DELETED_MESSAGES, b"", era)


def encode_chunk(chunk: Chunk, index: bytes = b"", era: int = 0) -> bytes:
    """Return the value of a chunk: header, lengths of large records, payload, large records, index."""
    return _encode(chunk, INDEXED if index else 0, index, era)


def _encode(chunk: Chunk, flags: int, index: bytes, era: int) -> bytes:
    """Return the value of a chunk.

    The parts are joined once; the payload is not copied before that.
    """
    large = chunk.large
    lengths = struct.pack(f">{len(large)}I", *map(len, large)) if large else b""
    crc = crc32(chunk.payload, crc32(lengths))
    for record in (*large, index):
        crc = crc32(record, crc)
    header = _CHUNK.pack(
        VERSION,
        flags,
        era,
        chunk.count,
        chunk.first,
        chunk.time_ns,
        len(chunk.payload),
        len(large),
        crc,
    )
    return b"".join((header, _CRC.pack(crc32(header)), lengths, chunk.payload, *large, index))


def decode_chunk_header(data: bytes | memoryview) -> ChunkHeader:
    """Return the header of a chunk, checked by its own CRC, without reading the payload.

    Raises:
        Damaged: the header is not as it was written.
    """
    if len(data) < CHUNK_HEADER_SIZE:
        raise Damaged(f"a chunk of {len(data)} bytes")
    check_version(data[0])
    (crc,) = _CRC.unpack_from(data, _CHUNK.size)
    if crc != crc32(data[: _CHUNK.size]):
        raise Damaged("wrong CRC of a chunk's header")
    _, flags, era, count, first, time_ns, payload_size, large_count, body_crc = _CHUNK.unpack_from(data)
    if count == 0 or flags > DELETED_MESSAGES or first + count - 1 > NUMBER_MAX or era > ERA_MAX:
        raise Damaged(f"a chunk of {count} messages from {first} on with flags {flags}, of the era {era}")
    is_indexed, is_deleted = flags == INDEXED, flags == DELETED_MESSAGES
    return ChunkHeader(
        first, count, time_ns, payload_size, large_count, body_crc, is_indexed, era, is_deleted
    )


def header_of(data: bytes | memoryview) -> ChunkHeader | None:
    """Return the header of a chunk; None for a damaged one."""
    try:
        return decode_chunk_header(data)
    except Damaged:
        return None


def chunk_of(data: bytes | memoryview, first: int) -> Chunk | None:
    """Return the chunk under the key of its `first` sequence; None for a damaged one, or a damaged key."""
    try:
        chunk = decode_chunk(data)
    except Damaged:
        return None
    return chunk if chunk.first == first else None


def item_of(data: bytes | memoryview, first: int) -> Chunk | Damage | None:
    """Return the chunk under the key of its `first` sequence, or the range of its deleted messages.

    None is a damaged chunk, or a damaged key.
    """
    chunk = chunk_of(data, first)
    if chunk is not None and data[1] == DELETED_MESSAGES:
        return Damage(chunk.first, chunk.last, DELETED)
    return chunk


def decode_chunk(data: bytes | memoryview) -> Chunk:
    """Return the whole chunk, checked by both CRCs; its bytes are copies of `data`."""
    header = decode_chunk_header(data)
    view, lengths, start = _check_body(header, data)
    end = start + header.payload_size
    payload = bytes(view[start:end])
    large: list[bytes] = []
    for length in lengths:
        large.append(bytes(view[end : end + length]))
        end += length
    return Chunk(header.first, header.count, header.time_ns, payload, tuple(large))


class SubjectIndex(NamedTuple):
    """All subjects of a range of chunks: from the one at `first` up to the one that carries the index."""

    first: int
    subjects: list[str]


def encode_index(first: int, subjects: Iterable[str]) -> bytes:
    """Return the bytes of an index, which the last chunk of its range carries."""
    packed: bytes = msgpack.packb(list(subjects))
    return _INDEX.pack(first) + packed


def decode_index(data: bytes | memoryview) -> SubjectIndex | None:
    """Return the index of subjects that a chunk carries, checked by both CRCs; None if it carries none.

    Raises:
        Damaged: the chunk is not as it was written.
    """
    header = decode_chunk_header(data)
    if not header.indexed:
        return None
    view, lengths, start = _check_body(header, data)
    place = start + header.payload_size + sum(lengths)
    try:
        (first,) = _INDEX.unpack_from(view, place)
        subjects = msgpack.unpackb(view[place + _INDEX.size :])
    except (struct.error, ValueError, RecursionError, msgpack.UnpackException) as error:
        raise Damaged(f"invalid index: {error!r}") from error
    if type(subjects) is not list or not {str}.issuperset(map(type, subjects)):
        raise Damaged("invalid index: expected a list of subjects")
    return SubjectIndex(first, subjects)


def _check_body(header: ChunkHeader, data: bytes | memoryview) -> tuple[memoryview, tuple[int, ...], int]:
    """Return a view of the chunk, the lengths of its large records, and the start of its payload."""
    view = memoryview(data)
    body = view[CHUNK_HEADER_SIZE:]
    if crc32(body) != header.body_crc:
        raise Damaged("wrong CRC of a chunk's body")
    start = CHUNK_HEADER_SIZE + 4 * header.large_count
    if start > len(view):
        raise Damaged("a chunk's lengths are cut off")
    lengths: tuple[int, ...] = struct.unpack_from(f">{header.large_count}I", body)
    rest = len(view) - (start + header.payload_size + sum(lengths))
    if rest < 0 or (rest > 0) != header.indexed:
        raise Damaged("a chunk's lengths do not add up")
    return view, lengths, start


# --- the state of a stream


class StreamMeta(NamedTuple):
    """The state of one stream: its range, its size, and the ends of its time.

    An empty stream has `first` = `last` + 1. `bytes` counts stored chunk values. The times and eras are
    those of the oldest and the newest chunk, times in nanoseconds UTC. `reserved` is the highest sequence
    that may have been used without being stored. The state of a deleted stream has no name; it stays until
    the last of its chunks has left.
    """

    identifier: int
    name: str
    first: int = 1
    last: int = 0
    reserved: int = 0
    bytes: int = 0
    count: int = 0  # type: ignore[assignment]  # tuple.count is not used
    chunks: int = 0
    first_time: int = 0
    last_time: int = 0
    first_era: int = 0
    last_era: int = 0


def encode_stream(stream: StreamMeta, lsn: int = 0) -> bytes:
    """Return the bytes of a stream's state, as the transaction with this log sequence number writes it."""
    identifier, name, *numbers, first_era, last_era = stream
    head = (VERSION << ERA_BITS | first_era) << ERA_BITS | last_era
    body = _STREAM.pack(head, identifier, lsn, *numbers) + name.encode()
    return _CRC.pack(crc32(body)) + body


def decode_stream(data: bytes | memoryview) -> StreamMeta:
    """Return a stream's state. Raises: Damaged."""
    return decode_stream_and_lsn(data)[0]


def decode_stream_and_lsn(data: bytes | memoryview) -> tuple[StreamMeta, int]:
    """Return a stream's state and the log sequence number of its transaction. Raises: Damaged."""
    if len(data) < _CRC.size + _STREAM.size:
        raise Damaged(f"a stream's state of {len(data)} bytes")
    body = data[_CRC.size :]
    if _CRC.unpack_from(data)[0] != crc32(body):
        raise Damaged("wrong CRC of a stream's state")
    check_version(body[0])
    head, identifier, lsn, *numbers = _STREAM.unpack_from(body)
    try:
        name = str(body[_STREAM.size :], "utf-8")
    except UnicodeDecodeError as error:
        raise Damaged("a stream's name is not UTF-8") from error
    numbers += [head >> ERA_BITS & ERA_MAX, head & ERA_MAX]
    return StreamMeta(identifier, name, *numbers), lsn


def check_version(version: int) -> None:
    """Check that a value has the format of its store. Raises: TooNew, Damaged."""
    if version > VERSION:
        raise TooNew(f"written in format {version}: this Malamute reads format {VERSION}")
    if version != VERSION:
        raise Damaged(f"written in format {version}, in a store of format {VERSION}")
