"""Records into Arrow arrays, without an object for each header or body.

Theory. A record is msgpack: `[headers or nil, frame, …]`. Reading one after the other in Python costs about
a microsecond each. Here all records of a batch are read side by side: `at` holds for each of them where its
reader stands, and one step of numpy moves all of them over the next item. After as many steps as the longest
map has headers, every text and body is known as a place and a length in one buffer. Arrow has arrays of just
that form (views), and copies them into plain ones at the speed of memory.

This reads the form of nearly all records: one frame of body, up to 15 headers of ordinary size. Any other
record is left to `unpack_record`, which decides; so the two can differ in nothing but their speed. A record
refused there is kept as it is: no map of headers, and the record as its body.

    0x92                        an array of two
    0xc0 | 0x80 + n             nil, or a map of n
      0xa0 + n | 0xd9 n         the name: text
      any tag of `_TAGS`        the value
    0xc4 n | 0xc5 nn | 0xc6 nnnn   the body
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from malamute.errors import Malformed
from malamute.protocol.batch import Frame, unpack_record
from malamute.spark.schema import KINDS, Kind, arrow_schema

Numbers = np.ndarray[Any, Any]

_ARRAY_OF_TWO, _NIL, _MAP, _FIXSTR, _STR8, _BIN8 = 0x92, 0xC0, 0x80, 0xA0, 0xD9, 0xC4

_NOTHING, _TEXT, _INTEGER, _NUMBER, _FLAG, _OTHER = range(6)
"""The meaning of a tag. `_OTHER` is for `unpack_record`."""

_INLINE_MAX = 12
"""The longest text that a view holds itself."""

_PADDING = bytes(16)
"""Bytes behind the last record, so that reading a few bytes ahead stays inside the buffer."""

_SCHEMA = arrow_schema()
_MAP_TYPE = _SCHEMA.field("headers").type
_FRAMES_TYPE = _SCHEMA.field("frames").type


def _tags() -> tuple[Numbers, Numbers, Numbers]:
    """Return for each tag its meaning, the bytes of its number or length, and whether that has a sign."""
    kinds = np.full(256, _OTHER, np.uint8)
    widths = np.zeros(256, np.int64)
    signed = np.zeros(256, bool)
    kinds[0xC0], kinds[0xC2], kinds[0xC3] = _NOTHING, _FLAG, _FLAG
    kinds[0x00:0x80], kinds[0xE0:] = _INTEGER, _INTEGER
    kinds[0xA0:0xC0] = _TEXT
    for tag, width in ((0xD9, 1), (0xDA, 2)):
        kinds[tag], widths[tag] = _TEXT, width
    for tag, width in ((0xCA, 4), (0xCB, 8)):
        kinds[tag], widths[tag] = _NUMBER, width
    for place, width in enumerate((1, 2, 4, 8)):
        for tag in (0xCC + place, 0xD0 + place):
            kinds[tag], widths[tag] = _INTEGER, width
        signed[0xD0 + place] = True
    return kinds, widths, signed


_KIND, _WIDTH, _SIGNED = _tags()


class RecordColumns(NamedTuple):
    """The columns read from records."""

    headers: pa.MapArray
    body: pa.BinaryArray
    frames: pa.ListArray
    size: pa.Int32Array


def read_records(records: Sequence[Frame]) -> RecordColumns:
    """Return the headers and bodies of a batch of records, which have less than 2 GiB together."""
    joined = b"".join((*records, _PADDING))
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    ends = np.cumsum(sizes)
    reading = _RecordsReader(joined, ends - sizes, ends)
    reading.read()
    plain, odd = np.flatnonzero(reading.good), np.flatnonzero(~reading.good)
    try:
        columns = reading.columns(plain)
    except pa.ArrowInvalid:  # a text that is not UTF-8: some record is malformed
        return _read_one_by_one(records)
    if not len(odd):
        return columns
    others = _read_one_by_one([records[place] for place in odd.tolist()])
    order = pa.array(np.argsort(np.concatenate((plain, odd))))
    return RecordColumns._make(
        pa.concat_arrays(pair).take(order) for pair in zip(columns, others, strict=True)
    )


def _read_one_by_one(records: Sequence[Frame]) -> RecordColumns:
    headers: list[list[tuple[str, dict[str, Any]]] | None] = []
    bodies: list[Frame] = []
    frames: list[list[int] | None] = []
    for record in records:
        try:
            named, parts = unpack_record(record)
        except Malformed:
            headers.append(None)
            parts = [bytes(record)]
        else:
            headers.append([(name, _fields(value)) for name, value in named.items()])
        bodies.append(parts[0] if len(parts) == 1 else b"".join(parts))
        frames.append(None if len(parts) == 1 else [*map(len, parts)])
    return RecordColumns(
        pa.array(headers, _MAP_TYPE),
        pa.array(bodies, pa.binary()),
        pa.array(frames, _FRAMES_TYPE),
        pa.array(map(len, bodies), pa.int32()),
    )


def _fields(value: str | int | float | bool | None) -> dict[str, Any]:
    """Return a header's value in the field of its type."""
    if type(value) is int:
        return {"integer": value if value < 2**63 else None, "number": float(value)}
    kinds: dict[type, Kind] = {str: "text", float: "number", bool: "flag"}
    return {} if value is None else {kinds[type(value)]: value}


