"""A start takes up all of the store that it can: what does not fit is skipped, kept and reported."""

from __future__ import annotations

from math import inf, nan

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, request, send, subscribe

from malamute.core.iteration.recovery import REPORTED_MAX
from malamute.core.queue.limits import RESERVE
from malamute.protocol.batch import pack, pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Answer, Change, Commit, Error, Ok, Query, Reject, Stored
from malamute.store.operations import PutIdentity, PutMessages, PutValue, Recovered
from malamute.store.policies import QueuePolicy
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, RETENTIONS, SESSIONS, STORES, TABLES

KEPT = "not recovered, left in the store"


def crashed(bench: Bench, limits: Limits | None = None) -> Bench:
    """The same store under a new broker, perhaps with other limits."""
    bench.settle()
    if limits is not None:
        bench.settings = bench.settings._replace(limits=limits)
    bench.crash()
    bench.iterate()
    return bench


def feed_change(bench: Bench, topic: str, **more: object) -> list:
    bench.open("op")
    target = {"target": "service/v"} if topic == "feed.set" else {}
    bench.tell("op", Change(0, topic, {"source": "stream/s", "feed": "v", **target, **more}))
    bench.settle()
    return [m for m in bench.sent("op") if isinstance(m, Ok | Error)]


@pytest.mark.parametrize("value", [b"\xc1", pack(([["moods", "glad"]], ""))])
@pytest.mark.parametrize("topic", ["feed.delete", "feed.set"])
def test_a_feed_that_could_not_be_taken_up_can_be_deleted_or_set_and_continues_where_it_was(value, topic):
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1", b"2", b"3"))
    bench.settle()
    bench.store.write([PutValue(FEEDS, ("s", "v"), value), PutValue(CURSORS, ("s", "$feed/v"), 1)])
    crashed(bench)
    assert status(bench)["not_recovered"] == 1
    (dry,) = feed_change(bench, topic, dry_run=True)
    (answer,) = feed_change(bench, topic)
    assert answer.value["sequence"] == 1
    assert dry.value.get("created", False) is answer.value.get("created", False) is False
    assert status(bench)["not_recovered"] == 0
    made = [
        entry.sequence for queue in bench.core.services.by_name.values() for entry in queue.entries.values()
    ]
    assert made == ([] if topic == "feed.delete" else [RESERVE + 1, RESERVE + 2])
    crashed(bench)
    assert status(bench)["not_recovered"] == 0
    assert [*bench.core.feeds.by_name] == ([] if topic == "feed.delete" else [(("stream", "s"), "v")])
    assert len(feed_change(bench, "feed.delete")) == 1


def lowered(bench: Bench, dead_letters: int) -> Bench:
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(attempts_max=1, dead_letters_max=dead_letters)
    )
    return crashed(bench)


def dead_letter(bench: Bench, count: int) -> None:
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(*[b"x"] * count))
    bench.settle()
    held = [message.sequence for message in bench.got("bob")]
    bench.tell("bob", Reject(1, [[held[0], held[-1]]], "no"))
    bench.settle()


def test_a_lower_limit_of_dead_letters_is_reported_at_the_start_and_when_they_leave():
    bench = lowered(Bench(), 5)
    dead_letter(bench, 5)
    assert (notices(bench), status(bench)["dead_excess"]) == ([], 0)
    lowered(bench, 4)
    assert notices(bench) == [
        "more dead letters than dead_letters allows: the oldest leave with the next one"
    ]
    assert status(bench)["dead_excess"] == 1
    assert len(bench.core.services.by_name["w"].dead_letters.entries) == 5
    bench.notices.clear()
    dead_letter(bench, 1)
    [notice] = bench.notices
    assert notice.event == "dead letters dropped: there were more than dead_letters allows"
    assert (notice.details["count"], notice.details["limit"]) == (2, 4)
    assert status(bench)["dead_excess"] == 0
    bench.notices.clear()
    dead_letter(bench, 1)
    assert notices(bench) == []


def notices(bench: Bench) -> list[str]:
    return [notice.event for notice in bench.notices]


def skipped(bench: Bench) -> list[tuple[str, str]]:
    return [(n.details["kind"], n.details["name"]) for n in bench.notices if n.event == KEPT]


