"""Links between three brokers that are set in any order, as circles too: no message goes round for ever.

All three are whole cores, which are killed as well. The runners are steps that read the one store and send to
the other core. They look at the ways of the source when they please, and carry what they find.
"""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, chunks
from depth import DEPTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_core_links import LINK, ask, at, change, forward

from malamute.core.broker import Core
from malamute.core.link import table

BROKERS = 3
ROUNDS = 4 * BROKERS
"""Looks after which each runner knows all ways: a way grows by a hop with each, and a stop ends others."""


class Place(Bench):
    """A broker with an id of its own."""

    def __init__(self, number: int) -> None:
        self._number = number
        super().__init__()

    def make_core(self) -> Core:
        recovered = self.store.recover(records_bytes=1 << 20, now=self.now)
        return Core(self.now, self.settings, recovered._replace(broker_id=bytes([self._number] * 16)))


class Circle:
    """Three brokers, each of which may have a link from the one before it."""

    def __init__(self) -> None:
        self.benches = [Place(number) for number in range(BROKERS)]
        self.sessions = self.made = 0

    def _open(self, place: int) -> str:
        self.sessions += 1
        peer = f"peer-{self.sessions}"
        self.benches[place].open(peer)
        return peer

    def _row(self, place: int) -> dict[str, Any] | None:
        found = ask(self.benches[place], "link", self._open(place), link="edge")
        return found if isinstance(found, dict) else None

    def _ids(self, place: int) -> str:
        return self.benches[place].core.streams.broker

    def set(self, place: int) -> None:
        """Set the link into the stream of a broker."""
        for bench in self.benches:
            bench.wait(0.001)
        change(self.benches[place], "link.set", self._open(place), **LINK, start="first")

    def remove(self, place: int) -> None:
        change(self.benches[place], "link.remove", self._open(place), stream="s")

    def look(self, place: int) -> str:
        """Ask the source for its ways, and report them. Returns the state of the link then."""
        row = self._row(place)
        if row is None:
            return ""
        source = (place - 1) % BROKERS
        origin = ask(self.benches[source], "link.origin", self._open(source), stream="s")
        # The session of the runner stays, since the report counts with it.
        given = {name: origin[name] for name in ("broker", "ways")}
        which = {"link": "edge", "stream": "s", "generation": row["generation"]}
        return str(ask(self.benches[place], "link.report", self._open(place), **which, **given)["state"])

    def carry(self, place: int) -> int:
        """Carry all messages from the position of a link on. Returns their number."""
        row, source = self._row(place), (place - 1) % BROKERS
        if row is None or row["state"] in ("paused", "stopped"):
            return 0
        known = int(row["position"].partition("@")[0] or 0)
        found = [(number, body) for number, body in chunks(self.benches[source].store) if number > known]
        if found:
            upto = at(found[-1][0], self._ids(source))
            message = forward(row["generation"], 1, row["position"], upto, *(body for _, body in found))
            self.benches[place].tell(self._open(place), message)
            self.benches[place].settle()
        return len(found)

    def publish(self, place: int) -> None:
        """Put a message into a stream by a link's own command, as from a broker outside of the circle."""
        self.made += 1
        bench, peer = self.benches[place], self._open(place)
        bench.wait(0.001)
        name = f"outside-{self.made}"
        made = change(bench, "link.set", peer, **{**LINK, "link": name})
        number = forward(made["generation"], 1, "", at(1, "ef" * 16), b"%d" % self.made)
        bench.tell(peer, number._replace(link=name))
        bench.settle()
        change(bench, "link.remove", peer, stream="s", link=name)

    def kill(self, place: int) -> None:
        self.benches[place].settle()
        self.benches[place].crash()

    def end(self) -> None:
        """All runners look for a while; then each message has come to its end, or goes round for ever."""
        for _ in range(ROUNDS):
            states = [self.look(place) for place in range(BROKERS)]
        assert "running" not in states or states.count("running") < BROKERS, "a circle runs"
        for _ in range(BROKERS):
            for place in range(BROKERS):
                self.carry(place)
        assert not any(self.carry(place) for place in range(BROKERS)), "messages go round"


ACTIONS = ["set", "set", "look", "look", "carry", "carry", "publish", "remove", "kill"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, BROKERS - 1)), max_size=25)
AT_ONCE = [("publish", 0), *(("set", place) for place in range(BROKERS))]


def run(steps: list[tuple[str, int]]) -> None:
    circle = Circle()
    for action, place in steps:
        getattr(circle, action)(place)
    circle.end()


@given(STEPS)
@settings(max_examples=8 * DEPTH, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_in_whatever_order_links_are_set_nothing_goes_round_for_ever(steps: list[tuple[str, int]]) -> None:
    run([*steps, *AT_ONCE])


def test_a_circle_that_nobody_sees_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run(AT_ONCE)
    monkeypatch.setattr(table, "circle", lambda ways, broker, stream: None)
    with pytest.raises(AssertionError):
        run(AT_ONCE)
