"""What waits in a line: the smallest order first, whatever order they came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malamute.core.queue.waiters import STALE_MIN, ReadyQueue


@given(st.lists(st.integers(0, 20) | st.none()))
def test_the_smallest_order_goes_first(steps):
    backlog, naive = ReadyQueue(), []
    for step in steps:
        if step is None:
            expected = min(naive, default=None)
            if naive:
                naive.remove(expected)
            assert backlog.pop() == expected
        else:
            naive.append(step)
            backlog.add(step)
        assert backlog.first == min(naive, default=float("inf"))
    rest = [backlog.pop() for _ in naive]
    assert (rest, backlog.pop(), len(backlog)) == (sorted(naive), None, 0)


def test_all_is_taken_out():
    backlog = ReadyQueue()
    for order in (3, 1, 2):
        backlog.add(order)
    assert sorted(backlog.pop_all()) == [1, 2, 3]
    assert (len(backlog), backlog.pop()) == (0, None)


def test_wp4_what_others_have_taken_does_not_gather():
    backlog = ReadyQueue()
    for order in range(10 * STALE_MIN):
        last = -order if order % 2 else order
        backlog.add(last)
        backlog.compact(1, lambda order, last=last: order == last)
        assert len(backlog) <= STALE_MIN + 2
    assert backlog.pop() is not None
