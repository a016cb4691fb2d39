"""How many examples are made of selectors and messages."""

from __future__ import annotations

from depth import DEPTH
from hypothesis import HealthCheck, settings


def many_pairs(examples: int = 6) -> settings:
    """Settings for examples that hold many selectors and many messages; how long they take is no matter."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples * DEPTH, deadline=None, suppress_health_check=slow)
