"""Damage of any record: the store opens, the core begins on it, and what is lost is reported."""

from __future__ import annotations

import lmdb
import pytest
from record_store import write_store

from malamute.core.broker import Core
from malamute.journal import format as codec
from malamute.journal.disk import DiskStore

SIZE = 2 << 20
PLACES = {"first": lambda size: 0, "middle": lambda size: size // 2, "last": lambda size: size - 1}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The directory of a store with every kind of record."""
    directory = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ring.STEP_CHUNKS", "subjects.RANGE_CHUNKS", "subjects.SHARE"):
            patch.setattr(f"malamute.journal.{name}", 3)
        write_store(directory)
    return directory


def records(directory):
    with lmdb.open(str(directory), map_size=SIZE) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


def put(directory, key, value):
    environment = lmdb.open(str(directory), map_size=SIZE)
    with environment, environment.begin(write=True) as transaction:
        transaction.put(key, value)


def is_left_over(key, good):
    """Whether it is a chunk of a stream that was deleted: nobody will ever read it."""
    kind, identifier, _ = codec.split_key(key)
    return kind == codec.CHUNK and not codec.decode_stream(good[codec.key(codec.STREAM, identifier)]).name


def contents(directory):
    """What a broker finds and can read, and what was reported as damaged."""
    store = DiskStore.open(directory, size=SIZE, preallocate=False)
    try:
        found = store.recover(now=1_800_000_000.0)
        core = Core(1_800_000_000.0, None, found._replace(defects=()))
        assert not core.effects.faults.count, core.effects.notices
        chunks = {name: store.read(name, 0, bytes_max=1 << 30).found for name in found.streams}
        steps = [damage for step in store.verify() for damage in step.damages]
        return found._replace(defects=(), queues=sorted(found.queues)), chunks, bool(found.defects or steps)
    finally:
        store.close()


@pytest.mark.parametrize("place", PLACES)
def test_no_damaged_record_keeps_a_broker_from_starting_or_is_silent(recorded, place):
    good = records(recorded)
    assert {key[0] for key in good} == {codec.META, codec.STREAM, codec.CHUNK, codec.BLOCK, codec.CARD}
    whole = contents(recorded)
    assert not whole[2]
    for key, value in good.items():
        at = PLACES[place](len(value))
        put(recorded, key, value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :])
        found = contents(recorded)
        assert found[2] or is_left_over(key, good), f"nobody is notified that {key.hex()} is damaged"
        put(recorded, key, value)
    assert contents(recorded) == whole
