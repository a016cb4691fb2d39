"""What is missing of a stream: sequences are never used twice, and readers learn what was taken back."""

from __future__ import annotations

import pytest
from core_bench import (
    START,
    Bench,
    bench_with_stream,
    gaps,
    publish,
    request,
    send,
    sequences,
    subscribe,
)

from malamute.core.broker import Core
from malamute.core.iteration.settings import Settings
from malamute.core.stream.stream import RESERVE
from malamute.errors import StoreError
from malamute.journal.store import next_incarnation
from malamute.protocol.messages import Credit, Deliver, Gap, Hello, Ok, Switch, Welcome
from malamute.store.operations import Recovered, StreamState
from malamute.store.policies import StreamPolicy, StreamRetention


def back(start, had, **fields):
    """A subscription of somebody who comes back, with the last message that he has had."""
    return subscribe(start=f"seq:{start}", had=had, **fields)


@pytest.fixture
def bench():
    return bench_with_stream()


def crash(bench):
    bench.crash()
    bench.open("alice", "bob")


# Told when it happens


def test_who_had_a_live_message_that_the_disk_refuses_is_notified(bench):
    bench.open("carol", "dave")
    bench.tell("bob", subscribe())
    bench.tell("carol", subscribe(criteria=[["exact", "other"]]))
    bench.tell("alice", publish(b"1", subject="wanted"))
    bench.tell("dave", subscribe())
    bench.fail()
    assert sequences(sent := bench.sent("bob")) == [2]
    assert gaps(sent) == [Gap(1, 2, 2, "taken-back")]
    assert gaps(bench.sent("carol")) == gaps(bench.sent("dave")) == []
    bench.tell("alice", publish(b"2"))
    bench.settle()
    assert [(d.after, sequences([d])) for d in bench.sent("bob") if isinstance(d, Deliver)] == [(2, [3])]


def test_who_had_a_part_of_it_is_notified_of_that_part_and_of_the_rest_when_he_comes_there(bench):
    bench.tell("bob", subscribe(credit=2))
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.fail()
    assert gaps(bench.sent("bob")) == [Gap(1, 2, 3, "taken-back")]
    bench.tell("bob", Credit(1, 5))
    bench.settle()
    assert gaps(bench.sent("bob")) == [Gap(1, 4, 4, "not-stored")]


def test_who_came_back_before_the_disk_refused_what_he_had_is_notified(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1"))
    bench.lost("bob")
    bench.open("bob")
    bench.tell("bob", back(3, had=2))
    bench.fail()
    assert gaps(bench.sent("bob")) == [Gap(1, 2, 2, "taken-back")]


def test_what_waits_for_the_disk_is_not_read_out_of_memory_once_it_was_refused(bench):
    bench.tell("bob", subscribe(credit=0))
    bench.tell("alice", publish(b"1"))
    bench.receive("bob", Credit(1, 5))
    bench.fail()
    sent = bench.sent("bob")
    assert (sequences(sent), gaps(sent)) == ([], [Gap(1, 2, 2, "not-stored")])


# Told to who comes back


def test_who_had_what_a_crash_took_back_is_notified_before_anything_else(bench):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1", b"2"))
    assert sequences(bench.sent("bob")) == [2, 3]
    crash(bench)
    bench.tell("bob", back(4, had=3))
    bench.settle()
    assert bench.sent("bob")[1:] == [
        Gap(1, 2, 3, "taken-back"),
        Gap(1, 4, 1 + RESERVE, "restart"),
        Switch(1, "live", 2 + RESERVE),
    ]


def test_who_comes_back_late_is_notified_of_the_gap_in_the_journal(bench):
    bench.tell("alice", publish(b"1", b"2"))
    crash(bench)
    bench.tell("alice", publish(b"3"))
    bench.settle()
    crash(bench)
    bench.tell("alice", publish(b"4"))
    bench.settle()
    bench.tell("bob", back(4, had=3))
    bench.settle()
    assert gaps(bench.sent("bob"))[:2] == [Gap(1, 2, 3, "taken-back"), Gap(1, 4, 1 + RESERVE, "restart")]


def test_who_had_what_is_still_there_gets_no_gap(bench):
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("alice", publish(b"2"))
    for had in (1, 2, 3):
        bench.tell("bob", back(had + 1, had=had, source=had))
    bench.settle()
    assert gaps(bench.sent("bob")) == []


def test_who_had_what_the_ring_has_dropped_gets_that_gap_alone():
    bench = Bench(retention=StreamRetention(messages_max=1))
    bench.open("alice", "bob")
    for body in (b"1", b"2", b"3", b"4"):
        bench.tell("alice", publish(body))
        bench.settle()
    bench.tell("bob", back(3, had=2))
    bench.settle()
    assert gaps(bench.sent("bob")) == [Gap(1, 3, 3, "overwritten")]


@pytest.mark.parametrize(("had", "told"), [(2, [Gap(1, 2, 2, "taken-back")]), (3, [])])
def test_who_lost_the_connection_before_he_could_be_notified_is_notified_when_he_comes_back(bench, had, told):
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"1"))
    bench.lost("bob")
    bench.fail()
    # What was sent behind the notice shows that the notice has come.
    bench.tell("alice", publish(b"2"))
    bench.settle()
    bench.open("bob")
    bench.tell("bob", back(had + 1, had=had))
    bench.settle()
    assert gaps(bench.sent("bob")) == told


