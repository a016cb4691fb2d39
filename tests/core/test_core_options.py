"""What a sender may ask for with a message."""

from __future__ import annotations

from itertools import pairwise

import pytest
from core_bench import START, Bench, ack, mail_credit, offer, reply, request, send

from malamute.core.iteration.effects import WORK_MAX
from malamute.core.queue.affinity import AFFINITY_KEYS_MAX, KeyAffinity
from malamute.core.queue.deduplication import DEDUP_BYTES
from malamute.core.queue.waiters import rank_of, sequence_of
from malamute.protocol.limits import DURATION_MS_MAX, Limits
from malamute.protocol.messages import (
    Cancel,
    Credit,
    Error,
    Nak,
    Ok,
    Query,
    Recall,
    Stored,
    Withdraw,
)
from malamute.store.policies import QueuePolicy

NOW = int(START * 1e9)


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl", "dora")
    return bench


def taken(bench, name):
    bench.settle()
    return bench.bodies(name)


def rows(bench, kind="mailbox", name="bob", **arguments):
    [answer] = bench.ask("dora", Query(1, "messages", {"kind": kind, "name": name, **arguments}))
    return answer.value


# What may be asked for

GOOD = [
    {"correlation": -5},
    {"correlation": "x" * 255},
    {"id": "x"},
    {"id": "é" * 127},
    {"tracker": "x" * 255},
    {"ttl": 1},
    {"ttl": DURATION_MS_MAX},
    {"priority": 0},
    {"priority": 9},
    {"delay": 0},
    {"delay": DURATION_MS_MAX},
    {"at": 0},
    {"at": NOW + DURATION_MS_MAX * 1_000_000},
    {"reply_to": "carl"},
    {"key": "k"},
    {"immediate": False},
]
BAD = [
    {"correlation": 1.5},
    {"correlation": None},
    {"correlation": True},
    {"correlation": "x" * 256},
    {"id": ""},
    {"id": 7},
    {"id": "é" * 128},
    {"tracker": ""},
    {"tracker": "x" * 256},
    {"tracker": 1},
    {"ttl": 0},
    {"ttl": -1},
    {"ttl": 1.0},
    {"ttl": True},
    {"ttl": DURATION_MS_MAX + 1},
    {"priority": -1},
    {"priority": 10},
    {"priority": "high"},
    {"delay": -1},
    {"delay": DURATION_MS_MAX + 1},
    {"at": -1},
    {"at": NOW + DURATION_MS_MAX * 1_000_000 + 1},
    {"at": 2**64 - 1},
    {"delay": 1, "at": NOW},
    {"reply_to": ""},
    {"reply_to": "$sys"},
    {"reply_to": 7},
    {"key": ""},
    {"key": 1},
    {"immediate": 1},
    {"timeout": 5},
    {"outcome": "acknowledged", "tracker": "t"},
    {"service": "w"},
    {"dead": "x"},
]


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_an_option_is_taken_at_its_limits(bench, options):
    bench.tell("alice", send("bob", b"1", number=1, **options))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]


@pytest.mark.parametrize("command", [send("bob", b"1"), request(b"1")], ids=["send", "request"])
@pytest.mark.parametrize("options", BAD, ids=str)
def test_an_option_past_its_limits_is_refused_and_nothing_else_happens(bench, command, options):
    command = command._replace(number=1, properties=[options])
    [error] = bench.ask("alice", command)
    assert (error.code, error.ref) == (416, 1)
    assert bench.core.queue_limits.bytes == 0
    assert bench.core.mailboxes.by_name.keys() <= {"alice"}
    assert bench.core.services.by_name == {}
    assert bench.appends == type(bench.appends)()


def test_one_bad_option_refuses_the_batch(bench):
    command = send("bob", b"1", b"2", number=1)._replace(properties=[{"ttl": 1000}, {"ttl": 0}])
    assert [m.code for m in bench.ask("alice", command)] == [416]
    assert bench.core.mailboxes.by_name == {}
    assert len(bench.core.timers) == 0


