"""Reading the history of a stream: one reader of all or a half of it, and many at once.

Every other message has a subject of the first kind, and every second pair the header that is asked for. The
readers that are many are spread over the history, each with a part of it, so that no two read the same place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from malamute.bench import workspace
from malamute.bench.figures import MEBIBYTE, cpu_us, extent, middle
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, run_together
from malamute.bench.workloads import (
    BATCH,
    QUIET_SECONDS,
    TIMEOUT_SECONDS,
    Begin,
    Columns,
    Stopwatch,
    Workload,
    publish_columns,
    run_in_threads,
)
from malamute.client.sync.client import connect
from malamute.protocol.batch import Headers
from malamute.protocol.time_units import to_seconds
from malamute.server.process import BrokerProcess

STREAM = "history"
SUBJECTS = [f"{kind}.oslo.{number}" for number in range(50) for kind in ("temp", "wind")]
HEADERS: list[Headers] = [{"unit": "C", "station": "oslo", "quality": number // 2 % 2} for number in range(4)]
PART = 20
"""Each of many readers takes one of so many parts of the history."""

PROCESSES = 2
"""Processes that many readers share."""

RECORD_BYTES = 100
"""Bytes of a message beside its body, at most."""


class ReplayOptions(NamedTuple):
    """Options of the benchmark."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    readers: int
    rounds: int
    directory: Path


class ReplayRow(NamedTuple):
    """One way to read.

    Processor time is in microseconds: of the broker for a message that it went through, and of the reader for
    one that it got. `extent` is that of the deliveries in a second.
    """

    what: str
    delivered: int
    per_second: float
    extent: list[float]
    scanned_per_second: float
    broker_cpu_us: float
    reader_cpu_us: float
    rss_anon_max_mib: float
    missing: int


class View(NamedTuple):
    """Request of a reader: patterns, start, and the messages to receive and to scan."""

    start: int
    delivered: int
    scanned: int
    patterns: tuple[str, ...] = ()
    where: str = ""


class _ReplayRun(NamedTuple):
    delivered: int
    seconds: float
    broker_us: float
    reader_us: float
    memory_bytes: int
    missing: int


def measure(options: ReplayOptions) -> Iterator[ReplayRow]:
    """Readers of a history: one unfiltered, one by subject, one by header, and many at once."""
    messages = options.messages
    all_of_it, half = View(1, messages, messages), (messages + 1) // 2
    by_header = messages // 4 * 2 + min(messages % 4, 2)
    ways = [
        ("all of it", [all_of_it]),
        ("a half by subject", [View(1, half, messages, ("temp.#",))]),
        ("a half by header", [View(1, by_header, messages, where="quality = 0")]),
        (f"{options.readers} readers, unfiltered", spread(messages, options.readers)),
    ]
    size = workspace.store_bytes(messages * (options.size_bytes + RECORD_BYTES))
    workspace.check_free_space(options.directory, size)
    with workspace.broker(options.directory, f"storage.size={size}") as broker:
        workload = Workload(broker.url, STREAM, messages, options.size_bytes, options.batch, options.credit)
        run_together((publish_columns, workload, history_columns))
        for what, views in ways:
            yield _row(what, views, [_read(broker, workload, views) for _ in range(options.rounds)])


def spread(messages: int, readers: int) -> list[View]:
    """Where many readers begin, and that each takes a part."""
    part = max(messages // PART, 1)
    step = (messages - part) / max(readers - 1, 1)
    return [View(1 + int(number * step), part, part) for number in range(readers)]


def _read(broker: BrokerProcess, workload: Workload, views: Sequence[View]) -> _ReplayRun:
    shares = [views[number::PROCESSES] for number in range(min(PROCESSES, len(views)))]
    parts: list[tuple[Any, ...]] = [
        (run_in_threads, [(read, workload, view) for view in share]) for share in shares
    ]
    with ProcessWatch(broker.pid) as watch:
        measured = run_together(*parts)
    delivered = sum(view.delivered for view in views)
    start_ns = min(one["start_ns"] for one in measured)
    return _ReplayRun(
        delivered=delivered,
        seconds=to_seconds(max(one["end_ns"] for one in measured) - start_ns),
        broker_us=cpu_us(watch.cpu_seconds, sum(view.scanned for view in views)) or 0.0,
        reader_us=cpu_us(sum(one["cpu_seconds"] for one in measured), delivered) or 0.0,
        memory_bytes=watch.anonymous_bytes or 0,
        missing=delivered - sum(one["received"] for one in measured),
    )


def _row(what: str, views: Sequence[View], runs: Sequence[_ReplayRun]) -> ReplayRow:
    rates = [run.delivered / run.seconds for run in runs]
    scanned = sum(view.scanned for view in views)
    return ReplayRow(
        what=what,
        delivered=runs[0].delivered,
        per_second=middle(rates),
        extent=extent(rates),
        scanned_per_second=middle(scanned / run.seconds for run in runs),
        broker_cpu_us=middle(run.broker_us for run in runs),
        reader_cpu_us=middle(run.reader_us for run in runs),
        rss_anon_max_mib=round(max(run.memory_bytes for run in runs) / MEBIBYTE, 1),
        missing=max(run.missing for run in runs),
    )


def history_columns(workload: Workload, first: int, end: int) -> Columns:
    """Return subjects, bodies and headers of a batch of the history."""
    numbers = range(first, min(first + workload.batch, end))
    subjects = [SUBJECTS[number % len(SUBJECTS)] for number in numbers]
    return subjects, [workload.body] * len(numbers), [HEADERS[number % len(HEADERS)] for number in numbers]


def read(begin: Begin, workload: Workload, view: View) -> Measured:
    """Receive the messages of a view; later ones are not counted."""
    received = 0
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client:
        begin()
        stopwatch = Stopwatch()
        with client.subscribe(
            workload.name, *view.patterns, where=view.where, start=view.start, credit=workload.credit
        ) as messages:
            end_ns = time.monotonic_ns()
            while received < view.delivered and (batch := messages.take(BATCH, timeout=QUIET_SECONDS)):
                received += len(batch)
                end_ns = time.monotonic_ns()
        received = min(received, view.delivered)
        return {**stopwatch.measured(received=received, latencies=()), "end_ns": end_ns}
