"""The definitions of a domain, kept in a stream of the broker and followed by every gateway.

The stream `restms` is the only truth. A change is published, and counts here when it comes back; so all
gateways in front of a broker have the same definitions in the same order, and a starting gateway reads the
last message of each subject. The gateway reads and writes the stream as its own user.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from time import time_ns
from typing import Any, NamedTuple, TypeVar

from malamute.aio import Client, Subscription
from malamute.client.events import Connected, Event, Lost, Restored
from malamute.client.session.message import Message
from malamute.errors import MalamuteError, NotFound, TimedOut, TooMany, TryLater
from malamute.gateway.restms.definitions import (
    BUILT_IN,
    CONTENTS,
    DEFAULT_STREAM,
    LOG,
    MEMORY,
    Definition,
    Join,
    Pipe,
    RestFeed,
    Staged,
    decode,
    encode,
    subject_of,
)
from malamute.gateway.restms.signals import Signal
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import ANONYMOUS, Users
from malamute.matching import Index, Selector
from malamute.protocol.admin import StatusQuery, StreamQuery, StreamRetain
from malamute.protocol.time_units import to_ns

Kind = TypeVar("Kind", RestFeed, Pipe, Join, Staged)

LOADED = "loaded"
"""The subject of a marker that a gateway publishes to learn how far it has to read."""

CONTENT_SECONDS = 86_400.0
"""Time for which a staged content waits for its message."""


CHANGED_HEADER = "changed_ns"
"""Header with the time of the last change, in a definition that was published again."""


class Defined(NamedTuple):
    """A definition with the times of its last change and publication, in nanoseconds since 1970."""

    value: Definition
    changed_ns: int
    published_ns: int


TakeAway = Callable[["Registry", Client, Definition, float], Awaitable[None]]


class Registry:
    """The definitions. `ready` comes before any other call.

    `take_away` deletes a definition with its dependents.
    """

    def __init__(self, settings: GatewaySettings, users: Users, take_away: TakeAway) -> None:
        self._settings = settings
        self._take_away = take_away
        self._users = users
        self._known: dict[str, Defined] = {}
        self._seen: set[str] | None = None
        """Subjects read so far while the log is loaded."""
        self._by_name: dict[str, str] = {}
        """Subjects of definitions by names, which are unique except for public feeds."""
        self._joins: dict[str, dict[str, Join]] = {}
        """Joins by pipe, and by feed."""
        self._indexes: dict[str, Index] = {}
        self._owned: Counter[str] = Counter()
        """Number of definitions of each user."""
        self._loading = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._position = 0
        self._loaded_ns = 0
        self._stale = True
        self.modified_ns = time_ns()
        self.changed = Signal()

    # Definitions

    def feed(self, name: str) -> RestFeed | None:
        """Return a defined public feed."""
        if name == BUILT_IN.name:
            return BUILT_IN
        known = self._known.get(f"feed.{name}")
        feed = known.value if known is not None else None
        return feed if isinstance(feed, RestFeed) and not feed.private else None

    def private(self, name: str) -> Definition | None:
        """Return a definition by a name of the server: private feed, pipe, join or staged content."""
        known = self._known.get(self._by_name.get(name, ""))
        return None if known is None else known.value

    def each(self, kind: type[Kind]) -> Iterator[Kind]:
        """Return all definitions of a kind."""
        return (known.value for known in self._known.values() if isinstance(known.value, kind))

    def time_ns(self, definition: Definition) -> int:
        """Return the time of a definition's last change."""
        known = self._known.get(subject_of(definition))
        return self.modified_ns if known is None else known.changed_ns

    def joins_of(self, pipe: Pipe) -> list[Join]:
        """Return the joins of a pipe."""
        return [*self._joins.get(f"pipe.{pipe.name}", {}).values()]

    def joins_to(self, feed: RestFeed) -> list[Join]:
        """Return the joins to a feed."""
        return [*self._joins.get(f"feed.{feed.name}", {}).values()]

    def count(
        self,
        feed: RestFeed,
        messages: Sequence[tuple[str, dict[str, Any]]],
        selector: Callable[[Join], Selector],
    ) -> list[int]:
        """Return the number of joins that match each message, by its address and headers."""
        index = self._indexes.get(feed.name)
        if index is None:
            index = self._indexes[feed.name] = Index()
            for join in self.joins_to(feed):
                index.add(join.name, selector(join))
        return [
            sum(len(group.members) for group in index.match(address, headers))
            for address, headers in messages
        ]

    def check_room(self, owner: str, more: int = 1) -> None:
        """Check that a user may have `count` definitions more. Raises `TooMany`."""
        most = self._settings.restms_definitions
        if self._owned[owner] + more > most:
            raise TooMany(
                f"{self._owned[owner]} feeds, pipes, joins and contents are of user {owner!r}: "
                f"expected at most {most}; delete some"
            )

    # Storage

    async def ready(self, *, makes: bool = True) -> Client:
        """Return the gateway's own session, once all definitions are loaded. Raises `MalamuteError`.

        Missing streams are created only with `makes`; without streams there are no definitions.
        """
        async with self._loading:
            if self._stale or self._task is None or self._task.done():
                await self.close()
                try:
                    await self._load(makes=makes)
                except BaseException:
                    self._stale = True
                    raise
        assert self._client is not None
        return self._client

    async def put(self, *definitions: Definition) -> None:
        """Add or replace a definition. Returns when it is durable and known here."""
        await self._publish({subject_of(one): encode(one) for one in definitions})

    async def remove(self, *definitions: Definition) -> None:
        """Delete a definition."""
        await self._publish({subject_of(one): b"" for one in definitions})

    async def refresh(self, before_ns: int) -> None:
        """Publish old definitions again, from before `before_ns`: a stream drops its oldest messages.

        No other change may happen meanwhile. Staged contents are not published again.
        """
        old = [one for one in self._known.values() if one.published_ns < before_ns]
        for known in (one for one in old if not isinstance(one.value, Staged)):
            headers = {CHANGED_HEADER: known.changed_ns}
            await self._publish({subject_of(known.value): encode(known.value)}, headers)

    async def _publish(self, bodies: dict[str, bytes], headers: dict[str, int] | None = None) -> None:
        if not bodies:
            return
        if self._client is None:
            raise TryLater("the definitions of RestMS are being read again")
        timeout = self._settings.timeout_seconds
        first = await self._client.publish_batch(
            LOG, [*bodies], [*bodies.values()], [headers] * len(bodies), timeout=timeout
        )
        if not first:
            # The definition is stored; its number was lost with the connection.
            self._stale = True
            return
        await self._reach(first + len(bodies) - 1)

    async def _reach(self, sequence: int) -> None:
        task = self._task
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                while self._position < sequence:
                    if task is None or task.done():
                        raise TryLater("the definitions of RestMS are being read again")
                    waiting = asyncio.create_task(self.changed.next().wait())
                    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        except TimeoutError:
            raise TimedOut("the definitions of RestMS did not come in time") from None

    async def _load(self, *, makes: bool) -> None:
        timeout = self._settings.timeout_seconds
        session = self._users.session(ANONYMOUS, listener=self._on_event, followers=1)
        client = self._client = await self._stack.enter_async_context(session)
        if not makes:
            try:
                await client.query(StreamQuery(name=LOG), timeout=timeout)
            except NotFound:
                return
        for stream in (LOG, DEFAULT_STREAM):
            await client.change(StreamRetain(stream=stream), timeout=timeout)
        await client.change(StreamRetain(stream=CONTENTS, age=CONTENT_SECONDS), timeout=timeout)
        status = await client.query(StatusQuery(), timeout=timeout)
        subscription = await client.subscribe(LOG, start="last-per-subject", committed=True)
        self._stale = False
        seen = self._seen = set()
        self._task = asyncio.create_task(self._follow(subscription))
        loaded = await client.publish_batch(LOG, [LOADED], [b"x"], timeout=timeout)
        if not loaded:
            raise TryLater("the connection to the broker broke while the definitions of RestMS were read")
        await self._reach(loaded)
        # Definitions known before counted until here.
        for subject in self._known.keys() - seen:
            self._index(self._known.pop(subject).value, add=False)
        self._seen = None
        await self._clear(client, self._loaded_ns, self._loaded_ns - to_ns(status.uptime))

    async def _clear(self, client: Client, now_ns: int, started_ns: int) -> None:
        """Remove definitions that do not outlive the broker's process, and contents that were not fetched."""
        over = [known.value for known in self._known.values() if _is_over(known, now_ns, started_ns)]
        for definition in over:
            await self._take_away(self, client, definition, self._settings.timeout_seconds)

    async def _follow(self, subscription: Subscription) -> None:
        try:
            async for message in subscription:
                self._apply(message)
                self._position = message.sequence
                self.changed.notify()
        finally:
            subscription.cancel()

    def _apply(self, message: Message) -> None:
        if message.subject == LOADED:
            self._loaded_ns = message.time_ns
            return
        if self._seen is not None:
            self._seen.add(message.subject)
        before = self._known.pop(message.subject, None)
        if before is not None:
            self._index(before.value, add=False)
        try:
            value = decode(message.body)
            changed_ns = message.header(CHANGED_HEADER, int, message.time_ns)
        except (ValueError, MalamuteError):
            # The message is empty, or not of the gateway.
            self.modified_ns = message.time_ns
            return
        self.modified_ns = max(self.modified_ns, changed_ns)
        self._known[message.subject] = Defined(value, changed_ns, message.time_ns)
        self._index(value, add=True)

    def _index(self, value: Definition, *, add: bool) -> None:
        self._owned[value.owner] += 1 if add else -1
        if not self._owned[value.owner]:
            del self._owned[value.owner]
        if isinstance(value, Join):
            for place in (f"pipe.{value.pipe}", f"feed.{value.feed}"):
                joins = self._joins.setdefault(place, {})
                joins.pop(value.name, None)
                if add:
                    joins[value.name] = value
                elif not joins:
                    del self._joins[place]
            self._indexes.pop(value.feed, None)
        if isinstance(value, RestFeed) and not value.private:
            return
        self._by_name.pop(value.name, None)
        if add:
            self._by_name[value.name] = subject_of(value)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Connected | Lost | Restored):
            # This may be another process, or another store: its definitions are to be read.
            self._stale = True
            self.changed.notify()

    async def close(self) -> None:
        """Stop following the definitions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()
        self._task = self._client = None
        self._position = 0


def _is_over(known: Defined, now_ns: int, started_ns: int) -> bool:
    if isinstance(known.value, Staged):
        return now_ns - known.published_ns > to_ns(CONTENT_SECONDS)
    storage = getattr(known.value, "storage", "")
    return bool(storage == MEMORY and known.published_ns < started_ns)
