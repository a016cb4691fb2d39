"""Celery and taskiq on the servers: tasks that do nothing, sent one by one, and worked on once all are there.

    python -m celery -A lab.peers.frameworks worker

runs the worker of Celery: prefork, two children, acknowledgements late.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

from lab.peers.work import PeerWork, ask_one_by_one
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch
from malamute.server.process import environment

URL, ASSURANCE, DONE = "BENCH_URL", "BENCH_ASSURANCE", "BENCH_DONE"
"""Variables of a worker's environment: its broker, and the pipe that has a byte for each task done."""

CHILDREN = 2
AT_A_TIME = 100


def _celery(url: str, assurance: str) -> Any:
    from celery import Celery

    if url.startswith("malamute"):
        import malamute.integrations.celery  # noqa: F401  # makes the scheme known
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=12,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"assurance": assurance} if assurance else {},
    )

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    def noop(text: str) -> None:
        os.write(int(os.environ[DONE]), b".")

    return app


if URL in os.environ:
    app = _celery(os.environ[URL], os.environ[ASSURANCE])


def _url(work: PeerWork, scheme: str) -> str:
    return f"{scheme}://{work.host}:{work.port}"


def _send(begin: Begin, work: PeerWork, scheme: str, assurance: str) -> Measured:
    """`apply_async`, each after the one before."""
    app = _celery(_url(work, scheme), assurance)
    noop, text = app.tasks["noop"], work.body.decode("latin-1")
    noop.apply_async((text,))
    return ask_one_by_one(begin, work, lambda: noop.apply_async((text,)))


def _work(begin: Begin, work: PeerWork, scheme: str, assurance: str) -> Measured:
    """Work on tasks that are all there, from the first on."""
    _send(lambda: None, work, scheme, assurance)
    begin()
    done, write = os.pipe()
    env = {**environment(), URL: _url(work, scheme), ASSURANCE: assurance, DONE: str(write)}
    command = ["-m", "celery", "-A", "lab.peers.frameworks", "worker", "-c", str(CHILDREN), "-l", "error"]
    worker = subprocess.Popen(
        [sys.executable, *command], env=env, pass_fds=[write], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        received = len(os.read(done, 1))
        stopwatch = Stopwatch()
        while received < work.messages:
            received += len(os.read(done, work.messages - received))
        return stopwatch.measured(received=received)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


celery_send = partial(_send, scheme="malamute", assurance="stored")
celery_send_unstored = partial(_send, scheme="malamute", assurance="none")
celery_send_redis = partial(_send, scheme="redis", assurance="")
celery_send_amqp = partial(_send, scheme="amqp", assurance="")
celery_work = partial(_work, scheme="malamute", assurance="stored")
celery_work_unstored = partial(_work, scheme="malamute", assurance="none")
celery_work_redis = partial(_work, scheme="redis", assurance="")
celery_work_amqp = partial(_work, scheme="amqp", assurance="")


def taskiq_work(begin: Begin, work: PeerWork) -> Measured:
    """The worker of taskiq on a shared mailbox."""
    from malamute.integrations.taskiq import MalamuteBroker

    return asyncio.run(_taskiq(begin, work, MalamuteBroker(f"tcp://{work.host}:{work.port}")))


def taskiq_work_redis(begin: Begin, work: PeerWork) -> Measured:
    """The same on a stream of Redis."""
    from taskiq_redis import RedisStreamBroker

    return asyncio.run(_taskiq(begin, work, RedisStreamBroker(f"redis://{work.host}:{work.port}")))


async def _taskiq(begin: Begin, work: PeerWork, broker: Any) -> Measured:
    from taskiq.receiver import Receiver

    logging.disable(logging.CRITICAL)
    done, received = asyncio.Event(), 0
    first: list[Stopwatch] = []

    @broker.task("noop")  # type: ignore[untyped-decorator]
    async def noop(text: str) -> None:
        nonlocal received
        if not received:
            first.append(Stopwatch())
        received += 1
        if received == work.messages:
            done.set()

    await broker.startup()
    text = work.body.decode("latin-1")
    for start in range(0, work.messages, AT_A_TIME):
        part = range(start, min(start + AT_A_TIME, work.messages))
        await asyncio.gather(*(noop.kiq(text) for _ in part))
    begin()
    end = asyncio.Event()
    worker = asyncio.create_task(Receiver(broker, max_async_tasks=100, run_startup=False).listen(end))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await done.wait()
    measured = first[0].measured(received=received)
    end.set()
    await worker
    await broker.shutdown()
    return measured
