"""The behaviour that only a disk has: break, fill up, be locked, be left behind by a dead process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import lmdb
import pytest
from stores import MIB, append, delete, fill, firsts, put, size_of_a_chunk

from malamute.errors import StorageFull, StoreCorrupt, StoreError, StoreLocked, StoreTooNew, StoreTooOld
from malamute.journal import disk as disk_module
from malamute.journal import format as codec
from malamute.journal import ring
from malamute.journal.compaction import DROPS_MIN
from malamute.journal.directory import META_TWIN
from malamute.journal.disk import DiskStore
from malamute.journal.plan import make_plan
from malamute.journal.states import LSN_STEP
from malamute.store.operations import (
    Chunk,
    Damage,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    MarkDelivered,
    PutIdentity,
    PutMessages,
    PutValue,
)
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, RETENTIONS, SESSIONS


def poke(disk, key, change):
    """Change one value behind the store's back; `change` gets a bytearray, or returns None to delete."""
    disk.close()
    with lmdb.open(str(disk.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
        value = change(bytearray(transaction.get(key, b"")))
        if value is None:
            transaction.delete(key)
        else:
            transaction.put(key, bytes(value))


def flip(place):
    def change(value):
        value[place] ^= 0x10
        return value

    return change


def data_file(disk):
    return disk.directory / "data.mdb"


# --- damage


@pytest.mark.parametrize("place", [0, 5, 12, 33, 37, -1])
def test_a_flipped_byte_is_an_exact_damage_and_the_rest_is_read(disk, place):
    store = disk()
    store.write([append(first, count=10, payload=b"payload") for first in (1, 11, 21)])
    poke(disk, codec.key(codec.CHUNK, 1, 11), flip(place))
    store = disk()
    found = store.read("s", 1, bytes_max=MIB).found
    assert [type(item) for item in found] == [Chunk, Damage, Chunk]
    assert found[1] == Damage(11, 20, "corrupt")
    assert store.read("s", 15, bytes_max=1).found == [Damage(11, 20, "corrupt")]
    assert store.read("s", 21, bytes_max=1).found[0].first == 21
    assert [d for step in store.verify() for d in step.damages] == [Damage(11, 20, "corrupt")]


def test_a_byte_flipped_in_the_file_is_seen(disk):
    store = disk()
    store.write([append(n, payload=b"<%d>" % n + bytes(9000)) for n in (1, 2, 3)])
    disk.close()
    raw = bytearray(data_file(disk).read_bytes())
    raw[raw.index(b"<2>") + 5000] ^= 1
    data_file(disk).write_bytes(raw)
    found = disk().read("s", 1, bytes_max=MIB).found
    assert [getattr(item, "reason", "") for item in found] == ["", "corrupt", ""]
    assert found[1][:2] == (2, 2)


def test_the_last_chunk_damaged_ends_with_the_stream(disk):
    disk().write([append(1, count=10), append(11, count=10)])
    poke(disk, codec.key(codec.CHUNK, 1, 11), lambda value: value[:3])
    assert disk().read("s", 12, bytes_max=1).found == [Damage(11, 20, "corrupt")]


def test_a_chunk_under_a_wrong_key_is_a_damage(disk):
    disk().write([append(1, count=2), append(3, count=2)])
    other = codec.encode_chunk(append(1, count=2).chunk)
    poke(disk, codec.key(codec.CHUNK, 1, 3), lambda _: other)
    assert disk().read("s", 3, bytes_max=1).found == [Damage(3, 4, "corrupt")]


def test_damaged_headers_do_not_stop_the_ring_or_the_search(disk):
    disk(streams_budget=40_000).write([append(n, time=n, payload=bytes(4000)) for n in range(1, 9)])
    for first in (1, 2, 5):
        poke(disk, codec.key(codec.CHUNK, 1, first), flip(10))
    store = disk(streams_budget=40_000)
    assert [store.find_time("s", n) for n in (1, 5, 7)] == [3, 6, 7]
    store.write([append(n, time=n, payload=bytes(4000)) for n in range(9, 17)])
    state = store.status().streams["s"]
    assert firsts(store) == list(range(state.first, 17))
    assert (state.count, state.chunks) == (17 - state.first, 17 - state.first)
    assert state.bytes == 4040 * state.chunks <= 40_000


def test_a_damaged_block_is_put_aside_and_the_others_are_kept(disk):
    store = disk()
    for n in (1, 2, 3):
        store.write([put(n), PutValue(SESSIONS, (b"%d" % n, NUMBERS), b"")])
    poke(disk, codec.key(codec.BLOCK, 0, 2), flip(20))
    store = disk()
    queue = disk.recovered.queues["mailbox", "q"]
    assert [message.sequence for message in queue.messages] == [1, 3]
    assert set(disk.recovered.table(SESSIONS)) == {(b"1", NUMBERS), (b"3", NUMBERS)}
    assert queue.next > 4
    assert store.status().log_unreadable == 1
    assert [step.damages for step in store.verify()] == [[Damage(2, 2, "corrupt")]]
    store.write([delete((1, 1)), PutValue(SESSIONS, (b"1", NUMBERS), b"new"), put(queue.next)])
    for n in range(9):
        store.write([PutValue(SESSIONS, (b"9", NUMBERS), b"%d" % n)])
    assert store.status().log_unreadable == 0
    damages = [d for step in store.verify() for d in step.damages]
    assert damages == [Damage(2, 2, "quarantined")]
    disk()
    found = disk.recovered.queues["mailbox", "q"]
    assert [message.sequence for message in found.messages] == [3, queue.next]


# --- what is refused at opening


def test_a_newer_format_is_refused_and_untouched(disk):
    disk()
    newer = codec.encode_meta(codec.Meta(codec.STORE_VERSION + 1, bytes(16)))
    poke(disk, codec.key(codec.META), lambda _: newer)
    before = data_file(disk).read_bytes()
    with pytest.raises(StoreTooNew, match=f"format {codec.STORE_VERSION + 1}"):
        disk(size=8 * MIB)
    assert data_file(disk).read_bytes() == before


@pytest.mark.parametrize("version", range(1, codec.VERSION))
def test_an_older_format_is_refused_and_untouched(disk, version):
    disk()
    value = codec.MAGIC + version.to_bytes(4, "big") + bytes(16)
    value += codec.crc32(value).to_bytes(4, "big")
    poke(disk, codec.key(codec.META), lambda _: value)
    before = data_file(disk).read_bytes()
    with pytest.raises(StoreTooOld, match=f"store has format {version}") as refused:
        disk(size=8 * MIB)
    assert "storage.directory" in refused.value.hint
    assert data_file(disk).read_bytes() == before


@pytest.mark.parametrize("bit", [0x40, 0x02])
def test_a_wrong_bit_that_makes_another_format_is_damage(disk, bit):
    disk().write([append(1)])
    poke(disk, codec.key(codec.META), lambda value: value[:11] + bytes([value[11] ^ bit]) + value[12:])
    assert firsts(disk()) == [1]
    assert [defect.kind for defect in disk.recovered.defects] == ["meta"]


def test_a_stream_of_a_newer_format_is_refused(disk):
    disk().write([append(1)])

    def newer(value):
        value[4] = codec.VERSION + 1
        return codec.crc32(value[4:]).to_bytes(4, "big") + value[4:]

    poke(disk, codec.key(codec.STREAM, 1), newer)
    with pytest.raises(StoreTooNew):
        disk()


def test_a_file_that_is_no_lmdb_is_refused(disk):
    disk.directory.mkdir()
    data_file(disk).write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreCorrupt):
        disk()


def test_an_lmdb_file_of_somebody_else_is_refused(disk):
    disk.directory.mkdir()
    with lmdb.open(str(disk.directory)) as env, env.begin(write=True) as transaction:
        transaction.put(b"their", b"own")
    with pytest.raises(StoreCorrupt, match="not a Malamute store"):
        disk()


def test_a_damaged_meta_record_is_refused_with_a_damaged_twin(disk):
    disk()
    poke(disk, codec.key(codec.META), flip(20))
    poke(disk, META_TWIN, flip(20))
    with pytest.raises(StoreCorrupt, match="meta"):
        disk()


def test_a_file_cut_off_is_refused(disk):
    disk().write([append(n, payload=bytes(50_000)) for n in range(1, 20)])
    disk.close()
    os.truncate(data_file(disk), 500_000)
    with pytest.raises(StoreCorrupt, match="cut off"):
        disk()


def test_a_file_that_is_too_short_and_has_all_of_it_is_opened(disk, monkeypatch):
    """LMDB leaves such a file behind if pages at its end were taken and given back in one transaction."""
    store = disk(preallocate=False)
    for n in range(1, 9):
        store.write([append(n), put(n)])
    store.write([append(1, stream="t", payload=bytes(30_000)), DeleteStream("t")])
    with monkeypatch.context() as patch:  # as if it was killed
        patch.setattr(disk_module, "lengthen", lambda environment: None)
        disk.close()
    length = data_file(disk).stat().st_size
    store = disk(preallocate=False)
    assert data_file(disk).stat().st_size > length
    assert firsts(store) == list(range(1, 9))
    assert len(disk.recovered.queues["mailbox", "q"].messages) == 8
    store.write([append(9)])
    disk(preallocate=False)


def test_a_refused_store_is_not_locked(disk):
    test_a_file_that_is_no_lmdb_is_refused(disk)
    data_file(disk).unlink()
    disk()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        DiskStore.open(tmp_path / "file" / "store", size=MIB)


def test_a_store_in_use_names_its_process(disk):
    disk()
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        DiskStore.open(disk.directory, size=MIB)


def test_a_store_in_use_by_another_process_names_it(disk):
    with child("hold", disk.directory) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreLocked, match=f"process {other.pid}"):
            disk()
        other.kill()
    disk()


