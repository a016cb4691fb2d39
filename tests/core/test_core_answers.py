"""Answers under way: how many bytes of them one session may have, and who has to ask again."""

from __future__ import annotations

from core_bench import Bench, publish

from malamute.errors import TryLater
from malamute.protocol.batch import pack
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Answer, Error, Query

STATUS = Query(1, "status", {})


def answer_bytes(bench: Bench) -> int:
    (answer,) = bench.ask("ann", STATUS)
    return len(pack(answer.value))


def kinds(messages) -> list[type]:
    return [type(message) for message in messages]


def bench_for(answers: int) -> Bench:
    """A broker that allows the bytes of so many answers."""
    size = Bench()
    size.open("ann")
    bench = Bench(Limits(answers_bytes=answers * answer_bytes(size)))
    bench.open("ann", "bob")
    return bench


def test_answers_past_the_bytes_of_an_iteration_are_refused():
    bench = bench_for(3)
    answers = bench.ask("ann", *[STATUS._replace(ref=ref) for ref in range(1, 6)])
    assert kinds(answers) == [Answer, Answer, Answer, Error, Error]
    assert [(error.code, error.ref) for error in answers[3:]] == [(TryLater.code, 4), (TryLater.code, 5)]
    # It has another share in the next one, and others have theirs.
    assert kinds(bench.ask("ann", STATUS)) == [Answer]
    assert kinds(bench.ask("bob", STATUS)) == [Answer]


def test_who_does_not_read_is_answered_nothing():
    bench = bench_for(3)
    bench.block("ann")
    (error,) = bench.ask("ann", STATUS)
    assert error.code == TryLater.code
    bench.unblock("ann")
    assert kinds(bench.ask("ann", STATUS)) == [Answer]


def test_answers_that_come_from_the_store_count_until_they_are_there():
    bench = Bench(Limits(answers_bytes=2 * 64 * 1024))
    bench.open("ann")
    bench.tell("ann", publish(b"x"))
    bench.settle()
    storage = Query(1, "storage", {})
    (error,) = bench.ask("ann", *[storage._replace(ref=ref) for ref in range(1, 4)])
    assert (error.code, error.ref) == (TryLater.code, 3)
    bench.settle()
    assert kinds(bench.sent("ann")) == [Answer, Answer]
    assert bench.ask("ann", storage) == []
    bench.settle()
    assert kinds(bench.sent("ann")) == [Answer]


def test_a_question_that_is_refused_counts_nothing():
    bench = Bench(Limits(answers_bytes=64 * 1024))
    bench.open("ann")
    wrong = Query(1, "messages", {"kind": "mailbox", "name": "nobody"})
    for _ in range(5):
        (error,) = bench.ask("ann", wrong)
        assert error.code == 404
