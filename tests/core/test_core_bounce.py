"""Who holds a message of a mailbox gives it back to its sender: once, in the commit that settles it."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, reply, request, send

from malamute.protocol.limits import Limits
from malamute.protocol.messages import Bye, Change, Error, Hello, Query, Reject
from malamute.store.policies import QueuePolicy


@pytest.fixture
def bench():
    bench = Bench()
    bench.open("alice", "bob", "carl")
    return bench


def bounce(*ranges, source=0, reason="no such person"):
    return Reject(source, [list(r) for r in ranges or [(1, 1)]], reason, True)


def held(bench, *messages):
    """Messages that are in the mailbox of bob, and that he holds."""
    bench.tell("alice", *messages)
    bench.tell("bob", mail_credit())
    bench.settle()
    return [item.sequence for item in bench.got("bob")]


def back(bench, name="alice"):
    """What somebody finds in his mailbox."""
    bench.tell(name, mail_credit())
    bench.settle()
    return bench.got(name)


def there(bench, name):
    bench.settle()
    mailbox = bench.core.mailboxes.by_name.get(name)
    return [] if mailbox is None else [*mailbox.entries]


def dead(bench, name="bob"):
    bench.sent("carl")
    bench.tell("carl", Query(1, "messages", {"kind": "mailbox", "name": name, "dead": True}))
    bench.read_all()
    return bench.sent("carl")[0].value


def codes(messages):
    return [message.code for message in messages if isinstance(message, Error)]


def test_a_message_goes_back_to_its_sender_from_who_had_it(bench):
    held(bench, send("bob", b"1", correlation=7, priority=3, key="k", ttl=10_000))
    bench.tell("bob", bounce())
    [item] = back(bench)
    assert (item.body, item.subject, item.sender, item.attempt) == (b"1", "a", "bob", 1)
    assert item.properties == {"correlation": 7, "bounced": "bob", "reason": "no such person"}
    assert there(bench, "bob") == []
    assert dead(bench) == []
    assert bench.core.queue_limits.settlements == {"bounced": 1}
    assert "mailbox.bounced.bob" in bench.events
    bench.wait(60)
    assert there(bench, "alice") == [1]


def test_its_sender_may_be_away_and_the_broker_killed(bench):
    held(bench, send("bob", b"1", b"2"))
    bench.tell("alice", Bye())
    bench.tell("bob", bounce((1, 2), reason=""))
    bench.settle()
    bench.crash()
    bench.open("alice")
    assert [item.properties for item in back(bench)] == [{"bounced": "bob"}] * 2
    assert there(bench, "bob") == []


def test_before_its_commit_it_is_where_it_was_and_nowhere_else(bench):
    held(bench, send("bob", b"1", number=1))
    bench.tell("alice", mail_credit())
    bench.tell("bob", bounce())
    bench.iterate()
    assert bench.got("alice") == []
    bench.crash()
    bench.open("alice", "bob")
    assert back(bench) == []
    assert [(item.sequence, item.attempt) for item in back(bench, "bob")] == [(1, 2)]


def test_one_that_cannot_be_stored_is_redelivered(bench):
    held(bench, send("bob", b"1", number=1))
    bench.tell("bob", bounce())
    bench.fail()
    assert [(item.sequence, item.attempt) for item in back(bench, "bob")] == [(1, 2)]
    assert back(bench) == []
    bench.tell("bob", bounce())
    assert len(back(bench)) == 1
    assert there(bench, "bob") == []


def test_a_tracked_one_has_the_outcome_bounced_beside_it(bench):
    held(bench, send("bob", b"1", number=1, tracker="t"))
    bench.tell("bob", bounce())
    assert [item.properties for item in back(bench)] == [
        {"bounced": "bob", "reason": "no such person"},
        {"outcome": "bounced", "tracker": "t", "kind": "mailbox", "name": "bob", "reason": "no such person"},
    ]


def test_it_bounces_once_only(bench):
    held(bench, send("bob", b"1"))
    bench.tell("bob", bounce())
    [item] = back(bench)
    [answer] = bench.ask("alice", bounce((item.sequence, item.sequence)))
    assert (answer.code, answer.text) == (416, "message 1 cannot bounce: it has bounced already")
    bench.tell("alice", ack(0, (1, 1)))
    assert there(bench, "alice") == there(bench, "bob") == []


def test_who_has_no_address_gets_nothing_back_and_nothing_has_happened(bench):
    bench.tell("dora", Hello([2], ""))
    bench.tell("dora", send("bob", b"2"))
    held(bench, send("bob", b"1"))
    [answer] = bench.ask("bob", bounce((1, 2)))
    assert (answer.code, answer.text) == (416, "message 1 cannot bounce: its sender has no address")
    assert there(bench, "bob") == [1, 2]
    assert back(bench) == []
    bench.tell("bob", bounce((2, 2)), Reject(0, [[1, 1]]))
    assert [item.properties["bounced"] for item in back(bench)] == ["bob"]
    assert len(dead(bench)) == 1


def test_what_nobody_has_sent_there_does_not_bounce(bench):
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1", number=1), send("bob", b"2", number=2, tracker="t"))
    bench.settle()
    assert codes(bench.ask("bob", bounce(source=1))) == [416]
    bench.tell("bob", mail_credit(), reply(1, 1))
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)))
    texts = {answer.text for item in back(bench) for answer in bench.ask("alice", bounce((item[0], item[0])))}
    assert texts == {
        "message 1 cannot bounce: it is a reply",
        "message 2 cannot bounce: it is an outcome, which the broker has written",
    }


def test_what_a_feed_has_made_does_not_bounce(bench):
    rule = {"source": "stream/s", "target": "mailbox/bob", "feed": "f", "criteria": [["all", ""]]}
    bench.tell("carl", Change(0, "feed.set", rule))
    bench.settle()
    assert held(bench, publish(b"1")) == [1]
    [answer] = bench.ask("bob", bounce())
    assert answer.text == "message 1 cannot bounce: a feed has made it"


def test_what_is_not_held_does_not_bounce(bench):
    held(bench, send("bob", b"1"))
    assert codes(bench.ask("bob", bounce((2, 2)))) == [420]
    assert there(bench, "bob") == [1]


def test_a_sender_without_room_leaves_a_dead_letter(bench):
    bench = Bench(queues=QueuePolicy(messages_max=1))
    bench.open("alice", "bob", "carl")
    held(bench, send("bob", b"1", number=1))
    bench.tell("carl", send("alice", b"full"))
    bench.tell("bob", bounce())
    assert len(back(bench)) == 1
    [row] = dead(bench)
    assert row["properties"]["dead"]["reason"] == "no such person"
    assert bench.core.queue_limits.settlements == {"rejected": 1}


def test_a_sender_whose_mailbox_would_be_one_too_many_leaves_a_dead_letter():
    bench = Bench(limits=Limits(queues=1))
    bench.open("alice", "bob", "carl")
    held(bench, send("bob", b"1"))
    bench.tell("bob", bounce())
    bench.settle()
    assert [*bench.core.mailboxes.by_name] == ["bob"]
    assert len(dead(bench)) == 1


def test_one_who_writes_to_himself_gets_it_back(bench):
    bench.tell("bob", send("bob", b"1"), mail_credit())
    bench.settle()
    bench.got("bob")
    bench.tell("bob", bounce())
    bench.settle()
    assert [(item.sequence, item.properties["bounced"]) for item in bench.got("bob")] == [(2, "bob")]
    assert there(bench, "bob") == [2]


def test_of_a_shared_mailbox_it_comes_from_the_consumer(bench):
    bench.tell("bob", offer(1, service="team", criteria=[["all", ""]], kind="mailbox"))
    bench.tell("alice", send("team", b"1"))
    bench.settle()
    bench.tell("bob", bounce(source=1))
    [item] = back(bench)
    assert (item.sender, item.properties["bounced"]) == ("bob", "team")


def test_one_that_is_paged_out_comes_back_whole():
    body = bytes(1_000)
    bench = Bench(limits=Limits(queues_memory_bytes=2_000, queue_bytes=100_000, queues_bytes=100_000))
    bench.open("alice", "bob", "carl")
    for number in range(1, 7):
        bench.tell("alice", send("bob", body + b"%d" % number, number=number))
        bench.settle()
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", bounce((1, 6)))
    bench.settle()
    assert [item.body for item in back(bench)] == [body + b"%d" % number for number in range(1, 7)]
    assert there(bench, "bob") == []


def test_many_go_back_to_many(bench):
    bench.open("dora")
    bench.tell("dora", send("bob", *[b"d"] * 1_500))
    held(bench, send("bob", *[b"a"] * 1_500))
    bench.tell("bob", bounce((1, 3_000)))
    assert (len(back(bench)), len(back(bench, "dora")), there(bench, "bob")) == (1_500, 1_500, [])
