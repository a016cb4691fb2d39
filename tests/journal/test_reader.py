"""Reading a store beside whoever writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import pytest
from stores import MIB, append, put

from malamute.errors import StoreCorrupt, StoreError, StoreTooNew
from malamute.journal import directory
from malamute.journal import format as codec
from malamute.journal.directory import PAGE, acquire_lock, check_pages_for_reading
from malamute.journal.disk import DiskStore
from malamute.journal.lmdb_pages.pages import BRANCH
from malamute.journal.reader import StoreReader
from malamute.store.operations import Chunk, Damage, DeleteStream, ReadResult


def test_it_reads_what_the_store_reads(disk):
    store = disk()
    store.write(
        [append(first, count=10, time=first * 100) for first in (1, 11, 21)] + [append(1, stream="t")]
    )
    store.write([put(1)])
    questions = [("s", start) for start in (0, 1, 5, 11, 30, 31)] + [("t", 1)]
    expected = [store.read(stream, start, bytes_max=1) for stream, start in questions]
    times = [store.find_time("s", time) for time in (0, 100, 101, 2100, 2101)]
    streams = dict(store.status().streams)
    disk.close()
    with StoreReader.open(disk.directory) as reader:
        assert [reader.read(stream, start, bytes_max=1) for stream, start in questions] == expected
        assert [reader.find_time("s", time) for time in (0, 100, 101, 2100, 2101)] == times
        assert reader.streams() == streams
        assert reader.read("none", 1, bytes_max=1) == ReadResult([], 1)
    assert os.listdir(disk.directory).count("lock") == 1


def test_a_deleted_stream_is_empty(disk):
    disk().write([append(1), append(1, stream="t")])
    disk.store.write([DeleteStream("t")])
    streams = dict(disk.store.status().streams)
    disk.close()
    with StoreReader.open(disk.directory) as reader:
        assert reader.streams() == streams
        assert reader.read("t", 1, bytes_max=1).found == []


WRITER = """
import sys
from malamute.store.operations import AppendChunk, Chunk
from malamute.journal.disk import DiskStore
store = DiskStore.open(sys.argv[1], size=4 << 20)
store.recover()
for first in map(int, sys.stdin):
    store.write([AppendChunk("s", Chunk(first, 10, first, b"p" * 60_000), 0)])
    print(first, flush=True)
store.close()
"""


def test_it_sees_each_commit_of_another_process_and_what_the_ring_has_dropped(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    reader = None
    try:
        for first in range(1, 1001, 10):
            writer.stdin.write(f"{first}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == f"{first}\n"
            reader = reader or StoreReader.open(tmp_path)
            assert [type(item) for item in reader.read("s", first, bytes_max=MIB).found] == [Chunk]
        result = reader.read("s", 1, bytes_max=8 * MIB)
        assert result.first > 1
        sequences = [item.first for item in result.found]
        assert sequences == [*range(result.first, 1001, 10)]
    finally:
        if reader is not None:
            reader.close()
        writer.stdin.close()
        assert writer.wait(60) == 0
        writer.stdout.close()


def test_what_is_damaged_is_reported(disk):
    disk().write([append(1, count=10), append(11, count=10)])
    with disk.store._store.environment.begin(write=True) as transaction:
        key = codec.key(codec.CHUNK, 1, 1)
        transaction.put(key, transaction.get(key)[:-1] + b"X")
    disk.close()
    with StoreReader.open(disk.directory) as reader:
        assert reader.read("s", 1, bytes_max=MIB).found[0] == Damage(1, 10, "corrupt")


def test_no_store_and_stores_that_cannot_be_read(disk):
    with pytest.raises(StoreError, match="there is no store in"):
        StoreReader.open(disk.directory)
    store = disk()
    store.write([append(1, count=10, payload=bytes(100_000))])
    with store._store.environment.begin(write=True) as transaction:
        meta = codec.decode_meta(transaction.get(codec.key(codec.META)))
        newer = meta._replace(version=codec.STORE_VERSION + 1)
        transaction.put(codec.key(codec.META), codec.encode_meta(newer))
    disk.close()
    with pytest.raises(StoreTooNew):
        StoreReader.open(disk.directory)
    data = disk.directory / "data.mdb"
    os.truncate(data, 8192)
    with pytest.raises(StoreCorrupt, match="it is cut off"):
        StoreReader.open(disk.directory)
    data.write_bytes(b"this is no store" * 1000)
    with pytest.raises(StoreCorrupt):
        StoreReader.open(disk.directory)


def test_a_state_that_is_damaged_is_made_anew(disk):
    disk().write([append(1)])
    with disk.store._store.environment.begin(write=True) as transaction:
        key = codec.key(codec.STREAM, 1)
        transaction.put(key, transaction.get(key)[:-1] + b"X")
    disk.close()
    with StoreReader.open(disk.directory) as reader:
        assert (reader.streams()["s"].first, reader.streams()["s"].last) == (1, 1)


def test_a_store_in_this_process_is_refused(disk):
    disk().write([append(1)])
    with pytest.raises(StoreError):
        StoreReader.open(disk.directory)
    assert isinstance(disk.store, DiskStore)
    disk.store.write([append(2)])


def damage_a_branch(directory):
    """Fill the second half of a page of keys with zeros."""
    data = directory / "data.mdb"
    image = bytearray(data.read_bytes())
    branch = next(n for n in range(2, len(image) // PAGE) if image[n * PAGE + 10] == BRANCH)
    image[branch * PAGE + PAGE // 2 : branch * PAGE + PAGE] = bytes(PAGE // 2)
    data.write_bytes(image)


def test_damaged_pages_are_refused_before_a_reader_is_led_astray(disk):
    disk().write([append(first, stream=f"s{first}") for first in range(1, 200)])
    disk.close()
    damage_a_branch(disk.directory)
    with pytest.raises(StoreCorrupt, match="damaged in 1 pages"):
        StoreReader.open(disk.directory)


def test_pages_that_a_broker_writes_meanwhile_are_looked_at_again(disk, monkeypatch):
    disk().write([append(first, stream=f"s{first}") for first in range(1, 200)])
    disk.close()
    data = disk.directory / "data.mdb"
    whole = data.read_bytes()
    damage_a_branch(disk.directory)
    real, looks = directory._roots, iter(range(3))

    def roots(path):
        """Records of the last commit, of which there is one during each of the first looks."""
        if next(looks, None) is None:
            data.write_bytes(whole)
        return real(path) + bytes([len(looks_seen)])

    looks_seen = []
    monkeypatch.setattr(directory, "_roots", lambda path: (looks_seen.append(path), roots(path))[1])
    check_pages_for_reading(disk.directory)
    assert len(looks_seen) == 5


def test_pages_that_are_written_all_the_time_are_the_business_of_who_writes_them(disk, monkeypatch):
    disk().write([append(first, stream=f"s{first}") for first in range(1, 200)])
    disk.close()
    damage_a_branch(disk.directory)
    numbers = count()
    with monkeypatch.context() as patched:
        patched.setattr(directory, "_roots", lambda path: b"%d" % next(numbers))
        check_pages_for_reading(disk.directory)
    with pytest.raises(StoreCorrupt):
        check_pages_for_reading(disk.directory)


def test_readers_that_come_all_the_time_keep_no_broker_from_starting(disk):
    disk().write([append(first, stream=f"s{first}") for first in range(1, 200)])
    disk.close()
    damage_a_branch(disk.directory)
    lock = acquire_lock(disk.directory)
    try:
        with pytest.raises(StoreCorrupt):
            StoreReader.open(disk.directory)
    finally:
        os.close(lock)
