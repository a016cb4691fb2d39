"""Records read side by side, held against records read one by one."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from histories import good_records, records
from hypothesis import given
from hypothesis import strategies as st

from malamute.errors import Malformed
from malamute.protocol.batch import pack_record, unpack_record
from malamute.spark.columns import promoted_column
from malamute.spark.records import read_records


def _expected(record: bytes) -> tuple[Any, bytes, list[int] | None]:
    """The expected row, by the definition of the columns."""
    try:
        headers, frames = unpack_record(record)
    except Malformed:
        return None, record, None
    reported = [(name, _fields(value)) for name, value in headers.items()]
    return reported, b"".join(frames), None if len(frames) == 1 else [*map(len, frames)]


def _fields(value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = dict.fromkeys(("text", "integer", "number", "flag"))
    if isinstance(value, bool):
        return fields | {"flag": value}
    if isinstance(value, int):
        return fields | {"integer": value if value < 2**63 else None, "number": float(value)}
    kind = {str: "text", float: "number"}.get(type(value))
    return fields | ({kind: value} if kind else {})


def _rows(columns: Any) -> list[tuple[Any, bytes, list[int] | None]]:
    return [
        (None if headers is None else [(name, fields) for name, fields in headers], body, frames)
        for headers, body, frames in zip(
            columns.headers.to_pylist(), columns.body.to_pylist(), columns.frames.to_pylist(), strict=True
        )
    ]


def _hold(column: list[bytes]) -> None:
    columns = read_records(column)
    for array in columns:
        array.validate(full=True)
    # A number that is none differs from itself, but not from its own words.
    assert repr(_rows(columns)) == repr([_expected(record) for record in column])
    assert columns.size.to_pylist() == [len(_expected(record)[1]) for record in column]


@given(st.lists(good_records, max_size=6))
def test_good_records(column: list[bytes]) -> None:
    _hold(column)


@given(st.lists(records, max_size=6))
def test_any_bytes_among_records(column: list[bytes]) -> None:
    _hold(column)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x92",
        b"\x92\xc0",
        b"\x91\xc0",
        b"\x93\xc0\xc4\x01a\xc4\x01b",
        b"\x92\xc0\xc4\x00\x00",
        b"\x92\x82\xa1a\x01\xa1a\x02\xc4\x00",
        b"\x92\x82\xa0\x01\xa0\x02\xc4\x00",
        b"\x92\x81\xa1\xff\x01\xc4\x00",
        b"\x92\x81\xa1a\xa1\xff\xc4\x00",
        b"\x92\x81\xa1a\xc4\x00\xc4\x00",
        b"\x92\x81\x01\x01\xc4\x00",
        b"\x92\x81\xa1a\xca\x40\x49\x0f\xdb\xc4\x00",
        b"\x92\xc0\xa1a",
        msgpack.packb([{str(n): n for n in range(15)}, b""]),
        msgpack.packb([{str(n): n for n in range(16)}, b""]),
        msgpack.packb([{"a": "x" * 65_536}, b""]),
        msgpack.packb([{"n" * 256: 1}, b""]),
    ],
)
def test_each_shape_beside_plain_ones(record: bytes) -> None:
    plain = pack_record({"price": 1.5, "venue": "XNAS"}, b"body")
    _hold([record])
    _hold([plain, record, plain])


def test_a_promoted_header_is_null_where_it_is_missing_or_of_another_type() -> None:
    reported = [{"p": 1.5}, None, {"q": 1, "p": 2}, {"p": "text"}, {"p": None}, {"p": math.inf, "z": 1}]
    headers = read_records([pack_record(each, b"") for each in reported]).headers
    assert promoted_column(headers, "p", "number").to_pylist() == [1.5, None, 2.0, None, None, math.inf]
    assert promoted_column(headers, "p", "integer").to_pylist() == [None, None, 2, None, None, None]
    assert promoted_column(headers, "p", "text").to_pylist() == [None, None, None, "text", None, None]
    assert promoted_column(headers, "none", "flag").type == pa.bool_()
