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

from malamute.core.admin.pages import DETAILS_MAX, PAGE_ROWS, ROW_WORK
from malamute.core.iteration.metrics import ERROR
from malamute.core.session.session import Session
from malamute.protocol.messages import Answer, Commit, Credit, Error, Hello, Query

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


def test_wp12_a_client_is_shown_with_since_and_last_seen_and_what_it_has(bench):
    bench.now += 5
    bench.tell("dora", Hello([2], "dora", "dora/1.0"))
    bench.now += 2
    bench.tell("dora", subscribe(1), offer(2), mail_credit(), subscribe(3, stream="t"))
    (row,) = [row for row in ask(bench, "clients") if row["address"] == "dora"]
    assert row == {
        "id": ident("dora"),
        "address": "dora",
        "user": "",
        "software": "dora/1.0",
        "connected": True,
        "since": START + 5,
        "last_heard": START + 7,
        "subscriptions": 2,
        "offers": 1,
        "holding": 0,
        "sent": 0,
        "received": 0,
    }


def test_wp12_a_client_that_is_gone_is_shown_until_it_expires():
    bench = Bench(expiry=10.0)
    bench.open("alice", "carl")
    bench.lost("alice")
    assert {row["address"]: row["connected"] for row in ask(bench, "clients")} == {
        "alice": False,
        "carl": True,
    }
    bench.wait(10.0)
    assert [row["address"] for row in ask(bench, "clients")] == ["carl"]


def test_a_client_is_shown_by_address_or_id_with_all_it_has(bench):
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
            "kind": "service",
            "service": "w",
            "patterns": ["#"],
            "since": START + 1,
            "credit": 0,
            "credit_bytes": -1,
            "in_flight": 1,
        }
    ]
    assert told["mailbox"] == {"since": START + 1, "credit": -1, "credit_bytes": -1, "in_flight": 1}
    assert told["holding"] == 2
    # Of two requests it has credit for one; the message in its mailbox is the other that it was sent.
    assert (told["sent"], told["received"]) == (0, 2)
    assert (ask(bench, "client", id="alice")["sent"], ask(bench, "client", id="alice")["received"]) == (4, 0)
    bench.tell("alice", publish(b"5", b"6"))
    bench.settle()
    assert ask(bench, "client", id="alice")["sent"] == 6


def test_a_slow_subscription_shows_how_far_behind_it_is(bench):
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


def test_clients_with_details_come_in_pages_of_bounded_size(bench, monkeypatch):
    bench.tell("alice", *[subscribe(number) for number in range(1, 4)])
    bench.tell("bob", offer())
    rows = ask(bench, "clients", details=True)
    assert {row["address"]: len(row["subscriptions"]) for row in rows} == {"alice": 3, "bob": 0, "carl": 0}
    assert ask(bench, "clients", details=False) == ask(bench, "clients")
    assert DETAILS_MAX >= 1_000
    monkeypatch.setattr("malamute.core.admin.pages.DETAILS_MAX", 2)
    pages = [ask(bench, "clients", details=True)]
    while pages[-1]:
        pages.append(ask(bench, "clients", details=True, after_name=pages[-1][-1]["id"]))
    assert len(pages) == 3
    assert [row for page in pages for row in page] == rows


def names(bench, topic, **arguments):
    return [row["name"] for row in ask(bench, topic, **arguments)]


@pytest.mark.parametrize("topic", ["streams", "mailboxes", "services"])
def test_a_list_comes_in_pages_in_the_order_of_its_names(bench, topic):
    make = {"streams": lambda name: publish(b"1", stream=name), "mailboxes": lambda name: send(name, b"1")}
    for n in (3, 1, 2, *range(4, PAGE_ROWS + 3)):
        name = f"{n:04}"
        bench.tell("alice", make.get(topic, lambda name: request(b"1", service=name))(name))
    bench.settle()
    every = [f"{n:04}" for n in range(1, PAGE_ROWS + 3)]
    assert names(bench, topic, limit=2) == every[:2]
    assert names(bench, topic, after_name="0002", limit=2) == every[2:4]
    first = names(bench, topic, limit=1_000)
    assert first == every[:PAGE_ROWS]
    rest = names(bench, topic, after_name=first[-1])
    assert [name for name in rest if name in every] == every[PAGE_ROWS:]
    assert names(bench, topic, after_name="~") == []


def test_a_query_counts_as_work_of_its_iteration(bench):
    for n in range(50):
        bench.tell("alice", publish(b"1", stream=f"{n}"))
    before = bench.core.effects.work
    bench.receive("carl", Query(1, "streams", {}))
    assert before - bench.core.effects.work >= 50 * ROW_WORK


