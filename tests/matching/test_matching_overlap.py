"""Whether two patterns have a subject in common, and a pattern as a regular expression."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from malamute.matching.pattern import expression_of, fits, forms, overlaps
from malamute.matching.regex import compiled

PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4).map(".".join)
DIALECTS = st.sampled_from(["topic", "topic-amqp"])
SUBJECTS = [".".join(parts) for count in range(1, 7) for parts in product(["a", "b", "c"], repeat=count)]


def subjects_of(dialect, pattern):
    return {s for s in SUBJECTS if any(fits(form, s.split(".")) for form in forms(dialect, pattern))}


@given(DIALECTS, PATTERNS, DIALECTS, PATTERNS)
def test_patterns_overlap_exactly_if_there_is_such_a_subject(dialect, one, other_dialect, other):
    together = subjects_of(dialect, one) & subjects_of(other_dialect, other)
    # Two patterns of four parts meet in six, if at all.
    assert overlaps(forms(dialect, one), forms(other_dialect, other)) == bool(together)


@given(DIALECTS, PATTERNS, st.lists(st.sampled_from(["a", "b", "", "a\n", "*"]), min_size=1, max_size=5))
def test_the_expression_of_a_pattern_is_found_where_it_fits(dialect, pattern, parts):
    for form in forms(dialect, pattern):
        assert compiled(expression_of(form)).found_in(".".join(parts)) == fits(form, parts)