# Time to live


def test_a_message_is_over_when_its_time_has_passed(bench):
    bench.tell("alice", send("bob", b"1", ttl=1000), send("bob", b"2"))
    bench.settle()
    bench.wait(0.999)
    assert len(rows(bench)) == 2
    bench.wait(0.001)
    assert [row["body"] for row in rows(bench)] == [b"2"]
    assert "mailbox.expired.bob" in bench.events
    bench.settle()
    assert [m.sequence for m in bench.store.recover().queues["mailbox", "bob"].messages] == [2]
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"2"]


def test_a_message_expires_while_it_is_outstanding_and_its_holder_is_notified(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", ttl=1000))
    bench.settle()
    bench.sent("bob")
    bench.wait(1)
    assert Recall(1, [[1, 1]], "expired") in bench.sent("bob")
    assert [m.code for m in bench.ask("bob", reply(1, 1))] == [420]
    assert rows(bench, "service", "w") == []


def test_a_message_expires_while_it_is_delayed(bench):
    bench.tell("alice", send("bob", b"1", ttl=1000, delay=2000))
    bench.settle()
    bench.wait(1)
    assert rows(bench) == []
    bench.wait(2)
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == []


def test_a_message_expires_while_it_is_given_back_beside_very_many(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.queue.steps.Steps.step_messages", 1)
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", b"2", ttl=60_000))
    assert taken(bench, "bob") == [b"1", b"2"]
    bench.receive("bob", Nak(1, [[1, 2]], 3_600_000))
    bench.wait(60)
    bench.settle()
    assert not bench.core.services.by_name["w"].entries


def test_a_message_that_expires_before_it_is_stored_is_never_delivered(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1, ttl=1000))
    bench.wait(2)
    assert taken(bench, "bob") == []
    assert rows(bench) == []
    assert bench.core.queue_limits.bytes == 0


def test_a_time_to_live_continues_over_a_restart(bench):
    bench.tell("alice", send("bob", b"1", ttl=1000), send("bob", b"2", ttl=5000))
    bench.settle()
    bench.now += 2
    bench.crash()
    bench.open("bob", "dora")
    bench.settle()
    assert [row["body"] for row in rows(bench)] == [b"2"]
    bench.wait(3)
    assert rows(bench) == []


def test_what_was_done_in_time_does_not_expire(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", ttl=1000))
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.events.clear()
    bench.wait(5)
    assert bench.events == []
    assert len(bench.core.mailboxes.by_name["bob"].options) == 0


# Delay


def test_a_delayed_message_waits_for_its_time(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"late", delay=5000), send("bob", b"now"))
    assert taken(bench, "bob") == [b"now"]
    assert [(row["body"], row["state"]) for row in rows(bench, state="delayed")] == [(b"late", "delayed")]
    bench.wait(4.9)
    assert taken(bench, "bob") == []
    bench.wait(0.1)
    assert taken(bench, "bob") == [b"late"]


def test_a_message_may_name_the_time(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", at=NOW + 3_000_000_000), send("bob", b"2", at=NOW - 1))
    assert taken(bench, "bob") == [b"2"]
    bench.wait(3)
    assert taken(bench, "bob") == [b"1"]


def test_a_delay_continues_over_a_restart(bench):
    bench.tell("alice", send("bob", b"1", number=1, delay=5000))
    bench.settle()
    bench.wait(2)
    bench.crash()
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.wait(2.9)
    assert taken(bench, "bob") == []
    bench.wait(0.1)
    assert taken(bench, "bob") == [b"1"]


def test_what_is_delayed_was_never_delivered_though_others_behind_it_were(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", delay=5000), send("bob", b"2"))
    bench.settle()
    attempts = []
    for _ in range(2):
        bench.crash()
        bench.open("bob")
        bench.tell("bob", mail_credit())
        bench.wait(5)
        bench.settle()
        attempts += [item.attempt for item in bench.got("bob") if item.sequence == 1]
    assert attempts == [1, 2]


def test_a_delayed_message_is_confirmed_when_it_is_stored(bench):
    bench.tell("alice", send("bob", b"1", number=1, delay=5000))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]


def test_the_loop_knows_when_the_first_delay_is_over(bench):
    bench.tell("alice", send("bob", b"1", delay=100))
    assert bench.core.next_deadline() == pytest.approx(bench.now + 0.1, abs=1e-6)


def test_a_delayed_message_takes_part_in_the_limits():
    bench = Bench(Limits(queue_messages=1))
    bench.open("alice")
    bench.tell("alice", send("bob", b"1", delay=5000))
    assert [m.code for m in bench.ask("alice", send("bob", b"2", number=1))] == [503]


# Priority


def test_more_important_requests_go_first_and_equals_in_their_order(bench):
    for body, priority in ((b"a", 0), (b"b", 5), (b"c", 9), (b"d", 5), (b"e", 0)):
        bench.tell("alice", request(body, priority=priority))
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [b"c", b"b", b"d", b"a", b"e"]


def test_a_batch_is_dealt_out_by_priority(bench):
    bench.tell("bob", offer(credit=1))
    command = request(b"low", b"high")
    bench.tell("alice", command._replace(properties=[{"priority": 1}, {"priority": 2}]))
    assert taken(bench, "bob") == [b"high"]


def test_a_requeued_message_has_its_priority_still(bench):
    bench.tell("alice", request(b"low"), request(b"high", priority=1))
    bench.tell("bob", offer(credit=1))
    assert taken(bench, "bob") == [b"high"]
    bench.tell("bob", Nak(1, [[2, 2]], 0), Credit(1, 2))
    assert taken(bench, "bob") == [b"high", b"low"]


def test_priority_holds_over_a_restart(bench):
    bench.tell("alice", request(b"low"), request(b"high", priority=1))
    bench.settle()
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [b"high", b"low"]


def test_wp4_nothing_starves_behind_what_is_more_important():
    step = 10
    bench = Bench(queues=QueuePolicy(priority_step_messages=step))
    bench.open("alice", "bob")
    bench.tell("alice", request(b"low"))
    for _ in range(5 * step):
        bench.tell("alice", request(b"high", priority=2))
    bench.tell("bob", offer())
    assert taken(bench, "bob").index(b"low") == 2 * step - 1


@pytest.mark.parametrize("step", [1, 10, 100_000, 2**40])
def test_an_order_leads_back_to_its_message_and_no_two_are_one(step):
    orders = {rank_of(sequence, priority, step) for sequence in range(1, 300) for priority in range(10)}
    assert len(orders) == 299 * 10
    for sequence in (1, 7, 299, 2**48):
        for priority in range(10):
            assert sequence_of(rank_of(sequence, priority, step), step) == sequence
    assert all(rank_of(1, low + 1, step) < rank_of(1, low, step) for low in range(9))


# DedupWindow


def test_the_same_identity_is_taken_in_once_and_confirmed_twice(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x"))
    bench.tell("carl", send("bob", b"2", number=1, id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1"]
    assert bench.sent("alice") == bench.sent("carl") == [Stored([[1, 1, 0]])]


def test_an_identity_is_known_after_its_message_was_done_and_over_a_restart(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1"]
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"2", number=2, id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == []


def settlings(bench, name):
    return [m.code if isinstance(m, Error) else m for m in bench.sent(name) if isinstance(m, Error | Stored)]


def test_a_double_fails_with_the_first(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x"))
    bench.tell("carl", send("bob", b"2", number=1, id="x"))
    bench.tell("dora", send("bob", b"3", number=1))
    bench.fail()
    bench.settle()
    assert settlings(bench, "alice") == settlings(bench, "carl") == [507]
    assert settlings(bench, "dora") == [Stored([[1, 1, 0]])]
    # After a crash nobody takes the number of the double for one that was stored.
    bench.crash()
    bench.open("carl")
    assert [m.sequence for m in bench.store.recover().queues["mailbox", "bob"].messages] == [2]
    bench.tell("carl", send("bob", b"2", number=2, id="x"))
    bench.settle()
    assert settlings(bench, "carl") == [Stored([[2, 2, 0]])]
    assert len(bench.store.recover().queues["mailbox", "bob"].messages) == 2


def test_a_double_fails_with_the_first_that_is_in_memory_alone(bench):
    bench.tell("alice", send("bob", b"1", id="x"))
    bench.tell("carl", send("bob", b"2", number=1, id="x"))
    bench.fail()
    bench.settle()
    assert settlings(bench, "carl") == [507]
    assert bench.store.recover().queues == {}


def test_a_duplicate_fails_if_the_failure_is_learned_in_its_own_iteration(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x"))
    bench.receive("carl", send("bob", b"2", number=1, id="x"))
    bench.fail()
    bench.settle()
    assert settlings(bench, "alice") == settlings(bench, "carl") == [507]
    assert bench.core.mailboxes.by_name["bob"].entries == {}


def test_a_duplicate_in_the_iteration_of_the_first_is_stored_with_it(bench):
    bench.receive("alice", send("bob", b"1", id="x"))
    bench.tell("carl", send("bob", b"2", number=1, id="x"))
    assert bench.appends[-1].needs == frozenset()
    bench.settle()
    assert settlings(bench, "carl") == [Stored([[1, 1, 0]])]


def test_a_double_of_what_is_in_memory_alone_is_refused_until_that_has_its_end(bench):
    bench.tell("alice", send("bob", b"1", id="x"))
    bench.fail()
    bench.settle()
    bench.tell("carl", send("bob", b"2", number=1, id="x"))
    bench.tell("carl", send("bob", b"2", id="x"))
    assert settlings(bench, "carl") == [503]
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1"]
    bench.tell("bob", ack(0, (1, 1)))
    bench.tell("carl", send("bob", b"2", number=2, id="x"))
    bench.settle()
    assert settlings(bench, "carl") == [Stored([[2, 2, 0]])]


def test_an_identity_twice_in_a_batch_is_one_message(bench):
    command = send("bob", b"1", b"2", b"3", number=1)
    bench.tell("alice", command._replace(properties=[{"id": "x"}, {"id": "x"}, None]))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1", b"3"]


def test_queues_do_not_share_identities(bench):
    bench.tell("alice", send("bob", b"1", id="x"), send("carl", b"2", id="x"), request(b"3", id="x"))
    assert [len(q.entries) for q in bench.core.mailboxes.by_name.values() if q.name != "alice"] == [1, 1]
    assert len(bench.core.services.by_name["w"].entries) == 1


def test_an_identity_is_forgotten_after_the_window():
    bench = Bench(queues=QueuePolicy(dedup_window_seconds=10.0))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", id="x"))
    bench.settle()
    bench.now += 9.9
    bench.tell("alice", send("bob", b"2", id="x"))
    bench.now += 0.1
    bench.tell("alice", send("bob", b"3", id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1", b"3"]
    bench.wait(30)
    bench.settle()
    assert bench.core.mailboxes.by_name["bob"].dedup.known == {}
    assert bench.store.recover().queues["mailbox", "bob"].identities == {}


def known(bench, queue):
    return list(bench.core.mailboxes.by_name[queue].dedup.known)


def test_the_queue_with_most_identities_forgets_when_all_have_too_many_bytes():
    size = DEDUP_BYTES + len("bob") + 4
    bench = Bench(Limits(identities_bytes=20 * size))
    bench.open("alice")
    for number in range(1_000, 1_005):
        bench.wait(0.1)
        bench.tell("alice", send("ann", b"", id=str(number)))
    for number in range(1_000, 1_015):
        bench.wait(0.1)
        bench.tell("alice", send("bob", b"", id=str(number)))
    bench.settle()
    assert (len(known(bench, "ann")), len(known(bench, "bob"))) == (5, 15)
    bench.tell("alice", send("ann", b"", id="new"))
    # Whoever adds one too many, it is not the smaller queue that forgets.
    assert (len(known(bench, "ann")), known(bench, "bob")[0]) == (6, "1003")
    bench.settle()
    bench.crash()
    assert (len(known(bench, "ann")), known(bench, "bob")[0]) == (6, "1003")
    room = bench.core.queue_limits.dedup_quota
    assert room.bytes == sum(bench.core.mailboxes.by_name[name].dedup.bytes for name in ("ann", "bob"))


def test_of_queues_with_equally_many_the_first_forgets():
    """The same happens in the same order: what a broker does follows from what it is sent alone."""
    names = [f"box {letter}" for letter in "jihgfedcba"]
    bench = Bench(Limits(identities_bytes=9 * (DEDUP_BYTES + len("box a") + 2)))
    bench.open("alice")
    for name in names:
        bench.tell("alice", send(name, b"", id="id"))
    assert [len(known(bench, name)) for name in names] == [0, *[1] * 9]


def test_identities_are_in_their_budget_however_many_messages_come_and_go():
    bench = Bench(Limits(identities_bytes=10_000))
    bench.open("alice", "bob")
    bench.tell("bob", mail_credit())
    for number in range(300):
        bench.wait(0.1)
        bench.tell("alice", send("bob", b"", id=f"{number:0>200}", number=number + 1))
        bench.settle()
        bench.tell("bob", ack(0, (number + 1, number + 1)))
    bench.settle()
    assert not [error for error in bench.sent("alice") if isinstance(error, Error)]
    assert 0 < bench.core.queue_limits.dedup_quota.bytes <= 10_000
    kept = bench.store.recover().queues["mailbox", "bob"].identities
    assert sum(map(len, kept)) <= 10_000


def test_wp4_a_queue_remembers_so_many_identities():
    bench = Bench(queues=QueuePolicy(dedup_ids_max=3))
    bench.open("alice", "bob")
    for number in range(5):
        bench.wait(1)
        bench.tell("alice", send("bob", b"%d" % number, id=f"{number}"))
        bench.settle()
    assert list(bench.core.mailboxes.by_name["bob"].dedup.known) == ["2", "3", "4"]
    assert set(bench.store.recover().queues["mailbox", "bob"].identities) == {"2", "3", "4"}


def test_a_window_of_nothing_takes_in_everything():
    bench = Bench(queues=QueuePolicy(dedup_window_seconds=0))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", id="x"), send("bob", b"2", id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1", b"2"]


def test_what_was_not_stored_may_be_sent_again(bench):
    bench.tell("alice", send("bob", b"1", number=1, id="x"))
    bench.fail()
    bench.tell("alice", send("bob", b"1", number=2, id="x"))
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == [b"1"]


def test_a_duplicate_is_not_confirmed_when_the_first_was_not_stored(bench):
    bench.receive("alice", send("bob", b"1", number=1, id="x"))
    bench.tell("carl", send("bob", b"1", number=1, id="x"))
    bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("carl") if isinstance(m, Error)] == [507]


# KeyAffinity


def test_requests_of_one_key_go_to_one_worker_while_it_lives(bench):
    for name in ("bob", "carl"):
        bench.tell(name, offer())
    for number in range(6):
        bench.tell("alice", request(b"%d" % number, key="odd" if number % 2 else "even"))
    assert taken(bench, "bob") == [b"0", b"2", b"4"]
    assert taken(bench, "carl") == [b"1", b"3", b"5"]
    bench.tell("bob", ack(1, (1, 9)), Cancel(1))
    bench.tell("alice", request(b"6", key="even"), request(b"7", key="odd"))
    assert taken(bench, "carl") == [b"6", b"7"]


def test_a_request_waits_for_the_worker_of_its_key_while_others_are_free(bench):
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", key="k"))
    assert taken(bench, "bob") == [b"1"]
    bench.tell("carl", offer())
    bench.tell("alice", request(b"2", key="k"), request(b"3"))
    assert taken(bench, "carl") == [b"3"]
    bench.tell("bob", Credit(1, 1))
    assert taken(bench, "bob") == [b"2"]


def test_what_waited_for_a_worker_that_is_lost_goes_to_another_in_order(bench):
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", b"2", b"3", key="k"))
    assert taken(bench, "bob") == [b"1"]
    bench.tell("carl", offer(credit=2))
    bench.tell("alice", request(b"4"))
    assert taken(bench, "carl") == [b"4"]
    bench.lost("bob")
    assert taken(bench, "carl") == [b"1"]
    bench.tell("carl", Credit(1, 5))
    assert taken(bench, "carl") == [b"2", b"3"]


def test_what_waited_in_a_line_follows_its_key(bench):
    bench.tell("alice", request(b"1", b"2", b"3", key="k"))
    bench.tell("bob", offer(credit=1))
    bench.tell("carl", offer(credit=5))
    assert taken(bench, "bob") == [b"1"]
    assert taken(bench, "carl") == []
    bench.tell("bob", Credit(1, 2))
    assert taken(bench, "bob") == [b"2", b"3"]


def test_a_key_does_not_bring_a_worker_what_it_does_not_offer(bench):
    bench.tell("bob", offer(pattern="x"))
    bench.tell("carl", offer(pattern="y"))
    bench.tell("alice", request(b"1", subject="x", key="k"), request(b"2", subject="y", key="k"))
    assert taken(bench, "bob") == [b"1"]
    assert taken(bench, "carl") == [b"2"]


def test_a_bound_request_can_expire_and_be_withdrawn(bench):
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", key="k"), request(b"2", key="k", ttl=1000))
    bench.tell("alice", request(b"3", key="k", correlation="gone"), request(b"4", key="k"))
    bench.settle()
    bench.wait(1)
    bench.tell("alice", Withdraw(1, "service", "w", "gone"))
    bench.tell("bob", Credit(1, 5))
    assert taken(bench, "bob") == [b"1", b"4"]


def test_wp4_so_many_keys_are_remembered_and_the_one_unused_for_longest_goes():
    keys, one, other = KeyAffinity(), object(), object()
    for number in range(AFFINITY_KEYS_MAX):
        keys.bind(f"{number}", one)
    keys.bind("0", other)
    assert keys.owner("0") is one, "a key keeps its holder"
    keys.bind("new", other)
    assert keys.owner("1") is None
    assert keys.owner("0") is one
    keys.release(one)
    assert [keys.owner(key) for key in ("0", "2", "new")] == [None, None, other]


# Immediate


def test_a_request_for_somebody_who_is_there_is_refused_when_nobody_is(bench):
    [error] = bench.ask("alice", request(b"1", number=1, immediate=True))
    assert (error.code, error.about, error.ref) == (504, 4, 1)
    assert bench.core.services.by_name == {}
    bench.tell("bob", offer(credit=0, pattern="x"))
    assert [m.code for m in bench.ask("alice", request(b"1", number=2, immediate=True))] == [504]
    bench.tell("alice", request(b"1", number=3, immediate=True, subject="x"))
    bench.settle()
    assert Stored([[3, 3, 0]]) in bench.sent("alice")
    bench.tell("bob", Credit(1, 1))
    assert taken(bench, "bob") == [b"1"]


def test_a_message_for_an_owner_who_is_there_is_refused_when_it_is_not(bench):
    assert [m.code for m in bench.ask("alice", send("bob", b"1", number=1, immediate=True))] == [504]
    bench.tell("bob", mail_credit(0))
    bench.tell("alice", send("bob", b"1", number=2, immediate=True))
    bench.settle()
    assert bench.sent("alice") == [Stored([[2, 2, 0]])]


# Reply-to


def test_replies_go_where_the_request_says(bench):
    bench.tell("bob", offer())
    bench.tell("alice", mail_credit(), request(b"1", reply_to="carl"))
    bench.tell("carl", mail_credit())
    bench.settle()
    bench.tell("bob", reply(1, 1))
    assert taken(bench, "alice") == []
    [item] = [*bench.got("carl")]
    assert item.properties == {"correlation": 0, "service": "w", "final": True}


def test_a_reply_has_none_of_the_options_of_its_request(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", ttl=1000, delay=0, priority=9, key="k", id="x"), mail_credit())
    bench.settle()
    bench.tell("bob", reply(1, 1))
    bench.settle()
    [item] = bench.got("alice")
    assert item.properties == {"correlation": 0, "service": "w", "final": True}


# Withdraw


def withdraw(bench, name, correlation, kind="service", queue="w"):
    bench.settle()
    bench.sent(name)
    bench.tell(name, Withdraw(9, kind, queue, correlation))
    bench.settle()
    return [m for m in bench.sent(name) if isinstance(m, Ok | Error)]


def test_a_request_that_waits_is_withdrawn(bench):
    bench.tell("alice", request(b"1", b"2"))
    assert withdraw(bench, "alice", 0) == [Ok(20, 9, 1)]
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [b"2"]
    assert [m.sequence for m in bench.store.recover().queues["service", "w"].messages] == [2]


def test_a_delayed_message_is_cancelled_by_withdrawing_it(bench):
    bench.tell("alice", send("bob", b"1", delay=1000, correlation="c"))
    assert withdraw(bench, "alice", "c", "mailbox", "bob") == [Ok(20, 9, 1)]
    bench.wait(2)
    bench.tell("bob", mail_credit())
    assert taken(bench, "bob") == []


def test_an_outstanding_request_is_withdrawn_and_its_worker_notified(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.sent("bob")
    assert withdraw(bench, "alice", 0) == [Ok(20, 9, 1)]
    assert bench.sent("bob") == [Recall(1, [[1, 1]], "withdrawn")]
    assert [m.code for m in bench.ask("bob", reply(1, 1))] == [420]


@pytest.mark.parametrize("name", ["carl", "alice"])
def test_what_is_not_there_or_of_somebody_else_is_not_withdrawn(bench, name):
    bench.tell("alice", request(b"1", correlation="mine"))
    correlation = "mine" if name == "carl" else "other"
    [error] = withdraw(bench, name, correlation)
    assert (error.code, error.about, error.ref) == (404, 20, 9)
    assert len(bench.core.services.by_name["w"].entries) == 1


def test_a_reply_is_not_withdrawn_by_the_correlation_of_its_requester(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", correlation="theirs"))
    bench.ask("bob", reply(1, 1))
    bench.tell("bob", send("alice", b"mail", correlation="mine"))
    assert [m.code for m in withdraw(bench, "bob", "theirs", "mailbox", "alice")] == [404]
    assert withdraw(bench, "bob", "mine", "mailbox", "alice") == [Ok(20, 9, 1)]
    assert len(bench.core.mailboxes.by_name["alice"].entries) == 1


def test_a_withdrawal_from_no_queue_is_refused(bench):
    assert [m.code for m in withdraw(bench, "alice", 1, "mailbox", "nobody")] == [404]


def test_a_second_withdrawal_finds_what_came_since(bench):
    bench.tell("alice", request(b"1", b"2"))
    assert withdraw(bench, "alice", 0) == [Ok(20, 9, 1)]
    bench.tell("alice", request(b"3"))
    assert withdraw(bench, "alice", 0) == [Ok(20, 9, 1)]
    assert [m.code for m in withdraw(bench, "alice", 0)] == [404]
    assert withdraw(bench, "alice", 1) == [Ok(20, 9, 1)]
    assert bench.core.services.by_name["w"].entries == {}


def test_a_withdrawal_looks_at_very_many_in_steps_and_leaves_what_comes_behind_it(bench):
    """So many that looking at all of them would hold up everybody."""
    for number in (1, 2):
        bench.tell("alice", request(*[b"x"] * 2 * WORK_MAX, number=number))
    bench.tell("alice", request(b"1", correlation="last"))
    bench.settle()
    bench.receive("alice", Withdraw(9, "service", "w", "last"), request(b"2", correlation="last"))
    iterations = 0
    while bench.core.effects.chores:
        bench.iterate()
        iterations += 1
    assert iterations >= 3
    bench.settle()
    assert Ok(20, 9, 1) in bench.sent("alice")
    assert withdraw(bench, "alice", "last") == [Ok(20, 9, 1)]


def test_a_withdrawal_that_is_not_stored_is_reported_and_undone(bench):
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("alice", Withdraw(9, "service", "w", 0))
    bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [507]
    bench.tell("bob", offer())
    assert taken(bench, "bob") == [b"1"]


def test_a_request_whose_final_reply_is_on_its_way_is_not_withdrawn(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("bob", reply(1, 1, number=1))
    assert [m.code for m in bench.ask("alice", Withdraw(9, "service", "w", 0))] == [404]
    bench.settle()
    assert bench.core.services.by_name["w"].entries == {}


# Fair shares


def test_zn20_each_of_ten_equal_workers_gets_its_tenth(bench):
    names = [f"w{number}" for number in range(10)]
    bench.open(*names)
    for name in names:
        bench.tell(name, offer())
    for _ in range(200):
        for _ in range(10):
            bench.receive("alice", request(b"x"))
        bench.settle()
    assert {len(bench.got(name)) for name in names} == {200}


def test_xu4_the_worker_that_got_a_request_is_the_last_to_get_another(bench):
    for name in ("bob", "carl"):
        bench.tell(name, offer())
    for number in range(1, 5):
        bench.tell("alice", request(b"%d" % number))
    assert (taken(bench, "bob"), taken(bench, "carl")) == ([b"1", b"3"], [b"2", b"4"])


@pytest.mark.parametrize("credit", [1, 3, -1])
def test_xu5_a_worker_gets_as_many_as_it_asked_for(bench, credit):
    bench.tell("alice", request(*[b"x"] * 10))
    bench.tell("bob", offer(credit=credit))
    assert len(taken(bench, "bob")) == (10 if credit < 0 else credit)


def test_xu2_xu6_requests_gather_without_credit_and_drain_in_order_with_it(bench):
    bench.tell("bob", offer(credit=0))
    for number in range(5):
        bench.tell("alice", request(b"%d" % number))
    assert taken(bench, "bob") == []
    assert len(rows(bench, "service", "w", state="ready")) == 5
    bench.tell("bob", Credit(1, -1))
    drained = taken(bench, "bob")
    assert len(drained) == 5
    assert all(one < other for one, other in pairwise(drained))


def test_an_expression_looks_at_one_queue(bench):
    bench.tell("alice", request(b"1", subject="x"), request(b"2", subject="y"))
    bench.tell("alice", request(b"3", subject="x", service="other"))
    assert [row["body"] for row in rows(bench, "service", "w", where="subject = 'x'")] == [b"1"]


def test_a_request_that_wants_no_reply_is_completed_by_one_that_goes_nowhere(bench):
    bench.tell("bob", offer(credit=10))
    bench.tell("alice", mail_credit())
    bench.tell("alice", request(b"1", number=1, no_reply=True), request(b"2", number=2, no_reply=False))
    bench.settle()
    first, second = bench.got("bob")
    bench.tell("bob", reply(1, first.sequence), reply(1, second.sequence))
    assert len(taken(bench, "alice")) == 1
    assert not any(service.entries for service in bench.core.services.by_name.values())


def test_a_request_that_wants_no_reply_needs_no_room_for_one(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=1, no_reply=True, reply_to="carl"))
    bench.settle()
    assert not bench.core.mailboxes.by_name