# --- the file


def test_the_file_has_its_full_size_from_the_beginning(disk):
    disk(size=4 * MIB)
    held = data_file(disk).stat()
    assert held.st_size == 4 * MIB
    assert held.st_blocks * 512 >= 4 * MIB
    disk(size=6 * MIB)
    assert data_file(disk).stat().st_size == 6 * MIB
    assert disk(size=MIB).status().size == 6 * MIB
    assert data_file(disk).stat().st_size == 6 * MIB


def test_without_preallocation_the_file_grows_as_needed(disk):
    store = disk(size=64 * MIB, preallocate=False)
    assert data_file(disk).stat().st_size < MIB
    assert store.status().size == 64 * MIB


def test_no_room_for_the_file_is_said(disk, monkeypatch):
    def full(descriptor, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        StorageFull, match=r"No space left on device: its disk has room for \d+ bytes"
    ) as found:
        disk()
    # To raise the size, as the advice is for a store that is full, would not help.
    assert found.value.hint.startswith("lower storage.size")
    monkeypatch.undo()
    disk()


def test_the_budget_must_leave_room_for_the_rest(disk):
    with pytest.raises(StoreError, match="streams_budget"):
        disk(size=4 * MIB, streams_budget=4 * MIB)


def test_a_clock_that_is_set_back_does_not_make_new_messages_the_oldest(disk):
    """Over restarts, too, and beside a clock that was ahead: they leave in the order in which they came."""

    def left():
        return {name: firsts(store, name) for name in ("old", "back", "ahead") if firsts(store, name)}

    options = {"size": 4 * MIB, "streams_budget": 5 * size_of_a_chunk() + 1}
    store = disk(**options)
    store.recover(now=0.0)
    store.write([append(1, stream="old", time=7_200_000_000_000)])
    store.write([append(2, stream="old", time=7_201_000_000_000)])
    store = disk(**options)
    store.recover(now=3600.0)
    store.write([append(1, stream="back", time=3_600_000_000_000)])
    store.write([append(2, stream="back", time=3_601_000_000_000)])
    store = disk(**options)
    store.recover(now=90_000.0)
    store.write([append(1, stream="ahead", time=90_000_000_000_000)])
    assert left() == {"old": [1, 2], "back": [1, 2], "ahead": [1]}
    store = disk(**options)
    store.recover(now=3700.0)
    store.write([append(3, stream="back", time=3_700_000_000_000)])
    assert left() == {"old": [2], "back": [1, 2, 3], "ahead": [1]}
    store.write([append(4, stream="back", time=3_701_000_000_000)])
    store.write([append(5, stream="back", time=3_702_000_000_000)])
    assert left() == {"back": [2, 3, 4, 5], "ahead": [1]}
    store.write([append(6, stream="back", time=3_703_000_000_000)])
    store.write([append(7, stream="back", time=3_704_000_000_000)])
    assert left() == {"back": [3, 4, 5, 6, 7]}


