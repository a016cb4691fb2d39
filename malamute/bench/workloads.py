"""Workloads of the processes of a benchmark. Times are those of the monotonic clock, which they share.

A stamped message has the time in its body, so that its receiver knows how long it took. Where there are
many, only one in `STAMP_EVERY` is stamped and looked into.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from malamute.bench.processes import Measured
from malamute.client.options import SendAssurance
from malamute.client.session.message import Message
from malamute.client.sync.client import connect
from malamute.client.sync.receipts import Receipt
from malamute.protocol.batch import Headers

STAMP_EVERY = 100
TIMEOUT_SECONDS = 60.0
QUIET_SECONDS = 10.0
"""How long a subscriber waits for more; messages that were refused or overwritten never come."""
BATCH = 1000
HEADERS: Headers = {"unit": "C", "station": "oslo", "quality": 17}
SUBJECTS = [f"temp.oslo.{number}" for number in range(100)]
PATTERN = "temp.#"
STAMP = struct.Struct("<q")

Begin = Callable[[], object]
Columns = tuple[list[str], list[bytes], list[Headers]]
"""Subjects, bodies and headers of messages."""


class Workload(NamedTuple):
    """The parameters of one run. `name` is the stream, the mailbox or the service.

    The first `warm_up` of the messages are not measured. With `committed` a subscriber gets nothing before it
    is on the disk.
    """

    url: str
    name: str
    messages: int
    size_bytes: int
    batch: int
    credit: int
    assurance: SendAssurance = "stored"
    stamp_every: int = STAMP_EVERY
    warm_up: int = 0
    committed: bool = False

    @property
    def body(self) -> bytes:
        """A body without a stamp."""
        return b"x" * self.size_bytes


class Stopwatch:
    """Stopwatch that runs from its creation."""

    def __init__(self) -> None:
        self._cpu_seconds = time.process_time()
        self._start_ns = time.monotonic_ns()

    def measured(self, **more: object) -> Measured:
        """Return the time of the start, the time now, and the processor time between."""
        end_ns = time.monotonic_ns()
        cpu_seconds = time.process_time() - self._cpu_seconds
        return {"start_ns": self._start_ns, "end_ns": end_ns, "cpu_seconds": cpu_seconds, **more}


def stamped(body: bytes) -> bytes:
    """A body with the time in it."""
    return STAMP.pack(time.monotonic_ns()) + body[STAMP.size :]


def age_ns(message: Message) -> int:
    """How long ago a message was stamped."""
    return time.monotonic_ns() - int(STAMP.unpack_from(message.body)[0])


def subject_of(number: int) -> str:
    """The subject of the message with this number."""
    return SUBJECTS[number % len(SUBJECTS)]


def columns_of(workload: Workload, first: int, end: int) -> Columns:
    """Return subjects, bodies and headers of the batch from the number `first`, which stops before `end`."""
    numbers = range(first, min(first + workload.batch, end))
    bodies = [workload.body] * len(numbers)
    for place in range(-first % workload.stamp_every, len(numbers), workload.stamp_every):
        bodies[place] = stamped(bodies[place])
    return [*map(subject_of, numbers)], bodies, [HEADERS] * len(numbers)


def publish_columns(
    begin: Begin, workload: Workload, columns: Callable[[Workload, int, int], Columns] = columns_of
) -> Measured:
    """Publish confirmed, a column of messages at a time."""
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.publisher(workload.name, batch=workload.batch) as out,
    ):
        begin()
        stopwatch = Stopwatch()
        for first in range(0, workload.messages, workload.batch):
            out.publish_many(*columns(workload, first, workload.messages))
        out.flush()
        return stopwatch.measured()


def publish_each(begin: Begin, workload: Workload) -> Measured:
    """Publish confirmed, a message at a time; how long those with a stamp took to be stored."""
    body, every = workload.body, workload.stamp_every
    waiting: deque[tuple[int, Receipt]] = deque()
    latencies: list[int] = []
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.publisher(workload.name, batch=workload.batch) as out,
    ):
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            if number % every:
                out.publish(subject_of(number), body, HEADERS)
            else:
                now = time.monotonic_ns()
                waiting.append((now, out.publish(subject_of(number), stamped(body), HEADERS)))
                _settle(waiting, latencies)
        out.flush()
        _settle(waiting, latencies)
        return stopwatch.measured(latencies=latencies)


def _settle(waiting: deque[tuple[int, Receipt]], latencies: list[int]) -> None:
    while waiting and waiting[0][1].done:
        latencies.append(time.monotonic_ns() - waiting.popleft()[0])


def publish_unconfirmed(begin: Begin, workload: Workload) -> Measured:
    """Publish a message a command, with no word from the broker but for refusals."""
    body, every = workload.body, workload.stamp_every
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client:
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            client.publish_nowait(
                workload.name, subject_of(number), body if number % every else stamped(body), HEADERS
            )
        client.flush()
        return stopwatch.measured()


def publish_and_wait(begin: Begin, workload: Workload) -> Measured:
    """Publish a message when the one before it is stored; how long each took."""
    latencies: list[int] = []
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client:
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            start_ns = time.monotonic_ns()
            body = stamped(workload.body)
            client.publish(workload.name, subject_of(number), body, HEADERS)
            latencies.append(time.monotonic_ns() - start_ns)
        return stopwatch.measured(latencies=latencies)


def subscribe(begin: Begin, workload: Workload) -> Measured:
    """Take all messages of a stream that is new; how long those with a stamp took to come."""
    received, end_ns = 0, 0
    latencies: list[int] = []
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.subscribe(
            workload.name, PATTERN, credit=workload.credit, committed=workload.committed
        ) as messages,
    ):
        begin()
        stopwatch = Stopwatch()
        while batch := messages.take(BATCH, timeout=QUIET_SECONDS):
            end_ns = time.monotonic_ns()
            received += len(batch)
            latencies += map(age_ns, with_stamps(batch, workload))
            if batch[-1].sequence >= workload.messages:
                break
        return {**stopwatch.measured(received=received, latencies=latencies), "end_ns": end_ns}


def with_stamps(batch: Sequence[Message], workload: Workload) -> Sequence[Message]:
    """Return the stamped messages of a batch, which is the first message of a stream and then every so many.

    Messages before the end of the warm-up are left out, also where a batch holds that end.
    """
    first = batch[0].sequence
    measured = max(0, workload.warm_up + 1 - first)
    return batch[measured + (1 - first - measured) % workload.stamp_every :: workload.stamp_every]


def subscribe_many(begin: Begin, workload: Workload, subscribers: int) -> Measured:
    """As many subscribers, each with a connection and a thread of its own."""
    return run_in_threads(begin, [(subscribe, workload)] * subscribers)


def run_in_threads(begin: Begin, parts: Sequence[tuple[Any, ...]]) -> Measured:
    """Run receivers, each a function with its arguments, in threads of their own."""
    together = threading.Barrier(len(parts) + 1, timeout=TIMEOUT_SECONDS)
    with ThreadPoolExecutor(len(parts)) as pool:
        runs = [pool.submit(play, together.wait, *arguments) for play, *arguments in parts]
        together.wait()
        begin()
        stopwatch = Stopwatch()
        measured = [run.result() for run in runs]
        return stopwatch.measured(
            received=sum(one["received"] for one in measured),
            latencies=[latency for one in measured for latency in one["latencies"]],
        )


def send(begin: Begin, workload: Workload) -> Measured:
    """Send to a mailbox, confirmed and batched."""
    body, every = workload.body, workload.stamp_every
    with (
        connect(workload.url, timeout=TIMEOUT_SECONDS) as client,
        client.sender(workload.name, batch=workload.batch) as out,
    ):
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            out.publish(subject_of(number), body if number % every else stamped(body), HEADERS)
        out.flush()
        return stopwatch.measured()


def receive(begin: Begin, workload: Workload) -> Measured:
    """Take all messages of a mailbox that is new, and acknowledge each."""
    latencies: list[int] = []
    with connect(workload.url, address=workload.name, timeout=TIMEOUT_SECONDS) as client:
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            mail = client.receive(timeout=TIMEOUT_SECONDS)
            if number % workload.stamp_every == 0:
                latencies.append(age_ns(mail))
        return stopwatch.measured(received=workload.messages, latencies=latencies)


def answer(begin: Begin, workload: Workload) -> Measured:
    """Work: answer each request with its own body."""
    with connect(workload.url, timeout=TIMEOUT_SECONDS) as client, client.work(workload.name) as requests:
        begin()
        stopwatch = Stopwatch()
        for _ in range(workload.messages):
            request = requests.receive(timeout=TIMEOUT_SECONDS)
            request.reply(request.body)
        return stopwatch.measured()


def ask(begin: Begin, workload: Workload) -> Measured:
    """Make a request when the one before it is answered; how long each took."""
    latencies: list[int] = []
    with connect(workload.url, address=f"{workload.name}-asker", timeout=TIMEOUT_SECONDS) as client:
        begin()
        stopwatch = Stopwatch()
        for number in range(workload.messages):
            start_ns = time.monotonic_ns()
            replies = client.request(
                workload.name,
                subject_of(number),
                workload.body,
                HEADERS,
                timeout=TIMEOUT_SECONDS,
                assurance=workload.assurance,
            )
            for _ in replies:
                latencies.append(time.monotonic_ns() - start_ns)
        return stopwatch.measured(received=len(latencies), latencies=latencies)
