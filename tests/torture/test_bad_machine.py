"""Clocks that run fast: what a process sees of them, and that what it waits for comes as much earlier."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import bad_machine
import pytest
from depth import some
from every_wait import WAITS
from rig_daemon import environment

FAST = 10
TIMEOUT = 120

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not (shutil.which("gcc") or shutil.which("cc")),
    reason="needs Linux and a C compiler (gcc)",
)

Seen = dict[str, dict[str, float]]


@pytest.fixture(scope="module", params=some([1, FAST], FAST))
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Seen]:
    """A speed, and how long each wait took by each clock."""
    speed: int = request.param
    variables = bad_machine.build(tmp_path_factory.mktemp("machine"), speed)
    assert variables is not None
    origin_ns = bad_machine.machine(Path(variables[bad_machine.FILE])).origin_ns
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("every_wait.py"))]
    began_ns = time.monotonic_ns()
    done = subprocess.run(
        command, env=environment() | variables, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    ended_ns = time.monotonic_ns()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # All processes count from the same moment on.
    assert speed * (began_ns - origin_ns) < found.pop("at") - origin_ns < speed * (ended_ns - origin_ns)
    return speed, found


@pytest.mark.parametrize("wait", WAITS)
def test_all_clocks_run_at_the_speed_and_a_wait_takes_as_much_less(seen: tuple[int, Seen], wait: str) -> None:
    speed, waits = seen
    took = waits[wait]
    print(took)
    true = took.pop("true")
    if speed == FAST:
        assert true < 0.6
    for seconds in took.values():
        assert 0.9 < seconds < speed * true * 1.01