def test_the_ring_keeps_the_file_and_its_pages_constant(disk):
    """Twenty times the budget, in mixed sizes, leaves the file as it was."""
    budget = 2 * MIB
    store = disk(size=4 * MIB, streams_budget=budget)
    written, first, high = 0, 1, 0
    while written < 20 * budget:
        sizes = [100 + (first + n) * 7919 % 60_000 for n in range(4)]
        store.write(
            [append(first + n, time=first, payload=bytes(size)) for n, size in enumerate(sizes)]
            + [put(first), delete((first - 5, first - 1))]
        )
        first += 4
        written += sum(sizes)
        if written > 10 * budget and not high:
            high = store.status().high_water
    status = store.status()
    assert status.streams_bytes <= budget
    assert status.used < budget * 1.3
    assert status.high_water <= high * 1.05
    assert data_file(disk).stat().st_size == 4 * MIB
    assert firsts(store)[-1] == first - 1


def test_full_queues_do_not_starve_the_ring(disk):
    store = disk(size=4 * MIB, streams_budget=2 * MIB)
    assert fill(store, lambda n: [put(n, record=bytes(9000))]) > 100
    for n in range(1, 200):
        store.write(
            [append(n, time=n, payload=bytes(50_000)), PutValue(SESSIONS, (b"s", NUMBERS), b"%d" % n)]
        )
    assert store.status().streams_bytes > 2 * MIB - 60_000
    assert store.status().log_bytes > MIB


