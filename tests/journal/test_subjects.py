"""The last message of each subject, with the index and without."""

from __future__ import annotations

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import MIB, append

from malamute.errors import StorageFull
from malamute.journal import format as codec
from malamute.journal import subjects as index
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import Columns, pack_stream_payload
from malamute.store.operations import DeleteStream, PutValue
from malamute.store.tables import RETENTIONS


def say(first, *subjects, size=10, stream="s", reported=True, ttls=0):
    """A chunk of one message for each subject."""
    records = [bytes(size)] * len(subjects)
    payload, large = pack_stream_payload(Columns(first, 5, "alice", list(subjects), records, ttls=ttls))
    operation = append(first, stream=stream, count=len(subjects), payload=payload, large=large)
    return operation._replace(subjects=list(subjects) if reported else ())


@pytest.fixture
def small(monkeypatch):
    """Ranges of three chunks."""
    monkeypatch.setattr(index, "RANGE_CHUNKS", 3)
    monkeypatch.setattr(index, "SHARE", 1)


def test_the_last_message_of_each_subject_the_newest_first(make):
    store = make()
    store.write([say(1, "a", "b", "a"), say(4, "c", "b"), say(10, "d", "b")])
    assert list(store.last_per_subject("s", limit=9).items()) == [("b", 11), ("d", 10), ("c", 4), ("a", 3)]
    assert list(store.last_per_subject("s", limit=2).items()) == [("b", 11), ("d", 10)]
    assert store.last_per_subject("s", limit=0) == store.last_per_subject("unknown", limit=9) == {}


@pytest.mark.parametrize("ttls", [60_000, [60_000, 0, 5]])
@pytest.mark.parametrize("size", [10, 70_000])
def test_messages_that_expire_and_large_ones_have_subjects(make, ttls, size):
    store = make()
    store.write([say(1, "a"), say(2, "b", "c", "a", ttls=ttls, size=size)])
    assert store.last_per_subject("s", limit=9) == {"b": 2, "c": 3, "a": 4}


def test_a_search_passes_over_subjects_that_it_does_not_take(make, small):
    """However many of them are newer: the limit counts those that it takes."""
    store = make()
    store.write([say(1, "wanted.1", "other")])
    store.write([say(n, f"newer.{n}", "other.x") for n in range(3, 203, 2)])
    store.write([say(203, "wanted.2")])
    takes = lambda subject: subject.startswith("wanted")  # noqa: E731
    for _ in range(2):
        found = store.last_per_subject("s", limit=5, takes=takes)
        assert list(found.items()) == [("wanted.2", 203), ("wanted.1", 1)]
        store = make()


def test_what_is_no_payload_has_no_subjects(make):
    store = make()
    store.write([append(1), say(2, "a"), append(3, payload=b"\x95\x01\x02\x03\x04\x05")])
    assert store.last_per_subject("s", limit=9) == {"a": 2}


def test_a_rare_subject_is_found_behind_many_ranges(make, small):
    store = make()
    store.write([say(1, "rare", "often")])
    for n in range(3, 63, 10):
        store.write([say(n + i, "often", size=100) for i in range(10)])
    store.write([say(63, "x"), say(64, "often")])
    assert list(store.last_per_subject("s", limit=9)) == ["often", "x", "rare"]
    make()
    make.store.write([say(65, "rare"), PutValue(RETENTIONS, ("s",), (0, 30, 0))])
    assert make.store.last_per_subject("s", limit=9) == {"rare": 65, "often": 64, "x": 63}


def counted(disk, monkeypatch, limit=9):
    """How many chunks a search decodes, and what it finds."""
    decoded = []
    decode = codec.decode_chunk
    monkeypatch.setattr(codec, "decode_chunk", lambda value: decoded.append(1) or decode(value))
    found = disk.store.last_per_subject("s", limit=limit)
    monkeypatch.undo()
    return len(decoded), found


