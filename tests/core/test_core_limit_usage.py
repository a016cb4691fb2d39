"""What is used of each limit: every limit of the configuration is reported, and refusals are counted."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, send, subscribe

from malamute.core.admin.limits import SHARED, SHARES
from malamute.core.iteration.metrics import WINDOW_SECONDS, RecentCount
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Answer, Error, Query
from malamute.store.policies import MEMORY, QueuePolicy


def totals(bench):
    bench.sent("carl")
    bench.tell("carl", Query(1, "totals", {}))
    while bench.core.effects.chores:
        bench.iterate()
    return [message for message in bench.sent("carl") if isinstance(message, Answer)][-1].value


def used(bench):
    return {row["name"]: row for row in totals(bench)["limits"]}


def make_bench(policy=None, **limits):
    bench = Bench(Limits(**limits), queues=policy)
    bench.open("alice", "bob", "carl")
    bench.settle()
    return bench


def test_every_limit_of_the_configuration_is_reported_or_is_of_one_exchange():
    of_one_exchange = {"message_bytes", "selector_bytes", "unconfirmed", "answers_bytes"}
    assert {*SHARED, *SHARES, *of_one_exchange} == {*Limits._fields}
    assert used(make_bench()).keys() == {*SHARED, *SHARES}


def test_what_all_share_and_the_fullest_of_each_is_reported():
    bench = make_bench(queue_messages=4, cursors=2, sources=3)
    bench.tell("alice", send("dora", b"1"), send("emil", b"1", b"2", b"3"), publish(b"x"))
    bench.tell("bob", subscribe(1, 0), subscribe(2, 0))
    bench.settle()
    found = used(bench)
    assert found["queue_messages"] == {
        "name": "queue_messages",
        "used": 3,
        "limit": 4,
        "where": "mailbox emil",
    }
    assert (found["sources"]["used"], found["sources"]["limit"]) == (2, 3)
    assert found["sources"]["where"] == "client bob"
    assert found["queues"]["used"] == 2
    assert found["queues_messages"]["used"] == 4
    assert found["sessions"]["used"] == 3
    assert found["streams"]["used"] == 1
    assert found["caches_bytes"]["refuses"] is False


def test_a_queue_at_its_limit_is_full_and_one_more_message_is_counted_as_refused():
    bench = make_bench(queue_messages=2)
    bench.tell("alice", send("dora", b"1", b"2"))
    bench.settle()
    row = used(bench)["queue_messages"]
    assert row["used"] == row["limit"] == 2
    assert "refused_lately" not in totals(bench)
    bench.sent("alice")
    bench.tell("alice", send("dora", b"3"))
    bench.settle()
    assert [message.code for message in bench.sent("alice") if isinstance(message, Error)] == [503]
    assert totals(bench)["refused_lately"] == 1
    bench.now += 2 * WINDOW_SECONDS
    assert "refused_lately" not in totals(bench)


def test_a_queue_in_memory_is_full_where_its_senders_are_refused():
    size = 10_000
    bench = make_bench(QueuePolicy(persistence=MEMORY), queues_memory_bytes=20 * size)
    sent = 0
    while not [message for message in bench.sent("alice") if isinstance(message, Error)]:
        sent += 1
        bench.tell("alice", send("dora", b"x" * size))
        bench.settle()
    row = used(bench)["queue_bytes"]
    assert row["used"] > size * (sent - 2)
    assert row["limit"] - row["used"] < 1.1 * size


@pytest.mark.parametrize(
    ("after", "count"), [(WINDOW_SECONDS - 1, 2), (2 * WINDOW_SECONDS - 1, 2), (2 * WINDOW_SECONDS, 0)]
)
def test_a_recent_count_is_of_one_or_two_windows(after, count):
    counted = RecentCount()
    counted.add(0.0)
    counted.add(0.5)
    assert counted.count(after) == count
