"""How many examples are made of selectors and messages."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

MORE = 20 if "MALAMUTE_EXAMPLES" in os.environ else 1
"""`make fuzz` takes so many times as many."""


def many_pairs(examples: int = 20) -> settings:
    """Settings for examples that hold many selectors and many messages; how long they take is no matter."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples * MORE, deadline=None, suppress_health_check=slow)