def status(bench: Bench) -> dict:
    bench.open("eve")
    [answer] = [m for m in bench.ask("eve", Query(1, "status", {})) if isinstance(m, Answer)]
    return answer.value


@pytest.mark.parametrize("stop", ["crash", "restart"])
@pytest.mark.parametrize("lifecycle", [True, False])
def test_a_cursor_on_the_events_before_the_first_of_them(stop, lifecycle):
    bench = Bench(lifecycle=True)
    bench.settings = bench.settings._replace(lifecycle_events=lifecycle)
    bench.store.write([PutValue(CURSORS, ("$sys", "audit"), 0)])
    getattr(bench, stop)()
    assert bench.core.streams.by_name["$sys"].cursors == {"audit": 0}
    assert notices(bench) == []
    bench.open("alice")
    bench.tell("alice", subscribe(stream="$sys", cursor="audit"))
    bench.settle()
    assert 1 in [message.value for message in bench.sent("alice") if isinstance(message, Ok)]


@pytest.mark.parametrize("stop", ["crash", "restart"])
def test_fewer_streams_allowed_than_there_are_names_with_cursors(stop):
    bench = Bench()
    bench.open("alice")
    for name in "abcd":
        bench.tell("alice", subscribe(source=ord(name), stream=name, cursor="mine"))
        bench.tell("alice", Change(0, "stream.retain", {"stream": name, "count": 5}))
    bench.tell("alice", publish(b"1", stream="a"))
    bench.settle()
    bench.settings = bench.settings._replace(limits=Limits(streams=2, cursors=0))
    getattr(bench, stop)()
    bench.iterate()
    assert {name: stream.cursors for name, stream in bench.core.streams.by_name.items()} == {
        name: {"mine": 0} for name in "abcd"
    }
    assert [(n.details["what"], n.details["count"], n.details["limit"]) for n in bench.notices] == [
        ("streams", 4, 2),
        ("cursors of a stream", 1, 0),
    ]
    bench.open("alice")
    bench.sent("alice")
    bench.tell("alice", publish(b"2", stream="a", number=1), publish(b"3", stream="e", number=2))
    bench.tell("alice", Commit("b", 3, "mine", 0))
    bench.settle()
    answers = bench.sent("alice")
    assert [message.code for message in answers if isinstance(message, Error)] == [429]
    confirmed = [run for message in answers if isinstance(message, Stored) for run in message.ranges]
    assert [run[:2] for run in confirmed] == [[1, 1], [3, 3]]


def test_fewer_of_all_else_allowed_than_there_are():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    bench.tell("alice", send("bob", b"1", b"2", number=1), send("carl", b"3"), request(b"4"))
    bench.tell("alice", publish(b"5", stream="s", number=2))
    bench.tell("alice", Change(0, "feed.set", {"source": "stream/s", "feed": "v", "target": "service/v"}))
    bench.tell("bob", publish(b"6", number=1))
    crashed(bench, Limits(sessions=1, queues=1, queues_messages=1, queues_bytes=1, queue_messages=1, feeds=0))
    assert {notice.details["what"] for notice in bench.notices} == {
        "sessions",
        "mailboxes and services",
        "queued messages",
        "bytes of queued messages",
        "feeds",
    }
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


JUNK = [
    b"",
    b"\xc1",
    pack(None),
    pack(5),
    pack("text"),
    pack([]),
    pack([1]),
    pack(["1", "2"]),
    pack([1.5, 1]),
]


@pytest.mark.parametrize("value", JUNK)
def test_a_session_that_nobody_can_decode_is_skipped_and_kept(value):
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    bench.store.write([PutValue(SESSIONS, (b"\1" * 16, NUMBERS), value)])
    crashed(bench)
    assert [kind for kind, _ in skipped(bench)] == ["session"]
    assert len(bench.core.sessions.by_peer) == 1
    assert status(bench)["not_recovered"] == 1
    bench.wait(10_000)
    bench.settle()
    assert bench.store.recover().table(SESSIONS) == {(b"\1" * 16, NUMBERS): value}