def test_chunks_of_many_pages_in_a_nearly_full_file_push_out_old_ones(disk):
    """Runs of pages this long are hard to find; old chunks leave early rather than new ones be refused."""
    store = disk(size=8 * MIB, streams_budget=int(6.8 * MIB))
    sizes = [300, 900_000, 20_000, 1_500_000, 4_000, 300_000, 60_000]
    for n in range(1, 300):
        store.write([append(n, time=n, payload=bytes(sizes[n * n * 31 % 7]))])
    assert firsts(store)[-1] == 299
    assert len(firsts(store)) > 5


def test_a_chunk_that_can_never_fit_pushes_nothing_out(disk):
    store = disk(size=4 * MIB)
    for n in range(1, 60):
        store.write([append(n, payload=bytes(50_000))])
    before = firsts(store)
    with pytest.raises(StorageFull, match="at once"):
        store.write([append(60, payload=bytes(5 * MIB))])
    assert firsts(store) == before


def test_sync_is_always_on(disk):
    flags = disk()._store.environment.flags()
    assert flags["sync"]
    assert flags["metasync"]


def lmdb_error(kind, code=0):
    error = kind("fault")
    error.code = code
    return error


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (lmdb_error(lmdb.MapFullError), StorageFull),
        (lmdb_error(lmdb.DiskError), StorageFull),
        (lmdb_error(lmdb.Error, errno.EDQUOT), StorageFull),
        (lmdb_error(lmdb.Error, errno.EIO), StoreError),
        (lmdb_error(lmdb.CorruptedError), StoreCorrupt),
    ],
)
def test_an_error_of_lmdb_is_reported_by_its_kind_and_leaves_the_store_usable(
    disk, monkeypatch, fault, raised
):
    store = disk()
    store.write([append(1), put(1)])

    def failing(stream, lsn):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(codec, "encode_stream", failing)
        with pytest.raises(raised) as caught:
            store.write([append(2), put(2)])
        assert type(caught.value) is raised
    store.write([append(2), put(2)])
    disk()
    assert firsts(disk.store) == [1, 2]
    assert len(disk.recovered.queues["mailbox", "q"].messages) == 2


