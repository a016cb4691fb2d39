"""Connections that do nothing: how many one broker holds, and what each of them costs it.

They are those of the client, as any program makes them, and nobody uses them while it is measured: what they
say then, the threads of libzmq say. Whether one broke shows when it is used again at the end. Beside them
three workers are busy with a request for longer than a peer may be silent: in C code that holds the
interpreter's lock, in pure Python, and asleep. Another one is stopped with a request in its hands, and given
up sooner or later.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import zmq

from malamute.bench import workspace
from malamute.bench.machine import ProcessWatch, anonymous_bytes
from malamute.bench.processes import Measured, WorkloadProcess
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin
from malamute.client.events import Event, Lost
from malamute.client.sync.client import Client, connect

CROWD = 2_000
"""Connections of one process. Each has four files open there; at the broker it is one."""

SHARE = 250
"""Connections of one context, whose thread keeps all their heartbeats."""

SOCKETS_EACH = 6
"""Of a connection: its own, and the two ends of its monitor; and again while a slow attempt makes room."""

FEW = 10
"""The first row has this part of the connections, to show what the number of them does."""

KIBIBYTE = 1 << 10

STOPPED, BUSY = "bench.stopped", "bench.busy."

BUSY_SECONDS = 12.0
"""More than the 10 s within which a peer that hangs is given up."""

COUNT = 10_000_000
"""Numbers whose addition, one call into C, shows how many take so long."""


def add_up(seconds: float) -> None:
    """Be busy in one call that lets no other thread of Python run."""
    start = time.perf_counter()
    sum(range(COUNT))
    sum(range(int(COUNT * seconds / (time.perf_counter() - start))))


def count_up(seconds: float) -> None:
    """Be busy in Python."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


OCCUPATIONS = {"c": add_up, "python": count_up, "sleep": time.sleep}
"""How a worker is busy for so many seconds."""


class IdleOptions(NamedTuple):
    """What was asked for. `seconds` is how long nothing is done."""

    connections: int
    seconds: int
    directory: Path


class IdleRow(NamedTuple):
    """What so many connections come to.

    `held` are those that answer at the end, and `flaps` is how often one broke. Memory is the anonymous
    memory of the broker less that before they came. Processor time is that of a minute with nothing to do.
    `busy_workers_attempts` is how often a request was delivered whose worker was only busy, at the most, and
    `stopped_worker_seconds` is how long a worker whose process was stopped kept its own.
    """

    what: str
    held: int
    flaps: int
    connect_seconds: float
    anonymous_kib_each: float
    broker_cpu_seconds_a_minute: float
    clients_cpu_seconds_a_minute: float
    busy_workers_attempts: int
    stopped_worker_seconds: float


