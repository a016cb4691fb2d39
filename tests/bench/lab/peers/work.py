"""What a workload is given, whichever library it uses, and what those that receive count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lab.peers.server import HOST
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch, Workload

NAME = "bench"
"""The subject, topic, stream, queue or service."""


class PeerWork(NamedTuple):
    """How much of what, and where. `workload` has the body, and what ours needs."""

    workload: Workload
    ports: Sequence[int]
    subscribers: int

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self.ports[0]

    @property
    def host(self) -> str:
        """The address of the server."""
        return HOST

    @property
    def messages(self) -> int:
        """Messages that are sent."""
        return self.workload.messages

    @property
    def batches(self) -> list[int]:
        """The messages of each batch."""
        every = range(0, self.messages, self.workload.batch)
        return [min(self.workload.batch, self.messages - first) for first in every]

    @property
    def body(self) -> bytes:
        """What each message carries."""
        return self.workload.body


class ArrivalCount:
    """Counts what comes in one thread, and calls `done` with the last."""

    def __init__(self, expected: int, done: Callable[[], object]) -> None:
        self.received = 0
        self._expected = expected
        self._done = done

    def add(self) -> None:
        """One more has come."""
        self.received += 1
        if self.received == self._expected:
            self._done()


class ArrivalCounts:
    """Those of several threads, and a wait for all of them."""

    def __init__(self, count: int, expected: int) -> None:
        self._missing = threading.Semaphore(0)
        self.each = [ArrivalCount(expected, self._missing.release) for _ in range(count)]

    def measure(self, begin: Begin) -> Measured:
        """Begin, and wait until all has come, or for `TIMEOUT_SECONDS`."""
        begin()
        stopwatch = Stopwatch()
        give_up_at = time.monotonic() + TIMEOUT_SECONDS
        for _ in self.each:
            self._missing.acquire(timeout=max(0.0, give_up_at - time.monotonic()))
        return stopwatch.measured(received=sum(count.received for count in self.each))


def ask_one_by_one(begin: Begin, work: PeerWork, ask: Callable[[], object]) -> Measured:
    """Ask so often, or publish and wait; how long each took."""
    latencies: list[int] = []
    begin()
    stopwatch = Stopwatch()
    for _ in range(work.messages):
        start_ns = time.monotonic_ns()
        ask()
        latencies.append(time.monotonic_ns() - start_ns)
    return stopwatch.measured(received=work.messages, latencies=latencies)
