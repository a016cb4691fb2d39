"""Streams as Server-Sent Events.

The id of an event is its sequence and the store that it counts in, so Last-Event-ID of a browser that
reconnects is where its replay begins, if the broker still has that store. An id is sent first, for a page
that disconnects before its first event. Pages with the same selectors share events (`shared_events`). A page
behind them has a subscription of its own, which is granted credit as events are written to the connection: a
page that does not read goes into replay, at the cost of one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from malamute.aio import Subscription
from malamute.errors import MalamuteError, TimedOut
from malamute.gateway import bodies, problems
from malamute.gateway.events import NOTHING_NEW, EventWriter, GapQueue
from malamute.gateway.shared_events import SharedEvents, Subscribe
from malamute.gateway.state import gateway_of

MEDIA_TYPE = "text/event-stream"

CREDIT_MESSAGES = 1000
RETRY_MS = 2000
"""Time after which a page reconnects."""


class EventResponse(StreamingResponse):
    """An endless answer. One task writes it, and is cancelled when the page disconnects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        writing = asyncio.current_task()
        assert writing is not None
        leaving = asyncio.create_task(_cancel_at_disconnect(receive, writing))
        try:
            await self.stream_response(send)
        except asyncio.CancelledError:
            if not leaving.done():
                raise
            writing.uncancel()
        finally:
            leaving.cancel()
            if (close := getattr(self.body_iterator, "aclose", None)) is not None:
                await close()


async def _cancel_at_disconnect(receive: Receive, writing: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    writing.cancel()


async def follow(
    request: Request,
    stream: str,
    writer_at: Callable[[int, str], EventWriter] = EventWriter,
    *,
    start: str,
    **options: Any,
) -> EventResponse:
    """Answer with the events of a subscription, until the page disconnects or the gateway stops.

    `writer_at` makes their writer, from the last sequence before the first event and its store. Events of a
    plain `EventWriter` are shared with other pages.

    Raises as `Client.subscribe`.
    """
    gateway = gateway_of(request)
    settings, identity = gateway.settings, gateway.identity(request)
    followers = _weight(options["criteria"])

    async def subscribe(stack: AsyncExitStack, start: str) -> Subscription:
        client = await stack.enter_async_context(gateway.users.session(identity, followers=followers))
        opening = client.subscribe(
            stream, credit=CREDIT_MESSAGES, credit_bytes=settings.event_bytes, start=start, **options
        )
        subscription: Subscription = await stack.enter_async_context(opening)
        stack.enter_context(gateway.follows(subscription))
        return subscription

    async with AsyncExitStack() as stack:
        shared = None
        if writer_at is EventWriter:
            key = (identity, stream, repr(options))
            shared = await stack.enter_async_context(gateway.shared_events.joined(key, subscribe))
        page = FollowingPage(shared, subscribe, settings.keep_alive_seconds)
        stack.push_async_callback(page.leave)
        writer = writer_at(*await page.begin(start))
        # The session stays open until the answer ends.
        kept = stack.pop_all()
    headers = {"x-accel-buffering": "no", **writer.headers()}
    return EventResponse(page.events(writer, kept), media_type=MEDIA_TYPE, headers=headers)


def _weight(criteria: Sequence[tuple[str, Any]]) -> int:
    """Return the number of followers as which an answer with regular expressions counts in its session.

    The broker limits the selectors of one session: room for some 125 regular expressions.
    """
    return 1 + sum(family == "regex" for family, _ in criteria) // 2


class FollowingPage:
    """One answer: the events shared with others, and its own subscription while it is behind."""

    def __init__(self, shared: SharedEvents | None, subscribe: Subscribe, keep_alive_seconds: float) -> None:
        self._shared = shared
        self._subscribe = subscribe
        self._keep_alive_seconds = keep_alive_seconds
        self._own: Subscription | None = None
        self._stack = AsyncExitStack()
        self._is_over = False

    async def leave(self) -> None:
        """End the subscription of its own, if any."""
        self._own = None
        await self._stack.aclose()

    async def begin(self, start: str) -> tuple[int, str]:
        """Return the last sequence before the first event, and its store. Raises as `Client.subscribe`."""
        if self._shared is not None and start == "new":
            return self._shared.last, self._shared.store
        self._own = await self._subscribe(self._stack, start)
        return self._own.first - 1, self._own.store

    async def events(self, writer: EventWriter, kept: AsyncExitStack) -> AsyncIterator[bytes]:
        """Yield the events, and the reason of their end."""
        async with kept:
            yield b"retry: %d\nid: %b\n\n" % (RETRY_MS, writer.position(writer.last))
            try:
                while not self._is_over:
                    if self._own is None and self._has_all_behind(writer):
                        parts = self._shared_parts(writer)
                    else:
                        parts = self._own_parts(writer)
                    async with aclosing(parts):
                        async for part in parts:
                            yield part
                if self._shared is not None and self._shared.error is not None:
                    raise self._shared.error
            except MalamuteError as error:
                document = bodies.to_json(problems.document(error))
                yield b"event: %bproblem\ndata: %b\n\n" % (writer.OWN_TYPES, document)

    def _has_all_behind(self, writer: EventWriter) -> bool:
        shared = self._shared
        return shared is not None and shared.store == writer.store and shared.has_all_behind(writer.last)

    async def _shared_parts(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """Yield shared events, until they end or this page is behind them."""
        assert self._shared is not None
        async for last, part in self._shared.parts(writer.last):
            writer.last = last
            yield part
        self._is_over = self._shared.ended

    async def _own_parts(self, writer: EventWriter) -> AsyncGenerator[bytes, None]:
        """Yield own events, until the subscription ends or the page has caught up with shared ones."""
        if self._own is None:
            self._own = await self._subscribe(self._stack, writer.start)
            writer.gaps = GapQueue()
        own, is_behind = self._own, self._shared is not None

        def is_due() -> bool:
            return writer.gaps.due(own) or (is_behind and own.state == "live")

        while not self._has_all_behind(writer):
            try:
                columns = await own.columns(self._keep_alive_seconds, enough=is_due)
            except TimedOut:
                yield NOTHING_NEW
                continue
            writer.gaps.note(own, columns)
            if columns is None and not writer.gaps:
                if not (is_behind and own.state == "live"):
                    self._is_over = True
                    return
                # This page has had all messages before the first shared event, matching or not.
                assert self._shared is not None
                is_behind = False
                if self._shared.store == writer.store:
                    writer.last = max(writer.last, self._shared.first - 1)
                continue
            for part in writer.parts(columns):
                yield part
        await self.leave()
