"""What a publisher is given to filter by: what anybody wants of a stream, or that everything is wanted."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, publish, subscribe

from malamute.core.admin import streams
from malamute.protocol.messages import Answer, Cancel, Query

LIVE: dict[str, Any] = {"stream": "live"}


@pytest.fixture
def bench() -> Bench:
    bench = Bench(no_journal=("live",), unjournaled=True)
    bench.open("alice", "bob")
    bench.settle()
    return bench


def demand(bench: Bench, stream: str = "live") -> Any:
    bench.tell("alice", Query(1, "demand", {"stream": stream}))
    (answer,) = [message for message in bench.sent("alice") if isinstance(message, Answer)]
    return answer.value


def test_it_is_what_the_subscriptions_ask_of_the_subject(bench):
    nothing = {"stream": "live", "everything": False, "criteria": []}
    assert demand(bench) == nothing
    one, two = [["topic", "a.*"], ["prefix", "b"]], [["topic", "a.*"]]
    bench.tell("bob", subscribe(1, criteria=one, **LIVE), subscribe(2, criteria=two, where="x = 1", **LIVE))
    assert sorted(demand(bench)["criteria"]) == [["prefix", "b"], ["topic", "a.*"]]
    bench.tell("bob", Cancel(1))
    assert demand(bench)["criteria"] == [["topic", "a.*"]]
    bench.tell("bob", Cancel(2))
    assert demand(bench) == nothing


def test_of_a_stream_with_a_journal_it_is_everything_whether_or_not_it_is_there(bench):
    assert demand(bench, "s")["everything"]
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert demand(bench, "s") == {"stream": "s", "everything": True, "criteria": []}


def test_of_a_stream_that_is_not_there_nothing_is_made(bench):
    assert not demand(bench, "live")["everything"]
    assert "live" not in bench.core.streams.by_name


@pytest.mark.parametrize("each", [1, 3])
def test_with_as_many_selectors_as_an_answer_has_it_is_exact_and_with_one_more_everything(
    bench, monkeypatch, each
):
    monkeypatch.setattr(streams, "DEMAND_SELECTORS", 6)

    def criteria(number: int) -> list[Any]:
        return [["exact", f"{number}.{part}"] for part in range(each)]

    for number in range(6 // each):
        bench.tell("bob", subscribe(number + 1, criteria=criteria(number), **LIVE))
    assert len(demand(bench)["criteria"]) == 6
    bench.tell("bob", subscribe(9, criteria=[["exact", "one more"]], **LIVE))
    assert demand(bench) == {"stream": "live", "everything": True, "criteria": []}
