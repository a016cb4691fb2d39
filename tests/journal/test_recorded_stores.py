"""Stores that were written by each version of the format that is read can be read, and written on."""

from __future__ import annotations

import tarfile

import lmdb
import pytest
from record_store import DATA, TIME, chunk, operations, put, write_store
from stores import firsts

from malamute.journal import format as codec
from malamute.journal.format import STORE_VERSION, VERSION
from malamute.protocol.batch import unpack_payload, unpack_record
from malamute.store.operations import DeleteStream, NoteRefused, QueueState, StoredMessage, StreamState
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, REFUSALS, RETENTIONS, SESSIONS

RECORDED = {
    path.name.removeprefix("store-v").removesuffix(".tar.xz"): path for path in DATA.glob("store-v*.tar.xz")
}

SIZE = 2 << 20
"""The size that each was made with; the file has no more pages than it uses."""


def held(operation):
    return [*operation.messages()]


@pytest.fixture(params=sorted(RECORDED))
def recorded(request, disk):
    disk.directory.mkdir()
    with tarfile.open(RECORDED[request.param]) as archive:
        archive.extractall(disk.directory, filter="data")
    if request.param == str(STORE_VERSION):
        finish(disk)
    return disk


def finish(disk):
    """The last transaction of a store that was killed before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("malamute.journal.ring.STEP_CHUNKS", 3)
        disk(size=SIZE).write([*operations()][-1])
    disk.close()


def test_each_version_that_is_read_is_recorded():
    assert set(RECORDED) == {str(VERSION), str(STORE_VERSION)}


def test_all_of_it_is_read(recorded):
    store = recorded(size=SIZE)
    found = recorded.recovered
    assert found.streams == {
        "weather": StreamState(1, 21, 120, TIME + 20),
        "bare": StreamState(1, 0, 77),
        "trimmed": StreamState(6, 8, 108, TIME + 8),
        "deleted": StreamState(9, 8, 108),
    }
    session = b"s" * 16
    assert found.table(SESSIONS) == {(session, NUMBERS): b"value", (session, REFUSALS): b"refusals"}
    assert found.table(CURSORS) == {("weather", "mine"): 11}
    assert found.table(RETENTIONS) == {("trimmed",): (0, 3, 0.5)}
    properties = {"tracker": "t", "deep": [1, None]}
    bob = held(put("mailbox", "bob", 1, properties, count=3))[::2]
    late = held(put("service", "late", 1, count=2))
    queues = {
        ("mailbox", "bob"): QueueState(4, 1, bob),
        ("service", "printer"): QueueState(6, 0, held(put("service", "printer", 5))),
        ("mailbox", "ann"): QueueState(3, 0, held(put("mailbox", "ann", 1)), {1: 3}, {"id3": (3, TIME + 3)}),
        ("mailbox-dead", "ann"): QueueState(2, 0, held(put("mailbox-dead", "ann", 1, {"dead": {}}))),
        ("service-dead", "printer"): QueueState(10, 0, held(put("service-dead", "printer", 9)), {9: 1}),
        ("service", "late"): QueueState(3, 0, late, {1: 2, 2: 1}, due_ns={1: TIME + 9}),
    }
    assert found.queues == queues
    assert found.table(FEEDS) == {("weather", "printer"): b"feed"}
    assert found.refused == {"weather": [NoteRefused("weather", 5, 6, 13)]}
    assert found.lsn == sum(1 for _ in operations())
    assert store.fetch("mailbox", "bob", (1, 2, 3)) == {m.sequence: m.record for m in bob}
    assert type(bob[0]) is StoredMessage
    assert not [damage for step in store.verify() for damage in step.damages]


def test_its_chunks_are_as_they_were(recorded):
    store = recorded(size=SIZE)
    found = store.read("weather", 1, bytes_max=1 << 20).found
    assert [item.first for item in found] == [1, 3, 10, 11, 12, 13, 20]
    assert found[0] == chunk("weather", 1, "oslo", "rome").chunk
    columns = unpack_payload(found[-1].payload, found[-1].large)
    assert (columns.subjects, columns.senders, columns.times) == (["bern", "large"], "alice", TIME + 20)
    assert unpack_record(columns.records[1]) == ({"n": 1}, [bytes(70_000)])
    assert store.find_time("weather", TIME + 12) == 12
    expected = {"large": 21, "bern": 20, "rome": 13, "oslo": 3}
    assert store.last_per_subject("weather", limit=9) == expected
    assert [header.indexed for header in store.headers("weather", 1, count_max=9)].count(True) >= 2


def test_it_is_written_on(recorded):
    store = recorded(size=SIZE)
    assert store.status().leaving_bytes
    store.write([chunk("weather", 121, "oslo"), chunk("deleted", 109, "x"), DeleteStream("trimmed")])
    assert store.status().leaving_bytes == 0
    store = recorded(size=SIZE)
    assert (firsts(store, "deleted"), firsts(store, "trimmed")) == ([109], [])
    assert firsts(store, "weather", start=100) == [121]


def test_a_backup_of_it_has_all_of_it(recorded, tmp_path):
    store = recorded(size=SIZE)
    store.backup(tmp_path / "backup")
    version = store.format
    recorded.close()
    recorded.directory = tmp_path / "backup"
    with lmdb.open(str(recorded.directory), readonly=True) as env, env.begin() as transaction:
        assert codec.decode_meta(transaction.get(codec.key(codec.META))).version == version
    assert recorded(size=SIZE).status().log_unreadable == 0
    assert len(recorded.recovered.queues) == 6
    assert recorded.recovered.lsn == sum(1 for _ in operations())


@pytest.mark.parametrize("has_log", [False, True])
def test_the_recorder_still_works(disk, monkeypatch, has_log):
    monkeypatch.setattr("malamute.journal.ring.STEP_CHUNKS", 3)
    monkeypatch.setattr("malamute.journal.subjects.RANGE_CHUNKS", 2)
    monkeypatch.setattr("malamute.journal.subjects.SHARE", 1)
    write_store(disk.directory, has_log=has_log)
    if has_log:
        finish(disk)
    disk(size=SIZE)
    test_all_of_it_is_read(disk)
