"""Two halves of the tests, for two processes, and the same examples every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SPARK = Path(__file__).parent / "spark"

# A run of the tests says the same thing every time. `make fuzz` looks for what nobody has thought of.
# How fast it is made is no property of an example: a busy machine is slow.
SLOW = [HealthCheck.too_slow]
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in which half each test is: those of the data pipeline share a session of Spark."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if SPARK in item.path.parents else "broker"))
