"""A family of patterns from outside that fails: its selectors stop matching, and the broker goes on."""

from __future__ import annotations

import pytest
from core_bench import Bench, offer, publish, request, subscribe

from malamute.matching import FAMILIES, TermFamily
from malamute.protocol.messages import Query


class Fragile(TermFamily):
    """Matches a subject that is equal, and breaks over one of them."""

    name = "fragile"
    exact = True

    @classmethod
    def normalise(cls, pattern):
        return pattern

    @classmethod
    def matches(cls, pattern, subject, headers, sender):
        return subject == pattern

    def request_terms(self, pattern):
        return [pattern]

    def message_terms(self, subject, headers, sender):
        if subject.startswith("boom"):
            raise RuntimeError("it broke")
        return [subject]


@pytest.fixture
def bench(monkeypatch) -> Bench:
    monkeypatch.setitem(FAMILIES, "fragile", Fragile)
    bench = Bench()
    bench.open("alice", "bob", "carol")
    bench.tell("bob", subscribe(criteria=[["fragile", "fine"], ["fragile", "boom"]]))
    bench.tell("carol", subscribe())
    return bench


def test_it_costs_nobody_else_anything_and_is_reported_once(bench):
    for subject in ("fine", "boom.1", "boom.2", "fine"):
        bench.tell("alice", publish(b"x", subject=subject))
        bench.settle()
    assert len(bench.bodies("carol")) == 4
    assert len(bench.bodies("bob")) == 2
    assert [notice.details["family"] for notice in bench.notices] == ["fragile"]
    (answer,) = bench.ask("alice", Query(1, "stream", {"name": "s"}))
    assert answer.value["failures"] == [{"family": "fragile", "count": 2}]
    (answer,) = bench.ask("alice", Query(1, "totals", {}))
    assert answer.value["family_failures"] == {"fragile": 2}


def test_a_queue_is_served_and_its_failures_count_with_those_of_streams(bench):
    bench.tell("bob", offer(2, criteria=[["fragile", "fine"]]))
    bench.tell("carol", offer(2))
    bench.tell("alice", request(b"1", subject="fine"), request(b"2", subject="boom"))
    bench.settle()
    bench.tell("alice", publish(b"x", subject="boom"))
    bench.settle()
    assert sorted(bench.bodies("bob") + bench.bodies("carol")) == [b"1", b"2", b"x"]
    assert [sorted(notice.details) for notice in bench.notices] == [
        ["error", "family", where] for where in ("queue", "stream")
    ]
    (answer,) = bench.ask("alice", Query(1, "totals", {}))
    assert answer.value["family_failures"] == {"fragile": 2}