@pytest.mark.parametrize(
    ("preallocate", "fault", "is_shortened"),
    [
        (True, lmdb_error(lmdb.Error, errno.ENOSPC), False),
        (True, lmdb_error(lmdb.DiskError), False),
        (True, lmdb_error(lmdb.MapFullError), True),
        (False, lmdb_error(lmdb.Error, errno.ENOSPC), True),
    ],
)
def test_history_is_dropped_where_that_makes_room_and_readers_learn_how_much(
    disk, monkeypatch, preallocate, fault, is_shortened
):
    store = disk(preallocate=preallocate)
    for n in range(1, 51):
        store.write([append(n, payload=bytes(20_000))])
    encode = codec.encode_stream

    def failing(stream, lsn):
        if stream.last == 51:
            raise fault
        return encode(stream, lsn)

    with monkeypatch.context() as patch:
        patch.setattr(codec, "encode_stream", failing)
        with pytest.raises(StorageFull):
            store.write([append(51, payload=bytes(20_000))])
    found = store.read("s", 1, bytes_max=1 << 30)
    assert [chunk.first for chunk in found.found] == list(range(found.first, 51))
    assert (found.first > 1) == is_shortened
    store.write([append(51, payload=bytes(20_000))])
    assert firsts(store)[-1] == 51


def test_a_disk_that_is_full_shortens_the_history_and_refuses_messages(disk):
    """The operating system lets the file grow to 300,000 bytes only."""
    with child("limited", disk.directory) as limited:
        answers = limited.stdout.read().split()
    assert answers == [b"open", b"StorageFull", b"StorageFull", b"written"]
    disk()
    found = firsts(disk.store)
    assert found == list(range(found[0], 31))
    assert 5 < len(found) < 30
    assert not [damage for step in disk.store.verify() for damage in step.damages]
    (queue,) = disk.recovered.queues.values()
    assert (queue.next, queue.messages) == (2, [])


def test_deletes_one_by_one_work_on_a_full_store_with_a_reader_in_between(disk):
    store = disk(size=MIB, streams_budget=100_000)
    count = fill(
        store, lambda n: [put(2 * n, record=bytes(3000)), put(2 * n + 1, queue="kept", record=bytes(300))]
    )
    for n in range(1, count + 1):
        store.write([delete((2 * n, 2 * n)), MarkDelivered("mailbox", "q", 2 * n)])
        assert store.read("none", 1, bytes_max=1).found == ()
    store.write([put(9_999, record=bytes(3000))])
    disk(size=MIB, streams_budget=100_000)
    assert len(disk.recovered.queues["mailbox", "kept"].messages) == count


@pytest.mark.parametrize(
    "keep",
    [
        lambda n: PutValue(SESSIONS, (b"%16d" % n, NUMBERS), bytes(10_000)),
        lambda n: PutValue(CURSORS, ("other", f"{n:0>200}"), n),
        lambda n: PutIdentity("mailbox", "q", f"{n:0>200}", n, 1 << 60),
    ],
    ids=["sessions", "cursors", "identities"],
)
def test_what_is_kept_of_sessions_and_the_like_takes_no_stream_its_history(disk, keep):
    store = disk(size=4 * MIB)
    for n in range(1, 11):
        store.write([append(n, stream="history", time=n, payload=bytes(50_000))])
    before = firsts(store, "history")
    # With the chunks of another stream, as the numbers of publishers are stored.
    sequence = 1 + fill(
        store,
        lambda n: [
            append(n + 1, stream="s", time=100 + n, payload=b"x"),
            *(keep(50 * n + place) for place in range(50)),
        ],
    )
    assert sequence > 1
    assert firsts(store, "history") == before
    # The ring is as large as before, and goes round.
    for n in range(sequence + 1, sequence + 61):
        store.write([append(n, stream="s", time=1000 + n, payload=bytes(50_000))])
    assert store.status().streams_bytes > 0.9 * store.status().streams_budget


