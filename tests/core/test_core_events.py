"""The stream `$sys`: what the broker tells of itself."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from core_bench import (
    Bench,
    ack,
    items,
    mail_credit,
    offer,
    peer_id,
    publish,
    reply,
    request,
    send,
    subscribe,
)
from test_core_links import LINK, at, change, linked, report

from malamute.access import AccessRule, Policy, Quota, Quotas
from malamute.core.identity.access import Principal
from malamute.core.iteration.effects import ClockStep
from malamute.core.iteration.grace_period import GRACE_SECONDS
from malamute.core.iteration.health import TROUBLE_SECONDS
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.core.reports.events import EVENTS, EVENTS_MAX, PART_BYTES_MAX, subject_part
from malamute.errors import StoreError
from malamute.protocol.batch import unpack, unpack_payload, unpack_record
from malamute.protocol.limits import SUBJECT_BYTES_MAX, Limits
from malamute.protocol.messages import (
    Bye,
    Cancel,
    Change,
    Commit,
    Credit,
    Deliver,
    Error,
    Gap,
    Hello,
    Query,
    Reject,
    Withdraw,
)
from malamute.store.operations import OPENED_AGAIN, Defect
from malamute.store.policies import MEMORY, QueuePolicy, StreamRetention
from malamute.store.tables import CURSORS


class Told(NamedTuple):
    subject: str
    headers: dict[str, Any]
    body: bytes = b""


@pytest.fixture
def bench():
    return listening(Bench(lifecycle=True))


def listening(bench, pattern="#"):
    """A bench with a reader of the events, `eve`."""
    bench.open("eve")
    bench.tell("eve", subscribe(1, stream=EVENTS, criteria=[["topic", pattern]]))
    bench.settle()
    bench.sent("eve")
    return bench


def told(bench):
    """The events that eve was sent since the last time."""
    return [event for message in bench.sent("eve") if isinstance(message, Deliver) for event in read(message)]


def read(chunk):
    columns = unpack_payload(chunk.payload, chunk.large)
    assert {*columns.all_senders()} == {"$broker"}
    for subject, record in zip(columns.subjects, columns.records, strict=True):
        headers, body = unpack_record(record)
        yield Told(subject, headers, b"".join(body))


def stored(bench):
    """All events on the disk."""
    return [event for chunk in bench.store.read(EVENTS, 1, bytes_max=1 << 30).found for event in read(chunk)]


def subjects(events):
    return [event.subject for event in events]


# Clients (WP12)


def test_wp12_clients_appear_and_disappear(bench):
    bench.open("alice")
    bench.lost("alice")
    bench.open("alice")
    bench.tell("alice", Bye())
    joined, lost, resumed, left = told(bench)
    assert subjects([joined, lost, resumed, left]) == [
        "client.connected.alice",
        "client.left.alice",
        "client.connected.alice",
        "client.left.alice",
    ]
    assert joined.headers["name"] == joined.headers["address"] == "alice"
    assert (joined.headers["resumed"], resumed.headers["resumed"]) == (False, True)
    assert (lost.headers["reason"], left.headers["reason"]) == ("lost", "bye")
    assert len({event.headers["id"] for event in (joined, lost, resumed, left)}) == 1


def test_wp12_a_client_that_stays_away_expires():
    bench = listening(Bench(lifecycle=True, expiry=10.0))
    bench.open("alice")
    bench.lost("alice")
    bench.wait(9.9)
    assert subjects(told(bench)) == ["client.connected.alice", "client.left.alice"]
    bench.wait(0.1)
    assert subjects(told(bench)) == ["client.expired.alice"]


def test_wp12_a_takeover_says_who_left_and_who_came(bench):
    bench.open("alice")
    bench.tell("newcomer", Hello([2], "alice"))
    events = told(bench)[1:]
    assert subjects(events) == ["client.left.alice", "client.connected.alice"]
    assert events[0].headers["reason"] == "takeover"


def test_a_client_without_an_address_goes_by_its_id(bench):
    bench.tell("nobody", Hello([2], ""))
    (event,) = told(bench)
    assert event.subject == f"client.connected.{event.headers['id']}"
    assert event.headers["address"] == ""


# The stream


def test_sys_is_journaled_and_replayed_over_a_restart(bench):
    bench.open("alice")
    bench.restart()
    bench.settle()
    bench.open("eve")
    bench.tell("eve", subscribe(1, stream=EVENTS, start="first"))
    bench.settle()
    assert subjects(told(bench)) == [
        "broker.started",
        "client.connected.eve",
        "client.connected.alice",
        "broker.stopped",
        "broker.started",
        "client.connected.eve",
    ]


def test_the_whole_life_of_a_broker_is_in_the_order_in_which_it_was():
    bench = Bench(lifecycle=True)
    bench.open("alice")
    bench.restart()
    bench.settle()
    bench.crash()
    bench.settle()
    assert subjects(stored(bench)) == [
        "broker.started",
        "client.connected.alice",
        "broker.stopped",
        "broker.started",
        "broker.started",
    ]


def test_a_restart_in_good_order_leaves_no_gap_in_sys(bench):
    bench.restart()
    bench.settle()
    chunks = bench.store.read(EVENTS, 1, bytes_max=1 << 30).found
    assert [chunk.first for chunk in chunks[1:]] == [chunk.last + 1 for chunk in chunks[:-1]]


def test_clients_cannot_publish_to_sys_nor_set_its_cursors_by_reserved_names(bench):
    bench.open("alice")
    refused = [
        *bench.ask("alice", publish(b"1", stream=EVENTS, number=1)),
        *bench.ask("alice", publish(b"1", stream="$other")),
        *bench.ask("alice", Change(0, "stream.delete", {"stream": EVENTS})),
        *bench.ask("alice", Commit(EVENTS, 0, "$feed/x", 1)),
        *bench.ask("alice", subscribe(5, stream=EVENTS, cursor="$feed/x")),
        *bench.ask("alice", Change(0, "cursor.set", {"stream": EVENTS, "cursor": "$x", "start": "new"})),
        *bench.ask("alice", Change(0, "cursor.delete", {"stream": EVENTS, "cursor": "$x"})),
    ]
    assert [error.code for error in refused] == [401] * 7
    bench.settle()
    assert all(event.subject != "a" for event in stored(bench))


def test_sys_has_cursors_like_any_stream_and_its_retention_is_not_for_clients(bench):
    last = bench.core.streams.by_name[EVENTS].progress.last
    bench.tell("eve", Commit(EVENTS, 0, "mine", last), Change(0, "stream.retain", {"stream": EVENTS}))
    bench.settle()
    assert bench.store.recover().table(CURSORS)[EVENTS, "mine"] == last
    (refused,) = [message for message in bench.sent("eve") if isinstance(message, Error)]
    assert (refused.code, refused.about) == (401, 15)


def test_without_the_option_there_is_no_sys_and_nothing_is_kept():
    bench = Bench()
    bench.open("alice")
    assert [error.code for error in bench.ask("alice", subscribe(1, stream=EVENTS))] == [401]
    bench.tell("alice", publish(b"1"))
    assert (bench.core.effects.events, bench.core.effects.events_dropped) == ([], 0)
    assert EVENTS not in bench.core.streams.by_name


def test_an_iteration_in_which_nothing_happens_stores_nothing(bench):
    bench.tell("eve", Query(1, "status", {}))
    assert not bench.appends


@pytest.mark.parametrize("name", ["a.b", "x * #", "é.ü", "日本" * 40, "." * 255])
def test_a_name_is_one_part_of_the_subject_and_whole_in_the_header(bench, name):
    bench.tell("alice", Hello([2], name))
    (event,) = told(bench)
    kind, what, part = event.subject.split(".")
    assert (kind, what) == ("client", "connected")
    assert part == subject_part(name)
    assert not set(part) & set("*# .")
    assert len(event.subject.encode()) <= SUBJECT_BYTES_MAX
    assert event.headers["name"] == name


def test_a_part_is_cut_between_characters_at_its_limit():
    assert subject_part("x" * PART_BYTES_MAX) == "x" * PART_BYTES_MAX
    assert subject_part("x" * (PART_BYTES_MAX + 1)) == "x" * PART_BYTES_MAX
    assert subject_part("x" + "é" * PART_BYTES_MAX) == "x" + "é" * (PART_BYTES_MAX // 2 - 1)


# What is reported


def test_streams_come_and_go(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    bench.tell("alice", Change(0, "stream.delete", {"stream": "s"}))
    bench.settle()
    created, deleted = told(bench)[1:]
    assert (created.subject, deleted.subject) == ("stream.created.s", "stream.deleted.s")
    assert (deleted.headers["first"], deleted.headers["last"]) == (1, 1)


def test_slow_consumers_are_reported_when_they_fall_behind_and_when_they_are_back(bench):
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(3, credit=1))
    bench.tell("alice", publish(b"1", b"2"))
    bench.settle()
    bench.tell("bob", Credit(3, 5, -1))
    bench.settle()
    events = [event for event in told(bench) if event.subject.startswith("subscription")]
    assert subjects(events) == ["subscription.replay.s", "subscription.live.s"]
    assert {event.headers["address"] for event in events} == {"bob"}
    assert [event.headers["sequence"] for event in events] == [2, 3]


def test_a_gap_is_reported_with_its_range_and_reason():
    bench = listening(Bench(lifecycle=True, retention=StreamRetention(messages_max=1)), "subscription.gap.*")
    bench.open("alice")
    for body in (b"1", b"2", b"3"):
        bench.tell("alice", publish(body))
        bench.settle()
    bench.tell("alice", subscribe(1, start="seq:1"))
    bench.settle()
    (event,) = told(bench)
    assert {**event.headers, "client": ""} == {
        "name": "s",
        "client": "",
        "address": "alice",
        "source": 1,
        "first": 1,
        "last": 2,
        "reason": "overwritten",
    }


def test_workers_join_and_leave_in_every_way(bench):
    bench.open("bob")
    bench.tell("bob", offer(1, pattern="x.*"), offer(2))
    bench.tell("bob", mail_credit(), Cancel(1))
    bench.lost("bob")
    events = [event for event in told(bench) if event.subject.startswith("service")]
    assert [(event.subject, event.headers["patterns"]) for event in events] == [
        ("service.worker-joined.w", "x.*"),
        ("service.worker-joined.w", "#"),
        ("service.worker-left.w", "x.*"),
        ("service.worker-left.w", "#"),
    ]


def test_queues_are_reported_when_their_first_message_comes(bench):
    bench.open("alice")
    bench.tell("alice", send("bob", b"1"), send("bob", b"2"), request(b"3"))
    assert subjects(told(bench))[1:] == ["mailbox.created.bob", "service.created.w"]


def test_a_private_mailbox_is_nobody_elses_business(bench):
    bench.tell("nobody", Hello([2], ""), request(b"1"))
    bench.open("bob")
    bench.tell("bob", offer())
    bench.settle()
    bench.tell("bob", reply(1, 1))
    bench.settle()
    assert [subject for subject in subjects(told(bench)) if subject.startswith("mailbox")] == []


# The store


def test_trouble_with_the_store_is_reported_once_and_when_it_is_over(bench):
    bench.open("alice")
    told(bench)
    for _ in range(5):
        bench.tell("alice", publish(b"1"))
        while bench.appends:
            bench.fail(StoreError("input/output error"))
    events = told(bench)
    assert subjects(events)[:2] == ["stream.created.s", "store.failed"]
    assert len(events) == 2
    assert "input/output error" in events[1].headers["error"]
    bench.settle()
    bench.now += TROUBLE_SECONDS
    bench.tell("alice", publish(b"1"))
    bench.settle()
    (over,) = told(bench)
    assert over.subject == "store.recovered"
    assert over.headers["failures"] > 5


def test_trouble_that_lasts_is_reported_again(bench):
    for _ in range(3):
        bench.open("alice")
        while bench.appends:
            bench.fail()
        bench.now += TROUBLE_SECONDS
    assert subjects(told(bench)).count("store.failed") == 3


def test_events_that_cannot_be_stored_harm_nothing_else(bench):
    bench.open("alice")
    while bench.appends:
        bench.fail()
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    assert [type(message).__name__ for message in bench.sent("alice")] == ["Stored"]


# Limits


def test_an_iteration_at_the_limit_shows_all_and_one_past_it_shows_how_many_were_dropped(bench):
    for count, dropped in ((EVENTS_MAX, []), (EVENTS_MAX + 1, [1]), (EVENTS_MAX + 7, [7])):
        for number in range(count):
            bench.core.effects.event(f"test.many.{number}")
        bench.iterate()
        events = told(bench)
        assert len(events) == EVENTS_MAX + len(dropped)
        assert [e.headers["count"] for e in events if e.subject == "events.dropped"] == dropped


def test_while_the_disk_does_not_keep_up_events_are_dropped_and_counted():
    bench = listening(Bench(Limits(backlog_bytes=2_000), lifecycle=True))
    bench.open("alice")
    told(bench)
    bench.tell("alice", publish(b"x" * 3_000))
    bench.tell("alice", subscribe(1, stream="t"))
    bench.tell("alice", subscribe(2, stream="u"))
    assert told(bench) == []
    bench.settle()
    (event,) = told(bench)
    assert (event.subject, event.headers) == ("events.dropped", {"count": 3})


def test_events_of_an_iteration_beyond_what_the_backlog_has_room_for_are_dropped_and_counted():
    bench = listening(Bench(Limits(backlog_bytes=10_000), lifecycle=True))
    told(bench)
    for number in range(100):
        bench.core.effects.event(f"test.large.{number}", text="x" * 1_000)
    bench.iterate()
    assert bench.core.effects.stage.backlog_bytes < 10_000 + 3_000
    *large, dropped = told(bench)
    assert [event.subject for event in large] == [f"test.large.{number}" for number in range(len(large))]
    assert 4 <= len(large) <= 5
    assert (dropped.subject, dropped.headers) == ("events.dropped", {"count": 100 - len(large)})


def test_an_event_that_cannot_be_packed_is_counted(bench):
    bench.core.effects.event("test.bad.x", value=2**70)
    bench.core.effects.event("test.odd.y", value=[1, 2])
    bench.iterate()
    odd, dropped = told(bench)
    assert odd.headers == {"name": "y", "value": "[1, 2]"}
    assert dropped.headers == {"count": 1}


# No loop


def test_a_slow_reader_of_the_events_makes_no_events():
    bench = Bench(lifecycle=True, retention=StreamRetention(messages_max=3))
    bench.open("eve")
    bench.tell("eve", subscribe(1, stream=EVENTS, start="first", credit=1))
    bench.settle()
    for name in ("alice", "bob", "carl", "dora"):
        bench.open(name)
        bench.settle()
    before = bench.core.streams.by_name[EVENTS].progress.last
    got = []
    for _ in range(10):
        bench.tell("eve", Credit(1, 1, -1))
        bench.settle()
        got += bench.sent("eve")
    assert any(isinstance(message, Gap) for message in got)
    assert bench.core.streams.by_name[EVENTS].progress.last == before


# Histories


def history(bench):
    bench.settle()
    return [(event, unpack(event.body)) for event in told(bench) if ".settled." in event.subject]


def test_what_was_settled_in_an_iteration_is_one_event_for_each_queue():
    bench = listening(Bench(lifecycle=True, settled=True))
    bench.open("alice", "bob")
    start = int(bench.now * 1e9)
    bench.tell("alice", request(b"1", b"2"), send("bob", b"3"))
    bench.now += 1
    bench.tell("bob", offer(), mail_credit())
    bench.settle()
    bench.now += 2
    bench.tell("bob", reply(1, 1), reply(1, 2), ack(0, (1, 1)))
    (service, requests), (mailbox, mails) = history(bench)
    assert (service.subject, service.headers) == ("service.settled.w", {"name": "w", "count": 2})
    assert requests == {
        "sequences": [1, 2],
        "queued": start,
        "delivered": start + 10**9,
        "attempts": 1,
        "settled": start + 3 * 10**9,
        "outcome": "acknowledged",
        "worker": "bob",
    }
    assert (mailbox.subject, mails["sequences"]) == ("mailbox.settled.bob", [1])


def test_a_history_shows_the_first_delivery_the_attempts_and_who_settled_it():
    bench = listening(Bench(settled=True))
    bench.open("alice", "bob", "carl")
    bench.tell("bob", offer(credit=1))
    bench.tell("alice", request(b"1", b"2"))
    bench.settle()
    first = int(bench.now * 1e9)
    bench.now += 5
    bench.tell("carl", offer(credit=2))
    bench.lost("bob")
    bench.settle()
    bench.tell("carl", reply(1, 1, 2))
    ((_, columns),) = history(bench)
    assert columns["attempts"] == [2, 1]
    assert columns["delivered"] == [first, first + 5 * 10**9]
    assert columns["worker"] == "carl"


def test_every_end_has_its_outcome_and_who_made_it():
    bench = listening(Bench(settled=True))
    bench.open("alice", "bob")
    bench.tell("bob", offer(credit=2))
    bench.tell("alice", request(b"1", b"2"), request(b"3", ttl=1_000))
    bench.settle()
    bench.tell("bob", Reject(1, [[1, 1]], "no"), ack(1, (2, 2)))
    told = [(c["sequences"], c["outcome"], c["worker"]) for _, c in history(bench)]
    # What makes a dead letter has to be on the disk first.
    assert told == [([2], "acknowledged", "bob"), ([1], "rejected", "bob")]
    bench.wait(1.0)
    ((_, columns),) = history(bench)
    assert (columns["outcome"], columns["worker"], columns["delivered"]) == ("expired", "", 0)
    assert (columns["sequences"], columns["attempts"]) == ([3], 0)


def test_a_delivery_before_a_restart_is_not_known_any_more():
    bench = Bench(settled=True)
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.restart()
    listening(bench)
    bench.open("bob")
    bench.tell("bob", offer())
    bench.settle()
    bench.tell("bob", reply(1, 1))
    ((_, columns),) = history(bench)
    assert (columns["delivered"], columns["attempts"]) == (0, 2)


def test_what_was_not_stored_as_settled_has_no_history():
    bench = listening(Bench(settled=True))
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.tell("bob", reply(1, 1, number=1))
    bench.fail()
    assert history(bench) == []
    assert len(bench.core.services.by_name["w"].entries) == 1


def test_histories_are_off_unless_wanted(bench):
    bench.open("alice", "bob")
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    assert history(bench) == []
    assert bench.core.queue_limits.settlement_log.pending == {}


def test_more_queues_than_an_iteration_may_report_are_counted(monkeypatch):
    monkeypatch.setattr("malamute.core.reports.events.EVENTS_MAX", 2)
    bench = listening(Bench(settled=True))
    bench.open("alice", "bob")
    for name in ("a", "b", "c"):
        bench.tell("bob", offer(ord(name), service=name))
        bench.tell("alice", request(b"1", service=name))
    bench.settle()
    for name in ("a", "b", "c"):
        bench.receive("bob", reply(ord(name), 1))
    bench.iterate()
    bench.settle()
    events = told(bench)
    assert subjects(events) == ["service.settled.a", "service.settled.b", "events.dropped"]
    assert events[2].headers == {"count": 1}


def test_the_items_of_sys_come_like_those_of_any_stream(bench):
    bench.open("alice")
    (delivery,) = [message for message in bench.sent("eve") if isinstance(message, Deliver)]
    assert [item.sender for item in items(delivery)] == ["$broker"]
    assert peer_id("alice") not in delivery.payload


# The page


QUEUES = [
    "worker-joined",
    "worker-left",
    "redelivered",
    "timeout",
    "expired",
    "dead",
    "dead-dropped",
    "withdrawn",
    "moved",
    "purged",
    "deleted",
    "collected",
]
"""What the page tells of services, and means for mailboxes too."""


def documented():
    """The events of docs/protocol.md: the kind and what happened, with the headers."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    text = text.partition("### Events\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+\.[\w-]+)((?:\.[A-Z]+)?)` \| (.*?) \|", text, re.MULTILINE)
    found = {
        subject: {*re.findall(r"`([^`]+)`", headers), *(["name"] if name else [])}
        for subject, name, headers in rows
    }
    return {**found, **{f"mailbox.{what}": found[f"service.{what}"] for what in QUEUES}}


