"""`make run`: a broker and a gateway with the console, whose address is printed, until Control-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from free_ports import free_port
from running_gateway import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
READY = ".venv/.ready"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.skipif(not (ROOT / READY).exists(), reason="there is no .venv: see make setup")
def test_make_run_starts_a_broker_and_its_console_and_prints_where(tmp_path: Path) -> None:
    broker, console = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    options = f"--listen {broker} --data {tmp_path}/data --set storage.preallocate=false"
    # What is set up already is not looked at.
    command = ["make", "--old-file", READY, "run", f"CONSOLE={console}", f"ARGS={options}"]
    environment = {**os.environ, "MALAMUTE_URL": broker, "MAKEFLAGS": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            assert running.stdout is not None
            assert f"The console is at http://{console}/\n" in iter(running.stdout.readline, "")
            with httpx.Client(base_url=f"http://{console}", trust_env=False) as http:
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
