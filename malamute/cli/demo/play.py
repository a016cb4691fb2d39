"""The steps of the demo in order, and their counts."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from malamute.cli.demo.participants import (
    END,
    SERVICE,
    START_SECONDS,
    WAIT_SECONDS,
    WORKERS,
    Listener,
    working,
)
from malamute.cli.demo.rows import flights, weather
from malamute.cli.demo.tally import TOPICS, DemoTally, Group
from malamute.cli.payload import OutgoingMessage
from malamute.client.session.message import Mail
from malamute.client.sync.client import Client, connect
from malamute.client.sync.consumers import Replies
from malamute.errors import TimedOut

RECIPIENT = "tower"
BATCH = 1000
UNDER_WAY = 8
"""Requests that wait for their replies at the same time."""

Advance = Callable[[str, int], object]
"""Called with progress: a label, and a number of further steps."""


class ResultLine(NamedTuple):
    """One line of the result. Counts that do not apply are None; all others should be equal."""

    what: str
    sent: int | None
    received: int | None
    counted: int

    @property
    def equal(self) -> bool:
        """Return whether no message is missing and none too many."""
        return {self.sent, self.received} <= {None, self.counted}


class Files(NamedTuple):
    """The input files, and the order of requests."""

    flights: Path
    weather: Path
    rows: int | None
    seed: int


class Result(NamedTuple):
    """The result. `shares` are the numbers of requests answered by each worker."""

    lines: list[ResultLine]
    shares: Mapping[str, int]


def play(url: str, files: Files, counted: DemoTally, advance: Advance) -> Result:
    """Run all participants against the broker at `url`. Raises `MalamuteError` on failure."""
    with connect(url, address="demo", timeout=START_SECONDS) as client, working(url) as ready:
        streams = _streams(client, url, files, counted, advance)
        reports = _reports(client, url, counted)
        ready()
        requests, shares = _requests(client, counted.delays, files.seed, advance)
    return Result([*streams, *reports, *requests], shares)


def _streams(
    client: Client, url: str, files: Files, counted: DemoTally, advance: Advance
) -> list[ResultLine]:
    with _listening(url) as listeners:
        sent, sent_bytes = _publish(client, "flights", flights(files.flights, files.rows), advance)
        values, _ = _publish(client, "weather", weather(files.weather), advance)
    everything = listeners[0]
    return [
        ResultLine("flights published", sent, everything.messages, counted.count("flights")),
        ResultLine("bytes of flights", sent_bytes, everything.size_bytes, counted.flight_bytes),
        ResultLine("weather published", values, None, counted.count("weather")),
        *(ResultLine(one.topic.name, None, one.messages, counted.of(one.topic)) for one in listeners),
        ResultLine("gaps reported", None, sum(one.gaps for one in listeners), 0),
    ]


@contextmanager
def _listening(url: str) -> Iterator[list[Listener]]:
    """Subscribers for all topics, which have all messages at the end of the block."""
    listeners = [Listener(url, topic) for topic in TOPICS]
    for listener in listeners:
        listener.start()
        listener.ready.wait(START_SECONDS)
    yield listeners
    for listener in listeners:
        listener.join(WAIT_SECONDS)
        if listener.error is not None:
            raise listener.error
        if listener.is_alive():
            raise TimedOut(f"subscriber of {listener.topic} has not seen the end in time")


def _publish(
    client: Client, stream: str, rows: Iterator[OutgoingMessage], advance: Advance
) -> tuple[int, int]:
    """Publish all rows and the end, confirmed. Return their number, and the bytes of their bodies."""
    messages = size_bytes = 0
    with client.publisher(stream) as out:
        while batch := [*islice(rows, BATCH)]:
            subjects, headers, bodies, _ = zip(*batch, strict=True)
            out.publish_many(subjects, bodies, headers)
            messages += len(batch)
            size_bytes += sum(map(len, bodies))
            advance(stream, len(batch))
        out.flush()
        out.publish(END, b"")
    return messages, size_bytes


def _reports(client: Client, url: str, counted: DemoTally) -> list[ResultLine]:
    """Send a report for each airport of departure to a recipient that connects only afterwards."""
    for origin, departures in counted.origins.items():
        client.send(RECIPIENT, f"report.{origin}", json.dumps({"flights": departures}).encode())
    flights_told = []
    with connect(url, address=RECIPIENT, timeout=START_SECONDS) as recipient:
        for _ in counted.origins:
            flights_told.append(json.loads(recipient.receive(timeout=WAIT_SECONDS).body)["flights"])
    reports = len(counted.origins)
    return [
        ResultLine(f"reports to {RECIPIENT}, who came later", reports, len(flights_told), reports),
        ResultLine("flights in the reports", None, sum(flights_told), counted.count("flights")),
    ]


def _requests(
    client: Client, delays: Mapping[Group, list[int]], seed: int, advance: Advance
) -> tuple[list[ResultLine], Mapping[str, int]]:
    """Ask for the delays of each carrier, origin and month, a few at a time."""
    asked = sorted(delays)
    random.Random(seed).shuffle(asked)
    shares = {kind.name: 0 for kind in WORKERS}
    totals: Counter[str] = Counter()
    for answer in _answers(client, [(f"delay.{group[0]}", delays[group]) for group in asked]):
        shares[answer["worker"]] += 1
        totals.update(replies=1, flights=answer["flights"], minutes=answer["minutes"])
        advance("requests", 1)
    lines = [
        ResultLine("requests answered", len(asked), totals["replies"], len(delays)),
        ResultLine("delays in the answers", None, totals["flights"], sum(map(len, delays.values()))),
        ResultLine("minutes late in the answers", None, totals["minutes"], sum(map(sum, delays.values()))),
    ]
    return lines, shares


def _answers(client: Client, questions: list[tuple[str, list[int]]]) -> Iterator[dict[str, Any]]:
    """Yield the replies of the workers, with several requests under way at the same time."""
    under_way: deque[Replies] = deque()
    for subject, numbers in questions:
        if len(under_way) == UNDER_WAY:
            yield from map(_read, under_way.popleft())
        body = json.dumps(numbers).encode()
        under_way.append(client.request(SERVICE, subject, body, timeout=WAIT_SECONDS))
    for replies in under_way:
        yield from map(_read, replies)


def _read(reply: Mail) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(reply.body)
    return answer
