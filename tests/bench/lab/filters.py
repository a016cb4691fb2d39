"""Filters by header: what a stream can do with one of them, and with a thousand different ones.

The header that filters ask about has one of `VALUES` values, by turns. One filter takes a half of them. Of
many filters each asks for one value, and all values have one; the other filters ask for values that never
come. So all messages are delivered, whatever the number of filters, and what differs is what they cost.

One peer has all the subscriptions. It only counts what it is sent: what is measured is the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lab.raw_peer import RawPeer
from malamute.bench import workspace
from malamute.bench.figures import cpu_us, extent, middle
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, run_together
from malamute.bench.replay import RECORD_BYTES
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch, Workload, subject_of
from malamute.client.sync.client import connect
from malamute.protocol.batch import Headers, unpack_payload
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.messages import Deliver, Ok, Subscribe
from malamute.protocol.time_units import to_seconds
from malamute.server.process import BrokerProcess

VALUES = 10
FIRST_VALUE = 2
"""The lowest of them: 0 and 1 equal false and true in Python, which is a case of its own."""


class FiltersOptions(NamedTuple):
    """What was asked for."""

    messages: int
    size_bytes: int
    batch: int
    filters: int
    rounds: int
    directory: Path


class FiltersRow(NamedTuple):
    """One way to read.

    `per_second` and processor time (of the broker, in microseconds) are of messages that were published or
    read back, whether or not a filter takes them.
    """

    what: str
    delivered: int
    per_second: float
    extent: list[float]
    broker_cpu_us: float
    missing: int


class _FiltersRun(NamedTuple):
    per_second: float
    broker_us: float
    missing: int


def measure(options: FiltersOptions) -> Iterator[FiltersRow]:
    """One filter and many, on a stream while it is published and on its history."""
    half = [f"quality < {FIRST_VALUE + VALUES // 2}"]
    each = [f"quality = {FIRST_VALUE + number}" for number in range(options.filters)]
    stored = options.messages * (1 + 2 * options.rounds)
    size = workspace.store_bytes(stored * (options.size_bytes + RECORD_BYTES))
    workspace.check_free_space(options.directory, size)
    with workspace.broker(options.directory, f"storage.size={size}") as broker:
        workload = Workload(
            broker.url, "history", options.messages, options.size_bytes, options.batch, UNLIMITED
        )
        run_together((publish, workload))
        for what, wheres in (("one filter", half), (f"{options.filters} filters", each)):
            live = [
                _run(broker, workload._replace(name=f"{what} {number}"), wheres, "new")
                for number in range(options.rounds)
            ]
            yield _row(f"{what}, live", workload, wheres, live)
            replayed = [_run(broker, workload, wheres, "first") for _ in range(options.rounds)]
            yield _row(f"{what}, replay", workload, wheres, replayed)


def taken(messages: int, filters: int) -> int:
    """How many messages so many filters take together."""
    values = VALUES // 2 if filters == 1 else min(filters, VALUES)
    return sum((messages - value + VALUES - 1) // VALUES for value in range(values))


def _run(broker: BrokerProcess, workload: Workload, wheres: list[str], start: str) -> _FiltersRun:
    reading = (read, workload, wheres, start)
    with ProcessWatch(broker.pid) as watch:
        measured = run_together(reading, (publish, workload)) if start == "new" else run_together(reading)
    first_ns = min(one["start_ns"] for one in measured)
    return _FiltersRun(
        per_second=workload.messages / to_seconds(measured[0]["end_ns"] - first_ns),
        broker_us=cpu_us(watch.cpu_seconds, workload.messages) or 0.0,
        missing=taken(workload.messages, len(wheres)) - measured[0]["received"],
    )


def _row(what: str, workload: Workload, wheres: list[str], runs: list[_FiltersRun]) -> FiltersRow:
    rates = [run.per_second for run in runs]
    return FiltersRow(
        what=what,
        delivered=taken(workload.messages, len(wheres)),
        per_second=middle(rates),
        extent=extent(rates),
        broker_cpu_us=middle(run.broker_us for run in runs),
        missing=max(run.missing for run in runs),
    )


def publish(begin: Begin, workload: Workload) -> Measured:
    """Publish confirmed, a column at a time."""
    headers: list[Headers] = [
        {"unit": "C", "station": "oslo", "quality": FIRST_VALUE + value} for value in range(VALUES)
    ]
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.publisher(workload.name, batch=workload.batch) as out,
    ):
        begin()
        stopwatch = Stopwatch()
        for first in range(0, workload.messages, workload.batch):
            numbers = range(first, min(first + workload.batch, workload.messages))
            out.publish_many(
                [*map(subject_of, numbers)],
                [workload.body] * len(numbers),
                [headers[number % VALUES] for number in numbers],
            )
        out.flush()
        return stopwatch.measured()


def read(begin: Begin, workload: Workload, wheres: list[str], start: str) -> Measured:
    """Subscribe with each filter at once, and count what comes."""
    expected, received = taken(workload.messages, len(wheres)), 0
    commands = [
        Subscribe(number, workload.name, [["all", ""]], where, start, workload.credit)
        for number, where in enumerate(wheres, 1)
    ]
    with RawPeer(workload.url, "") as peer:
        if start != "new":
            begin()
        stopwatch = Stopwatch()
        for command in commands:
            peer.send(command)
        if start == "new":
            for _ in commands:
                peer.next(Ok)
            begin()
            stopwatch = Stopwatch()
        while received < expected:
            delivery = peer.next(Deliver)
            received += len(unpack_payload(delivery.payload, delivery.large))
        return stopwatch.measured(received=received)
