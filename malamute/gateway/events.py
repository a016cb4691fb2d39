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
"""About how many bytes are written at once."""

NOTHING_NEW = b": nothing new\n\n"
"""What keeps a connection that has no events."""


class GapQueue:
    """The gaps of a subscription that are not written yet. Each lies behind what came before it."""

    def __init__(self) -> None:
        self._noted = 0
        self._gaps: deque[tuple[int, Gap]] = deque()
        self._place = 0
        """How many messages came before the next one."""

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def due(self, subscription: Subscription) -> bool:
        """Whether some wait, or are to be noted."""
        return bool(self._gaps) or subscription.gaps != self._noted

    def note(self, subscription: Subscription, columns: Columns | None) -> None:
        """Take those that are new. The next messages are those of the columns, just handed out."""
        if fresh := subscription.gaps - self._noted:
            self._gaps += subscription.placed_gaps[-fresh:]
            self._noted = subscription.gaps
        self._place = subscription.popped - (0 if columns is None else len(columns))

    def before_next(self) -> Iterator[Gap]:
        """Pop those that lie before the next message, and go on behind that one."""
        while self._gaps and self._gaps[0][0] <= self._place:
            yield self._gaps.popleft()[1]
        self._place += 1

    def rest(self) -> Iterator[Gap]:
        """Pop all of them: nothing is before them any more."""
        while self._gaps:
            yield self._gaps.popleft()[1]


def start_behind(event_id: str) -> str:
    """Return the start behind an event, which Last-Event-ID names: its sequence, and the store that it is of.

    Raises `InvalidValue`.
    """
    if (position := StorePosition.parse(event_id)) is not None:
        return f"{AFTER}:{position}"
    if event_id.isascii() and event_id.isdigit() and len(event_id) <= 19 and int(event_id) < NUMBER_MAX:
        return f"{SEQ}:{int(event_id) + 1}"
    raise InvalidValue(f"invalid Last-Event-ID {event_id[:100]!r}: expected the id of an event, N@STORE")


class EventWriter:
    """Writes the messages and the gaps of a subscription as events, each where it belongs.

    `last` is the last sequence that was written, in this `store`.
    """

    OWN_TYPES = b""
    """How the types of the events begin that are no messages: `gap` and `problem`."""

    def __init__(self, last: int, store: str) -> None:
        self.last, self.store = last, store
        self.gaps = GapQueue()

    def headers(self) -> Mapping[str, str]:
        """Headers of the answer, before anything is written."""
        return {}

    def position(self, sequence: int) -> bytes:
        """The id of an event: what Last-Event-ID says when this one was the last."""
        return f"{sequence}@{self.store}".encode()

    @property
    def start(self) -> str:
        """The start of a subscription that goes on behind what was written."""
        return f"{AFTER}:{self.last}@{self.store}"

    def event(self, message: Message) -> bytes:
        """A message as an event; empty if it is not to be written."""
        data = bodies.to_json(bodies.shown(message))
        return b"id: %b\ndata: %b\n\n" % (self.position(message.sequence), data)

    def events(self, columns: Columns | None) -> Iterator[bytes]:
        """Write some messages, and the gaps before them; without messages all gaps that wait.

        `last` is that of the event that was yielded.
        """
        for message in () if columns is None else bodies.messages_of(columns):
            yield from map(self._gap, self.gaps.before_next())
            written = self._written(message)
            self.last = message.sequence
            yield written
        if columns is None:
            yield from map(self._gap, self.gaps.rest())

    def parts(self, columns: Columns | None) -> Iterator[bytes]:
        """The same, several events at a time."""
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
        # One that lies behind tells that the broker has lost what was had: the position stays.
        position = b"id: %b\n" % self.position(gap.last) if gap.last > self.last else b""
        self.last = max(self.last, gap.last)
        fields = bodies.to_json(bodies.shown_gap(gap))
        return b"event: %bgap\n%bdata: %b\n\n" % (self.OWN_TYPES, position, fields)
