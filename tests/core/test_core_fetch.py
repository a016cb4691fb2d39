"""One message of a queue, by its number: whole, and without being taken."""

from __future__ import annotations

import pytest
from core_bench import Bench, mail_credit, offer, peer_id, publish, request, send, subscribe

from malamute.core.session.answers import ASKED_BYTES
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Answer, Cancel, Change, Error, Query, Reject
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    return bench


def fetch(bench, sequence, kind="mailbox", name="bob", **more):
    bench.sent("carl")
    arguments = {"kind": kind, "name": name, "sequence": sequence, **more}
    bench.tell("carl", Query(1, "message", arguments))
    bench.read_all()
    [answer] = bench.sent("carl")
    return answer.value if isinstance(answer, Answer) else answer


def test_xu8_a_message_is_fetched_by_its_queue_and_number_whole(bench):
    body = bytes(range(256)) * 100
    bench.tell("alice", send("bob", b"1", body, b"3", correlation=4))
    bench.settle()
    row = fetch(bench, 2)
    assert (row["sequence"], row["body"], row["sender"]) == (2, body, "alice")
    assert (row["state"], row["attempts"], row["properties"]) == ("ready", 0, {"correlation": 4})
    assert len(bench.core.mailboxes.by_name["bob"].entries) == 3


