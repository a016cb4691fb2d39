"""RestMS in a gateway: its definitions, its readers, and changes of feeds, pipes and joins.

Requests of a user are made to the broker as that user, so its rules decide. The gateway itself keeps the
definitions, and feeds pipes from the default feed, which no other user is to read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from time import monotonic, time_ns
from typing import Any

import msgspec

from malamute.aio import Client
from malamute.errors import (
    AccessRefused,
    InvalidName,
    InvalidValue,
    LoginNeeded,
    MalamuteError,
    NotFound,
    TryLater,
)
from malamute.gateway.restms import imported
from malamute.gateway.restms.definitions import (
    BUILT_IN,
    DEFAULT_STREAM,
    FEED_STORAGES,
    PIPE_STORAGES,
    RING,
    Join,
    Pipe,
    RestFeed,
)
from malamute.gateway.restms.documents import Element
from malamute.gateway.restms.feed_types import Profiles, Wanted, check_type
from malamute.gateway.restms.messages import headers_of
from malamute.gateway.restms.passwords import hashed, is_password
from malamute.gateway.restms.pipes import IDLE_SECONDS, PipeReader, PipeReaders
from malamute.gateway.restms.registry import Registry
from malamute.gateway.restms.teardown import take_away, unfeed
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import Identity, Users
from malamute.matching import Selector
from malamute.protocol.admin import (
    FeedSet,
    StreamCreate,
    StreamRetain,
)
from malamute.protocol.time_units import to_ns

BUSY_SECONDS = 0.05
"""Wait while another user changes the feeds of a stream of the broker."""

BUSY_ATTEMPTS = 20

TEND_SECONDS = 60.0
"""Seconds between two searches for unused readers and old definitions."""

REFRESH_SECONDS = 600.0
"""Age at which a definition is published again."""


class RestMS:
    """RestMS in a gateway."""

    def __init__(self, settings: GatewaySettings, users: Users) -> None:
        self.settings = settings
        self.profiles = Profiles()
        self.registry = Registry(settings, users, take_away)
        self.readers = PipeReaders(settings, users)
        self._answerable: set[str] = set()
        """The pipes fed from the default feed."""
        self.claimed: set[str] = set()
        """Staged contents that are being published."""
        self._changing = asyncio.Lock()
        self._tending: asyncio.Task[None] | None = None

    @property
    def _timeout(self) -> float:
        return self.settings.timeout_seconds

    async def open(self, *, makes: bool = True) -> None:
        """Load all definitions. Raises `AccessRefused` if the gateway itself may not.

        Without `makes` no stream is created: any page can have a browser send a safe request.
        """
        try:
            await self.registry.ready(makes=makes)
        except (AccessRefused, LoginNeeded) as error:
            raise AccessRefused(f"RestMS needs a user of the gateway's own: {error.text}") from None
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_SECONDS)
            # Failed work is repeated the next time.
            with suppress(MalamuteError):
                await self.readers.drop_idle(monotonic() - IDLE_SECONDS)
                async with self.change(makes=False):
                    await self.registry.refresh(time_ns() - to_ns(REFRESH_SECONDS))

    def stop(self) -> None:
        """End the endless answers: the gateway is to stop."""
        self.readers.end()

    async def close(self) -> None:
        """Return held messages, and forget the definitions."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        await self.readers.close()
        await self.registry.close()

    @asynccontextmanager
    async def change(self, *, makes: bool = True) -> AsyncIterator[Client]:
        """Hold the lock of changes, with the gateway's own session. `makes` is as for `open`."""
        async with self._changing:
            yield await self.registry.ready(makes=makes)

    # Feeds

    async def feed(self, client: Client, name: str) -> RestFeed:
        """Return a feed by its public name: a defined one, or one of the broker. Raises `NotFound`."""
        feed = await self._known(client, name)
        if feed is None:
            raise NotFound(f"there is no feed {name[:100]!r}")
        return feed

    async def _known(self, client: Client, name: str) -> RestFeed | None:
        return self.registry.feed(name) or await imported.find(client, name, self._timeout)

    async def feeds(self, client: Client) -> list[RestFeed]:
        """Return all public feeds, and those of the broker that a user may view."""
        defined = [BUILT_IN, *(feed for feed in self.registry.each(RestFeed) if not feed.private)]
        known = {feed.name for feed in defined}
        found = await imported.find_all(client, self._timeout)
        return defined + [feed for feed in found if feed.name not in known]

    async def create_feed(self, client: Client, element: Element, owner: str) -> tuple[RestFeed, bool]:
        """Create a feed, and return whether it is new. Raises `InvalidName`, `InvalidValue` and `TooMany`."""
        name = element.get("name")
        kind, storage = element.get("type"), element.get("storage") or FEED_STORAGES[0]
        check_type("feed", kind, self.profiles.feeds)
        check_type("storage", storage, dict.fromkeys(FEED_STORAGES))
        if imported.is_own(name):
            raise InvalidName(f"invalid feed {name[:100]!r}: expected a name that is not the gateway's own")
        size = _size(element.get("size"), storage)
        async with self.change():
            if name and (known := await self._known(client, name)):
                if (known.type, known.storage) != (kind, storage):
                    words = f"feed {name[:100]!r} exists as {known.type or 'none'!r} in {known.storage!r}"
                    raise InvalidValue(f"{words}: expected these, or another name")
                return known, False
            self.registry.check_room(owner)
            feed = RestFeed(
                name or secrets.token_hex(16),
                kind,
                element.get("title"),
                element.get("license"),
                storage,
                size,
                await hashed(element.get("password")),
                private=not name,
                owner=owner,
            )
            await client.change(StreamCreate(stream=feed.stream, count=size or None), timeout=self._timeout)
            if self.profiles.feeds[kind].shared:
                await self._set_feed(client, feed.stream, feed.stream, [("all", "")])
            await self.registry.put(feed)
        return feed, True

    async def update_feed(self, client: Client, feed: RestFeed, element: Element) -> None:
        """Change the title and the license of a feed."""
        await self._check_admin(client, feed)
        changes = {name: element.get(name) for name in ("title", "license") if name in element.attributes}
        async with self.change():
            await self.registry.put(msgspec.structs.replace(feed, **changes))

    async def delete_feed(self, client: Client, feed: RestFeed) -> None:
        """Delete a feed with its joins."""
        await self._check_admin(client, feed)
        async with self.change() as own:
            await take_away(self.registry, own, feed, self._timeout)

    async def _check_admin(self, client: Client, feed: RestFeed) -> None:
        """Check that a user may change a feed. Raises `AccessRefused`."""
        if feed.imported or feed == BUILT_IN:
            raise AccessRefused(f"feed {feed.name[:100]!r} is locked: it is not a client's")
        await client.change(StreamRetain(stream=feed.stream, dry_run=True), timeout=self._timeout)

    async def check_password(self, feed: RestFeed, given: str | None) -> None:
        """Check the password of a post. Raises `AccessRefused`."""
        if feed.password and not await is_password(feed.password, given or ""):
            raise AccessRefused(f"feed {feed.name[:100]!r} has a password: expected it in RestMS-Password")

    # Pipes

    async def create_pipe(self, identity: Identity, element: Element, owner: str) -> Pipe:
        """Create a pipe, with its join to the default feed. Raises `InvalidValue` and `TooMany`."""
        kind, storage = element.get("type"), element.get("storage") or PIPE_STORAGES[0]
        check_type("pipe", kind, self.profiles.pipes)
        check_type("storage", storage, dict.fromkeys(PIPE_STORAGES))
        pipe = Pipe(secrets.token_hex(16), kind, element.get("title"), storage, owner)
        join = Join(
            secrets.token_hex(16), pipe.name, BUILT_IN.name, address=pipe.name, default=True, owner=owner
        )
        try:
            # The broker decides whether the user may read the pipe.
            await self.reader(pipe, identity)
            async with self.change():
                self.registry.check_room(owner, 2)
                await self.registry.put(pipe, join)
        except BaseException:
            # No client knows the name of this pipe: its service would stay for ever.
            await self.readers.drop(pipe)
            raise
        return pipe

    async def pass_replies(self, names: Iterable[str]) -> None:
        """Feed pipes from the default feed, by the names in the addresses of messages and of replies.

        Only then a pipe has a feed of the broker: pipes may outnumber the feeds that a broker can have.
        """
        for name in {*names} - self._answerable:
            if isinstance(pipe := self.registry.private(name), Pipe):
                async with self.change() as own:
                    await self._set_feed(own, pipe.service, DEFAULT_STREAM, [("exact", pipe.name)])
                self._answerable.add(name)

    async def update_pipe(self, pipe: Pipe, element: Element) -> None:
        """Change the title of a pipe."""
        title = element.attributes.get("title", pipe.title)
        async with self.change():
            await self.registry.put(msgspec.structs.replace(pipe, title=title))

    async def delete_pipe(self, client: Client, pipe: Pipe) -> None:
        """Delete a pipe, with its joins and messages."""
        joins = self.registry.joins_of(pipe)
        await self.readers.drop(pipe)
        async with self.change() as own:
            self._answerable.discard(pipe.name)
            await take_away(self.registry, own, pipe, self._timeout)
            for join in joins:
                await self._leave(own, join)

    async def reader(self, pipe: Pipe, identity: Identity) -> PipeReader:
        """Return the reader of a pipe. Raises as `PipeReaders.get`."""
        return await self.readers.get(
            pipe, identity, self.profiles.pipes[pipe.type].credit, lambda: self._shared(pipe)
        )

    def _shared(self, pipe: Pipe) -> Mapping[str, str]:
        """Return the services of the shared feeds that a pipe is joined to, by their joins."""
        joined = {join.name: self.feed_of(join) for join in self.registry.joins_of(pipe)}
        return {name: feed.stream for name, feed in joined.items() if self.profiles.feeds[feed.type].shared}

    def feed_of(self, join: Join) -> RestFeed:
        """Return the feed of a join."""
        feed = self.registry.feed(join.feed) or self.registry.private(join.feed)
        return feed if isinstance(feed, RestFeed) else imported.feed_of(join.feed, join.imported)

    # Joins

    async def create_join(
        self, client: Client, identity: Identity, pipe: Pipe, feed: RestFeed, element: Element
    ) -> Join:
        """Join a pipe to a feed. Raises `InvalidValue`, `InvalidSelector`, `AccessRefused` and `TooMany`."""
        check_type("join", element.get("type"), self.profiles.joins)
        if feed == BUILT_IN:
            raise AccessRefused("a join to the default feed: expected another one, a pipe has its own")
        shared = self.profiles.feeds[feed.type].shared
        if self.profiles.pipes[pipe.type].shared_only and not shared:
            raise AccessRefused(f"a join of an {pipe.type} pipe: expected a rotator or a service")
        join = Join(
            secrets.token_hex(16),
            pipe.name,
            feed.name,
            element.get("type"),
            element.get("address"),
            headers_of(element),
            client.user,
            imported=feed.imported,
            owner=client.user,
        )
        before = self._pair(pipe, feed)
        async with self.change():
            self.registry.check_room(client.user)
            # The broker decides whether the user may have the pipe and the feed: only then the join is kept.
            reader = await self.reader(pipe, identity)
            try:
                if shared:
                    await reader.take(join.name, feed.stream)
                else:
                    await self._set_pair(client, pipe, feed, [*before, join])
                await self.registry.put(join)
            except BaseException:
                with suppress(MalamuteError):
                    await (
                        reader.join(self._shared(pipe))
                        if shared
                        else self._set_pair(client, pipe, feed, before)
                    )
                raise
        return join

    async def _set_pair(self, client: Client, pipe: Pipe, feed: RestFeed, joins: list[Join]) -> None:
        """Feed a pipe with the messages that these joins select from a feed that is not shared."""
        if joins:
            await self._set_feed(client, pipe.service, feed.stream, self._criteria(feed, joins))
        else:
            await unfeed(client, pipe.service, feed.stream, self._timeout)

    async def delete_join(self, client: Client, identity: Identity, join: Join) -> None:
        """Delete a join. Raises `AccessRefused` and `NotFound`."""
        if join.default:
            raise AccessRefused("the default join of a pipe goes with the pipe")
        feed = self.feed_of(join)
        pipe = self.registry.private(join.pipe)
        if not isinstance(pipe, Pipe):
            raise NotFound(f"the pipe of join {join.name!r} is gone")
        await self.reader(pipe, identity)
        async with self.change() as own:
            if not self.profiles.feeds[feed.type].shared:
                rest = [other for other in self._pair(pipe, feed) if other != join]
                await self._set_pair(client, pipe, feed, rest)
            await self.registry.remove(join)
            await self.reader(pipe, identity)
            await self._leave(own, join)

    async def _leave(self, own: Client, join: Join) -> None:
        """Delete the feed of a deleted join, if its type ends with its last join."""
        feed = self.registry.feed(join.feed)
        if feed is not None and self.profiles.feeds[feed.type].leaves and not self.registry.joins_to(feed):
            await take_away(self.registry, own, feed, self._timeout)

    def _pair(self, pipe: Pipe, feed: RestFeed) -> list[Join]:
        return [join for join in self.registry.joins_of(pipe) if join.feed == feed.name]

    def _criteria(self, feed: RestFeed, joins: list[Join]) -> list[tuple[str, Any]]:
        return [self._criterion(feed, join) for join in joins]

    def _criterion(self, feed: RestFeed, join: Join) -> tuple[str, Any]:
        return self.profiles.criterion(feed.type, join.type, Wanted(join.address, join.headers, join.user))

    def counts(self, feed: RestFeed, messages: list[tuple[str, dict[str, Any]]]) -> list[int]:
        """Return the number of joins that match each message."""

        def selector(join: Join) -> Selector:
            return Selector.parse([self._criterion(feed, join)])

        return self.registry.count(feed, messages, selector)

    async def _set_feed(
        self, client: Client, service: str, stream: str, criteria: list[tuple[str, Any]]
    ) -> None:
        wanted = FeedSet(
            source=f"stream/{stream}", feed=service, target=f"service/{service}", criteria=criteria
        )
        for attempt in range(BUSY_ATTEMPTS):
            try:
                await client.change(wanted, timeout=self._timeout)
                return
            except TryLater:
                if attempt + 1 == BUSY_ATTEMPTS:
                    raise
                await asyncio.sleep(BUSY_SECONDS)


def _size(text: str, storage: str) -> int:
    if not text and storage != RING:
        return 0
    if storage != RING or not (text.isascii() and text.isdigit() and 0 < len(text) <= 15 and int(text)):
        raise InvalidValue(f"invalid size {text[:50]!r}: expected the messages that a ring keeps, and a ring")
    return int(text)
