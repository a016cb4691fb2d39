"""Cancellations: messages under an id are taken back, unless a consumer has them."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, request, send

from malamute.access import AccessRule, Policy
from malamute.core.queue.entry import Entries
from malamute.errors import AccessRefused, Malformed, StorageFull, TooLarge
from malamute.protocol.messages import CANCELLED, Change, Error, Nak, Ok, Recall, Withdraw
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    return made()


def made(**policy):
    bench = Bench(queues=QueuePolicy(**{"backoff_seconds": (), **policy}))
    bench.open("alice", "bob", "carol")
    return bench


def cancel(bench, identity="x", kind="mailbox", name="box", who="carol"):
    """The answer to a cancellation: the two counts, or the code of an error."""
    bench.settle()
    bench.sent(who)
    bench.tell(who, Withdraw(7, kind, name, 0, identity))
    bench.settle()
    [answer] = [m for m in bench.sent(who) if isinstance(m, (Ok, Error))]
    assert answer.ref == 7
    return answer.code if isinstance(answer, Error) else answer.value


def bodies(bench, name="bob", mailbox="box"):
    bench.open("bob")
    bench.tell(name, offer(9, -1, service=mailbox, criteria=[["all", ""]], kind="mailbox"))
    bench.settle()
    return bench.bodies(name)


@pytest.mark.parametrize("options", [{}, {"delay": 5_000}, {"ttl": 60_000, "priority": 3}], ids=str)
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_a_message_that_waits_is_taken_back_whoever_sent_it(bench, options, restarts):
    bench.tell("alice", send("box", b"1", number=1, id="x", **options), send("box", b"2", id="y"))
    if restarts:
        bench.settle()
        bench.restart()
        bench.open("carol")
    assert cancel(bench) == [1, 0]
    assert cancel(bench) == [0, 0]
    assert bodies(bench) == [b"2"]
    bench.restart()
    assert not bench.core.mailboxes.by_name["box"].ids.known.keys() - {"y"}


def test_a_request_is_taken_back(bench):
    bench.tell("alice", request(b"1", number=1, id="x"))
    assert cancel(bench, kind="service", name="w") == [1, 0]
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == []


def test_one_that_a_consumer_has_stays_there_and_the_consumer_is_notified(bench):
    bench.tell("bob", offer(3, 1, service="box", criteria=[["all", ""]], kind="mailbox"))
    bench.tell("alice", send("box", b"1", number=1, id="x"))
    bench.settle()
    [item] = bench.got("bob")
    assert cancel(bench) == [0, 1]
    [notice] = [m for m in bench.sent("bob") if isinstance(m, Recall)]
    assert notice == Recall(3, [[item.sequence, item.sequence]], CANCELLED)
    bench.tell("bob", ack(3, (item.sequence, item.sequence)))
    bench.settle()
    assert (bench.sent("bob"), cancel(bench)) == ([], [0, 0])


def test_one_that_comes_back_to_the_queue_can_be_taken_back_then(bench):
    bench.tell("bob", offer(3, 1, service="box", criteria=[["all", ""]], kind="mailbox"))
    bench.tell("alice", send("box", b"1", number=1, id="x"))
    bench.settle()
    [item] = bench.got("bob")
    bench.tell("bob", Nak(3, [[item.sequence, item.sequence]], 60_000))
    assert cancel(bench) == [1, 0]


def test_one_that_is_not_stored_yet_is_looked_for_after_its_commit(bench):
    bench.receive("alice", send("box", b"1", number=1, id="x"))
    bench.tell("carol", Withdraw(7, "mailbox", "box", 0, "x"))
    assert not [m for m in bench.sent("carol") if isinstance(m, Ok)]
    bench.settle()
    assert [m.value for m in bench.sent("carol") if isinstance(m, Ok) and m.ref == 7] == [[1, 0]]


def test_one_that_the_disk_refuses_is_not_there(bench):
    bench.receive("alice", send("box", b"1", number=1, id="x"))
    bench.tell("carol", Withdraw(7, "mailbox", "box", 0, "x"))
    bench.fail()
    bench.settle()
    assert [m.value for m in bench.sent("carol") if isinstance(m, Ok) and m.ref == 7] == [[0, 0]]


def test_a_cancellation_that_the_disk_refuses_has_changed_nothing(bench):
    bench.tell("alice", send("box", b"1", number=1, id="x"))
    bench.settle()
    bench.sent("carol")
    bench.tell("carol", Withdraw(7, "mailbox", "box", 0, "x"))
    bench.fail()
    [refused] = [m for m in bench.sent("carol") if isinstance(m, Error)]
    assert (refused.code, refused.ref) == (StorageFull.code, 7)
    assert cancel(bench) == [1, 0]


def test_an_id_lasts_longer_than_its_window_and_all_messages_under_it_are_taken_back():
    bench = made(dedup_window_seconds=1.0)
    for number in (1, 2):
        bench.tell("alice", send("box", b"%d" % number, number=number, id="x", delay=60_000))
        bench.settle()
        bench.wait(2.0)
    assert cancel(bench) == [2, 0]


def test_one_that_was_sent_again_from_the_dead_letters_or_moved_has_its_id():
    bench = made(attempts_max=1)
    bench.tell("bob", offer(3, 1, service="box", criteria=[["all", ""]], kind="mailbox"))
    bench.tell("alice", send("box", b"1", number=1, id="x"))
    bench.settle()
    [item] = bench.got("bob")
    bench.tell("bob", Nak(3, [[item.sequence, item.sequence]], 0))
    bench.settle()
    assert cancel(bench) == [0, 0]
    bench.tell("carol", Change(1, "queue.redrive", {"kind": "mailbox", "name": "box"}))
    assert cancel(bench) == [1, 0]
    bench.tell("alice", send("box", b"2", number=2, id="y"))
    feed = {"source": "mailbox/box", "feed": "f", "target": "mailbox/far", "criteria": [["all", ""]]}
    bench.tell("carol", Change(2, "feed.set", {**feed, "operation": "move"}))
    assert cancel(bench, "y", name="far") == [1, 0]


def test_what_a_cancellation_costs_does_not_depend_on_the_length_of_the_queue(bench, monkeypatch):
    monkeypatch.setattr(Entries, "run_from", None)  # nothing walks through the messages
    for number in range(1, 301):
        bench.tell("alice", send("box", b"1", number=number, id=f"id-{number}"))
    bench.settle()
    before = bench.core.effects.work
    entries = bench.core.mailboxes.by_name["box"].entries
    assert (cancel(bench, "id-150"), len(entries)) == ([1, 0], 299)
    assert before - bench.core.effects.work < 100


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["publish stream/box"], AccessRefused.code),
        (["receive mailbox/box"], AccessRefused.code),
        (["send mailbox/box"], [1, 0]),
        (["send mailbox/box/b"], AccessRefused.code),
        (["send mailbox/box/a"], [1, 0]),
    ],
)
def test_it_takes_the_right_to_send_there(bench, rules, expected):
    bench.tell("alice", send("box", b"1", number=1, id="x"))
    bench.settle()
    parsed = tuple(AccessRule.parse(text) for text in [*rules, "receive mailbox/carol"])
    bench.core.configure(bench.settings._replace(access=Policy(parsed)), bench.now)
    assert cancel(bench) == expected
    assert len(bench.core.mailboxes.by_name["box"].entries) == (expected == AccessRefused.code)


def test_nothing_there_is_no_error_and_makes_no_queue(bench):
    assert cancel(bench, name="none") == [0, 0]
    assert "none" not in bench.core.mailboxes.by_name


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ([20, 7, "mailbox", "box", 0, "x" * 256], TooLarge),
        ([20, 7, "mailbox", "box", 0, 5], Malformed),
        ([20, 7, "stream", "box", 0, "x"], Malformed),
    ],
)
def test_an_id_that_is_none_is_refused(bench, frame, error):
    from malamute.protocol.batch import pack

    bench.sent("carol")
    bench.receive_frames("carol", [pack(frame)])
    bench.iterate()
    [refused] = bench.sent("carol")
    assert refused.code == error.code


def test_the_longest_id_is_taken(bench):
    bench.tell("alice", send("box", b"1", number=1, id="x" * 255))
    assert cancel(bench, "x" * 255) == [1, 0]


def test_the_sender_learns_the_outcome(bench):
    bench.tell("alice", send("box", b"1", number=1, id="x", tracker="t"))
    assert cancel(bench) == [1, 0]
    bench.tell("alice", mail_credit())
    bench.settle()
    [outcome] = bench.got("alice")
    assert outcome.properties["outcome"] == "withdrawn"
