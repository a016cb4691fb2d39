"""Columns into records, against packing them one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from histories import bodies, headers, spoiled_records
from hypothesis import given
from hypothesis import strategies as st

from malamute.errors import Malformed
from malamute.protocol.batch import Columns, Frame, pack_record, unpack_record
from malamute.spark.columns import Gatherer
from malamute.spark.encoding import encoded

AGAIN = st.dictionaries(st.sampled_from(["price", "a"]), st.sampled_from(["new", 7]), max_size=2)


def gathered(records: list[Frame]) -> pa.RecordBatch:
    gatherer = Gatherer()
    gatherer.add(
        Columns([*range(1, len(records) + 1)], [5] * len(records), "", ["a"] * len(records), records)
    )
    return gatherer.take()


def kept(value: Any) -> Any:
    """A header's value as history keeps it."""
    return float(value) if type(value) is int and value >= 2**63 else value


@given(st.lists(st.tuples(headers, bodies), min_size=1, max_size=8), AGAIN, st.data())
def test_records_are_as_if_packed_one_by_one(
    messages: list[tuple[Any, Any]], again: dict[str, Any], data: st.DataObject
) -> None:
    batch = gathered([pack_record(*message) for message in messages])
    count = len(messages)
    numbers = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
    texts = data.draw(st.lists(st.text(max_size=40), min_size=count, max_size=count))
    more = {**again, "n": pa.array(numbers, pa.int64()), "t": pa.array(texts, pa.string())}
    # A slice begins anywhere in the columns.
    start = data.draw(st.integers(0, count - 1))
    found = encoded(batch.slice(start), {name: _from(value, start) for name, value in more.items()})
    for place, record in enumerate(found.to_pylist(), start):
        own = {name: kept(value) for name, value in (messages[place][0] or {}).items()}
        added = {name: v[place].as_py() if isinstance(v, pa.Array) else v for name, v in more.items()}
        own = {name: value for name, value in own.items() if name not in added}
        body = messages[place][1]
        packed = pack_record({**own, **added}, body)
        assert unpack_record(record) == unpack_record(packed)
        if len(unpack_record(packed)[1]) == 1:
            assert record == packed


def _from(value: Any, start: int) -> Any:
    return value.slice(start) if isinstance(value, pa.Array) else value


@given(st.lists(spoiled_records(), min_size=1, max_size=5))
def test_a_record_that_is_none_is_a_body(records: list[bytes]) -> None:
    for record, found in zip(records, encoded(gathered([*records]), {"x": 1}).to_pylist(), strict=True):
        try:
            own, parts = unpack_record(record)
        except Malformed:
            own, parts = {}, [record]
        assert unpack_record(found)[1] == parts
        assert unpack_record(found)[0].keys() == {*own, "x"}
