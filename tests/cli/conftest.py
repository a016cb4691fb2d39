"""The command against a real broker in this process, and in processes of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import click
import pytest
from cli_commands import PATIENCE, ROOT, Run, Start
from click.testing import CliRunner, Result
from forked_broker import ForkedBroker
from forked_commands import forked_malamute
from lab.__main__ import make

import malamute
from malamute.bench import processes
from malamute.cli.root import cli
from malamute.server import process as server_process
from malamute.testing import Broker


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for contexts that is not the user's own, and time for a busy machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setattr("malamute.cli.options.TIMEOUT_SECONDS", PATIENCE)
    for name in ("MALAMUTE_URL", "MALAMUTE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks take their brokers and workloads from a server of forks.

    That they run in new interpreters, which takes longer than what most do there, other tests see.
    """
    monkeypatch.setattr(processes, "_context", multiprocessing.get_context("forkserver"))
    popen = SimpleNamespace(
        Popen=ForkedBroker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(server_process, "subprocess", popen)


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="test") as client:
        yield client


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """Run a command in this process. The command finds the broker, if the test has one."""
    return _runner(cli, "malamute", request)


@pytest.fixture
def run_lab(request: pytest.FixtureRequest) -> Run:
    """Run a command of `make bench` in this process."""
    return _runner(make, "make", request, "bench")


def _runner(group: click.Group, name: str, request: pytest.FixtureRequest, *first: str) -> Run:
    url = request.getfixturevalue("broker").url if "broker" in request.fixturenames else None

    def run(*arguments: str, exit_code: int = 0, stdin: str | bytes | None = None, **environ: str) -> Result:
        result = CliRunner().invoke(
            group, [*first, *arguments], prog_name=name, input=stdin, env={"MALAMUTE_URL": url, **environ}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    return run


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a command as a process, forked. A process that runs at the end of the test is killed."""
    yield from _starting(request, forked_malamute())


@pytest.fixture
def start_anew(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a command as users do, in a new interpreter. A warning is an error there."""
    yield from _starting(request, sys.executable, "-W", "error", "-m", "malamute")


def _starting(request: pytest.FixtureRequest, *command: str) -> Iterator[Start]:
    url = request.getfixturevalue("broker").url if "broker" in request.fixturenames else ""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **({"MALAMUTE_URL": url} if url else {})},
            text=True,
            **more,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def until(client: malamute.Client) -> Callable[[Callable[[], object]], None]:
    """Ask the broker until something is so."""

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.01)

    return until
