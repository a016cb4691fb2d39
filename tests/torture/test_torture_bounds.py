"""The bounds of a soak: what is within them is good, and what is one past them is reported."""

from __future__ import annotations

import pytest
from history import PUBLISH, PUBLISHED, SEND, SENT, Record
from torture_bounds import (
    GROWN_MIB,
    QUIET,
    QUIET_OVER,
    QUIET_P99_SECONDS,
    STORE_SLACK_MIB,
    Measured,
    exceeded,
    quiet_waits,
)

SIZE_MIB = 1024.0
FIRST = Measured(60.0, 40.0, SIZE_MIB, [0.001])


def test_what_is_at_a_bound_is_good() -> None:
    most = Measured(
        120.0,
        FIRST.memory_mib + GROWN_MIB,
        SIZE_MIB + STORE_SLACK_MIB,
        [0.001] * 98 + [QUIET_P99_SECONDS] * 2,
    )
    assert [*exceeded(FIRST, most, SIZE_MIB)] == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("memory", {"memory_mib": FIRST.memory_mib + GROWN_MIB + 1}),
        ("disk", {"store_mib": SIZE_MIB + STORE_SLACK_MIB + 1}),
        ("latency", {"quiet_seconds": [0.001] * 97 + [QUIET_P99_SECONDS + 0.1] * 3}),
    ],
)
def test_what_is_past_one_bound_is_reported_by_its_name(rule: str, change: dict[str, object]) -> None:
    assert [found.rule for found in exceeded(FIRST, FIRST._replace(**change), SIZE_MIB)] == [rule]


def test_the_bound_of_latency_is_true_time() -> None:
    speed = 6
    most = FIRST._replace(quiet_seconds=[speed * QUIET_P99_SECONDS])
    more = FIRST._replace(quiet_seconds=[speed * QUIET_P99_SECONDS + 0.1])
    assert [*exceeded(FIRST, most, SIZE_MIB, speed)] == []
    assert [found.rule for found in exceeded(FIRST, more, SIZE_MIB, speed)] == ["latency"]


def test_a_wait_counts_if_all_of_it_is_in_one_quiet_time() -> None:
    second = 1_000_000_000
    kinds = [
        (PUBLISH, "before"),
        (QUIET, ""),
        (PUBLISHED, "before"),
        (PUBLISH, "within"),
        (SEND, "mail"),
        (SENT, "mail"),
        (PUBLISHED, "within"),
        (PUBLISH, "late"),
        (QUIET_OVER, ""),
        (PUBLISHED, "late"),
        (PUBLISH, "after"),
        (PUBLISHED, "after"),
    ]
    history = [Record(at * second, "a", kind, "s", key) for at, (kind, key) in enumerate(kinds)]
    assert quiet_waits(history) == [3.0]
