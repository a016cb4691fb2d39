"""A publisher that asks what is wanted sends nothing that nobody wants, and all that anybody does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malamute
import malamute.aio
from malamute.client.link.demand import DemandBase
from malamute.client.sync.driver import run
from malamute.config import Config, StreamRule, StreamsConfig
from malamute.errors import AccessRefused, Failed, InvalidValue, TimedOut, TryLater
from malamute.matching import Index, Selector
from malamute.protocol.admin import StreamDemand
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        config=replace(Config(), streams=StreamsConfig(rule=(StreamRule("live*", journal=False),)))
    ) as b:
        yield b


def test_what_nobody_wants_is_withheld_and_counted(broker: Broker) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        demand = client.demand("live", refresh=0)
        assert not demand.wants("temp.oslo")
        subscription = client.subscribe("live", "temp.*", where="x = 1")
        other = client.subscribe("live", criteria=[("exact", "wind"), ("prefix", "ra")])
        found = [s for s in ("temp.oslo", "tempo", "wind", "wind.x", "rain", "r") if demand.wants(s)]
        assert found == ["temp.oslo", "wind", "rain"]
        assert (demand.stream, demand.asked, demand.withheld) == ("live", 7, 4)
        other.cancel()
        client.subscribe("live", criteria=[("regex", "^x")])
        assert demand.wants("anything")
        subscription.cancel()


def test_everything_is_wanted_of_a_stream_with_a_journal(broker: Broker) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        assert client.demand("kept").wants("temp.oslo")


def test_until_it_is_old_the_broker_is_not_asked_again(broker: Broker) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        demand = client.demand("live", refresh=3600)
        assert not demand.wants("temp.oslo")
        client.subscribe("live")
        assert not demand.wants("temp.oslo")


def test_a_program_on_an_event_loop_asks_in_the_same_way(broker: Broker) -> None:
    async def program() -> None:
        async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
            demand = client.demand("live", refresh=0)
            assert not await demand.wants("temp.oslo")
            await client.subscribe("live", "temp.#")
            assert [await demand.wants(s) for s in ("temp", "temp.oslo.x", "wind")] == [True, True, False]
            assert (demand.asked, demand.withheld) == (4, 2)

    asyncio.run(program())


def test_a_subscriber_gets_all_that_it_would_get_without_the_filter(broker: Broker) -> None:
    subjects = [f"{kind}.{number % 7}" for kind in ("temp", "wind") for number in range(50)]
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        filtered, whole = (client.subscribe(name, "temp.3", "wind.*") for name in ("live", "live.whole"))
        demand = client.demand("live")
        for subject in subjects:
            client.publish_nowait("live.whole", subject, b"")
            if demand.wants(subject):
                client.publish_nowait("live", subject, b"")
        expected = [s for s in subjects if s == "temp.3" or s.startswith("wind.")]
        for subscription in (filtered, whole):
            assert [subscription.receive(timeout=PATIENCE).subject for _ in expected] == expected
        assert client.query("stream", name="live")["published"] == len(expected) == 100 - demand.withheld


@pytest.mark.parametrize("refresh", [-1.0, float("nan")])
def test_knowledge_is_not_older_than_now(broker: Broker, refresh: float) -> None:
    with (
        malamute.connect(broker.url, timeout=PATIENCE) as client,
        pytest.raises(InvalidValue, match="refresh"),
    ):
        client.demand("live", refresh=refresh)


class _Asking(DemandBase):
    """One of which the broker answers with what is in `answers`, the last one first."""

    def __init__(self, *answers: StreamDemand | Exception) -> None:
        super().__init__("live", self._answer, refresh=0)
        self.answers = [*answers]

    async def _answer(self) -> StreamDemand:
        answer = self.answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wants(self, subject: str) -> bool:
        run(self._refresh())
        return self._is_wanted(subject)


@pytest.mark.parametrize("error", [TimedOut(), TryLater(), Failed()])
def test_while_there_is_no_answer_everything_is_wanted(error: Exception) -> None:
    nothing = StreamDemand(stream="live", everything=False, criteria=[])
    demand = _Asking(nothing, error, nothing)
    assert [demand.wants("a") for _ in range(3)] == [False, True, False]


def test_a_question_that_was_broken_off_is_asked_again() -> None:
    asked: list[str] = []

    async def ask() -> StreamDemand:
        asked.append("live")
        if len(asked) == 2:
            raise asyncio.CancelledError
        return StreamDemand(stream="live", everything=False, criteria=[])

    demand = DemandBase("live", ask, refresh=PATIENCE)
    run(demand._refresh())
    demand._until = 0.0
    with pytest.raises(asyncio.CancelledError):
        run(demand._refresh())
    assert demand._is_old


def test_who_may_not_publish_learns_it() -> None:
    with pytest.raises(AccessRefused):
        _Asking(AccessRefused("no")).wants("a")


WORDS = st.sampled_from(["a", "b", "cc"])
PARTS = st.one_of(WORDS, st.sampled_from(["*", "#"]))
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
TOPICS = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
CRITERIA = st.one_of(
    st.tuples(st.sampled_from(["topic", "topic-amqp"]), TOPICS),
    st.tuples(st.sampled_from(["exact", "prefix"]), TEXTS),
    st.just(("all", "")),
)


@given(st.lists(st.lists(CRITERIA, min_size=1, max_size=3), max_size=4), st.lists(TEXTS, max_size=8))
def test_it_wants_just_what_the_index_would_deliver_to_anybody(
    selectors: list[list[tuple[str, str]]], subjects: list[str]
) -> None:
    index = Index()
    for key, criteria in enumerate(selectors):
        index.add(key, Selector.parse(criteria))
    normal = {criterion for group in index.groups() for criterion in group.selector.criteria}
    demand = _Asking(StreamDemand(stream="live", everything=False, criteria=[[*c] for c in normal]))
    run(demand._refresh())
    everything = ("all", "") in normal
    for subject in subjects:
        assert demand._is_wanted(subject) == (everything or bool(index.match(subject)))
