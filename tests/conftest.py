"""The same examples every time, and once for all tests what takes long to start."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from shared_folders import PATHS
from xdist.scheduler import LoadScopeScheduling

from malamute.access import account
from malamute.client.link.client import open_driver
from malamute.testing import Broker

if TYPE_CHECKING:
    from telemetry import Telemetry

pytest_plugins = ["malamute.pytest_plugin"]

PATIENCE = 60.0
"""Seconds."""

# A run of the tests says the same thing every time. `make fuzz` looks for what nobody has thought of.
# How fast it is made is no property of an example: a busy machine is slow.
SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "fixed", deadline=None, derandomize=True, max_examples=15, suppress_health_check=SLOW
)
FOUND = (Phase.explicit, Phase.generate)
settings.register_profile("unshrunk", settings.get_profile("fixed"), phases=FOUND)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("fixed")

# Tests start hundreds of processes, and some processes collect all tests: each would compile everything anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The server of forks looks for it on the path of a new interpreter.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH")]))
multiprocessing.set_forkserver_preload(["forks"])

# A process that a shell starts in the background ignores Control-C, and so do all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is about how fast the machine is: where one says no time-out, a busy machine is waited for.
open_driver.__kwdefaults__["timeout"] = PATIENCE

# Nor how hard a password is to guess, which takes 50 ms of the processor for each log-in.
account.SCRYPT_COST = 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of the test alone, in memory."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def _telemetry() -> Telemetry:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: see the extra dev")
    from telemetry import Telemetry

    return Telemetry()


@pytest.fixture
def telemetry(_telemetry: Telemetry) -> Telemetry:
    """The spans and metrics of this test."""
    _telemetry.clear()
    return _telemetry


TOGETHER = (
    "tests/spark/",
    "tests/docs/test_docs_site.py",
    "tests/gateway/test_gateway_console_browser.py",
    "tests/torture/test_bad_machine.py",
)
"""One session of Spark, one build of the site, one browser and one machine, for all tests there."""

APART = tuple(
    f"tests/spark/test_{name}.py" for name in ("conditions", "export", "filters", "maintenance", "records")
)
"""Tests of the pipeline that need no session of Spark: the longest row of tests is shorter by a fifth."""

BY_FILE = "tests/client/"
"""The tests of a file have one broker there."""

LONG = ("tests/torture/", "tests/crash/", "tests/fuzz/", "tests/bench/", "tests/typing/")
"""Long tests, which begin first: at the end, one process would take them while all others are done."""


class Scheduling(LoadScopeScheduling):
    """Give the tests of one of `TOGETHER` to one process, and each other test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(BY_FILE):
            return nodeid.partition("::")[0]
        if nodeid.startswith(APART):
            return nodeid
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        # What is done would be counted again after each of thousands of tests.
        units = self.assigned_work[node]
        self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Say which tests stay together."""
    return Scheduling(config, log)


def pytest_collection() -> None:
    """Collect no garbage meanwhile: there is hardly any."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests; xdist takes groups of many tests before."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Leave the tests themselves to no garbage collection: there are thousands, and each has many parts."""
    gc.enable()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what was skipped and why, each reason once: whoever has no Java is to know what was not tested."""
    skipped = Counter(report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    for reason, count in skipped.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}", yellow=True)
