"""Mailboxes and services at full rate, and a service whose queue is deep beside one whose queue is not.

Whoever sends and takes speaks the protocol in batches and does no work, so that the broker is what is
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

from malamute.cli.bench import ground
from malamute.cli.bench.actors import HEADERS, SUBJECTS, Begin, Clock
from malamute.cli.bench.machine import Watch
from malamute.cli.bench.raw_peer import RawPeer
from malamute.cli.bench.report import MEBIBYTE, each_us, extent, middle
from malamute.cli.bench.stage import Measured, perform
from malamute.cli.daemon import Daemon
from malamute.core.storage import PutMessages
from malamute.protocol.batch import pack_record, unpack_payload
from malamute.protocol.messages import (
    MAILBOX,
    UNLIMITED,
    Ack,
    Credit,
    Deliver,
    Offer,
    Ok,
    Reply,
    Request,
    Send,
    Stored,
)

NAME = "bench"
SHALLOW = 100
"""Requests in the queue that is not deep."""

WINDOW = 8
"""Commands of a pipeline that wait for their confirmation."""

SPARE_BYTES = 512
"""What a queued message takes beyond its body, at the most."""


class Options(NamedTuple):
    """What was asked for. `depth` is the number of requests in the deep queue."""

    messages: int
    depth: int
    size_bytes: int
    batch: int
    rounds: int
    directory: Path


class Row(NamedTuple):
    """One way to use a queue. `start_seconds` is how long the broker took to answer, with what was queued."""

    what: str
    messages: int
    start_seconds: float
    per_second: float
    extent: list[float]
    broker_cpu_us: float | None
    rss_anon_max_mib: float | None


class Plan(NamedTuple):
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


def measure(options: Options) -> Iterator[Row]:
    """Each way to use a queue."""
    yield _rounds("mailbox, send → stored", options, [0])[0]
    yield _rounds("mailbox, deliver and ack", options, [0])[0]
    yield _rounds("service, request → reply", options, [0])[0]
    yield from _rounds("service, dispatch and ack, depth", options, [SHALLOW, options.depth])


def _rounds(what: str, options: Options, depths: list[int]) -> list[Row]:
    runs: dict[int, list[tuple[float, Measured, Watch]]] = {depth: [] for depth in depths}
    for _ in range(options.rounds):
        for depth in depths:
            runs[depth].append(_run(what, options, depth))
    return [_row(f"{what} {depth:,}" if depth else what, options, found) for depth, found in runs.items()]


def _row(what: str, options: Options, runs: list[tuple[float, Measured, Watch]]) -> Row:
    rates = [m["messages"] / (m["end_ns"] - m["start_ns"]) * 1e9 for _, m, _ in runs]
    cpu = [each_us(w.cpu_seconds, m["messages"]) for _, m, w in runs]
    memory = [w.anonymous_bytes or 0 for _, _, w in runs]
    return Row(
        what,
        runs[0][1]["messages"],
        middle(seconds for seconds, _, _ in runs),
        middle(rates),
        extent(rates),
        middle(us or 0.0 for us in cpu),
        round(max(memory) / MEBIBYTE, 1),
    )


def _run(what: str, options: Options, depth: int) -> tuple[float, Measured, Watch]:
    """One round on a broker of its own."""
    held_bytes = (depth + options.messages) * (options.size_bytes + SPARE_BYTES)
    size = max(ground.SIZE_LEAST, 3 * held_bytes)
    ground.check_room(options.directory, held_bytes * 2)
    queued = depth + options.messages + options.batch * WINDOW
    settings = ground.set_options(
        f"storage.size={size}",
        "storage.preallocate=false",
        "storage.streams_share=0.05",
        f"limits.queues_bytes={size // 2}",
        f"limits.queue_bytes={size // 2}",
        f"limits.queues_messages={2 * queued}",
        f"limits.queue_messages={queued}",
    )
    with ground.place(options.directory) as place:
        if depth:
            fill(place / "data", size, Plan("", depth, options.size_bytes, min(options.batch, SHALLOW)))
        begin = time.monotonic()
        with Daemon(place, *settings) as broker:
            seconds = time.monotonic() - begin
            plan = Plan(broker.url, options.messages, options.size_bytes, options.batch)
            watch = Watch(broker.pid)
            with watch:
                if what.startswith("mailbox, deliver"):
                    perform((send, plan))
                    measured = perform((take, plan))[0]
                elif what.startswith("mailbox"):
                    measured = perform((send, plan))[0]
                elif depth:
                    part = plan._replace(batch=min(plan.batch, SHALLOW))
                    measured = perform((work_off, part))[0]
                else:
                    part = plan._replace(messages=max(plan.messages // 4, 10))
                    measured = perform((ask, part), (answer, part))[0]
    return seconds, measured, watch


def fill(directory: Path, size: int, plan: Plan) -> None:
    """Put requests into the queue of a service."""
    from malamute.journal.disk import DiskStore

    store = DiskStore.open(directory, size=size, preallocate=False, streams_budget=size // 20)
    try:
        store.recover()
        moment = time.time_ns()
        for first in plan.batches:
            store.write([PutMessages("service", NAME, first + 1, moment, "asker", *plan.columns(first))])
    finally:
        store.close()


def send(begin: Begin, plan: Plan) -> Measured:
    """Send to a mailbox, confirmed and in a pipeline, until all is stored."""
    with RawPeer(plan.url, "sender") as peer:
        begin()
        clock = Clock()
        confirmed = 0
        for number, first in enumerate(plan.batches, 1):
            subjects, records = plan.columns(first)
            peer.tell(Send(NAME, number, subjects, records))
            while number - confirmed >= WINDOW:
                confirmed = _confirmed(peer)
        while confirmed < len(plan.batches):
            confirmed = _confirmed(peer)
        return clock.measured(messages=plan.messages)


def _confirmed(peer: RawPeer) -> int:
    last: int = peer.next(Stored).ranges[-1][1]
    return last


def take(begin: Begin, plan: Plan) -> Measured:
    """Take all that is in a mailbox, and acknowledge it."""
    with RawPeer(plan.url, NAME) as peer:
        begin()
        clock = Clock()
        peer.tell(Credit(MAILBOX, 10 * plan.batch, UNLIMITED))
        taken = 0
        while taken < plan.messages:
            sequences = _sequences(peer)
            taken += len(sequences)
            peer.tell(Ack(MAILBOX, [[sequences[0], sequences[-1]]]))
            peer.tell(Credit(MAILBOX, len(sequences), 0))
        return clock.measured(messages=taken)


def _sequences(peer: RawPeer) -> list[int]:
    delivery = peer.next(Deliver)
    return [*unpack_payload(delivery.payload, delivery.large).each_sequence()]


def work_off(begin: Begin, plan: Plan) -> Measured:
    """Take requests, acknowledge them, and put as many new ones behind the others."""
    with RawPeer(plan.url, "worker") as peer:
        begin()
        clock = Clock()
        peer.tell(Offer(1, NAME, [["all", ""]], plan.batch, UNLIMITED))
        taken = 0
        subjects, records = plan.columns(0)
        for number in count(1):
            sequences = _sequences(peer)
            taken += len(sequences)
            peer.tell(Request(NAME, 0, subjects[: len(sequences)], records[: len(sequences)]))
            peer.tell(Ack(1, [[sequences[0], sequences[-1]]]))
            peer.tell(Credit(1, len(sequences), 0))
            if taken >= plan.messages:
                return clock.measured(messages=taken, deliveries=number)
        raise AssertionError("counting has no end")


def ask(begin: Begin, plan: Plan) -> Measured:
    """Make requests in a pipeline, until all of them are answered."""
    with RawPeer(plan.url, "asker") as peer:
        peer.tell(Credit(MAILBOX, UNLIMITED, UNLIMITED))
        begin()
        clock = Clock()
        asked = answered = number = 0
        while answered < plan.messages:
            while asked < plan.messages and asked - answered < 4 * plan.batch:
                number += 1
                subjects, records = plan.columns(asked)
                peer.tell(Request(NAME, number, subjects, records))
                asked += len(subjects)
            sequences = _sequences(peer)
            answered += len(sequences)
            peer.tell(Ack(MAILBOX, [[sequences[0], sequences[-1]]]))
        return clock.measured(messages=answered)


def answer(begin: Begin, plan: Plan) -> Measured:
    """Answer each request with its own body."""
    with RawPeer(plan.url, "worker") as peer:
        peer.tell(Offer(1, NAME, [["all", ""]], 4 * plan.batch, UNLIMITED))
        peer.next(Ok)
        begin()
        clock = Clock()
        answered = 0
        while answered < plan.messages:
            delivery = peer.next(Deliver)
            columns = unpack_payload(delivery.payload, delivery.large)
            sequences = [*columns.each_sequence()]
            answered += len(sequences)
            for first in range(0, len(sequences), plan.batch):
                part = slice(first, first + plan.batch)
                finals = [True] * len(sequences[part])
                peer.tell(Reply(1, 0, sequences[part], finals, columns.records[part]))
            peer.tell(Credit(1, len(sequences), 0))
        peer.tell(Credit(1, 0, 0))
        return clock.measured(messages=answered)
