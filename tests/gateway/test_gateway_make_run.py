"""`make run` and `broker run --console`: a broker and a gateway with the console, until Control-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from free_ports import free_port
from running_gateway import WAIT_SECONDS, client_of

ROOT = Path(__file__).parents[2]
INSTALLED = ".venv/.runs"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.skipif(not (ROOT / INSTALLED).exists(), reason="there is no .venv: see make setup")
def test_make_run_starts_a_broker_and_its_console_and_prints_where(tmp_path: Path) -> None:
    broker, console = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    options = f"--console {console} --listen {broker} --data {tmp_path}/data --set storage.preallocate=false"
    # An environment that is set up already is not looked at.
    command = ["make", "--old-file", INSTALLED, "run", f"ARGS={options}"]
    environment = {**os.environ, "MALAMUTE_URL": broker, "MAKEFLAGS": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            assert running.stdout is not None
            assert f"  console    http://{console}/\n" in iter(running.stdout.readline, "")
            with client_of(f"http://{console}") as http:
                until = time.monotonic() + WAIT_SECONDS
                while not _is_ready(http):
                    assert time.monotonic() < until
                    time.sleep(0.1)
                page = http.get("/")
            assert (page.status_code, "Overview · Malamute" in page.text) == (200, True)
        finally:
            # As Control-C on a terminal.
            os.killpg(running.pid, signal.SIGINT)
            running.communicate(timeout=WAIT_SECONDS)
    while _is_left(running.pid):
        assert time.monotonic() < until + 2 * WAIT_SECONDS


def test_a_broker_and_its_console_end_together_and_without_a_word(tmp_path: Path) -> None:
    console = f"127.0.0.1:{free_port()}"
    with _run("--console", console, "--listen", f"tcp://127.0.0.1:{free_port()}", cwd=tmp_path) as running:
        assert running.stdout is not None
        assert f"  console    http://{console}/\n" in iter(running.stdout.readline, "")
        with client_of(f"http://{console}") as http:
            until = time.monotonic() + WAIT_SECONDS
            while not _is_ready(http):
                assert time.monotonic() < until
                time.sleep(0.1)
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=WAIT_SECONDS)
            assert (running.returncode, errors) == (0, "")
            assert not _is_ready(http)


def test_a_gateway_outlives_no_broker_that_is_killed(tmp_path: Path) -> None:
    console = f"127.0.0.1:{free_port()}"
    options = "--console", console, "--listen", f"tcp://127.0.0.1:{free_port()}"
    with (
        _run(*options, cwd=tmp_path) as running,
        client_of(f"http://{console}") as http,
    ):
        until = time.monotonic() + 3 * WAIT_SECONDS
        while not _is_ready(http):
            assert time.monotonic() < until
            time.sleep(0.1)
        running.kill()
        # The console is served for as long as it takes to end.
        while _is_ready(http):
            assert time.monotonic() < until


@pytest.mark.parametrize(
    ("console", "words"),
    [
        ("127.0.0.1:{taken}", "the console cannot listen on 127.0.0.1:{taken}: address already in use"),
        ("nonsense", "invalid address 'nonsense': expected HOST:PORT"),
    ],
)
def test_a_console_that_cannot_be_is_refused_before_a_broker_starts(
    tmp_path: Path, console: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with _run("--console", console.format(taken=taken), cwd=tmp_path) as running:
            output, errors = running.communicate(timeout=WAIT_SECONDS)
    assert (running.returncode, output) != (0, "")
    assert words.format(taken=taken) in errors
    assert not any(tmp_path.iterdir())


def _run(*options: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "malamute", "broker", "run", "--set", "log.level=error", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _is_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False