class _Entries:
    """The headers of all records, one behind the other, while they are being found."""

    def __init__(self, count: int) -> None:
        self.names = np.zeros((2, count), np.int64)
        self.texts = np.zeros((2, count), np.int64)
        self.kinds = np.zeros(count, np.uint8)
        self.integers = np.zeros(count, np.int64)
        self.numbers = np.zeros(count, np.float64)
        self.huge = np.zeros(count, bool)
        """Integers that need more than 63 bits."""


class _RecordsReader:
    """All records of a batch, read side by side."""

    def __init__(self, joined: bytes, starts: Numbers, ends: Numbers) -> None:
        self._buffer = pa.py_buffer(joined)
        self._bytes = np.frombuffer(joined, np.uint8)
        # Eight bytes from any place on, as one number; most of these places are not aligned.
        self._eights = np.ndarray((len(joined) - 7,), ">u8", joined, strides=(1,))
        self._eights_turned = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))
        self._ends = ends
        self.good = ends - starts > 2
        here = np.minimum(starts, len(joined) - len(_PADDING))
        head = self._bytes[here + 1]
        has_map = (head & 0xF0) == _MAP
        self.good &= (self._bytes[here] == _ARRAY_OF_TWO) & (has_map | (head == _NIL))
        self._counts = np.where(has_map & self.good, head & 0x0F, 0).astype(np.int64)
        self._offsets = np.concatenate(([0], np.cumsum(self._counts)))
        self._at = here + 2
        self._entries = _Entries(int(self._offsets[-1]))
        self._bodies = np.zeros((2, len(starts)), np.int64)

    def read(self) -> None:
        """Read all records; `good` tells afterwards which of them were read."""
        for place in range(int(self._counts.max(initial=0))):
            rows = np.flatnonzero((self._counts > place) & self.good)
            self._read_entry(rows, self._offsets[rows] + place)
        self._find_equal_names()
        self._read_body(np.flatnonzero(self.good))

    def _read_entry(self, rows: Numbers, entries: Numbers) -> None:
        """Advance these rows over a name and a value."""
        at = self._at[rows]
        tag = self._bytes[at]
        is_short = (tag & 0xE0) == _FIXSTR
        length = np.where(is_short, tag & 0x1F, self._bytes[at + 1]).astype(np.int64)
        at += np.where(is_short, 1, 2)
        self._entries.names[:, entries] = at, length
        at += length
        self._keep(rows, (is_short | (tag == _STR8)) & (at < self._ends[rows]))
        # Bad rows are read at 0, where it does no harm.
        at = np.where(self.good[rows], at, 0)
        self._at[rows] = self._read_value(rows, entries, at)
        self._keep(rows, self._at[rows] < self._ends[rows])

    def _read_value(self, rows: Numbers, entries: Numbers, at: Numbers) -> Numbers:
        tag = self._bytes[at]
        kind, width = _KIND[tag], _WIDTH[tag]
        self._keep(rows, kind != _OTHER)
        self._entries.kinds[entries] = kind
        self._entries.integers[entries] = tag.view(np.int8)  # right for the small numbers, and the flags
        wide = np.flatnonzero(width)
        raw = np.zeros(len(at), np.uint64)
        if len(wide):
            raw[wide] = self._eights[at[wide] + 1]
            raw[wide] >>= (64 - 8 * width[wide]).astype(np.uint64)
        at = at + 1 + width
        self._take_numbers(entries, tag, raw, wide)
        is_text = kind == _TEXT
        length = np.where(is_text, np.where(width > 0, raw.astype(np.int64), tag & 0x1F), 0).astype(np.int64)
        self._entries.texts[:, entries] = at, length
        return at + length

    def _take_numbers(self, entries: Numbers, tag: Numbers, raw: Numbers, wide: Numbers) -> None:
        """Read numbers of one to eight bytes; results for texts among these are unused."""
        kept, tag, raw = self._entries, tag[wide], raw[wide]
        entries = entries[wide]
        shift = (64 - 8 * _WIDTH[tag]).astype(np.int64)
        plain = raw.view(np.int64)
        kept.integers[entries] = np.where(_SIGNED[tag], (plain << shift) >> shift, plain)
        huge = (tag == 0xCF) & (plain < 0)
        kept.huge[entries] = huge
        kept.numbers[entries] = np.where(huge, raw.astype(np.float64), 0)
        double = tag == 0xCB
        kept.numbers[entries[double]] = raw[double].view(np.float64)
        single = tag == 0xCA
        kept.numbers[entries[single]] = raw[single].astype(np.uint32).view(np.float32)

    def _find_equal_names(self) -> None:
        """Mark maps with a name twice for `unpack_record`: the later one counts there."""
        starts, lengths = self._entries.names
        if not len(starts):
            return
        first = self._eights[np.minimum(starts, len(self._eights) - 1)]
        keep = (64 - 8 * np.minimum(lengths, 8)).astype(np.uint64)
        mark = np.where(lengths > 0, first >> np.minimum(keep, np.uint64(63)), 0).astype(np.uint64)
        mark ^= lengths.astype(np.uint64) << np.uint64(56)
        for distance in range(1, int(self._counts.max())):
            for place in range(int(self._counts.max()) - distance):
                rows = np.flatnonzero(self._counts > place + distance)
                here = self._offsets[rows] + place
                self._keep(rows, mark[here] != mark[here + distance])

    def _read_body(self, rows: Numbers) -> None:
        at = self._at[rows]
        tag = self._bytes[at]
        width = np.left_shift(1, np.clip(tag.astype(np.int64) - _BIN8, 0, 2))
        length = (self._eights[at + 1] >> (64 - 8 * width).astype(np.uint64)).astype(np.int64)
        at += 1 + width
        self._bodies[:, rows] = at, length
        self._keep(rows, (tag >= _BIN8) & (tag <= _BIN8 + 2) & (at + length == self._ends[rows]))

    def _keep(self, rows: Numbers, good: Numbers) -> None:
        self.good[rows] &= good

    def columns(self, rows: Numbers) -> RecordColumns:
        """Return the columns of these rows, all of which are good."""
        starts, lengths = self._bodies[:, rows]
        counts = self._counts[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        entries: Any = slice(None)
        if len(rows) < len(self._counts):
            entries = np.repeat(self._offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        names, values = self._headers(entries)
        return RecordColumns(
            pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values, type=_MAP_TYPE),
            self._copied(starts, lengths),
            pa.nulls(len(rows), _FRAMES_TYPE),
            pa.array(lengths, pa.int32()),
        )

    def _headers(self, entries: Any) -> tuple[pa.Array, pa.Array]:
        """Return the names and the values of these entries."""
        found = self._entries
        kinds, integers, huge = found.kinds[entries], found.integers[entries], found.huge[entries]
        is_integer = (kinds == _INTEGER) & ~huge
        numbers = np.where(is_integer, integers, found.numbers[entries])
        starts, lengths = found.texts[:, entries]
        columns = {
            "text": self._copied(starts, lengths, kinds == _TEXT).cast(pa.string()),
            "integer": pa.array(integers, mask=~is_integer),
            "number": pa.array(numbers, mask=(kinds != _INTEGER) & (kinds != _NUMBER)),
            "flag": pa.array((integers & 1).astype(bool), mask=kinds != _FLAG),
        }
        fields = [_MAP_TYPE.item_type.field(kind) for kind in KINDS]
        starts, lengths = found.names[:, entries]
        names = self._copied(starts, lengths).cast(pa.string())
        return names, pa.StructArray.from_arrays([columns[kind] for kind in KINDS], fields=fields)

    def _copied(self, starts: Numbers, lengths: Numbers, valid: Numbers | None = None) -> pa.BinaryArray:
        """Return the bytes at these places; null where they are not valid.

        An item of a view is its length in four bytes, then up to twelve bytes of text; or, of one that is
        longer, its first four bytes, and the number of its buffer and its place in that, four bytes each.
        """
        views = np.empty((len(starts), 2), "<u8")
        views[:, 0] = (self._eights_turned[starts] << np.uint64(32)) | lengths.astype(np.uint64)
        is_short = lengths <= _INLINE_MAX
        views[:, 1] = np.where(
            is_short, self._eights_turned[starts + 4], starts.astype(np.uint64) << np.uint64(32)
        )
        mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [mask, pa.py_buffer(views), self._buffer]
        return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())
