"""The write-ahead log: what it promises after a kill, a torn write, damage and a disk that fails."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from contextlib import closing
from itertools import accumulate, count

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_store import TIME, chunk
from stores import MIB, append, firsts, put

from malamute.errors import StorageFull, StoreCorrupt, StoreError, StoreTooNew
from malamute.journal import ahead_writer, write_ahead
from malamute.journal.disk import DiskStore
from malamute.journal.format import STORE_VERSION, Meta, StreamMeta, crc32
from malamute.journal.reader import StoreReader
from malamute.journal.repair import MOVED_OUT, repair
from malamute.journal.write_ahead import (
    FILE,
    HEADER_SIZE,
    WriteAheadFile,
    encode_record,
    find_records,
)
from malamute.store import codec
from malamute.store.operations import (
    Chunk,
    Damage,
    DeleteMessages,
    DeleteStreamMessages,
    PutValue,
    Reserve,
    Retain,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import RETENTIONS

META = Meta(STORE_VERSION, bytes(range(16)), lsn=9, taken=7)
RECORDS = [codec.decode(codec.encode([append(n, payload=bytes([n]) * 5), put(n)])) for n in (1, 2, 3)]
BYTES = [encode_record(META, n, operations) for n, operations in enumerate(RECORDS, 8)]
LOG = b"".join(BYTES)
ENDS = [*accumulate(map(len, BYTES))]
STALE = b"".join(encode_record(META._replace(taken=3), n, RECORDS[0]) for n in range(4, 9))
WHOLE = LOG + bytes(2 * HEADER_SIZE)


@pytest.fixture
def logged(tmp_path):
    """Opens one store with a log again and again; `kill` first leaves the log as it is."""
    made = []

    def make(*, kill=False, **options):
        close(kill=kill)
        store = DiskStore.open(tmp_path / "store", size=32 * MIB, has_log=True, **options)
        made.append(store)
        make.recovered = store.recover()
        return store

    def close(*, kill=False):
        for store in made:
            if kill:
                store.take_over = lambda: None
            store.close()
        made.clear()

    make.close, make.directory = close, tmp_path / "store"
    yield make
    close()


def in_lmdb(store):
    with store._store.environment.begin() as transaction:
        return transaction.stat()["entries"]


def transactions(store):
    return store._store.environment.info()["last_txnid"]


def refuse(monkeypatch, module, name, code=errno.EIO, times=1):
    """Have a call fail so often."""
    call, left = getattr(module, name), [times]

    def failing(*arguments, **named):
        if left[0] > 0:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return call(*arguments, **named)

    monkeypatch.setattr(module, name, failing)


# --- the bytes


def test_records_are_found_in_order_up_to_the_end():
    found = find_records(WHOLE, META)
    assert [r.lsn for r in found.records] == [8, 9, 10]
    assert [list(r.operations) for r in found.records] == RECORDS
    assert (found.end, found.cut_off, found.later) == (len(LOG), False, [])


def test_records_of_an_earlier_base_are_outdated():
    found = find_records(WHOLE, META._replace(taken=10))
    assert (found.records, found.cut_off, found.later) == ([], False, [])
    after = META._replace(taken=10)
    fresh = encode_record(after, 11, RECORDS[0]) + bytes(HEADER_SIZE)
    found = find_records(fresh + WHOLE[len(fresh) :], after)
    assert [r.lsn for r in found.records] == [11]
    assert (found.cut_off, found.later) == (False, [])


@pytest.mark.parametrize("bit", [0, 7])
def test_each_damaged_byte_is_noticed(bit):
    for place in range(len(LOG) + HEADER_SIZE):
        data = bytearray(WHOLE)
        data[place] ^= 1 << bit
        try:
            found = find_records(bytes(data), META)
        except (StoreCorrupt, StoreTooNew):
            continue
        assert found.cut_off, place
        whole = sum(end <= place for end in ENDS)
        assert [list(r.operations) for r in found.records] == RECORDS[:whole]
        assert [list(r.operations) for r in found.later] == RECORDS[whole + 1 :]


def test_a_sector_that_the_disk_lost_is_noticed_though_it_has_the_zeros_of_an_end():
    first, second = len(BYTES[0]), len(BYTES[1])
    found = find_records(BYTES[0] + bytes(second) + WHOLE[first + second :], META)
    assert [r.lsn for r in found.records] == [8]
    assert [r.lsn for r in found.later] == [10]


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_any_bytes_are_records_or_an_error(junk, place):
    try:
        found = find_records(WHOLE[:place] + junk + WHOLE[place + len(junk) :], META)
    except (StoreCorrupt, StoreTooNew):
        return
    assert [list(r.operations) for r in found.records] == RECORDS[: len(found.records)]


def test_a_newer_format_is_refused():
    header = bytearray(BYTES[0][: HEADER_SIZE - 4])
    header[4] += 1
    with pytest.raises(StoreTooNew, match="write-ahead log has format 2"):
        find_records(bytes(header) + struct.pack(">I", crc32(header)) + BYTES[0][HEADER_SIZE:], META)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (META._replace(taken=6), "older state"),
        (META._replace(copied=True), "older state"),
        (META._replace(broker_id=bytes(16)), "of another store"),
    ],
)
def test_a_log_that_does_not_go_with_the_store_is_refused(meta, words):
    with pytest.raises(StoreCorrupt, match=words):
        find_records(WHOLE, meta)


@given(st.data())
def test_a_torn_append_costs_no_earlier_record(data):
    """Of the bytes of the last append any sectors may have reached the disk."""
    before = LOG[: len(BYTES[0]) + len(BYTES[1])]
    old = data.draw(st.sampled_from([bytes(2 * len(WHOLE)), bytes(range(256)) * 4, STALE]))
    old = before + bytes(HEADER_SIZE) + old
    new = LOG + bytes(HEADER_SIZE)
    sector = data.draw(st.sampled_from([16, 64, 512]))
    image = bytearray(old.ljust(len(new), b"\0"))
    for start in range(0, len(new), sector):
        if data.draw(st.booleans()):
            image[start : min(start + sector, len(new))] = new[start : start + sector]
    found = find_records(bytes(image), META)
    assert [list(r.operations) for r in found.records] in (RECORDS[:2], RECORDS)
    assert not found.later


# --- the store


def test_a_small_write_is_in_the_log_only_until_something_is_read(logged):
    store = logged()
    before = in_lmdb(store)
    store.write([append(1), put(1)])
    store.write([append(2)])
    assert in_lmdb(store) == before
    assert firsts(store) == [1, 2]
    assert in_lmdb(store) > before
    assert store.take_over_at is None


READINGS = {
    "read": lambda s, stream, n: s.read(stream, n, bytes_max=200),
    "find_time": lambda s, stream, n: s.find_time(stream, TIME + n),
    "find_gap": lambda s, stream, n: s.find_gap(stream, n),
    "last_per_subject": lambda s, stream, n: [*s.last_per_subject(stream, limit=n % 4).items()],
    "headers": lambda s, stream, n: s.headers(stream, n, count_max=3),
    "verify": lambda s, stream, n: [(step.last, step.chunks) for step in s.verify(stream)],
    "fetch": lambda s, stream, n: s.fetch("mailbox", "q", [n + 2, n + 3]),
    "retention": lambda s, stream, n: s.retention(stream),
    "status": lambda s, stream, n: s.status().streams.get(stream, StreamMeta(0, ""))._replace(identifier=0),
}
GROUPS = [
    [chunk("s", 1, "a", "b"), put(1)],
    [chunk("s", 5, "b", "c"), chunk("t", 4, "a"), Reserve("r", 9)],
    [put(2), put(3)],
    [
        chunk("s", 7, "a"),
        PutValue(RETENTIONS, ("t",), (0, 50, 0.0)),
        DeleteMessages("mailbox", "q", [(1, 1)]),
    ],
    [chunk("s", 12, "d"), chunk("u", 2, "a", "a"), Retain("s", StreamRetention(messages_max=100)), put(4)],
]


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("stored", [0, 1, 2])
def test_each_reading_is_the_same_while_lmdb_refuses_and_once_it_has_taken_over(
    logged, name, stored, monkeypatch
):
    monkeypatch.setattr(ahead_writer, "RETRY_SECONDS", 0.0)
    store = logged()
    places = [(stream, n) for stream in "sturx" for n in range(15)]
    fault = lmdb.DiskError("mdb_txn_commit: Input/output error")
    for number, group in enumerate(GROUPS):
        store.write(group)
        if number < stored:
            store.take_over()
    with monkeypatch.context() as patch:
        patch.setattr(store._store, "environment", Failing(store._store.environment, fault))
        found = [READINGS[name](store, *place) for place in places]
        assert store.take_over_at is not None
    assert found == [READINGS[name](store, *place) for place in places]
    assert store.take_over_at is None


def test_nothing_is_copied_while_lmdb_refuses_what_was_confirmed(logged, tmp_path, monkeypatch):
    store = logged()
    store.write([append(1)])
    fault = lmdb.DiskError("mdb_txn_commit: Input/output error")
    with monkeypatch.context() as patch:
        patch.setattr(store._store, "environment", Failing(store._store.environment, fault))
        with pytest.raises(StorageFull):
            store.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_log_has_its_room_from_the_start_on(logged):
    logged()
    file = (logged.directory / FILE).stat()
    assert file.st_size == write_ahead.FILE_BYTES_MAX <= file.st_blocks * 512


def test_the_log_has_no_bytes_of_messages_that_were_deleted(logged):
    store = logged()
    store.write([append(1, payload=b"secret"), append(2, payload=b"another")])
    assert b"secret" in (logged.directory / FILE).read_bytes()
    store.write([DeleteStreamMessages("s", [(1, 1)])])
    assert not any((logged.directory / FILE).read_bytes())
    assert [type(item) for item in store.read("s", 0, bytes_max=99).found] == [Damage, Chunk]


def test_a_killed_store_has_all_of_its_log(logged):
    store = logged()
    for n in range(1, 6):
        store.write([append(n), put(n)])
    store = logged(kill=True)
    assert logged.recovered.lsn == 5
    assert not logged.recovered.defects
    assert firsts(store) == [1, 2, 3, 4, 5]
    assert [m.sequence for m in logged.recovered.queues["mailbox", "q"].messages] == [1, 2, 3, 4, 5]
    store.write([append(6)])
    assert store.status().lsn == 6


def test_a_store_that_is_killed_in_its_take_up_does_it_again(logged):
    logged().write([append(1)])
    logged.close(kill=True)
    shutil.copytree(logged.directory, logged.directory.with_name("copy"))
    assert firsts(logged()) == [1]
    logged.close()
    # The log of before is still there, as after a kill between the commit and its removal.
    shutil.copy(logged.directory.with_name("copy") / FILE, logged.directory)
    assert firsts(logged()) == [1]


def test_large_groups_go_to_lmdb_with_all_before_them_in_one_transaction(logged):
    store = logged()
    store.write([append(1)])
    before = transactions(store)
    store.write([append(2, payload=bytes(ahead_writer.RECORD_BYTES_MAX + 1))])
    assert transactions(store) == before + 1
    assert store.take_over_at is None
    assert firsts(store) == [1, 2]
    assert store.status().lsn == 2


def test_the_largest_small_group_is_logged(logged):
    store = logged()
    store.write([append(1, payload=bytes(ahead_writer.RECORD_BYTES_MAX))])
    assert store.take_over_at is not None


def test_a_full_log_is_taken_over(logged):
    store = logged()
    behind = 0
    for n in count(1):
        was = store._ahead._records
        store.write([append(n, payload=bytes(20_000))])
        behind = max(behind, was)
        if store._ahead._records <= was:
            break
    assert 20_000 * behind < write_ahead.FILE_BYTES_MAX < 20_000 * (behind + 5)
    store = logged(kill=True)
    assert firsts(store) == [*range(1, n + 1)]


def test_what_lmdb_may_have_no_room_for_is_refused_by_lmdb_and_not_confirmed_before(logged):
    store = logged()
    refused = 0
    for n in range(1, 2000):
        try:
            store.write([put(n, record=bytes(30_000))])
        except StorageFull:
            refused = n
            break
    assert refused
    store = logged(kill=True)
    assert len(logged.recovered.queues["mailbox", "q"].messages) == refused - 1


# --- a disk that fails


def test_a_failed_fdatasync_is_never_tried_again_and_lmdb_confirms(logged, monkeypatch):
    store = logged()
    store.write([append(1)])
    inode = (logged.directory / FILE).stat().st_ino
    refuse(monkeypatch, os, "fdatasync")
    before = transactions(store)
    store.write([append(2)])
    assert transactions(store) == before + 1
    store.write([append(3)])
    assert transactions(store) == before + 2, "the log rests for a while"
    monkeypatch.setattr(ahead_writer, "RETRY_SECONDS", 0.0)
    store._ahead._file_due = 0.0
    store.write([append(4)])
    assert store.take_over_at is not None
    assert (logged.directory / FILE).stat().st_ino != inode
    assert firsts(logged(kill=True)) == [1, 2, 3, 4]


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_what_was_refused_is_not_there_after_a_kill_and_what_was_confirmed_is(logged, monkeypatch, call):
    store = logged()
    store.write([append(1)])
    fault = lmdb.DiskError("mdb_txn_commit: Input/output error")
    with monkeypatch.context() as patch:
        refuse(patch, os, call)
        patch.setattr(store._store, "environment", Failing(store._store.environment, fault))
        for n in (2, 3):
            with pytest.raises(StorageFull):
                store.write([append(n)])
        assert firsts(store) == [1], "it is read from the log"
        assert firsts(store, start=2) == []
    assert firsts(logged(kill=True)) == [1]
    assert not logged.recovered.defects


def test_a_take_over_that_fails_is_made_good_later(logged, monkeypatch):
    store = logged()
    store.write([append(1)])
    fault = lmdb.DiskError("mdb_txn_commit: Input/output error")
    with monkeypatch.context() as patch:
        patch.setattr(store._store, "environment", Failing(store._store.environment, fault))
        with pytest.raises(StorageFull):
            store.take_over()
        assert store.take_over_at is not None
    store.write([append(2)])
    assert firsts(store) == [1, 2]


class Failing:
    """An environment whose write transactions fail."""

    def __init__(self, environment, error):
        self._environment = environment
        self._error = error

    def begin(self, *arguments, write=False, **named):
        if write:
            raise self._error
        return self._environment.begin(*arguments, **named)

    def __getattr__(self, name):
        return getattr(self._environment, name)


def test_a_disk_without_room_for_the_log_has_a_broker_without_one(logged, monkeypatch):
    refuse(monkeypatch, write_ahead, "_write", errno.ENOSPC, times=99)
    store = logged()
    store.write([append(1)])
    assert store.take_over_at is None
    assert firsts(logged(kill=True)) == [1]


# --- damage


def damage(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_damage_before_intact_records_stops_the_start_and_a_repair_keeps_the_others(logged):
    store = logged()
    for n in (1, 2, 3):
        store.write([append(n)])
    logged.close(kill=True)
    (first,) = find_records((logged.directory / FILE).read_bytes(), store._store.meta).records[:1]
    damage(logged.directory / FILE, len(encode_record(store._store.meta, first.lsn, first.operations)) + 9)
    with pytest.raises(StoreCorrupt, match="1 intact records are behind") as caught:
        logged()
    assert "repair" in caught.value.hint
    assert [(r.kind, r.action) for r in repair(logged.directory, dry_run=True)] == [("log", MOVED_OUT)]
    with pytest.raises(StoreCorrupt):
        logged()
    assert [(r.kind, r.action) for r in repair(logged.directory)] == [("log", MOVED_OUT)]
    assert (logged.directory / "damaged" / f"{FILE}.0").is_file()
    assert repair(logged.directory) == []
    assert firsts(logged()) == [1, 3]


def test_a_last_record_that_does_not_check_is_reported(logged):
    store = logged()
    for n in (1, 2):
        store.write([append(n)])
    logged.close(kill=True)
    data = (logged.directory / FILE).read_bytes()
    damage(logged.directory / FILE, find_records(data, store._store.meta).end - 1)
    store = logged()
    assert [d.kind for d in logged.recovered.defects] == ["log"]
    assert firsts(store) == [1]
    store.write([append(2)])
    assert firsts(logged(kill=True)) == [1, 2]
    assert not logged.recovered.defects


def test_a_log_of_another_store_is_moved_out_by_a_repair(logged):
    logged().write([append(1)])
    logged.close()
    WriteAheadFile(logged.directory, MIB, LOG).close()
    with pytest.raises(StoreCorrupt, match="of another store"):
        logged()
    assert [r.action for r in repair(logged.directory)] == [MOVED_OUT]
    assert firsts(logged()) == [1]


def test_an_older_data_file_beside_a_newer_log_is_refused(logged):
    store = logged()
    store.write([append(1)])
    logged.close()
    shutil.copy(logged.directory / "data.mdb", logged.directory / "older")
    store = logged()
    store.write([append(2)])
    store.take_over()
    store.write([append(3)])
    logged.close(kill=True)
    os.replace(logged.directory / "older", logged.directory / "data.mdb")
    with pytest.raises(StoreCorrupt, match="older state"):
        logged()


# --- other readers


TAKES_OVER = """
import sys
from malamute.journal.disk import DiskStore
DiskStore.open_existing(sys.argv[1]).close()
"""


def test_a_reader_sees_the_log_and_changes_nothing_and_goes_on_when_it_is_taken_over(logged):
    store = logged()
    store.write([chunk("s", 1, "a", "b")])
    store.take_over()
    store.write([chunk("s", 5, "a"), chunk("t", 2, "a")])
    logged.close(kill=True)

    def files():
        return {name: (logged.directory / name).read_bytes() for name in ("data.mdb", FILE)}

    def read():
        return (
            [reader.read(name, n, bytes_max=1) for name in "stu" for n in range(7)],
            [reader.find_time("s", time) for time in range(TIME, TIME + 7)],
            {name: state._replace(identifier=0) for name, state in reader.streams().items()},
        )

    before = files()
    with StoreReader.open(logged.directory) as reader:
        found = read()
        assert found[2].keys() == {"s", "t"}
        assert files() == before
        subprocess.run([sys.executable, "-c", TAKES_OVER, logged.directory], check=True)
        assert read() == found
    data = bytearray(before[FILE])
    data[10] ^= 1
    (logged.directory / "data.mdb").write_bytes(before["data.mdb"])
    (logged.directory / FILE).write_bytes(data)
    with StoreReader.open(logged.directory) as reader:
        assert reader.streams().keys() == {"s"}


def test_a_reader_refuses_a_log_that_has_lost_something_confirmed(logged):
    store = logged()
    for n in (1, 2):
        store.write([append(n)])
    logged.close(kill=True)
    damage(logged.directory / FILE, HEADER_SIZE + 1)
    with pytest.raises(StoreCorrupt, match="1 intact records are behind"):
        StoreReader.open(logged.directory)


def test_a_copy_has_what_is_in_the_log_only(logged, tmp_path):
    store = logged()
    store.write([append(1), put(1)])
    store.backup(tmp_path / "copy")
    with closing(DiskStore.open_existing(tmp_path / "copy")) as copy:
        assert firsts(copy) == [1]


def test_no_store_is_copied_to_where_a_log_is(logged, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / FILE).touch()
    with pytest.raises(StoreError, match="already"):
        logged().backup(tmp_path / "copy")


def test_a_store_of_the_format_before_gets_a_log_and_the_new_format(tmp_path, monkeypatch):
    monkeypatch.setattr("malamute.journal.format.STORE_VERSION", 6)
    monkeypatch.setattr("malamute.journal.directory.codec.STORE_VERSION", 6)
    with closing(DiskStore.open(tmp_path, size=32 * MIB, preallocate=False)) as store:
        store.recover()
        store.write([append(1)])
        assert store.format == 6
    monkeypatch.undo()
    with closing(DiskStore.open(tmp_path, size=32 * MIB, has_log=True)) as store:
        assert store.recover().lsn == 1
        assert not store.recover().defects
        assert store.format == 6, "nothing was written"
        store.write([append(2)])
        assert store.format == 7
        assert firsts(store) == [1, 2]


def test_what_was_taken_up_is_of_before_the_start(logged):
    """The ring compares the clock of the start with the newest message, and orders by the start."""
    store = logged()
    store.write([append(1, time=5000)])
    store = logged(kill=True)
    assert store._store.ring.newest == 5000
    assert store._store.ring.order(store.status().streams["s"])[1] is False