def test_a_stream_without_a_journal_takes_nothing_back():
    bench = Bench(no_journal=("s",))
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", back(2, had=1))
    bench.settle()
    assert gaps(bench.sent("bob")) == []


# Never twice


@pytest.mark.parametrize("no_journal", [(), ("s",)])
def test_what_the_disk_would_not_reserve_nobody_gets_so_no_crash_gives_it_out_again(no_journal):
    """The disk fails first, and then the power."""
    bench = Bench(no_journal=no_journal)
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"lost", number=1))
    bench.fail(StoreError("input/output error"))
    had = sequences(bench.sent("bob"))
    assert had == []
    crash(bench)
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"again", number=1))
    bench.settle()
    assert not set(had) & set(sequences(bench.sent("bob")))


def test_live_data_continues_without_a_disk_up_to_what_was_reserved(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.stream.stream.RESERVE", 4)
    bench.tell("alice", publish(b"1"))
    bench.settle()
    crash(bench)
    bench.tell("alice", publish(b"2"))
    bench.settle()
    bench.tell("bob", subscribe())
    first = RESERVE + 3
    for place in range(6):
        bench.tell("alice", publish(b"%d" % place))
        bench.fail()
    sent = bench.sent("bob")
    assert sequences(sent) == [*range(first, first + 4)]
    assert {gap.reason for gap in gaps(sent)} == {"taken-back"}
    # Nobody is notified of what is not reserved before it is, with what is behind it.
    bench.tell("alice", publish(b"stored"))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == [
        Gap(1, first + 4, first + 4, "not-stored"),
        Gap(1, first + 5, first + 5, "not-stored"),
    ]
    assert sequences(sent) == [first + 6]


# Committed


def test_a_committed_subscription_gets_nothing_before_it_is_on_the_disk(bench):
    bench.open("carol")
    bench.tell("bob", subscribe(committed=True))
    bench.tell("carol", subscribe())
    bench.tell("alice", publish(b"1"))
    assert (bench.bodies("bob"), bench.bodies("carol")) == ([], [b"1"])
    bench.commit()
    assert bench.bodies("bob") == [b"1"]


@pytest.mark.parametrize("committed", [False, True])
def test_an_append_is_awaited_if_a_committed_subscription_is_to_get_it(bench, committed):
    bench.tell("bob", subscribe(committed=committed))
    bench.tell("alice", publish(b"1"))
    bench.commit()  # its sequence had to be reserved, for which everybody waits
    bench.tell("alice", publish(b"2"))
    assert [append.awaited for append in bench.appends] == [committed]


def test_it_is_notified_of_what_the_disk_refused_and_never_gets_it(bench):
    bench.tell("bob", subscribe(committed=True))
    bench.tell("alice", publish(b"1"))
    bench.tell("alice", publish(b"2"))
    bench.fail()
    bench.commit()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 2, 2, "not-stored")]
    assert [(d.after, sequences([d])) for d in sent if isinstance(d, Deliver)] == [(2, [3])]


