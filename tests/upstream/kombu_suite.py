"""The abstract integration classes of kombu with fixtures of ours. `upstream.py` runs this file."""

import kombu
import pytest
from free_ports import free_port
from t.integration import common

import malamute.integrations.kombu  # noqa: F401  # makes the scheme known
from malamute.testing import Broker


@pytest.fixture(scope="session")
def url():
    with Broker() as broker:
        yield broker.url.replace("tcp", "malamute")


@pytest.fixture
def connection(url):
    return kombu.Connection(url)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(f"malamute://localhost:{free_port()}", connect_timeout=1)


@pytest.fixture
def failover_connection(url):
    return kombu.Connection(f"malamute://localhost:{free_port()};{url}", connect_timeout=2)


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    def test_failover_switches_to_alternate_url(self, failover_connection):
        """Ours: the client has all URLs and tries them itself, so kombu does not switch to another one."""
        assert failover_connection.connect()
        assert failover_connection.connected
        assert failover_connection.transport_cls == "malamute"
        failover_connection.close()
