"""Repair: what can be derived is rebuilt, what is damaged moves out, and nothing is deleted."""

from __future__ import annotations

import lmdb
import pytest
from stores import MIB, append, firsts, put
from test_damage import WAYS, damage, flip, gone, values, zero

from malamute.errors import StoreCorrupt, StoreError, StoreLocked
from malamute.journal import format as codec
from malamute.journal.directory import META_TWIN
from malamute.journal.format import key
from malamute.journal.repair import LEFT, MOVED_OUT, REBUILT, repair
from malamute.store.operations import PutValue
from malamute.store.tables import CURSORS


@pytest.fixture
def filled(disk):
    """A store with something of every kind."""
    disk().write([append(1, stream="weather"), append(2, stream="weather"), put(1)])
    disk.store.write([PutValue(CURSORS, ("weather", "slow"), 1), put(2)])
    disk.close()
    return disk


def did(disk, **options):
    return [(row.kind, row.name, row.action) for row in repair(disk.directory, **options)]


def moved_out(disk):
    files = sorted((disk.directory / "damaged").glob("*"))
    return {bytes.fromhex(file.name.partition(".")[0]): file.read_bytes() for file in files}


def test_a_good_store_is_left_alone(filled):
    before = values(filled)
    assert did(filled) == []
    assert values(filled) == before
    assert not (filled.directory / "damaged").exists()


@WAYS
def test_a_state_is_made_anew_and_what_it_was_moves_out(filled, way):
    place = key(codec.STREAM, 1)
    damaged = damage(filled, place, way)
    before = values(filled)
    assert did(filled, dry_run=True) == [("stream", "weather", REBUILT)]
    assert (values(filled), moved_out(filled)) == (before, {})
    assert did(filled) == [("stream", "weather", REBUILT)]
    assert moved_out(filled) == ({} if way is gone else {place: damaged})
    assert did(filled) == []
    assert firsts(filled(), "weather") == [1, 2]
    assert filled.recovered.defects == ()


def test_history_without_state_and_card_is_found_again(filled):
    damage(filled, key(codec.STREAM, 1), gone)
    damage(filled, key(codec.CARD, 1), gone)
    assert did(filled) == [("stream", "lost.1", REBUILT)]
    assert firsts(filled(), "lost.1") == [1, 2]


@pytest.mark.parametrize("places", [[key(codec.META)], [META_TWIN], [key(codec.META), META_TWIN]])
def test_the_meta_record_is_made_anew(filled, places):
    damaged = {place: damage(filled, place, flip) for place in places}
    if len(places) == 2:
        with pytest.raises(StoreCorrupt):
            filled()
    assert did(filled) == [("meta", "", REBUILT)]
    assert moved_out(filled) == damaged
    assert firsts(filled(), "weather") == [1, 2]
    assert filled.recovered.defects == ()
    # Without any it is not known what a restore has left out, so that it has to be left out again.
    found = filled.store.recover(now=1_800_000_000.0)
    assert found.restored is (len(places) == 2)
    assert bool(found.incarnation) is found.restored


def test_a_damaged_chunk_and_a_damaged_block_are_left_for_who_is_to_be_notified(filled):
    damage(filled, key(codec.CHUNK, 1, 2), flip)
    damage(filled, key(codec.BLOCK, 0, 2), zero)
    before = values(filled)
    assert did(filled) == [("chunk", "weather", LEFT), ("block", "", LEFT)]
    assert values(filled) == before


def test_what_the_broker_has_put_aside_moves_out_and_a_lost_cursor_stays_lost(filled):
    damaged = damage(filled, key(codec.BLOCK, 0, 2), zero)
    filled()
    for n in range(1, 40):
        filled.store.write([put(2000 + n)])
    filled.close()
    places = [place for place in values(filled) if place[0] == codec.QUARANTINE]
    if not places:  # it is not the oldest block yet: as the broker would put it aside
        with lmdb.open(str(filled.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
            transaction.delete(key(codec.BLOCK, 0, 2))
            transaction.put(key(codec.QUARANTINE, 0, 2), damaged)
    assert did(filled) == [("block", "", MOVED_OUT)]
    assert moved_out(filled) == {key(codec.QUARANTINE, 0, 2): damaged}
    filled()
    assert [defect.kind for defect in filled.recovered.defects] == ["cursor"]
    assert filled.recovered.lost == {(CURSORS, ("weather", "slow"))}


def test_a_key_that_is_none_moves_out(filled):
    filled.close()
    with lmdb.open(str(filled.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
        transaction.put(b"rubbish", b"value")
    assert did(filled) == [("unknown", "", MOVED_OUT)]
    assert moved_out(filled) == {b"rubbish": b"value"}


def test_it_needs_a_store_that_nobody_uses(disk, tmp_path):
    with pytest.raises(StoreError):
        repair(tmp_path / "nothing")
    disk()
    with pytest.raises(StoreLocked):
        repair(disk.directory)
