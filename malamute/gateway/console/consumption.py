"""Readers of streams with their lag and its trend; consumers of queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

from msgspec.structs import asdict

from malamute.aio import Client
from malamute.errors import NotFound
from malamute.protocol.admin import (
    ClientDetails,
    ClientRow,
    ClientsQuery,
    StreamQuery,
    SubscriptionRow,
    WorkerRow,
)

TRAIL = 90
"""Number of samples kept of each subscription."""

STREAMS_MAX = 20
"""Streams queried for lag in seconds at a sample: those with the largest lag in messages."""

TREND_LOOKS = 30
"""Number of samples for a trend: about a minute."""

STEADY = 0.02
"""A lag that has changed by no more than this fraction, or by 1, is steady: at such a rate a reader needs an
hour to catch up."""


class StreamConsumer(NamedTuple):
    """A subscription with the client that has it. Its lag in seconds is None where it was not queried."""

    client: str
    address: str
    software: str
    connected: bool
    subscription: SubscriptionRow
    lag_seconds: float | None
    trail: tuple[tuple[str, int], ...]
    """State and lag at the last samples, the newest at the end."""

    @property
    def name(self) -> str:
        """Return the name of the subscription for people."""
        return self.address or self.client

    @property
    def trend(self) -> str:
        """Return whether the lag grows."""
        return trend_of([lag for _, lag in self.trail])


def trend_of(lags: list[int] | list[float]) -> str:
    """Return the trend of a lag: `rising`, `falling` or `steady`."""
    if len(lags) < 2 or not any(lags):
        return "steady"
    before, now = lags[-min(len(lags), TREND_LOOKS)], lags[-1]
    if abs(now - before) <= max(1, STEADY * max(before, now)):
        return "steady"
    return "rising" if now > before else "falling"


class ClientTraffic(NamedTuple):
    """Messages that a client has sent and received: in total, and per second since the last sample."""

    sent: int
    received: int
    sent_rate: float | None = None
    received_rate: float | None = None

    def since(self, before: ClientTraffic | None, seconds: float) -> ClientTraffic:
        """Return the traffic with rates over `seconds`. A session that began anew has none."""
        if before is None or self.sent < before.sent or self.received < before.received or seconds <= 0:
            return self
        sent, received = self.sent - before.sent, self.received - before.received
        return self._replace(sent_rate=sent / seconds, received_rate=received / seconds)


class Consumption:
    """The subscriptions of all clients over time, and their consumption of queues at the last sample."""

    def __init__(self) -> None:
        self._trails: dict[tuple[str, int], deque[tuple[str, int]]] = {}
        self.consumers: list[StreamConsumer] = []
        self.by_queue: dict[tuple[str, str], list[WorkerRow]] = {}
        """The shared consumers of a mailbox, or the workers of a service, by kind and name."""
        self.traffic: dict[str, ClientTraffic] = {}
        """Return the traffic of each client by its id."""
        self._looked_at = 0.0
        self.lag_seconds = 0.0
        """Return the largest lag of a reader."""

    async def look(self, client: Client, timeout: float) -> list[StreamConsumer]:
        """Query all subscriptions, the largest lag first. `timeout` is in seconds."""
        rows = await client.query(ClientsQuery(details=True), timeout=timeout)
        self._note_traffic(rows, monotonic())
        self.by_queue = _by_queue(rows)
        found = [(row, one) for row in rows for one in getattr(row, "subscriptions", ())]
        found.sort(key=lambda pair: pair[1].lag, reverse=True)
        behind = list(dict.fromkeys(one.stream for _, one in found if one.lag))[:STREAMS_MAX]
        lags: dict[tuple[str, str], float] = {}
        for stream in behind:
            try:
                details = await client.query(StreamQuery(name=stream), timeout=timeout)
            except NotFound:
                continue
            for reader in details.readers:
                key = reader.client, stream
                lags[key] = max(lags.get(key, 0.0), reader.lag_seconds)
        trails = self._trails
        self._trails = {}
        self.consumers = []
        for row, one in found:
            place = row.id, one.source
            trail = self._trails[place] = trails.get(place, deque(maxlen=TRAIL))
            trail.append((one.state, one.lag))
            seconds = lags.get((row.id, one.stream)) if one.lag else 0.0
            self.consumers.append(
                StreamConsumer(row.id, row.address, row.software, row.connected, one, seconds, tuple(trail))
            )
        self.lag_seconds = max((one.lag_seconds or 0.0 for one in self.consumers), default=0.0)
        return self.consumers

    def _note_traffic(self, rows: Iterable[ClientDetails | ClientRow], now: float) -> None:
        before, seconds = self.traffic, now - self._looked_at
        counted = {row.id: ClientTraffic(row.sent or 0, row.received or 0) for row in rows}
        self.traffic = {name: one.since(before.get(name), seconds) for name, one in counted.items()}
        self._looked_at = now


def _by_queue(rows: Iterable[ClientDetails | ClientRow]) -> dict[tuple[str, str], list[WorkerRow]]:
    found: dict[tuple[str, str], list[WorkerRow]] = {}
    for row in rows:
        for offer in getattr(row, "offers", ()):
            fields = asdict(offer)
            queue = fields.pop("kind"), fields.pop("service")
            del fields["source"]
            found.setdefault(queue, []).append(WorkerRow(client=row.id, address=row.address, **fields))
    return found
