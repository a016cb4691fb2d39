"""The record of a pair beside the meta record, and who takes it out."""

from __future__ import annotations

import os
import shutil
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_stores import FIRST, PAIR, make_member, record_in, set_record
from stores import MIB, append, firsts, put

from malamute.errors import StoreCorrupt, StoreError
from malamute.journal import pair_record
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import (
    ALONE,
    TIMELINES_MAX,
    PairRecord,
    decode,
    encode,
    parting,
)
from malamute.journal.repair import MOVED_OUT, repair
from malamute.journal.tail import LogRecord, Tail
from malamute.journal.write_ahead import FILE
from malamute.journal.write_set import WriteSet

SIZE = 32 * MIB
RECORD = PairRecord(PAIR, FIRST, ((1, 1), (2, 500)), whole=True)


@pytest.fixture
def member(tmp_path):
    make_member(tmp_path / "store", size=SIZE)
    return tmp_path / "store"


def opened(directory, **options):
    store = DiskStore.open(directory, size=SIZE, **options)
    store.recover()
    return store


def kill(store):
    store.take_over = lambda: None
    store.close()


@given(
    st.builds(
        PairRecord,
        st.binary(min_size=16, max_size=16),
        st.binary(min_size=16, max_size=16),
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5).map(tuple),
        st.booleans(),
    )
)
def test_a_record_is_read_as_it_was_written(record):
    assert decode(encode(record)) == record


@given(st.binary(max_size=100))
def test_other_bytes_are_no_record(data):
    with pytest.raises(StoreCorrupt, match="repair"):
        decode(data)


def test_each_damaged_byte_of_a_record_is_noticed():
    data = encode(RECORD)
    for place in range(len(data)):
        with pytest.raises(StoreCorrupt):
            decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StoreCorrupt):
            decode(data[:place])


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (((1, 1),), ((1, 1),), None),
        (((1, 1),), ((1, 1), (2, 50)), 50),
        (((1, 1), (2, 50)), ((1, 1),), 50),
        (((1, 1), (2, 50)), ((1, 1), (3, 40)), 40),
        (((1, 1), (2, 50)), ((1, 1), (2, 60)), 50),
        (((2, 50), (3, 60)), ((1, 1), (2, 50), (3, 60), (4, 70)), 70),
        ((), ((1, 1),), 0),
        (((1, 1),), ((2, 9),), 0),
    ],
)
def test_histories_part_where_the_first_of_them_went_on_alone(ours, theirs, expected):
    assert parting(ours, theirs) == parting(theirs, ours) == expected


def test_a_record_remembers_the_newest_timelines():
    record = PairRecord(PAIR, FIRST)
    for n in range(1, TIMELINES_MAX + 9):
        record = record.begun(n, 10 * n).begun(n, 10 * n + 5)
    assert len(record.timelines) == TIMELINES_MAX
    assert record.timelines[-1] == (TIMELINES_MAX + 8, 10 * TIMELINES_MAX + 80)


# --- who may open a directory of a pair, and who takes the record out


def test_a_primary_begins_each_life_with_a_take_over_and_each_timeline_once(member):
    numbers, taken = [], []
    for timeline in (1, 1, 2, 2):
        with closing(opened(member, timeline=timeline, has_log=True)) as store:
            numbers.append(store.lsn)
            taken.append(store._store.meta.taken)
            store.write([append(store.lsn)])
    assert numbers == taken == sorted(set(numbers))
    assert record_in(member).timelines == ((1, 1), (2, numbers[2]))


def test_the_log_of_the_last_primary_belongs_to_the_timeline_before(member):
    store = opened(member, timeline=1, has_log=True)
    store.write([append(1)])
    last = store.lsn
    kill(store)
    with closing(opened(member, timeline=2, has_log=True)) as store:
        assert firsts(store) == [1]
        assert store.lsn == last + 1
    assert record_in(member).timelines[-1] == (2, last + 1)


def test_a_directory_in_no_pair_has_no_timeline(tmp_path):
    with pytest.raises(StoreError, match="in no pair"):
        opened(tmp_path / "alone", timeline=1)


def test_half_a_copy_is_neither_started_nor_repaired(member):
    set_record(member, RECORD._replace(whole=False))
    before = (member / "data.mdb").read_bytes()
    for use in (lambda: opened(member), lambda: opened(member, timeline=2), lambda: repair(member)):
        with pytest.raises(StoreError, match="half a copy"):
            use()
    assert record_in(member) == RECORD._replace(whole=False)
    assert (member / "data.mdb").read_bytes() == before


def write_alone(directory, tmp_path):
    with closing(opened(directory)) as store:
        store.write([append(9)])


def restart_with_a_log(directory, tmp_path):
    with closing(opened(directory, has_log=True)) as store:
        store.write([append(9)])


def begin_on_a_backup(directory, tmp_path):
    """The backup itself has no record, so this is about a copy in the place of the original."""
    with closing(opened(directory)) as store:
        store.backup(tmp_path / "backup")
        assert store.pair_record is not None, "the original stays in its pair"
    shutil.rmtree(directory)
    (tmp_path / "backup").rename(directory)


def repair_a_value(directory, tmp_path):
    with closing(opened(directory, timeline=1)) as store:
        store.write([append(1, payload=b"here it is" * 9)])
    data = (directory / "data.mdb").read_bytes()
    (directory / "data.mdb").write_bytes(data.replace(b"MALAMUTE", b"MALAMUTf"))
    with pytest.raises(StoreCorrupt):
        opened(directory)
    assert repair(directory)


