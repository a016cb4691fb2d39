"""One suite for both edges of the client, on both brokers: in the process, and in one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import uvloop
from depth import some
from scenario_world import Daemon, World

from malamute.client.sync.driver import run
from malamute.testing import Broker

PLACES = ("in process", "in process, restarted", "daemon, restarted")
# To a client a broker is the same wherever it is: each edge needs to be seen with one of them.
CASES = some(
    product(("sync", "asyncio", "uvloop"), PLACES),
    ("sync", "in process, restarted"),
    ("asyncio", "daemon, restarted"),
    ("uvloop", "in process"),
)


@pytest.fixture(params=CASES, ids=", ".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The edge of the client; and where the broker is, and whether it is restarted in the middle."""
    case: tuple[str, str] = request.param
    return case


@pytest.fixture
def edge(case: tuple[str, str]) -> str:
    return case[0]


@pytest.fixture
def place(case: tuple[str, str]) -> str:
    return case[1]


@pytest.fixture
def broker(place: str, tmp_path: Path) -> Iterator[Broker | Daemon]:
    with ExitStack() as stack:
        if "daemon" in place:
            daemon = Daemon(tmp_path)
            stack.callback(daemon.close)
            yield daemon.start()
        else:
            yield stack.enter_context(Broker(tmp_path))


@pytest.fixture
def world(broker: Broker | Daemon, edge: str, place: str) -> World:
    return World(broker, edge, restarts="restarted" in place)


@pytest.fixture
def play(world: World) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    """Plays a scenario in the world."""

    async def whole(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        try:
            await scenario(world)
        finally:
            await world.close()

    def start(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        if world.edge == "sync":
            run(whole(scenario))
        else:
            factory = uvloop.new_event_loop if world.edge == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(whole(scenario))

    return start
