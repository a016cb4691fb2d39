"""The clock never goes back, and follows a wall clock that went forward."""

from __future__ import annotations

import pytest

from malamute.server import clock as module
from malamute.server.clock import STEP_MAX, Clock


class Hands:
    """Both clocks of the machine, moved by hand."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.steady = 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def hands(monkeypatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(module, "time", hands)
    return hands


def test_it_tells_the_time_of_the_world(hands):
    clock = Clock()
    hands.pass_by(5)
    assert clock() == 1_000_005


def test_it_does_not_follow_a_step_back(hands):
    clock = Clock()
    hands.pass_by(5)
    hands.wall -= 3_600
    assert clock() == 1_000_005
    hands.pass_by(1)
    assert clock() == 1_000_006


def test_it_follows_a_step_forward(hands):
    clock = Clock()
    hands.wall += 3_600
    assert clock() == 1_003_600


def test_it_is_steady_against_small_steps(hands):
    clock = Clock()
    hands.wall += STEP_MAX / 2
    assert clock() == 1_000_000
