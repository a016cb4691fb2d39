"""Quantiles and rates in fixed memory, against the plain way."""

from __future__ import annotations

import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.iteration.metrics import (
    ERROR,
    LONGEST,
    RATE_SECONDS,
    SHORTEST,
    WINDOW_SECONDS,
    DurationTotal,
    Histogram,
    QueueMetrics,
    Rate,
)

NEAR = ERROR * 1.001
"""What lies on the edge of a bucket is off by all of it, and a rounding."""


@given(
    st.lists(st.floats(SHORTEST, LONGEST), min_size=1, max_size=200),
    st.floats(0, 1),
)
def test_a_quantile_is_right_to_within_its_error(durations, share):
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration, 1, 0.0)
    (found,) = histogram.quantiles(share, now=0.0)
    true = sorted(durations)[int(share * (len(durations) - 1))]
    assert found == pytest.approx(true, rel=NEAR)


def test_counts_count():
    histogram = Histogram()
    histogram.add(0.001, 99, 0.0)
    histogram.add(1.0, 1, 0.0)
    assert histogram.quantiles(0.5, 0.98, 1.0, now=0.0) == [
        pytest.approx(0.001, rel=NEAR),
        pytest.approx(0.001, rel=NEAR),
        pytest.approx(1.0, rel=NEAR),
    ]


def test_nothing_counted_is_nothing_known():
    assert Histogram().quantiles(0.5, 0.99, now=5.0) == [None, None]


@pytest.mark.parametrize("duration", [-1.0, 0.0, 1e-12, 1e12, 1e300])
def test_what_is_out_of_range_counts_as_its_end(duration):
    histogram = Histogram()
    histogram.add(duration, 1, 0.0)
    (found,) = histogram.quantiles(0.5, now=0.0)
    assert found == pytest.approx(SHORTEST if duration < 1 else LONGEST, rel=NEAR)


def test_memory_is_bounded_whatever_comes():
    histogram, chance = Histogram(), Random(1)
    for _ in range(20_000):
        histogram.add(10 ** chance.uniform(-9, 9), 1, 0.0)
    assert len(histogram._buckets) < 300
    assert sys.getsizeof(histogram._buckets) < 20_000


def test_what_is_old_is_forgotten_after_one_to_two_windows():
    histogram = Histogram()
    histogram.add(1.0, 1, 0.0)
    assert histogram.quantiles(0.5, now=WINDOW_SECONDS) == [pytest.approx(1.0, rel=NEAR)]
    histogram.add(9.0, 1, WINDOW_SECONDS + 1)
    assert histogram.quantiles(0.0, now=2 * WINDOW_SECONDS - 1) == [pytest.approx(1.0, rel=NEAR)]
    assert histogram.quantiles(0.0, now=2 * WINDOW_SECONDS + 1) == [pytest.approx(9.0, rel=NEAR)]
    assert histogram.quantiles(0.5, now=9 * WINDOW_SECONDS) == [None]


def test_a_steady_rate_is_reported_as_it_is():
    rate = Rate()
    for tenth in range(400):
        rate.add(5, tenth / 10)
    assert rate.each_second(40.0) == pytest.approx(50, rel=0.1)


def test_a_rate_falls_to_nothing_when_nothing_happens():
    rate = Rate()
    rate.add(1_000, 100.0)
    assert rate.each_second(100.0) == 1_000 / RATE_SECONDS
    assert 0 < rate.each_second(100.0 + 1.5 * RATE_SECONDS) < 1_000 / RATE_SECONDS
    assert rate.each_second(100.0 + 2 * RATE_SECONDS) == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 100)), max_size=50))
def test_a_rate_is_never_more_than_what_happened_lately(steps):
    rate, now, happened = Rate(), 1e9, []
    for wait, count in steps:
        now += wait
        rate.add(count, now)
        happened.append((now, count))
    lately = sum(count for when, count in happened if when >= now - 2 * RATE_SECONDS)
    assert 0 <= rate.each_second(now) <= lately / RATE_SECONDS * 1.001


def test_measures_show_milliseconds_and_times_a_second():
    measures = QueueMetrics()
    measures.arrivals.add(10, 0.0)
    measures.settlements.add(20, 0.0)
    measures.processing_time.add(0.25, 1, 0.0)
    assert measures.row(0.0) == {
        "arrival_rate": 1.0,
        "settled_rate": 2.0,
        "queue_time_p50_ms": None,
        "queue_time_p99_ms": None,
        "processing_time_p50_ms": pytest.approx(250, rel=NEAR),
        "processing_time_p99_ms": pytest.approx(250, rel=NEAR),
    }


def test_durations_are_summed_for_ever_and_the_longest_is_of_the_last_windows():
    total = DurationTotal()
    assert total.row(0.0) == {"count": 0, "seconds": 0.0, "longest_seconds": 0.0}
    total.add(3.0, 0.0)
    total.add(1.0, 0.5)
    assert total.row(1.0) == {"count": 2, "seconds": 4.0, "longest_seconds": 3.0}
    total.add(2.0, WINDOW_SECONDS)
    assert total.row(WINDOW_SECONDS)["longest_seconds"] == 3.0
    assert total.row(2 * WINDOW_SECONDS)["longest_seconds"] == 2.0
    assert total.row(4 * WINDOW_SECONDS) == {"count": 3, "seconds": 6.0, "longest_seconds": 0.0}


def test_a_duration_of_less_than_nothing_counts_as_none():
    total = DurationTotal()
    total.add(-1.0, 0.0)
    assert total.row(0.0) == {"count": 1, "seconds": 0.0, "longest_seconds": 0.0}
