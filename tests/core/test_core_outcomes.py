"""Tracked messages: each has one outcome, and its sender learns it."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, items, mail_credit, offer, reply, request, send

from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Bye,
    Change,
    Deliver,
    Error,
    Hello,
    Nak,
    Reject,
    Stored,
    Withdraw,
)
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    bench = Bench(queues=QueuePolicy(attempts_max=1))
    bench.open("alice", "bob", "carl")
    return bench


def outcomes(bench, name="alice"):
    """The outcomes that a sender got of its tracked messages; the mailbox is emptied by it."""
    bench.settle()
    bench.tell(name, mail_credit())
    bench.settle()
    got = bench.got(name)
    if got:
        bench.tell(name, ack(0, (1, 2**62)))
        bench.settle()
    return [item.properties for item in got]


def tracked(bench, number=1, **options):
    """A tracked request that a worker holds."""
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=number, tracker="t", **options))
    bench.settle()


def expected(outcome, **more):
    return [{"outcome": outcome, "tracker": "t", "kind": "service", "name": "w", "correlation": 0, **more}]


ENDS = {
    "acknowledged": lambda bench: bench.tell("bob", ack(1, (1, 1))),
    "rejected": lambda bench: bench.tell("bob", Reject(1, [[1, 1]], "no")),
    "dead-lettered": lambda bench: bench.tell("bob", Nak(1, [[1, 1]], 0)),
    "withdrawn": lambda bench: bench.tell("alice", Withdraw(1, "service", "w", 0)),
    "purged": lambda bench: bench.tell("carl", Change(0, "queue.purge", {"kind": "service", "name": "w"})),
    "expired": lambda bench: bench.wait(10),
}
REASONS = {"rejected": {"reason": "no"}, "dead-lettered": {"reason": "max-deliver"}}
by_end = pytest.mark.parametrize("outcome", ENDS)


@by_end
def test_wp11_each_end_of_a_tracked_message_is_reported_once(bench, outcome):
    tracked(bench, ttl=10_000)
    ENDS[outcome](bench)
    assert outcomes(bench) == expected(outcome, **REASONS.get(outcome, {}))
    bench.wait(60)
    assert outcomes(bench) == []
    assert bench.core.services.by_name["w"].entries == {}


@by_end
def test_an_outcome_waits_for_a_sender_that_is_away_over_a_restart(bench, outcome):
    tracked(bench, ttl=10_000)
    bench.settle()
    ENDS[outcome](bench)
    bench.settle()
    bench.lost("alice")
    bench.crash()
    bench.open("alice")
    assert outcomes(bench) == expected(outcome, **REASONS.get(outcome, {}))
    assert outcomes(bench) == []


@by_end
def test_an_end_that_is_not_stored_is_no_end_and_has_no_outcome(bench, outcome):
    tracked(bench, ttl=10_000)
    ENDS[outcome](bench)
    bench.fail()
    state = bench.store.recover()
    assert len(state.queues["service", "w"].messages) == 1
    assert "alice" not in [name for _, name in state.queues if name != "w"]
    assert [m.code for m in bench.ask("alice", send("bob", b"2", number=2, tracker="t"))][-1:] == [422]
    bench.crash()
    bench.open("alice", "bob", "carl")
    assert len(outcomes(bench)) == 1


def test_a_final_reply_is_the_acknowledgement_of_a_tracked_request(bench):
    tracked(bench)
    bench.tell("bob", reply(1, 1, final=False))
    assert [p["final"] for p in outcomes(bench)] == [False]
    bench.tell("bob", reply(1, 1))
    told = outcomes(bench)
    assert [p for p in told if "outcome" in p] == expected("acknowledged")
    assert [p["final"] for p in told if "final" in p] == [True]


def test_a_reply_of_a_tracked_request_and_its_outcome_are_stored_together(bench):
    tracked(bench)
    bench.tell("bob", reply(1, 1))
    bench.fail()
    bench.settle()
    state = bench.store.recover()
    assert len(state.queues["service", "w"].messages) == 1
    assert ("mailbox", "alice") not in state.queues or not state.queues["mailbox", "alice"].messages


def test_a_refused_command_is_the_outcome_of_its_messages(bench):
    [error] = bench.ask("alice", send("$nobody", b"1", number=1, tracker="t"))
    assert error.code == 404
    bench.tell("alice", send("bob", b"1", number=2, tracker="t"))
    bench.settle()
    assert Stored([[2, 2, 0]]) in bench.sent("alice")


def test_a_tracked_message_that_is_not_stored_is_refused_and_its_tracker_free(bench):
    bench.tell("alice", send("bob", b"1", number=1, tracker="t"))
    bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [507]
    assert bench.core.queue_limits.bytes == 0
    bench.tell("alice", send("bob", b"1", number=2, tracker="t"))
    bench.settle()
    assert Stored([[2, 2, 0]]) in bench.sent("alice")


# Trackers


def test_a_tracker_in_use_is_refused_and_nothing_else_happens(bench):
    bench.tell("alice", send("bob", b"1", number=1, tracker="t"))
    bench.settle()
    held = bench.core.queue_limits.bytes
    [*_, error] = bench.ask("alice", send("carl", b"2", number=2, tracker="t"))
    assert (error.code, error.ref) == (422, 2)
    assert bench.core.queue_limits.bytes == held
    assert "carl" not in bench.core.mailboxes.by_name
    bench.tell("carl", send("bob", b"3", number=1, tracker="t"))
    bench.settle()
    assert Stored([[1, 1, 0]]) in bench.sent("carl")


def test_a_tracker_twice_in_a_batch_is_refused(bench):
    assert [m.code for m in bench.ask("alice", send("bob", b"1", b"2", number=1, tracker="t"))] == [422]
    assert bench.core.queue_limits.bytes == 0


def test_a_tracker_is_in_use_over_a_restart_and_free_after_its_outcome(bench):
    tracked(bench)
    bench.crash()
    bench.open("alice", "bob")
    [*_, error] = bench.ask("alice", send("carl", b"2", number=2, tracker="t"))
    assert error.code == 422
    bench = Bench()
    bench.open("alice", "bob", "carl")
    tracked(bench)
    bench.crash()
    bench.open("alice", "bob", "carl")
    bench.tell("bob", offer())
    bench.settle()
    bench.tell("bob", ack(1, (1, 1)))
    bench.settle()
    bench.tell("alice", send("bob", b"2", number=2, tracker="t"))
    bench.settle()
    assert Stored([[2, 2, 0]]) in bench.sent("alice")


def test_nobody_tracks_without_an_address(bench):
    bench.tell("anon", Hello([2], ""))
    assert [m.code for m in bench.ask("anon", send("bob", b"1", number=1, tracker="t"))][-1] == 416
    assert [m.code for m in bench.ask("anon", request(b"1", number=2, tracker="t"))] == [416]


def test_a_dead_letter_that_is_sent_again_has_no_second_outcome(bench):
    tracked(bench)
    bench.tell("bob", Reject(1, [[1, 1]]))
    assert len(outcomes(bench)) == 1
    bench.ask("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w"}))
    bench.settle()
    bench.tell("bob", ack(1, (2, 2)))
    assert outcomes(bench) == []
    assert bench.core.services.by_name["w"].entries == {}


def test_a_duplicate_has_no_outcome_of_its_own(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x", tracker="t"))
    bench.tell("alice", send("bob", b"1", number=2, id="x", tracker="u"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    assert [p["tracker"] for p in outcomes(bench)] == ["t"]


def test_a_message_to_oneself_can_be_tracked(bench):
    bench.tell("alice", mail_credit(1), send("alice", b"1", number=1, tracker="t"))
    bench.settle()
    assert bench.bodies("alice") == [b"1"]
    bench.tell("alice", ack(0, (1, 1)))
    bench.settle()
    assert [p["outcome"] for p in outcomes(bench)] == ["acknowledged"]
    assert bench.core.queue_limits.bytes == 0


def test_what_ends_with_a_private_mailbox_is_reported():
    bench = Bench()
    bench.open("alice")
    bench.tell("anon", Hello([2], ""), mail_credit())
    private = next(name for name in bench.core.mailboxes.by_name if name.startswith("$"))
    bench.tell("alice", send(private, b"1", number=1, tracker="t"))
    bench.settle()
    bench.tell("anon", Bye())
    assert [p["outcome"] for p in outcomes(bench)] == ["purged"]
    assert bench.core.queue_limits.bytes == 0


def test_so_is_what_was_acknowledged_there_if_the_disk_refuses_that():
    bench = Bench()
    bench.open("alice")
    bench.tell("anon", Hello([2], ""), mail_credit())
    private = next(name for name in bench.core.mailboxes.by_name if name.startswith("$"))
    bench.tell("alice", send(private, b"1", number=1, tracker="t"))
    bench.settle()
    bench.tell("anon", ack(0, (1, 1)))
    bench.tell("anon", Bye())
    bench.fail()
    assert [p["outcome"] for p in outcomes(bench)] == ["purged"]
    assert bench.core.queue_limits.bytes == 0
    bench.tell("alice", send("alice", b"2", number=2, tracker="t"))
    bench.settle()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == []


# Room


def test_wp10_there_is_always_room_for_an_outcome():
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice", "bob", "carl")
    bench.tell("alice", send("bob", b"1", number=1, tracker="t"))
    bench.tell("carl", send("alice", b"2", number=1), send("alice", b"3", number=2))
    bench.settle()
    assert [m.ref for m in bench.sent("carl") if isinstance(m, Error)] == [2]
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.tell("alice", mail_credit())
    bench.settle()
    assert [item.properties for item in bench.got("alice")][-1]["outcome"] == "acknowledged"


def test_wp10_a_tracked_message_is_refused_when_there_is_no_room_for_its_outcome():
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice", "bob", "carl")
    bench.tell("carl", send("alice", b"1", b"2"))
    [error] = bench.ask("alice", send("bob", b"1", number=1, tracker="t"))
    assert (error.code, error.ref) == (503, 1)
    assert "outcome" in error.text
    assert "bob" not in bench.core.mailboxes.by_name


def test_wp4_all_room_comes_back(bench):
    for number, outcome in enumerate(ENDS, 1):
        tracked_bench = Bench(queues=QueuePolicy(attempts_max=1, dead_letters_max=0))
        tracked_bench.open("alice", "bob", "carl")
        tracked(tracked_bench, ttl=10_000)
        ENDS[outcome](tracked_bench)
        assert len(outcomes(tracked_bench)) == 1, number
        assert tracked_bench.core.queue_limits.bytes == 0
        assert tracked_bench.core.mailboxes.by_name["alice"].usage.reserved == 0


def test_the_room_for_an_outcome_is_kept_over_a_restart():
    bench = Bench()
    bench.open("alice", "bob")
    tracked(bench)
    held = bench.core.queue_limits.bytes
    bench.crash()
    assert bench.core.queue_limits.bytes == held


def test_an_outcome_has_the_subject_of_its_message_and_no_sender(bench):
    tracked(bench, subject="colour.A4")
    bench.tell("alice", mail_credit())
    bench.tell("bob", ack(1, (1, 1)))
    bench.settle()
    [delivery] = [m for m in bench.sent("alice") if isinstance(m, Deliver)]
    [item] = items(delivery)
    assert (item.subject, item.body, item.sender) == ("colour.A4", b"", "")
