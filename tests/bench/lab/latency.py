"""The time in the system, from giving a message to the client until its subscriber has it.

At full rate a publisher gives what it can, and what the whole path delivers is measured: that is the rate of
which the other rows have a part. A round has a broker of its own.

A message has the time at which the broker took it up. So the part before that, which the publisher's window
bounds, is shown beside the whole; the rest is up to the subscriber, whom no publisher waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lab.pacing import publish_paced
from malamute.bench import workloads, workspace
from malamute.bench.figures import cpu_us, elapsed_seconds, extent, middle, percentile_ms
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, run_together
from malamute.bench.workloads import (
    TIMEOUT_SECONDS,
    Begin,
    Stopwatch,
    Workload,
    age_ns,
    run_in_threads,
)
from malamute.client.sync.client import connect
from malamute.server.process import BrokerProcess

LOADS = (1.0, 0.9, 0.5)
"""Parts of the full rate."""

RUN = 50
"""Messages that a paced publisher of single messages gives in a row."""

SINGLE_DIVISOR = 5
"""What part of the messages is published one in a command."""

WARM_UP = 10
"""What part of the messages is not measured."""

Publish = Callable[[Begin, Workload, int], Measured]


class LatencyOptions(NamedTuple):
    """What was asked for."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    subscribers: int
    rounds: int
    directory: Path


class LatencyRow(NamedTuple):
    """One way to publish at one load.

    Times are in milliseconds: the whole, and of it until the broker took it up. Processor time is of the
    broker, a message.
    """

    what: str
    messages: int
    per_second: float
    p50_ms: float
    p50_extent: list[float]
    p99_ms: float
    p99_extent: list[float]
    to_broker_p50_ms: float
    to_broker_p99_ms: float
    broker_cpu_us: float
    missing: int


class _LatencyRun(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float
    to_broker_p50_ms: float
    to_broker_p99_ms: float
    broker_us: float
    missing: int


def measure(options: LatencyOptions) -> Iterator[LatencyRow]:
    """Each way to publish at full rate, and at parts of it."""
    ways: list[tuple[str, Publish, int]] = [
        ("confirmed batches", publish_paced, 1),
        ("one a command, unconfirmed", publish_single, SINGLE_DIVISOR),
    ]
    for what, publish, divisor in ways:
        messages = max(options.messages // divisor, 10)
        rounds = [_round(options, publish, messages) for _ in range(options.rounds)]
        for load, runs in zip(LOADS, zip(*rounds, strict=True), strict=True):
            yield _row(f"{what}, {load:.0%}", messages, runs)


def _round(options: LatencyOptions, publish: Publish, messages: int) -> list[_LatencyRun]:
    runs: list[_LatencyRun] = []
    with workspace.broker(options.directory) as broker:
        for load in LOADS:
            rate = int(load * runs[0].per_second) if runs else 0
            runs.append(_run(options, broker, publish, messages, rate))
    return runs


def _run(
    options: LatencyOptions, broker: BrokerProcess, publish: Publish, messages: int, rate: int
) -> _LatencyRun:
    warm_up = messages // WARM_UP // options.batch * options.batch
    workload = Workload(
        broker.url, f"bench-{rate}", messages, options.size_bytes, options.batch, options.credit
    )._replace(warm_up=warm_up)
    with ProcessWatch(broker.pid) as watch:
        receiver, sender = run_together(
            (_subscribe_many, workload, options.subscribers), (_publish, publish, workload, rate)
        )
    whole, to_broker = (sorted(part) for part in zip(*receiver["latencies"], strict=True))
    delivered = (messages - warm_up) / elapsed_seconds(sender, receiver)
    return _LatencyRun(
        per_second=delivered,
        p50_ms=percentile_ms(whole, 0.50) or 0.0,
        p99_ms=percentile_ms(whole, 0.99) or 0.0,
        to_broker_p50_ms=percentile_ms(to_broker, 0.50) or 0.0,
        to_broker_p99_ms=percentile_ms(to_broker, 0.99) or 0.0,
        broker_us=cpu_us(watch.cpu_seconds, messages) or 0.0,
        missing=messages * options.subscribers - receiver["received"],
    )


def _row(what: str, messages: int, runs: tuple[_LatencyRun, ...]) -> LatencyRow:
    return LatencyRow(
        what=what,
        messages=messages,
        per_second=middle(run.per_second for run in runs),
        p50_ms=middle(run.p50_ms for run in runs),
        p50_extent=extent(run.p50_ms for run in runs),
        p99_ms=middle(run.p99_ms for run in runs),
        p99_extent=extent(run.p99_ms for run in runs),
        to_broker_p50_ms=middle(run.to_broker_p50_ms for run in runs),
        to_broker_p99_ms=middle(run.to_broker_p99_ms for run in runs),
        broker_cpu_us=middle(run.broker_us for run in runs),
        missing=max(run.missing for run in runs),
    )


def _subscribe_many(begin: Begin, workload: Workload, subscribers: int) -> Measured:
    return run_in_threads(begin, [(subscribe, workload)] * subscribers)


def subscribe(begin: Begin, workload: Workload) -> Measured:
    """Take all messages; how long those with a stamp took to come, and of that, to the broker."""
    clocks_ns = time.time_ns() - time.monotonic_ns()
    received, end_ns = 0, 0
    latencies: list[tuple[int, int]] = []
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.subscribe(workload.name, workloads.PATTERN, credit=workload.credit) as messages,
    ):
        begin()
        stopwatch = Stopwatch()
        while batch := messages.take(workloads.BATCH, timeout=workloads.QUIET_SECONDS):
            end_ns = time.monotonic_ns()
            received += len(batch)
            for message in workloads.with_stamps(batch, workload):
                whole_ns = age_ns(message)
                after_ns = time.monotonic_ns() - (message.time_ns - clocks_ns)
                latencies.append((whole_ns, max(0, whole_ns - after_ns)))
            if batch[-1].sequence >= workload.messages:
                break
        return {**stopwatch.measured(received=received, latencies=latencies), "end_ns": end_ns}


def _publish(begin: Begin, publish: Publish, workload: Workload, rate: int) -> Measured:
    """Publish in a process, where the warm-up ends without a word."""
    begun = False

    def once() -> None:
        nonlocal begun
        if not begun:
            begin()
        begun = True

    return publish(once, workload, rate)


def publish_single(begin: Begin, workload: Workload, rate: int) -> Measured:
    """Publish unconfirmed, a message a command, so many a second, or as many as it can for 0."""
    body, every = workload.body, workload.stamp_every
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client:

        def publish(number: int) -> None:
            client.publish(
                workload.name,
                workloads.subject_of(number),
                body if number % every else workloads.stamped(body),
                workloads.HEADERS,
            )

        begin()
        for number in range(workload.warm_up):
            publish(number)
        client.flush()
        stopwatch, start = Stopwatch(), time.monotonic()
        for first in range(workload.warm_up, workload.messages, RUN):
            due = start + (first - workload.warm_up) / rate if rate else 0.0
            time.sleep(max(0.0, due - time.monotonic()))
            for number in range(first, min(first + RUN, workload.messages)):
                publish(number)
        client.flush()
        return stopwatch.measured()
