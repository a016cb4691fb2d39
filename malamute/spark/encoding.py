"""Columns of messages into records, without an object for each header or body: the way back of `records`.

Theory. A record is `[headers or nil, frame, …]` in msgpack, and each of its parts has a few bytes of prefix
and then bytes that Arrow has already. So the prefixes of all rows are made as one matrix, of which a mask
takes as many bytes of each row as it needs; Arrow joins the parts row by row. The headers of a message stand
side by side in their column, so its map is one slice of the joined headers.

Rows with several frames, which are few, are packed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.protocol.batch import pack, pack_record

Numbers = np.ndarray[Any, Any]

NIL, FALSE, TRUE, DOUBLE = b"\xc0", b"\xc2", b"\xc3", 0xCB
MAP, MAP16, ARRAY_OF_TWO = 0x80, 0xDE, 0x92
BIN = ((1 << 8, 0xC4, 1), (1 << 16, 0xC5, 2), (1 << 32, 0xC6, 4))
TEXT = ((1 << 8, 0xD9, 1), (1 << 16, 0xDA, 2), (1 << 32, 0xDB, 4))
"""Lengths below the first number have this tag, and so many bytes."""

UNSIGNED = ((1 << 8, 0xCC, 1), (1 << 16, 0xCD, 2), (1 << 32, 0xCE, 4), (1 << 63, 0xCF, 8))
SIGNED = ((1 << 7, 0xD0, 1), (1 << 15, 0xD1, 2), (1 << 31, 0xD2, 4), (1 << 63, 0xD3, 8))
"""The same of integers: a negative one is at least the negative of the first number."""


def encoded(batch: pa.RecordBatch, more: Mapping[str, Any]) -> pa.BinaryArray:
    """Return the records of messages, with more headers, in place of their own of these names.

    A value of `more` is the same for all messages, or an array of texts or of integers.
    """
    maps, body, frames = (batch.column(name) for name in ("headers", "body", "frames"))
    own, counts = _headers(maps, [*more])
    added = [part for name, value in more.items() for part in (pack(name), _value(value))]
    heads = _heads(counts + len(more))
    records = _joined(heads, own, *added, _lengths(_sizes(body), BIN), body.cast(pa.binary()))
    odd = frames.is_valid()
    places = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    if not len(places):
        return records
    some = pa.array(places)
    return pc.replace_with_mask(
        records, odd, pa.array(_one_by_one(batch.take(some), more, some), pa.binary())
    )


def _one_by_one(batch: pa.RecordBatch, more: Mapping[str, Any], places: pa.Array) -> list[bytes]:
    from malamute.spark.match import decoded

    columns = {
        name: value.take(places).to_pylist() if isinstance(value, pa.Array) else [value] * len(places)
        for name, value in more.items()
    }
    rows = zip(decoded(batch.column("headers")), batch.column("body"), batch.column("frames"), strict=True)
    found = []
    for place, (headers, body, sizes) in enumerate(rows):
        ends = np.cumsum(sizes.as_py(), dtype=int).tolist()
        data, starts = body.as_py(), [0, *ends]
        parts = [data[start:end] for start, end in zip(starts, ends, strict=False)]
        found.append(pack_record({**headers, **{name: of[place] for name, of in columns.items()}}, parts))
    return found


def _joined(*parts: pa.Array | bytes) -> pa.BinaryArray:
    """Return the parts of each row as one piece."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, bytes) else part for part in parts), b""
    )


def _value(value: Any) -> pa.BinaryArray | bytes:
    if not isinstance(value, pa.Array):
        return pack(value)
    if pa.types.is_integer(value.type):
        return _integers(value.to_numpy(zero_copy_only=False))
    return _texts(value)


def _headers(maps: pa.MapArray, without: Sequence[str]) -> tuple[pa.BinaryArray, Numbers]:
    """Return the headers of each row but for some, packed, and their number."""
    keys, items, offsets = maps.keys, maps.items, maps.offsets.to_numpy()
    start, stop = int(offsets[0]), int(offsets[-1])
    keys, items, ends = keys.slice(start, stop - start), items.slice(start, stop - start), offsets - start
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    kept = [name not in without for name in keys.dictionary.to_pylist()]
    if not all(kept):
        mask = np.array(kept, bool)[keys.indices.to_numpy()]
        keys, items = keys.filter(pa.array(mask)), items.filter(pa.array(mask))
        ends = np.concatenate(([0], np.cumsum(mask)))[ends]
    entries = _joined(_texts(keys), _values(items))
    edges = np.frombuffer(entries.buffers()[1], np.int32, len(entries) + 1, 4 * entries.offset)[ends]
    rows = pa.Array.from_buffers(
        pa.binary(), len(maps), [None, pa.py_buffer(edges.astype(np.int32)), entries.buffers()[2]]
    )
    return rows, np.diff(ends)


