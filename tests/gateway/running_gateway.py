"""A gateway that runs in a thread of the test."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

import malamute
from malamute.gateway.server import GatewayServer
from malamute.gateway.settings import GatewaySettings
from malamute.protocol.admin import MailboxesQuery
from malamute.server.process import BrokerProcess
from malamute.testing import Broker

Value = TypeVar("Value")

WAIT_SECONDS = 60


class RunningGateway:
    """A gateway in a thread of the test, on a port of the system's choice."""

    def __init__(self, settings: GatewaySettings, port: int = 0, **tls: Any) -> None:
        started: queue.Queue[list[str]] = queue.Queue()
        self.server = GatewayServer(settings, "127.0.0.1", port, started.put, **tls)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve()), name="malamute-gateway", daemon=True
        )
        self._thread.start()
        [self.url] = started.get(timeout=WAIT_SECONDS)
        self.host, port = self.url.partition("://")[2].split(":")
        self.port = int(port)

    def __enter__(self) -> RunningGateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, **options: Any) -> httpx.Client:
        return client_of(self.url, **options)

    @property
    def state(self) -> Any:
        return self.server.config.app.state.gateway  # type: ignore[union-attr]

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()


def client_of(url: str, **options: Any) -> httpx.Client:
    """Return a client that loads no certificates unless it is given some: most tests take less time."""
    options = {"verify": False, "timeout": WAIT_SECONDS, "trust_env": False, **options}
    return httpx.Client(base_url=url, **options)


def gateway_before(broker: Broker | BrokerProcess, **changes: Any) -> RunningGateway:
    """Start a gateway before this broker, with the default settings but for these changes and its timeout."""
    settings: dict[str, Any] = {"broker": broker.url, "timeout_seconds": WAIT_SECONDS, **changes}
    return RunningGateway(GatewaySettings(**settings))


def until(read: Callable[[], Value], holds: Callable[[Value], object] = bool) -> Value:
    """Return the first value that holds, of those that are read again and again, with a rest after each."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds(value := read()):
        assert time.monotonic() < deadline, value
        time.sleep(0.01)
    return value


def wait_for_dead(client: malamute.Client, mailbox: str, count: int) -> None:
    """Wait for so many dead letters: each is there when it is stored, which `flush` does not wait for."""

    def dead() -> int:
        return sum(row.dead_letters for row in client.query(MailboxesQuery()) if row.name == mailbox)

    until(lambda: dead() >= count)
