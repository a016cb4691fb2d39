"""Readers of streams with their lag and its trend; consumers of queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from time import monotonic
from typing import NamedTuple

from msgspec.structs import asdict

from malamute.aio import Client
from malamute.errors import AccessRefused, NotFound
from malamute.protocol.admin import (
    ClientDetails,
    ClientRow,
    ClientsQuery,
    StoredQuery,
    StoredStream,
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


BEHIND_SECONDS, BEHIND_MESSAGES = 10.0, 10_000
"""Lag from which a reader is behind, so that its stream is asked for its retention."""


class ConsumerSample(NamedTuple):
    """A subscription at one sample: its state, its lag and deliveries in messages, and the monotonic time."""

    state: str
    lag: int
    delivered: int = 0
    at: float = 0.0


class StoreRoom(NamedTuple):
    """The room of all streams together: the seconds until it is full, and the age of the oldest message."""

    full_seconds: float
    oldest_seconds: float


class StreamConsumer(NamedTuple):
    """A subscription with the client that has it. Its lag in seconds is None where it was not queried.

    After `overtaken_seconds` the retention of the stream drops messages that the subscription has not read;
    None if that is not in sight.
    """

    client: str
    address: str
    software: str
    connected: bool
    subscription: SubscriptionRow
    lag_seconds: float | None
    trail: tuple[ConsumerSample, ...]
    """The last samples, the newest at the end."""
    overtaken_seconds: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the subscription for people."""
        return self.address or self.client

    @property
    def trend(self) -> str:
        """Return the trend of the lag; `stalled` for a reader that stands still behind, empty if unknown."""
        looks = self.trail[-TREND_LOOKS:]
        trend = trend_of([look.lag for look in looks])
        if trend != "steady" or not self.subscription.lag:
            return trend
        if len(looks) < 2:
            return ""
        return "stalled" if looks[0].delivered == looks[-1].delivered else trend


def trend_of(lags: list[int] | list[float]) -> str:
    """Return the trend of a lag: `rising`, `falling` or `steady`."""
    if len(lags) < 2 or not any(lags):
        return "steady"
    before, now = lags[-min(len(lags), TREND_LOOKS)], lags[-1]
    if abs(now - before) <= max(1, STEADY * max(before, now)):
        return "steady"
    return "rising" if now > before else "falling"


def overtaken_in(
    looks: Sequence[ConsumerSample], lag_seconds: float, stored: StoredStream, room: StoreRoom | None
) -> float | None:
    """Return the seconds until retention overtakes a reader; None if that is not in sight.

    A stream keeps some messages, so a reader has lost its next one when its lag is as large as that.
    """
    looks = looks[-TREND_LOOKS:]
    seconds = looks[-1].at - looks[0].at
    growth = (looks[-1].lag - looks[0].lag) / seconds if seconds > 0 else 0.0
    if growth < 0 or not stored.count:
        return None
    found = []
    if growth:
        kept = stored.retain_count, stored.retain_bytes * stored.count / max(stored.bytes, 1)
        found = [(most - looks[-1].lag) / growth for most in kept if most]
        if room is not None:
            found.append(room.full_seconds + max(room.oldest_seconds - lag_seconds, 0.0))
    if stored.retain_age:
        found.append(stored.retain_age - lag_seconds)
    soonest = min(found, default=inf)
    return max(soonest, 0.0) if isfinite(soonest) else None


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
        self._trails: dict[tuple[str, int], deque[ConsumerSample]] = {}
        self.consumers: list[StreamConsumer] = []
        self.by_queue: dict[tuple[str, str], list[WorkerRow]] = {}
        """The shared consumers of a mailbox, or the workers of a service, by kind and name."""
        self.traffic: dict[str, ClientTraffic] = {}
        """Return the traffic of each client by its id."""
        self._looked_at = 0.0
        self.lag_seconds = 0.0
        """Return the largest lag of a reader."""

    async def look(
        self, client: Client, timeout: float, room: StoreRoom | None = None
    ) -> list[StreamConsumer]:
        """Query all subscriptions, the largest lag first. `timeout` is in seconds."""
        rows = await client.query(ClientsQuery(details=True), timeout=timeout)
        now = monotonic()
        self._note_traffic(rows, now)
        self.by_queue = _by_queue(rows)
        found = [(row, one) for row in rows for one in getattr(row, "subscriptions", ())]
        found.sort(key=lambda pair: pair[1].lag, reverse=True)
        behind = list(dict.fromkeys(one.stream for _, one in found if one.lag))[:STREAMS_MAX]
        lags: dict[tuple[str, str], float] = {}
        retention: dict[str, StoredStream] = {}
        for stream in behind:
            try:
                details = await client.query(StreamQuery(name=stream), timeout=timeout)
            except NotFound:
                continue
            for reader in details.readers:
                key = reader.client, stream
                lags[key] = max(lags.get(key, 0.0), reader.lag_seconds)
            if any(
                one.lag >= BEHIND_MESSAGES or one.lag_seconds >= BEHIND_SECONDS for one in details.readers
            ):
                retention |= await _retention(client, stream, timeout)
        trails = self._trails
        self._trails = {}
        self.consumers = []
        for row, one in found:
            place = row.id, one.source
            trail = self._trails[place] = trails.get(place, deque(maxlen=TRAIL))
            trail.append(ConsumerSample(one.state, one.lag, one.delivered, now))
            seconds = lags.get((row.id, one.stream)) if one.lag else 0.0
            stored = retention.get(one.stream)
            left = overtaken_in(tuple(trail), seconds or 0.0, stored, room) if stored and one.lag else None
            known = row.id, row.address, row.software, row.connected
            self.consumers.append(StreamConsumer(*known, one, seconds, tuple(trail), left))
        self.lag_seconds = max((one.lag_seconds or 0.0 for one in self.consumers), default=0.0)
        return self.consumers

    def _note_traffic(self, rows: Iterable[ClientDetails | ClientRow], now: float) -> None:
        before, seconds = self.traffic, now - self._looked_at
        counted = {row.id: ClientTraffic(row.sent or 0, row.received or 0) for row in rows}
        self.traffic = {name: one.since(before.get(name), seconds) for name, one in counted.items()}
        self._looked_at = now


async def _retention(client: Client, stream: str, timeout: float) -> dict[str, StoredStream]:
    try:
        rows = await client.query(StoredQuery(stream=stream, limit=1), timeout=timeout)
    except AccessRefused:
        return {}
    return {row.name: row for row in rows}


def _by_queue(rows: Iterable[ClientDetails | ClientRow]) -> dict[tuple[str, str], list[WorkerRow]]:
    found: dict[tuple[str, str], list[WorkerRow]] = {}
    for row in rows:
        for offer in getattr(row, "offers", ()):
            fields = asdict(offer)
            queue = fields.pop("kind"), fields.pop("service")
            del fields["source"]
            found.setdefault(queue, []).append(WorkerRow(client=row.id, address=row.address, **fields))
    return found
