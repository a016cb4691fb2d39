"""Every limit that a broker sets for itself: at it, and one past it (WP4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from core_bench import Bench, mail_credit, offer, publish, request, send, subscribe
from lab.attacks import CLAUSES

from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.session.selectors import SUBSCRIPTION_BYTES
from malamute.core.stream.cursors import cursor_bytes
from malamute.matching import Selector
from malamute.protocol.batch import pack, pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Bye,
    Cancel,
    Change,
    Commit,
    Error,
    Hello,
    Message,
    Ok,
    Publish,
    Query,
    Subscribe,
)

RECORD = 5
"""Bytes of the record with a body of one byte; with the subject `a` it is one more."""
ENTRY = ENTRY_BYTES + RECORD + 1

Case = Iterator[list[Message]]


def errors(messages: list[Message]) -> list[int]:
    return [message.code for message in messages if isinstance(message, Error)]


def message_bytes() -> Case:
    bench = Bench(Limits(message_bytes=2 * RECORD))
    bench.open("alice")
    yield bench.ask("alice", publish(b"1", b"2"), send("bob", b"1", b"2"), request(b"1", b"2"))
    yield bench.ask("alice", publish(b"1", b"22"))
    yield bench.ask("alice", send("bob", b"1", b"22"))
    yield bench.ask("alice", request(b"1", b"22"))


def unconfirmed() -> Case:
    bench = Bench(Limits(unconfirmed=3))
    bench.open("alice")
    bench.tell("alice", *[publish(b"x", number=number) for number in range(1, 5)])
    bench.settle()
    yield bench.ask("alice", publish(b"x", number=2))
    yield bench.ask("alice", publish(b"x", number=1))


def sessions() -> Case:
    bench = Bench(Limits(sessions=2))
    yield [*bench.ask("alice", Hello([2], "")), *bench.ask("bob", Hello([2], ""))]
    yield bench.ask("carl", Hello([2], ""))


def sources() -> Case:
    bench = Bench(Limits(sources=2))
    bench.open("alice")
    # The mailbox is no source that the client has chosen.
    yield bench.ask("alice", mail_credit(), subscribe(1), offer(2))
    yield bench.ask("alice", subscribe(3))
    yield bench.ask("alice", offer(3))


def streams() -> Case:
    bench = Bench(Limits(streams=2))
    bench.open("alice")
    yield bench.ask("alice", publish(b"1", stream="a"), subscribe(stream="b"))
    yield bench.ask("alice", publish(b"1", stream="c"))
    yield bench.ask("alice", subscribe(2, stream="c"))


def cursors() -> Case:
    bench = Bench(Limits(cursors=2))
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    yield bench.ask("alice", Commit("s", 0, "one", 1), subscribe(1, cursor="two"), Commit("s", 0, "one", 1))
    yield bench.ask("alice", Commit("s", 0, "three", 1))
    yield bench.ask("alice", subscribe(2, cursor="three"))


def queues() -> Case:
    bench = Bench(Limits(queues=2))
    bench.open("alice")
    yield bench.ask("alice", mail_credit(), offer(1))
    yield bench.ask("alice", send("bob", b"1"))
    yield bench.ask("alice", offer(2, service="x"))
    yield bench.ask("alice", request(b"1", service="x"))


def queue_messages() -> Case:
    bench = Bench(Limits(queue_messages=2))
    bench.open("alice")
    yield bench.ask("alice", send("bob", b"1", b"2"), request(b"1", b"2"))
    yield bench.ask("alice", send("bob", b"3"))
    yield bench.ask("alice", request(b"3"))


def queue_bytes() -> Case:
    bench = Bench(Limits(queue_bytes=2 * ENTRY))
    bench.open("alice")
    yield bench.ask("alice", send("bob", b"1", b"2"), send("carl", b"1"))
    yield bench.ask("alice", send("bob", b"3"))
    yield bench.ask("alice", send("carl", b"22"))


def queues_bytes() -> Case:
    bench = Bench(Limits(queues_bytes=2 * ENTRY))
    bench.open("alice")
    yield bench.ask("alice", send("bob", b"1"), send("carl", b"1"))
    yield bench.ask("alice", send("dora", b"1"))
    yield bench.ask("alice", request(b"1"))


def queues_messages() -> Case:
    bench = Bench(Limits(queues_messages=2))
    bench.open("alice")
    yield bench.ask("alice", send("bob", b"1"), send("carl", b"1"))
    yield bench.ask("alice", send("dora", b"1"))
    yield bench.ask("alice", request(b"1"))


def queues_memory_bytes() -> Case:
    """What is stored goes out of memory; only what the disk does not take is refused in the end."""
    bench = Bench(Limits(queues_memory_bytes=ENTRY, backlog_bytes=ENTRY))
    bench.open("alice")
    yield [*bench.ask("alice", send("bob", b"1")), *_unstored(bench), *bench.ask("alice", send("bob", b"2"))]
    _unstored(bench)
    yield [*bench.ask("alice", send("bob", b"3")), *_unstored(bench), *bench.ask("alice", send("bob", b"4"))]


def _unstored(bench: Bench) -> list[Message]:
    while bench.appends:
        bench.fail()
    return bench.sent("alice")


def backlog_bytes() -> Case:
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    full = bench.core.effects.stage.backlog_bytes
    bench = Bench(Limits(backlog_bytes=full))
    bench.open("alice", "bob", "carl")
    bench.tell("alice", publish(b"1"))
    yield bench.ask("bob", publish(b"1"))
    yield bench.ask("carl", publish(b"1"))
    bench.settle()
    assert errors(bench.ask("carl", publish(b"1"))) == []


def feeds() -> Case:
    bench = Bench(Limits(feeds=2))
    bench.open("alice")
    feed = [
        Change(0, "feed.set", {"source": "stream/s", "feed": service, "target": f"service/{service}"})
        for service in "abc"
    ]
    yield bench.ask("alice", feed[0], feed[1], feed[0])
    yield bench.ask("alice", feed[2])


def accounts() -> Case:
    bench = Bench(Limits(accounts=2))
    bench.open("alice")
    added = [Change(0, "user.add", {"name": name}) for name in "abc"]
    yield bench.ask("alice", added[0], added[1], Change(0, "user.set", {"name": "a", "uid": 1}))
    yield bench.ask("alice", added[2])


WANTED = Selector.parse([["topic", "a.*"]], "x in (2, 3)")


def selector_bytes() -> Case:
    bench = Bench(Limits(selector_bytes=WANTED.cost_bytes))
    bench.open("alice")
    yield bench.ask("alice", wanting(1))
    yield bench.ask("alice", wanting(2, "x in (2, 3, 4)"))


def session_selector_bytes() -> Case:
    bench = Bench(Limits(session_selector_bytes=2 * (WANTED.cost_bytes + SUBSCRIPTION_BYTES)))
    bench.open("alice")
    bench.open("bob")
    yield [*bench.ask("alice", wanting(1), wanting(2)), *bench.ask("bob", wanting(1))]
    yield bench.ask("alice", wanting(3))
    bench.ask("alice", Cancel(1))
    assert errors(bench.ask("alice", wanting(3))) == []


def selectors_bytes() -> Case:
    bench = Bench(Limits(selectors_bytes=2 * (WANTED.cost_bytes + SUBSCRIPTION_BYTES)))
    bench.open("alice")
    bench.open("bob")
    yield [*bench.ask("alice", wanting(1)), *bench.ask("bob", wanting(1))]
    yield bench.ask("alice", wanting(2))
    bench.ask("bob", Bye())
    assert errors(bench.ask("alice", wanting(2))) == []


def wanting(source: int, where: str = WANTED.where) -> Subscribe:
    return Subscribe(source, "s", [["topic", "a.*"]], where)


def cursors_bytes() -> Case:
    bench = Bench(Limits(cursors_bytes=2 * cursor_bytes("a")))
    bench.open("alice")
    bench.tell("alice", publish(b"1", stream="s"), publish(b"1", stream="t"))
    bench.settle()

    yield bench.ask("alice", Commit("s", 0, "a", 1), Commit("t", 0, "b", 1), Commit("s", 0, "a", 1))
    yield bench.ask("alice", Commit("t", 0, "a", 1))
    # No stream is made for a subscription that is refused.
    assert errors(bench.ask("alice", wanting(1)._replace(stream="u", cursor="c"))) == [429]
    assert "u" not in bench.core.streams.by_name
    bench.settle()
    bench.ask("alice", Change(0, "cursor.delete", {"stream": "s", "cursor": "a"}))
    bench.settle()
    bench.sent("alice")
    # The cursors that the store kept count too.
    bench.crash()
    bench.open("alice")
    assert errors(bench.ask("alice", Commit("t", 0, "a", 1))) == []
    assert errors(bench.ask("alice", Commit("t", 0, "c", 1))) == [429]


def answers_bytes() -> Case:
    bench = Bench()
    bench.open("alice")
    (answer,) = bench.ask("alice", Query(1, "streams", {}))
    bench = Bench(Limits(answers_bytes=2 * len(pack(answer.value))))
    bench.open("alice")
    two = [Query(1, "streams", {}), Query(2, "streams", {})]
    yield bench.ask("alice", *two)
    yield bench.ask("alice", *two, Query(3, "streams", {}))


CASES = {
    answers_bytes: 503,
    selector_bytes: 415,
    session_selector_bytes: 429,
    selectors_bytes: 429,
    message_bytes: 413,
    unconfirmed: 421,
    sessions: 429,
    sources: 429,
    streams: 429,
    cursors: 429,
    cursors_bytes: 429,
    feeds: 429,
    accounts: 429,
    queues: 503,
    queue_messages: 503,
    queue_bytes: 503,
    queues_bytes: 503,
    queues_messages: 503,
    queues_memory_bytes: 503,
    backlog_bytes: 503,
}


@pytest.mark.parametrize(("case", "code"), CASES.items(), ids=[case.__name__ for case in CASES])
def test_at_the_limit_all_is_well_and_one_past_it_is_refused(case, code):
    within, *beyond = case()
    assert errors(within) == []
    assert beyond
    assert [errors(answer) for answer in beyond] == [[code]] * len(beyond)


def test_every_limit_has_a_case():
    # What is remembered of subjects is forgotten past its limit, and nobody refused: test_matching_work.py.
    # So are identities: test_core_options.py, and ids of published messages: test_core_duplicates.py.
    forgotten = {"caches_bytes", "identities_bytes", "published_ids_bytes"}
    # The limits of buckets have their cases in test_core_buckets.py.
    assert {case.__name__ for case in CASES} | forgotten | {"buckets", "buckets_bytes"} == set(Limits._fields)


def test_what_ends_makes_room():
    bench = Bench(Limits(sources=1, sessions=1))
    bench.open("alice")
    assert errors(bench.ask("alice", subscribe(1), Cancel(1), offer(2), Cancel(2), subscribe(1))) == []


def test_a_short_expression_of_very_many_clauses_is_taken_at_a_cost_within_the_limit():
    assert len(CLAUSES) < 479
    bench = Bench()
    bench.open("ann")
    (answer,) = bench.ask("ann", subscribe(1, where=CLAUSES))
    assert isinstance(answer, Ok)
    assert 0 < bench.core.selectors.used_bytes < 1 << 20
    records = [pack_record(headers, b"") for headers in ({f"b{n}": 1 for n in range(16)}, {"b1": 1})]
    bench.tell("ann", Publish("s", 0, ["a"] * 2, records))
    bench.settle()
    assert [item.sequence for item in bench.got("ann")] == [1]
