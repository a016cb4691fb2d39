"""Timers: one heap."""

from __future__ import annotations

from math import inf

from malamute.core.iteration.timers import CANCELLED_MIN, TIMERS_PER_TICK, Timers


def raising(error):
    raise error


def test_an_action_that_raises_keeps_no_other_from_being_done():
    faults, ran = [], []
    timers = Timers(faults.append)
    for number in range(3):
        timers.at(1.0, lambda number=number: ran.append(1 / (number - 1)))
    timers.run(1.0)
    assert ran == [-1, 1]
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def test_timers_run_in_the_order_of_their_times_and_not_before():
    timers, ran = Timers(raising), []
    for due in (3.0, 1.0, 2.0):
        timers.at(due, lambda due=due: ran.append(due))
    assert timers.next_deadline() == 1.0
    timers.run(0.9)
    assert ran == []
    timers.run(2.0)
    assert ran == [1.0, 2.0]
    assert timers.next_deadline() == 3.0


def test_timers_of_one_time_run_as_they_were_set():
    timers, ran = Timers(raising), []
    for number in range(5):
        timers.at(1.0, lambda number=number: ran.append(number))
    timers.run(1.0)
    assert ran == [0, 1, 2, 3, 4]


def test_a_cancelled_timer_does_not_run_and_is_no_deadline():
    timers, ran = Timers(raising), []
    first = timers.at(1.0, lambda: ran.append(1))
    timers.at(2.0, lambda: ran.append(2))
    timers.cancel(first)
    timers.cancel(first)
    timers.cancel(None)
    assert timers.next_deadline() == 2.0
    timers.run(5.0)
    assert ran == [2]
    assert timers.next_deadline() == inf
    timers.cancel(first)
    assert len(timers) == 0


def test_a_timer_that_has_run_can_be_cancelled_to_no_effect():
    timers = Timers(raising)
    timer = timers.at(1.0, lambda: None)
    timers.run(1.0)
    timers.cancel(timer)
    timers.at(2.0, lambda: None)
    assert len(timers) == 1


def test_wp4_cancelled_timers_do_not_gather():
    timers = Timers(raising)
    timers.at(9e9, lambda: None)
    for number in range(50 * CANCELLED_MIN):
        timers.cancel(timers.at(1e9 + number, lambda: None))
        assert len(timers) == 1
    assert len(timers._heap) <= 2 * CANCELLED_MIN + 2


def test_a_tick_runs_a_bounded_number():
    timers, ran = Timers(raising), []
    for _ in range(TIMERS_PER_TICK + 1):
        timers.at(1.0, lambda: ran.append(1))
    timers.run(1.0)
    assert len(ran) == TIMERS_PER_TICK
    assert timers.next_deadline() == 1.0
    timers.run(1.0)
    assert len(ran) == TIMERS_PER_TICK + 1


def test_a_timer_may_set_another_one_that_is_due():
    timers, ran = Timers(raising), []
    timers.at(1.0, lambda: timers.at(1.0, lambda: ran.append(1)))
    timers.run(1.0)
    assert ran == [1]