def everything_happens_to_messages(kind):
    """A broker to which all happens that it reports of the messages of queues."""
    policy = QueuePolicy(
        ack_timeout_seconds=1.0, attempts_max=2, backoff_seconds=(), dead_letters_max=1, idle_seconds=50.0
    )
    bench = Bench(lifecycle=True, queues=policy)
    bench.open("alice", "bob")
    name, source = ("bob", 0) if kind == "mailbox" else ("w", 1)

    def put(**options):
        message = request(b"1", **options) if kind == "service" else send("bob", b"1", **options)
        bench.tell("alice", message)
        bench.settle()

    bench.tell("bob", offer(2, service="team", kind="mailbox"), Cancel(2))
    bench.tell("bob", mail_credit() if kind == "mailbox" else offer())
    put()
    bench.settle()
    for _ in range(2):
        bench.wait(1.0)
        bench.settle()
    put()
    bench.tell("bob", Reject(source, [[1, 1_000]], "no"))
    put(ttl=1_000, delay=5_000)
    bench.wait(1.0)
    put(delay=60_000, correlation="c")
    bench.tell("alice", Withdraw(1, kind, name, "c"))
    put(delay=60_000)
    bench.tell("alice", Change(0, "queue.purge", {"kind": kind, "name": name}))
    bench.tell("alice", Change(0, "queue.purge", {"kind": kind, "name": name, "dead": True}))
    bench.settle()
    bench.lost("bob")
    to_stream = {"source": f"{kind}/gone", "feed": "away", "target": "stream/away"}
    bench.tell("alice", Change(0, "feed.set", to_stream))
    bench.settle()
    bench.tell("alice", request(b"1", service="gone") if kind == "service" else send("gone", b"1"))
    bench.settle()
    bench.tell("alice", Change(0, "queue.delete", {"kind": kind, "name": "gone", "cascade": True}))
    bench.settle()
    for _ in range(3):
        bench.wait(50.0)
        bench.settle()
    bench.settings = bench.settings._replace(queues=lambda *_: policy._replace(persistence=MEMORY))
    bench.restart()
    for end in (bench.crash, bench.restart):
        bench.open("alice")
        put()
        end()
        bench.settle()
    return stored(bench)


