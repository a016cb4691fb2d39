"""Damage of any record: the store opens, the core begins on it, and what is lost is reported."""

from __future__ import annotations

import lmdb
import pytest
from record_store import write_store

from malamute.core.broker import Core
from malamute.journal import format as codec
from malamute.journal.disk import DiskStore
from malamute.journal.reader import StoreReader

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
    """The records that a broker finds and can read, and those that were reported as damaged."""
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


def put_under(directory, key, other):
    """Move a value to another key, as a wrong bit in its key does."""
    environment = lmdb.open(str(directory), map_size=SIZE)
    with environment, environment.begin(write=True) as transaction:
        transaction.put(other, transaction.get(key))
        transaction.delete(key)


def test_a_state_under_a_wrong_key_is_believed_and_reported(recorded):
    whole = contents(recorded)
    states = [key for key in records(recorded) if key[0] == codec.STREAM]
    assert states
    for key in states:
        _, identifier, _ = codec.split_key(key)
        put_under(recorded, key, wrong := codec.key(codec.STREAM, identifier, 1 << 8))
        found = contents(recorded)
        assert found[2]
        assert found[0].streams == whole[0].streams
        put_under(recorded, wrong, key)
    assert contents(recorded) == whole


def test_an_oldest_chunk_under_a_wrong_key_is_a_damage_of_its_stream(recorded):
    whole = contents(recorded)
    streams = {name: state for name, state in whole[0].streams.items() if whole[1][name]}
    assert streams
    good = records(recorded)
    states = [codec.decode_stream(value) for key, value in good.items() if key[0] == codec.STREAM]
    tried = 0
    for state in states:
        if not state.chunks or state.name not in streams:
            continue
        tried += 1
        key, wrong = (codec.key(codec.CHUNK, state.identifier, first) for first in (state.first, 0))
        put_under(recorded, key, wrong)
        _, chunks, is_reported = contents(recorded)
        assert is_reported
        assert chunks[state.name][0].reason == "corrupt"
        assert chunks[state.name][0].first == state.first
        assert chunks[state.name][1:] == whole[1][state.name][1:]
        with StoreReader.open(recorded) as reader:
            assert reader.read(state.name, 0, bytes_max=1 << 30).found == chunks[state.name]
        put_under(recorded, wrong, key)
    assert tried
    assert contents(recorded) == whole
