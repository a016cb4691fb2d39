"""One subscriber among many who does not read: what the publisher and the others notice of it.

The same is measured alternating with one who reads, with one whose window is used up, and with one whose
process is stopped, so that what else the machine does meets all of them. Each run has a broker of its own.

The one has a process to itself and a small window, and the warm-up is larger than that. So the window is used
up before anything is measured; the broker is asked whether it is.

At full rate all share too little of the machine, and who does not read leaves a part to the others. What
one reader costs the others, the moderate rate shows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab.pacing import publish_paced
from malamute.bench import workloads, workspace
from malamute.bench.figures import cpu_us, elapsed_seconds, extent, middle, percentile_ms
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, WorkloadProcess
from malamute.bench.workloads import BATCH, PATTERN, QUIET_SECONDS, TIMEOUT_SECONDS, Begin, Workload
from malamute.client.sync.client import Client, connect
from malamute.errors import TimedOut
from malamute.protocol.admin import StreamQuery

STREAM, THE_ONE = "shared", "the-one"
READS, USED_UP, STOPPED = "reads", "window used up", "stopped"
WAYS = (READS, USED_UP, STOPPED)
WINDOW = 1000
"""The credit of the one."""

TICKS = 20
"""How often in a second a publisher with a fixed rate publishes."""

LOOK_SECONDS = 0.05
SETTLE_SECONDS = 0.2


class SlowConsumerOptions(NamedTuple):
    """What was asked for. `rate` is the moderate one, for `seconds`; `messages` are for the full one."""

    rate: int
    seconds: int
    messages: int
    size_bytes: int
    batch: int
    credit: int
    subscribers: int
    rounds: int
    directory: Path


class SlowConsumerRow(NamedTuple):
    """What one rate and one way come to.

    `per_second` is the publisher's, until all is confirmed, and `delivered_per_second` is to the others
    together. Times are in milliseconds, and ratios to the run of the same round in which the one reads.
    """

    what: str
    the_one: str
    per_second: float
    per_second_ratio: float
    per_second_ratio_extent: list[float]
    delivered_per_second: float
    p50_ms: float
    p50_ratio: float
    p50_ratio_extent: list[float]
    p99_ms: float
    p99_ratio: float
    p99_ratio_extent: list[float]
    broker_cpu_us: float
    missing: int


class _SlowConsumerRun(NamedTuple):
    per_second: float
    delivered_per_second: float
    p50_ms: float
    p99_ms: float
    broker_us: float
    missing: int


def measure(options: SlowConsumerOptions) -> Iterator[SlowConsumerRow]:
    """One subscriber among many does not read: what the others notice."""
    moderate, full = moderate_workload(options), full_workload(options)
    yield from _compare(f"{options.rate:,}/s", options, moderate, options.rate)
    yield from _compare("full rate", options, full, 0)


def moderate_workload(options: SlowConsumerOptions) -> Workload:
    """A batch for each tick; its first message has the stamp."""
    batch = max(1, options.rate // TICKS)
    return _workload(options, options.rate * options.seconds, batch)._replace(stamp_every=batch)


def full_workload(options: SlowConsumerOptions) -> Workload:
    """As much as there is."""
    return _workload(options, options.messages, options.batch)


def _workload(options: SlowConsumerOptions, messages: int, batch: int) -> Workload:
    warm_up = (2 * WINDOW // batch + 1) * batch
    workload = Workload("", STREAM, warm_up + messages, options.size_bytes, batch, options.credit)
    return workload._replace(warm_up=warm_up)


def _compare(
    what: str, options: SlowConsumerOptions, workload: Workload, rate: int
) -> Iterator[SlowConsumerRow]:
    runs: dict[str, list[_SlowConsumerRun]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            runs[way].append(_run(options, workload, rate, way))
    for way in WAYS:
        yield _row(what, way, runs[way], runs[READS])


def _row(
    what: str, way: str, runs: Sequence[_SlowConsumerRun], base: Sequence[_SlowConsumerRun]
) -> SlowConsumerRow:
    pairs = [*zip(runs, base, strict=True)]
    rates = [run.per_second / reads.per_second for run, reads in pairs]
    halves = [run.p50_ms / reads.p50_ms for run, reads in pairs]
    tails = [run.p99_ms / reads.p99_ms for run, reads in pairs]
    return SlowConsumerRow(
        what=what,
        the_one=way,
        per_second=middle(run.per_second for run in runs),
        per_second_ratio=middle(rates),
        per_second_ratio_extent=extent(rates),
        delivered_per_second=middle(run.delivered_per_second for run in runs),
        p50_ms=middle(run.p50_ms for run in runs),
        p50_ratio=middle(halves),
        p50_ratio_extent=extent(halves),
        p99_ms=middle(run.p99_ms for run in runs),
        p99_ratio=middle(tails),
        p99_ratio_extent=extent(tails),
        broker_cpu_us=middle(run.broker_us for run in runs),
        missing=max(run.missing for run in runs),
    )


def _run(options: SlowConsumerOptions, workload: Workload, rate: int, way: str) -> _SlowConsumerRun:
    others = options.subscribers - 1
    with workspace.broker(options.directory) as broker:
        workload = workload._replace(url=broker.url)
        with (
            WorkloadProcess(be_the_one, workload, way == READS) as one,
            WorkloadProcess(workloads.subscribe_many, workload, others) as many,
            WorkloadProcess(publish_paced, workload, rate) as publisher,
        ):
            watch = ProcessWatch(broker.pid)
            sender, receiver = _play(workload, way, watch, one, many, publisher)
    return _result(workload, others, sender, receiver, watch)


def _play(
    workload: Workload,
    way: str,
    watch: ProcessWatch,
    one: WorkloadProcess,
    many: WorkloadProcess,
    publisher: WorkloadProcess,
) -> tuple[Measured, Measured]:
    for process in (one, many, publisher):
        process.get()
    one.go()
    many.go()
    with _stopped(one.pid if way == STOPPED else 0):
        publisher.go()
        publisher.get()
        _await_readers(workload, behind=way != READS)
        with watch:
            publisher.go()
            return publisher.get(), many.get()


def _result(
    workload: Workload, others: int, sender: Measured, receiver: Measured, watch: ProcessWatch
) -> _SlowConsumerRun:
    messages = workload.messages - workload.warm_up
    latencies = sorted(receiver["latencies"])
    return _SlowConsumerRun(
        per_second=messages / elapsed_seconds(sender, sender),
        delivered_per_second=messages * others / elapsed_seconds(sender, receiver),
        p50_ms=percentile_ms(latencies, 0.5) or 0.001,
        p99_ms=percentile_ms(latencies, 0.99) or 0.001,
        broker_us=cpu_us(watch.cpu_seconds, messages) or 0.0,
        missing=workload.messages * others - receiver["received"],
    )


def be_the_one(begin: Begin, workload: Workload, reads: bool) -> Measured:
    """Subscribe with a small window, and read everything or nothing."""
    with (
        connect(workload.url, address=THE_ONE, timeout=TIMEOUT_SECONDS) as client,
        client.subscribe(workload.name, PATTERN, credit=WINDOW) as messages,
    ):
        begin()
        if not reads:
            begin()  # nobody lets it go on: its process is ended
        while messages.take(BATCH, timeout=QUIET_SECONDS):
            pass
        return {}


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a process during the block; none if it is 0."""
    if pid:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)


def _await_readers(workload: Workload, *, behind: bool) -> None:
    """Wait until all have had the warm-up, but for the one if it is to be behind."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client:
        while not _are_there(client, workload, behind=behind):
            if time.monotonic() > deadline:
                raise TimedOut(f"no warm-up at the subscribers within {TIMEOUT_SECONDS} s")
            time.sleep(LOOK_SECONDS)
    time.sleep(SETTLE_SECONDS)


def _are_there(client: Client, workload: Workload, *, behind: bool) -> bool:
    readers = client.query(StreamQuery(name=workload.name)).readers
    return all((r.state == "replay") == (behind and r.address == THE_ONE) for r in readers)
