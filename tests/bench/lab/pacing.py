"""A publisher with a fixed rate."""

from __future__ import annotations

import time

from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch, Workload, columns_of
from malamute.client.sync.client import connect


def publish_paced(begin: Begin, workload: Workload, rate: int) -> Measured:
    """Publish so many messages a second, or as many as it can for 0, a column at a time.

    It begins twice: with the warm-up, and with what is measured.
    """
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.publisher(workload.name, batch=workload.batch) as out,
    ):
        begin()
        for first in range(0, workload.warm_up, workload.batch):
            out.publish_many(*columns_of(workload, first, workload.warm_up))
        out.flush()
        begin()
        stopwatch, start = Stopwatch(), time.monotonic()
        for first in range(workload.warm_up, workload.messages, workload.batch):
            due = start + (first - workload.warm_up) / rate if rate else 0.0
            time.sleep(max(0.0, due - time.monotonic()))
            out.publish_many(*columns_of(workload, first, workload.messages))
        out.flush()
        return stopwatch.measured()