def measure(options: IdleOptions) -> Iterator[IdleRow]:
    """A few connections, and all of them."""
    for connections in (max(1, options.connections // FEW), options.connections):
        yield _measure(options, connections)


def _measure(options: IdleOptions, connections: int) -> IdleRow:
    with workspace.broker(options.directory) as broker, ExitStack() as stack:
        connect(broker.url, timeout=TIMEOUT_SECONDS).close()
        before_bytes = anonymous_bytes(broker.pid)
        start = time.monotonic()
        crowds = []
        for first in range(0, connections, CROWD):
            crowd = stack.enter_context(WorkloadProcess(stay, broker.url, min(CROWD, connections - first)))
            crowd.get()
            crowds.append(crowd)
        connect_seconds = time.monotonic() - start
        watches = _do_nothing(options.seconds, [broker.pid, *(crowd.pid for crowd in crowds)])
        used_bytes = anonymous_bytes(broker.pid) - before_bytes
        busy_workers_attempts = _occupy_workers(broker.url)
        stopped_worker_seconds = _stop_worker(broker.url)
        for crowd in crowds:
            crowd.go()
        ends = [crowd.get() for crowd in crowds]
    broker_cpu, *clients_cpu = [(watch.cpu_seconds or 0.0) * 60 / options.seconds for watch in watches]
    return IdleRow(
        what=f"{connections:,} connections",
        held=sum(end["held"] for end in ends),
        flaps=sum(end["flaps"] for end in ends),
        connect_seconds=round(connect_seconds, 3),
        anonymous_kib_each=round(used_bytes / KIBIBYTE / connections, 1),
        broker_cpu_seconds_a_minute=round(broker_cpu, 2),
        clients_cpu_seconds_a_minute=round(sum(clients_cpu), 2),
        busy_workers_attempts=busy_workers_attempts,
        stopped_worker_seconds=round(stopped_worker_seconds, 1),
    )


def _do_nothing(seconds: int, pids: Sequence[int]) -> list[ProcessWatch]:
    """Wait, and see what these processes do meanwhile."""
    with ExitStack() as stack:
        watches = [stack.enter_context(ProcessWatch(pid)) for pid in pids]
        time.sleep(seconds)
    return watches


def _occupy_workers(url: str) -> int:
    """Have workers busy for long, and others wait for their requests. Returns how many got one of them."""
    with connect(url, timeout=TIMEOUT_SECONDS) as client, ExitStack() as stack:
        workers = {
            how: stack.enter_context(WorkloadProcess(occupy, url, how, BUSY_SECONDS)) for how in OCCUPATIONS
        }
        for how, worker in workers.items():
            client.request(BUSY + how, "do", timeout=TIMEOUT_SECONDS)
            client.flush()
            worker.get()
        others = {how: stack.enter_context(client.work(BUSY + how)) for how in workers}
        for worker in workers.values():
            worker.go()
        attempts = [int(worker.get()["attempts"]) for worker in workers.values()]
        client.flush()
        for other in others.values():
            while other.waiting:
                request = other.receive()
                attempts.append(request.attempts)
                request.reply()
    return max(attempts)


def _stop_worker(url: str) -> float:
    """Stop the process of a worker that has a request. Returns the seconds until another one has it."""
    with connect(url, timeout=TIMEOUT_SECONDS) as client, WorkloadProcess(hold, url) as stuck:
        client.request(STOPPED, "do", timeout=TIMEOUT_SECONDS)
        client.flush()
        stuck.get()
        os.kill(stuck.pid, signal.SIGSTOP)
        start = time.monotonic()
        try:
            client.work(STOPPED).receive(TIMEOUT_SECONDS).reply()
            return time.monotonic() - start
        finally:
            os.kill(stuck.pid, signal.SIGCONT)


def hold(begin: Begin, url: str) -> Measured:
    """Take a request, and be busy with it."""
    with connect(url, timeout=TIMEOUT_SECONDS) as client:
        client.work(STOPPED).receive(TIMEOUT_SECONDS)
        begin()
    return {}


def occupy(begin: Begin, url: str, how: str, seconds: float) -> Measured:
    """Take a request, and be busy with it in this way."""
    with connect(url, timeout=TIMEOUT_SECONDS) as client:
        request = client.work(BUSY + how).receive(TIMEOUT_SECONDS)
        begin()
        OCCUPATIONS[how](seconds)
        request.reply()
        client.flush()
    return {"attempts": request.attempts}


def stay(begin: Begin, url: str, connections: int) -> Measured:
    """Connect so often, do nothing, and report in the end what became of it."""
    from malamute.door.files import raise_file_limit

    raise_file_limit()
    lost: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, Lost):
            lost.append(event)

    clients: list[Client] = []
    while len(clients) < connections:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, SHARE * SOCKETS_EACH)
        share = min(SHARE, connections - len(clients))
        clients += [connect(url, timeout=TIMEOUT_SECONDS, context=context) for _ in range(share)]
    for client in clients:
        client.on_event = watch
    begin()
    for client in clients:
        client.close()
    return {"held": len(clients), "flaps": len(lost)}
