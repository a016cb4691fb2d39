"""Records that a store keeps of a queue besides messages, and fetching; on the disk and in memory alike."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from stores import MIB, append, delete, fill, put

from malamute.errors import StorageFull, StoreError
from malamute.journal import fetch as fetch_module
from malamute.journal import format as codec
from malamute.journal.disk_writer import BLOCK_BYTES_MAX
from malamute.journal.log import BLOCK_ENTRIES_MAX
from malamute.store.operations import (
    Damage,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetIdentities,
    MarkDelivered,
    PutIdentity,
    PutValue,
    QueueState,
    SetAttempts,
)
from malamute.store.tables import FEEDS, NUMBERS, SESSIONS


def attempts(sequence, count, *, due=0, queue="q", kind="mailbox"):
    return SetAttempts(kind, queue, sequence, count, due)


def identity(name, sequence=1, until=100, *, queue="q", kind="mailbox"):
    return PutIdentity(kind, queue, name, sequence, until)


def forget(time, *, queue="q", kind="mailbox"):
    return ForgetIdentities(kind, queue, time)


def churn(store, transactions=60):
    """Write and delete until everything that was there before has been compacted away or moved."""
    before = store.status().log_blocks
    for n in range(1, transactions):
        store.write([put(n, queue="churn", record=bytes(30_000)), delete((n, n), queue="churn")])
    assert store.status().log_blocks < before + transactions


def crumble(store):
    """The same, with transactions so small that each compacts one block and no more."""
    waste = [put(n, queue="churn", record=bytes(15_000)) for n in range(1, 20)]
    store.write([*waste, delete((1, 19), queue="churn")])
    for n in range(20):
        store.write([PutValue(SESSIONS, (b"crumble", NUMBERS), b"%d" % n)])


def state(make, kind="mailbox", queue="q"):
    make()
    return make.recovered.queues[kind, queue]


# --- attempts


def test_attempts_of_a_message_are_recovered_as_long_as_it_is_there(make):
    store = make()
    store.write([put(n) for n in (1, 2, 3)] + [attempts(1, 1), attempts(2, 1), attempts(9, 1)])
    store.write([attempts(2, 7), attempts(1, 2, queue="none"), delete((1, 1))])
    assert state(make).attempts == {2: 7}
    make.store.write([delete((2, 2)), put(2), put(1)])
    assert state(make).attempts == {}


def test_when_a_message_is_redelivered_is_reported_with_its_attempts(make):
    store = make()
    store.write([put(n) for n in (1, 2, 3)] + [attempts(1, 1, due=100), attempts(2, 1, due=200)])
    store.write([attempts(2, 2), attempts(3, 1, due=300), delete((3, 3))])
    assert (state(make).attempts, state(make).due_ns) == ({1: 1, 2: 2}, {1: 100})


def test_attempts_go_with_their_queue(make):
    store = make()
    store.write([put(1), attempts(1, 3), DeleteQueue("mailbox", "q"), put(1)])
    assert state(make).attempts == {}


@pytest.mark.parametrize("compact", [churn, crumble])
def test_attempts_survive_compaction_of_the_message_and_of_themselves(make, compact):
    store = make()
    store.write([put(n) for n in range(1, 6)])
    store.write([put(6), attempts(6, 1), attempts(6, 2)])
    store.write([attempts(n, n, due=10 * n) for n in (1, 2, 3)])
    compact(store)
    store.write([attempts(2, 9), delete((3, 3))])
    expected = {1: 1, 2: 9, 6: 2}, {1: 10}
    assert (state(make).attempts, state(make).due_ns) == expected
    compact(make.store)
    assert (state(make).attempts, state(make).due_ns) == expected
    assert [m.sequence for m in make.recovered.queues["mailbox", "q"].messages] == [1, 2, 4, 5, 6]


def test_many_attempts_of_small_messages_take_no_room_for_ever(make):
    store = make()
    store.write([put(n, record=b"") for n in range(1, 2001)])
    for count in range(1, 30):
        store.write([attempts(n, count) for n in range(1, 2001)])
    assert store.status().log_bytes < MIB
    assert state(make).attempts == dict.fromkeys(range(1, 2001), 29)


# --- what may have been delivered


def test_delivered_is_known_when_what_was_delivered_has_left(make):
    """The record that made the queue leaves with its block; reports in between must not."""
    store = make()
    store.write([put(1)])
    store.write([MarkDelivered("mailbox", "q", 1)])
    store.write([put(2)])
    store.write([delete((1, 1))])
    store.write([put(1, queue="other")])
    assert state(make)[:2] == (3, 1)
    crumble(make.store)
    assert state(make)[:2] == (3, 1)


def test_what_names_an_unknown_queue_has_no_effect(make):
    store = make()
    store.write([MarkDelivered("mailbox", "q", 5), attempts(1, 1), forget(9), delete((1, 1))])
    make()
    assert make.recovered.queues == {}


# --- identities


def test_identities_are_kept_until_forgotten(make):
    store = make()
    store.write([put(1), identity("a", 1, 10), identity("b", 2, 11), identity("c", 3, 12)])
    store.write([delete((1, 1)), forget(10), forget(9, queue="none"), forget(99, kind="service")])
    assert state(make).identities == {"b": (2, 11), "c": (3, 12)}
    make.store.write([identity("b", 7, 20), identity("d", 8, 5), forget(12)])
    assert state(make).identities == {"b": (7, 20)}
    make.store.write([identity("b", 8, 13)])
    make.store.write([forget(13)])
    assert state(make) == QueueState(2, 0, [])


def test_an_identity_makes_its_queue_and_goes_with_it(make):
    store = make()
    store.write([identity("a"), identity("b", queue="gone"), DeleteQueue("mailbox", "gone")])
    make()
    assert make.recovered.queues == {("mailbox", "q"): QueueState(1, 0, [], {}, {"a": (1, 100)})}


def test_identities_survive_compaction_and_are_not_restored_once_forgotten(make):
    store = make()
    store.write([put(4), identity("stays", 4, 50), identity("goes", 4, 40)])
    store.write([delete((4, 4)), forget(40)])
    churn(store)
    assert state(make) == QueueState(5, 0, [], {}, {"stays": (4, 50)})
    make.store.write([forget(50)])
    churn(make.store)
    assert state(make) == QueueState(5, 0, [])


def test_identities_that_come_and_go_take_no_room(make):
    store = make()
    for n in range(300):
        store.write([identity(f"id {n} {i}", n, n) for i in range(50)] + [forget(n - 3)])
    assert store.status().log_bytes < MIB // 2
    assert len(state(make).identities) == 150


# --- feeds


def test_the_newest_value_of_a_feed_counts(make):
    store = make()
    store.write(
        [
            PutValue(FEEDS, ("s", "f"), b"1"),
            PutValue(FEEDS, ("s", "g"), b"1"),
            PutValue(FEEDS, ("t", "f"), b"1"),
        ]
    )
    store.write(
        [PutValue(FEEDS, ("s", "f"), b"2"), DeleteValue(FEEDS, ("s", "g")), DeleteValue(FEEDS, ("none", "f"))]
    )
    make()
    expected = {("s", "f"): b"2", ("t", "f"): b"1"}
    assert make.recovered.table(FEEDS) == expected
    churn(make.store)
    make()
    assert make.recovered.table(FEEDS) == expected


def test_feeds_go_with_their_stream_and_stay_without_their_queue(make):
    store = make()
    store.write(
        [
            append(1),
            PutValue(FEEDS, ("s", "f"), b"1"),
            PutValue(FEEDS, ("t", "f"), b"1"),
            put(1, kind="service", queue="f"),
        ]
    )
    store.write([DeleteStream("s"), DeleteQueue("service", "f")])
    make()
    assert make.recovered.table(FEEDS) == {("t", "f"): b"1"}


# --- moving a message


def move(sequence, target, **reported):
    """From the mailbox to its dead letters."""
    return [delete((sequence, sequence)), put(target, kind="mailbox-dead", properties=reported or None)]


def test_a_message_moves_to_the_dead_letters_and_back(make):
    store = make()
    store.write([put(n) for n in (1, 2, 3)] + [attempts(2, 5)])
    store.write(move(2, 1, reason="why"))
    churn(store)
    assert [m.sequence for m in state(make).messages] == [1, 3]
    (dead,) = state(make, "mailbox-dead").messages
    assert (dead.sequence, dead.record, dead.properties) == (1, b"record", {"reason": "why"})
    make.store.write([delete((1, 1), kind="mailbox-dead"), put(4)])
    churn(make.store)
    assert [m.sequence for m in state(make).messages] == [1, 3, 4]
    assert state(make, "mailbox-dead") == QueueState(2, 0, [])


def test_a_move_that_does_not_fit_moves_nothing(make):
    store = make(size=MIB, streams_budget=100_000)
    count = fill(store, lambda n: [put(n, record=bytes(9000))])
    with pytest.raises(StorageFull):
        store.write([delete((1, 1)), put(1, kind="mailbox-dead", record=bytes(2 * MIB))])
    assert store.status().queues == {("mailbox", "q"): (count, 9000 * count)}
    make(size=MIB, streams_budget=100_000)
    assert len(make.recovered.queues["mailbox", "q"].messages) == count


@contextmanager
def failing_commit(real):
    """A write transaction that fails when all of it is written, and before it is committed."""
    with real(0, 0) as transaction:
        yield transaction
        raise StoreError("fault")


def test_a_move_is_all_or_nothing(disk, monkeypatch):
    store = disk()
    store.write([put(1), put(2)])
    with monkeypatch.context() as patch:
        patch.setattr(
            store._writer, "_writing", lambda added, lsn, real=store._writer._writing: failing_commit(real)
        )
        with pytest.raises(StoreError, match="fault"):
            store.write(move(1, 1))
    assert store.status().queues == {("mailbox", "q"): (2, 12)}
    assert sorted(store.fetch("mailbox", "q", (1, 2))) == [1, 2]
    store = disk()
    assert [m.sequence for m in disk.recovered.queues["mailbox", "q"].messages] == [1, 2]
    store.write(move(1, 1))
    disk()
    found = {name: [m.sequence for m in q.messages] for name, q in disk.recovered.queues.items()}
    assert found == {("mailbox", "q"): [2], ("mailbox-dead", "q"): [1]}


# --- fetching


def test_records_are_fetched_as_they_were_written(make):
    store = make()
    operations = [put(n, record=b"%d" % n, properties={"n": n, "deep": [1, {"a": None}]}) for n in (1, 2, 3)]
    store.write([*operations, put(1, kind="service"), delete((2, 2))])
    expected = {1: b"1", 3: b"3"}
    assert store.fetch("mailbox", "q", (3, 2, 1, 9)) == expected
    assert store.fetch("mailbox", "q", (1, 1, 3)) == {1: expected[1], 3: expected[3]}
    assert store.fetch("mailbox", "q", ()) == store.fetch("mailbox", "none", (1,)) == {}
    store = make()
    assert store.fetch("mailbox", "q", (1, 2, 3)) == expected
    store.write([put(3, record=b"new"), DeleteQueue("service", "q")])
    assert store.fetch("mailbox", "q", (3,)) == {3: b"new"}
    assert store.fetch("service", "q", (1,)) == {}


def test_what_was_compacted_is_fetched(make):
    store = make()
    store.write([put(n, record=b"%d" % n) for n in range(1, 100)])
    first = store.fetch("mailbox", "q", (1, 99))
    churn(store)
    assert store.fetch("mailbox", "q", (1, 99)) == first
    assert len(store.fetch("mailbox", "q", range(1, 200))) == 99


def test_neighbours_are_fetched_with_one_look_at_each_block(disk, monkeypatch):
    store = disk(size=64 * MIB)
    store.write([put(n, record=bytes(1000)) for n in range(1, 1001)])
    blocks = store.status().log_blocks
    decoded = []
    real = fetch_module.decode_records
    monkeypatch.setattr(fetch_module, "decode_records", lambda value: decoded.append(1) or real(value))
    for start in range(1, 1001, 10):
        assert len(store.fetch("mailbox", "q", range(start, start + 10))) == 10
    assert len(decoded) == blocks > 2
    assert len(store.fetch("mailbox", "q", range(1000, 0, -1))) == 1000
    assert len(decoded) <= 2 * blocks


def damage(store, number):
    """Break a block while the store is in use."""
    place = codec.key(codec.BLOCK, 0, number)
    with store._writer._writing(0, 0) as transaction:
        value = bytearray(transaction.get(place))
        value[20] ^= 1
        transaction.put(place, bytes(value))


def test_a_damaged_block_is_left_out_of_a_fetch_and_reported(disk):
    store = disk()
    for n in (1, 2, 3):
        store.write([put(n)])
    damage(store, 2)
    assert sorted(store.fetch("mailbox", "q", (1, 2, 3))) == [1, 3]
    assert store.status().log_unreadable == 1
    assert [step.damages for step in store.verify()] == [[Damage(2, 2, "corrupt")]]
    store.write([delete((1, 1)), attempts(2, 1)])
    store.write([PutValue(SESSIONS, (b"s", NUMBERS), b"")])
    assert store.status().log_unreadable == 1  # until it is known what became of its message
    store.write([delete((2, 2))])
    store.write([PutValue(SESSIONS, (b"s", NUMBERS), b"")])
    assert store.status().log_unreadable == 0
    assert sorted(store.fetch("mailbox", "q", (1, 2, 3))) == [3]
    assert store.status().log_unreadable == 0
    churn(store)
    disk()
    assert disk.recovered.queues["mailbox", "q"].next == 4
    assert [m.sequence for m in disk.recovered.queues["mailbox", "q"].messages] == [3]


def test_what_a_damaged_block_said_of_queues_is_written_again(disk):
    """The block is put aside, and with it which numbers were used."""
    store = disk()
    store.write([put(7), MarkDelivered("mailbox", "q", 7)])
    damage(store, 1)
    assert store.fetch("mailbox", "q", (7,)) == {}
    store.write([delete((7, 7))])
    store.write([])
    assert store.status().log_unreadable == 0
    assert [step.damages for step in store.verify()][-1] == [Damage(1, 1, "quarantined")]
    disk()
    assert disk.recovered.queues == {("mailbox", "q"): QueueState(8, 7, [])}


def test_what_moves_while_it_is_fetched_is_found(disk, monkeypatch):
    """The reader knows the block; then it is compacted; then the reader looks for it."""
    store = disk()
    store.write([put(n) for n in (1, 2, 3)])
    reading, blocks = store._store.reading, store._store.fetcher.blocks

    def stale(*asked):
        monkeypatch.undo()
        places = blocks(*asked)
        churn(store)
        return places

    def late():
        # As if the log in memory had changed after the look at it, and before the transaction.
        places = stale("mailbox", "q", (1, 2, 3))
        monkeypatch.setattr(store._store.fetcher, "blocks", lambda *asked: monkeypatch.undo() or places)
        return reading()

    monkeypatch.setattr(store._store, "reading", late)
    assert sorted(store.fetch("mailbox", "q", (1, 2, 3))) == [1, 2, 3]
    assert store.status().log_unreadable == 0


def test_what_moves_is_never_out_of_sight(disk, monkeypatch):
    """The place of a message changes in one step; a reader that looks at any moment finds one."""
    store = disk()
    store.write([put(n) for n in (1, 2, 3)])
    log, seen = store._store.log, []
    let_go = log._release_messages

    def looking(queue, first, last, places):
        if queue is log.queues["mailbox", "q"]:
            moved = range(first, last + 1)
            seen.extend(bool(store._store.fetcher.blocks("mailbox", "q", (sequence,))) for sequence in moved)
        let_go(queue, first, last, places)

    monkeypatch.setattr(log, "_release_messages", looking)
    churn(store)
    assert len(seen) >= 3
    assert all(seen)


def test_what_is_left_of_a_batch_moves_with_what_was_written_of_it(disk):
    store = disk()
    store.write([put(1, count=9)])
    store.write([attempts(5, 2), attempts(7, 3), delete((2, 3), (7, 7))])
    churn(store)
    store = disk()
    found = disk.recovered.queues["mailbox", "q"]
    left = [1, 4, 5, 6, 8, 9]
    assert [message.sequence for message in found.messages] == left
    assert (found.next, found.attempts) == (10, {5: 2})
    assert sorted(store.fetch("mailbox", "q", range(1, 10))) == left


@pytest.mark.parametrize(
    ("count", "size", "blocks"),
    [
        (BLOCK_ENTRIES_MAX, 1, 1),
        (BLOCK_ENTRIES_MAX + 1, 1, 2),
        (1, 2 * BLOCK_BYTES_MAX, 1),
        (4, BLOCK_BYTES_MAX // 4, 1),
        (4, BLOCK_BYTES_MAX // 4 + 1, 2),
    ],
)
def test_a_batch_goes_into_as_many_blocks_as_it_takes(disk, count, size, blocks):
    store = disk(size=16 * MIB)
    before = store.status().log_blocks
    store.write([put(1, count=count, record=bytes(size))])
    assert store.status().log_blocks - before == blocks
    assert len(store.fetch("mailbox", "q", range(1, count + 1))) == count


@pytest.mark.parametrize(("size", "blocks"), [(BLOCK_BYTES_MAX // 4, 1), (BLOCK_BYTES_MAX // 4 + 1, 2)])
def test_values_go_into_as_many_blocks_as_they_take(disk, size, blocks):
    store = disk(size=16 * MIB)
    before = store.status().log_blocks
    store.write([PutValue(SESSIONS, (b"s", n), bytes(size)) for n in range(4)])
    assert store.status().log_blocks - before == blocks


def test_fetching_beside_a_writer_that_compacts(disk):
    store = disk()
    kept = list(range(1, 400, 4))
    store.write([put(n, record=b"%d" % n * 100) for n in range(1, 401)])
    done = threading.Event()

    def fetch_on():
        rounds = 0
        while not done.is_set():
            found = store.fetch("mailbox", "q", kept)
            assert found == {n: b"%d" % n * 100 for n in kept}
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(fetch_on) for _ in range(2)]
        try:
            for n in kept:
                store.write([delete((n + 1, n + 3)), put(n, queue="churn", record=bytes(30_000))])
                store.write([delete((n, n), queue="churn")])
        finally:
            done.set()
        assert all(future.result() > 0 for future in futures)
    assert store.status().log_unreadable == 0


# --- records that stay on the disk


@pytest.mark.parametrize("over", [0, 1])
def test_records_at_the_bound_and_one_past_it(make, over):
    make().write([put(n, record=bytes(100)) for n in range(1, 11)] + [put(11, record=b"")])
    store = make(records_bytes=1000 - over)
    found = make.recovered.queues["mailbox", "q"]
    assert found.paged_out == ({10: 100} if over else {})
    assert [len(m.record) for m in found.messages] == [100] * (10 - over) + [0] * (1 + over)
    assert store.fetch("mailbox", "q", tuple(found.paged_out)) == ({10: bytes(100)} if over else {})
    assert store.status().queues["mailbox", "q"] == (11, 1000)


def test_paged_out_messages_are_whole_but_for_their_record(make):
    store = make()
    kept = put(1, queue="r", properties={"key": "k"})
    (message,) = kept.messages()
    store.write([kept, *(put(n, record=bytes(5000)) for n in range(1, 51)), attempts(7, 2), delete((1, 5))])
    make(records_bytes=0)
    queues = make.recovered.queues
    assert queues["mailbox", "r"].messages == [message._replace(record=b"")]
    assert queues["mailbox", "r"].paged_out == {1: 6}
    assert queues["mailbox", "q"].paged_out == dict.fromkeys(range(6, 51), 5000)
    assert queues["mailbox", "q"].attempts == {7: 2}
    assert make.store.fetch("mailbox", "r", (1,)) == {1: message.record}


def test_what_was_deleted_takes_no_room_from_what_is_there(make):
    store = make()
    for n in range(1, 101):
        store.write([put(n, record=bytes(5000)), delete((n - 1, n - 1))])
    store.write(
        [put(1, queue="gone", record=bytes(5000)), DeleteQueue("mailbox", "gone"), put(100, record=bytes(9))]
    )
    make(records_bytes=10_000)
    assert make.recovered.queues["mailbox", "q"].paged_out == {}


def test_a_closed_store_fetches_nothing(make):
    store = make()
    store.write([put(1)])
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.fetch("mailbox", "q", (1,))


def test_the_room_for_blocks_in_memory_is_bounded(disk):
    store = disk(size=16 * MIB)
    store.write([put(n, record=bytes(BLOCK_BYTES_MAX // 2)) for n in range(1, 21)])
    assert store.status().log_blocks > fetch_module.CACHED_BLOCKS
    for n in range(1, 21):
        assert len(store.fetch("mailbox", "q", (n,))) == 1
        held = store._store.fetcher._cache.values()
        assert sum(len(r) for block in held for found in block.values() for r in found.values()) <= MIB
