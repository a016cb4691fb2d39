"""Acceptance: a real broker process on a real directory, and everything that happens to it in the field."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rig_daemon import Daemon
from rig_programs import Program
from rig_proxy import Proxy
from rig_waiting import PATIENCE

import malamute
from malamute.config import Config


@pytest.fixture
def new_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes brokers, each on a directory of its own, which are not started yet."""
    with ExitStack() as stack:

        def make(*arguments: Any) -> Daemon:
            directory = tmp_path / f"broker-{len(made)}"
            made.append(Daemon(directory, *arguments))
            stack.callback(made[-1].close)
            return made[-1]

        made: list[Daemon] = []
        yield make


@pytest.fixture
def daemon(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker that runs."""
    return new_daemon().start()


@pytest.fixture
def broker(new_daemon: Callable[..., Daemon]) -> Iterator[Daemon]:
    """A broker as users have it. Its store is not kept: each takes a gibibyte of the disk."""
    daemon = new_daemon(Config()).start()
    yield daemon
    daemon.stop()
    shutil.rmtree(daemon.config.storage.directory)


@pytest.fixture
def closing(new_daemon: Callable[..., Daemon]) -> Iterator[ExitStack]:
    """What is put on it is closed at the end of the test, the last first, while the brokers still run."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_proxy_to(closing: ExitStack) -> Callable[[Daemon], Proxy]:
    """Makes relays to any broker."""

    def make(daemon: Daemon) -> Proxy:
        proxy = Proxy(daemon.url)
        closing.callback(proxy.close)
        return proxy

    return make


@pytest.fixture
def new_proxy(daemon: Daemon, new_proxy_to: Callable[[Daemon], Proxy]) -> Callable[[], Proxy]:
    """Makes relays to the broker that runs."""
    return partial(new_proxy_to, daemon)


@pytest.fixture
def proxy(new_proxy: Callable[[], Proxy]) -> Proxy:
    """A relay to it."""
    return new_proxy()


@pytest.fixture
def run(closing: ExitStack) -> Callable[..., Program]:
    """Runs clients in processes of their own."""

    def start(*arguments: str) -> Program:
        program = Program(*arguments)
        closing.callback(program.close)
        return program

    return start


@pytest.fixture
def connect_to(closing: ExitStack) -> Callable[..., malamute.Client]:
    """Connects clients to any broker; they are closed at the end."""

    def make(url: str, address: str = "") -> malamute.Client:
        client = malamute.connect(url, address=address, timeout=PATIENCE)
        client.on_event = lambda event: None
        closing.callback(_close, client)
        return client

    return make


@pytest.fixture
def connect(daemon: Daemon, connect_to: Callable[..., malamute.Client]) -> Callable[..., malamute.Client]:
    """Connects clients to the broker that runs."""
    return partial(connect_to, daemon.url)


def _close(client: malamute.Client) -> None:
    # A test that has failed may have left it without a broker.
    with suppress(malamute.MalamuteError):
        client.close(5)
