"""Acks on REQUEST, and credit on REPLY and ACK: they count whatever becomes of the command."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, reply, request, send, subscribe

from malamute.protocol.limits import Limits
from malamute.protocol.messages import VERSION, Ack, Drain, Error, Hello, Ok, Request, Stored

ACK, REQUEST, REPLY = 10, 4, 5


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.open("alice", "bob", "worker")
    return bench


def carrying(message: Request, *ranges: tuple[int, int]) -> Request:
    return message._replace(acks=[list(pair) for pair in ranges])


def with_mail(bench: Bench, count: int = 3) -> None:
    """Alice holds so many messages of her mailbox."""
    bench.tell("alice", mail_credit())
    bench.tell("bob", send("alice", *[b"x"] * count))
    bench.settle()
    assert len(bench.got("alice")) == count


def held(bench: Bench, name: str, source: int = 0) -> list[int]:
    session = bench.core.sessions.by_address[name]
    return list(session.sources[source].consumer.outstanding)


def errors_of(messages: list[object]) -> list[tuple[int, int, int]]:
    return [(m.code, m.about, m.ref) for m in messages if isinstance(m, Error)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_request_acknowledges_what_it_carries(bench, number):
    with_mail(bench)
    assert bench.ask("alice", carrying(request(b"do", number=number), (1, 1), (3, 3))) == []
    assert held(bench, "alice") == [2]
    bench.settle()
    assert bench.sent("alice") == ([Stored([[1, 1, 0]])] if number else [])
    bench.crash()
    bench.open("alice")
    bench.tell("alice", mail_credit())
    assert [item.sequence for item in bench.got("alice")] == [2]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (request(b"do", number=1, service="$own"), 401),
        (request(b"x" * 2000, number=1), 413),
        (request(b"do", number=1, prio=7), 416),
        (request(b"do", number=1, immediate=True), 504),
        (request(b"do", number=5), 421),
        (request(b"do", service="$own"), 401),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_acks_of_a_refused_request_count(made, code):
    bench = Bench(Limits(message_bytes=1000))
    bench.open("alice", "bob")
    with_mail(bench)
    assert errors_of(bench.ask("alice", carrying(made, (1, 2)))) == [(code, REQUEST, made.number)]
    assert held(bench, "alice") == [3]


def test_acks_that_name_nothing_have_an_error_of_their_own_and_the_request_is_made(bench):
    with_mail(bench)
    answers = bench.ask("alice", carrying(request(b"do", number=1), (1, 1), (7, 9)))
    assert errors_of(answers) == [(420, ACK, 0)]
    assert held(bench, "alice") == [1, 2, 3]
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 0]])]
    bench.tell("worker", offer(1))
    bench.settle()
    assert bench.bodies("worker") == [b"do"]


def test_acks_without_a_mailbox_have_an_error_of_their_own(bench):
    assert errors_of(bench.ask("alice", carrying(request(b"do"), (1, 1)))) == [(404, ACK, 0)]
    bench.settle()
    bench.tell("worker", offer(1))
    bench.settle()
    assert bench.bodies("worker") == [b"do"]


def test_the_acks_of_a_request_that_is_sent_again_are_passed_over(bench):
    """They are of an older connection: the same sequence may be that of another delivery by now."""
    with_mail(bench)
    made = carrying(request(b"do", number=1), (1, 1))
    bench.tell("alice", made)
    bench.settle()
    bench.lost("alice")
    bench.ask("alice", Hello([VERSION], "alice"))
    bench.tell("alice", mail_credit())
    assert [item.sequence for item in bench.got("alice")] == [2, 3]
    assert bench.ask("alice", made._replace(acks=[[2, 2]])) == [Stored([[1, 1, 0]])]
    assert bench.ask("alice", made._replace(acks=[[9, 9]])) == [Stored([[1, 1, 0]])]
    refused = carrying(request(b"do", number=2, service="$own"), (2, 2))
    bench.tell("alice", refused._replace(acks=[]))
    bench.sent("alice")
    assert errors_of(bench.ask("alice", refused)) == [(401, REQUEST, 2)]
    assert held(bench, "alice") == [2, 3]


def test_a_request_acknowledges_before_it_asks_for_room():
    bench = Bench(Limits(queue_messages=3))
    bench.open("alice", "bob")
    with_mail(bench)
    assert errors_of(bench.ask("alice", request(b"do"))) == [(503, REQUEST, 0)]
    bench.tell("alice", ack(0, (1, 1)))
    bench.settle()
    assert bench.ask("alice", carrying(request(b"do"), (2, 2))) == []


# Credit


def with_requests(bench: Bench, count: int = 3, credit: int = 1) -> None:
    """The worker holds the first of so many requests."""
    bench.tell("bob", *[request(b"%d" % n) for n in range(count)])
    bench.tell("worker", offer(1, credit=credit))
    bench.settle()
    assert bench.bodies("worker") == [b"0"]


def granting(message, messages=1, size_bytes=0):
    return message._replace(credit=messages, credit_bytes=size_bytes)


@pytest.mark.parametrize("number", [0, 1])
def test_a_reply_grants_the_credit_that_it_carries(bench, number):
    with_requests(bench)
    bench.tell("worker", granting(reply(1, 1, number=number)))
    bench.settle()
    assert bench.bodies("worker") == [b"1"]
    bench.tell("worker", reply(1, 2, number=number and 2))
    bench.settle()
    assert bench.bodies("worker") == []
    bench.tell("worker", granting(reply(1, 3, number=number and 3), -1))


def test_the_next_request_comes_behind_what_the_reply_completed(bench):
    """Else a worker with credit for one would hold two."""
    with_requests(bench)
    bench.receive("worker", granting(reply(1, 1)))
    assert held(bench, "worker", 1) == [2]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (reply(1, 9, number=1), 420),
        (reply(1, 1, 1, number=1), 420),
        (reply(1, 1, number=1, body=b"x" * 2000), 413),
        (reply(1, 1, number=5), 421),
        (reply(1, 9), 420),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_credit_of_a_refused_reply_counts(made, code):
    bench = Bench(Limits(message_bytes=1000))
    bench.open("bob", "worker")
    with_requests(bench)
    answers = bench.ask("worker", granting(made))
    assert errors_of(answers) == [(code, REPLY, made.number)]
    assert held(bench, "worker", 1) == [1, 2]


def test_the_credit_of_a_reply_that_is_sent_again_is_passed_over(bench):
    with_requests(bench)
    first = granting(reply(1, 1, number=1))
    bench.tell("worker", first)
    bench.settle()
    assert bench.bodies("worker") == [b"1"]
    assert bench.ask("worker", first) == [Stored([[1, 1, 0]])]
    refused = granting(reply(1, 9, number=2), 0, 0)
    bench.tell("worker", refused)
    bench.sent("worker")
    assert errors_of(bench.ask("worker", granting(refused))) == [(420, REPLY, 2)]
    bench.settle()
    assert bench.bodies("worker") == []
    assert held(bench, "worker", 1) == [2]


@pytest.mark.parametrize(("last", "errors"), [(1, []), (9, [(420, ACK, 1)])])
def test_the_credit_of_an_ack_counts_whatever_it_acknowledges(bench, last, errors):
    with_requests(bench)
    assert errors_of(bench.ask("worker", granting(ack(1, (last, last))))) == errors
    bench.settle()
    assert held(bench, "worker", 1) == ([2] if last == 1 else [1, 2])


def test_an_ack_grants_nothing_to_a_mailbox_that_is_not_open(bench):
    assert errors_of(bench.ask("alice", granting(ack(0, (1, 1))))) == [(404, ACK, 0)]
    bench.tell("bob", send("alice", b"x"))
    bench.settle()
    assert bench.got("alice") == []


def test_credit_goes_to_offers_alone(bench):
    bench.tell("bob", publish(b"1"))
    bench.settle()
    bench.ask("worker", subscribe(1, credit=0, start="first"))
    assert errors_of(bench.ask("worker", granting(reply(1, 1)))) == [(404, REPLY, 0)]
    assert errors_of(bench.ask("worker", granting(reply(2, 1)))) == [(404, REPLY, 0)]
    bench.settle()
    assert bench.bodies("worker") == []


def test_a_reply_without_credit_leaves_a_drained_offer_as_it_is(bench):
    with_requests(bench)
    bench.tell("worker", Drain(1, [[1, 1]]))
    bench.settle()
    assert Ok(21, 1) in bench.sent("worker")
    bench.tell("worker", reply(1, 1))
    bench.settle()
    source = bench.core.sessions.by_address["worker"].sources[1]
    assert source.consumer.drained
    assert bench.bodies("worker") == []


def test_an_ack_before_it_and_what_a_request_carries_do_the_same():
    outcomes = []
    for messages in (
        [Ack(0, [[1, 2]]), request(b"do")],
        [carrying(request(b"do"), (1, 2))],
    ):
        bench = Bench()
        bench.open("alice", "bob", "worker")
        with_mail(bench)
        bench.tell("alice", *messages)
        bench.settle()
        outcomes.append((held(bench, "alice"), bench.sent("alice"), len(bench.appends)))
    assert outcomes[0] == outcomes[1]
