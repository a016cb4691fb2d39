"""A real broker, a real HTTP server before it, and clients of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from restms_client import RestClient
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before
from server_events import make_stream

import malamute
from malamute.gateway import tracing
from malamute.gateway.settings import GatewaySettings
from malamute.testing import Broker


@pytest.fixture(autouse=True)
def untraced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for spans there is no OpenTelemetry: another test may have set a provider for all."""
    if "telemetry" not in request.fixturenames:
        monkeypatch.setattr(tracing, "IS_INSTALLED", False)


@pytest.fixture
def settings(broker: Broker) -> GatewaySettings:
    return GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS)


@pytest.fixture
def start(settings: GatewaySettings) -> Iterator[Callable[..., RunningGateway]]:
    """Start a gateway; its arguments change settings."""
    with ExitStack() as stack:

        def start(**changes: Any) -> RunningGateway:
            gateway = RunningGateway(replace(settings, **changes))
            stack.callback(gateway.stop)
            return gateway

        yield start


@pytest.fixture
def gateway(start: Callable[..., RunningGateway]) -> RunningGateway:
    return start()


@pytest.fixture
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    """A native client of the same broker."""
    with malamute.connect(broker.url, address="native", timeout=WAIT_SECONDS) as client:
        yield client


@pytest.fixture
def weather(broker: Broker) -> None:
    """A stream `weather`, with nothing in it."""
    make_stream(broker.url)


@pytest.fixture(scope="session")
def restms_broker() -> Iterator[Broker]:
    """A broker that all tests of RestMS share which need none of their own."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def restms_gateway(restms_broker: Broker) -> Iterator[RunningGateway]:
    """A gateway before it."""
    with gateway_before(restms_broker) as gateway:
        yield gateway


@pytest.fixture
def rest(restms_gateway: RunningGateway) -> Iterator[RestClient]:
    """A client of RestMS."""
    with restms_gateway.client() as http:
        yield RestClient(http)
