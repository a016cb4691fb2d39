"""The rounds: for each work all peers in turn, each with a server of its own, and what that comes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lab.peers.server import HOST, free_ports, serve
from lab.peers.table import OWN, PEERS, WORKS, Peer
from lab.peers.work import NAME, PeerWork
from malamute.bench import workspace
from malamute.bench.figures import cpu_us, elapsed_seconds, extent, middle, percentile_ms
from malamute.bench.processes import Measured, run_together
from malamute.bench.workloads import Begin, Workload
from malamute.errors import InvalidValue, NotInstalled


class PeersOptions(NamedTuple):
    """What was asked for. `messages` is for the fastest work; the others take a part of it."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    subscribers: int
    rounds: int
    works: Sequence[str]
    peers: Sequence[str]
    directory: Path


class PeersRow(NamedTuple):
    """One work of one peer: medians of the rounds.

    `per_second` counts deliveries where there are many subscribers. Latencies are there where one message
    waits for the one before. `malamute_ratio` is what Malamute has in the same round in parts of what the
    peer has: of latencies at the median where there are some, and of rates otherwise. Processor time is of
    all processes of the server, in microseconds a message. `missing` did not come.
    """

    what: str
    peer: str
    messages: int
    per_second: float
    extent: list[float]
    p50_ms: float | None
    p99_ms: float | None
    malamute_ratio: float | None
    ratio_extent: list[float] | None
    server_cpu_us: float | None
    missing: int


class PeerRound(NamedTuple):
    """One round of it."""

    messages: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    server_cpu_us: float | None
    missing: int


def take_priority(priority: int | None) -> str:
    """Run this process and all that it starts with a real-time priority; return how they run.

    Raises:
        InvalidValue: the system does not allow that.
    """
    if priority is None:
        return "ordinary"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        raise InvalidValue(
            f"cannot run with the priority {priority}: {error.strerror}; leave it out"
        ) from error
    return f"real-time {priority}"


def choose(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those to measure, and the others with what to install; all that there are for no names.

    Raises:
        NotInstalled: One that is named is not there.
    """
    lacking = {name: "; ".join(PEERS[name].missing) for name in names or PEERS}
    lacking = {name: words for name, words in lacking.items() if words}
    if names and lacking:
        raise NotInstalled("; ".join(f"{name}: {words}" for name, words in lacking.items()))
    return [name for name in PEERS if name in (names or PEERS) and name not in lacking], lacking


def measure(options: PeersOptions) -> Iterator[PeersRow]:
    """Each work with each peer that can do it."""
    for work in options.works:
        able = [PEERS[name] for name in options.peers if work in PEERS[name].parts]
        runs: dict[str, list[PeerRound]] = {peer.name: [] for peer in able}
        for _ in range(options.rounds):
            for peer in able:
                runs[peer.name].append(_run(peer, work, options))
        for peer in able:
            yield _row(work, peer.name, runs[peer.name], runs.get(OWN.name))


def _run(peer: Peer, name: str, options: PeersOptions) -> PeerRound:
    """One round on a server of its own."""
    work = WORKS[name]
    part = peer.parts[name]
    messages = max(10, options.messages // (work.divisor * part.divisor))
    subscribers = options.subscribers if work.many else 1
    with workspace.temporary_directory(options.directory) as place:
        ports = free_ports()
        with serve(peer.serve(place, ports), place, ports) as server:
            url = f"tcp://{HOST}:{ports[0]}"
            workload = Workload(url, NAME, messages, options.size_bytes, options.batch, options.credit)
            stamped = workload._replace(stamp_every=1) if work.by_latency else workload
            given = PeerWork(stamped, ports, subscribers)
            before = server.cpu_seconds
            sides = [(play, side, given) for side in (part.receiver, part.sender) if side]
            measured = run_together(*sides)
            return _result(
                messages * subscribers, server.cpu_seconds - before, measured, by_latency=work.by_latency
            )


def play(begin: Begin, side: str, work: PeerWork) -> Measured:
    """One side of a work, in a process of its own that imports its client."""
    module, _, function = side.partition(":")
    measured: Measured = getattr(import_module(f"lab.peers.{module}"), function)(begin, work)
    return measured


def _result(
    expected: int, cpu_seconds: float, measured: Sequence[Measured], *, by_latency: bool
) -> PeerRound:
    """The sender is the last of those who measured."""
    sender = measured[-1]
    last = sender if by_latency else measured[0]
    latencies = sorted(sender.get("latencies", ())) if by_latency else []
    return PeerRound(
        messages=expected,
        per_second=expected / elapsed_seconds(sender, last),
        p50_ms=percentile_ms(latencies, 0.50),
        p99_ms=percentile_ms(latencies, 0.99),
        server_cpu_us=cpu_us(cpu_seconds, expected),
        missing=expected - last.get("received", expected),
    )


def _row(work: str, peer: str, runs: Sequence[PeerRound], own: Sequence[PeerRound] | None) -> PeersRow:
    ratios = [_ratio(ours, theirs) for ours, theirs in zip(own or (), runs, strict=False)]
    rates = [run.per_second for run in runs]
    return PeersRow(
        what=WORKS[work].what,
        peer=peer,
        messages=runs[0].messages,
        per_second=middle(rates),
        extent=extent(rates),
        p50_ms=_middle([run.p50_ms for run in runs]),
        p99_ms=_middle([run.p99_ms for run in runs]),
        malamute_ratio=_middle(ratios),
        ratio_extent=extent(ratios) if ratios else None,
        server_cpu_us=_middle([run.server_cpu_us for run in runs]),
        missing=max(run.missing for run in runs),
    )


def _ratio(ours: PeerRound, theirs: PeerRound) -> float:
    if ours.p50_ms and theirs.p50_ms:
        return ours.p50_ms / theirs.p50_ms
    return ours.per_second / theirs.per_second


def _middle(values: Sequence[Any]) -> float | None:
    there = [value for value in values if value is not None]
    return round(median(there), 3) if there else None
