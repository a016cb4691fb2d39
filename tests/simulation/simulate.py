"""Simulate the broker: `python tests/simulation/simulate.py --seed 7`, or `--runs 100000`.

Without a seed the runs have new ones. A run that fails is made again, shrunk, and told step by step; its seed
makes it again on any machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import shared_folders  # noqa: F401  # the folders of the modules below

# isort: split
from sim_plan import WAYS, Plan
from sim_plan import plan_of as plan_by_seed
from sim_shrink import failure_of, shrink
from sim_world import run

CHUNK_RUNS = 200
SEEDS = 1 << 40
FAILURES_MAX = 5


def plan_of(seed: int, way: str | None) -> Plan:
    """The plan that a seed stands for, with this cut-through of queues if one is given."""
    plan = plan_by_seed(seed)
    return plan if way is None else plan._replace(setup=plan.setup._replace(cut_through=way))


Outcome = tuple[int, list[int]]
"""How many runs were made, and the seeds that failed."""


def outcome_of(first: int, count: int, way: str | None) -> Outcome:
    """What becomes of a range of seeds."""
    return count, [seed for seed in range(first, first + count) if failure_of(plan_of(seed, way)) is not None]


def tell(seed: int, way: str | None) -> None:
    """Tell what happens in the run of a seed, or in its shrunk form if it fails."""
    plan = plan_of(seed, way)
    if failure_of(plan) is not None:
        plan = shrink(plan)
    print(f"seed {seed}, {len(plan.steps)} steps: {plan.setup}")
    try:
        run(plan, log=print)
    except Exception:
        traceback.print_exc(file=sys.stdout)
    else:
        print("every promise was kept")


def run_many(first: int, count: int, processes: int, way: str | None) -> list[int]:
    """Make many runs, and show how far it is. Returns the seeds that failed; after a few of them it stops."""
    started = time.monotonic()
    done = 0
    failed: list[int] = []
    starts = iter(range(first, first + count, CHUNK_RUNS))
    with ProcessPoolExecutor(processes) as pool:
        pending = {
            pool.submit(outcome_of, start, min(CHUNK_RUNS, first + count - start), way)
            for start in islice(starts, 2 * processes)
        }
        while pending:
            ready, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in ready:
                made, failing = future.result()
                done, failed = done + made, failed + failing
                for seed in failing:
                    print(f"\nseed {seed} fails")
            rate = done / (time.monotonic() - started)
            state = f"{done:,} of {count:,} runs, {rate:,.0f}/s, {len(failed)} failed"
            print(f"\r{state}", end="", flush=True)
            for start in islice(starts, 0 if len(failed) >= FAILURES_MAX else len(ready)):
                pending.add(pool.submit(outcome_of, start, min(CHUNK_RUNS, first + count - start), way))
    print()
    return sorted(failed)


def main() -> int:
    """Run what the arguments say. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Simulate the broker.")
    parser.add_argument("--seed", type=int, help="the seed of the first run; alone, that run in full")
    parser.add_argument("--runs", type=int, help="how many runs to make (1000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cut-through", choices=WAYS, help="that of all runs (by the seed)")
    options = parser.parse_args()
    way = options.cut_through
    if options.seed is not None and options.runs in (None, 1):
        tell(options.seed, way)
        return 0 if failure_of(plan_of(options.seed, way)) is None else 1
    first = secrets.randbelow(SEEDS) + 1 if options.seed is None else options.seed
    count = options.runs or 1_000
    print(f"seeds {first} to {first + count - 1}")
    failed = run_many(first, count, options.processes, way)
    if failed:
        tell(failed[0], way)
        print(f"failed: {failed}; make one again with SEED={failed[0]} RUNS=1")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
