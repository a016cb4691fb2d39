"""What a gateway does in a second, and what a page that follows a stream takes of its memory.

Broker and gateway are processes, as `malamute broker run` and `malamute gateway run` start them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from lab import http_peers
from lab.broker_limits import memory_for
from lab.http_peers import HttpAddress
from malamute.bench import workloads, workspace
from malamute.bench.figures import elapsed_seconds, extent, middle, us_each
from malamute.bench.machine import anonymous_bytes, cpu_seconds
from malamute.bench.processes import WorkloadProcess, run_together
from malamute.bench.workloads import BATCH, TIMEOUT_SECONDS, Workload
from malamute.client.sync.client import Client, connect
from malamute.errors import MalamuteError
from malamute.protocol.admin import TotalsQuery
from malamute.protocol.time_units import to_ms, to_ns
from malamute.server.process import STOP_SECONDS, BrokerProcess, environment

HISTORY, LIVE, POSTED = "history", "live", "posted"
KIBIBYTE = 1 << 10

REQUESTS_SHARE = 50
"""Of so many messages one is posted by itself."""

LINES = 1000
"""Messages in a body of NDJSON."""

LINES_CONNECTIONS = 2
"""Connections that bodies of NDJSON are posted over."""


class GatewayOptions(NamedTuple):
    """What was asked for. `rate` is events a second, for `seconds`."""

    messages: int
    size_bytes: int
    pages: int
    rate: int
    seconds: int
    connections: int
    streams: int
    rounds: int
    directory: Path


class GatewayRow(NamedTuple):
    """One figure: the median of the rounds, and their extent where there are several.

    `gateway_us` is the processor time of the gateway for each event, message or answer: what a machine that
    has others to serve does not change much.
    """

    what: str
    unit: str
    value: float
    extent: list[float] | None
    gateway_us: float | None
    expected: str
    note: str


class GatewayProcess(NamedTuple):
    """A gateway that listens at `address`, as the process `pid`."""

    address: HttpAddress
    pid: int


@contextmanager
def run_gateway(broker: BrokerProcess) -> Iterator[GatewayProcess]:
    """A gateway of this broker, as a process."""
    where = ["--listen", "127.0.0.1:0", "--broker", broker.url, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "malamute", "gateway", "run", *where],
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,  # a Control-C is for us; we stop it
        text=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            line = process.stdout.readline()
        if not line:
            raise MalamuteError("the gateway did not start")
        url = urlsplit(json.loads(line)["urls"][0])
        yield GatewayProcess(HttpAddress(url.hostname or "", url.port or 0), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(options: GatewayOptions) -> Iterator[GatewayRow]:
    """Events, messages that are posted, and pages about a broker with many streams."""
    with workspace.broker(options.directory) as broker:
        with run_gateway(broker) as gateway:
            yield _one_page(options, broker, gateway)
        yield from _many_pages(options, broker)
        with run_gateway(broker) as gateway:
            yield from _posts(options, gateway)
    yield from _monitoring(options)


# Events


def _one_page(options: GatewayOptions, broker: BrokerProcess, gateway: GatewayProcess) -> GatewayRow:
    run_together((workloads.publish_columns, _workload(options, broker)))
    path = f"/v1/streams/{HISTORY}/events?start=first"
    rates = []
    before = cpu_seconds(gateway.pid)
    for _ in range(options.rounds):
        (page,) = run_together((http_peers.read_page, gateway.address, path, options.messages))
        rates.append(options.messages / elapsed_seconds(page, page))
    cost = us_each(cpu_seconds(gateway.pid) - before, options.messages * options.rounds)
    return _row("one page, a history", "events/s", rates, ">= 20,000", gateway_us=cost)


def _workload(options: GatewayOptions, broker: BrokerProcess) -> Workload:
    return Workload(broker.url, HISTORY, options.messages, options.size_bytes, BATCH, 0)


def _many_pages(options: GatewayOptions, broker: BrokerProcess) -> Iterator[GatewayRow]:
    """Many pages: first each has a filter of its own and its share of the messages, and then all get all.

    Each of both has a gateway of its own: what one has allocated would be there for the other.
    """
    rate, count = f"{options.rate:,}/s", options.rate * options.seconds
    cases = (
        (f"each its own filter, {rate} together", "pattern=page.{}", options.pages, count),
        (f"one filter, {rate} each", "", 1, count * options.pages),
    )
    for what, selection, subjects, events in cases:
        with run_gateway(broker) as gateway, connect(broker.url, timeout=TIMEOUT_SECONDS) as client:
            yield from _crowd(options, client, gateway, what, selection, subjects, events)


def _crowd(
    options: GatewayOptions,
    client: Client,
    gateway: GatewayProcess,
    what: str,
    selection: str,
    subjects: int,
    events: int,
) -> Iterator[GatewayRow]:
    """So many events come to pages with this selection, by messages of so many subjects."""
    path = f"/v1/streams/{LIVE}/events?{selection}"
    messages = options.rate * options.seconds
    client.publish(LIVE, "first", b"")
    client.flush()
    # The first page makes what they all share.
    first = http_peers.EventCounter(gateway.address, path.format(0))
    before_bytes = anonymous_bytes(gateway.pid)
    with WorkloadProcess(http_peers.read_pages, gateway.address, path, options.pages, events) as crowd:
        crowd.get()
        idle_bytes = anonymous_bytes(gateway.pid) - before_bytes
        first.socket.close()
        used_seconds = cpu_seconds(gateway.pid)
        crowd.go()
        start = time.monotonic()
        for number in range(messages):
            time.sleep(max(0.0, start + number / options.rate - time.monotonic()))
            client.publish(LIVE, f"page.{number % subjects}", b"x" * options.size_bytes)
        client.flush()
        crowd.get()
        grown_bytes = anonymous_bytes(gateway.pid) - before_bytes
        used_seconds = cpu_seconds(gateway.pid) - used_seconds
        crowd.go()
        found = crowd.get()
    yield _row(
        f"{options.pages:,} pages, {what}",
        "events/s",
        [events / elapsed_seconds(found, found)],
        f">= {events / options.seconds:,.0f}",
        f"{events:,} came, none was missing",
        gateway_us=us_each(used_seconds, events),
    )
    each = [size / KIBIBYTE / options.pages for size in (idle_bytes, grown_bytes)]
    note = f"{each[0]:.1f} before the first event, {each[1]:.1f} after the last"
    yield _row(f"{options.pages:,} pages, memory of each at the most", "KiB", [max(each)], "<= 60", note)


# Messages that are posted


def _posts(options: GatewayOptions, gateway: GatewayProcess) -> Iterator[GatewayRow]:
    path = f"/v1/streams/{POSTED}/messages?subject=s"
    body = "x" * options.size_bytes
    single = max(options.messages // REQUESTS_SHARE, options.connections)
    lines = min(LINES, options.messages)
    line = json.dumps({"subject": "s", "body": body}).encode() + b"\n"
    cases = (
        ("POST of one message", "text/plain", body.encode(), options.connections, single, 1, ">= 3,000"),
        (
            f"POST of {lines:,} as NDJSON",
            "application/x-ndjson",
            line * lines,
            LINES_CONNECTIONS,
            max(options.messages // lines, LINES_CONNECTIONS),
            lines,
            ">= 100,000",
        ),
    )
    for what, kind, content, connections, requests, each, expected in cases:
        rates = []
        before = cpu_seconds(gateway.pid)
        for _ in range(options.rounds):
            parts = (gateway.address, path, kind, content, connections, requests)
            (posted,) = run_together((http_peers.post, *parts))
            rates.append(requests * each / elapsed_seconds(posted, posted))
        cost = us_each(cpu_seconds(gateway.pid) - before, requests * each * options.rounds)
        yield _row(what, "messages/s", rates, expected, f"{connections} connections", gateway_us=cost)


# Pages about a broker with many streams


def _monitoring(options: GatewayOptions) -> Iterator[GatewayRow]:
    """How long they take, and the longest iteration of the broker meanwhile.

    The streams are made by another run of the broker: its own iterations count from its start on.
    """
    settings = workspace.set_options(memory_for("streams", options.streams + 100))
    with workspace.temporary_directory(options.directory) as own:
        with (
            BrokerProcess(own, *settings) as broker,
            connect(broker.url, timeout=TIMEOUT_SECONDS) as client,
        ):
            for number in range(options.streams):
                client.publish(f"s{number}", "s", b"")
            client.flush()
        with BrokerProcess(own, *settings) as broker, run_gateway(broker) as gateway:
            for path, expected in (("/metrics", "<= 100"), ("/", "<= 300")):
                http_peers.get_ms(gateway.address, path)
                before = cpu_seconds(gateway.pid)
                took = [http_peers.get_ms(gateway.address, path) for _ in range(options.rounds)]
                cost = us_each(cpu_seconds(gateway.pid) - before, options.rounds)
                what = f"GET {path}, {options.streams:,} streams"
                yield _row(what, "ms", took, expected, gateway_us=cost)
            with connect(broker.url, timeout=TIMEOUT_SECONDS) as client:
                longest = to_ms(to_ns(client.query(TotalsQuery()).iterations.longest_seconds))
    note = "since its start, all of the above"
    yield _row("the broker's longest iteration meanwhile", "ms", [longest], "", note)


def _row(
    what: str,
    unit: str,
    found: list[float],
    expected: str,
    note: str = "",
    *,
    gateway_us: float | None = None,
) -> GatewayRow:
    """The row of what was found in the rounds."""
    several = extent(found) if len(found) > 1 else None
    cost = None if gateway_us is None else round(gateway_us, 2)
    return GatewayRow(what, unit, middle(found), several, cost, expected, note)
