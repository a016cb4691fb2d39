"""DRAIN: nothing more comes, and what the program never saw goes back without counting an attempt."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, request, send, subscribe

from malamute.protocol.limits import RANGES_MAX, Limits
from malamute.protocol.messages import Cancel, Credit, Deliver, Drain, Error, Ok, Recall
from malamute.store.policies import QueuePolicy

DRAIN = 21


def working(count=3, limits=None, **policy):
    """A bench on which bob has been sent requests, as many as he has credit for."""
    bench = Bench(limits, queues=QueuePolicy(**policy))
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(*[b"%d" % n for n in range(count)]))
    bench.tell("bob", offer(credit=count))
    bench.settle()
    assert len(bench.got("bob")) == count
    return bench


def attempts(bench, name="carl"):
    bench.tell(name, offer())
    bench.settle()
    return [(item.sequence, item.attempt) for item in bench.got(name)]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_what_is_not_held_goes_back_in_its_place_and_counts_nothing_after_a_restart_either(most):
    bench = working(attempts_max=most)
    bench.tell("bob", Drain(1, [[2, 2]]))
    assert bench.sent("bob") == []
    bench.settle()
    assert bench.sent("bob") == [Ok(DRAIN, 1)]
    bench.crash()
    bench.open("carl")
    got = attempts(bench)
    # What was held counts, as it was tried: with one attempt only, it is dead.
    assert got == ([(1, 1), (3, 1)] if most == 1 else [(1, 1), (2, 2), (3, 1)])


def test_others_get_it_at_once_and_what_is_held_can_be_settled():
    bench = working()
    bench.tell("carl", offer())
    bench.tell("bob", Drain(1, [[1, 1]]))
    bench.settle()
    assert [(item.sequence, item.attempt) for item in bench.got("carl")] == [(2, 1), (3, 1)]
    assert bench.sent("bob") == [Ok(DRAIN, 1)]
    bench.tell("bob", ack(1, (1, 1)))
    assert bench.sent("bob") == []


def test_what_was_recalled_and_is_about_to_be_redelivered_is_not_held():
    """The program still has it as it came before; it must not come after the answer."""
    bench = working(1, Limits(queues_memory_bytes=50), ack_timeout_seconds=10.0, backoff_seconds=())
    bench.tell("bob", Credit(1, 5, -1))
    bench.wait(11)
    # For the second attempt its record comes from the disk.
    told = bench.sent("bob")
    assert Recall(1, [[1, 1]], "timeout") in told
    assert not any(isinstance(message, Deliver) for message in told)
    bench.tell("bob", Drain(1, [[1, 1]]))
    bench.settle()
    assert bench.sent("bob") == [Ok(DRAIN, 1)]
    assert attempts(bench) == [(1, 2)]


def test_nothing_comes_before_new_credit_and_the_old_is_gone():
    bench = working(1)
    bench.tell("bob", Credit(1, 5, -1), Drain(1, []))
    bench.settle()
    bench.tell("alice", request(b"x", b"y"))
    bench.settle()
    assert bench.got("bob") == []
    bench.tell("bob", Credit(1, 1, -1))
    bench.settle()
    assert len(bench.got("bob")) == 1


def test_drain_and_cancel_at_once_end_an_offer_without_counting_what_was_on_its_way():
    bench = working(attempts_max=1)
    bench.tell("bob", Drain(1, []), Cancel(1))
    bench.settle()
    assert attempts(bench) == [(1, 1), (2, 1), (3, 1)]
    assert not bench.core.services.by_name["w"].dead_letters.entries


def test_cancel_alone_counts_what_was_sent():
    bench = working()
    bench.tell("bob", Cancel(1))
    assert attempts(bench) == [(1, 2), (2, 2), (3, 2)]


def test_what_waits_for_its_mark_is_not_sent_and_counts_nothing():
    bench = Bench(queues=QueuePolicy(attempts_max=1))
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("bob", offer())
    bench.tell("bob", Drain(1, []))
    bench.settle()
    assert [m for m in bench.sent("bob") if isinstance(m, Deliver)] == []
    bench.crash()
    bench.open("carl")
    assert attempts(bench) == [(1, 1)]


def test_a_mailbox_and_a_subscription_are_drained_too():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit(), subscribe(2))
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", Drain(0, []), Drain(2, []))
    bench.tell("alice", publish(b"x"), send("bob", b"2"))
    bench.settle()
    assert [m for m in bench.sent("bob") if isinstance(m, Deliver)] == []
    bench.tell("bob", mail_credit(), Credit(2, -1, -1))
    bench.settle()
    assert sorted(item.body for item in bench.got("bob")) == [b"1", b"2", b"x"]


def test_a_mailbox_that_was_never_opened_is_drained_and_an_unknown_source_is_not():
    bench = Bench()
    bench.open("bob")
    assert bench.ask("bob", Drain(0, [])) == [Ok(DRAIN, 0)]
    (error,) = bench.ask("bob", Drain(7, []))
    assert (type(error), error.code, error.ref) == (Error, 404, 7)


def test_the_keys_of_what_is_held_stay_and_the_others_are_free():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(b"1", key="red"), request(b"2", key="blue"))
    bench.tell("bob", offer(credit=2))
    bench.settle()
    bench.sent("bob")
    bench.tell("carl", offer())
    bench.tell("alice", request(b"3", key="red"), request(b"4", key="blue"))
    bench.settle()
    assert bench.got("carl") == []
    bench.tell("bob", Drain(1, [[1, 1]]))
    bench.settle()
    assert [item.body for item in bench.got("carl")] == [b"2", b"4"]
    bench.tell("bob", Cancel(1))
    bench.settle()
    assert [item.body for item in bench.got("carl")] == [b"1", b"3"]


def test_as_many_ranges_may_be_held_as_a_command_may_have():
    count = 2 * RANGES_MAX
    bench = working(count)
    bench.tell("bob", Drain(1, [[n, n] for n in range(1, count, 2)]))
    bench.settle()
    assert [sequence for sequence, _ in attempts(bench)] == [*range(2, count + 1, 2)]
