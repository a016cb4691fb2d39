"""The promises of a store, on the disk and in memory alike."""

from __future__ import annotations

import pytest
from stores import AT_ONCE, append, chunk_size, delete, fill, firsts, put, size_of_a_chunk

from malamute.errors import StorageFull, StoreError
from malamute.journal import ring
from malamute.journal.memory import MemoryStore
from malamute.journal.store import QueueStatus
from malamute.store.operations import (
    Chunk,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetStream,
    GapRange,
    MarkDelivered,
    PutValue,
    QueueState,
    Reserve,
    StreamState,
    TrimByAge,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import NUMBERS, SESSIONS


def test_a_new_store_is_empty(make):
    make()
    assert make.recovered.streams == {}
    assert make.recovered.queues == {}
    assert make.recovered.table(SESSIONS) == {}
    assert len(make.recovered.broker_id) == 16


def test_the_broker_keeps_its_id(make):
    make()
    before = make.recovered.broker_id
    make()
    assert make.recovered.broker_id == before


def test_a_chunk_is_read_as_it_was_written(make):
    store = make()
    operation = append(1, count=3, payload=b"columns", large=(b"x" * 70_000, memoryview(b"y" * 9)), time=5)
    store.write([operation])
    expected = Chunk(1, 3, 5, b"columns", (b"x" * 70_000, b"y" * 9))
    assert store.read("s", 1, bytes_max=1) == ([expected], 1)


def test_a_stream_is_found_again(make):
    make().write([append(1, count=3, reserved=100)])
    make()
    assert make.recovered.streams == {"s": StreamState(1, 3, 100, time_ns=1)}


def test_only_a_reserve_gives_numbers_back_and_none_in_use(make):
    store = make()
    store.write([append(1, reserved=100)])
    store.write([append(2, reserved=50), Reserve("bare", 9)])
    store.write([Reserve("bare", 8)])
    make()
    assert make.recovered.streams == {"s": StreamState(1, 2, 100, time_ns=2), "bare": StreamState(1, 0, 8)}
    make.store.write([Reserve("s", 1)])
    make()
    assert make.recovered.streams["s"] == StreamState(1, 2, 2, time_ns=2)


def test_a_gap_in_the_sequences_is_allowed_and_going_back_is_not(make):
    store = make()
    store.write([append(1, count=3)])
    store.write([append(100, count=2)])
    assert firsts(store) == [1, 100]
    assert firsts(store, start=3) == [1, 100]
    assert firsts(store, start=4) == [100]
    with pytest.raises(AssertionError):
        store.write([append(101)])
    store.write([append(102)])
    assert firsts(store, start=101) == [100, 102]


def test_reading_begins_with_the_chunk_that_holds_the_start(make):
    store = make()
    store.write([append(first, count=10) for first in (1, 11, 21)])
    assert firsts(store, start=0) == [1, 11, 21]
    assert firsts(store, start=10) == [1, 11, 21]
    assert firsts(store, start=11) == [11, 21]
    assert firsts(store, start=30) == [21]
    assert firsts(store, start=31) == []


def test_reading_keeps_to_its_stream(make):
    store = make()
    store.write([append(1, stream=name, count=2) for name in ("a", "b", "c")] + [put(1)])
    assert [firsts(store, name, start=2) for name in ("a", "b", "c")] == [[1]] * 3
    assert firsts(store, "c", start=3) == []
    assert store.read("unknown", 5, bytes_max=1) == ((), 1)


def test_reading_stops_at_its_bound_but_gives_one_chunk(make):
    store = make()
    store.write([append(first) for first in range(1, 6)])
    size = chunk_size(store)
    assert firsts(store, bytes_max=1) == [1]
    assert firsts(store, bytes_max=2 * size) == [1, 2]
    assert firsts(store, bytes_max=2 * size + 1) == [1, 2, 3]


def test_a_time_is_found(make):
    store = make()
    store.write([append(1 + 10 * n, count=10, time=100 * n) for n in range(50)])
    assert store.find_time("s", -1) == 1
    assert store.find_time("s", 0) == 1
    for n in range(1, 50):
        assert store.find_time("s", 100 * n - 1) == 1 + 10 * n
        assert store.find_time("s", 100 * n) == 1 + 10 * n
    assert store.find_time("s", 4901) == 501
    assert store.find_time("unknown", 0) == 1


def test_a_time_is_found_between_gaps(make):
    store = make()
    store.write([append(first, time=first) for first in (5, 1000, 1001, 2000)])
    assert [store.find_time("s", t) for t in (0, 6, 1001, 1002, 2001)] == [5, 1000, 1001, 2000, 2001]


# --- the ring


@pytest.mark.parametrize("over", [0, 1])
def test_retention_by_count_at_the_limit_and_one_past_it(make, over):
    store = make(retention=lambda _: StreamRetention(messages_max=30))
    store.write([append(1 + 10 * n, count=10) for n in range(3)])
    if over:
        store.write([append(31, count=1)])
    assert firsts(store) == ([11, 21, 31] if over else [1, 11, 21])
    assert store.read("s", 1, bytes_max=1).first == (11 if over else 1)


def test_retention_by_bytes_at_the_limit_and_one_past_it(make):
    limit = StreamRetention()
    store = make(retention=lambda _: limit)
    store.write([append(1)])
    size = chunk_size(store)
    limit = StreamRetention(bytes_max=3 * size)
    store.write([append(2), append(3)])
    assert firsts(store) == [1, 2, 3]
    limit = StreamRetention(bytes_max=4 * size - 1)
    store.write([append(4)])
    assert firsts(store) == [2, 3, 4]


def test_retention_by_age_at_the_limit_and_one_past_it(make):
    store = make(retention=lambda _: StreamRetention(age_seconds=100e-9))
    store.write([append(1, time=1000), append(2, time=1001), append(3, time=1100)])
    assert firsts(store) == [1, 2, 3]
    store.write([append(4, time=1101)])
    assert firsts(store) == [2, 3, 4]


def test_the_newest_chunk_stays_whatever_its_size(make):
    store = make(retention=lambda _: StreamRetention(bytes_max=10, messages_max=1))
    store.write([append(1, count=5, payload=bytes(1000))])
    assert firsts(store) == [1]
    store.write([append(6, count=5, payload=bytes(1000))])
    assert firsts(store) == [6]


def test_retention_is_asked_for_by_name(make):
    store = make(retention=lambda name: StreamRetention(messages_max=1 if name == "short" else 0))
    for n in (1, 2, 3):
        store.write([append(n, stream="short"), append(n, stream="long")])
    assert (firsts(store, "short"), firsts(store, "long")) == ([3], [1, 2, 3])


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_the_budget_at_the_limit_and_one_past_it(make, over):
    probe = size_of_a_chunk(payload=bytes(1000))
    store = make(streams_budget=4 * probe - over)
    for n in range(4):
        store.write([append(1 + n // 2, stream="ab"[n % 2], time=n, payload=bytes(1000))])
    assert firsts(store, "a") == ([2] if over else [1, 2])
    assert firsts(store, "b") == [1, 2]


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_the_budget_takes_the_oldest_among_all_streams(make):
    store = make(streams_budget=10 * size_of_a_chunk(payload=bytes(1000)))
    for n in range(1, 31):
        store.write([append(n, stream=f"s{n % 3}", time=n, payload=bytes(1000))])
    kept = sorted(first for name in ("s0", "s1", "s2") for first in firsts(store, name))
    assert kept == list(range(21, 31))


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_the_budget_may_empty_a_silent_stream_which_keeps_its_numbers(make):
    store = make(streams_budget=3 * size_of_a_chunk(payload=bytes(1000)))
    store.write([append(1, stream="silent", count=4, time=0, payload=bytes(1000))])
    for n in range(1, 6):
        store.write([append(n, stream="busy", time=n, payload=bytes(1000))])
    assert firsts(store, "silent") == []
    assert store.read("silent", 1, bytes_max=1).first == 5
    assert store.find_time("silent", 0) == 5
    store = make(streams_budget=3 * size_of_a_chunk(payload=bytes(1000)))
    assert make.recovered.streams["silent"] == StreamState(5, 4, 4)
    store.write([append(5, stream="silent", time=9, payload=bytes(1000))])
    assert firsts(store, "silent") == [5]
    assert firsts(store, "busy") == [4, 5]


def test_the_budget_spares_what_the_same_transaction_has_appended(make):
    store = make(streams_budget=1500)
    store.write([append(1, time=9, payload=bytes(1000)), append(1, stream="t", time=1, payload=bytes(1000))])
    assert (firsts(store), firsts(store, "t")) == ([1], [1])
    store.write([append(2, stream="t", time=10, payload=bytes(1000))])
    assert (firsts(store), firsts(store, "t")) == ([], [2])


def test_the_state_of_a_stream_adds_up(make):
    store = make(retention=lambda _: StreamRetention(messages_max=25))
    for n in range(8):
        store.write([append(1 + 10 * n, count=10, time=n, payload=bytes(n))])
    state = store.status().streams["s"]
    assert state[2:5] == (61, 80, 80)
    assert (state.count, state.chunks, state.first_time, state.last_time) == (20, 2, 6, 7)
    assert state.bytes == 2 * size_of_a_chunk() - 2 + 6 + 7 == store.status().streams_bytes


# --- queues and sessions


def test_messages_are_found_again_in_order(make):
    store = make()
    operation = put(1, count=3, properties={"n": 1, "deep": [1, {"a": None}]})
    store.write([operation._replace(records=[b"1", b"2", b"3"])])
    store.write([delete((2, 2)), MarkDelivered("mailbox", "q", 1)])
    make()
    first, _, last = operation.messages()
    kept = [first._replace(record=b"1"), last._replace(record=b"3")]
    assert make.recovered.queues == {("mailbox", "q"): QueueState(4, 1, kept)}


def test_a_mailbox_and_a_service_of_one_name_are_two_queues(make):
    store = make()
    store.write([put(1), put(1, kind="service"), put(2, kind="service"), delete((1, 1))])
    make()
    found = {name: [m.sequence for m in queue.messages] for name, queue in make.recovered.queues.items()}
    assert found == {("mailbox", "q"): [], ("service", "q"): [1, 2]}


def test_an_empty_queue_keeps_its_numbers(make):
    store = make()
    store.write([put(1), put(2), MarkDelivered("mailbox", "q", 2), delete((1, 2))])
    make()
    assert make.recovered.queues == {("mailbox", "q"): QueueState(3, 2, [])}


def test_operations_of_one_transaction_apply_in_order(make):
    store = make()
    gone = DeleteQueue("mailbox", "q")
    store.write([put(1), gone, put(5), delete((5, 5)), put(6), MarkDelivered("mailbox", "none", 3)])
    make()
    assert {n: q.next for n, q in make.recovered.queues.items()} == {("mailbox", "q"): 7}
    assert [m.sequence for m in make.recovered.queues["mailbox", "q"].messages] == [6]


def test_a_deleted_queue_is_gone(make):
    store = make()
    store.write([put(1), put(2, queue="other")])
    store.write(
        [DeleteQueue("mailbox", "q"), DeleteQueue("mailbox", "unknown"), delete((1, 9), queue="none")]
    )
    make()
    assert list(make.recovered.queues) == [("mailbox", "other")]


def test_a_range_may_be_far_wider_than_the_queue(make):
    store = make()
    store.write([put(n) for n in (1, 2, 3)])
    store.write([delete((2, 1 << 60))])
    assert store.status().queues == {("mailbox", "q"): QueueStatus(1, 6)}


def test_the_newest_value_of_a_session_counts(make):
    store = make()
    store.write(
        [
            PutValue(SESSIONS, (b"a", NUMBERS), b"1"),
            PutValue(SESSIONS, (b"b", NUMBERS), b"1"),
            PutValue(SESSIONS, (b"c", NUMBERS), b"1"),
        ]
    )
    store.write(
        [
            PutValue(SESSIONS, (b"a", NUMBERS), b"2"),
            DeleteValue(SESSIONS, (b"b",)),
            DeleteValue(SESSIONS, (b"unknown",)),
        ]
    )
    make()
    assert make.recovered.table(SESSIONS) == {(b"a", NUMBERS): b"2", (b"c", NUMBERS): b"1"}


@pytest.mark.parametrize("make", AT_ONCE, indirect=True)
def test_queues_that_are_worked_off_take_no_room(make):
    store = make()
    for n in range(1, 2001, 20):
        store.write([put(n + i, record=bytes(1000)) for i in range(20)])
        store.write([delete((n, n + 19))])
    assert store.status().queues == {("mailbox", "q"): QueueStatus(0, 0)}
    assert store.status().log_bytes < 100_000


def test_a_record_may_be_a_view(make):
    store = make()
    store.write([put(1, record=memoryview(b"body"))])
    make()
    assert make.recovered.queues["mailbox", "q"].messages[0].record == b"body"


# --- the limits and the end


def test_a_full_store_refuses_and_continues(make):
    store = make(size=1 << 20, streams_budget=100_000)
    store.write([append(1)])
    count = fill(store, lambda n: [put(n, record=bytes(2000))])
    assert count > 100
    assert store.status().queues["mailbox", "q"].count == count
    assert firsts(store) == [1]
    for n in range(1, count + 1):
        store.write([delete((n, n)), MarkDelivered("mailbox", "q", n)])
    store.write([put(count + 1, record=bytes(2000)), append(2)])
    make(size=1 << 20, streams_budget=100_000)
    assert make.recovered.queues["mailbox", "q"][:2] == (count + 2, count)
    assert firsts(make.store) == [1, 2]


def test_a_refused_transaction_leaves_nothing(make):
    store = make(size=1 << 20, streams_budget=600_000)
    with pytest.raises(StorageFull):
        store.write([append(1), put(1), append(2, payload=bytes(2 << 20))])
    assert store.status().streams == {}
    assert store.status().queues == {}
    store.write([append(1), put(1)])
    make(size=1 << 20, streams_budget=600_000)
    assert list(make.recovered.streams) == ["s"]


def test_after_an_error_of_the_caller_nothing_is_stored(make):
    store = make(streams_budget=100_000)
    store.write([append(n, payload=bytes(10_000)) for n in range(1, 8)])
    with pytest.raises(AssertionError):
        store.write([append(8, payload=bytes(90_000)), append(1, stream="t"), append(3)])
    assert firsts(store) == list(range(1, 8))
    assert list(store.status().streams) == ["s"]
    store.write([append(8, payload=bytes(90_000))])
    assert firsts(store) == [8]


def test_a_closed_store_says_so(make):
    store = make()
    store.write([append(1)])
    store.close()
    store.close()
    for call in (
        lambda: store.write([append(2)]),
        lambda: store.read("s", 1, bytes_max=1),
        lambda: store.find_time("s", 1),
        store.status,
        store.recover,
    ):
        with pytest.raises(StoreError, match="closed"):
            call()


def test_verify_shows_what_it_has_read(make):
    store = make()
    store.write(
        [append(1, count=4, payload=b"1234"), append(5, large=(b"56",)), append(1, stream="t"), put(1)]
    )
    found = {(step.stream, step.last): (step.chunks, step.damages) for step in store.verify()}
    found.pop((None, 1), None)
    assert found == {("s", 5): (2, ()), ("t", 1): (1, ())}
    assert [step.bytes for step in store.verify("s")] == [7]


def test_a_sequence_between_two_chunks_lies_in_a_gap(make):
    store = make()
    store.write([append(5, count=2), append(10, count=3), append(20)])
    found = {sequence: store.find_gap("s", sequence) for sequence in range(4, 22)}
    assert {s for s, gap in found.items() if gap == GapRange(7, 9)} == {7, 8, 9}
    assert {s for s, gap in found.items() if gap == GapRange(13, 19)} == {*range(13, 20)}
    assert {s for s, gap in found.items() if gap is None} == {4, 5, 6, 10, 11, 12, 20, 21}
    assert store.find_gap("unknown", 1) is None


def test_a_stream_that_is_removed_and_made_again_at_once_keeps_what_was_configured(make):
    store = make()
    young = StreamRetention(age_seconds=25e-9)
    made = append(1, time=1)._replace(retention=young)
    store.write([made])
    store.write([DeleteStream("s"), ForgetStream("s"), made])
    assert store.retention("s") == young
    store.write([TrimByAge(27)])
    assert firsts(store) == []


# --- log sequence numbers


def test_each_transaction_has_the_next_log_sequence_number(make):
    store = make()
    assert make.recovered.lsn == store.status().lsn == 0
    writes = [
        [append(1)],
        [put(1)],
        [append(2), put(2), PutValue(SESSIONS, (b"s", NUMBERS), b"1")],
        [],
        [delete((1, 2))],
        [DeleteStream("s"), ForgetStream("s")],
        [Reserve("other", 5)],
    ]
    for number, operations in enumerate(writes, 1):
        store.write(operations)
        assert store.status().lsn == number
        store = make()
        assert make.recovered.lsn == store.status().lsn == number


def test_a_transaction_that_fails_has_no_log_sequence_number(make):
    store = make()
    store.write([put(1)])
    with pytest.raises(StorageFull):
        store.write([put(2, record=bytes(1 << 24))])
    assert store.status().lsn == 1


# --- age, of a stream at rest


@pytest.mark.parametrize("over", [0, 1])
def test_a_stream_at_rest_ages_by_the_clock_at_the_limit_and_one_past_it(make, over):
    store = make(retention=lambda name: StreamRetention(age_seconds=100e-9 if name == "s" else 0.0))
    store.write([append(1, time=1000), append(2, time=1010), append(1, stream="t", time=1)])
    store.write([TrimByAge(1100 + over)])
    assert firsts(store) == ([2] if over else [1, 2])
    store.write([TrimByAge(1110 + over)])
    assert firsts(store) == ([] if over else [2])
    assert firsts(store, "t") == [1]
    assert store.read("s", 1, bytes_max=1).first == (3 if over else 2)
    store.write([append(3, time=1200)])
    assert firsts(store) == [3]


def test_a_store_says_in_how_long_something_is_too_old(make):
    age = StreamRetention(age_seconds=100.0)
    store = make(retention=lambda name: age if name in "st" else StreamRetention())
    second = 1_000_000_000
    assert store.next_too_old(0) is None
    store.write([append(1, stream="free", time=1)])
    assert store.next_too_old(0) is None
    store.write([append(1, time=50 * second), append(1, stream="t", time=20 * second)])
    assert store.next_too_old(60 * second) == pytest.approx(60)
    assert store.next_too_old(120 * second) == pytest.approx(1e-9)
    assert store.next_too_old(121 * second) == 0
    store.write([TrimByAge(121 * second)])
    assert firsts(store, "t") == []
    assert store.next_too_old(121 * second) == pytest.approx(29)
    store.write([TrimByAge(151 * second)])
    assert store.next_too_old(1000 * second) is None


def test_what_is_too_old_of_a_stream_at_rest_leaves_in_steps(make, monkeypatch):
    monkeypatch.setattr(ring, "STEP_CHUNKS", 3)
    store = make(retention=lambda _: StreamRetention(age_seconds=100e-9))
    store.write([append(n, time=1000) for n in range(1, 9)])
    found = []
    while store.next_too_old(2000) == 0:
        store.write([TrimByAge(2000)])
        found.append(len(firsts(store)))
    assert found == [5, 2, 0]
    assert store.next_too_old(2000) is None


def test_nothing_is_too_old_before_half_of_its_time_was_counted():
    counted = 0.0
    store = MemoryStore(counted=lambda: counted)
    store.recover()
    second = 1_000_000_000
    store.write([append(1, time=second)._replace(retention=StreamRetention(age_seconds=100.0))])
    # The clock jumps by years.
    assert store.next_too_old(10**9 * second) == pytest.approx(50)
    store.write([TrimByAge(10**9 * second)])
    counted = 49.9
    store.write([TrimByAge(10**9 * second)])
    assert firsts(store) == [1]
    assert store.next_too_old(10**9 * second) == pytest.approx(0.1)
    counted = 50.1
    store.write([TrimByAge(10**9 * second)])
    assert firsts(store) == []
