"""Write sets: a store that applies them has the same values under the same log sequence number."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from pair_stores import PAIR, SECOND, set_record, values
from stores import MIB, append, fill, put
from test_store_model import LoggedStores, Stores
from test_write_ahead import Failing

from malamute.errors import StorageFull, StoreCorrupt, StoreError, StoreTooNew
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import PairRecord
from malamute.journal.standby import Standby
from malamute.journal.write_set import HEADER_SIZE, WriteSet, decode, encode
from malamute.store.operations import DeleteMessages, DeleteStream, DeleteValue, PutValue
from malamute.store.tables import SESSIONS

FAULT = lmdb.DiskError("mdb_txn_commit: Input/output error")
SET = WriteSet(bytes(range(16)), 7, 9, {b"k" * 13: b"value", b"deleted": None, b"": b""})


class Follower:
    """A replica of a store, which is given its write sets now and then."""

    def __init__(self, directory, size):
        self.directory, self.size = Path(directory), size
        self.copy = self.directory.with_name(self.directory.name + "-copy")
        self.sets = []
        self.replica = None

    def begin(self):
        """Copy the store, which nobody has written since it was opened."""
        shutil.copytree(self.directory, self.copy, ignore=shutil.ignore_patterns("lock*", "write-ahead.log"))
        set_record(self.copy, PairRecord(PAIR, SECOND, ((1, 1),), whole=True))
        self.replica = Standby.open(self.copy, size=self.size, preallocate=False)

    def follow(self, store):
        self.replica.take([decode(encode(one)) for one in self.sets])
        self.sets.clear()
        assert self.replica.lsn == store._store.lsn
        assert values(self.replica._environment) == values(store._store.environment)

    def take_over(self):
        self.replica.close()
        self.replica = None
        with closing(DiskStore.open(self.copy, size=self.size, preallocate=False)) as store:
            return store.recover()


class FollowedStores(Stores):
    """Each transaction of a store, with what the ring, compaction and age do in it, applied to a replica."""

    def opened(self):
        if not hasattr(self, "follower"):
            self.follower = Follower(self.directory.name, MIB)
        self.options = {"on_commit": self.follower.sets.append}
        disk = super().opened()
        if self.follower.replica is None:
            self.follower.begin()
        return disk

    @rule()
    def fail(self):
        store = self.disk._store
        environment, store.environment = store.environment, Failing(store.environment, FAULT)
        with pytest.raises(StorageFull):
            self.disk.write([DeleteStream("none")])
        store.environment = environment

    @invariant()
    def equal(self):
        if hasattr(self, "disk"):
            self.follower.follow(self.disk)

    def teardown(self):
        if hasattr(self, "disk"):
            self.follower.follow(self.disk)
            self.follower.replica.close()
            shutil.rmtree(self.follower.copy)
        super().teardown()


class FollowedLoggedStores(FollowedStores, LoggedStores):
    """The same with a write-ahead log."""


FollowedStores.TestCase.settings = settings(max_examples=5 * DEPTH, stateful_step_count=40, deadline=None)
TestFollowedStores = FollowedStores.TestCase
FollowedLoggedStores.TestCase.settings = FollowedStores.TestCase.settings
TestFollowedLoggedStores = FollowedLoggedStores.TestCase


@pytest.fixture
def followed(tmp_path):
    follower = Follower(tmp_path / "store", 2 * MIB)
    yield follower
    if follower.replica is not None:
        follower.replica.close()


@pytest.mark.parametrize("has_log", [False, True])
def test_a_store_that_makes_room_for_a_write_numbers_each_transaction(followed, has_log):
    options = {"size": 2 * MIB, "has_log": has_log, "on_commit": followed.sets.append}
    with closing(DiskStore.open(followed.directory, **options)) as store:
        store.recover()
        followed.begin()
        numbers, writes, message = [], 0, 0
        for seed in range(1, 3):
            chunks = [append(100 * seed + n, payload=bytes(20_000 + 997 * n)) for n in range(80)]
            for chunk in chunks[:60]:
                store.write([chunk])
            for step in (2, 3):
                first = message + 1
                message += fill(store, lambda n, m=message: [put(m + n, record=bytes(20_000))])
                store.write([DeleteMessages("mailbox", "q", [(n, n) for n in range(first, message, step)])])
            key = b"%d" % seed
            values = fill(store, lambda n, key=key: [PutValue(SESSIONS, (key, n), bytes(9000))])
            for chunk in chunks[60:]:
                store.write([chunk])
            writes += values + 82
            store.write([DeleteValue(SESSIONS, (key,))])
            store.take_over()
            numbers += [one.lsn for one in followed.sets]
            followed.follow(store)
        assert numbers == sorted(set(numbers))
        assert has_log or len(numbers) > writes + message + 2, "some made room"
        expected = store.recover()
    assert followed.take_over() == expected


def test_a_broker_that_begins_on_a_copy_numbers_its_incarnation(followed):
    with closing(DiskStore.open(followed.directory.with_name("origin"), size=2 * MIB)) as origin:
        origin.recover()
        origin.write([append(1)])
        origin.backup(followed.directory)
    with closing(DiskStore.open(followed.directory, size=2 * MIB, on_commit=followed.sets.append)) as store:
        followed.begin()
        assert store.recover(now=1e9).restored
        assert followed.sets
        followed.follow(store)


def test_a_missing_write_set_is_noticed_and_a_repeated_one_has_no_effect(followed):
    with closing(DiskStore.open(followed.directory, size=2 * MIB, on_commit=followed.sets.append)) as store:
        store.recover()
        followed.begin()
        for n in (1, 2, 3):
            store.write([append(n)])
        first, second, third = followed.sets
        with pytest.raises(StoreError, match="expected one after"):
            followed.replica.apply([first, third])
        assert followed.replica.lsn == first.after
        with pytest.raises(StoreError, match="of another store"):
            followed.replica.apply([first._replace(store=bytes(16))])
        followed.replica.apply([first, first, second])
        followed.sets[:] = [second, third]
        followed.follow(store)


def test_a_write_set_is_read_as_it_was_written():
    assert decode(encode(SET)) == SET


@pytest.mark.parametrize("bit", [0, 7])
def test_each_damaged_byte_of_a_write_set_is_noticed(bit):
    data = encode(SET)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        with pytest.raises((StoreCorrupt, StoreTooNew)):
            decode(bytes(damaged))
    for end in range(len(data)):
        with pytest.raises(StoreCorrupt):
            decode(data[:end])


@given(st.binary(max_size=2 * HEADER_SIZE))
def test_any_bytes_are_a_write_set_or_an_error(data):
    with pytest.raises((StoreCorrupt, StoreTooNew)):
        decode(data)
