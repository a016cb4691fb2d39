"""Scenarios: benchmarks with the same columns, their workloads and the messages of each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from malamute.bench import relay, workloads, workspace
from malamute.bench.figures import MEBIBYTE, cpu_us, elapsed_seconds, percentile_ms
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import Measured, WorkloadFunction, WorkloadProcess, run_together
from malamute.bench.workloads import Workload


class ScenarioOptions(NamedTuple):
    """Options of the benchmarks. `messages` is for the fastest benchmark; the others take a part of it."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    subscribers: int
    url: str
    directory: Path

    def part(self, divisor: int) -> int:
        """A part of the messages, and a few at least."""
        return max(self.messages // divisor, 10)


class ScenarioRow(NamedTuple):
    """Row of a benchmark. None is for figures that do not apply, or are unknown.

    `per_second` counts deliveries where there are any. Latencies are in milliseconds, processor time in
    microseconds a message (of the broker, and of the processes that send and receive), memory in MiB.
    """

    what: str
    messages: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    broker_cpu_us: float | None
    sender_cpu_us: float | None
    receiver_cpu_us: float | None
    rss_anon_max_mib: float | None
    missing: int


Scenario = Callable[[ScenarioOptions], Iterator[ScenarioRow]]


def row_of(
    what: str, messages: int, deliveries: int, watch: ProcessWatch, sender: Measured, receiver: Measured
) -> ScenarioRow:
    """Return the row of a sender's and a receiver's measurements, which are the same without a receiver."""
    latencies = sorted(receiver.get("latencies", ()))
    memory = watch.anonymous_bytes
    return ScenarioRow(
        what=what,
        messages=messages,
        per_second=round(deliveries / elapsed_seconds(sender, receiver), 1),
        p50_ms=percentile_ms(latencies, 0.50),
        p99_ms=percentile_ms(latencies, 0.99),
        broker_cpu_us=cpu_us(watch.cpu_seconds, messages),
        sender_cpu_us=cpu_us(sender.get("cpu_seconds"), messages),
        receiver_cpu_us=None if receiver is sender else cpu_us(receiver.get("cpu_seconds"), messages),
        rss_anon_max_mib=None if memory is None else round(memory / MEBIBYTE, 1),
        missing=deliveries - receiver.get("received", deliveries),
    )


class ScenarioRun(NamedTuple):
    """One broker for one row: the workload, and the measurements of the broker."""

    workload: Workload
    watch: ProcessWatch


@contextmanager
def scenario_run(options: ScenarioOptions, messages: int, **changes: Any) -> Iterator[ScenarioRun]:
    """Run a broker, or use the one that was named; its process is watched during the block."""
    # On a broker with a past, too, streams, mailboxes and services are new ones.
    name = f"bench-{secrets.token_hex(4)}"
    workload = Workload(
        options.url, name, messages, options.size_bytes, options.batch, options.credit
    )._replace(**changes)
    if options.url:
        yield ScenarioRun(workload, ProcessWatch(0))
        return
    with workspace.broker(options.directory) as broker:
        yield ScenarioRun(workload._replace(url=broker.url), ProcessWatch(broker.pid))


def publish(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """Publish to one subscriber, to many, and to none until all is stored: batched and one at a time."""
    yield _stream(options, "1→1, batched as columns", workloads.publish_columns, 1)
    yield _stream(options, "1→1, batched one by one", workloads.publish_each, 1)
    yield _stream(options, "1→1, one message a command", workloads.publish_each, 5, batch=1)
    yield _stream(options, "1→1, the same, unconfirmed", workloads.publish_unconfirmed, 5)
    yield _stream(options, "1→1, one at a time", workloads.publish_and_wait, 500, stamp_every=1)
    yield _stream(options, "1→1, batched, committed", workloads.publish_columns, 1, committed=True)
    yield _stream(
        options,
        "1→1, one at a time, committed",
        workloads.publish_and_wait,
        500,
        stamp_every=1,
        committed=True,
    )
    yield from _fanout(options)
    yield from _stored(options)


def _stream(
    options: ScenarioOptions, what: str, sender: WorkloadFunction, divisor: int, **changes: int
) -> ScenarioRow:
    with scenario_run(options, options.part(divisor), **changes) as (workload, watch):
        return pair_row(what, workload, watch, (sender, workload), (workloads.subscribe, workload))


def pair_row(
    what: str, workload: Workload, watch: ProcessWatch, sending: tuple[Any, ...], receiving: tuple[Any, ...]
) -> ScenarioRow:
    """Run a sender and a receiver together, and return their row."""
    with watch:
        receiver, sender = run_together(receiving, sending)
    return row_of(what, workload.messages, workload.messages, watch, sender, receiver)


def _fanout(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """Publish to many subscribers, each of which gets everything."""
    subscribers = options.subscribers
    with scenario_run(options, options.part(5)) as (workload, watch):
        with watch:
            receiver, sender = run_together(
                (workloads.subscribe_many, workload, subscribers), (workloads.publish_columns, workload)
            )
        deliveries = workload.messages * subscribers
        yield row_of(
            f"1→{subscribers}, batched, deliveries", workload.messages, deliveries, watch, sender, receiver
        )


def _stored(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """Publish without a subscriber, until all is stored."""
    for what, sender, divisor in (
        ("stored, pipelined", workloads.publish_each, 1),
        ("stored, one at a time", workloads.publish_and_wait, 500),
    ):
        with scenario_run(options, options.part(divisor)) as (workload, watch):
            with watch:
                (measured,) = run_together((sender, workload))
            yield row_of(what, workload.messages, workload.messages, watch, measured, measured)


def mailbox(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """A sender and a recipient who acknowledges."""
    with scenario_run(options, options.part(20)) as (workload, watch):
        yield pair_row(
            "mailbox, batched", workload, watch, (workloads.send, workload), (workloads.receive, workload)
        )


def service(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """Round trips through a worker, and a bare ROUTER."""
    messages = options.part(200)
    for what, assurance in (("service, request stored", "stored"), ("service, request not stored", "none")):
        with scenario_run(options, messages, assurance=assurance) as (workload, watch):
            with watch:
                _, asker = run_together((workloads.answer, workload), (workloads.ask, workload))
            yield row_of(what, messages, messages, watch, asker, asker)
    yield _bare_relay(options, messages)


def _bare_relay(options: ScenarioOptions, messages: int) -> ScenarioRow:
    with WorkloadProcess(relay.relay) as router:
        workload = Workload(router.get(), "", messages, options.size_bytes, 1, 1)
        router.go()
        _, asker = run_together((relay.answer, workload), (relay.ask, workload))
    return row_of("bare ROUTER, nothing stored", messages, messages, ProcessWatch(0), asker, asker)


SCENARIOS: dict[str, Scenario] = {"publish": publish, "mailbox": mailbox, "service": service}
