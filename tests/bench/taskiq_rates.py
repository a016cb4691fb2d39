"""Rates of taskiq on Malamute beside taskiq-redis, in turns on one machine.

    .venv/bin/python tests/bench/taskiq_rates.py [--rounds 5] [--tasks 2000]

Redis is measured without AOF, and with `appendfsync always`, where `redis-server`, `redis` and
`taskiq-redis` are installed. Each round has a new queue; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1]))

from free_ports import free_port
from taskiq.receiver import Receiver

import malamute
from malamute.integrations.taskiq import MalamuteBroker

SINGLE = 200
AT_A_TIME = 100


@contextmanager
def server(command: list[str], directory: str) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def rates(broker: Any, tasks: int) -> tuple[float, float, float]:
    """Return tasks a second: kicked one at a time, kicked together, and run by a worker."""
    done, count = asyncio.Event(), 0

    @broker.task(f"noop.{uuid4().hex}")
    async def noop(text: str) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            done.set()

    await broker.startup()
    start = time.perf_counter()
    for _ in range(SINGLE):
        await noop.kiq("x" * 100)
    single = SINGLE / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range((tasks - SINGLE) // AT_A_TIME):
        await asyncio.gather(*(noop.kiq("x" * 100) for _ in range(AT_A_TIME)))
    together = (tasks - SINGLE) / (time.perf_counter() - start)
    end = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=100, run_startup=False)
    start = time.perf_counter()
    work = asyncio.create_task(receiver.listen(end))
    await done.wait()
    worked = tasks / (time.perf_counter() - start)
    end.set()
    await work
    await broker.shutdown()
    return single, together, worked


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2000)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"tcp://127.0.0.1:{free_port()}"
        run = [
            sys.executable,
            "-m",
            "malamute",
            "broker",
            "run",
            "--data",
            f"{directory}/data",
            "--listen",
            url,
        ]
        stack.enter_context(server(run, directory))
        malamute.connect(url, timeout=60).close()
        kinds: dict[str, Any] = {"malamute": lambda: MalamuteBroker(url, queue_name=uuid4().hex)}
        try:
            from taskiq_redis import RedisStreamBroker
        except ImportError:
            print("taskiq-redis is not installed: Malamute alone")
        else:
            for name, options in {
                "redis": ["--appendonly", "no"],
                "redis, AOF always": ["--appendonly", "yes", "--appendfsync", "always"],
            }.items():
                port = free_port()
                redis = [shutil.which("redis-server") or "redis-server", "--port", f"{port}", "--save", ""]
                stack.enter_context(server([*redis, *options, "--dir", directory], directory))
                kinds[name] = lambda port=port: RedisStreamBroker(
                    f"redis://127.0.0.1:{port}", queue_name=uuid4().hex
                )
        time.sleep(1)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
        for _ in range(given.rounds):
            for name, make in kinds.items():
                found[name].append(asyncio.run(rates(make(), given.tasks)))
    print(f"load {os.getloadavg()[0]:.1f}, medians of {given.rounds}, tasks a second")
    print(f"{'':20}{'one at a time':>15}{'100 together':>15}{'work':>10}")
    for name, rows in found.items():
        single, together, worked = (median(column) for column in zip(*rows, strict=True))
        print(f"{name:20}{single:15.0f}{together:15.0f}{worked:10.0f}")


if __name__ == "__main__":
    main()
