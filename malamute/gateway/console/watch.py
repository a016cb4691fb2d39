"""Figures of a broker over time, as one user may see them, for pages without the time to wait.

While a user has a page open, the broker is queried periodically with that user's rights, and the answers are
kept here. With the gateway's own rights the broker is always watched, if anonymous requests have them: the
first page has charts. Rates are differences between two samples. A slow list is queried less often, so a
broker with many streams is not busy with being watched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic, time
from typing import Any, NamedTuple

from malamute.aio import Client
from malamute.errors import AccessRefused, LoginNeeded, MalamuteError
from malamute.gateway.console.consumption import TREND_LOOKS, Consumption, StoreRoom
from malamute.gateway.console.series import SAMPLES, SeriesTable
from malamute.gateway.users import Identity, Users
from malamute.protocol.admin import (
    AdminQuery,
    CursorsQuery,
    FeedsQuery,
    LinksQuery,
    MailboxesQuery,
    ServicesQuery,
    StatusQuery,
    StorageQuery,
    StoreUsage,
    StreamsQuery,
    TotalsQuery,
)
from malamute.protocol.time_units import to_seconds

INTERVAL_SECONDS = 2.0
"""Seconds between two queries."""

RESTING = 20
"""Pause after a query, as a multiple of its duration."""

REST_SECONDS_MAX = 30.0
"""Maximum pause."""

SLOW_SECONDS = 10.0
"""Seconds between two queries while nobody looks."""

LOOKED_SECONDS = 60.0
"""Time after the last page in which somebody looks."""

IDLE_SECONDS = 900.0
"""Time after the last page until a watch ends, except for the gateway's own."""

WATCHES_MAX = 20


class Sample(NamedTuple):
    """Totals and contents of the broker at one time."""

    at: float
    published: int
    settled: int
    bytes: int
    queued: int
    lag_seconds: float


class RateSample(NamedTuple):
    """Rates per second between two samples; `at` is in seconds since the epoch."""

    at: float
    published: float
    settled: float
    bytes: float
    queued: int
    lag_seconds: float


def rates(samples: deque[Sample]) -> list[RateSample]:
    """Return the rates between samples. A broker that was restarted has none at that moment."""
    found = []
    for before, now in zip(samples, list(samples)[1:], strict=False):
        seconds = now.at - before.at
        grown = now.published - before.published, now.settled - before.settled, now.bytes - before.bytes
        if seconds > 0 and min(grown) >= 0:
            published, settled, size = (one / seconds for one in grown)
            found.append(RateSample(now.at, published, settled, size, now.queued, now.lag_seconds))
    return found


class _Question:
    """One kind of query: its due time, its last result, or its refusal."""

    def __init__(self, ask: Callable[[Client], Awaitable[Any]], resting: float = RESTING) -> None:
        self.ask = ask
        self.resting = resting
        self.due = 0.0
        self.found: Any = None
        self.refusal = ""