def test_cursors_and_feeds_come_in_pages_of_whole_streams_and_services(bench):
    for stream in "ba":
        bench.tell("alice", publish(b"1", stream=stream))
        bench.settle()
        bench.tell("alice", *[Commit(stream, 0, f"c{n}", 1) for n in range(3)])
    bench.settle()
    page = ask(bench, "cursors", limit=1)
    assert [(row["stream"], row["name"]) for row in page] == [("a", "c0"), ("a", "c1"), ("a", "c2")]
    page = ask(bench, "cursors", limit=1, after_name="a")
    assert {row["stream"] for row in page} == {"b"}
    assert ask(bench, "cursors", after_name="b") == ask(bench, "cursors", stream="nothing") == []
    assert len(ask(bench, "cursors", stream="b")) == 3
    assert ask(bench, "feeds") == []


def test_selectors_are_explained_in_pages(bench):
    where = [f"x = {n}" for n in range(3)] + [f"not y = {n}" for n in range(3)]
    bench.tell("alice", *[subscribe(n, where=text) for n, text in enumerate(where, 1)])
    rows = ask(bench, "explain", stream="s", subject="a", headers={"x": 1})
    assert [row["where"] for row in rows if row["matched"]] == [where[1], *where[3:]]
    paged = []
    while page := ask(
        bench,
        "explain",
        stream="s",
        subject="a",
        headers={"x": 1},
        limit=2,
        after_name=paged[-1]["id"] if paged else "",
    ):
        paged += page
    assert paged == rows


def test_a_service_is_shown_with_its_workers(bench):
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
            "in_flight": 1,
        },
        {
            "client": ident("carl"),
            "address": "carl",
            "patterns": ["y"],
            "since": START,
            "credit": -1,
            "credit_bytes": -1,
            "in_flight": 0,
        },
    ]
    assert ask(bench, "services", details=True) == [told]
    assert [row["consumers"] for row in ask(bench, "services")] == [2]


def test_of_more_workers_than_one_answer_holds_the_first_are_shown(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.admin.pages.DETAILS_MAX", 1)
    bench.tell("bob", offer(1), offer(2))
    (told,) = ask(bench, "services", details=True)
    assert (len(told["workers"]), told["consumers"]) == (1, 2)


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
def test_what_is_not_there_or_not_understood_is_reported(bench, topic, arguments, code):
    assert refused(bench, topic, **arguments) == code


def test_a_queue_shows_its_depth_its_age_its_rates_and_how_long_work_takes(bench):
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
        "persistence": "durable",
        "messages": 1,
        "ready": 1,
        "delayed": 0,
        "in_flight": 0,
        "dead_letters": 0,
        "bytes": bench.core.queue_limits.bytes - bench.core.mailboxes.by_name["alice"].usage.bytes,
        "paged_out_bytes": 0,
        "consumers": 1,
        "oldest_age": 6.0,
        "expired": 0,
        "timeouts": 0,
        "redelivered": 0,
        "arrival_rate": pytest.approx(0.3, rel=0.01),
        "settled_rate": pytest.approx(0.2, rel=0.01),
        "queue_time_p50_ms": about["w"],
        "queue_time_p99_ms": about["w"],
        "processing_time_p50_ms": about["h"],
        "processing_time_p99_ms": about["h"],
        "attempts": 20,
        "backoff": [1.0, 5.0, 30.0, 120.0],
        "ack_timeout": 1800.0,
        "settings_source": "default",
    }


def test_a_mailbox_shows_the_same_and_none_of_what_was_not_measured(bench):
    bench.tell("bob", mail_credit())
    (row,) = ask(bench, "mailboxes")
    assert (row["arrival_rate"], row["processing_time_p99_ms"], row["oldest_age"]) == (0.0, None, None)
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    bench.now += 1
    bench.tell("bob", ack(0, (1, 1)))
    (row,) = ask(bench, "mailboxes")
    assert row["processing_time_p50_ms"] == pytest.approx(1_000, rel=NEAR)


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
    assert row["processing_time_p50_ms"] == pytest.approx(1_000, rel=NEAR)
    assert row["queue_time_p50_ms"] < 1


def test_streams_and_the_whole_show_rates_and_feeds(bench):
    bench.tell("alice", publish(*[b"x"] * 50))
    assert ask(bench, "streams")[0]["published_rate"] == pytest.approx(5.0)
    assert ask(bench, "status")["feeds"] == 0