@pytest.mark.parametrize("value", [*JUNK, pack([[["all", 1, 2]], ""]), pack([[["topic", "a"]], 5])])
def test_a_feed_that_nobody_can_decode_is_skipped_and_kept(value):
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.store.write([PutValue(FEEDS, ("s", "v"), value)])
    crashed(bench)
    assert skipped(bench) == [("feed", "v from stream/s")]
    assert bench.store.recover().table(FEEDS) == {("s", "v"): value}
    # And it may be set anew.
    bench.open("alice")
    bench.tell(
        "alice",
        Change(0, "feed.set", {"source": "stream/s", "feed": "v", "target": "service/v", "start": "first"}),
        offer(service="v"),
    )
    bench.settle()
    assert bench.bodies("alice") == [b"1"]


@pytest.mark.parametrize("properties", [{"delay": "soon"}, {"ttl": [1]}, {"tracker": {"a": 1}}, {"at": None}])
def test_a_message_with_options_of_no_sense_is_skipped_and_kept_and_the_others_come(properties):
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    record = bench.store.recover().queues["mailbox", "bob"].messages[0].record
    bench.store.write([PutMessages("mailbox", "bob", 2, 1, "alice", ["a"], [record], [properties])])
    bench.store.write([PutMessages("mailbox", "bob", 3, 1, "alice", ["a"], [record])])
    for _ in range(2):
        bench.notices.clear()
        crashed(bench)
        assert skipped(bench) == [("mailbox", "bob: message 2")]
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert [item.sequence for item in bench.got("bob")] == [1, 3]
    bench.wait(1e8)
    bench.settle()
    assert [m.sequence for m in bench.store.recover().queues["mailbox", "bob"].messages] == [1, 2, 3]


def test_of_two_messages_with_one_tracker_as_damage_may_leave_them_one_has_an_outcome():
    bench = Bench()
    records, tracked = [pack_record(None, b"1")] * 2, [{"tracker": "t"}] * 2
    bench.store.write([PutMessages("mailbox", "bob", 1, 1, "alice", ["a", "a"], records, tracked)])
    crashed(bench)
    bench.open("alice", "bob")
    bench.tell("bob", mail_credit())
    bench.tell("bob", ack(0, (1, 2)))
    bench.settle()
    bench.sent("alice")
    bench.tell("alice", mail_credit())
    bench.settle()
    assert [item.properties["tracker"] for item in bench.got("alice")] == ["t"]
    bench.ask("alice", send("bob", b"2", number=1, tracker="t"))
    bench.settle()
    assert not [m for m in bench.sent("alice") if isinstance(m, Error)]


@pytest.mark.parametrize("age", [inf, -inf, nan, 1e300, -1.0])
def test_a_retention_of_no_sense_is_no_limit(age):
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.store.write([PutValue(RETENTIONS, ("s",), (0, 0, age))])
    crashed(bench)
    bench.open("alice")
    bench.tell("alice", publish(b"2", number=1))
    bench.settle()
    assert Stored([[1, 1, 262146]]) in bench.sent("alice")
    bench.crash()


def test_what_nothing_is_known_of_is_no_trouble():
    bench = Bench()
    bench.store.write(
        [
            PutIdentity("service", "w", "1", 5, 1),
            PutValue(CURSORS, ("new", "c"), 900),
            PutValue(RETENTIONS, ("kept",), (1, 1, 1.0)),
        ]
    )
    crashed(bench)
    assert notices(bench) == []
    assert set(bench.core.streams.by_name) == {"new", "kept"}


def test_each_table_is_taken_up_by_some_engine(monkeypatch):
    asked, table = set(), Recovered.table
    monkeypatch.setattr(Recovered, "table", lambda found, name: asked.add(name) or table(found, name))
    Bench()
    # The ids of stores of an earlier version are looked at before there is a core.
    assert asked == TABLES.keys() - {STORES}


def test_only_so_many_are_reported_one_by_one():
    bench = Bench()
    bench.store.write([PutValue(FEEDS, ("s", f"v{n}"), b"") for n in range(REPORTED_MAX + 3)])
    crashed(bench)
    assert notices(bench) == [KEPT] * REPORTED_MAX + ["more was not recovered"]
    assert bench.notices[-1].details == {"count": 3}
    assert status(bench)["not_recovered"] == REPORTED_MAX + 3
