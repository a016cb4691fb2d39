"""Feeds to every kind of place: a stream, a mailbox and a service, one behind the other, exactly once."""

from __future__ import annotations

from random import Random

import pytest
from core_bench import Bench, offer, publish, reply, subscribe
from depth import some

from malamute.core.feed.feed import RETRY_SECONDS
from malamute.protocol.batch import pack_record, unpack_record
from malamute.protocol.messages import Cancel, Change, Error, Ok, Publish, Query, Reply
from malamute.store.policies import QueuePolicy

PLACES = ["stream/t", "mailbox/bob", "service/w"]


def feed(name="f", source="stream/s", target="stream/t", **arguments):
    return Change(0, "feed.set", {"feed": name, "source": source, "target": target, **arguments})


def switch(topic, name="f", source="stream/s", **arguments):
    return Change(0, topic, {"feed": name, "source": source, **arguments})


def asked(bench, message):
    bench.sent("alice")
    bench.tell("alice", message)
    bench.settle()
    (answer,) = [m for m in bench.sent("alice") if not isinstance(m, Reply)]
    return answer


def fed(target="stream/t", **arguments):
    bench = Bench(lifecycle=True)
    bench.open("alice", "bob")
    assert isinstance(asked(bench, feed(target=target, **arguments)), Ok)
    return bench


def read(bench, stream):
    reader = f"reader{len(bench.log)}"
    bench.open(reader)
    bench.tell(reader, subscribe(1, stream=stream, start="first", credit=-1))
    bench.settle()
    got = bench.got(reader)
    bench.tell(reader, Cancel(1))
    bench.settle()
    return got


def bodies(bench, place):
    """The bodies of what is in a place, in its order."""
    kind, _, name = place.partition("/")
    if kind == "stream":
        return [item.body for item in read(bench, name)]
    entries = bench.core.queues[kind].by_name[name].entries.values()
    return [unpack_record(entry.record)[1][0] for entry in entries]


@pytest.mark.parametrize("target", PLACES)
def test_what_matches_is_passed_on_to_every_kind_of_place(target):
    bench = fed(target, criteria=[["topic", "x.*"]], where="n > 1")
    records = [pack_record({"n": n}, b"%d" % n) for n in range(4)]
    bench.tell("alice", Publish("s", 0, ["x.a", "x.a", "y", "x.b"], records))
    bench.settle()
    assert bodies(bench, target) == [b"3"]


def test_a_message_has_its_sender_and_subject_and_a_number_of_the_stream_it_comes_to():
    bench = fed()
    bench.tell("bob", publish(b"0", subject="x", stream="t"))
    bench.settle()
    bench.tell("alice", publish(b"1", subject="a"), publish(b"2", subject="b"))
    bench.tell("bob", subscribe(1, stream="t", start="first", credit=-1))
    bench.settle()
    got = [(item.sequence, item.sender, item.subject) for item in bench.got("bob")]
    assert got == [(1, "bob", "x"), (2, "alice", "a"), (3, "alice", "b")]


@pytest.mark.parametrize("target", ["mailbox/bob", "service/w"])
def test_what_a_feed_makes_in_a_queue_says_where_it_was(target):
    bench = fed(target)
    bench.tell("alice", publish(b"1"), publish(b"2"))
    bench.settle()
    kind, _, name = target.partition("/")
    entries = bench.core.queues[kind].by_name[name].entries.values()
    assert [entry.properties for entry in entries] == [
        {"source": "stream/s", "sequence": 1},
        {"source": "stream/s", "sequence": 2},
    ]


def test_a_reply_to_what_a_feed_has_made_goes_nowhere():
    bench = fed("service/w")
    bench.tell("alice", publish(b"1"))
    bench.tell("bob", offer(credit=1))
    bench.settle()
    bench.sent("alice")
    bench.tell("bob", reply(1, 1))
    bench.settle()
    assert bench.core.services.by_name["w"].entries == {}
    assert "alice" not in bench.core.mailboxes.by_name


def test_feeds_stand_one_behind_the_other():
    bench = fed()
    asked(bench, feed("g", "stream/t", "service/w", criteria=[["topic", "#"]]))
    bench.tell("alice", publish(b"1"), publish(b"2"))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1", b"2"]


# What no other feed takes


def test_a_default_feed_takes_what_no_other_feed_takes_enabled_or_not():
    bench = fed("stream/t", criteria=[["exact", "a"]])
    asked(bench, feed("g", target="stream/u", criteria=[["exact", "b"]], where="n = 1"))
    asked(bench, feed("rest", target="mailbox/bob", when="default"))
    asked(bench, switch("feed.disable"))
    records = [pack_record({"n": n}, b"%d" % n) for n in range(4)]
    bench.tell("alice", Publish("s", 0, ["a", "b", "b", "c"], records))
    bench.settle()
    assert bodies(bench, "mailbox/bob") == [b"2", b"3"]
    assert bodies(bench, "stream/u") == [b"1"]
    asked(bench, switch("feed.enable"))
    assert bodies(bench, "stream/t") == [b"0"]


# Rest


def test_a_feed_that_is_disabled_rests_over_a_crash_and_continues_where_it_was():
    bench = fed("service/w")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    answer = asked(bench, switch("feed.disable"))
    assert answer.value == {"source": "stream/s", "feed": "f", "enabled": False, "sequence": 1}
    bench.tell("alice", publish(b"2"))
    bench.settle()
    bench.crash()
    bench.open("alice")
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1"]
    (row,) = asked(bench, Query(1, "feeds", {})).value
    assert (row["state"], row["sequence"]) == ("disabled", 1)
    assert asked(bench, Query(1, "feed", {"feed": "f", "source": "stream/s"})).value == row
    asked(bench, switch("feed.enable"))
    assert bodies(bench, "service/w") == [b"1", b"2", b"3"]


