"""The clock counts, and believes a step of the wall clock when it has stood for a while."""

from __future__ import annotations

import time

import pytest

from malamute.core.iteration.effects import ClockStep
from malamute.server import clock as module
from malamute.server.clock import HOLD_SECONDS, STEP_MAX, Clock

START = 1_000_000.0


class Hands:
    """Both clocks of the machine, moved by hand."""

    def __init__(self) -> None:
        self.wall = START
        self.steady = 50.0

    def time(self) -> float:
        return self.wall

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def hands(monkeypatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(module, "time", hands)
    monkeypatch.setattr(module, "counted", lambda: hands.steady)
    return hands


def test_it_shows_the_time_of_the_world(hands):
    clock = Clock()
    hands.pass_by(5)
    assert clock() == START + 5
    assert clock.look(clock()) is None


def test_a_turn_of_the_loop_that_takes_long_is_no_step(hands):
    clock = Clock()
    now = clock()
    hands.pass_by(STEP_MAX + 1)
    assert clock.look(now) is None


@pytest.mark.parametrize("seconds", [3_600.0, -3_600.0])
def test_no_step_changes_what_is_counted(hands, seconds):
    clock = Clock()
    hands.wall += seconds
    assert clock() == START
    assert clock.look(clock()) == ClockStep("stepped", seconds, 0.0)
    hands.pass_by(HOLD_SECONDS + 1)
    clock.look(clock())
    assert clock() == START + HOLD_SECONDS + 1


@pytest.mark.parametrize("seconds", [STEP_MAX, -STEP_MAX])
def test_what_differs_by_less_than_a_step_is_none(hands, seconds):
    clock = Clock()
    hands.wall += seconds
    assert clock.look(clock()) is None
    hands.wall += seconds / 1000
    assert clock.look(clock()) is not None


@pytest.mark.parametrize("seconds", [3_600.0, -3_600.0])
def test_a_step_is_reported_once_and_believed_when_it_has_stood(hands, seconds):
    clock = Clock()
    hands.wall += seconds
    reported = clock.look(clock())
    hands.pass_by(HOLD_SECONDS - 1)
    assert (reported.what, clock.look(clock())) == ("stepped", None)
    hands.pass_by(1)
    assert clock.look(clock()) == ClockStep("followed", seconds, seconds)
    assert clock.look(clock()) is None
    hands.wall -= seconds
    assert clock.look(clock()) == ClockStep("stepped", -seconds, seconds)


def test_a_wrong_step_that_is_corrected_in_time_changes_nothing(hands):
    clock = Clock()
    hands.wall += 3_600
    clock.look(clock())
    hands.pass_by(HOLD_SECONDS / 2)
    hands.wall -= 3_600
    assert clock.look(clock()) == ClockStep("returned", -3_600, 0.0)
    hands.pass_by(HOLD_SECONDS)
    assert clock.look(clock()) is None


def test_another_step_has_to_stand_for_as_long(hands):
    clock = Clock()
    hands.wall += 3_600
    clock.look(clock())
    hands.pass_by(HOLD_SECONDS / 2)
    hands.wall += 60
    assert clock.look(clock()) == ClockStep("stepped", 3_660, 0.0)
    hands.pass_by(HOLD_SECONDS - 1)
    assert clock.look(clock()) is None
    hands.pass_by(1)
    assert clock.look(clock()) == ClockStep("followed", 3_660, 3_660)


def test_it_counts_as_the_machine_does():
    first, before = module.counted(), time.monotonic()
    while not (passed := time.monotonic() - before):
        pass
    assert module.counted() - first >= passed