def test_a_message_that_stays_does_not_hold_the_log(disk):
    store = disk()
    store.write([put(1, queue="old", record=b"stays"), PutValue(SESSIONS, (b"s", NUMBERS), b"stays")])
    for n in range(1, 3000, 10):
        store.write([put(n + i, record=bytes(1000)) for i in range(10)])
        store.write([delete((n, n + 9))])
    assert store.status().log_bytes < MIB // 2
    disk()
    assert [m.record for m in disk.recovered.queues["mailbox", "old"].messages] == [b"stays"]
    assert disk.recovered.table(SESSIONS) == {(b"s", NUMBERS): b"stays"}
    assert disk.recovered.queues["mailbox", "q"].next == 3001


def test_what_is_deleted_while_its_block_is_compacted_stays_deleted(disk):
    store = disk()
    store.write(
        [
            put(1, queue="old"),
            put(2, queue="old"),
            PutValue(SESSIONS, (b"s", NUMBERS), b"1"),
            PutValue(SESSIONS, (b"t", NUMBERS), b"1"),
        ]
    )
    store.write([put(n, record=bytes(3000)) for n in range(1, 101)])
    store.write([delete((1, 100))])
    blocks = store.status().log_blocks
    store.write([delete((1, 1), queue="old"), DeleteValue(SESSIONS, (b"s",))])
    assert store.status().log_blocks <= blocks
    disk()
    assert [m.sequence for m in disk.recovered.queues["mailbox", "old"].messages] == [2]
    assert disk.recovered.table(SESSIONS) == {(b"t", NUMBERS): b"1"}


# --- threads and processes


@pytest.mark.parametrize("steps", [0, 64])
def test_a_stream_deleted_while_a_read_begins_has_nothing(disk, monkeypatch, steps):
    """The read has looked the stream up; then it is deleted, in steps or at once; then it reads."""
    monkeypatch.setattr(ring, "STEP_CHUNKS", steps)
    store = disk()
    store.write([append(n) for n in (1, 2, 3)])
    reading = store._store.reading

    def late():
        monkeypatch.setattr(store._store, "reading", reading)
        store.write([DeleteStream("s"), append(4)])
        return reading()

    monkeypatch.setattr(store._store, "reading", late)
    assert store.read("s", 1, bytes_max=MIB) == ([], 4)
    assert firsts(store) == [4]


def read_on(store, enough):
    """Read behind the writer until the store is closed; returns what it said."""
    start = seen = 0
    try:
        while True:
            for item in store.read("s", start, bytes_max=50_000).found:
                assert item.last >= start
                start = item.last + 1
                seen += 1
            store.find_time("s", start)
            store.status()
            if seen > 20:
                enough.set()
    except StoreError as error:
        return str(error)


def write_on(store):
    """Write until the store is closed; returns what it said."""
    first = 1
    try:
        while True:
            store.write([append(first + n, payload=bytes(5000)) for n in range(5)] + [put(first)])
            store.write([delete((first, first))])
            first += 5
    except StoreError as error:
        return str(error)


def test_readers_and_the_end_beside_a_writer(disk):
    """Two threads read while a third writes; close comes from this one."""
    store = disk(streams_budget=MIB)
    enough = [threading.Event(), threading.Event()]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(read_on, store, event) for event in enough] + [pool.submit(write_on, store)]
        assert all(event.wait(60) for event in enough)
        store.close()
    assert [future.result() for future in futures] == ["store is closed (error 800)"] * 3


def child(task, directory):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, task, str(directory)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )


CHILD = """
import sys
from malamute.store.operations import (
    AppendChunk, Chunk, DeleteMessages, DeleteStream, ForgetIdentities, PutIdentity, PutMessages,
    PutValue, SetAttempts
)
from malamute.journal.disk import DiskStore
from malamute.journal.compaction import DROPS_MIN
task, directory = sys.argv[1:]
store = DiskStore.open(directory, size=4 << 20, preallocate=task != "limited")
recovered = store.recover()
print("open", flush=True)
if task == "limited":
    import resource, signal
    from malamute.errors import StorageFull
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    store.write([PutMessages("mailbox", "q", 1, 0, "a", ["b"], [bytes(3000)])])
    try:
        store.write([AppendChunk("s", Chunk(1, 1, 1, bytes(1_000_000)), 1)])
    except StorageFull as error:
        print(type(error).__name__)
    for n in range(1, 31):
        store.write([AppendChunk("s", Chunk(n, 1, n, bytes(20_000)), n)])
    try:
        store.write([PutMessages("mailbox", "q", 2, 0, "a", ["b"], [bytes(100_000)])])
    except StorageFull as error:
        print(type(error).__name__)
    store.write([DeleteMessages("mailbox", "q", [(1, 1)])])
    print("written")
    sys.exit()
if task == "hold":
    sys.stdin.read()
number = recovered.streams["s"].last if "s" in recovered.streams else 0
while True:
    number += 1
    store.write([
        AppendChunk("s", Chunk(number, 1, number, b"%d" % number + bytes(number * 37 % 9000)), number + 10),
        PutMessages("mailbox", "q", number, 0, "a", ["b"], [bytes(300)]),
        SetAttempts("mailbox", "q", number, number % 7),
        DeleteMessages("mailbox", "q", [(number - 5, number - 5)]),
        PutMessages("mailbox-dead", "q", number - 5, 0, "a", ["b"], [bytes(300)]),
        DeleteMessages("mailbox-dead", "q", [(-4, number - 9)]),
        PutIdentity("mailbox", "q", str(number), number, number),
        ForgetIdentities("mailbox", "q", number - 3),
        PutValue("feeds", ("s", "f"), b"%d" % number),
        PutValue("sessions", (b"session", 0), b"%d" % number),
        PutValue("cursors", ("s", "cursor"), number),
        PutValue("retentions", ("s",), (0, 200 + number, 0)),
        AppendChunk("gone", Chunk(number, 1, number, b"g"), number),
        *([DeleteStream("gone"), PutValue("cursors", ("gone", "cursor"), number)] if number % 5 == 0 else []),
    ])
    print(number, flush=True)
"""


