"""Queues in memory beside durable ones: what outlives the broker, what does not, and who is notified."""

from __future__ import annotations

from itertools import product

import pytest
from core_bench import Bench, ack, mail_credit, offer, reply, request, send

from malamute.errors import InvalidValue, TryLater
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Error, Hello, Nak, Query, Reject, Stored
from malamute.store.operations import (
    DeleteMessages,
    DeleteQueue,
    ForgetIdentities,
    MarkDelivered,
    PutIdentity,
    PutMessages,
    SetAttempts,
)
from malamute.store.policies import MEMORY, QueuePolicy
from malamute.store.tables import MEMORY_QUEUES

OF_QUEUES = (
    DeleteMessages,
    DeleteQueue,
    ForgetIdentities,
    MarkDelivered,
    PutIdentity,
    PutMessages,
    SetAttempts,
)
KIB = 1024


def make(*in_memory, limits=None, **policy):
    """A bench on which the queues of these kinds are in memory only."""
    bench = Bench(limits, lifecycle=True)
    configure(bench, *in_memory, **policy)
    bench.restart()
    bench.open("alice", "bob")
    return bench


def configure(bench, *in_memory, **policy):
    """What holds from the next start on."""
    memory = QueuePolicy(persistence=MEMORY, **policy)
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: memory if kind in in_memory else QueuePolicy(**policy)
    )


def written(bench):
    """Store all, and return what was stored of queues."""
    found = []
    bench.iterate()
    while bench.appends:
        found += bench.appends[0].operations
        bench.commit()
    return [operation for operation in found if isinstance(operation, OF_QUEUES)]


def row(bench, topic="mailboxes"):
    bench.sent("bob")
    bench.tell("bob", Query(1, topic, {}))
    [answer] = bench.sent("bob")
    return answer.value[0]


def told(bench):
    """What the next start reports as lost: the kinds, with how many there were."""
    return {
        notice.details["kind"]: notice.details.get("count")
        for notice in bench.notices
        if "in memory only" in notice.event
    }


PUT = {
    "mailbox": lambda number: send("bob", b"1", b"2", number=number),
    "service": lambda number: request(b"1", b"2", number=number),
}
CONSUME = {"mailbox": mail_credit(), "service": offer()}


@pytest.mark.parametrize(
    ("persistence", "kind", "end", "confirmed"),
    [*product(["durable", "memory"], ["mailbox", "service"], ["crash", "restart"], [False, True])],
)
def test_what_is_durable_is_there_after_the_end_and_what_is_in_memory_is_gone_and_reported(
    persistence, kind, end, confirmed
):
    """WP41, ZN16."""
    in_memory = persistence == "memory"
    bench = make(*([kind] if in_memory else []))
    bench.tell("alice", PUT[kind](1 if confirmed else 0))
    bench.settle()
    assert row(bench, kind.replace("mailbox", "mailboxe") + "s")["persistence"] == persistence
    assert (Stored in map(type, bench.sent("alice"))) == confirmed
    bench.notices.clear()
    getattr(bench, end)()
    bench.iterate()
    assert told(bench) == ({kind: 2 if end == "restart" else None} if in_memory else {})
    bench.open("bob")
    bench.tell("bob", CONSUME[kind])
    bench.settle()
    assert bench.bodies("bob") == ([] if in_memory else [b"1", b"2"])
    # It is reported once.
    bench.notices.clear()
    bench.restart()
    bench.iterate()
    assert told(bench) == {}


@pytest.mark.parametrize("kind", ["mailbox", "service"])
def test_what_was_not_confirmed_before_the_end_is_sent_again_and_is_there(kind):
    bench = make(kind)
    bench.tell("alice", PUT[kind](1))
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", PUT[kind](1))
    bench.tell("bob", CONSUME[kind])
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]
    bench.tell("alice", PUT[kind](1))
    bench.settle()
    assert bench.bodies("bob") == []


def test_nothing_that_happens_to_messages_in_memory_is_written():
    bench = make("mailbox", "service", backoff_seconds=(), attempts_max=3)
    bench.tell("alice", send("bob", b"1", b"2", b"3", number=1, id="i"), send("bob", b"4", delay=1000))
    bench.tell("alice", request(b"1", b"2", number=2), request(b"3", ttl=1000))
    bench.tell("bob", mail_credit(), offer())
    assert written(bench) == []
    bench.sent("bob")
    bench.tell("bob", ack(0, (1, 1)), Nak(1, [[1, 1]], 0), Reject(1, [[2, 2]], "no"))
    bench.tell("bob", reply(1, 1, number=1))
    bench.lost("bob")
    bench.wait(200)
    bench.open("bob")
    bench.tell("bob", mail_credit())
    assert written(bench) == []
    assert bench.store.recover().queues == {}


def test_a_message_in_memory_is_delivered_without_a_word_of_the_disk():
    bench = make("mailbox")
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1"))
    assert bench.bodies("bob") == [b"1"]
    bench.tell("bob", Nak(0, [[1, 1]], 0))
    bench.wait(0)
    assert [(item.body, item.attempt) for item in bench.got("bob")] == [(b"1", 2)]


def test_what_is_in_memory_does_not_depend_on_the_disk():
    bench = make("mailbox")
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1))
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]
    assert bench.bodies("bob") == [b"1"]


def test_a_duplicate_of_what_is_in_memory_is_confirmed_and_not_delivered():
    bench = make("mailbox")
    bench.tell("bob", mail_credit())
    for number in (1, 2):
        bench.tell("alice", send("bob", b"1", number=number, id="same"))
        bench.settle()
    assert [type(message) for message in bench.sent("alice")] == [Stored, Stored]
    assert bench.bodies("bob") == [b"1"]


