"""The processes of a benchmark that run on an event loop; each does what its namesake in `actors` does."""

from __future__ import annotations

import asyncio
import time

from malamute.aio import connect
from malamute.cli.bench.actors import (
    BATCH,
    HEADERS,
    PATTERN,
    QUIET_SECONDS,
    TIMEOUT,
    Begin,
    Clock,
    Plan,
    age_ns,
    stamped,
    subject_of,
)
from malamute.cli.bench.stage import Measured


def publish_each(begin: Begin, plan: Plan) -> Measured:
    """Publish confirmed, a message at a time."""
    return asyncio.run(_publish_each(begin, plan))


async def _publish_each(begin: Begin, plan: Plan) -> Measured:
    body, every = plan.body, plan.stamp_every
    async with (
        connect(plan.url, timeout=TIMEOUT) as client,
        client.publisher(plan.name, batch=plan.batch) as out,
    ):
        begin()
        clock = Clock()
        for number in range(plan.messages):
            await out.publish(subject_of(number), body if number % every else stamped(body), HEADERS)
        await out.flush()
        return clock.measured()


def subscribe(begin: Begin, plan: Plan) -> Measured:
    """Take all messages of a stream that is new."""
    return asyncio.run(_subscribe(begin, plan))


async def _subscribe(begin: Begin, plan: Plan) -> Measured:
    received, end_ns = 0, 0
    latencies: list[int] = []
    async with (
        connect(plan.url, timeout=TIMEOUT) as client,
        client.subscribe(plan.name, PATTERN, credit=plan.credit) as messages,
    ):
        begin()
        clock = Clock()
        while batch := await messages.take(BATCH, timeout=QUIET_SECONDS):
            end_ns = time.monotonic_ns()
            received += len(batch)
            first = batch[0].sequence
            latencies += map(age_ns, batch[(1 - first) % plan.stamp_every :: plan.stamp_every])
            if batch[-1].sequence >= plan.messages:
                break
        return {**clock.measured(received=received, latencies=latencies), "end_ns": end_ns}
