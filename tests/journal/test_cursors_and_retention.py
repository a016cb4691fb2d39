"""Cursors, retention set at run time, and deleted streams, on the disk and in memory alike."""

from __future__ import annotations

import pytest
from stores import AT_ONCE, append, chunk_size, firsts, put, size_of_a_chunk

from malamute.journal import ring
from malamute.store.operations import (
    DeleteStream,
    DeleteValue,
    ForgetStream,
    PutValue,
    Reserve,
    StreamState,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import CURSORS, NUMBERS, RETENTIONS, SESSIONS

# --- cursors


def test_the_newest_position_of_a_cursor_counts(make):
    store = make()
    store.write(
        [
            append(1),
            PutValue(CURSORS, ("s", "a"), 1),
            PutValue(CURSORS, ("s", "b"), 1),
            PutValue(CURSORS, ("t", "a"), 7),
        ]
    )
    store.write(
        [
            PutValue(CURSORS, ("s", "a"), 5),
            DeleteValue(CURSORS, ("s", "b")),
            DeleteValue(CURSORS, ("s", "none")),
        ]
    )
    store.write([PutValue(CURSORS, ("s", "a"), 3)])
    make()
    assert make.recovered.table(CURSORS) == {("s", "a"): 3, ("t", "a"): 7}


def test_cursors_are_deleted_with_their_stream_and_may_be_set_again(make):
    store = make()
    store.write(
        [
            append(1),
            PutValue(CURSORS, ("s", "a"), 1),
            PutValue(CURSORS, ("s", "b"), 1),
            PutValue(CURSORS, ("t", "a"), 1),
        ]
    )
    store.write([PutValue(CURSORS, ("s", "c"), 1), DeleteStream("s"), PutValue(CURSORS, ("s", "b"), 9)])
    make()
    assert make.recovered.table(CURSORS) == {("s", "b"): 9, ("t", "a"): 1}


def test_cursors_that_are_set_often_take_no_room(make):
    store = make()
    store.write([PutValue(CURSORS, ("s", "still"), 1), PutValue(RETENTIONS, ("s",), (0, 5, 0))])
    for n in range(200):
        store.write([PutValue(CURSORS, ("s", f"c{i}"), n) for i in range(100)])
    assert store.status().log_bytes < 500_000
    make()
    assert make.recovered.table(CURSORS) == {("s", "still"): 1} | {("s", f"c{i}"): 199 for i in range(100)}
    assert make.recovered.table(RETENTIONS) == {("s",): (0, 5, 0)}


# --- retention


def test_a_retention_comes_before_the_configured_one_and_is_kept(make):
    store = make(retention=lambda _: StreamRetention(messages_max=2))
    store.write([append(n) for n in range(1, 5)])
    assert firsts(store) == [3, 4]
    assert store.retention("s") == StreamRetention(messages_max=2)
    store.write([PutValue(RETENTIONS, ("s",), (0, 3, 1.5))])
    store.write([append(5), append(1, stream="t"), append(2, stream="t"), append(3, stream="t")])
    assert (firsts(store), firsts(store, "t")) == ([3, 4, 5], [2, 3])
    store = make(retention=lambda _: StreamRetention(messages_max=2))
    assert make.recovered.table(RETENTIONS) == {("s",): (0, 3, 1.5)}
    assert store.retention("s") == StreamRetention(messages_max=3, age_seconds=1.5)
    store.write([append(6)])
    assert firsts(store) == [4, 5, 6]


@pytest.mark.parametrize("over", [0, 1])
def test_smaller_limits_trim_in_the_same_commit(make, over):
    store = make()
    store.write([append(1 + 10 * n, count=10, time=n) for n in range(5)])
    store.write(
        [PutValue(RETENTIONS, ("s",), (0, 30 - over, 0)), PutValue(RETENTIONS, ("unknown",), (1, 1, 1))]
    )
    assert firsts(store) == ([31, 41] if over else [21, 31, 41])
    store.write([PutValue(RETENTIONS, ("s",), (0, 0, 1e-9))])
    assert firsts(store) == [31, 41]
    store.write([PutValue(RETENTIONS, ("s",), (chunk_size(store), 0, 0))])
    assert firsts(store) == [41]


def test_a_retention_set_before_the_stream_is_there_holds(make):
    make().write([PutValue(RETENTIONS, ("s",), (0, 1, 0))])
    store = make()
    store.write([append(1), append(2)])
    assert firsts(store) == [2]
    assert make.recovered.streams == {}


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_much_leaves_in_steps(make, monkeypatch):
    monkeypatch.setattr(ring, "STEP_CHUNKS", 3)
    store = make()
    store.write([append(n) for n in range(1, 21)])
    store.write([PutValue(RETENTIONS, ("s",), (0, 2, 0))])
    assert firsts(store)[0] == 4
    store.write([])
    assert firsts(store)[0] == 7
    store.write([append(21)])
    assert firsts(store)[0] == 12
    store = make()
    store.write([put(1)])
    assert firsts(store)[0] == 15
    for _ in range(9):
        store.write([])
    assert firsts(store) == [20, 21]


def test_a_configuration_made_smaller_holds_from_the_first_commit(disk):
    disk().write([append(n, stream=name) for name in "ab" for n in (1, 2, 3)])
    store = disk(retention=lambda _: StreamRetention(messages_max=2))
    store.write([append(4, stream="a")])
    assert (firsts(store, "a"), firsts(store, "b")) == ([3, 4], [2, 3])


# --- deleted streams


def test_a_deleted_stream_keeps_its_numbers_and_nothing_else(make):
    store = make()
    store.write([append(n, reserved=50) for n in (1, 2, 3)] + [append(1, stream="t")])
    store.write([PutValue(CURSORS, ("s", "c"), 2), PutValue(RETENTIONS, ("s",), (0, 2, 0))])
    store.write([DeleteStream("s"), DeleteStream("unknown")])
    assert (firsts(store), firsts(store, "t")) == ([], [1])
    assert store.read("s", 1, bytes_max=1).first == 4
    assert store.find_time("s", 0) == 4
    assert store.last_per_subject("s", limit=9) == {}
    assert store.status().streams_bytes == size_of_a_chunk()
    assert store.retention("s") == StreamRetention()
    store = make()
    assert make.recovered.streams == {"s": StreamState(4, 3, 50), "t": StreamState(1, 1, 1, time_ns=1)}
    assert make.recovered.table(CURSORS) == {}
    assert make.recovered.table(RETENTIONS) == {}
    store.write([append(51), append(52), append(53)])
    assert firsts(store) == [51, 52, 53]


def test_a_stream_deleted_and_made_again_in_one_transaction(make):
    store = make(retention=lambda _: StreamRetention(messages_max=4))
    store.write([append(n) for n in (1, 2)])
    store.write(
        [append(3), PutValue(RETENTIONS, ("s",), (0, 1, 0)), DeleteStream("s"), append(4), DeleteStream("s")]
        + [append(n) for n in (5, 6)]
    )
    make(retention=lambda _: StreamRetention(messages_max=4))
    assert make.recovered.streams == {"s": StreamState(5, 6, 6, time_ns=6)}
    assert firsts(make.store) == [5, 6]
    assert make.store.status().leaving_bytes == 0


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_a_large_stream_is_out_of_sight_at_once_and_leaves_in_steps(make, monkeypatch):
    monkeypatch.setattr(ring, "STEP_CHUNKS", 3)
    size = size_of_a_chunk()
    store = make()
    store.write([append(n) for n in range(1, 21)])
    store.write([DeleteStream("s")])
    assert firsts(store) == []
    assert store.status().leaving_bytes == 17 * size
    store = make()
    store.write([append(21)])
    assert (firsts(store), store.status().leaving_bytes) == ([21], 12 * size)
    store.write([DeleteStream("s")])
    assert store.status().leaving_bytes == 10 * size
    assert firsts(store) == []
    for _ in range(4):
        store.write([])
    assert store.status().leaving_bytes == store.status().streams_bytes == 0
    make()
    assert make.recovered.streams == {"s": StreamState(22, 21, 21)}


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_the_budget_takes_deleted_streams_first(make, monkeypatch):
    monkeypatch.setattr(ring, "STEP_CHUNKS", 0)
    size = size_of_a_chunk(payload=bytes(1000))
    store = make(streams_budget=6 * size)
    store.write([append(1, stream="old", time=0, payload=bytes(1000))])
    store.write([append(n, time=n, payload=bytes(1000)) for n in range(1, 5)])
    store.write([DeleteStream("s")])
    assert store.status().leaving_bytes == 4 * size
    store.write([append(n, stream="new", time=n, payload=bytes(1000)) for n in (6, 7, 8)])
    assert store.status().leaving_bytes == 0
    store.write([append(n, stream="new", time=n, payload=bytes(1000)) for n in (9, 10)])
    assert (firsts(store, "old"), firsts(store, "new")) == ([1], [6, 7, 8, 9, 10])
    store.write(
        [append(11, stream="new", time=11, payload=bytes(1000)), PutValue(SESSIONS, (b"s", NUMBERS), b"")]
    )
    assert (firsts(store, "old"), firsts(store, "new")) == ([], [6, 7, 8, 9, 10, 11])


@pytest.mark.parametrize(
    "before", [(), (Reserve("s", 5),), (append(5), DeleteStream("s"), ForgetStream("s"))]
)
@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_whose_oldest_messages_are_dropped_is_told_of_a_new_stream_too(make, before):
    store = make(retention=lambda _: StreamRetention(messages_max=2))
    store.write([*before, append(6), append(7), append(8)])
    assert store.pop_firsts() == {"s": 7} == {"s": firsts(store)[0]}
    store.write([append(9)])
    assert store.pop_firsts() == {"s": 8}
