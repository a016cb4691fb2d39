"""Who is connected, what each has, and how the queues are doing (WP12)."""

from __future__ import annotations

import pytest
from core_bench import (
    START,
    Bench,
    ack,
    mail_credit,
    offer,
    peer_id,
    publish,
    reply,
    request,
    send,
    subscribe,
)

from malamute.core.measures import ERROR
from malamute.core.presence import DETAILS_MAX
from malamute.core.session import Session
from malamute.protocol.messages import Answer, Credit, Error, Hello, Query

NEAR = ERROR * 1.001


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    return bench


def ask(bench, topic, **arguments):
    (answer,) = bench.ask("carl", Query(1, topic, arguments))
    assert isinstance(answer, Answer)
    return answer.value


def refused(bench, topic, **arguments):
    (answer,) = bench.ask("carl", Query(1, topic, arguments))
    assert isinstance(answer, Error)
    return answer.code


def ident(name):
    return Session(peer_id(name), None, 0.0).ident


def test_wp12_a_client_is_told_with_since_and_last_seen_and_what_it_has(bench):
    bench.now += 5
    bench.tell("dora", Hello([2], "dora", "dora/1.0"))
    bench.now += 2
    bench.tell("dora", subscribe(1), offer(2), mail_credit(), subscribe(3, stream="t"))
    (row,) = [row for row in ask(bench, "clients") if row["address"] == "dora"]
    assert row == {
        "id": ident("dora"),
        "address": "dora",
        "software": "dora/1.0",
        "connected": True,
        "since": START + 5,
        "last_heard": START + 7,
        "subscriptions": 2,
        "offers": 1,
        "holding": 0,
    }


def test_wp12_a_client_that_is_gone_is_told_until_it_expires():
    bench = Bench(expiry=10.0)
    bench.open("alice", "carl")
    bench.lost("alice")
    assert [row["connected"] for row in ask(bench, "clients")] == [False, True]
    bench.wait(10.0)
    assert [row["address"] for row in ask(bench, "clients")] == ["carl"]


def test_a_client_is_told_by_address_or_id_with_all_it_has(bench):
    bench.tell("alice", publish(b"1"), send("bob", b"2"), request(b"3", b"4"))
    bench.settle()
    bench.now += 1
    criteria = [["topic", "x.*"], ["exact", "a"]]
    bench.tell("bob", subscribe(1, credit=7, criteria=criteria, where="n > 1"), mail_credit(), offer(2, 1))
    bench.settle()
    told = ask(bench, "client", id="bob")
    assert told == ask(bench, "client", id=ident("bob"))
    assert told["subscriptions"] == [
        {
            "source": 1,
            "stream": "s",
            "criteria": [["exact", "a"], ["topic", "x.*"]],
            "where": "n > 1",
            "since": START + 1,
            "credit": 7,
            "credit_bytes": -1,
            "state": "live",
            "lag": 0,
            "delivered": 0,
            "skipped": 0,
        }
    ]
    assert told["offers"] == [
        {
            "source": 2,
            "service": "w",
            "patterns": ["#"],
            "since": START + 1,
            "credit": 0,
            "credit_bytes": -1,
            "outstanding": 1,
        }
    ]
    assert told["mailbox"] == {"since": START + 1, "credit": -1, "credit_bytes": -1, "outstanding": 1}
    assert told["holding"] == 2


def test_a_slow_subscription_tells_how_far_behind_it_is(bench):
    bench.tell("alice", subscribe(1, credit=1))
    bench.tell("bob", publish(b"1", b"2", b"3"))
    bench.settle()
    (row,) = ask(bench, "client", id="alice")["subscriptions"]
    assert (row["state"], row["lag"], row["credit"], row["delivered"]) == ("replay", 2, 0, 1)


def test_bytes_that_a_message_took_too_many_are_none_left(bench):
    bench.tell("alice", subscribe(1, credit=9, credit_bytes=1))
    bench.tell("bob", publish(b"x" * 100))
    bench.settle()
    (row,) = ask(bench, "client", id="alice")["subscriptions"]
    assert (row["credit"], row["credit_bytes"]) == (8, 0)


def test_all_clients_are_told_with_details_up_to_a_bound(bench, monkeypatch):
    bench.tell("alice", *[subscribe(number) for number in range(1, 4)])
    bench.tell("bob", offer())
    assert [len(row["subscriptions"]) for row in ask(bench, "clients", details=True)] == [3, 0, 0]
    assert ask(bench, "clients", details=False) == ask(bench, "clients")
    assert DETAILS_MAX >= 1_000
    monkeypatch.setattr("malamute.core.presence.DETAILS_MAX", 4)
    assert len(ask(bench, "clients", details=True)) == 3
    bench.tell("bob", offer(2))
    assert refused(bench, "clients", details=True) == 413
    assert len(ask(bench, "clients")) == 3


