"""The counts of docs/reliability.md, from the recorded runs in docs/reliability/runs.jsonl.

    make nightly
    python docs/make/reliability.py

The page is written by hand but for the text between `<!-- run: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
PAGE, RUNS = DOCS / "reliability.md", DOCS / "reliability" / "runs.jsonl"
MADE = re.compile(r"(<!-- run: ([\w-]+) -->).*?(<!-- end -->)")


def latest() -> dict[str, str]:
    """Return the result of each run by its name: of its last clean one, or of the last one if none was."""
    runs: dict[str, dict[str, object]] = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        before = runs.get(run["run"])
        if before is None or before["exit"] or not run["exit"]:
            runs[run["run"]] = run
    return {name: f"{run['result']} ({_when(run)})" for name, run in runs.items()}


def _when(run: dict[str, object]) -> str:
    return f"{run['date']}, commit {run['commit']}" if run["commit"] else f"{run['date']}"


def made(page: str) -> str:
    """Return the page with the counts of today's file.

    Raises:
        KeyError: The page names a run without a record.
    """
    results = latest()
    return MADE.sub(lambda found: f"{found[1]}{results[found[2]]}{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