def _values(items: pa.StructArray) -> pa.BinaryArray:
    """Return the values of headers: each is in the field of its type, integers in that of numbers as well."""
    found = []
    for kind, make in (("text", _texts), ("integer", None), ("flag", _flags), ("number", _doubles)):
        column = items.field(kind)
        if column.null_count == len(column):
            continue
        if make is None:
            packed = _integers(column.fill_null(0).to_numpy(zero_copy_only=False))
        else:
            packed = make(column)
        found.append(packed if not column.null_count else pc.if_else(column.is_valid(), packed, None))
    return pc.coalesce(*found, pa.scalar(NIL)) if found else pa.array([NIL] * len(items), pa.binary())


def _flags(column: pa.BooleanArray) -> pa.BinaryArray:
    return pc.if_else(column, pa.scalar(TRUE), pa.scalar(FALSE))


def _doubles(column: pa.DoubleArray) -> pa.BinaryArray:
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    matrix = np.full((len(numbers), 9), DOUBLE, np.uint8)
    matrix[:, 1:] = numbers.astype(">f8").view(np.uint8).reshape(-1, 8)
    return _rows(matrix, np.full(len(numbers), 9))


def _texts(column: pa.Array) -> pa.BinaryArray:
    """Return texts with their lengths before them. A dictionary has few of them."""
    if pa.types.is_dictionary(column.type):
        return _texts(column.dictionary).take(column.indices)
    plain = column.cast(pa.string()).cast(pa.binary()).fill_null(b"")
    return _joined(_lengths(_sizes(plain), TEXT, 0xA0), plain)


def _sizes(column: pa.Array) -> Numbers:
    sizes: Numbers = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64)


def _lengths(lengths: Numbers, forms: Any, short: int = 0) -> pa.BinaryArray:
    """Return lengths as msgpack has them; with `short` those below 32 are in the tag."""
    matrix, widths = _forms(lengths, forms)
    if short:
        few = lengths < 32
        matrix[few, 0] = short | lengths[few]
        widths[few] = 1
    return _rows(matrix, widths)


def _integers(numbers: Numbers) -> pa.BinaryArray:
    """Return integers in their shortest form."""
    matrix, widths = _forms(numbers, UNSIGNED)
    negative = numbers < 0
    if negative.any():
        matrix[negative], widths[negative] = (part for part in _forms(numbers[negative], SIGNED))
    tiny = (numbers >= -32) & (numbers < 128)
    matrix[tiny, 0] = numbers[tiny].astype(np.int8).view(np.uint8)
    widths[tiny] = 1
    return _rows(matrix, widths)


def _forms(numbers: Numbers, forms: Any) -> tuple[Numbers, Numbers]:
    """Return rows of a tag and a big-endian number, and how many bytes each row has."""
    matrix = np.zeros((len(numbers), 9), np.uint8)
    widths = np.zeros(len(numbers), np.int64)
    numbers = numbers.astype(np.int64)
    size = np.where(numbers < 0, -(numbers + 1), numbers)
    left = np.ones(len(numbers), bool)
    digits = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    for below, tag, width in forms:
        fits = left & (size < below) if below < 1 << 63 else left
        matrix[fits, 0] = tag
        matrix[fits, 1 : 1 + width] = digits[fits, 8 - width :]
        widths[fits] = 1 + width
        left &= ~fits
    return matrix, widths


def _heads(counts: Numbers) -> pa.BinaryArray:
    """Return the beginnings of records, up to the first header."""
    matrix = np.zeros((len(counts), 4), np.uint8)
    many = counts > 15
    matrix[:, 0] = ARRAY_OF_TWO
    matrix[:, 1] = np.where(many, MAP16, MAP | (counts & 15))
    matrix[:, 2], matrix[:, 3] = counts >> 8, counts & 255
    return _rows(matrix, np.where(many, 4, 2))


def _rows(matrix: Numbers, widths: Numbers) -> pa.BinaryArray:
    """Return the first bytes of each row."""
    width = matrix.shape[1]
    data = matrix if (widths == width).all() else matrix[np.arange(width) < widths[:, None]]
    ends = np.concatenate(([0], np.cumsum(widths))).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(matrix), buffers)
