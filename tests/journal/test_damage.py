"""Every kind of record damaged, in every way a disk may think of: the rest is served, and it is reported."""

from __future__ import annotations

from random import Random

import lmdb
import pytest
from stores import MIB, append, delete, firsts, put

from malamute.journal import format as codec
from malamute.journal.blocks import BLOCK_HEADER_SIZE, decode_block, encode_block, salvage, undeleted
from malamute.journal.directory import META_TWIN
from malamute.journal.format import key
from malamute.journal.log import AWAITED_WRITES
from malamute.journal.states import CEILING_STEP, UNKNOWN_STEP, decode_card
from malamute.store.operations import (
    DeleteStream,
    DeleteValue,
    MarkDelivered,
    PutIdentity,
    PutValue,
    SetAttempts,
    StreamState,
)
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, RETENTIONS, SESSIONS

NAME = "mailbox", "q"


def values(disk):
    """All of the store by their keys, behind its back."""
    disk.close()
    with lmdb.open(str(disk.directory), map_size=4 * MIB) as env, env.begin() as transaction:
        return dict(transaction.cursor())


def damage(disk, place, change):
    """Change a value; `change` gets a bytearray, and returns None to delete."""
    before = values(disk)[place]
    value = change(bytearray(before))
    with lmdb.open(str(disk.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
        transaction.put(place, bytes(value)) if value is not None else transaction.delete(place)
    return before if value is None else bytes(value)


def flip(value):
    value[len(value) // 2] ^= 0x10
    return value


def zero(value):
    return bytes(len(value))


def cut(value):
    return value[:3]


def gone(value):
    return None


WAYS = pytest.mark.parametrize("way", [flip, zero, cut, gone], ids=lambda way: way.__name__)


def kinds(disk):
    return [defect.kind for defect in disk.recovered.defects]


# --- the states of streams


@WAYS
def test_a_damaged_state_is_made_anew_with_all_of_the_history(disk, way):
    disk().write([append(n, stream="weather", count=10, time=n, reserved=1000) for n in (1, 11, 21)])
    before = disk.store.status().streams["weather"]
    damaged = damage(disk, key(codec.STREAM, 1), way)
    store = disk()
    assert kinds(disk) == ["stream"]
    assert disk.recovered.defects[0][:4] == ("stream", "weather", 1, 30)
    assert firsts(store, "weather") == [1, 11, 21]
    after = store.status().streams["weather"]
    assert after._replace(reserved=0) == before._replace(reserved=0)
    # No sequence that may have been used is used again.
    assert after.reserved == 1000 + CEILING_STEP
    store.write([append(after.reserved + 1, stream="weather")])
    # The damaged record is kept, and the next start finds nothing new.
    disk()
    assert firsts(disk.store, "weather") == [1, 11, 21, after.reserved + 1]
    assert kinds(disk) == ([] if way is gone else ["aside"])
    aside = [value for place, value in values(disk).items() if place[0] == codec.ASIDE]
    assert aside == ([] if way is gone else [key(codec.STREAM, 1) + damaged])


@WAYS
def test_the_state_of_a_stream_without_history_is_made_anew(disk, way):
    disk().write([append(1, stream="weather", reserved=7), DeleteStream("weather")])
    (identifier,) = {s.identifier for s in disk.store.status().streams.values()}
    damage(disk, key(codec.STREAM, identifier), way)
    disk()
    ceiling = 7 + CEILING_STEP
    assert disk.recovered.streams == {"weather": StreamState(ceiling + 1, ceiling, ceiling)}


def test_a_state_of_an_older_store_has_its_name_still(disk):
    disk().write([append(1, stream="weather"), append(1, stream="news")])
    damage(disk, key(codec.CARD, 1), gone)
    damage(disk, key(codec.STREAM, 1), lambda value: value[:10] + b"\xff" + value[11:])
    disk()
    assert disk.recovered.streams["weather"].reserved == 1 + UNKNOWN_STEP
    assert firsts(disk.store, "weather") == [1]


def test_a_state_without_any_name_is_found_under_another(disk):
    disk().write([append(1, stream="weather")])
    damage(disk, key(codec.CARD, 1), zero)
    damage(disk, key(codec.STREAM, 1), zero)
    disk()
    assert firsts(disk.store, "lost.1") == [1]
    assert sorted(kinds(disk)) == ["card", "stream"]


def test_a_chunk_with_a_sequence_that_none_can_have_is_no_end_of_a_start(disk):
    disk().write([append(1, stream="weather")])
    damage(disk, key(codec.CARD, 1), gone)
    damage(disk, key(codec.STREAM, 1), zero)
    with lmdb.open(str(disk.directory), map_size=4 * MIB) as env, env.begin(write=True) as transaction:
        transaction.put(key(codec.CHUNK, 1, 2**64 - 1), b"rubbish")
    disk()
    assert 1 in firsts(disk.store, "lost.1")


def test_a_state_damaged_while_it_is_in_use_is_no_end_of_reading(disk):
    """The reader meets it; the writer knows better, and writes it again."""
    store = disk()
    store.write([append(1, stream="weather"), append(2, stream="weather")])
    with store._store.environment.begin(write=True) as transaction:
        transaction.put(key(codec.STREAM, 1), b"rubbish")
    assert firsts(store, "weather") == [1, 2]
    assert [defect[:2] for defect in store.pop_defects()] == [("stream", "weather")]
    assert store.pop_defects() == []
    store.write([append(3, stream="weather")])
    disk()
    assert (firsts(disk.store, "weather"), kinds(disk)) == ([1, 2, 3], [])


@WAYS
def test_a_damaged_card_costs_nothing_and_is_written_anew(disk, way):
    disk().write([append(1, stream="weather"), PutValue(CURSORS, ("weather", "slow"), 1)])
    damage(disk, key(codec.CARD, 1), way)
    store = disk()
    assert kinds(disk) == ([] if way is gone else ["card"])
    assert disk.recovered.table(CURSORS) == {("weather", "slow"): 1}
    store.write([append(2, stream="weather")])
    card = decode_card(1, values(disk)[key(codec.CARD, 1)])
    assert (card.name, card.values) == ("weather", {(CURSORS, ("weather", "slow")): None})


def test_a_card_follows_what_is_set_of_its_stream(disk):
    def card():
        places = [place for place in values(disk) if place[0] == codec.CARD]
        (place,) = places
        identifier = codec.split_key(place)[1]
        found = decode_card(identifier, values(disk)[place])
        disk()
        return found.values

    disk().write(
        [
            append(1),
            PutValue(CURSORS, ("s", "a"), 1),
            PutValue(CURSORS, ("s", "b"), 1),
            PutValue(FEEDS, ("s", "f"), b"x"),
        ]
    )
    a, b, c = [(CURSORS, ("s", name)) for name in "abc"]
    assert card() == {a: None, b: None, (FEEDS, ("s", "f")): b"x"}
    disk.store.write(
        [
            PutValue(RETENTIONS, ("s",), (1, 2, 3.0)),
            DeleteValue(CURSORS, ("s", "a")),
            DeleteValue(FEEDS, ("s", "f")),
        ]
    )
    assert card() == {b: None, (RETENTIONS, ("s",)): (1, 2, 3.0)}
    disk.store.write([DeleteStream("s"), PutValue(CURSORS, ("s", "c"), 1)])
    assert card() == {c: None}


# --- the meta record


@WAYS
@pytest.mark.parametrize("place", [key(codec.META), META_TWIN], ids=["meta", "twin"])
def test_a_damaged_meta_record_is_made_anew_from_its_twin(disk, way, place):
    disk().write([put(1)])
    broker_id = disk.recovered.broker_id
    damage(disk, place, way)
    store = disk()
    assert disk.recovered.broker_id == broker_id
    store.write([put(2)])
    found = values(disk)
    assert found[key(codec.META)] == found[META_TWIN]
    disk()
    assert disk.recovered.broker_id == broker_id


# --- blocks of the log


@pytest.fixture
def three(disk):
    """Three blocks; the second has two messages, a cursor, a session, a feed and a retention."""
    disk().write(
        [append(1), put(1), PutValue(SESSIONS, (b"old", NUMBERS), b"1"), PutValue(CURSORS, ("s", "kept"), 1)]
    )
    second = [
        put(2),
        put(3),
        PutValue(CURSORS, ("s", "slow"), 1),
        PutValue(SESSIONS, (b"new", NUMBERS), b"1"),
    ]
    settings = [PutValue(FEEDS, ("s", "f"), b"x"), PutValue(RETENTIONS, ("s",), (0, 5, 0.0))]
    disk.store.write([*second, *settings])
    disk.store.write([put(4), delete((3, 3)), PutValue(SESSIONS, (b"newest", NUMBERS), b"1")])
    return disk


@pytest.mark.parametrize("way", [flip, zero, cut], ids=lambda way: way.__name__)
def test_what_a_damaged_block_had_is_reported(three, way):
    damage(three, key(codec.BLOCK, 0, 2), way)
    three()
    recovered = three.recovered
    assert ("block", "", 2, 2) in [defect[:4] for defect in recovered.defects]
    queue = recovered.queues[NAME]
    readable = [m.sequence for m in queue.messages if m.sequence not in queue.damaged]
    assert readable == [1, 4]
    assert set(queue.damaged) <= {2}
    # The cursor is known to be lost, and what is set of streams is still known.
    assert recovered.table(CURSORS) == {("s", "kept"): 1}
    assert recovered.lost == {(CURSORS, ("s", "slow"))}
    assert recovered.table(FEEDS) == {("s", "f"): b"x"}
    assert recovered.table(RETENTIONS) == {("s",): (0, 5, 0.0)}
    # Numbers and positions that were stored after the first block may be lost.
    assert recovered.doubtful == {(SESSIONS, (b"old", NUMBERS)), (CURSORS, ("s", "kept"))}
    assert set(recovered.table(SESSIONS)) == {(b"old", NUMBERS), (b"newest", NUMBERS)}


def test_messages_that_can_be_told_apart_are_known_to_be_damaged(three):
    damage(three, key(codec.BLOCK, 0, 2), lambda value: value.replace(b"record", b"rubbed", 1))
    three()
    queue = three.recovered.queues[NAME]
    assert queue.damaged == (2,)
    assert [(m.sequence, m.sender, m.record) for m in queue.messages if m.sequence == 2] == [
        (2, "alice", b"")
    ]


def test_what_a_damaged_block_may_have_marked_as_delivered_counts_as_delivered(three):
    """Or it would be delivered again as if for the first time."""
    store = three.store
    store.write([SetAttempts(*NAME, 1, 0, 0), SetAttempts(*NAME, 2, 3, 0)])
    store.write([MarkDelivered(*NAME, 4), SetAttempts(*NAME, 1, 1, 0)])
    store.write([put(5)])
    damage(three, key(codec.BLOCK, 0, 5), zero)
    three()
    queue = three.recovered.queues[NAME]
    assert (queue.delivered, queue.attempts) == (4, {2: 3})
    three.store.write([SetAttempts(*NAME, 1, 0, 0)])
    three()
    assert three.recovered.queues[NAME].attempts == {1: 0, 2: 3}


def test_a_lost_cursor_stays_lost_until_it_is_set_or_deleted(three):
    damage(three, key(codec.BLOCK, 0, 2), zero)
    three().write([put(9)])
    three()
    assert three.recovered.lost == {(CURSORS, ("s", "slow"))}
    three.store.write([PutValue(CURSORS, ("s", "slow"), 1)])
    three()
    assert (three.recovered.lost, three.recovered.table(CURSORS)["s", "slow"]) == (set(), 1)


def test_what_was_deleted_in_a_damaged_block_stays_deleted(disk):
    disk().write(
        [
            append(1),
            PutValue(CURSORS, ("s", "a"), 1),
            PutValue(FEEDS, ("s", "f"), b"x"),
            PutValue(RETENTIONS, ("s",), (0, 5, 0.0)),
        ]
    )
    disk.store.write([DeleteStream("s"), PutValue(CURSORS, ("s", "b"), 1)])
    damage(disk, key(codec.BLOCK, 0, 2), zero)
    disk()
    recovered = disk.recovered
    assert recovered.values == {}
    assert recovered.lost == {(CURSORS, ("s", "b"))}


def test_a_block_damaged_while_it_is_in_use_reports_what_is_to_be_stored_again(three):
    store = three.store
    with store._store.environment.begin(write=True) as transaction:
        transaction.put(key(codec.BLOCK, 0, 2), b"rubbish")
    assert store.fetch(*NAME, [1, 2, 4]) == {1: b"record", 4: b"record"}
    (defect,) = store.pop_defects()
    assert defect[:4] == ("block", "", 2, 2)
    values = [(SESSIONS, (b"new", NUMBERS)), (CURSORS, ("s", "slow"))]
    assert (defect.stranded.messages, sorted(defect.stranded.values)) == ({NAME: [2]}, sorted(values))
    assert defect.stranded.identities == {}
    assert store.fetch(*NAME, [2]) == {}
    assert store.pop_defects() == []
    store.write([put(2), PutValue(SESSIONS, (b"new", NUMBERS), b"2"), PutValue(CURSORS, ("s", "slow"), 1)])
    three()
    assert three.recovered.queues[NAME].damaged == ()
    assert [message.sequence for message in three.recovered.queues[NAME].messages] == [1, 2, 4]
    assert three.recovered.lost == set()


def wrong_crc(store):
    """The second block cannot be read, though all of it is there, while the store is in use."""
    with store._store.environment.begin(write=True) as transaction:
        value = bytes(transaction.get(key(codec.BLOCK, 0, 2)))
        broken = value[: BLOCK_HEADER_SIZE - 4] + bytes(4) + value[BLOCK_HEADER_SIZE:]
        transaction.put(key(codec.BLOCK, 0, 2), broken)
    assert store.fetch(*NAME, [2]) == {}
    # So it is the oldest of those that are there.
    store.write(
        [delete((1, 1)), PutValue(SESSIONS, (b"old", NUMBERS), b"2"), PutValue(CURSORS, ("s", "kept"), 2)]
    )


def test_what_a_damaged_block_held_is_reported_by_a_start_before_it_was_stored_again(three):
    """The broker dies before it has stored it again, and then before it has made dead letters of it."""
    wrong_crc(three.store)
    for _ in range(2):
        three.store.write([PutValue(SESSIONS, (b"other", NUMBERS), b"1")])
        three()
        assert three.recovered.queues[NAME].damaged == (2,)
    for _ in range(3):
        three.store.write([delete((2, 2))])
    assert three.store.status().log_unreadable == 0


@pytest.mark.parametrize("part", [[put(2)], [PutValue(SESSIONS, (b"new", NUMBERS), b"2")], []])
def test_a_damaged_block_is_put_aside_when_all_of_it_is_stored_again(three, part):
    wrong_crc(three.store)
    three.store.write(part)
    three.store.write([])
    assert three.store.status().log_unreadable == 1
    three.store.write([put(2), PutValue(SESSIONS, (b"new", NUMBERS), b"2")])
    three.store.write([])
    assert three.store.status().log_unreadable == 0
    three()
    assert [message.sequence for message in three.recovered.queues[NAME].messages] == [2, 4]
    assert three.recovered.queues[NAME].damaged == ()


def test_a_damaged_block_is_put_aside_when_its_identities_are_stored_again(disk):
    one = PutIdentity(*NAME, "i", 1, 1 << 62)
    disk().write([put(7)])
    disk.store.write([put(2), one])
    disk.store.write([put(8)])
    disk.store.write([delete((7, 7))])
    with disk.store._store.environment.begin(write=True) as transaction:
        transaction.put(key(codec.BLOCK, 0, 2), b"rubbish")
    assert disk.store.fetch(*NAME, [2]) == {}
    (defect,) = disk.store.pop_defects()
    assert defect.stranded.identities == {NAME: ["i"]}
    disk.store.write([put(2)])
    disk.store.write([])
    assert disk.store.status().log_unreadable == 1
    disk.store.write([one])
    disk.store.write([])
    assert disk.store.status().log_unreadable == 0
    disk()
    assert disk.recovered.queues[NAME].identities == {"i": (1, 1 << 62)}


def test_a_damaged_block_that_nobody_stores_again_is_not_awaited_for_ever(three):
    wrong_crc(three.store)
    log = three.store._store.log
    (block,) = [block for block in log.blocks if block.number == 2]
    while log._asked[2] < AWAITED_WRITES - 2:
        assert not log.is_settled(block)
    three.store.write([])
    assert three.store.status().log_unreadable == 1
    three.store.write([])
    assert three.store.status().log_unreadable == 0


# --- salvage


def test_all_is_salvaged_of_a_block_whose_crc_alone_is_wrong():
    entries = [put(1, count=3), delete((2, 2)), PutValue(CURSORS, ("s", "c"), 1)]
    value = encode_block(entries, 1)
    broken = value[: BLOCK_HEADER_SIZE - 4] + bytes(4) + value[BLOCK_HEADER_SIZE:]
    assert salvage(broken) == decode_block(value)
    assert [message.first for message in undeleted(salvage(broken))] == [1, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        PutValue(CURSORS, ("s",), 1),
        PutValue(CURSORS, (1, "c"), 1),
        PutValue(CURSORS, ("s", "c", "d"), 1),
        put(-1),
        put(0),
        put(2**63),
        put(2**63 - 2, count=3),
    ],
)
def test_what_no_broker_has_written_is_not_salvaged_and_no_end_of_a_start(disk, wrong):
    disk().write([put(1), PutValue(CURSORS, ("s", "kept"), 1)])
    good = [PutValue(CURSORS, ("s", "slow"), 1), put(2)]
    broken = bytearray(encode_block([wrong, *good], 1))
    broken[BLOCK_HEADER_SIZE - 1] ^= 1
    assert salvage(broken) == good
    damage(disk, key(codec.BLOCK, 0, 1), lambda value: broken)
    disk()
    assert disk.recovered.lost == {(CURSORS, ("s", "slow"))}
    assert disk.recovered.queues[NAME].damaged == (2,)


def test_salvaging_any_bytes_gives_entries_and_raises_nothing():
    whole = encode_block([put(n, count=3) for n in range(1, 40, 3)], 1)
    for seed in range(50):
        chance, value = Random(seed), bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        for found in (salvage(value), salvage(value[: chance.randrange(len(value))])):
            undeleted(found)


# --- chunks


def test_a_damaged_chunk_is_reported_once_to_the_operator_and_to_each_reader(disk):
    disk().write([append(1), append(2), append(3)])
    damage(disk, key(codec.CHUNK, 1, 2), flip)
    store = disk()
    for _ in range(2):
        assert [getattr(item, "reason", "") for item in store.read("s", 1, bytes_max=MIB).found] == [
            "",
            "corrupt",
            "",
        ]
    assert [defect[:4] for defect in store.pop_defects()] == [("chunk", "s", 2, 2)]