class BrokerWatch:
    """The figures kept for one user. `run` queries the broker until the user has gone."""

    def __init__(
        self, users: Users, identity: Identity, timeout_seconds: float, *, lasts: bool = False
    ) -> None:
        self._users = users
        self._lasts = lasts
        self._identity = identity
        self._timeout_seconds = timeout_seconds
        self.used_at = monotonic()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.series = {"stream": SeriesTable(2), "mailbox": SeriesTable(3), "service": SeriesTable(3)}
        """Figures over time: rate and kept messages of streams; messages and the two rates of queues."""
        self.consumption = Consumption()
        self._used: deque[tuple[float, int]] = deque(maxlen=TREND_LOOKS)
        """Times, and the bytes of all streams."""
        self.failure = ""
        """The reason why the broker does not answer; empty while it does."""
        self.answered_at = 0.0
        """The time of the last answers, in seconds since the epoch."""
        self._looked = asyncio.Condition()
        self._hurried = asyncio.Event()
        self._looks = {
            # These are three short answers for a broker of any size.
            "figures": _Question(self._figures, resting=0),
            "streams": _Question(self._streams),
            "consumers": _Question(self._consumers),
            "mailboxes": _Question(self._queues("mailbox", MailboxesQuery())),
            "services": _Question(self._queues("service", ServicesQuery())),
            "cursors": _Question(self._all(CursorsQuery())),
            "feeds": _Question(self._all(FeedsQuery())),
            "links": _Question(self._all(LinksQuery())),
        }
        self.task = asyncio.create_task(self._run())

    def looks_at(self, what: str) -> bool:
        """Return whether the query `what` exists."""
        return what in self._looks

    def found(self, what: str) -> Any:
        """Return the last result of a query; None if there is none, or without permission."""
        look = self._looks.get(what)
        return look and look.found

    @property
    def refusals(self) -> Mapping[str, str]:
        """Return refusals by the broker, by query."""
        return {what: look.refusal for what, look in self._looks.items() if look.refusal}

    def hurry(self) -> None:
        """Query everything anew: after a change, or as somebody looks again."""
        self._hurried.set()
        for look in self._looks.values():
            look.due = 0.0

    async def wait_for(self, what: str, seconds: float) -> Any:
        """Return the result of a query, once there is one, or after `seconds`."""
        look = self._looks[what]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._looked:
                await self._looked.wait_for(lambda: look.due or self.failure)
        return look.found

    async def _run(self) -> None:
        while (idle_seconds := monotonic() - self.used_at) < IDLE_SECONDS or self._lasts:
            try:
                async with self._users.session(self._identity) as client:
                    for look in self._looks.values():
                        if look.due <= monotonic():
                            await self._take(client, look)
                self.failure, self.answered_at = "", time()
            except LoginNeeded as error:
                self.failure = str(error)
                if self._lasts:
                    # Repeated, it would count as the guesses of a stranger: the next page begins anew.
                    break
            except MalamuteError as error:
                self.failure = str(error)
            async with self._looked:
                self._looked.notify_all()
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    INTERVAL_SECONDS if idle_seconds < LOOKED_SECONDS else SLOW_SECONDS
                ):
                    await self._hurried.wait()

    async def _take(self, client: Client, look: _Question) -> None:
        began = monotonic()
        try:
            look.found, look.refusal = await look.ask(client), ""
        except AccessRefused as error:
            look.found, look.refusal = None, error.text
        look.due = monotonic() + min((monotonic() - began) * look.resting, REST_SECONDS_MAX)
        async with self._looked:
            self._looked.notify_all()

    def _all(self, query: AdminQuery[Any]) -> Callable[[Client], Awaitable[Any]]:
        async def ask(client: Client) -> Any:
            return await client.query(query, timeout=self._timeout_seconds)

        return ask

    async def _figures(self, client: Client) -> Any:
        status = await client.query(StatusQuery(), timeout=self._timeout_seconds)
        totals = await client.query(TotalsQuery(), timeout=self._timeout_seconds)
        storage = await client.query(StorageQuery(), timeout=self._timeout_seconds)
        self._used.append((time(), storage.streams_bytes))
        queued = sum(row.messages for row in totals.queues)
        settled = sum(totals.settlements.values())
        self.samples.append(
            Sample(
                time(),
                status.messages_published,
                settled,
                totals.committed_bytes,
                queued,
                self.consumption.lag_seconds,
            )
        )
        return status, totals, storage

    async def _streams(self, client: Client) -> Any:
        rows = await client.query(StreamsQuery(), timeout=self._timeout_seconds)
        kept = {row.name: (row.published_rate, row.last - row.first + 1) for row in rows}
        self.series["stream"].add(time(), kept)
        return rows

    def _queues(self, kind: str, query: AdminQuery[Any]) -> Callable[[Client], Awaitable[Any]]:
        async def ask(client: Client) -> Any:
            rows = await client.query(query, timeout=self._timeout_seconds)
            found = {row.name: (row.messages, row.arrival_rate, row.settled_rate) for row in rows}
            self.series[kind].add(time(), found)
            return rows

        return ask

    async def _consumers(self, client: Client) -> Any:
        return await self.consumption.look(client, self._timeout_seconds, self._room())

    def _room(self) -> StoreRoom | None:
        """Return the room of all streams; None if it is unknown."""
        figures = self.found("figures")
        if figures is None or len(self._used) < 2:
            return None
        storage: StoreUsage = figures[2]
        (before, bytes_before), (now, bytes_now) = self._used[0], self._used[-1]
        growth = (bytes_now - bytes_before) / max(now - before, 1e-9)
        left = max(storage.streams_budget - bytes_now, 0)
        full = left / growth if growth > 0 else inf if left else 0.0
        return StoreRoom(full, now - to_seconds(storage.first_time) if storage.first_time else inf)


class Watches:
    """The watches of all users with an open page. To be closed at the end."""

    def __init__(self, users: Users, timeout_seconds: float) -> None:
        self._users = users
        self._timeout_seconds = timeout_seconds
        self._by_identity: dict[Identity, BrokerWatch] = {}

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._by_identity

    def of(self, identity: Identity, *, lasts: bool = False) -> BrokerWatch:
        """Return the watch of a user, which begins now unless it has. One that `lasts` needs no page."""
        watch = self._by_identity.pop(identity, None)
        if watch is None or watch.task.done():
            while len(self._by_identity) >= WATCHES_MAX:
                self._by_identity.pop(next(iter(self._by_identity))).task.cancel()
            watch = BrokerWatch(self._users, identity, self._timeout_seconds, lasts=lasts)
        self._by_identity[identity] = watch
        now = monotonic()
        if now - watch.used_at > LOOKED_SECONDS:
            watch.hurry()
        watch.used_at = now
        return watch

    def end(self, identity: Identity) -> None:
        """End the watch of a user, and forget the credentials."""
        watch = self._by_identity.pop(identity, None)
        if watch is not None:
            watch.task.cancel()

    async def close(self) -> None:
        """End all watches."""
        tasks = [watch.task for watch in self._by_identity.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
