"""A link and runners that fail anywhere: each message of the source is once at the target.

The target is a whole core, with a disk that refuses commits and a broker that is killed. The runners have
answers that are lost, commands that come late and twice, and another runner beside them. The source
is a list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_bench import Bench, chunks
from depth import DEPTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_core_links import LINK, ask, at, change, forward

from malamute.core.link.table import Links
from malamute.protocol.messages import Forward
from malamute.store.operations import PutValue
from malamute.store.tables import LINK_POSITIONS

RUNNERS = ("one", "two")


class Runner:
    """A client that reads the source from the position of the link, as far as it knows it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.begin()

    def begin(self) -> None:
        """Begin anew, as another process: in a session of its own, at the position that the target names."""
        world = self.world
        world.sessions += 1
        self.peer = f"{self.name}-{world.sessions}"
        world.bench.open(self.peer)
        row = ask(world.bench, "link", self.peer, link="edge")
        self.generation, self.position = row["generation"], row["position"]
        self.number = 0
        self.sent: list[Forward] = []

    def step(self, count: int) -> None:
        """Send the next messages, before the earlier ones are confirmed."""
        source = self.world.source
        known, _, store = self.position.partition("@")
        first = int(known or 0) if store == source.store or not store else source.floor
        bodies = source.messages[first : first + count]
        if not bodies:
            return
        self.number += 1
        upto = at(first + len(bodies), source.store)
        self.sent.append(forward(self.generation, self.number, self.position, upto, *bodies))
        self.position = upto
        self.world.bench.tell(self.peer, self.sent[-1])

    def repeat(self, place: int) -> None:
        """Send an earlier command again, as after a lost connection, or as a copy that was under way."""
        if self.sent:
            self.world.bench.tell(self.peer, self.sent[place % len(self.sent)])


class Source:
    """A stream of another broker."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.store, self.floor = "ab" * 16, 0
        self.made = 0

    def publish(self, count: int) -> None:
        self.messages += [b"%d" % (self.made + place) for place in range(count)]
        self.made += count


class World:
    """A source, a target with a link, and two runners."""

    def __init__(self) -> None:
        self.bench, self.source, self.sessions = Bench(), Source(), 0
        self.set_again(0)
        self.runners = [Runner(self, name) for name in RUNNERS]

    def step(self, action: str, a: int, b: int) -> None:
        getattr(self, action)(a, b)

    def publish(self, a: int, b: int) -> None:
        self.source.publish(1 + a % 5)

    def carry(self, a: int, b: int) -> None:
        self.runners[a % 2].step(1 + b % 3)

    def repeat(self, a: int, b: int) -> None:
        self.runners[a % 2].repeat(b)

    def begin(self, a: int, b: int) -> None:
        self.runners[a % 2].begin()

    def commit(self, a: int, b: int) -> None:
        if self.bench.appends:
            self.bench.commit()

    def refuse(self, a: int, b: int) -> None:
        if self.bench.appends:
            self.bench.fail()

    def kill(self, a: int, b: int) -> None:
        self.bench.crash()
        for runner in self.runners:
            runner.begin()

    def stop(self, a: int, b: int) -> None:
        self.bench.restart()
        for runner in self.runners:
            runner.begin()

    def set_again(self, a: int, b: int = 0) -> None:
        self.bench.wait(0.001)
        self.bench.open("operator")
        assert isinstance(change(self.bench, "link.set", "operator", **LINK), dict)

    def pause(self, a: int, b: int) -> None:
        self.bench.open("operator")
        for topic in ("link.pause", "link.resume"):
            assert isinstance(change(self.bench, topic, "operator", stream="s"), dict)
            self.carry(a, b)

    def check(self) -> None:
        """The target has the first messages of the source, in order and each once."""
        bodies = [body for _, body in chunks(self.bench.store)]
        assert bodies == self.source.messages[: len(bodies)]

    def end(self) -> None:
        """All goes well from now on, and everything arrives."""
        self.bench.settle()
        self.check()
        runner = self.runners[0]
        runner.begin()
        for _ in self.source.messages:
            runner.step(3)
            self.bench.settle()
        assert [body for _, body in chunks(self.bench.store)] == self.source.messages


ACTIONS = ["publish", "carry", "carry", "carry", "repeat", "begin", "commit", "commit", "refuse"]
RARE = ["kill", "stop", "set_again", "pause"]
STEPS = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *ACTIONS, *RARE]), st.integers(0, 9), st.integers(0, 9)), max_size=40
)


def run(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for step in steps:
        world.step(*step)
    world.end()


@given(STEPS)
@settings(max_examples=25 * DEPTH, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_fails_each_message_of_the_source_is_once_at_the_target_and_in_order(
    steps: list[tuple[str, int, int]],
) -> None:
    run(steps)


def _without_position(links: Links, put: Callable[..., None]) -> None:
    """The position is not stored with the messages: it is in memory alone."""

    def forgetful(name: str, position: Any) -> None:
        links.positions[name] = position

    forward_as_ever = links.forward

    def forward(message: Forward) -> int:
        links._put_position = forgetful  # type: ignore[method-assign]
        try:
            return forward_as_ever(message)
        finally:
            links._put_position = put  # type: ignore[method-assign]

    links.forward = forward  # type: ignore[method-assign]


def _without_comparison(links: Links, put: Callable[..., None]) -> None:
    """The position of a command is not compared."""
    links._check_move = lambda name, after, upto: None  # type: ignore[method-assign]


def _without_reliance(links: Links, put: Callable[..., None]) -> None:
    """A command is stored even if the disk has refused the one before it."""

    def put_alone(name: str, position: Any) -> None:
        links.positions.put(name, position)
        links.effects.stage.store(PutValue(LINK_POSITIONS, (name,), list(position)))

    links._put_position = put_alone  # type: ignore[method-assign]


PUBLISHED = ("publish", 4, 0)
SENT = ("carry", 0, 0)


@pytest.mark.parametrize(
    ("spoil", "steps"),
    [
        (_without_position, [PUBLISHED, SENT, ("commit", 0, 0), ("kill", 0, 0), SENT]),
        (_without_comparison, [PUBLISHED, SENT, ("carry", 1, 0)]),
        (_without_reliance, [PUBLISHED, SENT, SENT, ("refuse", 0, 0), ("commit", 0, 0)]),
    ],
)
def test_a_fault_of_each_kind_is_noticed(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None], steps: list[tuple[str, int, int]]
) -> None:
    made = Links.__init__

    def spoiled(links: Links, *arguments: Any) -> None:
        made(links, *arguments)
        spoil(links, links._put_position)

    run(steps)
    monkeypatch.setattr(Links, "__init__", spoiled)
    with pytest.raises(AssertionError):
        run(steps)
