"""Queues: mailboxes and services, one mechanism."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, peer_id, publish, reply, request, send

from malamute.core.queue.waiters import STALE_MIN
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Cancel, Credit, Drain, Error, Hello, Nak, Release, Stored


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl", "dora")
    return bench


def done(bench, name, source, *sequences):
    """The worker is done with requests, and asks for as many more."""
    bench.tell(name, reply(source, *sequences), Credit(source, len(sequences)))
    bench.settle()


# Mailboxes


def test_wp43_a_message_is_confirmed_and_delivered_once_it_is_stored(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1))
    assert bench.got("bob") == []
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]


def test_a_message_without_a_number_does_not_overtake_one_that_waits(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1))
    bench.tell("alice", send("bob", b"2"))
    assert bench.got("bob") == []
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_wp30_a_message_is_removed_by_the_ack_alone(bench):
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.crash()
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("bob")] == [(b"2", 2)]


def test_wp30_what_a_recipient_held_when_it_went_is_redelivered_once_more_and_never_after_its_ack(bench):
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    for attempt, wanted in ((2, [b"2"]), (3, [b"2"]), (4, [])):
        bench.sent("bob")
        bench.lost("bob")
        bench.settle()
        bench.open("bob")
        bench.tell("bob", mail_credit())
        bench.settle()
        assert [(item.body, item.attempt) for item in bench.got("bob")] == [
            (body, attempt) for body in wanted
        ]
        if attempt == 3:
            bench.tell("bob", ack(0, (2, 2)))
            bench.settle()


def test_wp29_what_was_not_acknowledged_is_redelivered_in_order(bench):
    bench.tell("alice", send("bob", b"1", b"2", b"3"))
    bench.tell("bob", mail_credit(2))
    bench.settle()
    bench.sent("bob")
    bench.lost("bob")
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert [(item.sequence, item.attempt) for item in bench.got("bob")] == [(1, 2), (2, 2), (3, 1)]


def test_an_ack_takes_ranges_in_any_order_and_twice_over(bench):
    bench.tell("alice", send("bob", b"1", b"2", b"3", b"4"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (3, 9), (1, 1), (1, 1)))
    assert list(bench.core.mailboxes.by_name["bob"].entries) == [2]


def test_an_ack_of_a_vast_range_costs_what_is_outstanding(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 2**63 - 1)))
    assert bench.core.mailboxes.by_name["bob"].entries == {}


def test_an_ack_with_one_range_of_nothing_acknowledges_nothing(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    [error] = bench.ask("bob", ack(0, (1, 1), (2, 2)))
    assert error.code == 420
    assert list(bench.core.mailboxes.by_name["bob"].entries) == [1]


def test_wp10_a_full_mailbox_refuses_and_loses_nothing():
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1), send("bob", b"2", b"3", number=2))
    bench.tell("alice", send("bob", b"4", number=3), send("bob", b"5", number=4))
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"4"]
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Error)] == [2, 4]


def test_what_is_acknowledged_makes_room():
    bench = Bench(Limits(queue_messages=1))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.tell("alice", send("bob", b"2", number=1))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]
    assert bench.core.queue_limits.bytes == bench.core.mailboxes.by_name["bob"].usage.bytes > 0


def test_wp43_a_numbered_message_that_is_not_stored_is_never_delivered(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1))
    bench.fail()
    bench.settle()
    assert bench.got("bob") == []
    assert bench.core.queue_limits.bytes == 0
    assert [m.code for m in bench.sent("alice")] == [507]


def test_an_ack_is_done_even_if_what_was_stored_with_it_fails(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.receive("alice", send("carl", b"2", number=1))
    bench.tell("bob", ack(0, (1, 1)))
    bench.fail()
    assert bench.store.recover().queues["mailbox", "bob"].messages == []


# Services


def test_wp13_no_request_waits_behind_a_slow_worker(bench):
    for worker in ("bob", "carl", "dora"):
        bench.tell(worker, offer(credit=1))
    for number in range(1, 4):
        bench.tell("alice", request(b"%d" % number))
    bench.settle()
    assert [bench.bodies(worker) for worker in ("bob", "carl", "dora")] == [[b"1"], [b"2"], [b"3"]]
    for number in range(4, 8):
        bench.tell("alice", request(b"%d" % number))
        bench.settle()
        done(bench, "carl", 1, 2 if number == 4 else number - 1)
    assert bench.bodies("carl") == [b"4", b"5", b"6", b"7"]


def test_wp14_a_worker_with_credit_for_one_holds_one(bench):
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.tell("bob", offer(credit=1))
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("carl", offer(credit=5))
    bench.settle()
    assert bench.bodies("carl") == [b"2", b"3"]


@pytest.mark.parametrize("together", [True, False])
def test_wp14_a_worker_that_comes_first_is_not_flooded(bench, together):
    """With credit for one it holds one, whether what comes then comes at once or one by one."""
    bench.tell("bob", offer(credit=1))
    bodies = [b"1", b"2", b"3"]
    for some in [bodies] if together else [[body] for body in bodies]:
        bench.tell("alice", request(*some))
        bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("carl", offer(credit=5))
    bench.settle()
    assert (bench.bodies("bob"), bench.bodies("carl")) == ([], [b"2", b"3"])


def test_workers_alternate(bench):
    bench.tell("bob", offer(credit=-1))
    bench.tell("carl", offer(credit=-1))
    for number in range(4):
        bench.tell("alice", request(b"%d" % number))
    assert bench.bodies("bob") == [b"0", b"2"]
    assert bench.bodies("carl") == [b"1", b"3"]


def test_workers_with_different_subjects_alternate_too(bench):
    bench.tell("bob", offer(pattern="#"))
    bench.tell("carl", offer(pattern="a"))
    for number in range(4):
        bench.tell("alice", request(b"%d" % number))
    assert bench.bodies("bob") == [b"0", b"2"]
    assert bench.bodies("carl") == [b"1", b"3"]


def test_a_worker_gets_only_the_subjects_that_it_offers(bench):
    bench.tell("alice", request(b"1", subject="colour.A4"), request(b"2", subject="bw.A4"))
    bench.tell("bob", offer(pattern="bw.#"))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]
    bench.tell("carl", offer(pattern="#"))
    bench.settle()
    assert bench.bodies("carl") == [b"1"]


def test_wp31_a_lost_worker_s_requests_go_to_another_in_their_old_places(bench):
    bench.tell("bob", offer(credit=2))
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.settle()
    bench.lost("bob")
    bench.tell("carl", offer(credit=-1))
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("carl")] == [(b"1", 2), (b"2", 2), (b"3", 1)]


BACK = {
    "is lost": lambda bench: bench.core.lost(peer_id("bob"), bench.now),
    "cancels": lambda bench: bench.receive("bob", Cancel(1)),
    "gives them back": lambda bench: bench.receive("bob", Nak(1, [[1, 9]], 0)),
    "releases them": lambda bench: bench.receive("bob", Release(1, [[1, 9]])),
    "drains": lambda bench: bench.receive("bob", Drain(1, [])),
}


@pytest.mark.parametrize("how", BACK)
@pytest.mark.parametrize("options", [{}, {"ttl": 60_000}], ids=["plain", "options"])
def test_wp31_nothing_that_comes_meanwhile_overtakes_very_many_that_come_back(
    bench, monkeypatch, how, options
):
    monkeypatch.setattr("malamute.core.queue.steps.Steps.step_messages", 2)
    sent = [b"%d" % number for number in range(9)]
    bench.tell("alice", request(*sent, **options))
    bench.settle()
    bench.tell("bob", offer(credit=9))
    bench.settle()
    bench.tell("carl", offer())
    bench.settle()
    BACK[how](bench)
    for body in (b"new", b"newer"):
        bench.tell("alice", request(body, **options))
    bench.settle()
    assert bench.bodies("carl") == [*sent, b"new", b"newer"]


def test_a_cancelled_offer_gives_back_what_it_held(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", b"2"))
    bench.tell("carl", offer())
    bench.tell("bob", Cancel(1))
    assert bench.bodies("carl") == [b"1", b"2"]
    assert bench.core.sessions.by_peer[peer_id("bob")].holding == 0


def test_what_was_never_sent_is_no_attempt(bench):
    bench.tell("alice", request(b"1"))
    bench.tell("carl", offer(credit=0))
    bench.receive("bob", offer(), Cancel(1))
    bench.tell("carl", Credit(1, 1))
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("carl")] == [(b"1", 1)]


def test_a_blocked_worker_is_passed_over_and_is_dispatched_to_again(bench):
    bench.tell("bob", offer(credit=-1))
    bench.tell("carl", offer(credit=1))
    bench.block("bob")
    bench.tell("alice", request(b"1"))
    bench.tell("alice", request(b"2"))
    assert bench.got("bob") == []
    assert bench.bodies("carl") == [b"1"]
    bench.unblock("bob")
    bench.settle()
    assert bench.bodies("bob") == [b"2"]


def test_wp47_partial_replies_come_in_order_and_give_no_credit_back(bench):
    bench.tell("alice", mail_credit())
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", b"2"))
    bench.settle()
    bench.tell("bob", reply(1, 1, 1, 1, final=False, body=b"part"))
    bench.tell("bob", reply(1, 1))
    bench.settle()
    replies = bench.got("alice")
    assert [item.body for item in replies] == [b"part", b"part", b"part", b"done"]
    assert [item.properties["final"] for item in replies] == [False, False, False, True]
    assert {item.properties["correlation"] for item in replies} == {0}
    assert bench.bodies("bob") == [b"1"]


def test_wp48_a_reply_waits_for_its_requester_over_a_restart(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=1))
    bench.settle()
    bench.lost("alice")
    bench.tell("bob", reply(1, 1, number=1))
    bench.settle()
    bench.crash()
    bench.open("alice")
    bench.tell("alice", mail_credit())
    bench.settle()
    assert bench.bodies("alice") == [b"done"]


def test_wp45_a_request_without_a_worker_survives_a_restart(bench):
    bench.tell("alice", request(b"1", number=1))
    bench.settle()
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    bench.settle()
    assert [(item.body, item.sender) for item in bench.got("bob")] == [(b"1", "alice")]


def test_wp46_a_request_shows_the_worker_who_asked_and_what(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", subject="bw.A4"))
    bench.settle()
    [item] = bench.got("bob")
    assert item[1:6] == ("bw.A4", b"1", "alice", 1, {"correlation": 0})


def test_a_final_reply_that_is_not_stored_leaves_the_request_in_the_queue(bench):
    bench.tell("alice", request(b"1"))
    bench.tell("bob", offer(credit=1))
    bench.settle()
    bench.tell("bob", reply(1, 1, number=1))
    bench.tell("carl", offer())
    bench.fail()
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("carl")] == [(b"1", 2)]
    assert len(bench.store.recover().queues["service", "w"].messages) == 1


def test_a_crash_leaves_no_request_both_done_and_undone(bench):
    bench.tell("alice", request(b"1"))
    bench.tell("bob", offer(credit=1))
    bench.settle()
    bench.tell("bob", reply(1, 1, number=1))
    bench.crash()
    assert bench.store.recover().queues["service", "w"].messages
    assert ("mailbox", "alice") not in bench.store.recover().queues


def test_a_request_has_one_final_reply(bench):
    bench.tell("alice", request(b"1"))
    bench.tell("bob", offer())
    bench.settle()
    assert [m.code for m in bench.ask("bob", reply(1, 1, 1))] == [420]
    bench.tell("bob", reply(1, 1))
    assert [m.code for m in bench.ask("bob", reply(1, 1))] == [420]


def test_a_refused_batch_of_replies_passes_none_on():
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice", "bob")
    bench.tell("alice", request(b"1", b"2"))
    bench.tell("bob", offer())
    bench.settle()
    assert [m.code for m in bench.ask("bob", reply(1, 1, 2, 1, final=False))] == [503]
    bench.tell("bob", reply(1, 1, 2))
    bench.tell("alice", mail_credit())
    bench.settle()
    assert bench.bodies("alice") == [b"done", b"done"]


def test_wp4_a_line_without_credit_does_not_gather_what_others_have_taken(bench):
    bench.tell("bob", offer(credit=0, pattern="a"))
    for _ in range(3 * STALE_MIN):
        bench.tell("alice", request(b"1"))
        bench.tell("carl", offer(credit=1))
        bench.settle()
        [item] = bench.got("carl")
        bench.tell("carl", ack(1, (item.sequence, item.sequence)), Cancel(1))
        bench.settle()
    [group] = {consumer.group for consumer in bench.core.services.by_name["w"].consumers.values()}
    assert len(group.ready) <= STALE_MIN + 1


def test_a_reply_needs_an_offer(bench):
    assert [m.code for m in bench.ask("bob", reply(1, 1))] == [404]


def test_wp41_a_message_has_the_sender_that_the_broker_knows(bench):
    bench.tell("bob", mail_credit())
    bench.tell("anon", Hello([2], ""))
    bench.tell("anon", send("bob", b"1"))
    bench.tell("alice", send("bob", b"2"))
    bench.settle()
    assert [item.sender for item in bench.got("bob")] == ["", "alice"]


def test_wp42_a_message_comes_with_its_bodies_and_the_sender_that_the_broker_stamped(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.settle()
    assert [(item.body, item.sender) for item in bench.got("bob")] == [(b"1", "alice"), (b"2", "alice")]


def test_wp44_a_recipient_holds_as_many_as_its_credit(bench):
    bench.tell("alice", send("bob", *[b"x"] * 150))
    bench.tell("bob", mail_credit(100))
    bench.settle()
    assert len(bench.got("bob")) == 100
    bench.tell("bob", ack(0, (1, 100)))
    bench.settle()
    assert bench.got("bob") == []
    bench.tell("bob", mail_credit(100))
    bench.settle()
    assert len(bench.got("bob")) == 50


def test_a_stream_and_a_mailbox_of_one_name_have_nothing_in_common(bench):
    bench.tell("alice", publish(b"1", stream="bob"), send("bob", b"2"))
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"2"]


def test_an_offer_that_asks_for_headers_is_refused(bench):
    bench.open("alice")
    (answer,) = bench.ask("alice", offer(criteria=[["fields", "urgent"]]))
    assert (answer.code, answer.about, answer.ref) == (415, 7, 1)
    assert not bench.core.sessions.by_address["alice"].sources
