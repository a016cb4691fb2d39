"""Feeds: each matching message of a stream becomes exactly one request, beside the subscriptions."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from random import Random

import pytest
from core_bench import Bench, ack, offer, publish, reply, request, send, subscribe
from depth import some

from malamute.core.broker import Core
from malamute.core.feed.feed import RETRY_SECONDS
from malamute.core.feed.rule import FeedName
from malamute.core.feed.table import KEEP_SECONDS
from malamute.core.feed.target import FED_BYTES
from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.session.selectors import SUBSCRIPTION_BYTES
from malamute.core.stream.cursors import cursor_bytes
from malamute.core.stream.stream import RESERVE
from malamute.errors import StoreError
from malamute.matching import Selector
from malamute.protocol.batch import pack, pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Cancel,
    Change,
    Commit,
    Credit,
    Error,
    Hello,
    Ok,
    Publish,
    Query,
    Reject,
    Stored,
)
from malamute.protocol.names import Place
from malamute.store.operations import PutMessages, PutValue, Reserve
from malamute.store.policies import QueuePolicy, StreamRetention
from malamute.store.tables import CURSORS, FEEDS

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text(encoding="utf-8"))


def feed(service="w", stream="s", **arguments):
    return Change(
        0,
        "feed.set",
        {"source": f"stream/{stream}", "feed": service, "target": f"service/{service}", **arguments},
    )


def fed(bench, **arguments):
    """A bench with alice who publishes, bob who works, and a feed."""
    bench.open("alice", "bob", "carl")
    (answer,) = asked(bench, "alice", feed(**arguments))
    assert isinstance(answer, Ok)
    return bench


def asked(bench, name, *messages):
    bench.sent(name)
    bench.tell(name, *messages)
    bench.settle()
    return bench.sent(name)


def rows(bench):
    (answer,) = asked(bench, "alice", Query(1, "feeds", {}))
    return answer.value


def waiting(bench, service="w"):
    return [
        entry.message.properties["sequence"]
        for entry in bench.core.services.by_name[service].entries.values()
    ]


@pytest.fixture
def bench():
    return fed(Bench(lifecycle=True))


# MOVE and COPY, by the vectors (XU4 to XU7)


@pytest.mark.parametrize("vector", VECTORS["move_copy"], ids=lambda vector: vector["source"])
def test_xu4_xu5_xu6_move_copy_vectors(vector):
    bench = Bench()
    names = [target.split()[1] for target in vector["queue"]]
    moves = [target.split()[1] for target in vector["queue"] if target.startswith("MOVE")]
    bench.open("publisher", *names)
    bench.tell("publisher", feed())
    for name in names:
        credit = vector["credit"].get(name, -1)
        bench.tell(name, offer(credit=credit) if name in moves else subscribe(credit=-1))
    bench.settle()
    for name in names:
        bench.sent(name)
    got = {name: [] for name in names}

    def collect():
        bench.settle()
        for name in names:
            got[name] += [int(body) for body in bench.bodies(name)]

    for number in vector["messages"]:
        bench.tell("publisher", publish(b"%d" % number))
        collect()
    for name in names:
        assert got[name] == vector[name]
    entries = bench.core.services.by_name["w"].entries.values()
    queued = [entry.message.properties["sequence"] for entry in entries if entry.state == "ready"]
    assert queued == vector["queued"]
    if "then" in vector:
        name, credit = vector["then"].removeprefix("credit ").split("+")
        bench.tell(name, Credit(1, int(credit), -1))
        collect()
        for name in names:
            assert got[name] == vector.get(f"{name}_after", vector[name])


def test_xu5_unlimited_credit_never_falls(bench):
    bench.tell("bob", offer(credit=-1))
    for _ in range(3):
        bench.tell("alice", publish(*[b"x"] * 100))
        bench.settle()
    assert len(bench.got("bob")) == 300
    (consumer,) = bench.core.services.by_name["w"].consumers.values()
    assert consumer.credit.messages == float("inf")


def test_xu7_a_stalled_copy_holds_up_neither_the_feed_nor_the_others():
    """With it and without, the same comes in the same iterations, and the same waits."""
    steps = beside_copies(0)
    assert [step["bob"] for step in steps] == [[b"1"], [b"2"], [], []]
    assert [step["carl"] for step in steps] == [[b"1"], [b"2"], [b"3"], [b"4"]]
    assert [step["waiting"] for step in steps] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert beside_copies(3) == steps


def beside_copies(stalled):
    """What comes with each message, in how many iterations, and what waits for a worker with credit for two.

    There is a reader without a limit, and some copies that are stalled.
    """
    bench = fed(Bench())
    bench.tell("carl", subscribe())
    bench.tell("bob", offer(credit=2))
    bench.tell("alice", *(subscribe(source, credit=0) for source in range(1, stalled + 1)))
    steps = []
    for body in (b"1", b"2", b"3", b"4"):
        bench.tell("alice", publish(body))
        taken, commits = {name: bench.bodies(name) for name in ("bob", "carl")}, 0
        while bench.appends or bench.reads:
            bench.commit() if bench.appends else bench.read()
            commits += 1
        bench.settle()
        got = {name: taken[name] + bench.bodies(name) for name in taken}
        steps.append({**got, "waiting": waiting(bench), "commits": commits})
    return steps


def test_xu7_a_copy_that_cannot_be_made_is_dropped_and_counted(bench):
    bench = Bench(no_journal=("s",))
    bench.open("alice", "bob", "carl")
    bench.tell("bob", subscribe(credit=0))
    bench.tell("carl", subscribe())
    bench.tell("alice", publish(b"1", b"2"))
    bench.settle()
    assert bench.bodies("carl") == [b"1", b"2"]
    bench.tell("bob", Credit(1, -1))
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert (bench.bodies("bob"), bench.bodies("carl")) == ([b"3"], [b"3"])
    (answer,) = asked(bench, "carl", Query(1, "stream", {"name": "s"}))
    assert sorted(row["skipped"] for row in answer.value["readers"]) == [0, 2]


def test_xu2_a_queue_without_workers_holds_all_and_drains_in_order(bench):
    bench.tell("alice", publish(b"1", b"2"))
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert waiting(bench) == [1, 2, 3]
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2", b"3"]


def test_zn19_over_crashes_a_feed_goes_on_behind_what_it_has_put(bench):
    for body in (b"1", b"2", b"3"):
        bench.tell("alice", publish(body))
        bench.settle()
        bench.crash()
        bench.settle()
        bench.open("alice")
    bench.open("bob")
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2", b"3"]


def test_xu2_a_queue_with_a_ready_worker_holds_nothing_back(bench):
    bench.tell("bob", offer())
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    assert not bench.core.services.by_name["w"].states.counts["ready"]


def test_zn20_ten_equal_workers_get_a_tenth_each():
    bench = fed(Bench())
    workers = [f"worker{number}" for number in range(10)]
    bench.open(*workers)
    for worker in workers:
        bench.tell(worker, offer())
    for _ in range(10):
        bench.tell("alice", publish(*[b"x"] * 1000))
        bench.settle()
    assert {len(bench.got(worker)) for worker in workers} == {1000}


# What a request of a feed is


def test_a_fed_request_names_its_sender_its_stream_and_its_sequence(bench):
    bench.tell("bob", offer())
    bench.tell("alice", publish(b"1", subject="a.b"))
    bench.settle()
    (item,) = bench.got("bob")
    assert (item.sender, item.subject, item.body) == ("alice", "a.b", b"1")
    assert item.properties == {"source": "stream/s", "sequence": 1}


def test_replies_to_a_fed_request_go_nowhere_and_the_final_one_completes_it(bench):
    bench.tell("nobody", Hello([2], ""), publish(b"0"))
    bench.tell("bob", offer())
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert asked(bench, "bob", reply(1, 1, 2, number=1, final=False)) == [Stored([[1, 1, 0]])]
    assert waiting(bench) == [1, 2]
    assert asked(bench, "bob", reply(1, 1, 2, number=2)) == [Stored([[2, 2, 0]])]
    assert waiting(bench) == []
    assert bench.core.mailboxes.by_name == {}


def test_an_ack_completes_a_fed_request(bench):
    bench.tell("bob", offer())
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", ack(1, (1, 1)))
    assert waiting(bench) == []


def test_only_matching_messages_become_requests_and_requests_of_clients_stand_beside_them():
    bench = fed(Bench(), criteria=[["topic", "x.*"]])
    bench.tell(
        "alice", publish(b"1", subject="x.a"), publish(b"2", subject="y.a"), publish(b"3", subject="x.b")
    )
    bench.settle()
    bench.tell("alice", request(b"4"))
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"3", b"4"]


def test_a_feed_can_go_by_headers():
    bench = fed(Bench(), where="n > 3")
    records = [pack_record({"n": n}, b"%d" % n) for n in range(6)]
    bench.tell("alice", Publish("s", 0, ["a"] * 6, records))
    bench.settle()
    assert waiting(bench) == [5, 6]


def test_many_streams_feed_one_service_and_one_stream_many(bench):
    asked(bench, "alice", feed("w", "t"), feed("v", "s"))
    bench.tell("alice", publish(b"1"), publish(b"2", stream="t"))
    bench.settle()
    sources = [e.message.properties["source"] for e in bench.core.services.by_name["w"].entries.values()]
    assert sorted(sources) == ["stream/s", "stream/t"]
    assert waiting(bench, "v") == [1]


# Where it begins


@pytest.mark.parametrize(
    ("start", "sequences"),
    [
        ("", [4]),
        ("new", [4]),
        ("first", [1, 2, 3, 4]),
        ("last", [3, 4]),
        ("seq:2", [2, 3, 4]),
        ("since:1h", [1, 2, 3, 4]),
    ],
)
def test_a_feed_begins_at_its_start(start, sequences):
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.settle()
    (answer,) = asked(bench, "alice", feed(start=start) if start else feed())
    assert answer.value == {
        "source": "stream/s",
        "feed": "w",
        "target": "service/w",
        "created": True,
        "sequence": sequences[0] - 1,
    }
    bench.tell("alice", publish(b"4"))
    bench.settle()
    assert waiting(bench) == sequences


def test_a_feed_that_is_changed_continues_and_with_a_start_goes_elsewhere(bench):
    asked(bench, "alice", publish(b"1", subject="x"), publish(b"2", subject="y"))
    (answer,) = asked(bench, "alice", feed(criteria=[["exact", "y"]]))
    assert answer.value == {
        "source": "stream/s",
        "feed": "w",
        "target": "service/w",
        "created": False,
        "sequence": 2,
    }
    bench.tell("alice", publish(b"3", subject="x"), publish(b"4", subject="y"))
    bench.settle()
    assert waiting(bench) == [1, 2, 4]
    asked(bench, "alice", feed(start="first"))
    assert waiting(bench) == [1, 2, 4, 1, 2, 3, 4]
    assert len(rows(bench)) == 1


def test_a_feed_that_is_sent_to_the_head_when_it_is_about_to_read_takes_nothing_old(bench):
    asked(bench, "alice", publish(b"1", b"2", b"3"), feed("v"))
    bench.receive("alice", feed("v", start="seq:3"), feed("v", start="new"))
    bench.iterate()
    bench.settle()
    asked(bench, "alice", publish(b"4"))
    assert waiting(bench, "v") == [4]


def test_a_feed_that_is_deleted_takes_no_more_and_leaves_what_it_made(bench):
    asked(bench, "alice", publish(b"1"))
    (answer,) = asked(bench, "alice", Change(0, "feed.delete", {"source": "stream/s", "feed": "w"}))
    assert answer.value == {"source": "stream/s", "feed": "w", "sequence": 1}
    asked(bench, "alice", publish(b"2"))
    assert waiting(bench) == [1]
    assert rows(bench) == []
    recovered = bench.store.recover()
    assert (recovered.table(FEEDS), recovered.table(CURSORS)) == ({}, {})


def test_feeds_show_what_they_do():
    bench = fed(Bench(), criteria=[["topic", "x.*"], ["exact", "y"]], where="n > 3")
    assert rows(bench) == [
        {
            "source": "stream/s",
            "feed": "w",
            "target": "service/w",
            "operation": "copy",
            "when": "match",
            "criteria": [["exact", "y"], ["topic", "x.*"]],
            "where": "n > 3",
            "state": "live",
            "sequence": 0,
            "lag": 0,
            "taken": 0,
            "skipped": 0,
            "credit": Limits().queue_messages,
            "user": "",
            "reason": "",
        }
    ]


def test_a_feed_is_among_the_readers_and_the_cursors_of_its_stream(bench):
    asked(bench, "alice", publish(b"1"))
    (answer,) = asked(bench, "alice", Query(1, "stream", {"name": "s"}))
    assert [(row["address"], row["delivered"]) for row in answer.value["readers"]] == [("$feed/w", 1)]
    assert answer.value["cursors"] == [{"name": "$feed/w", "sequence": 1, "lag": 0}]


def test_a_dry_run_only_shows(bench):
    (answer,) = asked(bench, "alice", feed("v", "t", dry_run=True))
    assert answer.value == {"source": "stream/t", "feed": "v", "target": "service/v", "created": True}
    asked(bench, "alice", Change(0, "feed.delete", {"source": "stream/s", "feed": "w", "dry_run": True}))
    assert [row["feed"] for row in rows(bench)] == ["w"]
    assert "v" not in bench.core.services.by_name
    assert "t" not in bench.core.streams.by_name


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"feed": "w"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "criteria": [["nonsense", "x"]]}, 415),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "criteria": []}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "criteria": "x"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "where": "n >"}, 415),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "start": "sometime"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "start": "last-per-subject"}, 416),
        ({"source": "stream/live", "feed": "w", "target": "service/w"}, 416),
        ({"source": "stream/$sys", "feed": "w", "target": "service/w"}, 401),
        ({"source": "stream/s", "feed": "w", "target": "service/$w"}, 401),
        ({"source": "stream/s", "feed": "w", "target": "mailbox/$w"}, 416),
        ({"source": "stream/s", "feed": "", "target": "service/w"}, 414),
        ({"source": "stream/a\n", "feed": "w", "target": "service/w"}, 414),
        ({"source": "stream/s", "feed": "w", "target": "w"}, 414),
        ({"source": "stream/s", "feed": "w", "target": "topic/w"}, 414),
        ({"source": "stream/s", "feed": "x" * 250, "target": "service/w"}, 414),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "operation": "move"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "operation": "give"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "service/w", "when": "never"}, 416),
        ({"source": "stream/s", "feed": "w", "target": "stream/s"}, 416),
    ],
)
def test_what_stands_against_a_feed_is_reported_and_changes_nothing(arguments, code):
    bench = Bench(no_journal=("live",), lifecycle=True)
    bench.open("alice")
    (error,) = asked(bench, "alice", Change(0, "feed.set", arguments))
    assert (type(error), error.code, error.ref) == (Error, code, 0)
    assert bench.core.services.by_name == {}
    assert set(bench.core.streams.by_name) == {"$sys"}
    assert bench.store.recover().table(FEEDS) == {}


def test_a_feed_whose_service_is_gone_when_its_start_is_known_needs_room_for_it():
    bench = Bench(Limits(queues=1), queues=QueuePolicy(idle_seconds=1.0))
    bench.open("alice")
    asked(bench, "alice", publish(b"1"))
    bench.tell("alice", feed(start="since:1s"))
    bench.wait(1.0)
    bench.tell("alice", send("bob", b"1"))
    assert bench.reads
    (error,) = asked(bench, "alice")
    assert error.code == 503


def test_a_service_with_the_longest_name_can_be_fed():
    bench = fed(Bench(), service="x" * 249)
    asked(bench, "alice", publish(b"1"))
    assert waiting(bench, "x" * 249) == [1]


def test_what_is_not_there_is_not_deleted_and_a_fed_stream_stays(bench):
    (error,) = asked(bench, "alice", Change(0, "feed.delete", {"source": "stream/t", "feed": "w"}))
    assert error.code == 404
    (error,) = asked(bench, "alice", Change(0, "stream.delete", {"stream": "s"}))
    assert error.code == 423


def test_the_position_of_a_feed_is_not_for_clients_to_set(bench):
    assert [e.code for e in asked(bench, "alice", Commit("s", 0, "$feed/w", 0))] == [401]


# A full queue


def full(limit=2, **more):
    bench = fed(Bench(Limits(queue_messages=limit), lifecycle=True, **more))
    bench.tell("bob", offer(credit=0))
    return bench


def work(bench, number):
    """Let bob do a number of requests, one at a time; what he got."""
    bodies = []
    for _ in range(number):
        bench.tell("bob", Credit(1, 1, -1))
        bench.settle()
        for item in bench.got("bob"):
            bodies.append(item.body)
            bench.tell("bob", reply(1, item.sequence))
        bench.settle()
    return bodies


def test_a_full_queue_slows_no_publisher_and_the_ring_keeps_the_rest():
    bench = full()
    for number in range(1, 8):
        assert asked(bench, "alice", publish(b"%d" % number, number=number)) == [
            Stored([[number, number, number]])
        ]
    assert waiting(bench) == [1, 2]
    assert (rows(bench)[0]["state"], rows(bench)[0]["lag"]) == ("full", 5)
    assert work(bench, 8) == [b"%d" % number for number in range(1, 8)]
    assert rows(bench)[0]["state"] == "live"


def test_a_batch_larger_than_the_queue_comes_in_parts():
    bench = full(3)
    asked(bench, "alice", publish(*[b"%d" % number for number in range(10)]))
    assert waiting(bench) == [1, 2, 3]
    assert work(bench, 11) == [b"%d" % number for number in range(10)]


def test_room_in_bytes_counts_as_well():
    size = FED_BYTES + 1 + len(publish(b"x" * 100).records[0])
    bench = fed(Bench(Limits(queue_bytes=3 * size + size - 1)))
    bench.tell("bob", offer(credit=0))
    asked(bench, "alice", publish(*[b"x" * 100] * 5))
    assert waiting(bench) == [1, 2, 3]
    assert len(work(bench, 6)) == 5


def test_room_that_others_take_counts_as_well():
    size = ENTRY_BYTES + 1 + len(publish(b"x" * 100).records[0])
    bench = fed(Bench(Limits(queues_bytes=2 * size)))
    bench.open("dora")
    bench.tell("dora", offer(service="other"))
    asked(bench, "alice", request(b"x" * 100, b"x" * 100, service="other")._replace(properties=None))
    bench.tell("bob", offer())
    asked(bench, "alice", publish(b"x" * 100))
    assert waiting(bench) == []
    asked(bench, "dora", ack(1, (1, 2)))
    assert bench.bodies("bob") == [b"x" * 100]


def test_a_message_that_never_fits_is_left_out_and_reported():
    bench = fed(Bench(Limits(queue_bytes=200), lifecycle=True))
    bench.tell("alice", subscribe(9, stream="$sys", criteria=[["topic", "feed.gap.*"]]))
    bench.tell("bob", offer())
    bench.tell("alice", publish(b"1", b"x" * 300, b"3"))
    bench.settle()
    bench.tell("bob", ack(1, (1, 1)))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"3"]
    (told,) = bench.got("alice")
    assert (told.subject, told.headers["first"], told.headers["last"]) == ("feed.gap.w", 2, 2)
    assert rows(bench)[0]["skipped"] == 1


def test_what_the_ring_has_dropped_is_reported_and_the_rest_continues():
    bench = full(1, retention=StreamRetention(messages_max=2))
    bench.tell("carl", subscribe(1, stream="$sys", criteria=[["topic", "feed.*.*"]]))
    for number in range(1, 7):
        asked(bench, "alice", publish(b"%d" % number))
    bench.sent("carl")
    assert work(bench, 4) == [b"1", b"5", b"6"]
    events = [(item.subject) for item in bench.got("carl")]
    assert events[:2] == ["feed.resumed.w", "feed.gap.w"]
    assert rows(bench)[0]["skipped"] == 3


def test_a_full_queue_is_reported_once_until_there_is_room():
    bench = full(8)
    bench.tell("carl", subscribe(1, stream="$sys", criteria=[["topic", "feed.full.*"]]))
    for _ in range(5):
        asked(bench, "alice", publish(*[b"x"] * 8))
    assert len(bench.got("carl")) == 1


# Exactly once


def test_a_crash_between_publish_and_commit_loses_and_doubles_nothing():
    bench = fed(Bench())
    bench.tell("alice", publish(b"1", number=1))
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


def test_a_crash_after_the_commit_makes_no_request_twice():
    bench = fed(Bench())
    asked(bench, "alice", publish(b"1", b"2"))
    bench.crash()
    bench.settle()
    assert waiting(bench) == [1, 2]
    bench.open("alice")
    asked(bench, "alice", publish(b"3"))
    assert waiting(bench) == [1, 2, RESERVE + 3]


def test_a_feed_that_was_behind_at_the_crash_continues_there():
    bench = full()
    asked(bench, "alice", publish(*[b"%d" % number for number in range(1, 8)]))
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", offer(credit=0))
    bench.settle()
    assert work(bench, 8) == [b"%d" % number for number in range(1, 8)]


def test_a_restart_in_good_order_leaves_no_gap():
    bench = fed(Bench(lifecycle=True), criteria=[["exact", "x"]])
    asked(bench, "alice", publish(b"1"), publish(b"2", subject="x"), publish(b"3"))
    bench.restart()
    bench.settle()
    bench.open("alice")
    asked(bench, "alice", publish(b"4", subject="x"))
    assert waiting(bench) == [2, 4]
    assert rows(bench)[0]["skipped"] == 0


def test_what_the_disk_refused_to_the_publisher_makes_no_request():
    bench = fed(Bench())
    asked(bench, "alice", publish(b"1"))
    bench.tell("alice", publish(b"2", number=1))
    bench.fail(StoreError("input/output error"))
    bench.settle()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [500]
    assert waiting(bench) == [1]
    asked(bench, "alice", publish(b"2", number=2))
    assert waiting(bench) == [1, 3]
    assert rows(bench)[0]["skipped"] == 1


def test_requests_from_the_ring_that_the_disk_refused_are_redelivered():
    bench = Bench()
    bench.open("alice")
    asked(bench, "alice", publish(b"1"))
    asked(bench, "alice", publish(b"2", b"3"))
    bench.tell("alice", feed(start="first"))

    def has_requests(append):
        return any(isinstance(operation, PutMessages) for operation in append.operations)

    while not (bench.appends and has_requests(bench.appends[0])):
        bench.commit() if bench.appends else bench.read()
    bench.fail(StoreError("input/output error"))
    # What comes before it tries again must not overtake what was refused.
    bench.tell("alice", publish(b"4"))
    bench.settle()
    assert waiting(bench) == []
    assert bench.core.next_deadline() <= bench.now + RETRY_SECONDS
    bench.wait(RETRY_SECONDS)
    bench.settle()
    assert waiting(bench) == [1, 2, 3, 4]


def test_a_feed_that_the_disk_refused_at_first_continues_where_it_began():
    bench = full()
    bench.settle()
    bench.tell("alice", feed("v"))
    bench.fail(StoreError("input/output error"))
    asked(bench, "alice", feed("v"), request(b"1", b"2", service="v"))
    asked(bench, "alice", publish(b"3"))
    bench.crash()
    bench.open("bob")
    bench.tell("bob", offer(service="v"))
    bench.settle()
    bench.tell("bob", ack(1, (1, 2)))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2", b"3"]


def test_a_feed_takes_what_comes_under_sequences_that_are_used_again():
    bench = fed(Bench())
    asked(bench, "alice", publish(b"1"))
    # As if the disk had not reserved what was sent without it, and the feed had looked so far.
    bench.store.write([PutValue(CURSORS, ("s", "$feed/w"), 2 * RESERVE), Reserve("s", 1)])
    bench.crash()
    bench.settle()
    bench.open("alice")
    asked(bench, "alice", publish(b"2"))
    assert waiting(bench) == [1, 2]
    assert bench.store.recover().table(CURSORS)["s", "$feed/w"] == 2


def test_room_that_is_kept_for_dead_letters_makes_no_message_too_large():
    bench = full()
    asked(bench, "bob", Credit(1, 2, -1))
    asked(bench, "alice", publish(b"1", b"2"))
    asked(bench, "bob", Reject(1, [[1, 2]]))
    bench.tell("alice", Change(0, "queue.redrive", {"kind": "service", "name": "w"}), publish(b"3"))
    # The message is on the disk before the records of the dead letters are brought.
    assert bench.reads
    bench.commit()
    bench.settle()
    assert work(bench, 4) == [b"1", b"2", b"3"]
    assert rows(bench)[0]["skipped"] == 0


def test_messages_that_come_while_the_disk_works_wait_for_it_and_come_in_order(bench):
    asked(bench, "alice", publish(b"1"))
    for number in range(2, 6):
        bench.tell("alice", publish(b"%d" % number))
    bench.commit()
    assert waiting(bench) == [1, 2]
    bench.commit()
    # Were the second not stored, what comes behind it would be in the queue twice.
    assert waiting(bench) == [1, 2]
    bench.settle()
    assert waiting(bench) == [1, 2, 3, 4, 5]


def test_the_position_is_kept_though_nothing_matches():
    bench = fed(Bench(), criteria=[["exact", "x"]])
    asked(bench, "alice", publish(b"1", b"2"))
    assert bench.store.recover().table(CURSORS)["s", "$feed/w"] == 0
    bench.wait(KEEP_SECONDS)
    bench.settle()
    assert bench.store.recover().table(CURSORS)["s", "$feed/w"] == 2


def test_a_position_that_the_disk_did_not_reserve_is_set_back_though_the_disk_refuses_that_at_first():
    """As when the disk refused what was published, and took a feed that begins with the last of it."""
    bench = Bench()
    value = pack(([["exact", "a"]], ""))
    bench.store.write([PutValue(FEEDS, ("s", "w"), value), PutValue(CURSORS, ("s", "$feed/w"), 2)])
    bench.crash()
    bench.open("alice", "bob")
    while bench.appends:
        bench.fail()
    # It goes on where it is, and that is before all that will come.
    (answer,) = asked(bench, "alice", feed(criteria=[["exact", "b"]]))
    assert answer.value["sequence"] == 0
    assert bench.store.recover().table(CURSORS)["s", "$feed/w"] == 0
    bench.crash()
    bench.open("alice", "bob")
    asked(bench, "alice", publish(b"1", subject="b"))
    assert waiting(bench) == [1]


def test_a_position_is_set_back_until_the_disk_takes_it():
    bench = Bench()
    bench.store.write(
        [PutValue(FEEDS, ("s", "w"), pack(([["exact", "a"]], ""))), PutValue(CURSORS, ("s", "$feed/w"), 2)]
    )
    bench.crash()
    bench.iterate()
    for _ in range(2):
        bench.fail()
        assert not bench.appends
        bench.wait(RETRY_SECONDS)
    bench.settle()
    assert bench.store.recover().table(CURSORS)["s", "$feed/w"] == 0
    bench.wait(RETRY_SECONDS)
    assert not bench.appends


def test_a_feed_of_an_unknown_family_rests_and_the_broker_starts():
    bench = fed(Bench())
    bench.store.write([PutValue(FEEDS, ("s", "v"), pack(([["gone", "x"]], "")))])
    bench.crash()
    bench.iterate()
    [notice] = bench.notices
    assert notice.event == "not recovered, left in the store"
    assert (notice.details["kind"], notice.details["name"]) == ("feed", "v from stream/s")
    assert bench.store.recover().table(FEEDS).keys() == {("s", "w"), ("s", "v")}
    assert set(bench.core.feeds.by_name) == {(("stream", "s"), "w")}


def test_a_queue_that_is_fed_is_not_removed_though_it_is_empty_for_long():
    bench = fed(Bench(queues=QueuePolicy(idle_seconds=10.0)))
    for _ in range(3):
        bench.wait(10.0)
        bench.settle()
    asked(bench, "alice", publish(b"1"))
    assert waiting(bench) == [1]
    asked(bench, "alice", Change(0, "feed.delete", {"source": "stream/s", "feed": "w"}))
    bench.tell("bob", offer())
    bench.settle()
    bench.tell("bob", ack(1, (1, 1)), Cancel(1))
    for _ in range(3):
        bench.wait(10.0)
        bench.settle()
    assert "w" not in bench.core.services.by_name


def test_feeds_are_taken_up_whatever_the_limits_are_now():
    bench = fed(Bench())
    bench.settings = bench.settings._replace(limits=Limits(feeds=1, queues=1))
    bench.open("bob")
    bench.settle()
    bench.crash()
    assert set(bench.core.feeds.by_name) == {(("stream", "s"), "w")}


def commit_some(bench, number):
    for _ in range(number):
        bench.commit() if bench.appends else bench.iterate()


@pytest.mark.parametrize("seed", some(range(30), *range(8)))
def test_every_message_is_one_request_whatever_happens(seed):
    """Publishes, crashes at any commit, failures and slow workers in an order from the seed."""
    chance = Random(seed)
    bench = full(5)
    numbers = count(1)
    accepted, done = [], []

    def publish_stored():
        bodies = [b"%d" % next(numbers) for _ in range(chance.randint(1, 8))]
        command = publish(*bodies, number=bench.core.sessions.by_address["alice"].numbers.next)
        accepted.extend(bodies)
        bench.tell("alice", command)
        if chance.random() < 0.4:
            commit_some(bench, chance.randint(0, 3))
            crash()
            bench.tell("alice", command)
        bench.settle()

    def publish_in_vain():
        bench.tell("alice", publish(b"lost"))
        bench.fail()

    def crash():
        bench.crash()
        bench.iterate()
        bench.open("alice", "bob")
        bench.tell("bob", offer(credit=0))

    def do_some():
        bench.settle()
        done.extend(work(bench, chance.randint(1, 6)))

    for _ in range(100):
        bench.wait(chance.choice((0, RETRY_SECONDS)))
        chance.choice((publish_stored, publish_stored, publish_in_vain, crash, do_some, do_some))()
    for _ in range(100):
        bench.wait(RETRY_SECONDS)
        do_some()
    assert [body for body in done if body != b"lost"] == accepted
    assert waiting(bench) == []


# What an operator does to a feed, when the disk refuses it


def place(bench):
    """Where the one feed is, in the broker and on the disk."""
    found = bench.store.recover()
    stored = {(f, s): found.table(CURSORS).get((s, f"$feed/{f}")) for s, f in found.table(FEEDS)}
    there = {(row["feed"], row["source"].removeprefix("stream/")): row["sequence"] for row in rows(bench)}
    return there, stored


def refused(bench, message):
    """Send a change that the disk refuses; the answer."""
    bench.sent("alice")
    bench.tell("alice", message)
    while bench.appends:
        bench.fail()
    return [m for m in bench.sent("alice") if isinstance(m, Ok | Error) and m.about == 15]


def silent(**arguments):
    """A feed that takes nothing, so that it stays where it begins."""
    return feed(criteria=[["exact", "nothing"]], **arguments)


@pytest.fixture
def published():
    """A broker with a stream of five messages."""
    bench = Bench(lifecycle=True)
    bench.open("alice", "bob")
    asked(bench, "alice", publish(*[b"x"] * 5))
    return bench


def test_a_feed_that_is_set_again_after_the_disk_refused_to_delete_it_begins_at_its_start(published):
    bench = published
    asked(bench, "alice", silent(start="new"))
    asked(bench, "alice", publish(*[b"x"] * 5))
    delete = Change(0, "feed.delete", {"source": "stream/s", "feed": "w"})
    assert [type(m) for m in refused(bench, delete)] == [Error]
    assert place(bench) == ({("w", "s"): 5}, {("w", "s"): 5})
    asked(bench, "alice", delete)
    assert place(bench) == ({}, {})
    assert [type(m) for m in refused(bench, silent())] == [Error]
    assert place(bench) == ({}, {})
    asked(bench, "alice", silent())
    bench.crash()
    bench.open("alice")
    assert place(bench) == ({("w", "s"): 10}, {("w", "s"): 10})


def test_a_feed_whose_change_is_refused_continues_as_it_was(published):
    bench = published
    asked(bench, "alice", feed(start="new"))
    assert [type(m) for m in refused(bench, silent(start="first"))] == [Error]
    asked(bench, "alice", publish(b"6"))
    assert waiting(bench) == [6]
    assert [row["criteria"] for row in rows(bench)] == [[["all", ""]]]


def test_a_feed_that_is_refused_leaves_no_service_behind(published):
    assert [type(m) for m in refused(published, feed("v"))] == [Error]
    assert "v" not in published.core.services.by_name


@pytest.mark.parametrize("seed", some(range(40), *range(10)))
def test_on_the_disk_there_are_feeds_with_their_positions_or_none_whatever_it_refuses(published, seed):
    bench, chance = published, Random(seed)
    told = None
    for _ in range(30):
        changes = [silent(start="new"), silent(start="seq:3"), silent()]
        changes.append(Change(0, "feed.delete", {"source": "stream/s", "feed": "w"}))
        change = chance.choice(changes)
        asked(bench, "alice", publish(b"x", b"x"))
        if chance.random() < 0.5:
            assert [type(m) for m in refused(bench, change)] == [Error]
        else:
            (answer,) = [
                m for m in asked(bench, "alice", change) if isinstance(m, Ok | Error) and m.about == 15
            ]
            if isinstance(answer, Ok):
                told = answer.value["sequence"] if change.topic == "feed.set" else None
            else:
                assert (change.topic, told) == ("feed.delete", None)
        expected = {} if told is None else {("w", "s"): told}
        assert place(bench) == (expected, expected)
        if chance.random() < 0.3:
            bench.crash()
            bench.open("alice")
            assert place(bench) == (expected, expected)


def test_changes_of_a_feed_that_come_at_once_are_made_one_after_the_other(published):
    bench = published
    delete = Change(0, "feed.delete", {"source": "stream/s", "feed": "w"})
    answers = asked(bench, "alice", silent(start="first"), delete, delete, silent(start="seq:4"), silent())
    assert [m.code if isinstance(m, Error) else m.value.get("created") for m in answers if m.about == 15] == [
        True,
        None,
        404,
        True,
        False,
    ]
    assert place(bench) == ({("w", "s"): 3}, {("w", "s"): 3})


def test_a_stream_is_not_purged_or_deleted_while_a_feed_from_it_is_changed(published):
    bench = published
    bench.sent("alice")
    bench.tell("alice", silent())
    for topic in ("stream.purge", "stream.delete"):
        (error,) = bench.ask("alice", Change(0, topic, {"stream": "s"}))
        assert error.code == 503


def test_a_stream_is_not_purged_if_the_disk_refuses_what_a_feed_has_just_made_of_it(published):
    """A broker that is killed then would find the feed behind what it never made."""
    bench = published
    asked(bench, "alice", feed())
    bench.tell("alice", publish(b"new"))
    while not any(isinstance(o, PutMessages) for append in bench.appends for o in append.operations):
        bench.read() if bench.reads else bench.commit()
    bench.tell("alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.fail()
    bench.commit()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [507]
    bench.crash()
    bench.open("alice")
    bench.settle()
    assert len(waiting(bench)) == 1


def test_a_purged_stream_continues_feeding_after_a_restart(published):
    bench = published
    asked(bench, "alice", feed())
    asked(bench, "alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.crash()
    bench.open("alice")
    asked(bench, "alice", publish(b"new"))
    assert len(waiting(bench)) == 1


# Their cursors have a limit


def codes(messages):
    return [message.code if isinstance(message, Error) else 0 for message in messages]


def delete(service="w", stream="s"):
    return Change(0, "feed.delete", {"source": f"stream/{stream}", "feed": service})


LIMITS = {
    "cursors": Limits(cursors=2),
    "cursors_bytes": Limits(cursors_bytes=2 * cursor_bytes("$feed/a")),
}


@pytest.fixture(params=LIMITS)
def narrow(request):
    """A bench where two feeds from one stream have room."""
    bench = Bench(LIMITS[request.param], lifecycle=True)
    bench.open("alice")
    return bench


def test_a_feed_whose_cursor_has_no_room_is_refused_and_changes_nothing(narrow):
    assert codes(asked(narrow, "alice", feed("a"), feed("b"))) == [0, 0]
    events = len(narrow.events)
    assert codes(asked(narrow, "alice", feed("c"))) == [429]
    assert codes(asked(narrow, "alice", feed("c", dry_run=True))) == [429]
    assert [row["feed"] for row in rows(narrow)] == ["a", "b"]
    assert "c" not in narrow.core.services.by_name
    assert len(narrow.events) == events
    assert len(narrow.store.recover().table(CURSORS)) == len(narrow.store.recover().table(FEEDS)) == 2
    # Those that are there may be changed, and what ends makes room.
    assert codes(asked(narrow, "alice", feed("a", where="n > 3"))) == [0]
    assert codes(asked(narrow, "alice", delete("b"), feed("c"))) == [429, 0]
    assert codes(asked(narrow, "alice", feed("c"))) + codes(asked(narrow, "alice", feed("b"))) == [0, 429]


def test_a_feed_whose_cursor_has_no_room_makes_no_stream():
    bench = Bench(LIMITS["cursors_bytes"], lifecycle=True)
    bench.open("alice")
    asked(bench, "alice", feed("a"), feed("b"))
    assert codes(asked(bench, "alice", feed("c", "t"))) == [429]
    assert codes(asked(bench, "alice", feed("c", "t", start="since:1h"))) == [429]
    assert set(bench.core.streams.by_name) == {"s", "$sys"}
    asked(bench, "alice", delete("a"), delete("b"))
    # The room is taken while the position is looked for.
    changes = [feed("c", "t", start="since:1h"), feed("a"), feed("b")]
    assert codes(asked(bench, "alice", *changes)) == [0, 0, 429]
    assert set(bench.core.streams.by_name) == {"s", "$sys"}
    assert set(bench.core.services.by_name) == {"a", "b"}


def test_cursors_of_feeds_that_are_asked_for_together_count_each(narrow):
    changes = [feed("a"), feed("a"), feed("b"), feed("c"), feed("b", where="n > 3")]
    assert sorted(codes(asked(narrow, "alice", *changes))) == [0, 0, 0, 0, 429]
    assert [row["feed"] for row in rows(narrow)] == ["a", "b"]


def test_cursors_of_feeds_that_wait_for_their_position_count_each(narrow):
    asked(narrow, "alice", publish(b"1"))
    changes = [feed(service, start="since:1h") for service in "abc"]
    assert sorted(codes(asked(narrow, "alice", *changes))) == [0, 0, 429]


def test_a_cursor_of_a_client_and_one_of_a_feed_take_room_of_each_other(narrow):
    asked(narrow, "alice", publish(b"1"), feed("a"))
    narrow.tell("alice", feed("b"))
    # The disk has not taken that one yet.
    assert codes(narrow.ask("alice", Commit("s", 0, "longer.", 1))) == [429]
    narrow.settle()
    assert codes(asked(narrow, "alice", delete("a"))) == [0]
    assert codes(asked(narrow, "alice", Commit("s", 0, "longer.", 1))) == []
    assert codes(asked(narrow, "alice", feed("a"))) == [429]


def test_a_feed_that_the_disk_refuses_gives_back_the_room_of_its_cursor(narrow):
    for _ in range(3):
        narrow.tell("alice", feed("a"), feed("b"), feed("b"))
        while narrow.appends:
            narrow.fail()
        assert codes(narrow.sent("alice")) == [507, 507, 507]
    assert narrow.core.streams.cursors.bytes == 0
    assert codes(asked(narrow, "alice", feed("a"), feed("b"))) == [0, 0]
    narrow.crash()
    narrow.open("alice")
    assert codes(asked(narrow, "alice", feed("c"))) == [429]


def test_a_feed_whose_position_is_lost_may_be_set_again_where_there_is_no_room_for_more():
    narrow = Bench(LIMITS["cursors"])
    narrow.open("alice")
    asked(narrow, "alice", feed("a"), feed("b"))
    recovered = narrow.store.recover()
    values = {**recovered.values, CURSORS: {("s", "$feed/b"): 0}}
    narrow.core = Core(
        narrow.now,
        narrow.settings,
        recovered._replace(values=values, lost=frozenset({(CURSORS, ("s", "$feed/a"))})),
    )
    narrow.open("alice")
    assert [row["feed"] for row in rows(narrow)] == ["b"]
    assert codes(asked(narrow, "alice", feed("c"))) == [429]
    assert codes(asked(narrow, "alice", feed("a", start="new"))) == [0]
    assert [row["feed"] for row in rows(narrow)] == ["a", "b"]


def lost_feed():
    """A bench with a feed whose position is lost."""
    bench = Bench()
    bench.open("alice")
    asked(bench, "alice", publish(b"1"), feed("a"))
    recovered = bench.store.recover()
    lost = recovered._replace(values={**recovered.values, CURSORS: {}}, lost={(CURSORS, ("s", "$feed/a"))})
    bench.core = Core(bench.now, bench.settings, lost)
    bench.open("alice")
    assert bench.core.recovery.skipped == 1
    return bench


def test_a_lost_feed_that_goes_with_its_stream_is_not_reported_any_more():
    bench = lost_feed()
    bench.tell("alice", Change(0, "stream.delete", {"stream": "s"}))
    bench.fail()
    assert bench.core.recovery.skipped == 1
    bench.settle()
    asked(bench, "alice", Change(0, "stream.delete", {"stream": "s"}))
    assert bench.core.recovery.skipped == 0


def back_at(bench, sequence, *, doubtful):
    """The broker starts anew, and the position of its feed is what the store had of it before."""
    recovered = bench.store.recover()
    cursor = ("s", "$feed/w")
    doubts = {(CURSORS, cursor)} if doubtful else set()
    damaged = recovered._replace(values={**recovered.values, CURSORS: {cursor: sequence}}, doubtful=doubts)
    bench.appends.clear()
    bench.core = Core(bench.now, bench.settings, damaged)
    return bench.core.feeds.position(FeedName(Place("stream", "s"), "w"))


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize(("sequence", "begins"), [(1, 1), (2, 1), (4, 1), (5, 5)])
def test_a_feed_that_was_set_back_does_not_go_on_where_it_was_before(bench, sequence, begins, seen):
    bench.open("alice")
    asked(bench, "alice", publish(b"1", b"2", b"3", b"4"), feed(start="new"))
    asked(bench, "alice", feed(start="seq:2"))
    if seen:
        # A change that says nothing of a start leaves it where it began.
        asked(bench, "alice", feed(where="x = 1"), publish(b"5"))
    else:
        asked(bench, "alice", publish(b"5"))
    assert back_at(bench, sequence, doubtful=True) == begins


def test_a_feed_goes_on_where_it_is_if_nothing_later_can_be_lost(bench):
    bench.open("alice")
    asked(bench, "alice", publish(b"1", b"2", b"3", b"4"), feed(start="seq:2"))
    assert back_at(bench, 3, doubtful=False) == 3


def test_a_feed_that_began_at_the_head_goes_on_where_its_store_has_it(bench):
    bench.open("alice")
    asked(bench, "alice", publish(b"1", b"2"), feed(start="new"), publish(b"3"))
    assert back_at(bench, 2, doubtful=True) == 2


# And so have their selectors

WANTED = Selector.parse([["topic", "a.*"]], "x in (2, 3)")


def wanting(service="w", where=WANTED.where, **arguments):
    return feed(service, criteria=[["topic", "a.*"]], where=where, **arguments)


def with_selectors(count):
    """A bench with room for so many selectors."""
    bench = Bench(Limits(selectors_bytes=count * WANTED.cost_bytes))
    bench.open("alice")
    return bench


@pytest.mark.parametrize("start", ["new", "since:1h"])
def test_selectors_of_feeds_that_are_asked_for_together_count_each(start):
    bench = with_selectors(2)
    changes = [wanting(service, start=start) for service in "abc"]
    assert sorted(codes(asked(bench, "alice", *changes))) == [0, 0, 429]
    assert [row["feed"] for row in rows(bench)] == ["a", "b"]
    assert set(bench.core.services.by_name) == {"a", "b"}
    assert bench.core.selectors.used_bytes == 2 * WANTED.cost_bytes
    assert codes(asked(bench, "alice", wanting("c"))) == [429]
    # What ends makes room.
    assert codes(asked(bench, "alice", delete("a"))) + codes(asked(bench, "alice", wanting("c"))) == [0, 0]


def test_changes_of_one_feed_that_are_asked_for_together_count_each():
    bench = with_selectors(3)
    asked(bench, "alice", wanting())
    changes = [wanting(start=start) for start in ("first", "new", "last")]
    assert sorted(codes(asked(bench, "alice", *changes))) == [0, 0, 429]
    assert bench.core.selectors.used_bytes == WANTED.cost_bytes
    assert codes(asked(bench, "alice", wanting("a"), wanting("b"))) == [0, 0]


def test_a_subscription_finds_no_room_that_a_feed_has_that_is_being_stored():
    bench = Bench(Limits(selectors_bytes=WANTED.cost_bytes + SUBSCRIPTION_BYTES))
    bench.open("alice")
    bench.tell("alice", wanting())
    subscription = subscribe(criteria=[["topic", "a.*"]], where=WANTED.where)
    assert codes(bench.ask("alice", subscription)) == [429]
    bench.settle()
    assert [row["feed"] for row in rows(bench)] == ["w"]
    assert codes(asked(bench, "alice", subscription)) == [429]


def test_a_feed_that_the_disk_refuses_gives_back_the_room_of_its_selector():
    bench = with_selectors(2)
    for _ in range(3):
        bench.tell("alice", wanting("a"), wanting("b"))
        while bench.appends:
            bench.fail()
        assert codes(bench.sent("alice")) == [507, 507]
    assert codes(asked(bench, "alice", wanting("a"), wanting("b"))) == [0, 0]
