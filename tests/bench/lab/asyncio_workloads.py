"""The processes of a benchmark that run on an event loop; each does what its namesake in `workloads` does."""

from __future__ import annotations

import asyncio
import time

from malamute.aio import connect
from malamute.bench.processes import Measured
from malamute.bench.workloads import (
    BATCH,
    HEADERS,
    PATTERN,
    QUIET_SECONDS,
    TIMEOUT_SECONDS,
    Begin,
    Stopwatch,
    Workload,
    age_ns,
    stamped,
    subject_of,
)


def publish_each(begin: Begin, workload: Workload) -> Measured:
    """Publish confirmed, a message at a time."""
    return asyncio.run(_publish_each(begin, workload))


async def _publish_each(begin: Begin, workload: Workload) -> Measured:
    body, every = workload.body, workload.stamp_every
    async with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.publisher(workload.name, batch=workload.batch) as out,
    ):
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            await out.publish(subject_of(number), body if number % every else stamped(body), HEADERS)
        await out.flush()
        return stopwatch.measured()


def subscribe(begin: Begin, workload: Workload) -> Measured:
    """Take all messages of a stream that is new."""
    return asyncio.run(_subscribe(begin, workload))


async def _subscribe(begin: Begin, workload: Workload) -> Measured:
    received, end_ns = 0, 0
    latencies: list[int] = []
    async with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.subscribe(workload.name, PATTERN, credit=workload.credit) as messages,
    ):
        begin()
        stopwatch = Stopwatch()
        while batch := await messages.take(BATCH, timeout=QUIET_SECONDS):
            end_ns = time.monotonic_ns()
            received += len(batch)
            first = batch[0].sequence
            latencies += map(age_ns, batch[(1 - first) % workload.stamp_every :: workload.stamp_every])
            if batch[-1].sequence >= workload.messages:
                break
        return {**stopwatch.measured(received=received, latencies=latencies), "end_ns": end_ns}
