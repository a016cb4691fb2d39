"""What the journal costs a publisher: a stream that is kept beside one that is not, on one broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from malamute.bench import workloads, workspace
from malamute.bench.figures import cpu_us, elapsed_seconds, extent, middle
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import WorkloadFunction, run_together
from malamute.bench.workloads import Workload
from malamute.server.process import BrokerProcess

ON, OFF = "on", "off"
RULE = 'streams.rule=[{pattern = "*-off", journal = false}]'
SLOWER = 5
"""The one message a command gets a part of the messages."""


class JournalOptions(NamedTuple):
    """What was asked for."""

    messages: int
    size_bytes: int
    batch: int
    rounds: int
    directory: Path


class JournalRow(NamedTuple):
    """One way to publish.

    A ratio is the cost with the journal in parts of the cost without: in time, in the same round, and in
    processor time of the broker.
    """

    what: str
    messages: int
    on_per_second: float
    off_per_second: float
    time_ratio: float
    time_ratio_extent: list[float]
    on_broker_cpu_us: float
    off_broker_cpu_us: float
    cpu_ratio: float


class _JournalRun(NamedTuple):
    per_second: float
    cpu_us: float


def measure(options: JournalOptions) -> Iterator[JournalRow]:
    """A publisher alone, into a stream with a journal and one without."""
    few = max(options.messages // SLOWER, 10)
    workload = Workload("", "", options.messages, options.size_bytes, options.batch, 1)
    single = workload._replace(messages=few, batch=1)
    size = workspace.store_bytes(options.messages * (options.size_bytes + 100))
    with workspace.broker(options.directory, RULE, f"storage.size={size}") as broker:
        yield _compare("batched as columns", broker, workloads.publish_columns, workload, options.rounds)
        yield _compare("one message a command", broker, workloads.publish_each, single, options.rounds)


def _compare(
    what: str, broker: BrokerProcess, play: WorkloadFunction, workload: Workload, rounds: int
) -> JournalRow:
    runs: dict[str, list[_JournalRun]] = {ON: [], OFF: []}
    for number in range(rounds):
        for kind in (ON, OFF) if number % 2 == 0 else (OFF, ON):
            runs[kind].append(_publish(broker, play, workload, kind))
    ratios = [off.per_second / on.per_second for on, off in zip(runs[ON], runs[OFF], strict=True)]
    on_us, off_us = (middle(run.cpu_us for run in runs[kind]) for kind in (ON, OFF))
    return JournalRow(
        what=what,
        messages=workload.messages,
        on_per_second=middle(run.per_second for run in runs[ON]),
        off_per_second=middle(run.per_second for run in runs[OFF]),
        time_ratio=middle(ratios),
        time_ratio_extent=extent(ratios),
        on_broker_cpu_us=on_us,
        off_broker_cpu_us=off_us,
        cpu_ratio=round(on_us / off_us, 3) if off_us else 0.0,
    )


def _publish(broker: BrokerProcess, play: WorkloadFunction, workload: Workload, kind: str) -> _JournalRun:
    name = f"bench-{secrets.token_hex(4)}-{kind}"
    with ProcessWatch(broker.pid) as watch:
        (measured,) = run_together((play, workload._replace(url=broker.url, name=name)))
    return _JournalRun(
        workload.messages / elapsed_seconds(measured, measured),
        cpu_us(watch.cpu_seconds, workload.messages) or 0.0,
    )
