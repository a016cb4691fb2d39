"""Mailboxes from which several consume, each what it selects by its sender."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, reply, request, send

from malamute.access import AccessRule, Policy
from malamute.errors import AccessRefused, InvalidSelector, NotFound, NoWorkers
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Cancel, Credit, Drain, Error, Hello, Nak, Ok, Query, Release
from malamute.store.policies import QueuePolicy

OWNER = 0


@pytest.fixture
def bench():
    bench = Bench(lifecycle=True, queues=QueuePolicy(backoff_seconds=(), ack_timeout_seconds=10.0))
    bench.open("alice", "ann", "bob", "carol", "dave")
    return bench


def consume(source=1, credit=-1, name="team", sender=None, **fields):
    criteria = [["all", ""]] if sender is None else [["exact", sender]]
    return offer(source, credit, service=name, criteria=criteria, kind="mailbox", **fields)


def bodies(bench, *names):
    bench.settle()
    return [bench.bodies(name) for name in names]


def code(bench, name, *messages):
    [answer] = bench.ask(name, *messages)
    return answer.code if isinstance(answer, Error) else 0


def test_each_message_of_a_mailbox_goes_to_one_of_its_consumers_in_turn(bench):
    """Nobody has the address `team`."""
    bench.tell("bob", consume())
    bench.tell("carol", consume())
    for number in range(4):
        bench.tell("alice", send("team", b"%d" % number))
    assert bodies(bench, "bob", "carol") == [[b"0", b"2"], [b"1", b"3"]]


def test_the_owner_of_a_mailbox_is_one_of_them(bench):
    bench.tell("bob", mail_credit(1))
    bench.tell("carol", consume(credit=2, name="bob"))
    bench.tell("alice", *[send("bob", b"%d" % number) for number in range(4)])
    bob, carol = bodies(bench, "bob", "carol")
    assert (len(bob), len(carol), {*bob, *carol}) == (1, 2, {b"0", b"1", b"2"})
    bench.tell("carol", Credit(1, 1, -1))
    assert bodies(bench, "carol") == [[b"3"]]


def test_a_consumer_is_ready_for_one_sender_and_what_others_send_waits(bench):
    """WP19: credit is for each source, and the mail of one sender is one."""
    bench.tell("bob", consume(credit=1, sender="ann"))
    bench.tell("alice", send("team", b"from alice"))
    bench.tell("ann", send("team", b"1"), send("team", b"2"))
    assert bodies(bench, "bob") == [[b"1"]]
    bench.tell("bob", Credit(1, 1, -1))
    assert bodies(bench, "bob") == [[b"2"]]
    bench.tell("carol", consume())
    assert bodies(bench, "bob", "carol") == [[], [b"from alice"]]


@pytest.mark.parametrize("options", [{}, {"priority": 3}], ids=["in order", "by options"])
@pytest.mark.parametrize("waits", [False, True], ids=["arrives", "waits"])
def test_a_sender_selects_in_every_way_to_a_consumer(bench, options, waits):
    if not waits:
        bench.tell("bob", consume(sender="ann"))
    for name in ("alice", "ann"):
        bench.tell(name, send("team", name.encode(), **options))
    if waits:
        bench.tell("bob", consume(sender="ann"))
    assert bodies(bench, "bob") == [[b"ann"]]


def test_what_is_paged_out_is_brought_for_the_sender_that_is_selected():
    bench = Bench(Limits(queues_memory_bytes=500))
    bench.open("alice", "ann", "bob")
    for number in range(1, 20):
        for name in ("alice", "ann"):
            bench.tell(name, send("team", name.encode() * 20, number=number))
            bench.settle()
    bench.tell("bob", consume(sender="ann"))
    assert bodies(bench, "bob") == [[b"ann" * 20] * 19]


def test_an_immediate_message_is_for_whoever_takes_its_sender_now(bench):
    bench.tell("bob", consume(sender="ann"))
    assert code(bench, "alice", send("team", b"1", immediate=True)) == NoWorkers.code
    bench.tell("ann", send("team", b"2", immediate=True))
    assert bodies(bench, "bob") == [[b"2"]]


def test_the_subject_of_mail_selects_nothing_and_the_sender_of_a_request_neither(bench):
    """Mail and requests of the subject `a`, by Ann."""
    bench.tell("bob", consume(sender="a"))
    bench.tell("carol", offer(1, pattern="ann"))
    bench.tell("ann", send("team", b"1"), request(b"2"))
    assert bodies(bench, "bob", "carol") == [[], []]


# What happens to deliveries is what happens to requests


def given_to_carol(bench):
    """Three messages that Bob holds, who has no credit left, and Carol has some."""
    bench.tell("bob", consume(credit=3))
    bench.tell("alice", send("team", b"1", b"2", b"3"))
    assert bodies(bench, "bob") == [[b"1", b"2", b"3"]]
    bench.tell("carol", consume())


@pytest.mark.parametrize(
    ("end", "attempt"),
    [
        (lambda bench: bench.lost("bob"), 2),
        (lambda bench: bench.tell("bob", Cancel(1)), 2),
        (lambda bench: bench.tell("bob", Nak(1, [[1, 3]], 0)), 2),
        (lambda bench: bench.tell("bob", Release(1, [[1, 3]])), 1),
        (lambda bench: bench.tell("bob", Drain(1, [])), 1),
        (lambda bench: bench.wait(10.0), 2),
    ],
    ids=["lost", "cancelled", "given back", "released", "drained", "too late"],
)
def test_what_one_consumer_does_not_settle_goes_to_another(bench, end, attempt):
    given_to_carol(bench)
    end(bench)
    bench.settle()
    got = [(item.body, item.attempt) for item in bench.got("carol")]
    assert got == [(b"1", attempt), (b"2", attempt), (b"3", attempt)]


def test_what_is_acknowledged_is_gone_over_a_restart_and_the_rest_is_there(bench):
    given_to_carol(bench)
    bench.tell("bob", ack(1, (1, 2)))
    bench.settle()
    bench.restart()
    bench.open("carol")
    bench.tell("carol", consume())
    assert bodies(bench, "carol") == [[b"3"]]


def test_mail_takes_no_reply(bench):
    """The sender of a message is no requester: a message without one has nowhere to go at all."""
    given_to_carol(bench)
    assert code(bench, "bob", reply(1, 1)) == NotFound.code
    assert "" not in bench.core.mailboxes.by_name


def test_a_new_owner_takes_nothing_from_those_who_share(bench):
    """Bob comes back under the same address, in another session."""
    bench.tell("carol", consume(name="bob"))
    bench.tell("alice", send("bob", b"1"))
    assert bodies(bench, "carol") == [[b"1"]]
    bench.ask("bob's ghost", Hello([2], "bob"))
    bench.tell("bob's ghost", mail_credit(1))
    bench.tell("carol", ack(1, (1, 1)))
    bench.tell("alice", send("bob", b"2"), send("bob", b"3"))
    ghost, carol = bodies(bench, "bob's ghost", "carol")
    assert sorted(ghost + carol) == [b"2", b"3"]
    assert len(ghost) == 1


# Limits, rights and rows


def test_criteria_are_of_subjects_and_not_of_headers(bench):
    assert code(bench, "bob", consume()._replace(criteria=[["fields", "a=1"]])) == InvalidSelector.code
    assert "team" not in bench.core.mailboxes.by_name


def test_the_broker_answers_with_the_deadline_that_the_offer_asks_for(bench):
    [ok] = bench.ask("bob", consume(ack_timeout=3000))
    assert (type(ok), ok.value) == (Ok, 3000)
    assert "mailbox.worker-joined.team" in bench.events
    bench.tell("bob", Cancel(1))
    assert "mailbox.worker-left.team" in bench.events


def test_a_mailbox_stays_for_its_consumers_and_is_removed_some_time_after_them(bench):
    bench.tell("bob", consume())
    idle_seconds = QueuePolicy().idle_seconds
    bench.wait(idle_seconds)
    assert "team" in bench.core.mailboxes.by_name
    bench.lost("bob")
    for _ in range(2):
        bench.wait(idle_seconds)
    assert "team" not in bench.core.mailboxes.by_name


def test_a_client_is_shown_with_the_mailboxes_that_it_consumes_from(bench):
    bench.tell("bob", consume(credit=3, sender="ann"))
    [answer] = bench.ask("dave", Query(1, "client", {"id": "bob"}))
    [row] = answer.value["offers"]
    assert (row["kind"], row["service"], row["patterns"], row["credit"]) == ("mailbox", "team", ["ann"], 3)
    assert answer.value["mailbox"] is None
    [answer] = bench.ask("dave", Query(1, "mailboxes", {}))
    assert [(row["name"], row["consumers"]) for row in answer.value] == [("team", 1)]


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (("receive mailbox/team", "create mailbox/*"), True),
        (("receive mailbox/team",), False),
        (("receive mailbox/other", "create mailbox/*"), False),
        (("offer service/team", "create */*"), False),
    ],
)
def test_who_consumes_from_a_mailbox_needs_the_right_to_receive_from_it(bench, rules, allowed):
    bench.core.configure(
        bench.settings._replace(access=Policy(map(AccessRule.parse, ("receive mailbox/bob", *rules)))),
        bench.now,
    )
    bench.settle()
    bench.sent("bob")
    [answer] = bench.ask("bob", consume())
    assert isinstance(answer, Ok) if allowed else answer.code == AccessRefused.code
    assert ("team" in bench.core.mailboxes.by_name) == allowed


def test_who_may_not_receive_any_more_has_what_he_held_taken_back(bench):
    given_to_carol(bench)
    rules = Policy(
        map(AccessRule.parse, ("receive mailbox/bob", "receive mailbox/carol", "publish stream/s"))
    )
    bench.core.configure(bench.settings._replace(access=rules), bench.now)
    bench.settle()
    codes = [message.code for message in bench.sent("bob") if isinstance(message, Error)]
    assert codes == [AccessRefused.code]
    assert not bench.core.mailboxes.by_name["team"].consumers
    assert bench.core.sessions.by_address["bob"].open


def test_a_private_mailbox_is_for_its_session_alone(bench):
    bench.ask("guest", Hello([2], ""))
    bench.tell("guest", request(b"1"))
    [private] = [name for name in bench.core.mailboxes.by_name if name.startswith("$")]
    assert code(bench, "bob", consume(name=private)) == AccessRefused.code
