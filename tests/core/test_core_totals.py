"""What the broker has done, and what all queues have together: the answer to `totals`."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, request, send, subscribe

from malamute.core.admin.totals import TOTALS_EACH
from malamute.core.iteration.metrics import WINDOW_SECONDS
from malamute.protocol.messages import Answer, Change, Query, Reject


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    bench.settle()
    return bench


def totals(bench):
    bench.sent("carl")
    bench.tell("carl", Query(1, "totals", {}))
    while bench.core.effects.chores:
        bench.iterate()
    return [message for message in bench.sent("carl") if isinstance(message, Answer)][-1].value


def queues(bench):
    return {row["kind"]: row for row in totals(bench)["queues"]}


def test_queues_are_summed_by_kind_and_the_oldest_message_counts(bench):
    bench.tell("alice", send("dora", b"1"))
    bench.settle()
    bench.now += 10
    bench.tell("alice", send("emil", b"2", b"3"), request(b"4"))
    bench.settle()
    bench.tell("bob", offer(1, credit=1))
    bench.settle()
    bench.now += 5
    found = queues(bench)
    assert found["mailbox"] == {
        "kind": "mailbox",
        "messages": 3,
        "ready": 3,
        "delayed": 0,
        "in_flight": 0,
        "dead_letters": 0,
        "oldest_age": pytest.approx(15),
    }
    assert (found["service"]["messages"], found["service"]["in_flight"]) == (1, 1)
    assert found["service"]["oldest_age"] == pytest.approx(5)


def test_without_messages_there_is_no_oldest(bench):
    assert [row["oldest_age"] for row in queues(bench).values()] == [None, None]


@pytest.mark.parametrize("count", [TOTALS_EACH - 1, TOTALS_EACH, TOTALS_EACH + 1, 2 * TOTALS_EACH + 1])
def test_many_queues_are_looked_at_in_several_iterations(bench, count):
    for number in range(count):
        bench.receive("alice", send(f"box.{number}", b"x"))
    bench.settle()
    bench.receive("carl", Query(1, "totals", {}))
    looked_at = count + len(bench.core.sessions.by_peer)
    assert bool(bench.core.effects.chores) is (looked_at >= TOTALS_EACH)
    assert queues(bench)["mailbox"]["messages"] == count


def test_readers_gaps_and_refusals_are_counted_over_all_streams(bench):
    assert not any(totals(bench)["readers"].values())
    for number in range(TOTALS_EACH):
        bench.tell("alice", publish(b"x", b"y", b"z", stream=f"s.{number}"))
    bench.settle()
    bench.tell("bob", subscribe(1, 0, stream="s.1"), subscribe(2, 0, stream="s.2", start="first"))
    bench.settle()
    bench.receive("carl", Query(1, "totals", {}))
    assert bench.core.effects.chores
    bench.receive("bob", Query(7, "stream", {"name": "none"}))
    found = totals(bench)
    assert found["readers"] == {"live": 1, "replay": 1, "lag": 3, "lag_seconds": 0.0}
    assert found["refusals"] == {"404": 1}
    assert found.keys().isdisjoint({"switches", "gaps"})


def test_settlements_are_counted_by_outcome(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.settle()
    bench.tell("bob", ack(0, (1, 2)))
    bench.settle()
    assert totals(bench)["settlements"] == {"acknowledged": 2}


def test_a_commit_takes_from_what_asked_for_it_to_what_is_durable(bench):
    before = totals(bench)
    bench.tell("alice", publish(b"x" * 1000))
    bench.now += 0.25
    bench.commit()
    after = totals(bench)
    assert after["commits"]["count"] == before["commits"]["count"] + 1
    assert after["commits"]["seconds"] - before["commits"]["seconds"] == pytest.approx(0.25)
    assert after["commits"]["longest_seconds"] == pytest.approx(0.25)
    assert after["committed_bytes"] - before["committed_bytes"] >= 1000
    bench.now += 2 * WINDOW_SECONDS
    assert totals(bench)["commits"]["longest_seconds"] == 0


def test_what_could_not_be_stored_is_no_commit(bench):
    before = totals(bench)
    bench.tell("alice", publish(b"x" * 1000))
    bench.now += 0.25
    bench.fail()
    after = totals(bench)
    assert (after["commits"], after["committed_bytes"]) == (before["commits"], before["committed_bytes"])


def test_all_figures_are_one_answer(bench):
    bench.tell("carl", Query(1, "metrics", {}))
    bench.settle()
    (answer,) = [message for message in bench.sent("carl") if isinstance(message, Answer)]
    assert {*answer.value} == {"status", "totals", "storage"}
    assert answer.value["totals"]["queues"] == totals(bench)["queues"]


def test_a_cursor_counts_whether_anybody_reads_by_it_or_not(bench):
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.settle()
    bench.tell("bob", Change(1, "cursor.set", {"stream": "s", "cursor": "archive", "start": "first"}))
    bench.settle()
    found = totals(bench)["readers"]
    assert found == {"live": 0, "replay": 0, "lag": 3, "lag_seconds": 0.0, "cursors": 1, "cursor_lag": 3}


def test_dead_letters_are_counted_by_the_kind_of_queue(bench):
    assert "dead_lettered" not in totals(bench)
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.settle()
    bench.tell("bob", Reject(0, [(1, 1)], "no"))
    bench.settle()
    assert totals(bench)["dead_lettered"] == {"mailbox": 1}


# Lag is of messages that are there


def figures(bench: Bench, cursor: str = "c") -> tuple[int, int, int, int]:
    """How many messages of `s` are stored, and are behind a cursor by four ways to ask."""
    bench.tell("carl", Query(1, "stream", {"name": "s"}), Query(2, "cursors", {"stream": "s"}))
    bench.settle()
    details, cursors = [m.value for m in bench.sent("carl") if isinstance(m, Answer)]
    [lag] = [row["lag"] for row in details["cursors"] if row["name"] == cursor]
    [other] = [row["lag"] for row in cursors if row["name"] == cursor]
    return details["stored"], lag, other, totals(bench)["readers"].get("cursor_lag", 0)


def set_cursor(bench: Bench, start: str) -> None:
    bench.tell("carl", Change(0, "cursor.set", {"stream": "s", "cursor": "c", "start": start}))
    bench.settle()
    bench.sent("carl")


def put(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.tell("alice", publish(b"x"))
        bench.settle()


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_lag_counts_no_sequences_that_a_restart_left_out(bench, end):
    put(bench, 5)
    set_cursor(bench, "seq:3")
    for life in range(1, 4):
        getattr(bench, end)()
        bench.open("alice", "bob", "carl")
        assert figures(bench) == (2 + 3 * life, *[3 * life] * 3)
        put(bench, 3)
        assert figures(bench) == (5 + 3 * life, *[3 + 3 * life] * 3)


def test_lag_counts_no_messages_that_were_purged_or_that_the_ring_has_dropped(bench):
    put(bench, 9)
    set_cursor(bench, "seq:1")
    assert figures(bench) == (9, 9, 9, 9)
    bench.tell("carl", Change(0, "stream.retain", {"stream": "s", "count": 4}))
    bench.settle()
    bench.sent("carl")
    put(bench, 1)
    assert figures(bench) == (4, 4, 4, 4)
    bench.tell("carl", Change(0, "stream.purge", {"stream": "s"}))
    bench.settle()
    bench.sent("carl")
    assert figures(bench) == (0, 0, 0, 0)


def test_lag_counts_no_messages_that_the_disk_has_refused(bench):
    put(bench, 2)
    set_cursor(bench, "seq:1")
    bench.tell("alice", publish(b"x", b"y"))
    bench.iterate()
    while bench.appends:
        bench.fail()
    bench.settle()
    assert figures(bench) == (2, 2, 2, 2)
    put(bench, 1)
    assert figures(bench) == (3, 3, 3, 3)
    bench.restart()
    bench.open("alice", "bob", "carl")
    assert figures(bench) == (3, 3, 3, 3)


def test_the_lag_of_a_subscription_is_that_of_a_cursor(bench):
    put(bench, 5)
    bench.crash()
    bench.open("alice", "bob", "carl")
    put(bench, 2)
    bench.tell("bob", subscribe(1, 1, start="seq:2"))
    bench.settle()
    bench.tell("carl", Query(1, "client", {"id": "bob"}), Query(2, "stream", {"name": "s"}))
    bench.settle()
    client, stream = [m.value for m in bench.sent("carl") if isinstance(m, Answer)]
    assert (client["subscriptions"][0]["lag"], stream["readers"][0]["lag"]) == (5, 5)
    assert totals(bench)["readers"]["lag"] == 5
