"""Feeds from a mailbox or a service: what they take is moved, in one commit, and is nowhere twice."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from core_bench import Bench, ack, mail_credit, offer, reply, request, send, subscribe
from depth import some

from malamute.core.feed.feed import RETRY_SECONDS
from malamute.protocol.batch import pack_record, unpack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Cancel, Change, Error, Message, Nak, Ok, Query, Request, Send, Stored
from malamute.store.operations import Stranded
from malamute.store.policies import DURABLE, MEMORY, QueuePolicy
from malamute.store.tables import QUEUE_FEEDS

SOURCES = ["service/w", "mailbox/bob"]
TARGETS = ["stream/t", "mailbox/carl", "service/v"]


def feed(name: str = "f", source: str = "service/w", target: str = "service/v", **arguments: Any) -> Change:
    return Change(0, "feed.set", {"feed": name, "source": source, "target": target, **arguments})


def switch(topic: str, name: str = "f", source: str = "service/w", **arguments: Any) -> Change:
    return Change(0, topic, {"feed": name, "source": source, **arguments})


def asked(bench: Bench, message: Message) -> Any:
    bench.sent("operator")
    bench.tell("operator", message)
    bench.settle()
    (answer,) = [m for m in bench.sent("operator") if isinstance(m, Ok | Error) or hasattr(m, "value")]
    return answer


def fed(bench: Bench | None = None, **arguments: Any) -> Bench:
    bench = bench or Bench(lifecycle=True)
    bench.open("operator", "alice", "bob", "carl")
    answer = asked(bench, feed(**arguments))
    assert isinstance(answer, Ok), answer
    return bench


def to(place: str, *bodies: bytes, number: int = 0, subject: str = "a", **options: Any) -> Message:
    """A command that puts messages into a queue."""
    kind, _, name = place.partition("/")
    records = [pack_record(None, body) for body in bodies]
    properties = [options] * len(bodies) if options else None
    if kind == "service":
        return Request(name, number, [subject] * len(bodies), records, properties)
    return Send(name, number, [subject] * len(bodies), records, properties)


def entries(bench: Bench, place: str) -> list[Any]:
    kind, _, name = place.partition("/")
    queue = bench.core.queues[kind].by_name.get(name)
    return [] if queue is None else [*queue.entries.values()]


def bodies(bench: Bench, place: str) -> list[bytes]:
    """The bodies of what is in a place, in its order."""
    kind, _, name = place.partition("/")
    if kind != "stream":
        assert all(entry.record is not None for entry in entries(bench, place))
        return [b"".join(unpack_record(entry.record)[1]) for entry in entries(bench, place)]
    reader = f"reader{len(bench.log)}"
    bench.open(reader)
    bench.tell(reader, subscribe(1, stream=name, start="first", credit=-1))
    bench.settle()
    got = bench.bodies(reader)
    bench.tell(reader, Cancel(1))
    bench.settle()
    return got


def row(bench: Bench, name: str = "f", source: str = "service/w") -> dict[str, Any]:
    answer = asked(bench, Query(1, "feed", {"feed": name, "source": source}))
    value: dict[str, Any] = answer.value
    return value


# From where to where


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_what_matches_is_moved_from_every_queue_to_every_place(source: str, target: str) -> None:
    bench = fed(source=source, target=target, criteria=[["topic", "x.*"]], where="n > 1")
    records = [pack_record({"n": n}, b"%d" % n) for n in range(4)]
    kind, _, name = source.partition("/")
    command = Request if kind == "service" else Send
    bench.tell("alice", command(name, 0, ["x.a", "x.a", "y", "x.b"], records))
    bench.settle()
    assert bodies(bench, target) == [b"3"]
    assert bodies(bench, source) == [b"0", b"1", b"2"]
    assert (row(bench, source=source)["taken"], row(bench, source=source)["sequence"]) == (1, None)


@pytest.mark.parametrize("number", [0, 1], ids=["unconfirmed", "confirmed"])
def test_what_waits_when_a_feed_is_set_is_moved_in_its_order(number: int) -> None:
    bench = Bench()
    bench.open("operator", "alice")
    bench.tell("alice", request(b"1", b"2", number=number), request(b"3"))
    bench.settle()
    asked(bench, feed(target="mailbox/carl"))
    bench.tell("alice", request(b"4"))
    bench.settle()
    assert bodies(bench, "mailbox/carl") == [b"1", b"2", b"3", b"4"]
    assert entries(bench, "service/w") == []


def test_what_is_moved_between_services_is_the_same_request_and_is_answered() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", correlation=7, priority=3))
    bench.now += 5
    bench.tell("bob", offer(1, service="v"))
    bench.settle()
    (item,) = bench.got("bob")
    properties = {"asked": "w", "correlation": 7, "priority": 3}
    assert (item.sender, item.properties, item.attempt) == ("alice", properties, 1)
    bench.tell("alice", mail_credit())
    bench.tell("bob", reply(1, item.sequence, body=b"done"))
    bench.settle()
    (answer,) = bench.got("alice")
    assert (answer.body, answer.properties) == (
        b"done",
        {"correlation": 7, "service": "w", "final": True},
    )


def test_a_request_that_was_moved_twice_is_answered_in_the_name_of_the_service_that_was_asked() -> None:
    bench = fed()
    asked(bench, feed("g", "service/v", "service/u"))
    bench.tell("alice", request(b"1"))
    bench.tell("bob", offer(1, service="u"))
    bench.settle()
    (item,) = bench.got("bob")
    bench.tell("alice", mail_credit())
    bench.tell("bob", reply(1, item.sequence))
    bench.settle()
    (answer,) = bench.got("alice")
    assert answer.properties == {"correlation": 0, "service": "w", "final": True}


def test_the_reply_to_a_request_that_was_moved_goes_to_its_reply_address() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", reply_to="carl"))
    bench.tell("bob", offer(1, service="v"))
    bench.settle()
    (item,) = bench.got("bob")
    bench.tell("bob", reply(1, item.sequence))
    bench.settle()
    assert bodies(bench, "mailbox/carl") == [b"done"]


def test_mail_that_becomes_a_request_says_where_it_was_and_nobody_waits_for_an_answer() -> None:
    bench = fed(source="mailbox/bob", target="service/v")
    bench.tell("alice", send("bob", b"1", correlation=7))
    bench.tell("carl", offer(1, service="v"))
    bench.settle()
    (item,) = bench.got("carl")
    assert item.properties == {"correlation": 7, "source": "mailbox/bob", "sequence": 1}
    bench.tell("carl", reply(1, item.sequence))
    bench.settle()
    assert entries(bench, "mailbox/alice") == []
    assert entries(bench, "service/v") == []


# What senders ask for goes along


def test_a_message_that_was_moved_expires_when_it_would_have() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", ttl=10_000))
    bench.settle()
    bench.wait(9)
    assert bodies(bench, "service/v") == [b"1"]
    bench.wait(2)
    bench.settle()
    assert entries(bench, "service/v") == []
    assert "service.expired.v" in bench.events


def test_it_expires_then_over_a_crash_too() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", ttl=10_000))
    bench.settle()
    bench.now += 11
    bench.crash()
    bench.wait(0)
    bench.settle()
    assert entries(bench, "service/v") == []


def outcomes(bench: Bench, name: str = "alice") -> list[Any]:
    bench.tell(name, mail_credit())
    bench.settle()
    return [
        (item.properties["outcome"], item.properties["kind"], item.properties["name"])
        for item in bench.got(name)
        if item.properties and "outcome" in item.properties
    ]


@pytest.mark.parametrize("crash", [False, True])
def test_a_tracked_message_has_one_outcome_and_that_is_of_where_it_ends(crash: bool) -> None:
    bench = fed()
    bench.tell("alice", request(b"1", tracker="t", number=1))
    bench.settle()
    if crash:
        bench.crash()
        bench.open("operator", "alice", "bob")
    assert outcomes(bench) == []
    bench.tell("bob", offer(1, service="v"))
    bench.settle()
    (item,) = bench.got("bob")
    bench.tell("bob", ack(1, (item.sequence, item.sequence)))
    bench.settle()
    assert outcomes(bench) == [("acknowledged", "service", "v")]
    # Its room is free, and so is the tracker.
    assert bench.core.mailboxes.by_name["alice"].usage.reserved == 0
    bench.tell("alice", request(b"2", tracker="t", number=2))
    bench.settle()
    assert bodies(bench, "service/v") == [b"2"]


def test_a_tracked_message_that_goes_to_a_stream_ends_there() -> None:
    bench = fed(target="stream/t")
    bench.tell("alice", request(b"1", tracker="t", number=1))
    bench.settle()
    assert bodies(bench, "stream/t") == [b"1"]
    assert outcomes(bench) == [("moved", "service", "w")]


def test_a_tracked_message_stays_where_its_outcome_is_safe() -> None:
    bench = Bench()
    durable = bench.settings.queues
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(persistence=MEMORY) if name == "v" else durable(kind, name)
    )
    bench.crash()
    fed(bench)
    bench.tell("alice", request(b"1", tracker="t", number=1), request(b"2"))
    bench.settle()
    assert bodies(bench, "service/v") == [b"2"]
    assert bodies(bench, "service/w") == [b"1"]


def test_if_the_disk_refuses_a_move_the_message_is_at_its_source_with_all_it_asks_for() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", tracker="t", ttl=60_000, number=1))
    while not entries(bench, "service/v"):
        bench.commit()
    bench.fail()
    assert (bodies(bench, "service/w"), entries(bench, "service/v")) == ([b"1"], [])
    assert bench.core.mailboxes.by_name["alice"].usage.reserved == 1
    bench.wait(RETRY_SECONDS)
    bench.settle()
    assert (entries(bench, "service/w"), bodies(bench, "service/v")) == ([], [b"1"])
    bench.wait(60)
    bench.settle()
    assert outcomes(bench) == [("expired", "service", "v")]


# Who gets what


def test_a_feed_goes_before_consumers_and_they_get_what_it_does_not_take() -> None:
    bench = fed(criteria=[["exact", "a"]])
    bench.tell("bob", offer(1))
    bench.settle()
    bench.tell("alice", request(b"1"), request(b"2", subject="b"))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]
    assert bodies(bench, "service/v") == [b"1"]


def test_xu4_feeds_that_move_take_turns() -> None:
    bench = fed(target="stream/t")
    asked(bench, feed("g", target="stream/u"))
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.tell("alice", request(b"4"))
    bench.settle()
    assert (bodies(bench, "stream/t"), bodies(bench, "stream/u")) == ([b"1", b"3"], [b"2", b"4"])


def test_what_has_no_room_at_one_feed_goes_to_the_other() -> None:
    policies = {"v": QueuePolicy(messages_max=1)}
    bench = Bench()
    bench.settings = bench.settings._replace(queues=lambda kind, name: policies.get(name, QueuePolicy()))
    bench.crash()
    fed(bench)
    asked(bench, feed("g", target="service/u"))
    bench.tell("alice", request(b"1", b"2", b"3", b"4"))
    bench.settle()
    assert bodies(bench, "service/v") == [b"1"]
    assert sorted(bodies(bench, "service/u")) == [b"2", b"3", b"4"]


def test_for_the_overflow_a_feed_takes_what_no_consumer_has_credit_for() -> None:
    bench = fed(when="overflow")
    bench.tell("bob", offer(1, credit=2))
    bench.settle()
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.tell("alice", request(b"4"))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]
    assert bodies(bench, "service/v") == [b"3", b"4"]
    # What comes back, and nobody has credit for, is no exception.
    bench.tell("bob", Nak(1, [(1, 1)], 0))
    bench.settle()
    assert bodies(bench, "service/v") == [b"3", b"4", b"1"]


def test_the_default_takes_of_what_waits_what_no_other_feed_takes_enabled_or_not() -> None:
    bench = fed(criteria=[["exact", "a"]], where="n = 1")
    asked(bench, feed("rest", target="stream/t", when="default"))
    asked(bench, switch("feed.disable"))
    bench.tell("bob", offer(1, pattern="c"))
    bench.settle()
    records = [pack_record({"n": n}, b"%d" % n) for n in range(4)]
    bench.tell("alice", Request("w", 0, ["a", "a", "b", "c"], records))
    bench.settle()
    assert bench.bodies("bob") == [b"3"]
    assert bodies(bench, "stream/t") == [b"0", b"2"]
    assert bodies(bench, "service/w") == [b"1", b"3"]


@pytest.mark.parametrize("change", [switch("feed.delete"), feed(criteria=[["exact", "b"]])])
def test_the_default_takes_what_another_feed_takes_no_more(change: Change) -> None:
    bench = fed(criteria=[["exact", "a"]])
    asked(bench, switch("feed.disable"))
    asked(bench, feed("rest", target="stream/t", when="default"))
    bench.tell("alice", request(b"1"))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1"]
    asked(bench, change)
    assert entries(bench, "service/w") == []


def test_an_owner_of_a_mailbox_gets_what_no_feed_takes() -> None:
    bench = fed(source="mailbox/bob", criteria=[["prefix", "bill."]])
    bench.tell("bob", mail_credit())
    bench.tell("alice", to("mailbox/bob", b"1", subject="bill.1"), to("mailbox/bob", b"2", subject="x"))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]
    assert bodies(bench, "service/v") == [b"1"]


def test_a_delayed_message_is_moved_when_it_is_due() -> None:
    bench = fed()
    bench.tell("alice", request(b"1", delay=5_000))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1"]
    bench.wait(5)
    bench.settle()
    assert (bodies(bench, "service/w"), bodies(bench, "service/v")) == ([], [b"1"])


# Room


def with_room(messages: int, **arguments: Any) -> Bench:
    bench = Bench(lifecycle=True)
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(messages_max=messages) if name == "v" else QueuePolicy()
    )
    bench.restart()
    return fed(bench, **arguments)


def test_while_its_target_is_full_a_feed_waits_and_keeps_the_order() -> None:
    bench = with_room(2)
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.tell("alice", request(b"4"))
    bench.settle()
    assert (bodies(bench, "service/v"), bodies(bench, "service/w")) == ([b"1", b"2"], [b"3", b"4"])
    assert (row(bench)["state"], row(bench)["lag"], row(bench)["credit"]) == ("full", 2, 0)
    assert bench.events.count("feed.full.f") == 1
    bench.tell("bob", offer(1, credit=2, service="v"))
    bench.settle()
    bench.tell("bob", ack(1, (1, 2)))
    bench.settle()
    assert bodies(bench, "service/v") == [b"3", b"4"]
    assert bench.events.count("feed.resumed.f") == 1
    assert row(bench)["state"] == "live"


def test_consumers_get_what_a_feed_has_no_room_for() -> None:
    bench = with_room(1)
    bench.tell("alice", request(b"1", b"2"))
    bench.settle()
    bench.tell("bob", offer(1))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]


def test_what_consumers_have_had_meanwhile_is_no_lag_of_a_full_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malamute.core.feed.queue_feed.RUN_MESSAGES", 10)
    bench = with_room(1)
    bench.tell("bob", offer(1))
    for _ in range(50):
        bench.tell("alice", request(b"1"))
        bench.settle()
        for item in bench.got("bob"):
            bench.tell("bob", ack(1, (item.sequence, item.sequence)))
    bench.settle()
    assert (row(bench)["state"], row(bench)["lag"]) == ("full", 0)
    (feed,) = bench.core.feeds.by_name.values()
    assert len(feed._ahead) <= 12


def test_what_its_target_could_never_have_stays_and_is_told() -> None:
    bench = Bench(lifecycle=True)
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(bytes_max=1_000) if name == "v" else QueuePolicy()
    )
    bench.crash()
    fed(bench)
    bench.tell("alice", request(b"x" * 1_000), request(b"2"))
    bench.settle()
    assert (bodies(bench, "service/v"), len(entries(bench, "service/w"))) == ([b"2"], 1)
    assert bench.events.count("feed.gap.f") == 1
    assert row(bench)["skipped"] == 1


def test_nor_does_what_a_target_in_memory_could_never_have_hold_up_the_others() -> None:
    bench = Bench(Limits(queues_memory_bytes=10_000), lifecycle=True)
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(persistence=MEMORY if name == "v" else DURABLE)
    )
    bench.crash()
    fed(bench)
    bench.tell("alice", request(b"x" * 5_000, number=1), request(b"2", number=2))
    bench.settle()
    assert (bodies(bench, "service/v"), len(entries(bench, "service/w"))) == ([b"2"], 1)
    assert bench.events.count("feed.gap.f") == 1


def test_what_is_moved_needs_no_room_among_all_queues() -> None:
    bench = fed(Bench(Limits(queues_messages=3)))
    asked(bench, switch("feed.disable"))
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.settle()
    asked(bench, switch("feed.enable"))
    assert bodies(bench, "service/v") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_feed_brings_no_more_than_a_little_while_the_disk_stands_still(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr("malamute.core.feed.queue_feed.RUN_BYTES", 2_000)
    bench = Bench(Limits(queues_memory_bytes=4_000))
    bench.open("operator", "alice")
    sent = [b"%d" % number * 500 for number in range(10, 30)]
    for number, body in enumerate(sent, 1):
        bench.tell("alice", request(body, number=number))
        bench.settle()
    bench.tell("operator", feed(target=target))
    bench.commit()
    for _ in range(50):
        bench.iterate()
        bench.read_all()
    assert len(entries(bench, "service/w")) == len(sent)
    assert bench.core.effects.stage.backlog_bytes < 8_000
    bench.settle()
    assert entries(bench, "service/w") == []


def test_records_that_are_on_the_disk_are_read_for_a_move() -> None:
    bench = Bench(Limits(queues_memory_bytes=8_192))
    bench.open("operator", "alice")
    for n in range(40):
        bench.tell("alice", request(b"%03d" % n * 100, subject="ab"[n % 2], number=n + 1))
    bench.settle()
    paged_out = sum(entry.paged_out for entry in entries(bench, "service/w"))
    assert paged_out > 20
    asked(bench, feed(target="stream/t", criteria=[["exact", "a"]]))
    assert [body[:3] for body in bodies(bench, "stream/t")] == [b"%03d" % n for n in range(0, 40, 2)]
    assert [entry.subject for entry in entries(bench, "service/w")] == ["b"] * 20


# It rests, goes on, and ends


def test_a_feed_that_is_disabled_rests_over_a_crash_and_takes_then_what_came_meanwhile() -> None:
    bench = fed()
    answer = asked(bench, switch("feed.disable"))
    assert answer.value == {"source": "service/w", "feed": "f", "enabled": False, "sequence": None}
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.crash()
    bench.open("operator", "alice")
    bench.tell("alice", request(b"2"))
    bench.settle()
    assert bodies(bench, "service/w") == [b"1", b"2"]
    assert row(bench)["state"] == "disabled"
    asked(bench, switch("feed.enable"))
    assert bodies(bench, "service/v") == [b"1", b"2"]


def test_a_feed_that_was_deleted_takes_nothing_more_and_is_not_in_the_store() -> None:
    bench = fed()
    bench.tell("alice", request(b"1"))
    bench.settle()
    asked(bench, switch("feed.delete"))
    bench.tell("alice", request(b"2"))
    bench.settle()
    bench.crash()
    assert (bodies(bench, "service/v"), bodies(bench, "service/w")) == ([b"1"], [b"2"])
    assert bench.core.feeds.by_name == {}
    assert bench.store.recover().table(QUEUE_FEEDS) == {}
    queues = bench.core.services.by_name.values()
    assert [(queue.feeds, queue.fed) for queue in queues] == [(0, None)] * 2
    assert bench.core.selectors.used_bytes == 0


def test_a_feed_can_be_given_other_criteria_and_another_target() -> None:
    bench = fed(criteria=[["exact", "a"]])
    bench.tell("alice", request(b"1"), request(b"2", subject="b"))
    bench.settle()
    asked(bench, feed(target="stream/t", criteria=[["exact", "b"]]))
    assert (bodies(bench, "service/v"), bodies(bench, "stream/t")) == ([b"1"], [b"2"])
    assert bench.core.services.by_name["v"].feeds == 0


@pytest.mark.parametrize("place", ["service/w", "service/v"])
def test_a_queue_that_a_feed_goes_from_or_to_stays_however_long_it_is_idle(place: str) -> None:
    bench = fed(Bench(queues=QueuePolicy(idle_seconds=60)))
    for _ in range(3):
        bench.wait(61)
        bench.settle()
    bench.tell("alice", request(b"1"))
    bench.settle()
    assert bodies(bench, "service/v") == [b"1"]
    assert place.partition("/")[2] in bench.core.services.by_name


def test_a_rule_that_a_damaged_block_has_lost_is_stored_again() -> None:
    bench = fed()
    key = ("service", "w", "f")
    value = bench.store.recover().table(QUEUE_FEEDS)[key]
    bench.core.feeds.store_again(Stranded({}, [(QUEUE_FEEDS, key)]))
    bench.iterate()
    assert [op.value for append in bench.appends for op in append.operations] == [value]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"operation": "copy"}, "a message of a service is for one: expected the operation 'move'"),
        ({"start": "first"}, "expected no 'start'"),
        ({"source": "stream/s", "operation": "move"}, "a stream keeps its messages: expected the operation"),
        ({"source": "stream/s", "when": "overflow"}, "nothing waits in a stream"),
        ({"source": "mailbox/$x"}, "not the broker's own"),
        ({"target": "service/w"}, "would close a circle: service/w > service/w"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(arguments: dict[str, Any], words: str) -> None:
    bench = Bench()
    bench.open("operator")
    before = bench.store.recover().values
    refused = asked(bench, feed(**arguments))
    assert isinstance(refused, Error)
    assert (refused.code, words in refused.text) == (416, True), refused.text
    assert bench.core.feeds.by_name == {}
    assert not bench.core.services.by_name
    assert bench.store.recover().values == before


def test_a_circle_through_queues_and_streams_is_refused() -> None:
    bench = fed(source="service/w", target="stream/t")
    asked(bench, feed("g", "stream/t", "mailbox/bob"))
    refused = asked(bench, feed("h", "mailbox/bob", "service/w"))
    assert isinstance(refused, Error)
    assert "mailbox/bob > service/w > stream/t > mailbox/bob" in refused.text


def test_places_of_a_feed_that_the_disk_refuses_are_not_kept() -> None:
    bench = Bench()
    bench.open("operator")
    bench.tell("operator", feed())
    bench.fail()
    bench.settle()
    assert bench.core.services.by_name == {}
    assert bench.core.feeds.by_name == {}
    assert bench.core.selectors.reserved_bytes == 0


# Exactly once


class Requester:
    """Makes requests of one message each, and knows which of them the broker has confirmed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.lives = self.number = self.made = 0
        self.under_way: dict[int, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.begin()

    def begin(self) -> None:
        """Come with a session of its own; what was under way it knows nothing of."""
        self.lives += 1
        self.number = 0
        self.under_way.clear()
        self.name = f"alice{self.lives}"
        self.bench.open(self.name)

    def request(self, random: Random) -> None:
        self.number += 1
        self.made += 1
        body = self.under_way[self.number] = b"%02d" % self.made
        record = pack_record({"n": random.randrange(4)}, body)
        self.bench.tell(self.name, Request("w", self.number, [random.choice("abc")], [record]))

    def note(self) -> None:
        for message in self.bench.sent(self.name):
            for first, last, _ in message.ranges if isinstance(message, Stored) else ():
                self.confirmed.update(self.under_way.pop(n) for n in range(first, last + 1))


def act(bench: Bench, random: Random, requester: Requester) -> None:
    """Something happens: a request, a commit or a failure of the disk, a crash, or time goes by."""
    match random.randrange(8):
        case 0 | 1 if bench.appends:
            bench.commit()
        case 2 if bench.appends:
            bench.fail()
        case 3 if random.random() < 0.4:
            bench.crash()
            requester.begin()
        case 4:
            bench.settle()
        case 5:
            bench.wait(RETRY_SECONDS)
        case _:
            requester.request(random)


@pytest.mark.parametrize("seed", some(range(16), *range(6)))
def test_each_message_is_in_one_place_whatever_the_disk_refuses_and_whenever_the_broker_dies(
    seed: int,
) -> None:
    """The oracle is naive: what was confirmed is in one of the places, once, and nothing is there twice."""
    random, bench = Random(seed), Bench()
    bench.open("operator")
    for change in (
        feed("a", criteria=[["exact", "a"]]),
        feed("b", target="mailbox/carl", criteria=[["exact", "b"]], where="n > 1"),
        feed("on", "service/v", "stream/t"),
        feed("rest", "mailbox/carl", "service/u", when="overflow"),
    ):
        assert isinstance(asked(bench, change), Ok)
    requester = Requester(bench)
    for _ in range(100):
        act(bench, random, requester)
        requester.note()
    for _ in range(3):
        bench.settle()
        requester.note()
        bench.wait(RETRY_SECONDS)
    bench.settle()
    places = ["service/w", "service/v", "stream/t", "mailbox/carl", "service/u"]
    found = Counter(body for place in places for body in bodies(bench, place))
    assert not [body for body, count in found.items() if count > 1]
    assert requester.confirmed
    assert requester.confirmed <= found.keys()
    assert not entries(bench, "service/v")
    assert not entries(bench, "mailbox/carl")
    bench.crash()
    assert Counter(body for place in places for body in bodies(bench, place)) == found


@pytest.mark.parametrize("dies", ["before the commit of the move", "behind it"])
@pytest.mark.parametrize("target_in_memory", [False, True], ids=["to durable", "to memory"])
@pytest.mark.parametrize("source_in_memory", [False, True], ids=["from durable", "from memory"])
def test_what_is_durable_somewhere_is_once_and_what_was_in_memory_is_gone(
    source_in_memory: bool, target_in_memory: bool, dies: str
) -> None:
    """ZN16: the matrix of what a feed moves from where to where."""
    in_memory = {"w": source_in_memory, "v": target_in_memory}
    bench = Bench()
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(persistence=MEMORY if in_memory.get(name) else DURABLE)
    )
    bench.crash()
    fed(bench)
    bench.tell("alice", request(b"1", number=1))
    while not entries(bench, "service/v"):
        bench.commit()
    if dies == "behind it":
        bench.settle()
    bench.crash()
    bench.settle()
    lost = target_in_memory if dies == "behind it" else source_in_memory
    assert entries(bench, "service/w") == []
    assert bodies(bench, "service/v") == ([] if lost else [b"1"])


def test_a_feed_moves_no_more_of_what_waits_once_the_broker_ends() -> None:
    """There may be more than there is time for. The next life goes on with it."""
    bench = Bench()
    bench.open("operator", "alice")
    for _ in range(10):
        bench.tell("alice", request(*[b"x"] * 1_000))
    bench.settle()
    bench.tell("operator", feed(target="mailbox/carl"))
    while not entries(bench, "mailbox/carl"):
        bench.commit() if bench.appends else bench.iterate()
    bench.core.close()
    bench.settle()
    moved = len(entries(bench, "mailbox/carl"))
    assert moved + len(entries(bench, "service/w")) == 10_000
    assert moved <= 5_000
    bench.restart()
    bench.settle()
    assert len(entries(bench, "mailbox/carl")) == 10_000
