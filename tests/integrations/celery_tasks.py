"""The application whose tasks the tests of Celery run, in workers of `celery -A celery_tasks worker`."""

import os
import time
from pathlib import Path

from celery import Celery

import malamute.integrations.celery  # noqa: F401  # makes the scheme known

URL = os.environ.get("CELERY_TASKS_URL", "malamute://127.0.0.1:9999")
RUNS = Path(os.environ.get("CELERY_TASKS_RUNS", "/dev/null"))
"""A file in which each run of a task is a line."""

app = Celery("celery_tasks", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=20,
    broker_transport_options={"heartbeat": 0.5},
    worker_hijack_root_logger=False,
)


def _begun(name: str) -> None:
    with RUNS.open("a") as runs:
        runs.write(f"{name} {os.getpid()}\n")


@app.task
def work(name: str, seconds: float = 0.0) -> str:
    """Take some time, and return the name."""
    _begun(name)
    time.sleep(seconds)
    return name


@app.task
def compute(name: str, seconds: float) -> int:
    """Hold the lock of the interpreter in one call of C after the other, for so long altogether."""
    _begun(name)
    end, calls = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        pow(7, 300_000)
        calls += 1
    return calls


@app.task
def total(numbers: list[int]) -> int:
    """Return a sum: the end of a chord."""
    return sum(numbers)


@app.task
def number(value: int) -> int:
    """Return a number."""
    return value