def test_setting_a_feed_that_is_disabled_lets_it_go_on():
    bench = fed("service/w")
    asked(bench, switch("feed.disable"))
    bench.tell("alice", publish(b"1"))
    bench.settle()
    asked(bench, feed(target="service/w"))
    assert bodies(bench, "service/w") == [b"1"]


def test_a_switch_that_the_disk_refuses_leaves_the_feed_as_it_was():
    bench = fed("service/w")
    bench.tell("alice", switch("feed.disable"))
    bench.fail()
    bench.settle()
    bench.wait(RETRY_SECONDS)
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1"]
    assert [row["state"] for row in asked(bench, Query(1, "feeds", {})).value] == ["live"]


@pytest.mark.parametrize("topic", ["feed.enable", "feed.disable"])
def test_a_dry_run_of_a_switch_only_shows(topic):
    bench = fed("service/w")
    assert asked(bench, switch(topic, dry_run=True)).value["sequence"] == 0
    assert [row["state"] for row in asked(bench, Query(1, "feeds", {})).value] == ["live"]
    assert asked(bench, switch(topic, "none")).code == 404
    assert asked(bench, Query(1, "feed", {"feed": "none", "source": "stream/s"})).code == 404


# Circles


def test_a_feed_that_would_close_a_circle_is_refused_and_named():
    bench = fed()
    asked(bench, feed("g", "stream/t", "stream/u"))
    refused = asked(bench, feed("h", "stream/u", "stream/s"))
    assert isinstance(refused, Error)
    assert refused.code == 416
    assert "stream/u > stream/s > stream/t > stream/u" in refused.text
    asked(bench, switch("feed.delete"))
    assert isinstance(asked(bench, feed("h", "stream/u", "stream/s")), Ok)


def test_two_feeds_that_are_set_at_once_do_not_close_a_circle():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", feed("f", "stream/s", "stream/t"), feed("g", "stream/t", "stream/s"))
    bench.settle()
    answers = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    assert sorted(getattr(answer, "code", 0) for answer in answers) == [0, 416]
    assert len(bench.core.feeds.by_name) == 1


def test_a_feed_can_be_given_another_target_and_goes_on_there():
    bench = fed("service/w")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    asked(bench, feed(target="stream/t"))
    bench.tell("alice", publish(b"2"))
    bench.settle()
    assert (bodies(bench, "service/w"), bodies(bench, "stream/t")) == ([b"1"], [b"2"])
    assert bench.core.services.by_name["w"].feeds == 0


# Targets stay


def test_a_stream_that_a_feed_goes_to_is_not_deleted_and_takes_what_comes():
    bench = fed()
    refused = asked(bench, Change(0, "stream.delete", {"stream": "t"}))
    assert isinstance(refused, Error)
    assert refused.code == 423
    assert refused.text == (
        "stream 't' is in use: 1 feed: f from stream/s; end them, or delete it with cascade"
    )
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, "stream/t") == [b"1"]
    asked(bench, feed(target="service/w"))
    assert isinstance(asked(bench, Change(0, "stream.delete", {"stream": "t"})), Ok)


def test_a_stream_is_not_deleted_while_a_feed_to_it_is_being_set():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", feed(), Change(0, "stream.delete", {"stream": "t"}))
    bench.settle()
    answers = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    assert sorted(getattr(answer, "code", 0) for answer in answers) == [0, 503]
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, "stream/t") == [b"1"]


def test_a_stream_to_which_a_feed_is_set_while_it_is_being_deleted_stays():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"0", stream="t"))
    bench.settle()
    bench.tell("alice", Change(0, "stream.delete", {"stream": "t"}), feed())
    bench.settle()
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, "stream/t") == [b"1"]
    bench.crash()
    assert bodies(bench, "stream/t") == [b"1"]


def test_a_stream_that_a_feed_goes_to_stays_when_its_last_reader_leaves():
    bench = fed()
    bench.tell("bob", subscribe(1, stream="t", credit=-1))
    bench.settle()
    bench.tell("bob", Cancel(1))
    bench.settle()
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, "stream/t") == [b"1"]


@pytest.mark.parametrize("target", ["mailbox/carl", "service/w"])
def test_a_queue_that_a_feed_goes_to_stays_however_long_it_is_idle(target):
    bench = Bench(queues=QueuePolicy(idle_seconds=60))
    bench.open("alice")
    asked(bench, feed(target=target))
    for _ in range(3):
        bench.wait(61)
        bench.settle()
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bodies(bench, target) == [b"1"]


# Exactly once


@pytest.mark.parametrize("seed", some(range(12), *range(4)))
def test_each_message_arrives_once_whatever_the_disk_refuses_and_whenever_the_broker_dies(seed):
    """The oracle is naive: what is in the source is in each target, once and in order."""
    random, bench = Random(seed), Bench()
    bench.open("alice")
    for place in PLACES:
        asked(bench, feed(place, target=place, criteria=[["exact", "a"]]))
    asked(bench, feed("behind", "stream/t", "service/behind"))
    for number in range(40):
        match random.randrange(6):
            case 0:
                bench.iterate()
            case 1 if bench.appends:
                bench.fail()
            case 2:
                bench.crash()
                bench.open("alice")
            case 3:
                bench.settle()
            case _:
                bench.tell("alice", publish(b"%02d" % number, subject=random.choice("ab")))
    bench.settle()
    for _ in range(3):
        bench.wait(RETRY_SECONDS)
        bench.settle()
    source = [item.body for item in read(bench, "s") if item.subject == "a"]
    for place in (*PLACES, "service/behind"):
        assert bodies(bench, place) == source, place
