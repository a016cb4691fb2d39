"""A broker for the tests of programs that use Malamute: the fixture `malamute_broker`.

    pytest_plugins = ["malamute.pytest_plugin"]

    def test_the_weather_is_told(malamute_broker):
        with malamute.connect(malamute_broker.url) as client:
            ...

Each test has a broker of its own, in the process and in memory;
`malamute.testing.Broker` makes others, such as one that survives a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from malamute.testing import Broker


@pytest.fixture
def malamute_broker() -> Iterator[Broker]:
    """A broker that runs. Its `url` is where to connect; `restart()` loses what is not in a directory."""
    # Imported by the first test that needs it: a test run without one stays quick.
    from malamute.testing import Broker

    with Broker() as broker:
        yield broker