def test_ranges_without_news_are_not_read(disk, small, monkeypatch):
    disk().write([say(n, "a", "b", size=100) for n in range(1, 401, 2)])
    chunks, found = counted(disk, monkeypatch)
    assert found == {"b": 400, "a": 399}
    assert chunks < 6


def test_after_a_restart_a_failure_or_without_subjects_only_those_chunks_are_read(disk, small, monkeypatch):
    store = disk()
    store.write([say(n, "a", size=100) for n in range(1, 101)])
    store = disk()
    store.write([say(n, "a", size=100) for n in range(101, 103)])
    with pytest.raises(StorageFull):
        store.write([say(103, "never", size=5 * MIB)])
    store.write([say(103, "a", reported=False, size=100)])
    store.write([say(n, "a", size=100) for n in range(104, 202)])
    chunks, found = counted(disk, monkeypatch)
    assert found == {"a": 201}
    assert chunks < 12


def test_a_deleted_stream_takes_its_subjects_along(make, small):
    store = make()
    store.write([say(n, "old", size=100) for n in range(1, 9)])
    store.write([DeleteStream("s"), say(9, "new", size=100), say(10, "new"), say(11, "new")])
    assert store.last_per_subject("s", limit=9) == {"new": 11}


def test_a_damaged_chunk_hides_no_other(disk, small):
    disk().write([say(n, f"subject{n % 7}", size=100) for n in range(1, 31)])
    disk.close()
    with lmdb.open(str(disk.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
        for first in (27, 30):
            place = codec.key(codec.CHUNK, 1, first)
            value = bytearray(transaction.get(place))
            value[-1] ^= 1
            transaction.put(place, bytes(value))
    expected = {f"subject{n % 7}": n for n in range(1, 31) if n not in (27, 30)}
    assert disk().last_per_subject("s", limit=9) == expected


def test_an_index_is_small_or_is_not_written(monkeypatch):
    monkeypatch.setattr(index, "RANGE_CHUNKS", 2)
    collector = index.Collector()
    few = [collector.take(say(n, "a", "b", size=200)) for n in range(1, 9, 2)]
    assert [bool(found) for found in few] == [False, True, False, True]
    assert codec.decode_index(codec.encode_chunk(say(3, "a", "b").chunk, few[1])).first == 1
    many = [collector.take(say(n, f"x{n}", f"y{n}")) for n in range(9, 99, 2)]
    assert not any(many)


def test_too_many_subjects_are_not_held(monkeypatch):
    monkeypatch.setattr(index, "SUBJECTS_MAX", 20)
    monkeypatch.setattr(index, "HELD_MAX", 50)
    collector = index.Collector()
    for n in range(1, 30):
        collector.take(say(n, f"x{n}", stream="many"))
    assert collector._held == 1
    for n in range(50):
        collector.take(say(1, "x", stream=f"s{n}"))
    assert collector._held <= 50
    for n in range(30, 400):
        collector.take(say(n, f"x{n % 3}", stream="many"))
    assert len(collector._ranges["many"].subjects) == 3


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5), max_size=30),
    st.integers(0, 7),
    st.sampled_from(["abcdef", "ace", "f", ""]),
    st.sampled_from([0, 60_000]),
)
def test_any_chunks_give_what_a_plain_look_gives(chunks, limit, wanted, ttls):
    store, last, first = MemoryStore(), {}, 1
    takes = None if wanted == "abcdef" else wanted.__contains__
    search = index.SubjectSearch(limit, takes)
    for names in chunks:
        store.write([say(first, *names, ttls=ttls)])
        for place, name in enumerate(names):
            last[name] = first + place
        first += len(names)
    found = [(name, sequence) for name, sequence in last.items() if name in wanted]
    expected = sorted(found, key=lambda item: -item[1])[:limit]
    assert list(store.last_per_subject("s", limit=limit, takes=takes).items()) == expected
    for chunk in reversed(store.read("s", 1, bytes_max=MIB).found):
        if not search.is_done:
            search.visit(codec.encode_chunk(chunk), chunk.first)
    assert list(search.found.items()) == expected
