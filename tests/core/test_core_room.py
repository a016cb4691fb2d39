"""Work that was taken on can always be ended, however full the broker is."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, reply, request, send

from malamute.protocol.limits import Limits
from malamute.protocol.messages import Error, Stored
from malamute.store.policies import QueuePolicy

REQUEST_BYTES = 134
"""What a request of the tests takes of the limits."""


def errors(bench, name):
    return [(m.code, m.text) for m in bench.sent(name) if isinstance(m, Error)]


def working(limits=None, queues=None):
    """A broker with a requester, a worker without limit, and a third one."""
    bench = Bench(limits, queues=queues)
    bench.open("alice", "bob", "carl")
    bench.tell("bob", offer())
    return bench


FULL = {
    "all queues, by number": lambda: working(Limits(queues_messages=2)),
    "all queues, by bytes": lambda: working(Limits(queues_bytes=2 * REQUEST_BYTES)),
    "the mailbox, by number": lambda: working(queues=QueuePolicy(messages_max=2)),
    "the mailbox, by bytes": lambda: working(queues=QueuePolicy(bytes_max=2 * REQUEST_BYTES)),
}


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_final_reply_has_room_where_nothing_else_has(full, numbered):
    bench = FULL[full]()
    bench.tell("alice", request(b"1", b"2", number=1))
    bench.settle()
    while not errors(bench, "carl"):
        bench.tell("carl", send("alice", b"x"))
    bench.tell("bob", reply(1, 1, final=False, number=1))
    assert [code for code, _ in errors(bench, "bob")] == [503]
    bench.tell("bob", reply(1, 1, 2, number=2 * numbered, body=b"a reply that is longer than its request"))
    bench.settle()
    assert errors(bench, "bob") == []
    assert not bench.core.services.by_name["w"].entries
    bench.tell("alice", mail_credit())
    bench.settle()
    assert [item.properties["final"] for item in bench.got("alice") if item.properties] == [True, True]


def test_a_final_reply_does_not_take_one_that_is_not_final_with_it():
    bench = working(queues=QueuePolicy(messages_max=1))
    bench.tell("alice", request(b"1"))
    bench.tell("carl", send("alice", b"x"))
    both = reply(1, 1, 1)._replace(finals=[False, True])
    assert [m.code for m in bench.ask("bob", both)] == [503]
    assert 1 in bench.core.services.by_name["w"].entries
    assert bench.ask("bob", reply(1, 1)) == []


def test_who_has_no_room_for_an_answer_asks_in_vain():
    bench = working(queues=QueuePolicy(messages_max=2))
    for number in (1, 2):
        bench.tell("alice", request(b"1", number=number))
        bench.settle()
        bench.tell("bob", reply(1, number))
        bench.settle()
    bench.sent("alice")
    assert bench.core.mailboxes.by_name["alice"].usage.policy.messages_max == 2
    bench.tell("alice", request(b"3", number=3))
    assert errors(bench, "alice") == [
        (503, "no space for the reply: mailbox 'alice' is full: it holds 2 messages; retry later")
    ]
    bench.tell("alice", mail_credit(1), ack(0, (1, 1)), request(b"3", number=4))
    bench.settle()
    assert Stored([[4, 4, 0]]) in bench.sent("alice")


def test_a_mailbox_goes_past_its_depth_by_the_answers_to_what_was_asked_before_and_no_further():
    bench = working(queues=QueuePolicy(messages_max=3))
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.tell("carl", send("alice", b"x", b"y", b"z"))
    bench.tell("bob", reply(1, 1, 2, 3))
    bench.tell("alice", request(b"4"))
    assert [code for code, _ in errors(bench, "alice")] == [503]
    assert len(bench.core.mailboxes.by_name["alice"].entries) == 6
    assert bench.core.queue_limits.messages == 6


def test_all_queues_together_get_no_more_messages_by_answers():
    bench = working(Limits(queues_messages=2))
    for _ in range(5):
        bench.tell("alice", request(b"1"))
        bench.settle()
        last = bench.core.services.by_name["w"].next_sequence - 1
        bench.tell("bob", reply(1, last))
        bench.settle()
        assert bench.core.queue_limits.messages <= 2
    assert [code for code, _ in errors(bench, "alice")] == [503] * 3


def test_a_full_mailbox_that_replies_are_to_go_to_refuses_the_request():
    bench = working(queues=QueuePolicy(messages_max=1))
    bench.tell("carl", send("dora", b"x"))
    bench.tell("alice", request(b"1", number=1, reply_to="dora"))
    assert errors(bench, "alice") == [
        (503, "no space for the reply: mailbox 'dora' is full: it holds 1 messages; retry later")
    ]
    bench.tell("alice", request(b"1", number=2))
    bench.settle()
    assert Stored([[2, 2, 0]]) in bench.sent("alice")


def test_a_refused_request_leaves_no_mailbox_behind():
    bench = working(Limits(queues=4))
    assert [m.code for m in bench.ask("alice", request(b"1", priority=10, reply_to="dora"))] == [416]
    assert {*bench.core.mailboxes.by_name} == set()
    assert bench.core.queue_limits.queues == 1


def test_a_reply_has_its_mailbox_even_past_the_limit_of_queues():
    bench = working(Limits(queues=3), QueuePolicy(idle_seconds=10.0, ack_timeout_seconds=0))
    bench.tell("alice", request(b"1", reply_to="dora"))
    bench.settle()
    bench.wait(11)
    bench.tell("carl", send("eve", b"x"), send("fay", b"x"))
    assert len(bench.core.mailboxes.by_name) == 2
    bench.tell("bob", reply(1, 1, number=1))
    bench.settle()
    assert Stored([[1, 1, 0]]) in bench.sent("bob")
    assert len(bench.core.mailboxes.by_name["dora"].entries) == 1


@pytest.fixture
def short():
    """A broker whose memory is full of what the disk did not take, and a worker that holds a request."""
    bench = working(Limits(queues_memory_bytes=REQUEST_BYTES, backlog_bytes=REQUEST_BYTES))
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("carl", send("dora", b"x" * 300))
    bench.fail()
    bench.sent("bob")
    assert bench.core.queue_limits.short_of_memory
    return bench


@pytest.mark.parametrize("number", [0, 1])
def test_without_memory_a_final_reply_goes_to_the_disk(short, number):
    [error] = short.ask("bob", reply(1, 1, final=False, number=number))
    assert (error.code, error.text) == (
        503,
        "memory for messages that are not durable is used up: retry later",
    )
    short.tell("alice", mail_credit())
    assert errors(short, "bob") == []
    short.tell("bob", reply(1, 1, number=2 * number))
    assert short.got("alice") == []
    short.settle()
    assert [item.properties["final"] for item in short.got("alice")] == [True]
    assert not short.core.services.by_name["w"].entries


@pytest.mark.parametrize("number", [0, 1])
def test_without_memory_and_without_a_disk_a_request_stays(short, number):
    held = short.core.queue_limits.bytes
    short.tell("bob", reply(1, 1, number=number))
    short.fail()
    assert short.core.queue_limits.bytes == held
    assert 1 in short.core.services.by_name["w"].entries