def test_a_service_is_told_with_its_workers(bench):
    bench.tell("alice", request(b"1", subject="x.1"))
    bench.tell("bob", offer(5, 3, "x.*"))
    bench.tell("carl", offer(6, -1, "y"))
    bench.settle()
    told = ask(bench, "service", name="w")
    assert told["workers"] == [
        {
            "client": ident("bob"),
            "address": "bob",
            "patterns": ["x.*"],
            "since": START,
            "credit": 2,
            "credit_bytes": -1,
            "outstanding": 1,
        },
        {
            "client": ident("carl"),
            "address": "carl",
            "patterns": ["y"],
            "since": START,
            "credit": -1,
            "credit_bytes": -1,
            "outstanding": 0,
        },
    ]
    assert ask(bench, "services", details=True) == [told]
    assert [row["consumers"] for row in ask(bench, "services")] == [2]


def test_more_workers_than_one_answer_holds_are_refused(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.presence.DETAILS_MAX", 1)
    bench.tell("bob", offer(1))
    assert len(ask(bench, "services", details=True)) == 1
    bench.tell("bob", offer(2))
    assert refused(bench, "services", details=True) == 413


@pytest.mark.parametrize(
    ("topic", "arguments", "code"),
    [
        ("client", {}, 416),
        ("client", {"id": "nobody"}, 404),
        ("service", {}, 416),
        ("service", {"name": "nothing"}, 404),
        ("clients", {"details": 1}, 416),
        ("services", {"detail": True}, 416),
        ("feeds", {"name": "x"}, 416),
    ],
)
def test_what_is_not_there_or_not_understood_is_told(bench, topic, arguments, code):
    assert refused(bench, topic, **arguments) == code


def test_a_queue_tells_its_depth_its_age_its_rates_and_how_long_work_takes(bench):
    bench.tell("alice", request(b"1", b"2", b"3"))
    bench.settle()
    bench.now += 4
    bench.tell("bob", offer(1, 2))
    bench.settle()
    bench.now += 2
    bench.tell("bob", reply(1, 1, 2))
    bench.settle()
    (row,) = ask(bench, "services")
    about = {name: pytest.approx(value, rel=NEAR) for name, value in {"w": 4_000, "h": 2_000}.items()}
    assert row == {
        "name": "w",
        "messages": 1,
        "waiting": 1,
        "delayed": 0,
        "outstanding": 0,
        "dead": 0,
        "bytes": bench.core.budget.bytes - bench.core.mailboxes.by_name["alice"].bytes,
        "cold_bytes": 0,
        "consumers": 1,
        "oldest_age": 6.0,
        "expired": 0,
        "timeouts": 0,
        "redelivered": 0,
        "arrival_rate": pytest.approx(0.3, rel=0.01),
        "settled_rate": pytest.approx(0.2, rel=0.01),
        "waited_p50_ms": about["w"],
        "waited_p99_ms": about["w"],
        "held_p50_ms": about["h"],
        "held_p99_ms": about["h"],
    }


def test_a_mailbox_tells_the_same_and_none_of_what_was_not_measured(bench):
    bench.tell("bob", mail_credit())
    (row,) = ask(bench, "mailboxes")
    assert (row["arrival_rate"], row["held_p99_ms"], row["oldest_age"]) == (0.0, None, None)
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    bench.now += 1
    bench.tell("bob", ack(0, (1, 1)))
    (row,) = ask(bench, "mailboxes")
    assert row["held_p50_ms"] == pytest.approx(1_000, rel=NEAR)


def test_a_request_that_went_to_two_workers_was_held_since_the_last_delivery(bench):
    bench.tell("alice", request(b"1"))
    bench.tell("bob", offer())
    bench.settle()
    bench.now += 100
    bench.lost("bob")
    bench.tell("carl", offer())
    bench.settle()
    bench.now += 1
    bench.tell("carl", reply(1, 1), Credit(1, 1, -1))
    bench.settle()
    (row,) = ask(bench, "services")
    assert row["held_p50_ms"] == pytest.approx(1_000, rel=NEAR)
    assert row["waited_p50_ms"] < 1


def test_streams_and_the_whole_tell_rates_and_feeds(bench):
    bench.tell("alice", publish(*[b"x"] * 50))
    assert ask(bench, "streams")[0]["published_rate"] == pytest.approx(5.0)
    assert ask(bench, "status")["feeds"] == 0