def everything_happens():
    """A broker to which all happens that is an event."""
    bench = Bench(
        Limits(queue_messages=2),
        lifecycle=True,
        settled=True,
        expiry=5.0,
        retention=StreamRetention(messages_max=100),
    )
    bench.open("alice", "bob")
    bench.tell("alice", Change(0, "feed.set", {"source": "stream/s", "feed": "w", "target": "service/w"}))
    bench.tell("bob", offer(credit=0), subscribe(2, credit=1), mail_credit())
    bench.tell("alice", send("bob", b"1", b"2"), publish(*[b"x"] * 4))
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)), Reject(0, [[2, 2]], "no", True), Credit(2, -1, -1), Credit(1, 2, -1))
    bench.settle()
    bench.tell("bob", reply(1, 1, 2))
    bench.settle()
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(2, start="seq:3"), offer())
    bench.settle()
    bench.tell("alice", publish(b"y"))
    bench.settle()
    for rules in (("* */#", "deny subscribe stream/s/a.#"), ("* */#", "deny admin service/w"), ()):
        policy = Policy(map(AccessRule.parse, rules))
        bench.core.configure(bench.settings._replace(access=policy), bench.now)
    for topic in ("feed.disable", "feed.enable"):
        bench.tell("alice", Change(0, topic, {"source": "stream/s", "feed": "w"}))
    bench.tell("alice", Change(0, "feed.delete", {"source": "stream/s", "feed": "w"}))
    bench.tell("bob", Cancel(1), Cancel(2), subscribe(3, stream="empty"), Cancel(3))
    bench.settle()
    for what in ("stepped", "returned", "followed"):
        bench.core.clock(ClockStep(what, 5.0, 0.0), bench.now)
    bench.settle()
    for seconds in (-10.0, 200_000.0):
        bench.now += seconds
        bench.crash()
        bench.settle()
    bench.core.clock(ClockStep("stepped", -200_000.0, 0.0), bench.now)
    bench.wait(GRACE_SECONDS)
    bench.settle()
    bench.open("alice", "bob")
    bench.tell("alice", Change(0, "stream.delete-messages", {"stream": "s", "subject": "#"}))
    bench.settle()
    bench.tell("alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.tell("alice", Change(0, "stream.delete", {"stream": "s"}))
    bench.settle()
    bench.core.effects.event("events.odd", value=2**70)
    bench.core.receive(peer_id("eve"), Hello([2], "$eve"), bench.now, Principal("eve"))
    limited = Policy(quotas=Quotas(users={"mia": Quota(connections=1)}))
    bench.core.configure(bench.settings._replace(access=limited), bench.now)
    for name in ("mia", "mia2"):
        bench.core.receive(peer_id(name), Hello([2], ""), bench.now, Principal("mia"))
    bench.core.reload(bench.now)
    bench.iterate()
    bench.core.answered(bench.reads.pop(), ConfigurationLoaded(bench.settings), bench.now)
    bench.settle()
    defects = [Defect("chunk", "s", 1, 2, "told"), Defect(OPENED_AGAIN, "", 1, 1, "a write failed")]
    bench.core.damaged(defects, bench.now)
    bench.lost("bob")
    bench.settle()
    bench.tell("alice", publish(b"lost"))
    bench.fail()
    bench.settle()
    bench.wait(TROUBLE_SECONDS)
    bench.settle()
    bench.tell("alice", publish(b"z"))
    bench.settle()
    bench.restart()
    bench.settle()
    bench.store.copied = True
    bench.restart()
    bench.settle()
    return stored(bench)


def everything_happens_to_links():
    """A broker to which all happens that it reports of links."""
    bench, generation = linked(Bench(lifecycle=True))
    report(bench, generation)
    report(bench, generation, trouble="refused")
    move = {"stream": "s", "generation": generation}
    change(bench, "link.advance", **move, after="", upto=at(0))
    change(bench, "link.advance", **move, after=at(0), upto=at(8), gap="overwritten")
    change(bench, "link.stop", **move, reason="another broker")
    change(bench, "link.set", **LINK)
    for what in ("pause", "resume", "remove"):
        change(bench, f"link.{what}", stream="s")
    bench.settle()
    return stored(bench)


def test_the_page_has_every_event_with_its_headers():
    seen: dict[str, set[str]] = {}
    happened = map(everything_happens_to_messages, ("mailbox", "service"))
    for event in chain(everything_happens(), everything_happens_to_links(), *happened):
        what = ".".join(event.subject.split(".")[:2])
        assert seen.setdefault(what, set(event.headers)) == set(event.headers)
    assert seen == documented()