def test_it_joins_what_is_on_its_way_to_the_disk(bench):
    bench.tell("alice", publish(b"1"))
    bench.tell("alice", publish(b"2"))
    bench.tell("bob", subscribe(start="seq:3", committed=True))
    assert bench.sent("bob") == [Ok(6, 1, 3), Switch(1, "live", 3)]
    bench.commit()
    assert bench.bodies("bob") == []
    bench.commit()
    assert bench.bodies("bob") == [b"2"]


def test_without_credit_it_falls_back_and_gets_each_message_once(bench):
    bench.tell("bob", subscribe(credit=1, committed=True))
    for body in (b"1", b"2", b"3"):
        bench.tell("alice", publish(body))
    bench.commit()
    bench.commit()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("bob", Credit(1, 5))
    bench.read_all()
    assert bench.bodies("bob") == [b"2"]
    bench.settle()
    bench.tell("alice", publish(b"4"))
    bench.settle()
    assert bench.bodies("bob") == [b"3", b"4"]


def test_what_was_refused_while_it_had_no_credit_is_reported_though_nothing_follows(bench):
    bench.tell("bob", subscribe(credit=0, committed=True))
    bench.tell("alice", publish(b"1"))
    bench.fail()
    bench.tell("bob", Credit(1, 5))
    assert gaps(bench.sent("bob")) == [Gap(1, 2, 2, "not-stored")]


def test_it_may_begin_with_the_last_of_each_subject_before_that_is_on_the_disk(bench):
    bench.tell("alice", publish(b"a", subject="a"))
    bench.tell("alice", publish(b"b", subject="b"))
    bench.tell("bob", subscribe(start="last-per-subject", committed=True))
    bench.read_all()
    bench.commit()
    assert bench.bodies("bob")[-1:] == [b"a"]
    bench.settle()
    bench.tell("alice", publish(b"c", subject="c"))
    bench.settle()
    assert bench.bodies("bob") == [b"b", b"c"]


def test_a_stream_may_have_it_for_all_of_its_subscriptions(bench):
    bench.settings = bench.settings._replace(streams=lambda stream: StreamPolicy(committed=stream == "s"))
    crash(bench)
    bench.tell("bob", subscribe(), subscribe(source=2, stream="t"))
    bench.tell("alice", publish(b"1"))
    bench.tell("alice", publish(b"2", stream="t"))
    bench.commit()
    assert bench.bodies("bob") == [b"1"]
    bench.commit()
    assert bench.bodies("bob") == [b"2"]


# Restored


def restore(bench, backup):
    """Put a backup in the place of the store, and start a broker on it."""
    bench.store = backup
    bench.crash()
    bench.open("alice", "bob")


def test_a_restored_broker_continues_far_behind_all_that_it_may_have_given_out(bench):
    backup = bench.store.copy()
    for _ in range(3):
        bench.tell("alice", publish(*[b"x"] * 1000))
        bench.settle()
    had = bench.core.streams.by_name["s"].progress.last
    restore(bench, backup)
    incarnation = next_incarnation(bench.now, 0)
    bench.tell("bob", back(had + 1, had=had))
    bench.tell("alice", publish(b"new"), send("bob", b"mail"), request(b"work"))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 2, had, "restored"), Gap(1, had + 1, incarnation, "restored")]
    assert sequences(sent) == [incarnation + 1]
    assert {q.next_sequence for q in bench.core.services.by_name.values()} == {incarnation + 2}


def test_every_restore_of_one_backup_is_another_incarnation(bench):
    backup = bench.store.copy()
    found = []
    for _ in range(2):
        bench.store = backup.copy()
        bench.crash()
        bench.receive("bob", Hello([2], "bob"))
        bench.iterate()
        found += [m.incarnation for m in bench.sent("bob") if isinstance(m, Welcome)]
        bench.now += 0.01
    assert 0 < found[0] < found[1]
    # A start on what it was restored to is no restore.
    crash(bench)
    assert bench.core.streams.incarnation == found[1]


@pytest.mark.parametrize("published", [0, 1], ids=["empty", "used-again"])
def test_a_stream_that_the_backup_does_not_know_begins_behind_the_incarnation_too(bench, published):
    backup = bench.store.copy()
    bench.tell("alice", publish(b"1", stream="young"))
    bench.settle()
    restore(bench, backup)
    for _ in range(published):
        bench.tell("alice", publish(b"2", stream="young"))
        bench.settle()
    bench.tell("bob", back(2, had=1, stream="young"))
    bench.settle()
    incarnation = next_incarnation(bench.now, 0)
    assert gaps(bench.sent("bob")) == [Gap(1, 1, 1, "restored"), Gap(1, 2, incarnation, "restored")]


