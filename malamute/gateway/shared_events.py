"""Events of a stream for many pages, written once for all of them.

Pages of one user with the same selectors share a subscription. Its messages are written as events into a
buffer, and each page is a position in it. A page behind the buffer, after a reconnect or by slow reading, has
a subscription of its own until it has caught up. So a page that keeps up costs the broker nothing, and a slow
one costs the other pages nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from operator import itemgetter
from typing import NamedTuple

from malamute.aio import Subscription
from malamute.errors import MalamuteError, TimedOut
from malamute.gateway.events import NOTHING_NEW, PART_BYTES, EventWriter
from malamute.gateway.settings import GatewaySettings

Subscribe = Callable[[AsyncExitStack, str], Awaitable[Subscription]]
"""Subscribes from a start; the subscription lasts until the stack is closed."""


class _Part(NamedTuple):
    """Successive events, joined for one write."""

    begin: int
    newest: int
    end: int
    data: bytes


class SharedEvents:
    """The new messages of one subscription as events, for any number of pages.

    Positions count the events from the first one on. The buffer has the credit of one page.
    """

    def __init__(self, settings: GatewaySettings, subscribe: Subscribe) -> None:
        self.pages = 0
        self.first = 0
        """The first sequence that could come."""
        self.store = ""
        """The store of these sequences."""
        self.error: MalamuteError | None = None
        self.ended = False
        self._settings = settings
        self._events: list[tuple[int, bytes]] = []
        self._size_bytes = 0
        self._dropped = 0
        self._floor = 0
        self._part = _Part(-1, -1, -1, b"")
        self._quiet = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.opened = asyncio.Event()
        self.task = asyncio.create_task(self._run(subscribe))

    async def _run(self, subscribe: Subscribe) -> None:
        try:
            async with AsyncExitStack() as stack:
                subscription = await subscribe(stack, "new")
                self.first, self.store = subscription.first, subscription.store
                self._floor = self.first - 1
                self.opened.set()
                await self._write(subscription)
        except MalamuteError as error:
            self.error = error
        finally:
            self.ended = True
            self.opened.set()
            self._wake()

    async def _write(self, subscription: Subscription) -> None:
        writer = EventWriter(self._floor, self.store)
        while True:
            try:
                columns = await subscription.columns(
                    self._settings.keep_alive_seconds, enough=lambda: writer.gaps.due(subscription)
                )
            except TimedOut:
                self._quiet += 1
                self._wake()
                continue
            writer.gaps.note(subscription, columns)
            if columns is None and not writer.gaps:
                return
            for event in writer.events(columns):
                if writer.store != self.store:
                    # Pages reconnect, and go on in the other store with a gap that reports the change.
                    return
                self._events.append((writer.last, event))
                self._size_bytes += len(event)
            self._drop_oldest()
            self._wake()

    def _drop_oldest(self) -> None:
        count = 0
        while self._size_bytes > self._settings.event_bytes and count < len(self._events) - 1:
            self._size_bytes -= len(self._events[count][1])
            count += 1
        if count:
            self._floor = self._events[count - 1][0]
            self._dropped += count
            del self._events[:count]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @property
    def last(self) -> int:
        """The last written sequence."""
        return self._events[-1][0] if self._events else self._floor

    def has_all_behind(self, sequence: int) -> bool:
        """Return whether all events behind a sequence are in the buffer, or still to come."""
        return sequence >= self._floor and not self.ended

    async def parts(self, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the events behind `last` in parts, each with its last sequence.

        The iterator ends with the subscription, or when the reader is behind the buffer.
        """
        while self.last < last and not self.ended:
            # Another subscription was faster, and this one has not written the event yet.
            await self._change()
        if not self.has_all_behind(last):
            return
        place = self._dropped + bisect_right(self._events, last, key=itemgetter(0))
        quiet = self._quiet
        while place >= self._dropped:
            if place < self._newest:
                part = self._part_from(place)
                place, last = part.end, self._events[part.end - self._dropped - 1][0]
                yield last, part.data
            elif self.ended:
                return
            elif quiet != self._quiet:
                quiet = self._quiet
                yield last, NOTHING_NEW
            else:
                await self._change()

    @property
    def _newest(self) -> int:
        """The position behind the last event."""
        return self._dropped + len(self._events)

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _part_from(self, place: int) -> _Part:
        """Return successive events as one part, made once: pages that keep up ask for the same part."""
        if (self._part.begin, self._part.newest) != (place, self._newest):
            found: list[bytes] = []
            size_bytes = 0
            for _, event in self._events[place - self._dropped :]:
                found.append(event)
                size_bytes += len(event)
                if size_bytes >= PART_BYTES:
                    break
            self._part = _Part(place, self._newest, place + len(found), b"".join(found))
        return self._part


class SharedEventsTable:
    """The shared events, by user and selectors."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._shared: dict[Hashable, SharedEvents] = {}

    def __len__(self) -> int:
        return len(self._shared)

    @asynccontextmanager
    async def joined(self, key: Hashable, subscribe: Subscribe) -> AsyncIterator[SharedEvents]:
        """Return the events shared under a key, during the block. Raises as `subscribe`."""
        shared = self._shared.get(key)
        if shared is None or shared.ended:
            shared = self._shared[key] = SharedEvents(self._settings, subscribe)
        shared.pages += 1
        try:
            await shared.opened.wait()
            if shared.error is not None:
                raise shared.error
            yield shared
        finally:
            shared.pages -= 1
            if not shared.pages:
                shared.task.cancel()
                if self._shared.get(key) is shared:
                    del self._shared[key]
