"""What is durable of deliveries: the watermark is ahead, so that who takes the next waits for no disk."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, request, send

from malamute.core.queue.delivery import AHEAD_MAX
from malamute.protocol.messages import Ack, Credit, Nak, Release
from malamute.store.operations import MarkDelivered, SetAttempts
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    return filled(Bench())


def worker(credit=-1):
    """An offer to do everything."""
    return offer(credit=credit, criteria=[["all", ""]])


def filled(bench, **options):
    """Requests 1 to 6, of which a worker has taken the first two."""
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(*(b"%d" % number for number in range(1, 7)), **options))
    bench.settle()
    bench.tell("bob", worker(2))
    bench.settle()
    assert attempts(bench) == {1: 1, 2: 1}
    return bench


def attempts(bench, name="bob"):
    """What a worker was sent since the last time: how often each was delivered."""
    return {item.sequence: item.attempt for item in bench.got(name)}


def taken_up(bench):
    """What another broker delivers after this one."""
    bench.open("carl")
    bench.tell("carl", worker())
    bench.settle()
    return attempts(bench, "carl")


def stored(bench, kind):
    """What is to be stored, of one kind of operation."""
    return [
        operation for append in bench.appends for operation in append.operations if type(operation) is kind
    ]


def test_who_takes_what_comes_next_waits_for_no_disk(bench):
    for first in (3, 5):
        bench.tell("bob", Credit(1, 2))
        assert attempts(bench) == {first: 1, first + 1: 1}
        bench.settle()


def test_workers_share_what_is_marked_ahead_and_it_is_marked_before_it_runs_out():
    bench = Bench()
    names = [f"w{number}" for number in range(10)]
    bench.open("alice", *names)
    bench.tell("alice", request(*[b"x"] * 100))
    bench.settle()
    for name in names:
        bench.tell(name, worker(1))
        bench.settle()
    marks = []
    for number in range(1, 51):
        name = names[number % 10]
        bench.sent(name)
        bench.tell(name, Ack(1, [[1, 100]]), Credit(1, 1))
        assert list(attempts(bench, name)) == [number + 10], "it waits for no disk"
        marks += stored(bench, MarkDelivered)
        bench.settle()
    assert len(marks) <= 10
    for number in range(61, 91):
        name = names[number % 10]
        bench.sent(name)
        bench.tell(name, Ack(1, [[1, 100]]), Credit(1, 1))
        assert list(attempts(bench, name)) == [number], "the next are marked while these are taken"
        if number % 5 == 0:
            bench.settle()


def test_each_delivery_marks_as_many_more_and_no_more_than_there_are(bench):
    bench.tell("bob", Credit(1, 2))
    assert [mark.sequence for mark in stored(bench, MarkDelivered)] == [6]
    bench.settle()
    bench.tell("bob", Credit(1, 2))
    assert stored(bench, MarkDelivered) == []


def test_who_comes_before_the_mark_is_stored_waits_for_that_one(bench):
    bench.tell("bob", Credit(1, 2))
    bench.sent("bob")
    bench.tell("bob", Credit(1, 1))
    bench.tell("bob", Credit(1, 1))
    assert attempts(bench) == {}
    assert len(bench.appends) == 1
    bench.commit()
    assert attempts(bench) == {5: 1, 6: 1}


def test_who_takes_more_than_the_mark_on_its_way_covers_waits_for_another(bench):
    bench.tell("alice", request(b"7", b"8", b"9", b"10"))
    bench.settle()
    bench.tell("bob", Credit(1, 2))
    bench.sent("bob")
    bench.tell("bob", Credit(1, 5))
    bench.commit()
    assert attempts(bench) == {}
    bench.crash()
    assert taken_up(bench) == {**dict.fromkeys(range(1, 9), 2), 9: 1, 10: 1}


def test_what_was_released_has_a_mark_of_its_own(bench):
    bench.tell("bob", Credit(1, 2))
    bench.sent("bob")
    bench.tell("bob", Release(1, [[1, 1]]), Credit(1, 1))
    bench.commit()
    assert attempts(bench) == {}
    bench.commit()
    assert attempts(bench) == {1: 1}
    bench.crash()
    assert taken_up(bench)[1] == 2


def test_what_goes_back_before_its_mark_is_stored_is_marked_when_it_is_redelivered(bench):
    bench.tell("bob", Release(1, [[1, 1]]), Credit(1, 1))
    bench.tell("bob", Nak(1, [[1, 1]], 1000))
    bench.settle()
    bench.wait(2.0)
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", Credit(1, 1))
    assert attempts(bench) == {}
    bench.settle()
    assert attempts(bench) == {1: 1}


def test_nothing_is_sent_before_its_mark_is_stored(bench):
    """One more than was marked ahead: what was goes at once, and the other after its own mark."""
    bench.tell("bob", Credit(1, 3))
    assert attempts(bench) == {3: 1, 4: 1}
    bench.crash()
    assert taken_up(bench) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1}


def test_a_crash_counts_what_was_marked_ahead_and_no_more(bench):
    """Nobody had 3 and 4, but the disk cannot know."""
    bench.crash()
    assert taken_up(bench) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1}


def test_a_broker_that_ends_in_good_order_counts_what_was_delivered(bench):
    bench.restart()
    assert taken_up(bench) == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}
    bench.restart()
    assert taken_up(bench) == {1: 3, 2: 3, 3: 2, 4: 2, 5: 2, 6: 2}


def test_a_queue_that_nobody_takes_from_counts_what_was_delivered(bench):
    bench.lost("bob")
    bench.settle()
    bench.tell("carl", worker(0))
    bench.lost("carl")
    assert stored(bench, SetAttempts) == [], "it is reported once"
    bench.crash()
    assert taken_up(bench) == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}


def test_what_nobody_takes_while_its_mark_is_on_its_way_is_marked_again(bench):
    bench.tell("bob", Credit(1, 2))
    bench.lost("bob")
    bench.settle()
    bench.tell("carl", worker(6))
    assert attempts(bench, "carl") == {1: 2, 2: 2, 3: 2, 4: 2}
    bench.settle()
    assert attempts(bench, "carl") == {5: 1, 6: 1}
    bench.crash()
    assert taken_up(bench) == {1: 3, 2: 3, 3: 3, 4: 3, 5: 2, 6: 2}


def test_what_the_disk_does_not_take_is_marked_when_it_is_delivered(bench):
    bench.tell("bob", Credit(1, 2))
    bench.sent("bob")
    # A full disk takes what only counts. This one takes nothing.
    bench.store.write = lambda operations: None
    bench.fail()
    del bench.store.write
    bench.tell("bob", Credit(1, 2))
    assert attempts(bench) == {}
    bench.commit()
    assert attempts(bench) == {5: 1, 6: 1}


def test_who_waits_for_a_mark_that_the_disk_does_not_take_is_served(bench):
    bench.tell("bob", Credit(1, 2))
    bench.sent("bob")
    bench.tell("bob", Credit(1, 2))
    bench.fail()
    assert attempts(bench) == {5: 1, 6: 1}


def test_what_is_redelivered_was_marked_before(bench):
    bench.tell("bob", Nak(1, [[1, 1]], 0))
    bench.tell("bob", Credit(1, 1))
    assert attempts(bench) == {1: 2}


@pytest.mark.parametrize(
    ("policy", "options"),
    [(QueuePolicy(attempts_max=1), {}), (QueuePolicy(), {"priority": 1})],
    ids=["one attempt", "priorities"],
)
def test_nothing_is_marked_ahead_where_a_doubt_costs_too_much(policy, options):
    bench = filled(Bench(queues=policy), **options)
    bench.tell("bob", Credit(1, 2))
    assert attempts(bench) == {}
    bench.settle()
    assert attempts(bench) == {3: 1, 4: 1}
    assert stored(bench, SetAttempts) == []


def test_a_worker_for_some_subjects_marks_nothing_ahead():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", request(b"1", b"2", b"3", b"4", subject="a"))
    bench.settle()
    bench.tell("bob", offer(pattern="a", credit=2))
    bench.settle()
    bench.crash()
    assert taken_up(bench) == {1: 2, 2: 2, 3: 1, 4: 1}


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_is_taken_back_than_may_be_marked_ahead(more):
    """All that comes while somebody waits is marked, also what he does not take."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", offer(pattern="a"))
    bench.tell("alice", request(*[b"x"] * (AHEAD_MAX + more), subject="b"))
    bench.settle()
    bench.lost("bob")
    assert len(stored(bench, SetAttempts)) == AHEAD_MAX


@pytest.mark.parametrize("more", [0, 1])
def test_so_many_are_marked_ahead_and_no_more(more):
    bench = Bench()
    bench.open("alice", "bob")
    window = AHEAD_MAX + more
    for _ in range(2):
        bench.tell("alice", send("bob", *[b"x"] * window))
    bench.settle()
    bench.tell("bob", mail_credit(window))
    bench.settle()
    bench.tell("bob", ack(0, (1, window)), mail_credit(window))
    assert [*attempts(bench)][-1] == window + AHEAD_MAX
    bench.settle()
    assert len(attempts(bench)) == more
