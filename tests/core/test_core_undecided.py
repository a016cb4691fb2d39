"""What happens to queued messages while the disk has not said yet whether it has them."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, request, send

from malamute.protocol.limits import Limits
from malamute.protocol.messages import Change, Error, Nak, Recall, Reject, Withdraw
from malamute.store.policies import QueuePolicy


def opened(**options):
    bench = Bench(**options)
    bench.open("alice", "bob", "carl")
    return bench


def answers(bench, name, kind):
    return [message for message in bench.sent(name) if isinstance(message, kind)]


def test_a_dead_letter_is_not_sent_again_before_it_is_stored():
    bench = opened(queues=QueuePolicy(backoff_seconds=()))
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=1))
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", Reject(1, [[1, 1]], "no"))
    bench.tell("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w"}))
    # The message is not dead after all, so there would be two of it.
    bench.fail()
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


def test_the_deadline_of_a_delivery_begins_when_it_is_sent():
    bench = opened(queues=QueuePolicy(ack_timeout_seconds=1.0))
    bench.tell("alice", send("bob", b"1", number=1))
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.wait(0.8)
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.wait(0.8)
    assert not answers(bench, "bob", Recall)
    bench.wait(0.3)
    assert len(answers(bench, "bob", Recall)) == 1


@pytest.mark.parametrize("sent", [False, True])
def test_what_was_not_sent_is_not_recalled(sent):
    bench = opened()
    bench.tell("alice", send("bob", b"1", number=1, ttl=1_000))
    bench.settle()
    bench.tell("bob", mail_credit())
    if sent:
        bench.settle()
    bench.wait(2.0)
    bench.settle()
    assert len(answers(bench, "bob", Recall)) == sent


def test_room_for_an_outcome_and_its_message_are_within_the_limit_together():
    most = 1_000
    bench = opened(limits=Limits(queues_bytes=most))
    limits = bench.core.queue_limits
    for number in range(1, 5):
        bench.tell("alice", send("bob", b"x" * 50, number=number, tracker=f"t{number}"))
        assert limits.bytes <= most
    assert [error.code for error in answers(bench, "alice", Error)] == [503, 503, 503]
    bench.settle()
    held = limits.bytes
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    # The outcome takes the room that was kept for it.
    assert limits.bytes <= held
    bench.fail()
    assert limits.bytes == held


def test_the_dead_letter_of_an_outcome_still_shows_whose_it_is():
    bench = opened(queues=QueuePolicy(attempts_max=1))
    bench.tell("alice", send("bob", b"1", number=1, tracker="t"), mail_credit())
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.tell("alice", Nak(0, [[1, 1]], 0))
    bench.settle()
    bench.sent("alice")
    bench.tell("carl", Change(0, "queue.redrive", {"kind": "mailbox", "name": "alice"}))
    bench.settle()
    (outcome,) = bench.got("alice")
    assert outcome.properties == {
        "outcome": "acknowledged",
        "tracker": "t",
        "kind": "mailbox",
        "name": "bob",
    }


TAKEN_BACK = {
    "withdrawn": ("alice", Withdraw(2, "mailbox", "bob", 7)),
    "purged": ("carl", Change(0, "queue.purge", {"kind": "mailbox", "name": "bob"})),
}


def given_back_for_two_seconds(bench, tracker):
    bench.tell("alice", send("bob", b"1", number=1, correlation=7, **tracker))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Nak(0, [[1, 1]], 2_000))
    bench.settle()
    bench.sent("bob")


@pytest.mark.parametrize("tracker", [{}, {"tracker": "t"}])
@pytest.mark.parametrize("way", TAKEN_BACK)
def test_what_was_delayed_and_may_not_leave_is_delayed_again(way, tracker):
    bench = opened()
    given_back_for_two_seconds(bench, tracker)
    bench.wait(1.0)
    bench.tell(*TAKEN_BACK[way])
    bench.fail()
    bench.wait(0.9)
    bench.settle()
    assert bench.bodies("bob") == []
    assert len(bench.core.mailboxes.by_name["bob"].schedule.delayed) == 1
    bench.wait(0.1)
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


@pytest.mark.parametrize("way", TAKEN_BACK)
def test_what_was_delayed_comes_at_once_if_its_time_passes_while_it_is_to_leave(way):
    bench = opened()
    given_back_for_two_seconds(bench, {})
    bench.tell(*TAKEN_BACK[way])
    bench.wait(2.0)
    assert bench.bodies("bob") == []
    bench.fail()
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


@pytest.mark.parametrize("way", TAKEN_BACK)
def test_what_was_delayed_and_has_left_is_forgotten(way):
    bench = opened()
    given_back_for_two_seconds(bench, {})
    bench.tell(*TAKEN_BACK[way])
    bench.settle()
    bench.wait(3.0)
    bench.settle()
    queue = bench.core.mailboxes.by_name["bob"]
    assert (bench.bodies("bob"), queue.entries, queue.schedule.delayed) == ([], {}, {})
    assert queue.schedule.claimed == {}
