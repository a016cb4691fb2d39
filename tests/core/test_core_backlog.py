"""What waits in a line: the smallest order first, whatever order they came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malamute.core.delivery.line import STALE_MIN, Backlog


@given(st.lists(st.integers(0, 20) | st.none()))
def test_the_smallest_order_goes_first(steps):
    backlog, naive = Backlog(), []
    for step in steps:
        if step is None:
            expected = min(naive, default=None)
            if naive:
                naive.remove(expected)
            assert backlog.pop() == expected
        else:
            naive.append(step)
            backlog.add(step, set(naive))
        assert len(backlog) == len(naive)
        assert backlog.first == min(naive, default=float("inf"))
    assert sorted(backlog.take()) == sorted(naive)
    assert len(backlog) == 0


def test_it_begins_with_what_is_there():
    backlog = Backlog([3, 1, 2])
    assert [backlog.pop() for _ in range(4)] == [1, 2, 3, None]


def test_wp4_what_others_have_taken_does_not_gather():
    backlog = Backlog()
    for order in range(10 * STALE_MIN):
        backlog.add(-order if order % 2 else order, {order})
        assert len(backlog) <= STALE_MIN + 2
    assert backlog.pop() is not None