def repair_the_log(directory, tmp_path):
    store = opened(directory, timeline=1, has_log=True)
    for n in (1, 2, 3):
        store.write([append(n)])
    kill(store)
    data = bytearray((directory / FILE).read_bytes())
    data[60] ^= 1
    (directory / FILE).write_bytes(data)
    assert [one.action for one in repair(directory)] == [MOVED_OUT]


@pytest.mark.parametrize(
    "tool", [write_alone, restart_with_a_log, begin_on_a_backup, repair_a_value, repair_the_log]
)
def test_who_writes_alone_leaves_the_pair(member, tmp_path, tool):
    tool(member, tmp_path)
    assert record_in(member) is None


def test_who_only_looks_stays_in_the_pair(member):
    with closing(opened(member)):
        pass
    assert repair(member) == []
    assert record_in(member) == PairRecord(PAIR, FIRST, ((1, 1),), whole=True)


def test_who_looks_and_finds_a_log_begins_a_timeline_alone(member):
    store = opened(member, timeline=1, has_log=True)
    store.write([append(1)])
    last = store.lsn
    kill(store)
    with closing(opened(member)) as store:
        assert store.lsn == last
    assert record_in(member).timelines == ((1, 1), (ALONE, last))
    assert parting(record_in(member).timelines, ((1, 1),)) == last


def test_a_damaged_record_is_refused_and_repaired(member):
    data, record = (member / "data.mdb").read_bytes(), encode(record_in(member))
    (member / "data.mdb").write_bytes(data.replace(record, b"\1" * len(record)))
    with pytest.raises(StoreCorrupt, match="record of the pair is damaged"):
        opened(member)
    assert [one.kind for one in repair(member)] == ["pair"]
    with closing(opened(member)) as store:
        assert store.pair_record is None


# --- the tail


def set_of(lsn, size=10, after=None):
    return WriteSet(PAIR, lsn - 1 if after is None else after, lsn, {b"k": bytes(size)})


def test_the_tail_gives_what_follows_a_transaction():
    tail = Tail()
    assert tail.since(0) is None
    tail.add(set_of(5))
    tail.append(b"six", 6)
    tail.append(b"seven", 7)
    tail.add(set_of(7, after=5))
    tail.append(b"eight", 8)
    records = [LogRecord(6, b"six"), LogRecord(7, b"seven"), set_of(7, after=5), LogRecord(8, b"eight")]
    assert tail.since(4) == [set_of(5), *records]
    assert tail.since(5) == records
    assert tail.since(7) == records[3:]
    assert [tail.since(n) for n in (3, 6, 8, 9)] == [None] * 4


@pytest.mark.parametrize("bound", [{"bytes_max": 1000}, {"pieces_max": 10}])
def test_the_tail_is_bounded_by_bytes_and_by_pieces(bound):
    tail = Tail(**bound)
    for lsn in range(1, 500):
        tail.append(b"x" * 20, lsn)
        tail.add(set_of(lsn, size=20))
        items = tail._items[tail._begin :]
        assert len(tail._items) <= 40
        assert sum(20 for _ in items) <= bound.get("bytes_max", 1 << 30)
        assert tail.since(lsn) == []
    assert tail.since(490) is None or len(tail.since(490)) == 18
    assert tail.since(498)[1:] == [set_of(499, size=20)]
    assert tail.since(100) is None
    tail.add(set_of(500, size=5000))
    assert tail.since(499) in (None, [set_of(500, size=5000)])
    assert tail.since(500) == []


def test_a_held_tail_lets_the_writer_wait_rather_than_lose_the_place_of_a_catch_up(monkeypatch):
    tail = Tail(bytes_max=1000)
    for lsn in range(1, 40):
        if not tail.wait(0):
            break
        tail.add(set_of(lsn, size=40))
        if lsn == 3:
            tail.hold()
    assert lsn < 12
    assert tail.since(3) is not None
    tail.release()
    assert tail.wait(0)
    tail.hold()
    assert not tail.wait(0)
    monkeypatch.setattr(tail, "_held_until", 0.0)
    assert tail.wait(0), "nobody asks any more"


# --- what a store hands over


def test_a_record_is_handed_over_before_it_is_durable(member, monkeypatch):
    order = []
    tail = Tail()

    def on_append(record, lsn):
        order.append("handed over")
        tail.append(record, lsn)

    options = {"has_log": True, "timeline": 1, "on_commit": tail.add, "on_append": on_append}
    with closing(opened(member, **options)) as store:
        sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda d: (order.append("durable"), sync(d)))
        begin = store.lsn
        store.write([put(1)])
        assert order == ["handed over", "durable"]
        assert store.lsn == begin + 1
        store.write([put(2)])
        (one, two) = tail.since(begin)
        assert (one.lsn, two.lsn) == (begin + 1, begin + 2)
        store.take_over()
        assert [type(item) for item in tail.since(begin)] == [LogRecord, LogRecord, WriteSet]
        assert tail.since(store.lsn) == []
        store.write([append(1, payload=bytes(100_000))])
        (large,) = tail.since(begin + 2)
        assert (large.after, large.lsn) == (begin + 2, store.lsn)
    assert pair_record.PLACE not in {place for one in [large] for place in one.changes}
