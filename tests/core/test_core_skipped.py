"""The sequences that no message has, against a plain count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malamute.core.stream.skipped import SKIPPED_MAX, SkippedSequences

RANGES = st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(RANGES, max_size=12), st.integers(0, 80), st.integers(0, 80), st.integers(1, 80))
def test_messages_are_counted_as_one_by_one(ranges, after, last, kept):
    skipped, left_out = SkippedSequences(), set()
    for first, end in ranges:
        skipped.add(first, end)
        left_out |= {*range(first, end + 1)}
    assert skipped.messages(after, last) == len({*range(after + 1, last + 1)} - left_out)
    skipped.forget_before(kept)
    assert skipped.messages(kept - 1, last) == len({*range(kept, last + 1)} - left_out)
    again = SkippedSequences()
    again.restore([[*one] for one in skipped.ranges])
    assert again.ranges == skipped.ranges
    again.restore([one[:2] for one in skipped.ranges])
    assert again.ranges == skipped.ranges


def test_so_many_are_remembered_and_then_the_nearest_become_one():
    skipped = SkippedSequences()
    for number in range(SKIPPED_MAX + 5):
        skipped.add(10 * number + 1, 10 * number + 2 + (number == 7))
    assert len(skipped.ranges) == SKIPPED_MAX
    assert (71, 82, 5) in skipped.ranges
    last = 10 * SKIPPED_MAX + 50
    assert skipped.messages(0, last) == last - 2 * SKIPPED_MAX - 11


@given(st.lists(st.sets(st.integers(1, 900), max_size=400), min_size=1, max_size=4), st.integers(0, 900))
def test_deleted_messages_are_counted_however_many_ranges_there_are(deletions, after):
    skipped, deleted = SkippedSequences(), set()
    for sequences in deletions:
        skipped.delete([(one, one) for one in sorted(sequences - deleted)])
        deleted |= sequences
    assert len(skipped.ranges) <= SKIPPED_MAX
    assert skipped.messages(0, 900) == 900 - len(deleted)
    # Within a range of several the number is an estimate, between none and all.
    assert 0 <= skipped.messages(after, 900) <= 900 - after
    if not any(first <= after < last for first, last, _ in skipped.ranges):
        assert skipped.messages(after, 900) == 900 - after - len([one for one in deleted if one > after])
