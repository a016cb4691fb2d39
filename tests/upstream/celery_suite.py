"""A plug-in of pytest for the integration tests of Celery: a broker, and the tests that are left out."""

import os
import re
import sys
from pathlib import Path

import pytest

import malamute.integrations.celery  # noqa: F401  # makes the scheme known
from malamute.testing import Broker

EXCLUDED = {
    "test_ignoring_result_no_subscriptions": "counts channels of Redis; a result here is a key",
    "test_asyncresult_forget_cancels_subscription": "counts channels of Redis; a result here is a key",
    "test_asyncresult_get_cancels_subscription": "counts channels of Redis; a result here is a key",
    "_is_bounded": "closes a socket of redis-py",
    "test_error_propagates_from_chord$": "expected to fail with Redis as well (celery 6437)",
    "test_scheduled": "a worker has no delayed tasks, which wait in the broker",
    "test_trace_log_arguments": "fails with Redis as well, without the settings of logging of Celery's CI",
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": "a message published again is stored once",
}
"""Patterns of names, and the reason of each: at most one test in twenty."""

broker = Broker().start()
# The settings of the tests are read before a plug-in is configured. Worker processes find the command.
_url = broker.url.replace("tcp", "malamute")


class RedisLike(str):
    """A URL that says "redis": Celery leaves out tests of canvases for all other backends.

    The results of tasks are read by the `redis-server` beside, and nothing is asked of Redis of the backend.
    """

    def startswith(self, prefix, *where):
        """Return True for Redis, too."""
        return "redis".startswith(prefix) or super().startswith(prefix, *where)


os.environ.update(TEST_BROKER=_url, TEST_BACKEND=_url)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def pytest_unconfigure() -> None:
    """Stop the broker."""
    broker.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the excluded tests, and say why; have those for Redis run."""
    sys.modules["t.integration.conftest"].TEST_BACKEND = RedisLike(_url)
    for item in items:
        for name, reason in EXCLUDED.items():
            if re.search(name, item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"excluded: {reason}"))
