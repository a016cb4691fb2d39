"""The same examples every time, and one session of Spark for all tests that need one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A run of the tests says the same thing every time. `make fuzz` looks for what nobody has thought of.
# How fast it is made is no property of an example: a busy machine is slow.
SLOW = [HealthCheck.too_slow]
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("fixed")


class Scheduling(LoadScopeScheduling):
    """Give the tests of the data pipeline to one process, and each other test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Say which tests stay together."""
    return Scheduling(config, log)
