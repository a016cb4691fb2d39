"""What a broker does over time, as one user may see it: the figures that pages have no time to wait for.

While somebody looks at the console, its broker is asked again and again with that user's rights, and what
was found is kept here: rates are differences between two looks. A list that takes long is looked at less
often, so a broker with many streams is not busy with being watched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any, NamedTuple

from malamute.aio import Client
from malamute.errors import AccessRefused, MalamuteError
from malamute.gateway.console.consumption import Consumption
from malamute.gateway.users import Identity, Users
from malamute.protocol.admin import (
    AdminQuery,
    CursorsQuery,
    FeedsQuery,
    MailboxesQuery,
    ServicesQuery,
    StatusQuery,
    StorageQuery,
    StreamsQuery,
    TotalsQuery,
)

INTERVAL_SECONDS = 2.0
"""How often the broker is looked at."""

RESTING = 20
"""A look that took a second is repeated after so many."""

REST_SECONDS_MAX = 30.0
"""How long it rests at the most."""

SAMPLES = 900
"""Samples of the broker as a whole that are kept: half an hour."""

TRAIL = 60
"""Rates of one stream that are kept."""

IDLE_SECONDS = 900.0
"""How long it goes on when nobody looks."""

WATCHES_MAX = 20


class Sample(NamedTuple):
    """What the broker had done at one moment, and what there was."""

    at: float
    published: int
    settled: int
    bytes: int
    queued: int
    lag_seconds: float


class RateSample(NamedTuple):
    """What it did in a second, between two samples; `at` is in seconds since the epoch."""

    at: float
    published: float
    settled: float
    bytes: float
    queued: int
    lag_seconds: float


def rates(samples: deque[Sample]) -> list[RateSample]:
    """The rates between samples. A broker that began anew has none at that moment."""
    found = []
    for before, now in zip(samples, list(samples)[1:], strict=False):
        seconds = now.at - before.at
        grown = now.published - before.published, now.settled - before.settled, now.bytes - before.bytes
        if seconds > 0 and min(grown) >= 0:
            published, settled, size = (one / seconds for one in grown)
            found.append(RateSample(now.at, published, settled, size, now.queued, now.lag_seconds))
    return found


class _Question:
    """One kind of question: when it is due, what was found, and why not."""

    def __init__(self, ask: Callable[[Client], Awaitable[Any]], resting: float = RESTING) -> None:
        self.ask = ask
        self.resting = resting
        self.due = 0.0
        self.found: Any = None
        self.refusal = ""


class BrokerWatch:
    """What is kept for one user. `run` asks, until nobody has looked for a while."""

    def __init__(self, users: Users, identity: Identity, timeout_seconds: float) -> None:
        self._users = users
        self._identity = identity
        self._timeout_seconds = timeout_seconds
        self.used_at = monotonic()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.trails: dict[str, deque[float]] = {}
        self.consumption = Consumption()
        self.failure = ""
        """Why the broker does not answer; empty while it does."""
        self._looked = asyncio.Condition()
        self._looks = {
            # Three short answers, however much there is.
            "figures": _Question(self._figures, resting=0),
            "streams": _Question(self._streams),
            "consumers": _Question(self._consumers),
            "mailboxes": _Question(self._all(MailboxesQuery())),
            "services": _Question(self._all(ServicesQuery())),
            "cursors": _Question(self._all(CursorsQuery())),
            "feeds": _Question(self._all(FeedsQuery())),
        }
        self.task = asyncio.create_task(self._run())

    def looks_at(self, what: str) -> bool:
        """Whether this is among what is looked at."""
        return what in self._looks

    def found(self, what: str) -> Any:
        """What the last look at something has found; None before the first, or if the user may not look."""
        return self._looks[what].found

    @property
    def refusals(self) -> Mapping[str, str]:
        """What this user may not see, and why."""
        return {what: look.refusal for what, look in self._looks.items() if look.refusal}

    def hurry(self) -> None:
        """Look at everything anew: something was changed."""
        for look in self._looks.values():
            look.due = 0.0

    async def wait_for(self, what: str, seconds: float) -> Any:
        """What was found, when there is something, or after so many seconds."""
        look = self._looks[what]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._looked:
                await self._looked.wait_for(lambda: look.due or self.failure)
        return look.found

    async def _run(self) -> None:
        while monotonic() - self.used_at < IDLE_SECONDS:
            try:
                async with self._users.session(self._identity) as client:
                    for look in self._looks.values():
                        if look.due <= monotonic():
                            await self._take(client, look)
                self.failure = ""
            except MalamuteError as error:
                self.failure = str(error)
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(INTERVAL_SECONDS)

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
        busy = {row.name: row.published_rate for row in rows if row.published_rate or row.name in self.trails}
        self.trails = {name: self.trails.get(name, deque(maxlen=TRAIL)) for name in busy}
        for name, rate in busy.items():
            self.trails[name].append(rate)
        return rows

    async def _consumers(self, client: Client) -> Any:
        return await self.consumption.look(client, self._timeout_seconds)


class Watches:
    """The watches of all users who have a page open. To be closed at the end."""

    def __init__(self, users: Users, timeout_seconds: float) -> None:
        self._users = users
        self._timeout_seconds = timeout_seconds
        self._by_identity: dict[Identity, BrokerWatch] = {}

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._by_identity

    def of(self, identity: Identity) -> BrokerWatch:
        """The watch of a user. It begins with the first page."""
        watch = self._by_identity.pop(identity, None)
        if watch is None or watch.task.done():
            while len(self._by_identity) >= WATCHES_MAX:
                self._by_identity.pop(next(iter(self._by_identity))).task.cancel()
            watch = BrokerWatch(self._users, identity, self._timeout_seconds)
        self._by_identity[identity] = watch
        watch.used_at = monotonic()
        return watch

    def end(self, identity: Identity) -> None:
        """End the watch of a user, and forget the credentials."""
        watch = self._by_identity.pop(identity, None)
        if watch is not None:
            watch.task.cancel()

    async def close(self) -> None:
        """End all of them."""
        tasks = [watch.task for watch in self._by_identity.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
