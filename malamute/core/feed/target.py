"""The target of a feed: the queue of a mailbox or a service, or a stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any

from malamute.core.queue.entry import ASKED, ENTRY_BYTES, PROPERTY_BYTES, Entry
from malamute.core.queue.options import Options
from malamute.core.queue.queue import Queue
from malamute.core.stream.stream import Stream
from malamute.errors import TryLater
from malamute.protocol.batch import Columns
from malamute.protocol.names import Place

if TYPE_CHECKING:
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.queue.paging import Records


def origin(source: Place, sequence: int) -> dict[str, Any]:
    """The properties of a message that a feed has made: where it was before."""
    return {"source": str(source), "sequence": sequence}


def _moved(entry: Entry, source: Place, kind: str) -> Mapping[str, Any] | None:
    """The properties of a queued message that a feed has moved to a queue of some kind."""
    before = entry.properties or {}
    if source.kind != kind:
        # Mail becomes a request, or a request mail.
        return {**before, **origin(source, entry.sequence)}
    # Its requester waits for a reply of the service that it has asked.
    return {ASKED: source.name, **before} if kind == "service" else entry.properties


FED_BYTES = ENTRY_BYTES + PROPERTY_BYTES * len(origin(Place("stream", ""), 0))
"""Bytes that a message made by a feed counts in a queue beyond its subject and its record."""


class QueueTarget:
    """The queue of a mailbox or a service."""

    keeps_options = True
    """Whether options of a message hold there."""

    def __init__(self, queue: Queue, *, moves: bool = False) -> None:
        """`moves`: the messages are in a queue already, and have their part of the room of all."""
        self.queue = queue
        self.place = Place(queue.kind, queue.name)
        self._others = not moves
        self.keeps_outcomes = not queue.usage.in_memory
        """Whether a message that is tracked may come."""

    def hold(self) -> None:
        """A feed puts something there from now on, so that it is not removed."""
        self.queue.feeds += 1

    def release(self) -> None:
        """That feed does not any more."""
        self.queue.feeds -= 1

    def room(self, sizes: Sequence[int]) -> int:
        """How many of the messages that take so many bytes each have room there now, from the first on."""
        totals = [*accumulate(sizes)]
        if self._fits(len(sizes), totals[-1]):
            return len(sizes)
        return bisect_left(range(len(sizes)), True, key=lambda i: not self._fits(i + 1, totals[i]))

    def never_fits(self, size_bytes: int) -> bool:
        """Whether there is no room for such a message even if nothing else is there."""
        return self.queue.limits.never_fits(self.queue.usage, size_bytes)

    def resume_at(self, size_bytes: int) -> float:
        """How many messages may be there at most before one is to be put again that has no room now."""
        # A read from the journal for each message that leaves the queue would be a waste.
        others = self._fits(1, size_bytes, others=False)
        return inf if others else self.held * 7 // 8

    @property
    def held(self) -> int:
        """How many messages are there that take room."""
        return len(self.queue.entries)

    @property
    def credit(self) -> int:
        """For how many more messages there is room; -1 without limit."""
        return max(0, self.queue.usage.policy.messages_max - self.queue.usage.messages)

    def put(self, columns: Columns, source: Place, keys: Sequence[str] = ()) -> None:
        """Put messages there, with all else of this iteration. There is room for them."""
        queue = self.queue
        first, time_ns = queue.next_sequence, queue.effects.time_ns
        rows = zip(
            columns.each_sequence(), columns.all_senders(), columns.subjects, columns.records, strict=True
        )
        made = [
            Entry((first + place, time_ns, sender, subject, record, origin(source, sequence)))
            for place, (sequence, sender, subject, record) in enumerate(rows)
        ]
        options: dict[int, Options] = {}
        for entry, key in zip(made, keys, strict=True) if keys else ():
            if key:
                entry.properties = {**(entry.properties or {}), "key": key}
                options[entry.sequence] = Options({"key": key}, time_ns)
        queue.put(made, confirmed=True, options=options)

    def size_of(self, entry: Entry) -> int:
        """Return the bytes that a queued message counts in the limits there."""
        return entry.size_bytes + FED_BYTES - ENTRY_BYTES

    def move(
        self,
        entries: Sequence[Entry],
        records: Records,
        source: Place,
        asked: Mapping[int, Options],
        counted: Mapping[int, QuotaUsages],
    ) -> None:
        """Put queued messages there, with their `asked` options, by their sequences at the source.

        `counted` has the quotas that some of them count for.
        """
        queue, first = self.queue, self.queue.next_sequence
        made = [
            Entry(
                (
                    first + place,
                    entry.time_ns,
                    entry.sender,
                    entry.subject,
                    records[entry.sequence],
                    _moved(entry, source, queue.kind),
                )
            )
            for place, entry in enumerate(entries)
        ]
        options = {
            message.sequence: asked[entry.sequence]
            for message, entry in zip(made, entries, strict=True)
            if entry.sequence in asked
        }
        queue.put(made, confirmed=True, options=options, reserved=True)
        queue.ids.add(made)
        for message, entry in zip(made, entries, strict=True) if counted else ():
            if quotas := counted.get(entry.sequence):
                queue.sent_by.add([message], quotas)

    def _fits(self, count: int, size_bytes: int, *, others: bool = True) -> bool:
        """Whether there is room for messages in the queue, and in all of them together if `others` count."""
        limits = self.queue.limits
        try:
            (limits.check if others and self._others else limits.check_queue)(
                self.queue.usage, count, size_bytes
            )
        except TryLater:
            return False
        return True


class StreamTarget:
    """A stream: it has room, since its ring makes some."""

    keeps_options = False
    keeps_outcomes = True

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.place = Place("stream", stream.name)
        self.held = 0
        self.credit = -1

    def hold(self) -> None:
        """A feed puts something there from now on, so that it is not removed."""
        self.stream.feeds += 1

    def release(self) -> None:
        """That feed does not any more."""
        self.stream.feeds -= 1

    def room(self, sizes: Sequence[int]) -> int:
        """How many of the messages that take so many bytes each have room there now, from the first on."""
        return len(sizes)

    def never_fits(self, size_bytes: int) -> bool:
        """Whether there is no room for such a message even if nothing else is there."""
        return False

    def resume_at(self, size_bytes: int) -> float:
        """How many messages may be there at most before one is to be put again that has no room now."""
        return inf

    def put(self, columns: Columns, source: Place, keys: Sequence[str] = ()) -> None:
        """Put messages there, with all else of this iteration."""
        self.stream.forward(columns.all_senders(), columns.subjects, columns.records)

    def size_of(self, entry: Entry) -> int:
        """Return the bytes that a queued message counts in the limits there."""
        return 0

    def move(
        self,
        entries: Sequence[Entry],
        records: Records,
        source: Place,
        asked: Mapping[int, Options],
        counted: Mapping[int, QuotaUsages],
    ) -> None:
        """Put queued messages there, as if their senders had published them."""
        self.stream.forward(
            [entry.sender for entry in entries],
            [entry.subject for entry in entries],
            [records[entry.sequence] for entry in entries],
        )


FeedPlace = QueueTarget | StreamTarget
"""A place that a feed goes from or to."""
