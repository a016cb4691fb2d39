"""A consumer of a queue: its credit, its deliveries, and those not sent yet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.iteration.credit import CreditBalance
from malamute.core.queue.entry import Entry, size_of
from malamute.core.queue.state import Holding
from malamute.core.queue.waiters import ReadyQueue
from malamute.errors import NotOutstanding
from malamute.protocol.fields import Ranges

if TYPE_CHECKING:
    from malamute.core.iteration.timers import Timer
    from malamute.core.queue.waiters import ConsumerGroup

RECALLED_MAX = 1_000
"""Recalled deliveries that a consumer remembers, since something about them may be on its way."""

_marked = attrgetter("marked")


class Owner(Holding, Protocol):
    """A session, as far as it consumes."""

    peer: bytes
    blocked: bool
    """Whether it can be sent nothing for now."""
    review: Callable[[Any], None] | None
    """To be called before it is sent anything, if there is one."""

    address: str
    received: int
    """Messages that it was sent."""

    @property
    def ident(self) -> str:
        """Its name for people."""


class Consumer:
    """One taker of a queue's messages: the owner of a mailbox, or an offer to work for a service.

    `outstanding` are the deliveries that it has to settle, in the order of their ack deadlines: each gets
    `ack_timeout` seconds, and goes to the end when it is reported on.
    """

    group: ConsumerGroup[Consumer]
    """The consumers with the same selector, once this one has joined."""

    def __init__(self, session: Owner, source: int, ack_timeout: float, joined: float) -> None:
        """`joined` is in seconds since the epoch."""
        self.session = session
        self.source = source
        self.ack_timeout = ack_timeout
        self.joined = joined
        self.credit = CreditBalance()
        self.outstanding: dict[int, Entry] = {}
        self.unsent: list[Entry] = []
        """Its assigned messages that are not sent yet."""
        self.missing_bytes = 0
        """Bytes of those unsent whose records are on the disk."""
        self.awaiting = 0
        """The reasons why the first unsent message waits: a mark, records, or both."""
        self.own_ready = ReadyQueue()
        """Ranks of messages whose key is bound to it, and which wait for its credit."""
        self.last_used = 0
        self.is_waiting = False
        """Whether it waits in its group for a message."""
        self.drained = False
        """Whether it gets nothing more until it grants credit."""
        self.is_searching = False
        """Whether it waits for work to find the first message of its group."""
        self.deadline: Timer | None = None
        """Of the first delivery; there is none while nobody watches."""
        self._recalled: list[int] = []
        """In order of their sequences."""
        self._recalled_last: deque[int] = deque(maxlen=RECALLED_MAX)
        """In the order in which they were recalled."""

    def grant(self, messages: int, size_bytes: int) -> None:
        """Add credit."""
        if self.drained:
            self.credit.clear()
            self.drained = False
        self.credit.grant(messages, size_bytes)

    # Assigned messages

    def pop_sendable(self) -> list[Entry]:
        """Pop the first unsent messages whose records and marks of delivery are there."""
        entries = unsent = self.unsent
        # Most are one message, or all of a batch.
        if len(unsent) != 1 or not unsent[0].marked:
            entries = [*takewhile(_marked, unsent)]
        if self.missing_bytes:
            entries = [*takewhile(lambda entry: entry.record is not None, entries)]
        self.unsent = unsent[len(entries) :]
        return entries

    def recall(self, sequences: set[int]) -> list[Entry]:
        """Drop messages that were taken away before they were sent, with their credit. Returns them."""
        recalled = [entry for entry in self.unsent if entry.sequence in sequences]
        if recalled:
            self.unsent = [entry for entry in self.unsent if entry.sequence not in sequences]
            for entry in recalled:
                self.credit.consume(-1, -entry.bytes)
        return recalled

    def count_missing(self) -> None:
        """See how much it still waits for."""
        self.missing_bytes = size_of([entry for entry in self.unsent if entry.record is None])

    def sent_of(self, sequences: Iterable[int]) -> list[int]:
        """Return the sent ones of some deliveries."""
        unsent = {entry.sequence for entry in self.unsent}
        return [sequence for sequence in sequences if sequence not in unsent]

    def remember_recalled(self, sequences: Sequence[int]) -> None:
        """These are recalled. Its client may still name them, until it has read that."""
        self._recalled_last.extend(sequences)
        self._recalled = sorted(self._recalled_last)

    # Deadlines

    @property
    def first_deadline(self) -> float | None:
        """When the first delivery is late, in seconds since the epoch; None if none ever is."""
        if not self.ack_timeout or not self.outstanding:
            return None
        return next(iter(self.outstanding.values())).deadline_from + self.ack_timeout

    def pop_late(self, now: float) -> list[int]:
        """Return the late deliveries. Unsent ones cannot be late: their time begins anew."""
        late: list[int] = []
        for sequence, entry in self.outstanding.items():
            if entry.deadline_from + self.ack_timeout > now:
                break
            late.append(sequence)
        unsent = {entry.sequence for entry in self.unsent}
        self.renew([sequence for sequence in late if sequence in unsent], now)
        return [sequence for sequence in late if sequence not in unsent]

    def renew(self, sequences: Sequence[int], now: float) -> None:
        """The time that it has for deliveries begins anew."""
        outstanding = self.outstanding
        if len(sequences) < len(outstanding):
            entries = [*map(outstanding.pop, sequences)]
            outstanding.update(zip(sequences, entries, strict=True))
        else:
            entries = [*outstanding.values()]
        for entry in entries:
            entry.deadline_from = now

    # Deliveries that its client names

    def held(self, ranges: Ranges) -> list[int]:
        """Return the sequences in flight within the ranges. Each range has to name one, or a recalled one.

        Recalled ones beside others are ignored: the client could not know. Raises `NotOutstanding`.
        """
        outstanding = self.outstanding
        if sum(last - first + 1 for first, last in ranges) > len(outstanding):
            return self._held_within(ranges)
        held: list[int] = []
        for first, last in ranges:
            found = [*filter(outstanding.__contains__, range(first, last + 1))]
            if not found:
                self._check_recalled(first, last)
            held += found
        if not held:
            raise NotOutstanding("no such delivery is outstanding here any more: it was settled or recalled")
        return held if len(ranges) == 1 else list(dict.fromkeys(held))

    def _held_within(self, ranges: Ranges) -> list[int]:
        """Return the same for ranges wider than the held messages, each of which is visited once."""
        ordered = sorted(self.outstanding)
        held: list[int] = []
        done = 0
        for first, last in sorted(map(tuple, ranges)):
            start, end = bisect_left(ordered, first), bisect_right(ordered, last)
            if start == end:
                self._check_recalled(first, last)
            # Messages of an earlier range are not visited again.
            held += ordered[max(start, done) : end]
            done = max(done, end)
        if not held:
            raise NotOutstanding("no such delivery is outstanding here any more: it was settled or recalled")
        return held

    def _check_recalled(self, first: int, last: int) -> None:
        recalled = self._recalled
        place = bisect_left(recalled, first)
        if place == len(recalled) or recalled[place] > last:
            raise NotOutstanding(f"no delivery from {first} to {last} is outstanding here")

    def beside(self, ranges: Ranges) -> list[int]:
        """Return the messages outside of these ranges, and the unsent ones: the program has not seen them."""
        ordered = sorted(self.outstanding)
        kept: set[int] = set()
        for first, last in ranges:
            kept.update(ordered[bisect_left(ordered, first) : bisect_right(ordered, last)])
        # Seen messages among the unsent ones were seen before they were recalled.
        kept.difference_update(entry.sequence for entry in self.unsent)
        return [sequence for sequence in ordered if sequence not in kept] if kept else ordered