def test_a_restore_is_reported_though_all_around_it_was_dropped_since():
    bench = Bench(retention=StreamRetention(messages_max=2))
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    restore(bench, bench.store.copy())
    for _ in range(3):
        bench.tell("alice", publish(b"new"))
        bench.settle()
    incarnation = next_incarnation(bench.now, 0)
    bench.tell("bob", back(2, had=1))
    bench.settle()
    sent = bench.sent("bob")
    assert gaps(sent) == [Gap(1, 2, incarnation + 1, "restored")]
    assert sequences(sent) == [incarnation + 2, incarnation + 3]
    # Behind it, what is dropped is dropped.
    bench.tell("bob", subscribe(source=2, start=f"seq:{incarnation + 1}"))
    bench.settle()
    assert gaps(bench.sent("bob")) == [Gap(2, incarnation + 1, incarnation + 1, "overwritten")]


def test_who_reads_past_a_restore_later_is_notified_of_it(bench):
    restore(bench, bench.store.copy())
    bench.tell("alice", publish(b"new"))
    bench.settle()
    crash(bench)
    bench.tell("bob", subscribe(start="seq:1"))
    bench.settle()
    sent = bench.sent("bob")
    incarnation = next_incarnation(START, 0)
    assert gaps(sent)[0] == Gap(1, 2, incarnation, "restored")
    assert sequences(sent) == [1, incarnation + 1]


def test_an_incarnation_is_beyond_all_that_was_used_though_the_clock_is_wrong():
    assert next_incarnation(0.0, 10) == 10 + (1 << 32)
    assert next_incarnation(START, 10) < next_incarnation(START + 0.01, 10) < 2**53
    assert next_incarnation(START, 1 << 60) > 1 << 60
    # A store may have used more than the clock gives, and its backup be restored twice within a moment.
    used, newest = next_incarnation(START, 0) + (1 << 34), int(START * 1e9)
    first, second = (next_incarnation(START + seconds, used, newest) for seconds in (1.0, 1.1))
    assert used < first < second - 400_000


def test_a_stream_may_have_been_restored_more_than_once():
    recovered = Recovered(b"\0" * 16, {"s": StreamState(1, 5, 8)}, {}, {}, incarnations=(100, 200))
    stream = Core(START, Settings(), recovered).streams.by_name["s"]
    assert stream.progress.next == 201
    assert stream.gaps.reason(6, 100) == stream.gaps.reason(150, 200) == "restored"
    assert stream.gaps.reason(110, 120) == "restart"


def test_a_position_of_before_a_restore_is_one_in_this_store(bench):
    """Incarnations share their sequences: what is missing between them is a gap of its own."""
    backup = bench.store.copy()
    bench.tell("alice", publish(*[b"x"] * 10))
    bench.settle()
    had = bench.core.streams.by_name["s"].progress.last
    own = bench.core.streams.broker
    restore(bench, backup)
    incarnation = next_incarnation(bench.now, 0)
    for source, fields in ((1, {"resume": f"{had}@{own}", "had": had}), (2, {"start": f"after:{had}@{own}"})):
        bench.tell("bob", subscribe(source=source, **fields))
        bench.tell("alice", publish(b"new"))
        bench.settle()
        found = [gap for gap in gaps(bench.sent("bob")) if gap.source == source]
        assert {gap.reason for gap in found} == {"restored"}
        assert (found[-1].first, found[-1].last) == (had + 1, incarnation)


def test_a_restart_of_the_same_store_is_no_other_store(bench):
    bench.tell("alice", publish(b"2", b"3"))
    bench.settle()
    own = bench.core.streams.broker
    for end in (bench.restart, bench.crash):
        end()
        bench.open("alice", "bob")
        bench.tell("bob", subscribe(start="first", cursor="c", resume=f"2@{own}", had=2))
        bench.settle()
        sent = bench.sent("bob")
        assert [gap.reason for gap in gaps(sent) if gap.reason != "restart"] == []
        assert sequences(sent) == [3]
