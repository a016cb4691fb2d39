"""The short form of `make torture`: each kind of fault once, and an account of every item."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from depth import NIGHT
from rig_daemon import environment
from torture import FAULTS, schedule

SEED = "115"
AT_NIGHT = {
    "connections, ten thousand",
    "hostile clients, all of them",
    "network, real: packets lost and out of order",
    "links lossy and reordering",
    "links refused",
    "disk: EIO",
    "disk: ENOSPC",
    "disk: EROFS",
    "disk, real: full, then broker killed",
    "reader of the store stopped, broker killed",
}
"""What takes longest, and has tests of its own beside, or a fault like it."""
COMPILER = shutil.which("gcc") or shutil.which("cc")


def tortured(tmp_path: Path, *arguments: str) -> dict[str, object]:
    """Run it as a program: what is preloaded has to be there before any process starts."""
    command = [sys.executable, str(Path(__file__).with_name("torture.py")), "--json", *arguments]
    env = {**environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs Linux and a C compiler (gcc)"
)
def test_what_was_confirmed_is_there_and_nothing_is_there_twice_whatever_happens(tmp_path: Path) -> None:
    left = set() if NIGHT else AT_NIGHT
    without = [word for name in sorted(left) for word in ("--without", name)]
    summary = tortured(tmp_path, "--seed", SEED, "--each", "--minutes", "0", *without)
    print(summary)
    assert summary["violations"] == []
    faults, not_tried = summary["faults"], summary["not_tried"]
    assert isinstance(faults, dict)
    assert isinstance(not_tried, dict)
    assert faults == dict.fromkeys({*FAULTS} - {*not_tried} - left, 1)


def test_a_seed_makes_the_same_schedule() -> None:
    one, same, other = (schedule(Random(seed), 100, [*FAULTS]) for seed in (7, 7, 8))
    assert one == same != other