def test_one_that_somebody_holds_and_one_of_a_service(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    assert (fetch(bench, 1, "service", "w")["state"]) == "in-flight"


def test_a_dead_letter_has_a_number_of_its_own(bench):
    bench.tell("alice", send("bob", b"1", b"2"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Reject(0, [[2, 2]], "no"))
    bench.settle()
    row = fetch(bench, 1, dead=True)
    assert (row["body"], row["state"], row["properties"]["dead"]["sequence"]) == (b"2", "dead-lettered", 2)
    assert fetch(bench, 1)["body"] == b"1"


@pytest.mark.parametrize("more", [{"name": "nobody"}, {}, {"dead": True}])
def test_what_is_not_there_is_404(bench, more):
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    answer = fetch(bench, 7, **more)
    assert isinstance(answer, Error)
    assert answer.code == 404
    assert not bench.core.answers._asked


def test_a_paged_out_one_is_read_and_may_leave_meanwhile():
    bench = Bench(limits=Limits(queues_memory_bytes=2_000, queue_bytes=100_000, queues_bytes=100_000))
    bench.open("alice", "bob", "carl")
    for number in range(1, 7):
        bench.tell("alice", send("bob", bytes(1_000), number=number))
        bench.settle()
    queue = bench.core.mailboxes.by_name["bob"]
    out = next(s for s, entry in queue.entries.items() if entry.paged_out)
    assert len(fetch(bench, out)["body"]) == 1_000
    bench.sent("carl")
    bench.tell("carl", Query(1, "message", {"kind": "mailbox", "name": "bob", "sequence": out}))
    bench.core.mailboxes.remove(queue)
    bench.read_all()
    [answer] = bench.sent("carl")
    assert answer.code == 404
    assert not bench.core.answers._asked


def test_a_large_one_counts_for_what_it_has():
    """The answer is as large as the message, so that as many are under way as may be."""
    bench = Bench(limits=Limits(answers_bytes=8 * ASKED_BYTES))
    bench.open("alice", "carl")
    bench.tell("alice", send("bob", bytes(5 * ASKED_BYTES)))
    bench.settle()
    ask = {"kind": "mailbox", "name": "bob", "sequence": 1}
    bench.receive("carl", *[Query(ref, "message", ask) for ref in (1, 2, 3)])
    bench.iterate()
    answers = bench.sent("carl")
    assert [getattr(answer, "code", 0) for answer in answers].count(503) == 1


def test_xu8_a_selector_is_listed_with_its_seven_fields_and_fetched_by_its_queue_and_name(bench):
    """Two of one source, and others that have the name of one of them."""
    everything = {"criteria": [["all", ""]], "where": ""}
    rules = [
        {"source": "mailbox/bob", "feed": "f", "target": "service/w", "criteria": [["prefix", "x."]]},
        {"source": "mailbox/bob", "feed": "g", "target": "mailbox/carl", "criteria": [["exact", "a"]]},
        {"source": "mailbox/ann", "feed": "f", "target": "service/v"},
        {"source": "stream/s", "feed": "f", "target": "service/v", "where": "n = 1"},
    ]
    for rule in rules:
        bench.tell("carl", Change(0, "feed.set", rule))
        bench.settle()
    bench.sent("carl")
    bench.tell("carl", Query(0, "feeds", {}))
    (listed,) = bench.sent("carl")
    assert len(listed.value) == len(rules)
    for rule in rules:
        bench.tell("carl", Query(1, "feed", {"source": rule["source"], "feed": rule["feed"]}))
        (fetched,) = bench.sent("carl")
        assert fetched.value in listed.value
        operation = "copy" if rule["source"] == "stream/s" else "move"
        wanted = {**everything, **rule, "operation": operation}
        assert {name: fetched.value[name] for name in wanted} == wanted
        assert fetched.value["credit"] > 0
    bench.tell("carl", Query(2, "feed", {"source": "mailbox/ann", "feed": "g"}))
    (missing,) = bench.sent("carl")
    assert missing.code == 404


def test_xu8_the_credit_of_a_selector_is_the_room_at_its_destination():
    bench = Bench(queues=QueuePolicy(messages_max=3))
    bench.open("alice", "carl")
    feed = {"source": "mailbox/bob", "feed": "f"}
    bench.tell("carl", Change(0, "feed.set", {**feed, "target": "service/w"}))
    bench.settle()
    room = []
    for number in range(1, 5):
        bench.sent("carl")
        bench.tell("carl", Query(number, "feed", feed))
        (answer,) = bench.sent("carl")
        room.append(answer.value["credit"])
        bench.tell("alice", send("bob", b"x", number=number))
        bench.settle()
    assert room == [3, 2, 1, 0]


def test_what_a_feed_has_made_has_its_number_where_it_was(bench):
    """A consumer has the number of a message in its own queue, and that in its source."""
    for feed, source, target in (("a", "stream/s", "mailbox/bob"), ("b", "mailbox/carl", "service/w")):
        bench.tell("carl", Change(0, "feed.set", {"source": source, "feed": feed, "target": target}))
    bench.settle()
    bench.tell("alice", send("bob", b"0"), publish(b"1", b"2"), send("carl", b"3"))
    bench.tell("bob", mail_credit(), offer())
    bench.settle()
    assert [(item.sequence, item.body, item.properties) for item in bench.got("bob")] == [
        (1, b"0", None),
        (2, b"1", {"source": "stream/s", "sequence": 1}),
        (3, b"2", {"source": "stream/s", "sequence": 2}),
        (1, b"3", {"source": "mailbox/carl", "sequence": 1}),
    ]


def test_xu8_feeds_offers_and_subscriptions_are_listed_and_fetched_by_their_number_at_their_source():
    """Each has all seven fields, and its number stays its own when others come and go."""
    bench = Bench()
    bench.open("alice", "bob", "carl")
    bench.tell("carl", Change(0, "feed.set", {"source": "stream/s", "feed": "f", "target": "service/w"}))
    bench.settle()
    bench.tell("alice", subscribe(1, credit=7, stream="s", criteria=[["prefix", "x."]], where="n = 1"))
    bench.wait(1)
    bench.tell("bob", subscribe(1, credit=-1, stream="s"))
    bench.tell("bob", offer(2, credit=3, pattern="a.*"))
    bench.settle()

    def ask(topic, **arguments):
        bench.sent("carl")
        bench.tell("carl", Query(1, topic, arguments))
        bench.settle()
        (answer,) = bench.sent("carl")
        return answer

    def clients(rows):
        return [row["destination"] for row in rows]

    ident = {name: f"client/{bench.core.sessions.by_peer[peer_id(name)].ident}" for name in ("alice", "bob")}
    of_stream = ask("selectors", source="stream/s").value
    assert [row["number"] for row in of_stream] == [1, 2, 3]
    assert clients(of_stream) == ["service/w", ident["alice"], ident["bob"]]
    assert of_stream[1] == {
        "number": 2,
        "source": "stream/s",
        "destination": ident["alice"],
        "criteria": [["prefix", "x."]],
        "where": "n = 1",
        "operation": "copy",
        "credit": 7,
    }
    (of_service,) = ask("selectors", source="service/w").value
    assert (of_service["destination"], of_service["operation"], of_service["credit"]) == (
        ident["bob"],
        "move",
        3,
    )
    assert of_service["criteria"] == [["topic", "a.*"]]
    for row in (*of_stream, of_service):
        assert ask("selector", source=row["source"], number=row["number"]).value == row
    # One goes and another comes: the others keep theirs, and its own is nobody's.
    bench.tell("alice", Cancel(1))
    bench.tell("alice", subscribe(2, stream="s"))
    bench.settle()
    again = ask("selectors", source="stream/s").value
    assert [(row["number"], row["destination"]) for row in again] == [
        (1, "service/w"),
        (3, ident["bob"]),
        (4, ident["alice"]),
    ]
    assert [row["number"] for row in ask("selectors", source="stream/s", after=1, limit=1).value] == [3]
    for source, number in (("stream/s", 2), ("service/w", 9), ("service/none", 1), ("stream/none", 1)):
        assert ask("selector", source=source, number=number).code == 404
