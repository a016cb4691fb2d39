"""Keys of feeds: consumers of the target compete for the messages of a stream in order by key."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, offer, send

from malamute.core.feed.key import PARTS_MAX, FeedKey
from malamute.errors import InvalidValue
from malamute.protocol.batch import Columns, pack_record
from malamute.protocol.limits import TEXT_BYTES_MAX
from malamute.protocol.messages import Change, Error, Publish, Query
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    bench = Bench(queues=QueuePolicy(backoff_seconds=()))
    bench.open("alice", "ann", "bob", "carol")
    return bench


def change(bench, topic="feed.set", **arguments):
    bench.settle()
    bench.sent("alice")
    bench.tell("alice", Change(0, topic, arguments))
    bench.settle()
    [answer] = bench.sent("alice")
    return answer.code if isinstance(answer, Error) else answer.value


def feed(bench, key="header:customer", source="stream/s", target="service/w", **arguments):
    return change(bench, source=source, feed="f", target=target, key=key, **arguments)


def publish(bench, *customers):
    records = [pack_record({"customer": name} if name else {}, name.encode()) for name in customers]
    bench.tell("alice", Publish("s", 0, [f"paid.{name}.x" for name in customers], records))
    bench.settle()


def work(bench, *names):
    for name in names:
        bench.tell(name, offer(1, 10))


def bodies(bench, *names):
    bench.settle()
    return [[item.body.decode() for item in bench.got(name)] for name in names]


@pytest.mark.parametrize("key", ["header:customer", "subject:2", "subject"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_messages_of_one_key_go_to_one_consumer_in_order(bench, key, restarts):
    feed(bench, key)
    if restarts:
        publish(bench, "rome", "oslo", "rome", "oslo")
        bench.restart()
        bench.open("alice", "ann", "bob", "carol")
    work(bench, "ann", "bob")
    publish(bench, "rome", "oslo", "rome", "rome", "oslo")
    got = bodies(bench, "ann", "bob")
    assert not {*got[0]} & {*got[1]}
    assert restarts or all(got)
    assert sum(map(len, got)) == 5 + 4 * restarts


def test_keys_of_a_consumer_that_is_lost_go_to_the_others_and_new_keys_to_one_that_comes(bench):
    feed(bench)
    work(bench, "ann", "bob")
    publish(bench, "rome", "oslo", "oslo")
    assert bodies(bench, "ann", "bob") == [["rome"], ["oslo", "oslo"]]
    bench.lost("bob")
    publish(bench, "oslo")
    assert bodies(bench, "ann") == [["oslo", "oslo", "oslo"]]
    work(bench, "carol")
    publish(bench, "rome", "bergen")
    assert bodies(bench, "ann", "carol") == [["rome"], ["bergen"]]


def test_a_message_without_the_key_goes_to_anybody(bench):
    feed(bench)
    work(bench, "ann", "bob")
    publish(bench, "", "", "", "")
    assert [len(found) for found in bodies(bench, "ann", "bob")] == [2, 2]
    entries = bench.core.services.by_name["w"].entries.values()
    assert all("key" not in entry.properties for entry in entries)


def test_the_rule_is_shown_and_changed(bench):
    feed(bench)
    assert change(bench, "feed.disable", source="stream/s", feed="f")["enabled"] is False
    bench.restart()
    bench.open("alice")
    bench.tell("alice", Query(1, "feeds", {}))
    [answer] = bench.sent("alice")[-1:]
    assert answer.value[0]["key"] == "header:customer"
    feed(bench, "")
    work(bench, "ann")
    publish(bench, "rome")
    assert "key" not in next(iter(bench.core.services.by_name["w"].entries.values())).properties


def test_a_feed_with_a_key_waits_for_room_as_any_other():
    bench = Bench(queues=QueuePolicy(messages_max=2))
    bench.open("alice", "ann")
    feed(bench)
    publish(bench, "a", "b", "c", "d", "e")
    assert len(bench.core.services.by_name["w"].entries) == 2
    work(bench, "ann")
    for sequence in range(1, 6):
        bench.settle()
        bench.tell("ann", ack(1, (sequence, sequence)))
    assert bodies(bench, "ann") == [["a", "b", "c", "d", "e"]]


@pytest.mark.parametrize(
    "key", ["subjects", "subject:", "subject:0", f"subject:{PARTS_MAX + 1}", "subject:1.5", "header:", "x:y"]
)
def test_a_key_that_is_none_is_refused(bench, key):
    assert feed(bench, key) == InvalidValue.code
    assert not bench.core.feeds.by_name
    assert "w" not in bench.core.services.by_name


def test_only_a_feed_from_a_stream_to_a_queue_has_a_key(bench):
    bench.tell("alice", send("m", b"1"))
    assert feed(bench, source="mailbox/m") == InvalidValue.code
    assert feed(bench, target="stream/t") == InvalidValue.code
    assert feed(bench, target="mailbox/m")["created"]


def test_a_key_past_the_limit_of_keys_is_its_digest():
    long = "x" * (TEXT_BYTES_MAX + 1)
    columns = Columns(1, 0, "", [long, long, "y" + long, long[1:]], [b""] * 4)
    first, second, other, fits = FeedKey.parse("subject").of(columns)
    assert first == second != other
    assert len(first) < TEXT_BYTES_MAX
    assert fits == long[1:]


def test_any_value_of_a_header_is_a_key():
    values = ["a", 1, 1.5, True, None, ""]
    columns = Columns(1, 0, "", ["s"] * 6, [pack_record({"h": value}, b"") for value in values])
    assert FeedKey.parse("header:h").of(columns) == ["a", "1", "1.5", "True", "", ""]


def test_a_part_of_a_subject_that_is_not_there_is_no_key():
    columns = Columns(1, 0, "", ["a.b.c", "a.b", "a", "a..c"], [b""] * 4)
    assert FeedKey.parse("subject:2").of(columns) == ["b", "b", "", ""]
    assert FeedKey.parse(f"subject:{PARTS_MAX}").of(columns) == [""] * 4
