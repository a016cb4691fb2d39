"""What a receiver can say about a delivery, and what the clock says."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, reply, request, send, subscribe

from malamute.protocol.messages import (
    Cancel,
    Change,
    Credit,
    Error,
    Nak,
    Progress,
    Query,
    Recall,
    Reject,
    Release,
    Withdraw,
)
from malamute.store.policies import QueuePolicy

POLICY = QueuePolicy(ack_timeout_seconds=60.0, attempts_max=3, backoff_seconds=(1.0, 5.0))


@pytest.fixture
def bench():
    bench = Bench(queues=POLICY)
    bench.open("alice", "bob", "carl")
    return bench


def taken(bench, name):
    """Sequence and attempt of what a peer was given since the last time."""
    bench.settle()
    return [(item.sequence, item.attempt) for item in bench.got(name)]


def worker(bench, *bodies, name="bob", **fields):
    """A worker that holds requests with these bodies."""
    bench.tell(name, offer(**fields))
    bench.tell("alice", request(*bodies))
    return taken(bench, name)


def dead(bench, kind="service", name="w"):
    """The dead letters of a queue, as an operator sees them."""
    bench.sent("carl")
    bench.tell("carl", Query(1, "messages", {"kind": kind, "name": name, "dead": True}))
    bench.read_all()
    [answer] = bench.sent("carl")
    return answer.value


# Nak


def test_wp31_a_nak_brings_a_request_back_after_the_backoff_of_its_attempts(bench):
    assert worker(bench, b"1") == [(1, 1)]
    bench.tell("bob", Nak(1, [[1, 1]]))
    assert taken(bench, "bob") == []
    bench.wait(0.99)
    assert taken(bench, "bob") == []
    bench.wait(0.01)
    assert taken(bench, "bob") == [(1, 2)]
    bench.tell("bob", Nak(1, [[1, 1]]))
    bench.wait(4.9)
    assert taken(bench, "bob") == []
    bench.wait(0.1)
    assert taken(bench, "bob") == [(1, 3)]


def test_a_nak_at_once_puts_messages_back_into_their_old_places(bench):
    bench.tell("alice", send("bob", b"1", b"2", b"3"))
    bench.tell("bob", mail_credit(2))
    assert taken(bench, "bob") == [(1, 1), (2, 1)]
    bench.tell("bob", Nak(0, [[1, 2]], 0))
    bench.tell("bob", Credit(0, 3))
    assert taken(bench, "bob") == [(1, 2), (2, 2), (3, 1)]


def test_a_nak_may_name_its_delay(bench):
    worker(bench, b"1")
    bench.tell("bob", Nak(1, [[1, 1]], 250))
    bench.wait(0.25)
    assert taken(bench, "bob") == [(1, 2)]


def test_what_is_delayed_goes_back_to_its_old_place(bench):
    worker(bench, b"1", b"2", credit=1)
    bench.tell("bob", Nak(1, [[1, 1]], 1000))
    bench.wait(1)
    bench.tell("bob", Credit(1, 2))
    assert taken(bench, "bob") == [(1, 2), (2, 1)]


def test_a_nak_with_no_backoff_configured_is_at_once():
    bench = Bench(queues=POLICY._replace(backoff_seconds=()))
    bench.open("alice", "bob")
    worker(bench, b"1")
    bench.tell("bob", Nak(1, [[1, 1]]))
    assert taken(bench, "bob") == [(1, 2)]


def test_attempts_outlive_the_broker(bench):
    worker(bench, b"1")
    bench.tell("bob", Nak(1, [[1, 1]], 0))
    assert taken(bench, "bob") == [(1, 2)]
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 3)]


def test_a_delay_outlives_the_broker(bench):
    worker(bench, b"1", b"2", b"3")
    bench.tell("bob", Nak(1, [[1, 1]], 10_000), Nak(1, [[2, 2]]))
    bench.settle()
    for _ in range(2):
        bench.crash()
        bench.open("bob")
        bench.tell("bob", offer())
        bench.settle()
    assert taken(bench, "bob")[-1:] == [(3, 3)]
    bench.wait(1)
    assert taken(bench, "bob") == [(2, 2)]
    bench.wait(8.9)
    assert taken(bench, "bob") == []
    bench.wait(0.1)
    assert taken(bench, "bob") == [(1, 2)]
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 3), (2, 3)]


def test_a_delay_that_was_over_before_a_restart_is_over(bench):
    worker(bench, b"1")
    bench.tell("bob", Nak(1, [[1, 1]], 10_000))
    bench.settle()
    bench.now += 11
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 2)]


def test_what_is_delayed_over_a_restart_expires_in_its_time(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", ttl=5_000, tracker="t"))
    bench.settle()
    bench.tell("bob", Nak(1, [[1, 1]], 10_000))
    bench.settle()
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", mail_credit())
    bench.wait(5)
    bench.settle()
    assert [item.properties["outcome"] for item in bench.got("alice")] == ["expired"]
    assert not bench.core.services.by_name["w"].entries


# Dead letters


def test_wp31_a_request_that_fails_too_often_is_a_dead_letter(bench):
    worker(bench, b"1")
    for _ in range(POLICY.attempts_max):
        bench.tell("bob", Nak(1, [[1, 1]], 0))
        bench.settle()
    assert [attempt for _, attempt in taken(bench, "bob")] == [2, 3]
    [row] = dead(bench)
    assert (row["subject"], row["body"], row["sender"], row["state"]) == ("a", b"1", "alice", "dead-lettered")
    assert row["properties"]["correlation"] == 0
    found = row["properties"]["dead"]
    assert (found["reason"], found["attempts"], found["sequence"]) == ("max-deliver", 3, 1)
    assert found["time"] == row["time"] <= found["died"]
    assert bench.core.services.by_name["w"].entries == {}
    assert "service.dead.w" in bench.events


def test_wp31_a_request_that_kills_its_workers_is_a_dead_letter(bench):
    bench.tell("alice", request(b"poison"))
    for _ in range(POLICY.attempts_max):
        bench.open("bob")
        bench.tell("bob", offer())
        bench.settle()
        bench.lost("bob")
    bench.settle()
    assert [row["properties"]["dead"]["attempts"] for row in dead(bench)] == [3]


def test_attempts_without_limit_are_never_dead():
    bench = Bench(queues=POLICY._replace(attempts_max=0))
    bench.open("alice", "bob", "carl")
    worker(bench, b"1")
    for _ in range(50):
        bench.tell("bob", Nak(1, [[1, 1]], 0))
        bench.settle()
    assert taken(bench, "bob")[-1] == (1, 51)


ONCE = POLICY._replace(attempts_max=1)


def test_what_was_passed_over_has_its_one_attempt_after_a_restart():
    bench = Bench(queues=ONCE)
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(b"1", subject="x"), request(b"2", subject="y"), request(b"3", subject="x"))
    bench.settle()
    bench.tell("bob", offer(pattern="y"))
    assert taken(bench, "bob") == [(2, 1)]
    bench.crash()
    bench.open("bob", "carl")
    bench.settle()
    assert [row["body"] for row in dead(bench)] == [b"2"]
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 1), (3, 1)]


def test_what_came_while_a_worker_waited_and_went_to_nobody_has_its_one_attempt():
    bench = Bench(queues=ONCE)
    bench.open("alice", "bob", "carl")
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", b"2", b"3", number=1))
    assert taken(bench, "bob") == [(1, 1)]
    bench.crash()
    bench.open("bob", "carl")
    bench.settle()
    assert [row["body"] for row in dead(bench)] == [b"1"]
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(2, 1), (3, 1)]


def test_what_was_released_has_its_one_attempt_after_a_restart():
    bench = Bench(queues=ONCE)
    bench.open("alice", "bob", "carl")
    worker(bench, b"1", credit=1)
    bench.tell("bob", Release(1, [[1, 1]]))
    bench.settle()
    bench.crash()
    bench.open("bob", "carl")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 1)]
    bench.crash()
    bench.open("bob", "carl")
    bench.settle()
    assert [row["properties"]["dead"]["attempts"] for row in dead(bench)] == [1]


def test_nothing_is_sent_before_the_disk_knows_of_its_one_attempt():
    bench = Bench(queues=ONCE)
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=1))
    bench.commit()
    assert bench.got("bob") == []
    assert bench.store.recover().queues["service", "w"].attempts == {}
    bench.commit()
    assert bench.bodies("bob") == [b"1"]
    assert bench.store.recover().queues["service", "w"].attempts == {1: 1}


def test_a_rejected_message_is_a_dead_letter_with_its_reason_at_once(bench):
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Reject(0, [[1, 1]], "not for me"))
    bench.settle()
    [row] = dead(bench, "mailbox", "bob")
    assert row["properties"]["dead"]["reason"] == "not for me"
    assert list(bench.core.mailboxes.by_name["bob"].entries) == [2]


def test_a_dead_letter_outlives_the_broker(bench):
    worker(bench, b"1")
    bench.tell("bob", Reject(1, [[1, 1]], "no"))
    bench.settle()
    bench.crash()
    bench.open("carl")
    [row] = dead(bench)
    assert (row["sequence"], row["body"], row["properties"]["dead"]["reason"]) == (1, b"1", "no")


def test_a_message_whose_dead_letter_is_not_stored_is_still_in_the_queue(bench):
    worker(bench, b"1", credit=1)
    bench.tell("bob", Reject(1, [[1, 1]], "no"))
    bench.tell("bob", Credit(1, 1))
    bench.fail()
    assert dead(bench) == []
    assert taken(bench, "bob") == [(1, 2)]
    bench.crash()
    bench.open("carl")
    assert dead(bench) == []
    assert len(bench.core.services.by_name["w"].entries) == 1


def test_the_oldest_dead_letter_leaves_when_there_are_too_many():
    bench = Bench(queues=POLICY._replace(dead_letters_max=2))
    bench.open("alice", "bob", "carl")
    worker(bench, b"1", b"2", b"3")
    bench.tell("bob", Reject(1, [[1, 2]]))
    bench.settle()
    assert len(dead(bench)) == 2
    assert "service.dead-dropped.w" not in bench.events
    bench.tell("bob", Reject(1, [[3, 3]]))
    bench.settle()
    assert [row["body"] for row in dead(bench)] == [b"2", b"3"]
    assert "service.dead-dropped.w" in bench.events
    bench.crash()
    bench.open("carl")
    assert [row["body"] for row in dead(bench)] == [b"2", b"3"]


def test_what_is_sent_again_costs_no_dead_letter_its_place():
    """Of those that are kept, one is on its way to the queue when another comes."""
    bench = Bench(queues=POLICY._replace(dead_letters_max=2))
    bench.open("alice", "bob", "carl")
    worker(bench, b"1", b"2", b"3")
    bench.tell("bob", Reject(1, [[1, 2]]))
    bench.settle()
    bench.tell("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w", "sequences": [2]}))
    bench.read()
    bench.tell("bob", Reject(1, [[3, 3]]))
    bench.settle()
    assert [row["body"] for row in dead(bench)] == [b"1", b"3"]


def test_what_comes_back_among_the_dead_letters_is_the_first_to_leave():
    """What was to be sent again was not stored, and another has come meanwhile."""
    bench = Bench(queues=POLICY._replace(dead_letters_max=2))
    bench.open("alice", "bob", "carl")
    worker(bench, b"1", b"2", b"3")
    bench.tell("bob", Reject(1, [[1, 2]]))
    bench.settle()
    bench.tell("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w", "sequences": [1]}))
    bench.read()
    bench.tell("bob", Reject(1, [[3, 3]]))
    bench.fail()
    bench.settle()
    assert [row["body"] for row in dead(bench)] == [b"2", b"3"]
    assert len(bench.core.services.by_name["w"].entries) == 0


def test_no_dead_letters_are_kept_where_none_are_wanted():
    bench = Bench(queues=POLICY._replace(dead_letters_max=0))
    bench.open("alice", "bob", "carl")
    worker(bench, b"1")
    bench.tell("bob", Reject(1, [[1, 1]]))
    bench.settle()
    assert dead(bench) == []
    assert bench.core.queue_limits.bytes == 0
    assert bench.store.recover().queues["service", "w"].messages == []


# Timeouts


def test_wp31_a_worker_that_says_nothing_loses_its_request_and_is_notified(bench):
    worker(bench, b"1", b"2", ack_timeout=2000)
    bench.tell("carl", offer())
    bench.wait(1.9)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []
    bench.wait(0.1)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == [Recall(1, [[1, 2]], "timeout")]
    assert [m.code for m in bench.ask("bob", ack(1, (1, 1)))] == [420]
    bench.wait(1)
    assert sorted(taken(bench, "bob") + taken(bench, "carl")) == [(1, 2), (2, 2)]
    assert "service.timeout.w" in bench.events


def test_the_configured_ack_timeout_holds_for_mailboxes(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit(1))
    bench.settle()
    bench.sent("bob")
    bench.wait(POLICY.ack_timeout_seconds)
    assert Recall(0, [[1, 1]], "timeout") in bench.sent("bob")
    bench.tell("bob", mail_credit(1))
    bench.wait(1)
    assert taken(bench, "bob") == [(1, 2)]


def test_progress_starts_the_deadline_anew(bench):
    worker(bench, b"1", b"2", ack_timeout=2000, credit=2)
    bench.wait(1.5)
    bench.tell("bob", Progress(1, [[1, 1]]))
    bench.sent("bob")
    bench.wait(0.5)
    assert Recall(1, [[2, 2]], "timeout") in bench.sent("bob")
    bench.wait(1.4)
    bench.tell("bob", Progress(1, [[1, 1]]))
    bench.wait(1.9)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []
    bench.wait(0.1)
    assert Recall(1, [[1, 1]], "timeout") in bench.sent("bob")


def test_each_delivery_has_its_own_deadline(bench):
    worker(bench, b"1", ack_timeout=2000, credit=2)
    bench.wait(1)
    bench.tell("alice", request(b"2"))
    bench.settle()
    bench.sent("bob")
    bench.wait(1)
    assert Recall(1, [[1, 1]], "timeout") in bench.sent("bob")
    bench.wait(1)
    assert Recall(1, [[2, 2]], "timeout") in bench.sent("bob")


def test_what_was_not_sent_yet_is_not_late(bench):
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("bob", offer(ack_timeout=1000))
    assert bench.got("bob") == []
    bench.wait(5)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []
    assert taken(bench, "bob") == [(1, 1)]
    bench.wait(1)
    assert Recall(1, [[1, 1]], "timeout") in bench.sent("bob")


def test_a_deadline_of_nothing_is_for_ever():
    bench = Bench(queues=POLICY._replace(ack_timeout_seconds=0, idle_seconds=0))
    bench.open("alice", "bob")
    worker(bench, b"1")
    for _ in range(10):
        bench.wait(86_400)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []


def test_the_loop_knows_when_the_first_deadline_is(bench):
    worker(bench, b"1", ack_timeout=10)
    assert bench.core.next_deadline() == bench.now + 0.01


# Release


def test_a_released_request_was_never_attempted(bench):
    worker(bench, b"1", b"2", credit=2)
    bench.tell("bob", Release(1, [[1, 2]]))
    bench.tell("carl", offer())
    assert taken(bench, "carl") == [(1, 1), (2, 1)]


def test_a_release_outlives_the_broker(bench):
    worker(bench, b"1", credit=1)
    bench.tell("bob", Release(1, [[1, 1]]))
    bench.settle()
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 1)]


def test_none_of_the_verbs_gives_credit_back(bench):
    worker(bench, b"1", b"2", b"3", b"4", b"5", credit=4)
    for verb in (Nak(1, [[1, 1]], 0), Reject(1, [[2, 2]]), Release(1, [[3, 3]]), ack(1, (4, 4))):
        bench.tell("bob", verb)
    assert taken(bench, "bob") == []


# Bad input

VERBS = {
    "ack": lambda source, *ranges: ack(source, *ranges),
    "nak": lambda source, *ranges: Nak(source, [[*r] for r in ranges]),
    "reject": lambda source, *ranges: Reject(source, [[*r] for r in ranges]),
    "progress": lambda source, *ranges: Progress(source, [[*r] for r in ranges]),
    "release": lambda source, *ranges: Release(source, [[*r] for r in ranges]),
}
by_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


@by_verb
def test_a_verb_for_what_is_not_outstanding_is_refused_and_does_nothing(bench, verb):
    worker(bench, b"1", b"2", credit=1)
    operations = len(bench.core.effects.stage.operations)
    [error] = bench.ask("bob", verb(1, (1, 1), (2, 2)))
    assert (error.code, error.ref) == (420, 1)
    assert len(bench.core.effects.stage.operations) == operations
    [consumer] = bench.core.services.by_name["w"].consumers.values()
    assert list(consumer.outstanding) == [1]


@by_verb
def test_a_verb_after_the_end_is_refused(bench, verb):
    worker(bench, b"1")
    bench.tell("bob", reply(1, 1))
    bench.settle()
    assert [m.code for m in bench.ask("bob", verb(1, (1, 1)))] == [420]


@by_verb
def test_a_verb_of_somebody_else_is_refused(bench, verb):
    worker(bench, b"1")
    bench.tell("carl", offer(credit=0))
    assert [m.code for m in bench.ask("carl", verb(1, (1, 1)))] == [420]


@by_verb
def test_a_verb_for_a_subscription_or_for_no_source_is_refused(bench, verb):
    bench.tell("bob", subscribe(3))
    bench.tell("alice", publish(b"1"))
    assert [m.code for m in bench.ask("bob", verb(3, (1, 1)))][-1:] == [404]
    assert [m.code for m in bench.ask("bob", verb(4, (1, 1)))] == [404]


@pytest.mark.parametrize("verb", [v for name, v in VERBS.items() if name != "progress"])
def test_what_is_said_of_others_counts_beside_what_was_recalled(bench, verb):
    worker(bench, b"1", b"2", b"3", credit=3)
    [consumer] = bench.core.services.by_name["w"].consumers.values()
    # The recall is on its way while the worker speaks.
    bench.tell("alice", Withdraw(1, "service", "w", 0))
    assert [m for m in bench.ask("bob", verb(1, (1, 1), (2, 2))) if isinstance(m, Error)] == []
    assert list(consumer.outstanding) == [3]
    assert [m.code for m in bench.ask("bob", verb(1, (1, 1), (3, 3), (4, 4)))] == [420]
    assert list(consumer.outstanding) == [3]


def test_a_report_counts_beside_what_was_recalled(bench):
    worker(bench, b"1", b"2", ack_timeout=2000)
    bench.tell("alice", Withdraw(1, "service", "w", 0))
    bench.wait(1)
    assert [m for m in bench.ask("bob", Progress(1, [[1, 1], [2, 2]])) if isinstance(m, Error)] == []
    bench.wait(1.9)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []


def test_a_consumer_remembers_so_many_recalls(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.queue.consumer.RECALLED_MAX", 2)
    worker(bench, b"1", b"2", b"3")
    for correlation in range(3):
        bench.tell("alice", Withdraw(1, "service", "w", correlation))
    bench.tell("alice", request(b"4"))
    assert taken(bench, "bob") == [(4, 1)]
    assert [m.code for m in bench.ask("bob", ack(1, (1, 1), (4, 4)))] == [420]
    assert bench.ask("bob", ack(1, (2, 2), (3, 3), (4, 4))) == []


def test_a_reply_to_a_recalled_request_is_refused_and_passed_on_to_nobody(bench):
    worker(bench, b"1", ack_timeout=1000, credit=1)
    bench.wait(1)
    bench.sent("bob")
    assert [m.code for m in bench.ask("bob", reply(1, 1))] == [420]
    bench.tell("alice", mail_credit())
    assert taken(bench, "alice") == []


def test_a_cancelled_offer_has_no_deadline(bench):
    worker(bench, b"1", ack_timeout=1000)
    bench.tell("bob", Cancel(1))
    bench.sent("bob")
    bench.wait(5)
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)] == []


@pytest.mark.parametrize("store", ["crash", "restart"])
def test_after_a_restart_nobody_holds_anything(bench, store):
    worker(bench, b"1")
    getattr(bench, store)()
    bench.open("bob")
    assert [m.code for m in bench.ask("bob", ack(1, (1, 1)))] == [404]
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [(1, 2)]