def test_what_is_in_memory_cannot_be_tracked():
    bench = make("mailbox")
    [error] = bench.ask("alice", send("bob", b"1", number=1, tracker="t"))
    assert (error.code, error.text.split(":")[0]) == (InvalidValue.code, "invalid option 'tracker'")
    assert bench.core.mailboxes.by_name.get("bob") is None


def test_there_are_no_dead_letters_of_what_is_in_memory():
    bench = make("mailbox")
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1"))
    bench.tell("bob", Reject(0, [[1, 1]], "no"))
    bench.settle()
    assert (row(bench)["dead_letters"], row(bench)["messages"]) == (0, 0)


# Memory

MEMORY_BYTES = 64 * KIB


def small():
    return Limits(
        queues_memory_bytes=MEMORY_BYTES,
        backlog_bytes=MEMORY_BYTES,
        queue_bytes=1 << 30,
        queues_bytes=1 << 30,
    )


def test_a_queue_in_memory_takes_half_of_what_is_free_and_refuses_one_byte_more():
    """At the limit and one past it: as for records that are paged out, it has no more than it leaves free."""
    bench = make("mailbox", limits=small())
    room = MEMORY_BYTES // 2 - _overhead(bench)
    assert _refused(bench, "bob", room + 1) == TryLater.code
    assert _refused(bench, "bob", room) is None
    assert _refused(bench, "bob", 0) == TryLater.code


def test_queues_in_memory_leave_room_for_one_another_and_for_durable_ones():
    bench = make("mailbox", limits=small())
    for name in ("bob", "carol", "dave"):
        while _refused(bench, name, KIB) is None:
            pass
    assert all(bench.core.mailboxes.by_name[name].usage.messages for name in ("bob", "carol", "dave"))
    assert bench.core.queue_limits.memory.free_bytes > 0
    # A durable one goes on: its records are paged out.
    for number in range(1, 200):
        bench.tell("alice", request(bytes(KIB), number=number))
        bench.settle()
    assert {type(message) for message in bench.sent("alice")} == {Stored}


def test_replies_to_a_full_mailbox_in_memory_are_refused_as_nothing_else_would_bound_them():
    bench = make("mailbox", limits=small())
    bench.tell("alice", request(*[b"x"] * 40))
    bench.tell("bob", offer())
    bench.settle()
    bench.sent("bob")
    codes = set()
    for number in range(1, 41):
        bench.tell("bob", reply(1, number, body=bytes(KIB)))
        bench.settle()
        codes |= {m.code for m in bench.sent("bob") if isinstance(m, Error)}
    assert codes == {TryLater.code}
    assert bench.core.queue_limits.memory.free_bytes >= 0
    # One that is refused is still the worker's.
    outstanding = row(bench, "services")["in_flight"]
    assert 0 < outstanding < 40
    bench.tell("alice", mail_credit(1))
    bench.tell("alice", ack(0, (1, 1)))
    bench.tell("bob", reply(1, 40, body=bytes(KIB)))
    bench.settle()
    assert row(bench, "services")["in_flight"] == outstanding - 1


def _overhead(bench):
    """What a message of `_refused` takes beside its bytes."""
    bench.tell("alice", send("probe", bytes(KIB)))
    size_bytes = bench.core.mailboxes.by_name["probe"].usage.bytes
    bench.core.mailboxes.remove(bench.core.mailboxes.by_name["probe"])
    bench.settle()
    return size_bytes - KIB


def _refused(bench, name, size):
    """Send so many bytes. The code of the refusal, if it was refused."""
    answers = bench.ask("alice", send(name, bytes(size)))
    bench.settle()
    return answers[0].code if answers else None


# Changes of the rules


def test_what_the_store_has_of_a_queue_stays_durable_whatever_the_rules_say_later():
    bench = make()
    bench.tell("alice", send("bob", b"1", number=1))
    bench.settle()
    configure(bench, "mailbox")
    bench.restart()
    bench.open("alice", "bob")
    assert row(bench)["persistence"] == "durable"
    bench.tell("alice", send("bob", b"2"))
    bench.settle()
    bench.crash()
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_a_reload_is_for_queues_that_are_made_from_then_on():
    """And one that has ended is made anew."""
    bench = make("mailbox")
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    configure(bench)
    bench.core.configure(bench.settings, bench.now)
    bench.settle()
    assert row(bench)["persistence"] == "memory"
    bench.tell("bob", mail_credit())
    bench.tell("bob", ack(0, (1, 1)))
    bench.lost("bob")
    for _ in range(2):
        bench.wait(QueuePolicy().idle_seconds)
    bench.settle()
    assert "bob" not in bench.core.mailboxes.by_name
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"2"))
    bench.settle()
    assert row(bench)["persistence"] == "durable"


def test_a_queue_that_has_ended_is_not_reported_as_lost():
    bench = make("mailbox")
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    assert bench.store.recover().table(MEMORY_QUEUES) == {("mailbox", "bob"): -1}
    bench.core.mailboxes.remove(bench.core.mailboxes.by_name["bob"])
    bench.settle()
    assert bench.store.recover().table(MEMORY_QUEUES) == {}


def test_a_private_mailbox_in_memory_leaves_nothing_in_the_store():
    bench = make("mailbox")
    bench.ask("guest", Hello([2], ""))
    bench.tell("guest", request(b"1"))
    bench.tell("bob", offer())
    bench.settle()
    bench.tell("bob", reply(1, 1))
    bench.settle()
    assert bench.store.recover().table(MEMORY_QUEUES) == {}
