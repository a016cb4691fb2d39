"""Streams: numbers, live and replay, gaps, and what a crash leaves."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import NamedTuple

import pytest
from core_bench import Bench, bench_with_stream, chunks, gaps, peer_id, publish, sequences, subscribe
from hypothesis import given
from hypothesis.strategies import lists, sampled_from
from opcodes import instructions

from malamute.core.broker import Core
from malamute.core.stream.stream import RESERVE
from malamute.errors import StoreError
from malamute.protocol.messages import Cancel, Credit, Deliver, Error, Gap, Hello, Ok, Stored, Switch
from malamute.store.operations import Damage, ReadResult
from malamute.store.policies import StreamRetention


@pytest.fixture
def bench():
    return bench_with_stream()


def test_a_sequence_is_given_once_over_iterations_and_batches(bench):
    for number, count in enumerate((1, 5, 2), 1):
        bench.tell("alice", publish(*[b"x"] * count, number=number))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 2]]), Stored([[2, 2, 3]]), Stored([[3, 3, 8]])]
    assert [sequence for sequence, _ in chunks(bench.store)] == list(range(1, 10))


def test_wp36_live_delivery_does_not_wait_for_the_disk(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1", number=1))
    assert bench.bodies("bob") == [b"1"]
    assert bench.sent("alice") == []
    bench.commit()
    assert bench.sent("alice") == [Stored([[1, 1, 2]])]


def test_a_new_stream_is_held_until_its_numbers_are_reserved():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1"))
    assert bench.bodies("bob") == []
    bench.commit()
    assert bench.bodies("bob") == [b"1"]


def test_wp32_no_sequence_is_used_twice_after_a_crash(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1", b"2"))
    delivered = sequences(bench.sent("bob"))
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(start="seq:4"))
    bench.tell("alice", publish(b"3"))
    bench.settle()
    sent = bench.sent("bob")
    assert delivered == [2, 3]
    assert gaps(sent) == [Gap(1, 4, 1 + RESERVE, "restart")]
    assert sequences(sent) == [2 + RESERVE]


@given(
    steps=lists(
        sampled_from(["publish", "publish three", "commit", "refuse", "refuse", "crash"]),
        min_size=5,
        max_size=30,
    )
)
def test_wp32_no_sequence_is_used_twice_where_the_disk_fails_first_and_then_the_power(steps):
    with pytest.MonkeyPatch.context() as patch:
        # Chunks past what is reserved are then the rule.
        patch.setattr("malamute.core.stream.stream.RESERVE", 3)
        bench = bench_with_stream()
        bench.tell("bob", subscribe())
        bodies: dict[int, bytes] = {}
        for number, step in enumerate([*steps, "crash", "publish", "commit"]):
            if step.startswith("publish"):
                bench.tell("alice", publish(*[b"%d" % number] * (3 if "three" in step else 1)))
            elif step == "crash":
                bench.crash()
                bench.open("alice", "bob")
                bench.settle()
                bench.tell("bob", subscribe())
            elif bench.appends:
                bench.commit() if step == "commit" else bench.fail(StoreError("broken"))
            for item in bench.got("bob"):
                assert bodies.setdefault(item.sequence, item.body) == item.body
        assert bodies


def test_wp32_what_was_refused_before_it_had_its_sequence_is_had_by_nobody(bench):
    bench.tell("bob", subscribe(stream="new"))
    bench.tell("alice", publish(b"1", stream="new", number=1))
    bench.fail(StoreError("broken"))
    assert bench.bodies("bob") == []
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(stream="new"))
    bench.tell("alice", publish(b"2", stream="new"))
    bench.settle()
    assert [(item.sequence, item.body) for item in bench.got("bob")] == [(1, b"2")]


def test_zn20_each_of_ten_equal_readers_is_the_first_of_them_in_a_tenth_of_all_publishes():
    """Each is as often the last, too: over 3,000 publishes within 1.5 % of all."""
    bench = Bench()
    bench.core = Core(bench.now, bench.settings._replace(seed=1))
    readers = [f"reader{number}" for number in range(10)]
    bench.open("alice", *readers)
    for reader in readers:
        bench.tell(reader, subscribe())
    bench.tell("alice", publish(b"0"))
    bench.settle()
    bench.log.clear()
    peers = {peer_id(reader): reader for reader in readers}
    firsts, lasts = Counter(), Counter()
    for _ in range(3_000):
        bench.core.receive(peer_id("alice"), publish(b"x"), bench.now)
        ready = bench.core.ready()
        served = [peers[peer] for peer, _ in ready.sends if peer in peers]
        assert len(served) == 10
        firsts[served[0]] += 1
        lasts[served[-1]] += 1
        for append in ready.appends:
            bench.core.stored(append.token, bench.now)
    for counted in (firsts, lasts):
        assert {*counted} == {*readers}
        assert all(255 <= count <= 345 for count in counted.values())


def test_wp25_a_batch_is_cut_at_the_credit_and_continues_from_there(bench):
    bench.tell("bob", subscribe(credit=2))
    bench.tell("alice", publish(b"1", b"2", b"3", b"4"))
    assert bench.bodies("bob") == [b"1", b"2"]
    bench.tell("bob", Credit(1, 1))
    assert bench.bodies("bob") == [b"3"]
    bench.settle()
    bench.tell("bob", Credit(1, 1))
    bench.settle()
    assert bench.bodies("bob") == [b"4"]


def test_wp24_no_credit_moves_to_replay_and_credit_moves_back_to_live(bench):
    bench.tell("bob", subscribe(credit=1))
    bench.tell("alice", publish(b"1", b"2"))
    assert bench.sent("bob")[-1] == Switch(1, "replay", 3)
    bench.settle()
    bench.tell("bob", Credit(1, 5))
    bench.settle()
    *_, delivery, switch = bench.sent("bob")
    assert sequences([delivery]) == [3]
    assert switch == Switch(1, "live", 4)


def test_wp3_a_subscriber_without_credit_costs_others_nothing(bench):
    bench.open("carol")
    bench.tell("bob", subscribe(credit=0))
    bench.tell("carol", subscribe())
    bench.sent("bob")
    for _ in range(3):
        bench.tell("alice", publish(b"x"))
    assert bench.bodies("carol") == [b"x"] * 3
    assert bench.sent("bob") == [Switch(1, "replay", 2)]


def test_wp3_one_that_stands_still_among_a_hundred_costs_neither_work_nor_memory_nor_an_iteration():
    """Counted are instructions, at most 5 % more of them, and what is allocated for each message."""
    without, beside = among_a_hundred(stopped=False), among_a_hundred(stopped=True)
    assert beside.work <= 1.05 * without.work
    # A message in memory would be a hundred bytes at least.
    assert beside.bytes_each - without.bytes_each < 20
    bench = beside.bench
    bench.tell("slow", Credit(1, -1))
    bench.settle()
    assert sequences(bench.sent("slow")) == [*range(1, 1 + 3 * 20 * 10 + 1)]


class AmongAHundred(NamedTuple):
    """How much work messages took, and how many bytes each of them has left in the core and its store."""

    bench: Bench
    work: int
    bytes_each: float


def among_a_hundred(*, stopped):
    bench, names = Bench(), [f"reader{number}" for number in range(100)]
    bench.open("alice", "slow", *names)
    for name in names:
        bench.tell(name, subscribe())
    if stopped:
        bench.tell("slow", subscribe(credit=0))

    def publish_to_all():
        for _ in range(20):
            # All others have it in the iteration in which it comes.
            bench.tell("alice", publish(*[b"x" * 100] * 10))
            assert {len(bench.got(name)) for name in (names[0], names[-1])} == {10}
            bench.log.clear()
            bench.settle()

    bench.tell("alice", publish(b"first"))
    bench.settle()
    bench.log.clear()
    publish_to_all()
    counted = instructions(publish_to_all, "core/", "matching/", "protocol/", "store/")
    tracemalloc.start()
    publish_to_all()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return AmongAHundred(bench, counted, grown / 200)


def test_wp2_each_of_10_000_subscribers_gets_everything_for_what_it_takes_with_100():
    """In instructions a delivery; a subscription is one of ten of a session."""
    few, many = fan_out(100), fan_out(10_000)
    assert many <= 1.05 * few


def fan_out(readers):
    """The instructions of a delivery to one of so many."""
    bench, names = Bench(), [f"reader{number}" for number in range(readers // 10)]
    bench.open("alice", *names)
    for name in names:
        bench.tell(name, *(subscribe(source) for source in range(1, 11)))
    bench.tell("alice", publish(b"first"))
    bench.settle()
    bench.log.clear()
    counted = instructions(lambda: bench.tell("alice", publish(b"x")), "core/", "matching/")
    had = Counter((name, message.source) for name, message in bench.log if isinstance(message, Deliver))
    assert had == {(name, source): 1 for name in names for source in range(1, 11)}
    return counted / readers


def test_a_blocked_subscriber_is_one_without_credit(bench):
    bench.tell("bob", subscribe())
    bench.block("bob")
    bench.tell("alice", publish(b"1"))
    assert bench.bodies("bob") == []
    bench.unblock("bob")
    assert bench.bodies("bob") == [b"1"]


def test_each_delivery_names_the_one_before(bench):
    bench.tell("bob", subscribe(criteria=[["exact", "even"]]))
    for place in range(4):
        bench.tell("alice", publish(b"x", subject="even" if place % 2 else "odd"))
    deliveries = [m for m in bench.sent("bob") if isinstance(m, Deliver)]
    assert [(d.after, sequences([d])) for d in deliveries] == [(1, [3]), (3, [5])]


def test_wp29_resuming_after_the_last_received_leaves_no_gap_and_no_duplicate(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1"))
    assert bench.bodies("bob") == [b"1"]
    bench.lost("bob")
    bench.tell("alice", publish(b"2"))
    bench.open("bob")
    bench.tell("bob", subscribe(start="seq:3"))
    bench.settle()
    bench.tell("alice", publish(b"3"))
    assert bench.bodies("bob") == [b"2", b"3"]


def test_what_the_ring_has_dropped_is_a_gap():
    bench = Bench(retention=StreamRetention(messages_max=2))
    bench.open("alice", "bob")
    for place in range(5):
        bench.tell("alice", publish(b"%d" % place))
        bench.settle()
    bench.tell("bob", subscribe(start="seq:2"))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 2, 3, "overwritten")]
    assert sequences(sent) == [4, 5]


def test_a_start_at_the_first_is_not_notified_of_what_the_ring_has_dropped():
    bench = Bench(retention=StreamRetention(messages_max=2))
    bench.open("alice", "bob")
    for place in range(5):
        bench.tell("alice", publish(b"%d" % place))
        bench.settle()
    bench.tell("bob", subscribe(start="first"))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == []
    assert [m.after for m in sent if isinstance(m, Deliver)] == [0, 4]


def test_a_start_at_the_first_is_notified_of_every_gap_that_follows():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(start="first", credit=0, criteria=[["exact", "wanted"]]))
    bench.tell("alice", publish(b"other"))
    bench.settle()
    bench.tell("alice", publish(b"lost", subject="wanted"))
    bench.fail()
    bench.tell("bob", Credit(1, 5))
    bench.settle()
    assert gaps(bench.sent("bob")) == [Gap(1, 2, 2, "not-stored")]


def test_a_replay_from_the_first_that_matched_nothing_is_notified_of_the_gap_behind_it(bench):
    bench.tell("alice", publish(b"lost", subject="wanted"))
    bench.fail()
    bench.tell("alice", publish(b"kept", subject="wanted"))
    bench.settle()
    bench.tell("bob", subscribe(start="first", criteria=[["exact", "wanted"]]))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 2, 2, "not-stored")]
    assert sequences(sent) == [3]


def test_a_stream_without_a_journal_shows_what_was_dropped():
    bench = Bench(no_journal=("s",))
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(credit=1))
    bench.tell("alice", publish(b"1", b"2"))
    bench.settle()
    bench.tell("alice", publish(b"3"))
    bench.tell("bob", Credit(1, 5))
    bench.tell("alice", publish(b"4"))
    sent = bench.sent("bob")
    assert sequences(sent) == [1, 4]
    assert gaps(sent) == [Gap(1, 2, 3, "no-journal")]


def test_a_start_within_a_chunk_that_is_held_loses_nothing():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.tell("bob", subscribe(start="seq:2"))
    bench.settle()
    assert bench.bodies("bob") == [b"2", b"3"]


def test_a_read_that_overtakes_the_answer_of_a_commit_delivers_nothing_twice(bench):
    # After a clean restart nothing is reserved: what comes is held until it is on the disk.
    bench.restart()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(start="seq:1"))
    bench.tell("alice", publish(b"1"))
    commit = bench.appends.popleft()
    bench.store.write(commit.operations)
    bench.read_all()
    bench.core.stored(commit.token, bench.now)
    bench.settle()
    assert bench.bodies("bob") == [b"0", b"1"]


def test_a_stream_to_which_was_published_in_this_iteration_is_not_one_for_its_readers_alone():
    bench = Bench()
    bench.open("alice", "bob")
    bench.receive("alice", publish(b"1", b"2"))
    bench.tell("bob", subscribe(start="seq:1"))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_a_damage_is_reported_after_what_comes_before_it(bench):
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.settle()
    bench.tell("bob", subscribe(start="seq:2", credit=1))
    read = bench.reads.popleft()
    found = bench.store.read("s", 2, bytes_max=1 << 20).found
    damage = Damage(5, 9, "corrupt")
    bench.core.answered(read, ReadResult([*found, damage], 1), bench.now)
    bench.iterate()
    sent = bench.sent("bob")
    assert sequences(sent) == [2]
    assert gaps(sent) == []
    bench.tell("bob", Credit(1, 5))
    bench.core.answered(bench.reads.popleft(), ReadResult([*found, damage], 1), bench.now)
    bench.iterate()
    told = [m for m in bench.sent("bob") if isinstance(m, Deliver | Gap)]
    assert [sequences([m]) or m for m in told] == [[3, 4], Gap(1, 5, 9, "corrupt")]


def test_a_damage_is_a_gap_with_its_range(bench):
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", subscribe(start="seq:1"))
    read = bench.reads.popleft()
    found = bench.store.read("s", 2, bytes_max=1 << 20).found
    bench.core.answered(read, ReadResult([Damage(1, 1, "corrupt"), *found], 1), bench.now)
    bench.iterate()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 1, 1, "corrupt")]
    assert sequences(sent) == [2]


def test_a_failing_disk_fails_the_number_and_not_live_delivery(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1", number=1))
    bench.fail()
    assert bench.bodies("bob") == [b"1"]
    assert [(m.code, m.ref) for m in bench.sent("alice")] == [(507, 1)]


def test_a_fault_of_the_store_is_reported_by_a_number_of_the_wire(bench):
    bench.tell("alice", publish(b"1", number=1))
    bench.fail(StoreError("input/output error"))
    [error] = bench.sent("alice")
    assert (error.code, error.ref) == (500, 1)
    assert "input/output error" in error.text


def test_readers_of_the_same_place_share_one_read(bench):
    bench.open("carol")
    bench.receive("bob", subscribe(start="seq:1"))
    bench.receive("carol", subscribe(start="seq:1"))
    bench.iterate()
    assert len(bench.reads) == 1
    bench.settle()
    assert bench.bodies("bob") == bench.bodies("carol") == [b"0"]


def test_a_read_for_a_cancelled_subscription_serves_nobody(bench):
    bench.tell("bob", subscribe(start="seq:1"))
    bench.tell("bob", Cancel(1))
    bench.sent("bob")
    bench.settle()
    assert bench.sent("bob") == []


def test_a_read_for_a_cancelled_subscription_serves_the_one_that_took_its_id(bench):
    bench.tell("bob", subscribe(start="seq:1"))
    bench.tell("bob", Cancel(1), subscribe(start="seq:1"))
    bench.settle()
    assert bench.bodies("bob") == [b"0"]


def test_a_start_beyond_the_head_is_the_head(bench):
    assert bench.ask("bob", subscribe(start="seq:77")) == [Switch(1, "live", 2), Ok(6, 1, 2)]
    bench.tell("alice", publish(b"1"))
    assert bench.bodies("bob") == [b"1"]


@pytest.mark.parametrize("start", ["", "latest", "seq:0", "seq:-1", "seq:x", "seq:", "seq:٣", f"seq:{2**63}"])
def test_another_start_is_refused(bench, start):
    [error] = bench.ask("bob", subscribe(start=start))
    assert isinstance(error, Error)
    assert error.code == 416


def test_the_broker_stamps_sender_and_time(bench):
    bench.tell("bob", subscribe())
    bench.tell("anonymous", Hello([2], ""))
    bench.receive("alice", publish(b"1"))
    bench.receive("anonymous", publish(b"2"))
    bench.iterate()
    assert [item.sender for item in bench.got("bob")] == ["alice", ""]


def test_a_start_at_the_first_of_a_stream_without_a_journal_is_notified_of_what_it_misses():
    bench = Bench(no_journal=("s",))
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", subscribe(start="first", credit=0))
    bench.tell("alice", publish(b"2"))
    bench.tell("bob", Credit(1, 5))
    assert gaps(bench.sent("bob")) == [Gap(1, 2, 2, "no-journal")]
