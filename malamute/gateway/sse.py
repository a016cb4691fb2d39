"""Streams as Server-Sent Events.

The id of an event is its sequence, so Last-Event-ID of a browser that reconnects is where its replay begins.
The first thing that is sent is an id, too, for one that goes before it has had an event. Credit is granted
when what came before is written to the connection: a page that does not read goes into replay, at the cost of
one window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from malamute.aio import Subscription
from malamute.client.events import Gap
from malamute.client.session.message import Message
from malamute.errors import MalamuteError, Malformed, TimedOut
from malamute.gateway import bodies, problems
from malamute.gateway.state import gateway_of
from malamute.protocol.batch import Columns

MEDIA_TYPE = "text/event-stream"

CREDIT_MESSAGES = 1000
RETRY_MS = 2000
"""After how long a page is to reconnect."""

PART_BYTES = 64 * 1024
"""About how many bytes are written at once."""


async def follow(
    request: Request, stream: str, writer_at: Callable[[int], EventWriter] | None = None, **options: Any
) -> StreamingResponse:
    """Documented with the events of a subscription, until the page or the gateway leaves.

    `writer_at` makes what writes them, from the last sequence before the first of them.

    Raises as `Client.subscribe`.
    """
    gateway = gateway_of(request)
    settings = gateway.settings
    followers = _weight(options["criteria"])
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(gateway.session(request, followers=followers))
        subscription = await stack.enter_async_context(
            client.subscribe(stream, credit=CREDIT_MESSAGES, credit_bytes=settings.event_bytes, **options)
        )
        stack.enter_context(gateway.follows(subscription))
        # It stays open until the answer ends.
        kept = stack.pop_all()
    writer = (writer_at or EventWriter)(subscription.first - 1)
    events = _events(subscription, writer, kept, settings.keep_alive_seconds)
    headers = {"x-accel-buffering": "no", **writer.headers()}
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers=headers)


def _weight(criteria: Sequence[tuple[str, Any]]) -> int:
    """For how many followers of a session one counts that has regular expressions.

    They take much of what the broker lets the selectors of one session have: room for some 125 of them.
    """
    return 1 + sum(family == "regex" for family, _ in criteria) // 2


async def _events(
    subscription: Subscription, writer: EventWriter, kept: AsyncExitStack, keep_alive_seconds: float
) -> AsyncIterator[bytes]:
    async with kept:
        yield b"retry: %d\nid: %b\n\n" % (RETRY_MS, writer.position(writer.last))
        try:
            while True:
                try:
                    columns = await subscription.columns(
                        keep_alive_seconds, enough=lambda: writer.gaps.due(subscription)
                    )
                except TimedOut:
                    yield b": nothing new\n\n"
                    continue
                writer.gaps.note(subscription)
                if columns is None and not writer.gaps:
                    return
                for part in writer.parts(columns):
                    yield part
        except MalamuteError as error:
            document = bodies.to_json(problems.document(error))
            yield b"event: %bproblem\ndata: %b\n\n" % (writer.OWN_TYPES, document)


class GapQueue:
    """The gaps of a subscription that are not written yet. Each lies behind what came before it."""

    def __init__(self) -> None:
        self._noted = 0
        self._gaps: deque[Gap] = deque()

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def due(self, subscription: Subscription) -> bool:
        """Whether some wait, or are to be noted."""
        return bool(self._gaps) or subscription.gaps != self._noted

    def note(self, subscription: Subscription) -> None:
        """Take those that are new."""
        if fresh := subscription.gaps - self._noted:
            self._gaps += subscription.recent_gaps[-fresh:]
            self._noted = subscription.gaps

    def before(self, sequence: int) -> Iterator[Gap]:
        """Pop those that lie before a message."""
        while self._gaps and self._gaps[0].first < sequence:
            yield self._gaps.popleft()

    def rest(self) -> Iterator[Gap]:
        """Pop all of them: nothing is before them any more."""
        while self._gaps:
            yield self._gaps.popleft()


class EventWriter:
    """Writes the messages and the gaps of a subscription as events, each where it belongs.

    `last` is the last sequence that was written.
    """

    OWN_TYPES = b""
    """How the types of the events begin that are no messages: `gap` and `problem`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.gaps = GapQueue()

    def headers(self) -> Mapping[str, str]:
        """Headers of the answer, before anything is written."""
        return {}

    def position(self, sequence: int) -> bytes:
        """The id of an event: what Last-Event-ID says when this one was the last."""
        return b"%d" % sequence

    def event(self, message: Message) -> bytes:
        """A message as an event; empty if it is not to be written."""
        data = bodies.to_json(bodies.shown(message))
        return b"id: %b\ndata: %b\n\n" % (self.position(message.sequence), data)

    def parts(self, columns: Columns | None) -> Iterator[bytes]:
        """Write some messages, and the gaps before them; without messages all gaps that wait."""
        part: list[bytes] = []
        size_bytes = 0
        for message in () if columns is None else bodies.messages_of(columns):
            part += map(self._gap, self.gaps.before(message.sequence))
            part.append(self._written(message))
            self.last = message.sequence
            size_bytes += len(part[-1])
            if size_bytes >= PART_BYTES:
                yield b"".join(part)
                part, size_bytes = [], 0
        if columns is None:
            part += map(self._gap, self.gaps.rest())
        if part:
            yield b"".join(part)

    def _written(self, message: Message) -> bytes:
        try:
            return self.event(message)
        except Malformed:
            return self._gap(bodies.unreadable(message))

    def _gap(self, gap: Gap) -> bytes:
        # One that lies behind tells that the broker has lost what was had: the position stays.
        position = b"id: %b\n" % self.position(gap.last) if gap.last > self.last else b""
        self.last = max(self.last, gap.last)
        fields = bodies.to_json(bodies.shown_gap(gap))
        return b"event: %bgap\n%bdata: %b\n\n" % (self.OWN_TYPES, position, fields)
