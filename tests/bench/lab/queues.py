"""Mailboxes and services at full rate, and a service whose queue is deep beside one whose queue is not.

The peers that send and consume speak the protocol in batches and do no work, so that the broker is what is
measured. The queues of different depths are filled by the store itself, in transactions as small as those of
the traffic later. Then one peer takes requests, acknowledges them, and puts as many new ones behind the
others: the depth stays what it is. What differs between the rows is the depth alone, and they are measured in
turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from lab.broker_limits import memory_for
from lab.raw_peer import RawPeer
from malamute.bench import workspace
from malamute.bench.figures import MEBIBYTE, cpu_us, elapsed_seconds, extent, middle
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, run_together
from malamute.bench.workloads import HEADERS, SUBJECTS, Begin, Stopwatch
from malamute.protocol.batch import pack_record, unpack_payload
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.messages import MAILBOX, Ack, Credit, Deliver, Offer, Ok, Reply, Request, Send, Stored
from malamute.server.process import BrokerProcess
from malamute.store.operations import PutMessages

NAME = "bench"
SHALLOW = 100
"""Requests in the queue that is not deep."""

WINDOW = 8
"""Commands of a pipeline that wait for their confirmation."""

SPARE_BYTES = 512
"""What a queued message takes beyond its body, at the most."""


class QueuesOptions(NamedTuple):
    """What was asked for. `depth` is the number of requests in the deep queue."""

    messages: int
    depth: int
    size_bytes: int
    batch: int
    rounds: int
    directory: Path


class QueuesRow(NamedTuple):
    """One way to use a queue. `start_seconds` is how long the broker took to answer, with what was queued."""

    what: str
    messages: int
    start_seconds: float
    per_second: float
    extent: list[float]
    broker_cpu_us: float | None
    rss_anon_max_mib: float | None


class QueueWorkload(NamedTuple):
    """What a peer is to do."""

    url: str
    messages: int
    size_bytes: int
    batch: int

    @property
    def batches(self) -> range:
        """The first message of each batch."""
        return range(0, self.messages, self.batch)

    def columns(self, first: int) -> tuple[list[str], list[bytes]]:
        """The subjects and the records of the batch that begins with this message."""
        size = min(self.batch, self.messages - first)
        record = pack_record(HEADERS, b"x" * self.size_bytes)
        return [SUBJECTS[number % len(SUBJECTS)] for number in range(first, first + size)], [record] * size


def measure(options: QueuesOptions) -> Iterator[QueuesRow]:
    """Each way to use a queue."""
    yield _rounds("mailbox, send → stored", options, [0])[0]
    yield _rounds("mailbox, deliver and ack", options, [0])[0]
    yield _rounds("service, request → reply", options, [0])[0]
    yield from dispatch(options, [SHALLOW, options.depth])


def dispatch(options: QueuesOptions, depths: list[int]) -> list[QueuesRow]:
    """Take requests out of queues of these depths, in turns."""
    return _rounds("service, dispatch and ack, depth", options, depths)


def _rounds(what: str, options: QueuesOptions, depths: list[int]) -> list[QueuesRow]:
    runs: dict[int, list[tuple[float, Measured, ProcessWatch]]] = {depth: [] for depth in depths}
    for _ in range(options.rounds):
        for depth in depths:
            runs[depth].append(_run(what, options, depth))
    return [_row(f"{what} {depth:,}" if depth else what, options, found) for depth, found in runs.items()]


def _row(what: str, options: QueuesOptions, runs: list[tuple[float, Measured, ProcessWatch]]) -> QueuesRow:
    rates = [m["messages"] / elapsed_seconds(m, m) for _, m, _ in runs]
    cpu = [cpu_us(w.cpu_seconds, m["messages"]) for _, m, w in runs]
    memory = [w.anonymous_bytes or 0 for _, _, w in runs]
    return QueuesRow(
        what,
        runs[0][1]["messages"],
        middle(seconds for seconds, _, _ in runs),
        middle(rates),
        extent(rates),
        middle(us or 0.0 for us in cpu),
        round(max(memory) / MEBIBYTE, 1),
    )


def _run(what: str, options: QueuesOptions, depth: int) -> tuple[float, Measured, ProcessWatch]:
    """One round on a broker of its own."""
    held_bytes = (depth + options.messages) * (options.size_bytes + SPARE_BYTES)
    size = max(workspace.STORE_BYTES_MIN, 3 * held_bytes)
    workspace.check_free_space(options.directory, held_bytes * 2)
    queued = depth + options.messages + options.batch * WINDOW
    settings = workspace.set_options(
        f"storage.size={size}",
        "storage.preallocate=false",
        "storage.streams_share=0.05",
        memory_for("queues_messages", 2 * queued),
    )
    with workspace.temporary_directory(options.directory) as place:
        if depth:
            fill(
                place / "data",
                size,
                QueueWorkload("", depth, options.size_bytes, min(options.batch, SHALLOW)),
            )
        begin = time.monotonic()
        with BrokerProcess(place, *settings) as broker:
            seconds = time.monotonic() - begin
            workload = QueueWorkload(broker.url, options.messages, options.size_bytes, options.batch)
            watch = ProcessWatch(broker.pid)
            with watch:
                if what.startswith("mailbox, deliver"):
                    run_together((send, workload))
                    measured = run_together((take, workload))[0]
                elif what.startswith("mailbox"):
                    measured = run_together((send, workload))[0]
                elif depth:
                    part = workload._replace(batch=min(workload.batch, SHALLOW))
                    measured = run_together((work_off, part))[0]
                else:
                    part = workload._replace(messages=max(workload.messages // 4, 10))
                    measured = run_together((ask, part), (answer, part))[0]
    return seconds, measured, watch


def fill(directory: Path, size: int, workload: QueueWorkload) -> None:
    """Put requests into the queue of a service."""
    from malamute.journal.disk import DiskStore

    store = DiskStore.open(directory, size=size, preallocate=False, streams_budget=size // 20)
    try:
        store.recover()
        moment = time.time_ns()
        for first in workload.batches:
            store.write([PutMessages("service", NAME, first + 1, moment, "asker", *workload.columns(first))])
    finally:
        store.close()


def send(begin: Begin, workload: QueueWorkload) -> Measured:
    """Send to a mailbox, confirmed and in a pipeline, until all is stored."""
    with RawPeer(workload.url, "sender") as peer:
        begin()
        stopwatch = Stopwatch()
        confirmed = 0
        for number, first in enumerate(workload.batches, 1):
            subjects, records = workload.columns(first)
            peer.send(Send(NAME, number, subjects, records))
            while number - confirmed >= WINDOW:
                confirmed = _confirmed(peer)
        while confirmed < len(workload.batches):
            confirmed = _confirmed(peer)
        return stopwatch.measured(messages=workload.messages)


def _confirmed(peer: RawPeer) -> int:
    last: int = peer.next(Stored).ranges[-1][1]
    return last


def take(begin: Begin, workload: QueueWorkload) -> Measured:
    """Take all that is in a mailbox, and acknowledge it."""
    with RawPeer(workload.url, NAME) as peer:
        begin()
        stopwatch = Stopwatch()
        peer.send(Credit(MAILBOX, 10 * workload.batch, UNLIMITED))
        taken = 0
        while taken < workload.messages:
            sequences = _sequences(peer)
            taken += len(sequences)
            peer.send(Ack(MAILBOX, [[sequences[0], sequences[-1]]]))
            peer.send(Credit(MAILBOX, len(sequences), 0))
        return stopwatch.measured(messages=taken)


def _sequences(peer: RawPeer) -> list[int]:
    delivery = peer.next(Deliver)
    return [*unpack_payload(delivery.payload, delivery.large).each_sequence()]


def work_off(begin: Begin, workload: QueueWorkload) -> Measured:
    """Take requests, acknowledge them, and put as many new ones behind the others."""
    with RawPeer(workload.url, "worker") as peer:
        begin()
        stopwatch = Stopwatch()
        peer.send(Offer(1, NAME, [["all", ""]], workload.batch, UNLIMITED))
        taken = 0
        subjects, records = workload.columns(0)
        for number in count(1):
            sequences = _sequences(peer)
            taken += len(sequences)
            peer.send(Request(NAME, 0, subjects[: len(sequences)], records[: len(sequences)]))
            peer.send(Ack(1, [[sequences[0], sequences[-1]]]))
            peer.send(Credit(1, len(sequences), 0))
            if taken >= workload.messages:
                return stopwatch.measured(messages=taken, deliveries=number)
        raise AssertionError("counting has no end")


def ask(begin: Begin, workload: QueueWorkload) -> Measured:
    """Make requests in a pipeline, until all of them are answered."""
    with RawPeer(workload.url, "asker") as peer:
        peer.send(Credit(MAILBOX, UNLIMITED, UNLIMITED))
        begin()
        stopwatch = Stopwatch()
        asked = answered = number = 0
        while answered < workload.messages:
            while asked < workload.messages and asked - answered < 4 * workload.batch:
                number += 1
                subjects, records = workload.columns(asked)
                peer.send(Request(NAME, number, subjects, records))
                asked += len(subjects)
            sequences = _sequences(peer)
            answered += len(sequences)
            peer.send(Ack(MAILBOX, [[sequences[0], sequences[-1]]]))
        return stopwatch.measured(messages=answered)


def answer(begin: Begin, workload: QueueWorkload) -> Measured:
    """Answer each request with its own body."""
    with RawPeer(workload.url, "worker") as peer:
        peer.send(Offer(1, NAME, [["all", ""]], 4 * workload.batch, UNLIMITED))
        peer.next(Ok)
        begin()
        stopwatch = Stopwatch()
        answered = 0
        while answered < workload.messages:
            delivery = peer.next(Deliver)
            columns = unpack_payload(delivery.payload, delivery.large)
            sequences = [*columns.each_sequence()]
            answered += len(sequences)
            for first in range(0, len(sequences), workload.batch):
                part = slice(first, first + workload.batch)
                finals = [True] * len(sequences[part])
                peer.send(Reply(1, 0, sequences[part], finals, columns.records[part]))
            peer.send(Credit(1, len(sequences), 0))
        peer.send(Credit(1, 0, 0))
        return stopwatch.measured(messages=answered)
