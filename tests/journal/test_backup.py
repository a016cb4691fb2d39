"""Copying a store that is in use, and one that is not."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import lmdb
import pytest
from stores import MIB, append, delete, firsts, put

from malamute.core.bucket.entry import KeyEntry, pack_entry
from malamute.errors import StorageFull, StoreError
from malamute.journal import backup as backup_module
from malamute.journal.disk import DiskStore
from malamute.journal.memory import MemoryStore
from malamute.journal.store import next_incarnation
from malamute.store.operations import Damage, DeleteStream, PutValue
from malamute.store.tables import BUCKETS, CURSORS, NUMBERS, RETENTIONS, SESSIONS

NOW = 1_700_000_000.0


@pytest.fixture
def target(tmp_path):
    return tmp_path / "backups" / "one"


@pytest.fixture
def steps(monkeypatch):
    """Steps of about one chunk."""
    monkeypatch.setattr(backup_module, "STEP_BYTES", 1)


def opened(path, now=None):
    store = DiskStore.open(path, size=4 * MIB, preallocate=False)
    return store, store.recover(now=now)


def everything(store):
    names = store.status().streams
    return {name: store.read(name, 0, bytes_max=64 * MIB) for name in names}


def test_a_backup_is_a_data_directory_with_all_of_it(disk, target):
    store = disk()
    store.write(
        [append(n, count=10, reserved=99) for n in (1, 11, 21)] + [append(1, stream="t", large=(b"x",))]
    )
    store.write(
        [
            put(1),
            put(2),
            delete((1, 1)),
            PutValue(SESSIONS, (b"s", NUMBERS), b"1"),
            PutValue(CURSORS, ("s", "c"), 4),
            PutValue(BUCKETS, ("results", "job-1"), pack_entry(KeyEntry(7, 0, "ann", b"640x480"))),
        ]
    )
    store.write([PutValue(RETENTIONS, ("s",), (0, 30, 2)), append(1, stream="gone"), DeleteStream("gone")])
    reported = []
    copied = store.backup(target, lambda done, total: reported.append((done, total)))
    assert copied[:2] == (3, 4)
    assert copied.damages == ()
    assert reported[-1][0] == copied.bytes == reported[-1][1]
    status = store.status()
    disk()
    copy, recovered = opened(target)
    assert recovered == disk.recovered
    assert [*recovered.table(BUCKETS)] == [("results", "job-1")]
    assert everything(copy) == everything(disk.store)
    assert copy.status().streams == status.streams
    assert not [damage for step in copy.verify() for damage in step.damages]
    copy.write([append(100), put(3)])
    copy.close()


def test_a_directory_with_a_store_is_not_touched(disk, target):
    store = disk()
    store.backup(target)
    before = (target / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="already"):
        store.backup(target)
    with pytest.raises(StoreError, match="already"):
        store.backup(disk.directory)
    assert (target / "data.mdb").read_bytes() == before


def test_what_was_not_finished_is_removed(disk, target, monkeypatch):
    store = disk()
    store.write([append(1)])

    def failing(*arguments):
        raise StorageFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(backup_module.Copy, "_copy_chunk", failing)
        with pytest.raises(StorageFull):
            store.backup(target)
    assert not (target / "data.mdb").exists()
    assert store.backup(target).chunks == 1


def test_a_store_closed_meanwhile_ends_the_copy(disk, target, steps, monkeypatch):
    store = disk()
    store.write([append(n) for n in range(1, 9)])
    between_steps(store, monkeypatch, lambda number: store.close() if number == 2 else None)
    with pytest.raises(StoreError, match="closed"):
        store.backup(target)
    assert not (target / "data.mdb").exists()


def test_a_directory_that_cannot_be_made_is_an_error(disk, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        disk().backup(tmp_path / "file" / "backup")


def test_a_full_disk_that_refuses_the_lock_of_a_copy_leaves_none(disk, target):
    disk().write([append(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreError):
            disk.store.backup(target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert disk.store.backup(target).streams == 1


def test_a_full_disk_that_refuses_the_file_of_a_copy_leaves_none(disk, target, monkeypatch):
    def refused(path, **options):
        # As LMDB does where there is room for the first page only.
        (target / "data.mdb").write_bytes(bytes(4096))
        raise lmdb.DiskError(f"{path}: No space left on device")

    disk().write([append(1)])
    with monkeypatch.context() as full:
        full.setattr(lmdb, "open", refused)
        with pytest.raises(StorageFull):
            disk.store.backup(target)
    assert disk.store.backup(target).streams == 1


def test_a_damaged_chunk_is_copied_and_reported(disk, target):
    disk().write([append(first, count=10) for first in (1, 11, 21)])
    with disk.store._store.environment.begin(write=True) as transaction:
        place = backup_module.key(backup_module.CHUNK, 1, 11)
        transaction.put(place, transaction.get(place)[:-1] + b"?")
    copied = disk.store.backup(target)
    assert copied.damages == (("s", Damage(11, 20, "corrupt")),)
    copy, _ = opened(target)
    assert [damage for step in copy.verify() for damage in step.damages] == [Damage(11, 20, "corrupt")]
    assert copy.status().streams["s"].count == 30
    copy.close()


def between_steps(store, monkeypatch, change):
    """Call `change` with the number of each read transaction before it begins."""
    reading, numbers = store._store.reading, iter(range(1000))

    def changed():
        change(next(numbers))
        return reading()

    monkeypatch.setattr(store._store, "reading", changed)


def test_the_streams_are_those_of_one_moment_as_far_as_the_ring_kept_them(disk, target, steps, monkeypatch):
    store = disk()
    store.write([append(n) for n in range(1, 21)] + [put(1)])

    def change(number):  # the first step reaches the end of the log, so it is the moment
        if number:
            store.write([append(20 + number), PutValue(RETENTIONS, ("s",), (0, 12, 0)), put(1 + number)])
        if number == 6:
            store.write([DeleteStream("t")])

    between_steps(store, monkeypatch, change)
    store.backup(target)
    copy, recovered = opened(target)
    found = firsts(copy)
    assert found == list(range(found[0], 21))
    assert 10 <= found[0] < 20
    assert recovered.streams["s"][:2] == (found[0], 20)
    assert [m.sequence for m in recovered.queues["mailbox", "q"].messages] == [1]
    copy.close()


def test_a_log_that_is_dropped_meanwhile_is_copied_anew(disk, target, steps, monkeypatch):
    store = disk()
    for n in range(1, 6):
        store.write([put(n)])

    def change(number):
        if number == 2:
            store.write([delete((1, 5)), put(6)])
            for _ in range(3):
                store.write([PutValue(SESSIONS, (b"s", NUMBERS), b"%d" % number)])

    between_steps(store, monkeypatch, change)
    store.backup(target)
    expected = disk.store.recover().queues
    copy, recovered = opened(target)
    assert recovered.queues == expected
    assert [m.sequence for m in recovered.queues["mailbox", "q"].messages] == [6]
    copy.close()


def test_beside_a_writer_every_backup_is_whole(disk, target, steps):
    store = disk(streams_budget=MIB)

    def write(n):
        store.write(
            [
                append(n, payload=bytes(20_000)),
                put(n),
                delete((n - 3, n - 3)),
                PutValue(CURSORS, ("s", "c"), n),
            ]
        )

    for n in range(1, 60):
        write(n)
    for number in range(5):
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(store.backup, target / str(number))
            while not copying.done():
                n += 1
                write(n)
            copying.result()
        copy, recovered = opened(target / str(number))
        state = recovered.streams["s"]
        assert firsts(copy) == list(range(state.first, state.last + 1))
        assert recovered.table(CURSORS) == {("s", "c"): state.last}
        kept = [m.sequence for m in recovered.queues["mailbox", "q"].messages]
        assert kept == list(range(state.last - 2, state.last + 1))
        copy.close()
    assert n > 59, "there was a writer"


def test_a_store_in_memory_has_no_backup(target):
    with pytest.raises(StoreError, match="memory"):
        MemoryStore().backup(target)


def test_only_what_is_there_is_opened_to_be_looked_at(tmp_path):
    with pytest.raises(StoreError, match="no store"):
        DiskStore.open_existing(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_that_happens_to_be_called_lock_is_not_touched(disk, target, tmp_path, kind):
    target.mkdir(parents=True)
    kept = tmp_path / "kept"
    kept.write_bytes(b"123\n" if kind == "link" else b"what somebody needs")
    before = kept.read_bytes()
    (target / "lock").symlink_to(kept) if kind == "link" else kept.rename(target / "lock")
    with pytest.raises(StoreError, match="does not belong to a store"):
        disk().backup(target)
    assert (target / "lock").read_bytes() == before
    assert [path.name for path in target.iterdir()] == ["lock"]


def test_what_is_refused_leaves_a_store_as_it_is(disk, target):
    store = disk()
    store.backup(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(StoreError, match="a store in"):
        store.backup(target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_a_broker_that_begins_on_a_copy_takes_another_incarnation_once(disk, target):
    store = disk()
    store.write([append(1, reserved=9), put(1)])
    assert store.recover(now=NOW).incarnations == ()
    store.backup(target)
    copy, looked_at = opened(target)
    copy.close()
    assert looked_at.incarnations == ()
    copy, begun = opened(target, NOW)
    copy.close()
    assert begun.incarnations == (next_incarnation(NOW, 9),)
    copy, again = opened(target, NOW + 1)
    copy.close()
    assert again.incarnations == begun.incarnations


def test_a_copy_of_a_copy_is_a_copy(disk, target, tmp_path):
    """`journal restore` copies a backup, which no broker has begun on."""
    disk().write([append(1)])
    disk.store.backup(target)
    backup, _ = opened(target)
    backup.backup(tmp_path / "restored")
    backup.close()
    restored, found = opened(tmp_path / "restored", NOW)
    restored.close()
    assert len(found.incarnations) == 1


def test_an_incarnation_goes_beyond_all_that_was_used_though_the_clock_is_wrong(disk, target):
    disk().write([append(1, reserved=50), put(90)])
    disk.store.backup(target)
    copy, found = opened(target, 0.0)
    copy.close()
    assert found.incarnations == (90 + 1 + (1 << 32),)


def test_a_store_remembers_a_bounded_number_of_incarnations(disk, target, monkeypatch):
    monkeypatch.setattr("malamute.journal.store.INCARNATIONS_MAX", 2)
    disk().write([append(1)])
    begun = []
    source = disk.store
    for place in range(3):
        source.backup(target.with_name(str(place)))
        source.close()
        source, found = opened(target.with_name(str(place)), NOW + place)
        begun.append(found.incarnation)
    source.close()
    assert found.incarnations == tuple(begun[1:])
