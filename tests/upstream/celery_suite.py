"""A plug-in of pytest for the integration tests of Celery: a broker, and the tests that are left out."""

import os
import sys
from pathlib import Path

import pytest

import malamute.integrations.celery  # noqa: F401  # makes the scheme known
from malamute.testing import Broker

EXCLUDED = {
    "test_scheduled": "a worker has no delayed tasks, which wait in the broker",
    "test_trace_log_arguments": "fails with Redis as well, without the settings of logging of Celery's CI",
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": "a message published again is stored once",
}
"""Parts of names, and the reason of each: at most one test in twenty."""

broker = Broker().start()
# The settings of the tests are read before a plug-in is configured. Worker processes find the command.
_url = broker.url.replace("tcp", "malamute")
os.environ.update(TEST_BROKER=_url, TEST_BACKEND=_url)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def pytest_unconfigure() -> None:
    """Stop the broker."""
    broker.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the excluded tests, and say why."""
    for item in items:
        for name, reason in EXCLUDED.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"excluded: {reason}"))
