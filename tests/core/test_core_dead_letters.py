"""Looking into queues, sending dead letters again, dropping messages, and queues that nobody uses."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, request, send

from malamute.core.queue.browse import BODY_BYTES_MAX
from malamute.journal.store import next_incarnation
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import ROWS_MAX, Limits
from malamute.protocol.messages import Bye, Cancel, Change, Error, Hello, Query, Recall, Reject, Send
from malamute.store.policies import QueuePolicy

SERVICE = {"kind": "service", "name": "w"}
MAILBOX = {"kind": "mailbox", "name": "bob"}
DAY = 86_400.0


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "op")
    return bench


def ask(bench, topic="messages", **arguments):
    """What an operator is answered; the code of a refusal."""
    bench.sent("op")
    bench.tell("op", Query(1, topic, arguments))
    bench.read_all()
    [answer] = bench.sent("op")
    return answer.code if isinstance(answer, Error) else answer.value


def change(bench, topic, **arguments):
    """What a change is answered with; the code of a refusal."""
    bench.sent("op")
    bench.tell("op", Change(0, topic, arguments))
    bench.settle()
    [answer] = bench.sent("op")
    return answer.code if isinstance(answer, Error) else answer.value["messages"]


def rejected(bench, *bodies, **options):
    """Dead letters with these bodies."""
    bench.tell("bob", offer())
    bench.tell("alice", request(*bodies, **options))
    bench.settle()
    bench.tell("bob", Reject(1, [[1, 2**62]], "no"))
    bench.settle()
    bench.sent("bob")


def bodies(bench, **arguments):
    return [row["body"] for row in ask(bench, **arguments)]


# Browse


def test_an_operator_sees_each_message_with_its_state(bench):
    record = pack_record({"colour": True}, (b"one", b"two"))
    bench.tell("alice", Send("bob", 0, ["a.b"], [record], [{"correlation": 7}]))
    bench.tell("alice", send("bob", b"2", delay=1000))
    bench.tell("bob", mail_credit(1))
    bench.settle()
    bench.tell("alice", send("bob", b"3"), send("bob", b"4", number=1))
    first, *others = ask(bench, **MAILBOX)
    assert first == {
        "sequence": 1,
        "time": int(bench.now * 1e9),
        "sender": "alice",
        "subject": "a.b",
        "headers": {"colour": True},
        "body": b"onetwo",
        "size": len(record),
        "properties": {"correlation": 7},
        "attempts": 1,
        "state": "in-flight",
        "damaged": False,
    }
    assert [row["state"] for row in others] == ["delayed", "ready", "pending"]


def test_an_operator_pages_through_a_queue_and_looks_for_messages(bench):
    for place in range(5):
        bench.tell("alice", request(b"%d" % place, correlation=place, subject=f"s{place % 2}"))
    assert bodies(bench, **SERVICE, limit=2) == [b"0", b"1"]
    assert bodies(bench, **SERVICE, limit=2, after=2) == [b"2", b"3"]
    assert bodies(bench, **SERVICE, where="subject = 's1'") == [b"1", b"3"]
    assert bodies(bench, **SERVICE, where="correlation > 2 and sender = 'alice'") == [b"3", b"4"]
    assert bodies(bench, **SERVICE, state="delayed") == []


def test_headers_come_before_properties_in_an_expression(bench):
    record = pack_record({"correlation": "mine"}, ())
    bench.tell("alice", Send("bob", 0, ["a"], [record], [{"correlation": 7}]))
    assert len(ask(bench, **MAILBOX, where="correlation = 'mine'")) == 1
    assert ask(bench, **MAILBOX, where="correlation = 7") == []


def test_a_record_that_is_none_is_shown_as_it_is(bench):
    bench.tell("alice", Send("bob", 0, ["a"], [b"\xff\xff"]))
    [row] = ask(bench, **MAILBOX)
    assert (row["headers"], row["body"]) == ({}, b"\xff\xff")


def test_a_long_body_is_cut(bench):
    bench.tell("alice", send("bob", b"x" * (BODY_BYTES_MAX + 1)))
    [row] = ask(bench, **MAILBOX)
    assert len(row["body"]) == BODY_BYTES_MAX
    assert row["size"] > BODY_BYTES_MAX + 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"kind": "stream", "name": "w"}, 416),
        ({"name": "w"}, 416),
        ({"kind": "service", "name": "none"}, 404),
        ({**SERVICE, "limit": 0}, 416),
        ({**SERVICE, "limit": ROWS_MAX + 1}, 416),
        ({**SERVICE, "after": -1}, 416),
        ({**SERVICE, "where": "price >"}, 415),
        ({**SERVICE, "state": "lost"}, 416),
        ({**SERVICE, "dead": "yes"}, 416),
        ({**SERVICE, "colour": 1}, 416),
    ],
)
def test_a_query_for_no_queue_or_with_no_sense_is_refused(bench, arguments, code):
    bench.tell("alice", request(b"1"))
    assert ask(bench, **arguments) == code


def test_the_most_rows_may_be_asked_for(bench):
    bench.tell("alice", request(b"1"))
    assert len(ask(bench, **SERVICE, limit=ROWS_MAX)) == 1


def test_a_queue_shows_what_is_in_it(bench):
    rejected(bench, b"1", b"2")
    bench.tell("alice", request(b"3"), request(b"4", delay=1000), request(b"5", ttl=500))
    bench.settle()
    bench.wait(0.5)
    [row] = ask(bench, "services")
    wanted = {"messages": 2, "ready": 0, "delayed": 1, "in_flight": 1, "dead_letters": 2, "expired": 1}
    assert {name: row[name] for name in wanted} == wanted


@pytest.mark.parametrize("topic", ["queue.purge", "queue.redrive"])
def test_as_many_dead_letters_are_counted_as_are_shown_and_can_be_removed(bench, topic):
    def counted():
        [row] = ask(bench, "services")
        assert len(ask(bench, **SERVICE, dead=True)) == row["dead_letters"]
        return row["dead_letters"]

    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"), request(b"2"))
    bench.settle()
    bench.tell("bob", Reject(1, [[1, 2]], "no"))
    assert bench.appends
    assert counted() == 0
    bench.settle()
    assert counted() == 2
    bench.tell(
        "op", Change(0, topic, {**SERVICE, "sequences": [1]} | ({"dead": True} if "purge" in topic else {}))
    )
    assert bench.appends or bench.reads
    assert counted() == 1
    bench.settle()
    assert counted() == 1


# Redrive


def test_dead_letters_are_sent_again_at_the_end_of_their_queue(bench):
    rejected(bench, b"1", b"2", priority=3)
    assert change(bench, "queue.redrive", **SERVICE) == 2
    assert ask(bench, **SERVICE, dead=True) == []
    items = bench.got("bob")
    assert [(i.sequence, i.body, i.attempt, i.sender) for i in items] == [
        (3, b"1", 1, "alice"),
        (4, b"2", 1, "alice"),
    ]
    assert items[0].properties == {"correlation": 0, "priority": 3}


def test_a_redrive_outlives_the_broker(bench):
    rejected(bench, b"1")
    change(bench, "queue.redrive", **SERVICE)
    bench.crash()
    bench.open("op")
    assert ask(bench, **SERVICE, dead=True) == []
    assert bodies(bench, **SERVICE) == [b"1"]


@pytest.mark.parametrize("options", [{}, {"priority": 3}])
def test_a_message_that_is_sent_again_was_accepted_once(options):
    """The window of its identity began then, whatever else it asks for."""
    bench = Bench(queues=QueuePolicy(dedup_window_seconds=10.0))
    bench.open("alice", "bob", "op")
    rejected(bench, b"1", id="x", **options)
    bench.wait(6)
    assert change(bench, "queue.redrive", **SERVICE) == 1
    bench.tell("alice", request(b"2", id="x"))
    bench.wait(5)
    bench.tell("alice", request(b"3", id="x"))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"3"]


def test_one_or_some_dead_letters_are_sent_again(bench):
    rejected(bench, b"1", b"2", b"3", b"4")
    assert change(bench, "queue.redrive", **SERVICE, sequences=[2]) == 1
    assert change(bench, "queue.redrive", **SERVICE, where="correlation >= 2", limit=1) == 1
    assert [row["body"] for row in ask(bench, **SERVICE, dead=True)] == [b"1", b"4"]
    assert bench.bodies("bob") == [b"2", b"3"]
    assert change(bench, "queue.redrive", **SERVICE, where="reason = 'no'") == 2


def test_a_dry_run_sends_nothing_again(bench):
    rejected(bench, b"1")
    assert change(bench, "queue.redrive", **SERVICE, dry_run=True) == 1
    assert len(ask(bench, **SERVICE, dead=True)) == 1
    assert bench.got("bob") == []


def test_a_dead_letter_is_mended_and_sent_again_with_all_else_that_it_had(bench):
    rejected(bench, b"1", b"2", priority=3)
    assert change(bench, "queue.redrive", **SERVICE, sequences=[2], body=b"whole", dry_run=True) == 1
    assert change(bench, "queue.redrive", **SERVICE, sequences=[2], body=b"whole") == 1
    assert bench.bodies("bob") == [b"whole"]
    assert [row["body"] for row in ask(bench, **SERVICE, dead=True)] == [b"1"]
    assert change(bench, "queue.redrive", **SERVICE, sequences=[1], body=b"") == 1
    assert bench.bodies("bob") == [b""]
    assert change(bench, "queue.redrive", **SERVICE, sequences=[1], body=b"gone") == 404


@pytest.mark.parametrize("sequences", [{}, {"sequences": [1, 2]}])
def test_a_body_is_that_of_one_dead_letter(bench, sequences):
    rejected(bench, b"1", b"2")
    assert change(bench, "queue.redrive", **SERVICE, **sequences, body=b"x") == 416
    assert len(ask(bench, **SERVICE, dead=True)) == 2


@pytest.mark.parametrize(("size", "outcome"), [(1_000, 1), (1_001, 413)])
def test_a_body_is_as_large_as_a_message_may_be_at_the_most(size, outcome):
    bench = Bench(Limits(message_bytes=1_000))
    bench.open("alice", "bob", "op")
    rejected(bench, b"1")
    assert change(bench, "queue.redrive", **SERVICE, sequences=[1], body=b"x" * size) == outcome


def test_a_mended_dead_letter_for_which_there_is_no_room_stays_and_takes_none():
    bench = Bench(Limits(queue_bytes=10_000))
    bench.open("alice", "bob", "op")
    rejected(bench, b"1")
    before = bench.core.queue_limits.bytes
    assert change(bench, "queue.redrive", **SERVICE, sequences=[1], body=b"x" * 10_000) == 503
    assert bench.core.queue_limits.bytes == before
    assert len(ask(bench, **SERVICE, dead=True)) == 1


def test_a_redrive_that_does_not_fit_is_refused_as_a_whole():
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice", "bob", "op")
    rejected(bench, b"1", b"2")
    bench.tell("alice", request(b"3"))
    assert change(bench, "queue.redrive", **SERVICE) == 503
    assert len(ask(bench, **SERVICE, dead=True)) == 2
    assert change(bench, "queue.redrive", **SERVICE, limit=1) == 1


def test_a_redrive_that_is_not_stored_leaves_the_dead_letters(bench):
    rejected(bench, b"1")
    bench.sent("op")
    bench.tell("op", Change(0, "queue.redrive", SERVICE))
    assert ask(bench, **SERVICE, dead=True) == [], "it is on its way"
    bench.fail()
    bench.settle()
    assert [row["body"] for row in ask(bench, **SERVICE, dead=True)] == [b"1"]
    assert ask(bench, **SERVICE) == []


def test_a_time_to_live_and_an_ended_delay_begin_anew(bench):
    rejected(bench, b"1", ttl=10_000, delay=0)
    bench.wait(9)
    change(bench, "queue.redrive", **SERVICE)
    assert bench.bodies("bob") == [b"1"]
    bench.wait(9)
    assert len(ask(bench, **SERVICE)) == 1
    bench.wait(1)
    assert ask(bench, **SERVICE) == []


# Purge


def test_an_operator_drops_messages_wherever_they_are(bench):
    bench.tell("alice", request(b"1"), request(b"2", delay=1000), request(b"3"))
    bench.tell("bob", offer(credit=1))
    bench.settle()
    bench.sent("bob")
    assert change(bench, "queue.purge", **SERVICE, dry_run=True) == 3
    assert len(ask(bench, **SERVICE)) == 3
    assert change(bench, "queue.purge", **SERVICE) == 3
    assert Recall(1, [[1, 1]], "purged") in bench.sent("bob")
    assert ask(bench, **SERVICE) == []
    bench.wait(2)
    assert bench.got("bob") == []
    assert bench.store.recover().queues["service", "w"].messages == []
    assert bench.core.queue_limits.bytes == 0


def test_a_delayed_message_is_cancelled_by_purging_it(bench):
    bench.tell("alice", send("bob", b"1"), send("bob", b"2", delay=1000))
    assert change(bench, "queue.purge", **MAILBOX, state="delayed") == 1
    assert bodies(bench, **MAILBOX) == [b"1"]


def test_dead_letters_are_dropped(bench):
    rejected(bench, b"1", b"2", b"3")
    assert change(bench, "queue.purge", **SERVICE, dead=True, sequences=[1, 3]) == 2
    assert [row["body"] for row in ask(bench, **SERVICE, dead=True)] == [b"2"]
    assert change(bench, "queue.purge", **SERVICE, dead=True) == 1
    assert bench.core.queue_limits.bytes == 0
    bench.crash()
    bench.open("op")
    assert ask(bench, **SERVICE, dead=True) == []


def test_a_purge_that_is_not_stored_is_reported_and_undone(bench):
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.sent("op")
    bench.tell("op", Change(0, "queue.purge", SERVICE))
    bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("op")] == [507]
    assert bodies(bench, **SERVICE) == [b"1"]


@pytest.mark.parametrize("topic", ["queue.redrive", "queue.purge"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"kind": "stream", "name": "w"}, 416),
        ({"kind": "service"}, 416),
        ({"kind": "service", "name": "none"}, 404),
        ({**SERVICE, "sequences": [1, 99]}, 404),
        ({**SERVICE, "sequences": ["1"]}, 416),
        ({**SERVICE, "sequences": [[1]]}, 416),
        ({**SERVICE, "sequences": [-1]}, 416),
        ({**SERVICE, "limit": 0}, 416),
        ({**SERVICE, "limit": -1}, 416),
        ({**SERVICE, "where": "and"}, 415),
        ({**SERVICE, "colour": 1}, 416),
    ],
)
def test_a_change_with_no_sense_is_refused_and_nothing_is_changed(bench, topic, arguments, code):
    rejected(bench, b"1")
    bench.tell("alice", request(b"2"))
    bench.settle()
    assert change(bench, topic, **arguments) == code
    assert len(ask(bench, **SERVICE)) == len(ask(bench, **SERVICE, dead=True)) == 1


# Limits


def test_wp10_a_queue_of_its_own_depth_refuses_past_it():
    bench = Bench(queues=QueuePolicy(messages_max=2))
    bench.open("alice", "bob")
    bench.tell("alice", *[send("bob", b"x", number=number) for number in (1, 2, 3)])
    bench.settle()
    assert [(m.code, m.ref) for m in bench.sent("alice") if isinstance(m, Error)] == [(503, 3)]


def test_wp10_a_queue_of_its_own_bytes_refuses_past_them():
    bench = Bench(queues=QueuePolicy(bytes_max=200))
    bench.open("alice", "bob")
    bench.tell("alice", *[send("bob", b"x", number=number) for number in (1, 2, 3)])
    bench.settle()
    assert [(m.code, m.ref) for m in bench.sent("alice") if isinstance(m, Error)] == [(503, 3)]
    assert bench.core.mailboxes.by_name["bob"].usage.bytes <= 200


def test_a_policy_is_within_the_limits_of_all_queues():
    bench = Bench(Limits(queue_messages=1), queues=QueuePolicy(messages_max=5))
    bench.open("alice")
    bench.tell("alice", send("bob", b"1", number=1))
    assert [m.code for m in bench.ask("alice", send("bob", b"2", number=2))] == [503]


def test_an_empty_mailbox_that_nobody_uses_is_removed(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.lost("bob")
    bench.settle()
    bench.wait(DAY - 1)
    assert "bob" in bench.core.mailboxes.by_name
    bench.wait(1)
    assert "bob" in bench.core.mailboxes.by_name, "it was used since it was made"
    bench.wait(DAY)
    assert "bob" not in bench.core.mailboxes.by_name
    bench.settle()
    assert ("mailbox", "bob") not in bench.store.recover().queues
    assert "mailbox.collected.bob" in bench.events
    assert bench.core.queue_limits.queues == 0


def test_a_queue_that_may_be_idle_for_a_second_only_goes_with_its_last_consumer():
    bench = Bench(queues=QueuePolicy(idle_seconds=1.0, dedup_window_seconds=0.0))
    bench.open("alice", "bob", "carl")
    for name in ("bob", "carl"):
        bench.tell(name, offer(service="job", kind="mailbox", criteria=[["all", ""]]))
    bench.tell("alice", send("job", b"1"), send("other", b"nobody takes it"))
    bench.settle()
    bench.tell("bob", ack(1, (1, 1)), Cancel(1))
    bench.settle()
    bench.wait(10.0)
    assert {*bench.core.mailboxes.by_name} == {"job", "other"}
    bench.lost("carl")
    for _ in range(2):
        bench.wait(1.0)
        bench.settle()
    assert {*bench.core.mailboxes.by_name} == {"other"}
    bench.crash()
    assert {*bench.core.mailboxes.by_name} == {"other"}


def test_a_mailbox_found_empty_in_the_store_is_removed_too(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.crash()
    assert "bob" in bench.core.mailboxes.by_name
    bench.wait(DAY)
    assert bench.core.mailboxes.by_name == {}


@pytest.mark.parametrize("use", ["a message", "an owner", "a dead letter", "a tracker", "an identity"])
def test_a_mailbox_in_use_is_kept(use):
    bench = Bench(queues=QueuePolicy(idle_seconds=100.0, dedup_window_seconds=1000.0, ack_timeout_seconds=0))
    bench.open("alice", "bob", "carl")
    number = 1 + 2 * (use == "a tracker")
    if use == "a tracker":
        bench.tell("bob", send("carl", b"1", number=1, tracker="t"))
    elif use == "an owner":
        bench.tell("bob", mail_credit())
    elif use == "an identity":
        bench.tell("bob", mail_credit())
        bench.tell("alice", send("bob", b"1", number=number, id="x"))
        bench.settle()
        bench.tell("bob", ack(0, (1, 1)))
        bench.lost("bob")
    else:
        bench.tell("alice", send("bob", b"1"))
    if use == "a dead letter":
        bench.tell("bob", mail_credit())
        bench.settle()
        bench.tell("bob", Reject(0, [[1, 1]]))
        bench.lost("bob")
    bench.settle()
    for _ in range(5):
        bench.wait(100)
    assert "bob" in bench.core.mailboxes.by_name


def test_an_idle_service_is_removed(bench):
    bench.tell("bob", offer())
    bench.lost("bob")
    bench.wait(DAY)
    assert bench.core.services.by_name == {}


def test_a_mailbox_that_has_just_become_empty_is_not_removed():
    bench = Bench(queues=QueuePolicy(idle_seconds=100.0))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1"))
    bench.wait(100)
    bench.wait(99)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    bench.lost("bob")
    bench.wait(1)
    assert "bob" in bench.core.mailboxes.by_name
    bench.wait(100)
    assert "bob" not in bench.core.mailboxes.by_name


def test_a_private_mailbox_goes_with_its_session_and_not_before(bench):
    bench.tell("anon", Hello([2], ""), request(b"1", service="other"))
    bench.settle()
    (private,) = [name for name in bench.core.mailboxes.by_name if name.startswith("$")]
    bench.wait(DAY)
    bench.wait(DAY)
    assert private in bench.core.mailboxes.by_name
    bench.tell("anon", Bye())
    assert private not in bench.core.mailboxes.by_name


# Restored


def restored(bench, backup):
    """Put a backup in the place of the store, and start a broker on it."""
    bench.store = backup
    bench.crash()
    bench.open("alice", "bob", "op")


def dead(bench, name="w"):
    return [row["sequence"] for row in ask(bench, kind="service", name=name, dead=True)]


def test_no_sequence_of_a_dead_letter_is_used_again_after_a_restore(bench):
    rejected(bench, b"1")
    backup = bench.store.copy()
    rejected(bench, b"2")
    assert dead(bench) == [1, 2]
    restored(bench, backup)
    rejected(bench, b"3")
    incarnation = next_incarnation(bench.now, 0)
    assert dead(bench) == [1, incarnation + 1]
    # What an operator has seen under this number is gone, and nothing is in its place.
    assert change(bench, "queue.redrive", **SERVICE, sequences=[2]) == 404
    bench.crash()
    bench.open("alice", "bob", "op")
    rejected(bench, b"4")
    assert dead(bench) == [1, incarnation + 1, incarnation + 2]


def test_dead_letters_that_the_backup_does_not_know_begin_behind_the_incarnation_too(bench):
    backup = bench.store.copy()
    rejected(bench, b"1")
    restored(bench, backup)
    rejected(bench, b"2")
    assert dead(bench) == [next_incarnation(bench.now, 0) + 1]


def test_dead_letters_that_a_backup_had_are_removed_from_the_store_with_their_queue(bench):
    rejected(bench, b"1")
    restored(bench, bench.store.copy())
    assert change(bench, "queue.purge", **SERVICE, dead=True) == 1
    bench.wait(DAY)
    bench.wait(DAY)
    bench.settle()
    assert bench.core.services.by_name == {}
    assert not [name for name in bench.store.recover().queues if name[1] == "w"]
