"""The long runs of a night, each with a new seed; their outcomes are added to docs/reliability/runs.jsonl.

    python tests/nightly.py                             all of them, about three hours
    python tests/nightly.py simulation torture          some
    python tests/nightly.py --part 0.05                 a twentieth of each

A record is one line of JSON: the run, its commit, date, command, seconds, exit code, and the last line of its
output. The exit code of the script is 1 if one of the runs failed.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
RUNS = ROOT / "docs" / "reliability" / "runs.jsonl"


class LongRun(NamedTuple):
    """A run: its script, and its arguments for a seed and a part of its usual length."""

    script: str
    arguments: Callable[[int, float], list[str]]


LONG_RUNS = {
    "simulation": LongRun(
        "simulation/simulate.py",
        lambda seed, part: ["--seed", f"{seed}", "--runs", f"{max(2, int(20_000 * part))}"],
    ),
    "pair": LongRun(
        "simulation/sim_pair.py",
        lambda seed, part: ["--seed", f"{seed}", "--runs", f"{max(2, int(100_000 * part))}"],
    ),
    "torture": LongRun(
        "torture/torture.py", lambda seed, part: ["--json", "--seed", f"{seed}", "--minutes", f"{25 * part}"]
    ),
    "crash-states": LongRun(
        "crash/crash_states.py",
        lambda seed, part: ["--json", "--seed", f"{seed}", "--recordings", f"{max(1, int(10 * part))}"],
    ),
    "fuzz": LongRun("fuzz/fuzz.py", lambda seed, part: ["--seconds", f"{max(1, int(60 * part))}"]),
    "fuzz-live": LongRun(
        "fuzz/fuzz_live.py",
        lambda seed, part: ["--seed", f"{seed}", "--seconds", f"{max(1, int(300 * part))}"],
    ),
    "deep": LongRun(
        "deep.py", lambda seed, part: ["--seed", f"{seed}", "--depth", f"{max(2, int(25 * part))}"]
    ),
    "export-kills": LongRun(
        "torture/export_kills.py",
        lambda seed, part: ["--seed", f"{seed}", "--kills", f"{max(3, int(200 * part))}"],
    ),
    "newcomer": LongRun("newcomer/newcomer.py", lambda seed, part: []),
    "mutants": LongRun("mutants/run_mutants.py", lambda seed, part: []),
}


def play(name: str, part: float) -> dict[str, object]:
    """Play a run, show its output, and return its record."""
    seed = secrets.randbelow(10**9) + 1
    command = [LONG_RUNS[name].script, *LONG_RUNS[name].arguments(seed, part)]
    print(f"{name}: {' '.join(command)}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, HERE / command[0], *command[1:]], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    last = ""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return {
        "run": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "command": " ".join(command),
        "seconds": round(time.monotonic() - began),
        "exit": process.returncode,
        "result": last.rpartition("\r")[2],
    }


def commit() -> str:
    """Return the commit that is checked out, with `+` where the checkout has changes."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip()


def main() -> int:
    """Play the runs that the arguments name, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", choices=[*LONG_RUNS, []], metavar="RUN", help=", ".join(LONG_RUNS))
    parser.add_argument("--part", type=float, default=1.0, help="part of the usual length (1)")
    options = parser.parse_args()
    RUNS.parent.mkdir(exist_ok=True)
    records = []
    for name in options.runs or LONG_RUNS:
        records.append(play(name, options.part))
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(records[-1]) + "\n")
    return int(any(record["exit"] for record in records))


if __name__ == "__main__":
    sys.exit(main())