def test_what_was_written_survives_a_kill(disk):
    for round_number in range(4):
        with child("write", disk.directory) as writer:
            assert writer.stdout.readline() == b"open\n"
            for _ in range(5 + 23 * round_number):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split(b"\n")
        reported = max((int(line) for line in rest[:-1]), default=0)
        store = disk()
        last = disk.recovered.streams["s"].last
        assert last >= reported
        found = firsts(store)
        assert found == list(range(found[0], last + 1))
        queue = disk.recovered.queues["mailbox", "q"]
        assert [m.sequence for m in queue.messages] == list(range(max(1, last - 4), last + 1))
        assert queue.attempts == {m.sequence: m.sequence % 7 for m in queue.messages}
        assert queue.identities == {str(n): (n, n) for n in range(max(1, last - 2), last + 1)}
        dead = disk.recovered.queues["mailbox-dead", "q"]  # sequences from -4 on
        assert [m.sequence for m in dead.messages] == list(range(last - 8, last - 4))
        assert disk.recovered.table(FEEDS) == {("s", "f"): b"%d" % last}
        assert disk.recovered.table(SESSIONS) == {(b"session", NUMBERS): b"%d" % last}
        fives = {("gone", "cursor"): last // 5 * 5} if last >= 5 else {}
        assert disk.recovered.table(CURSORS) == {("s", "cursor"): last} | fives
        assert disk.recovered.table(RETENTIONS) == {("s",): (0, 200 + last, 0)}
        assert firsts(store, "gone") == list(range(last // 5 * 5 + 1, last + 1))
        assert disk.recovered.streams["gone"].last == last
        assert not [d for step in store.verify() for d in step.damages]
        disk.close()


# --- the old end of the log


def worked_off(store, first, record=b"record"):
    """One message comes and leaves: each transaction leaves a block that nothing needs."""
    store.write([put(first, record=record)])
    store.write([delete((first, first))])


def test_blocks_that_nothing_needs_leave_sixteen_at_a_time(disk):
    store = disk()
    blocks = []
    for number in range(1, 51):
        worked_off(store, number)
        blocks.append(store.status().log_blocks)
    assert DROPS_MIN <= max(blocks) <= DROPS_MIN + 1
    assert min(blocks[DROPS_MIN:]) <= 2, "all of them leave together"


def test_large_blocks_that_nothing_needs_leave_at_once(disk):
    store = disk(size=8 * MIB)
    for number in range(1, 11):
        store.write([put(number, record=bytes(8 * MIB // 64))])
    store.write([delete((1, 3))])
    store.write([delete((4, 4))])
    assert store.status().log_blocks == 7 + 2


def test_blocks_that_nothing_needs_give_way_to_what_comes(disk):
    """As many as are left for later may not be the reason to refuse a message."""
    store = disk(size=8 * MIB)
    record = bytes(30_000)
    held = fill(store, lambda number: [put(number, record=record)])
    store.write([delete((1, 3))])
    assert store.status().log_blocks > held - 3
    store.write([put(held + 1, record=record)])
    assert not [number for number in (1, 2, 3) if number in store.fetch("mailbox", "q", (number,))]


# --- log sequence numbers


def test_the_log_sequence_number_outlives_the_blocks_that_had_it(disk):
    store = disk()
    for n in range(1, 41):
        store.write([put(n)])
    store.write([DeleteQueue("mailbox", "q")])
    empty = make_plan((), store._writer._collector, 1 << 20, store._store.lsn)
    store._writer._transact(empty, floor_bytes=0)
    store._writer._transact(empty, floor_bytes=0)
    assert not store.status().log_blocks
    disk()
    assert disk.recovered.lsn == 43, "each transaction has a number, and the last one had no block"
    store = disk.store
    store.write([put(41)])
    assert store.status().lsn == 44


@pytest.mark.parametrize("place", [codec.key(codec.STREAM, 1), codec.key(codec.BLOCK, 0, 1)])
def test_log_sequence_numbers_leave_a_gap_where_the_newest_may_be_damaged(disk, place):
    disk().write([append(1)] if place[0] == codec.STREAM else [put(1)])
    poke(disk, place, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    store = disk()
    assert disk.recovered.lsn >= LSN_STEP
    store.write([append(2), put(2)])
    disk()
    assert disk.recovered.lsn == LSN_STEP + 1


def test_a_copy_continues_with_the_log_sequence_number_of_its_moment(disk, tmp_path):
    store = disk()
    store.write([append(1)])
    store.write([put(1)])
    store.backup(tmp_path / "copy")
    store.write([put(2)])
    disk.close()
    disk.directory = tmp_path / "copy"
    disk()
    assert disk.recovered.lsn == 2


def test_a_store_whose_queues_are_all_empty_takes_what_it_has_room_for(tmp_path):
    """Each block of the log has a number that lives, of a queue without messages."""
    size = 256 << 20
    store = DiskStore.open(tmp_path / "store", size=size, preallocate=False, streams_budget=int(size * 0.7))
    store.recover(records_bytes=1 << 20)

    def put(queue: str, count: int) -> PutMessages:
        return PutMessages("mailbox", queue, 1, 0, "a", ["b"] * count, [bytes(200_000)] * count)

    full = 0
    with suppress(StorageFull):
        while True:
            store.write([put(f"q{full}", 1)])
            full += 1
    store.write([DeleteMessages("mailbox", f"q{number}", [(1, 1)]) for number in range(full)])
    store.write([put("batch", 27)])
    assert store.fetch("mailbox", "batch", [27])[27] == bytes(200_000)
    store.close()
