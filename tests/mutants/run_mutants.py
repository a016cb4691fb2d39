"""Break the code of each requirement in a copy of the checkout: the test that shows it has to fail.

    python tests/mutants/run_mutants.py                 all of them
    python tests/mutants/run_mutants.py RQ1 WP30        some
    python tests/mutants/run_mutants.py --record        write down the results, for docs/requirements.md too

Before that the tests are run as the code is: one that fails anyhow shows nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "docs" / "mutants.json", ROOT / "docs" / "requirements.md"
MADE = re.compile(r"(<!-- made: mutants -->\n).*?(<!-- end -->)", re.DOTALL)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
QUICKLY = ("-x", "--timeout=240", "--hypothesis-profile=unshrunk")
"""How a test is run that is to fail: not how it does so is asked, but whether."""

PASSED, FAILED = 0, 1
"""Exit codes of pytest; any other is a test that has not been run."""


class Result(NamedTuple):
    """The outcome of a test while the code of its requirement was broken."""

    id: str
    test: str
    result: str


class Workshop:
    """Copies of the checkout, each of which one mutant at a time is made in."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self._free: Queue[Path] = Queue()
        names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for job in range(jobs):
            copy = directory / str(job)
            for name in filter(None, names):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).exists():
                    shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
            self._free.put(copy)

    def passes(self, tests: Iterable[str]) -> bool:
        """Whether all of these pass as the code is."""
        copy = self._free.get()
        try:
            return _pytest(copy, [*tests]) == PASSED
        finally:
            self._free.put(copy)

    def try_out(self, name: str, mutant: Mutant) -> Result:
        """Break the code, run the test, and mend the code."""
        copy = self._free.get()
        path = copy / "malamute" / mutant.file
        whole = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.applied_to(whole), encoding="utf-8")
            code = _pytest(copy, places_of(mutant.test), *QUICKLY)
        finally:
            path.write_text(whole, encoding="utf-8")
            self._free.put(copy)
        return Result(name, mutant.test, {PASSED: "passed", FAILED: "failed"}.get(code, "was not run"))


def _pytest(copy: Path, tests: Sequence[str], *options: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    with (copy.parent / f"{copy.name}.log").open("ab") as log:
        return subprocess.run(
            command, cwd=copy, env=environment, stdout=log, stderr=log, check=False
        ).returncode


def places_of(test: str) -> list[str]:
    """Where a test of this name is."""
    return [f"{path}::{test}" for path, names in _tests().items() if test in names]


@cache
def _tests() -> dict[str, set[str]]:
    """The names of the tests of each file."""
    return {
        str(path.relative_to(ROOT)): {*TEST.findall(path.read_text(encoding="utf-8"))}
        for path in sorted((ROOT / "tests").glob("**/test_*.py"))
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def words_of(results: Sequence[Result], date: str, commit: str) -> str:
    """The text of the page on a run."""
    caught = sum(result.result == "failed" for result in results)
    others = "".join(f"- {r.id}: `{r.test}` {r.result}\n" for r in results if r.result != "failed")
    return (
        f"On {date}, at commit `{commit}`, {caught} of {len(results)} tests failed without the code of their "
        f"requirement,\nas they should. `docs/mutants.json` has each result.\n{others}"
    )


def record(results: Sequence[Result]) -> None:
    """Write the results down, with those of the others as they were recorded last."""
    made = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": _git("rev-parse", "--short", "HEAD").strip()}
    before = json.loads(RECORD.read_text(encoding="utf-8"))["results"] if RECORD.exists() else []
    found = {row["id"]: Result(**row) for row in before} | {result.id: result for result in results}
    results = [found[name] for name in MUTANTS if name in found]
    rows = [result._asdict() for result in results]
    RECORD.write_text(json.dumps({**made, "results": rows}, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    words = words_of(results, **made)
    PAGE.write_text(MADE.sub(lambda found: found[1] + words + found[2], page), encoding="utf-8")


def main() -> int:
    """Run what the command line asks for. Returns 1 if a test has passed that should have failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="requirements; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", action="store_true", help="write down the results")
    parser.add_argument("--no-check", action="store_true", help="do not run the tests as the code is first")
    given = parser.parse_args()
    chosen = {name: MUTANTS[name] for name in given.ids or MUTANTS}
    with TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(given.jobs) as pool:
        workshop = Workshop(Path(directory), given.jobs)
        if not given.no_check:
            tests = sorted({place for mutant in chosen.values() for place in places_of(mutant.test)})
            assert workshop.passes(tests), (Path(directory) / "0.log").read_text(encoding="utf-8")[-5_000:]
        results: list[Result] = []
        for result in pool.map(workshop.try_out, chosen, chosen.values()):
            print(f"{result.id:6}{result.result:12}{result.test}", flush=True)
            results.append(result)
    if given.record:
        record(results)
    survivors = [result for result in results if result.result != "failed"]
    print(f"{len(results) - len(survivors)} of {len(results)} failed, as they should")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
