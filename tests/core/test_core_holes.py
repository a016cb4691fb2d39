"""The sequences that no message has, against a plain count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malamute.core.stream.holes import HOLES_MAX, Holes

RANGES = st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(RANGES, max_size=12), st.integers(0, 80), st.integers(0, 80), st.integers(1, 80))
def test_messages_are_counted_as_one_by_one(ranges, after, last, kept):
    holes, left_out = Holes(), set()
    for first, end in ranges:
        holes.add(first, end)
        left_out |= {*range(first, end + 1)}
    assert holes.messages(after, last) == len({*range(after + 1, last + 1)} - left_out)
    holes.forget_before(kept)
    assert holes.messages(kept - 1, last) == len({*range(kept, last + 1)} - left_out)
    again = Holes()
    again.restore([[*hole] for hole in holes.ranges])
    assert again.ranges == holes.ranges


def test_so_many_are_remembered_and_then_the_oldest_become_one():
    holes = Holes()
    for number in range(HOLES_MAX + 5):
        holes.add(10 * number + 1, 10 * number + 2)
    assert len(holes.ranges) == HOLES_MAX
    assert holes.ranges[0] == (1, 52)
    assert holes.messages(100, 120) == 20 - 2 - 2
