"""Messages and gaps of a subscription as Server-Sent Events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from malamute.aio import Subscription
from malamute.client.events import Gap
from malamute.client.session.message import Message
from malamute.errors import InvalidValue, Malformed
from malamute.gateway import bodies
from malamute.protocol.batch import Columns
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.position import StorePosition
from malamute.protocol.start import AFTER, SEQ

PART_BYTES = 64 * 1024
"""Approximate bytes of one write."""

NOTHING_NEW = b": nothing new\n\n"
"""A comment that keeps a quiet connection open."""


class GapQueue:
    """The unwritten gaps of a subscription, each with its position among the messages."""

    def __init__(self) -> None:
        self._noted = 0
        self._gaps: deque[tuple[int, Gap]] = deque()
        self._place = 0
        """Number of messages before the next one."""

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def due(self, subscription: Subscription) -> bool:
        """Return whether gaps wait here, or in the subscription."""
        return bool(self._gaps) or subscription.gaps != self._noted

    def note(self, subscription: Subscription, columns: Columns | None) -> None:
        """Add the new gaps. `columns` are the messages just handed out: the next one is their first."""
        if fresh := subscription.gaps - self._noted:
            self._gaps += subscription.placed_gaps[-fresh:]
            self._noted = subscription.gaps
        self._place = subscription.popped - (0 if columns is None else len(columns))

    def before_next(self) -> Iterator[Gap]:
        """Pop the gaps before the next message, and advance behind that message."""
        while self._gaps and self._gaps[0][0] <= self._place:
            yield self._gaps.popleft()[1]
        self._place += 1

    def rest(self) -> Iterator[Gap]:
        """Pop all gaps: no message is before them any more."""
        while self._gaps:
            yield self._gaps.popleft()[1]


def start_behind(event_id: str) -> str:
    """Return the start behind the event in Last-Event-ID: its sequence, and the store of that sequence.

    Raises `InvalidValue`.
    """
    if (position := StorePosition.parse(event_id)) is not None:
        return f"{AFTER}:{position}"
    if event_id.isascii() and event_id.isdigit() and len(event_id) <= 19 and int(event_id) < NUMBER_MAX:
        return f"{SEQ}:{int(event_id) + 1}"
    raise InvalidValue(f"invalid Last-Event-ID {event_id[:100]!r}: expected the id of an event, N@STORE")


class EventWriter:
    """Writes the messages and the gaps of a subscription as events, in order.

    `last` is the last written sequence, in this `store`.
    """

    OWN_TYPES = b""
    """The prefix of the types of events other than messages: `gap` and `problem`."""

    def __init__(self, last: int, store: str) -> None:
        self.last, self.store = last, store
        self.gaps = GapQueue()

    def headers(self) -> Mapping[str, str]:
        """Return headers of the answer, before any event is written."""
        return {}

    def position(self, sequence: int) -> bytes:
        """Return the id of an event, which Last-Event-ID repeats after it."""
        return f"{sequence}@{self.store}".encode()

    @property
    def start(self) -> str:
        """Return the start of a subscription behind the last written event."""
        return f"{AFTER}:{self.last}@{self.store}"

    def event(self, message: Message) -> bytes:
        """Return a message as an event; empty to write none."""
        data = bodies.to_json(bodies.shown(message))
        return b"id: %b\ndata: %b\n\n" % (self.position(message.sequence), data)

    def events(self, columns: Columns | None) -> Iterator[bytes]:
        """Yield some messages as events, with the gaps before them; without messages all waiting gaps.

        `last` is the sequence of the event just yielded.
        """
        for message in () if columns is None else bodies.messages_of(columns):
            yield from map(self._gap, self.gaps.before_next())
            written = self._written(message)
            self.last = message.sequence
            yield written
        if columns is None:
            yield from map(self._gap, self.gaps.rest())

    def parts(self, columns: Columns | None) -> Iterator[bytes]:
        """Yield the events joined to larger parts."""
        part: list[bytes] = []
        size_bytes = 0
        for event in self.events(columns):
            part.append(event)
            size_bytes += len(event)
            if size_bytes >= PART_BYTES:
                yield b"".join(part)
                part, size_bytes = [], 0
        if part:
            yield b"".join(part)

    def _written(self, message: Message) -> bytes:
        try:
            return self.event(message)
        except Malformed:
            return self._gap(bodies.unreadable(message))

    def _gap(self, gap: Gap) -> bytes:
        if gap.store:
            self.last, self.store = -1, gap.store
        # A gap behind the last position reports that the broker has lost messages already written: the
        # position stays.
        position = b"id: %b\n" % self.position(gap.last) if gap.last > self.last else b""
        self.last = max(self.last, gap.last)
        fields = bodies.to_json(bodies.shown_gap(gap))
        return b"event: %bgap\n%bdata: %b\n\n" % (self.OWN_TYPES, position, fields)
