"""Who takes the messages of a queue, and what can be said about a delivery."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from malamute.core.credit import Credit
from malamute.core.queue.entry import Entry, ranges_of, size_of
from malamute.core.queue.state import Holding
from malamute.core.queue.waiters import ReadyQueue
from malamute.errors import NotOutstanding
from malamute.protocol.messages import Ranges, Recall

if TYPE_CHECKING:
    from malamute.core.effects import WhenStored
    from malamute.core.queue.queue import Queue
    from malamute.core.queue.waiters import ConsumerGroup
    from malamute.core.timers import Timer
    from malamute.matching import Selector

RECALLED_MAX = 1_000
"""Recalled deliveries that a consumer remembers, since something about them may be on its way."""


class Owner(Holding, Protocol):
    """A session, as far as it consumes."""

    peer: bytes
    blocked: bool
    """Whether it can be sent nothing for now."""

    address: str

    @property
    def ident(self) -> str:
        """What people call it."""


class Consumer:
    """One taker of a queue's messages: the owner of a mailbox, or an offer to work for a service.

    `outstanding` are the deliveries that it has to settle, in the order of their ack deadlines: each gets
    `ack_timeout` seconds, and goes to the end when it is reported on.
    """

    def __init__(
        self, session: Owner, source: int, queue: Queue, selector: Selector, ack_timeout: float = 0.0
    ) -> None:
        self.session = session
        self.source = source
        self.queue = queue
        self.ack_timeout = ack_timeout or queue.policy.ack_timeout_seconds
        self.credit = Credit()
        self.cost_bytes = 0
        """What its selector takes of memory."""
        self.outstanding: dict[int, Entry] = {}
        self.unsent: list[Entry] = []
        self.missing_bytes = 0
        """Bytes of those unsent whose records are on the disk."""
        self.awaiting = 0
        """What the first of those unsent waits for: a mark, records, or both."""
        self.own_ready = ReadyQueue()
        """Ranks of messages whose key is bound to it, and which wait for its credit."""
        self.last_used = 0
        self.joined = queue.effects.now
        self.is_waiting = False
        """Whether it waits in its group for a message."""
        self.drained = False
        """Whether it gets nothing more until it grants credit."""
        self.is_searching = False
        """Whether it waits for the work to look for what goes first in its group."""
        self._recalled: list[int] = []
        """In order of their sequences."""
        self._recalled_last: deque[int] = deque(maxlen=RECALLED_MAX)
        """In the order in which they were recalled."""
        self._alarm: Timer | None = None
        self.group: ConsumerGroup[Consumer] = queue.join(self, selector)

    @property
    def ready(self) -> bool:
        """Whether it may be given a message."""
        may_lack = not self.missing_bytes or self.missing_bytes < self.queue.missing_bytes_max
        return self.credit.open and may_lack and not self.session.blocked and not self.drained

    def grant(self, messages: int, size_bytes: int) -> None:
        """Take more credit, and what waits for it."""
        if self.drained:
            self.credit.clear()
            self.drained = False
        self.credit.grant(messages, size_bytes)
        self.queue.dispatcher.serve(self)

    def block(self) -> None:
        """The peer can take no messages for now: others get what it would have got."""
        self.queue.dispatcher.remove_waiter(self)

    def unblock(self) -> None:
        """The peer can take messages again."""
        self.queue.dispatcher.serve(self)

    # What can be said about deliveries. All raise `NotOutstanding`, and then nothing has happened. What was
    # recalled is passed over beside others: whoever spoke of it could not know.

    def acknowledge(self, ranges: Ranges) -> None:
        """They are done: remove them."""
        self.queue.acknowledge(self, self.held(ranges))

    def give_back(self, ranges: Ranges, delay: float | None) -> None:
        """They were tried and go back to the queue, after a delay in seconds; None is by the backoff."""
        self.queue.give_back(self, self.held(ranges), delay)

    def release(self, ranges: Ranges) -> None:
        """They were not looked at and go back to the queue."""
        self.queue.release(self, self.held(ranges))

    def drain(self, held: Ranges, told: WhenStored) -> None:
        """It takes nothing more, and of what it has only what is `held` was looked at.

        `told` is called when what goes back to the queue is stored, or at once if that is nothing.
        """
        self.drained = True
        ordered = sorted(self.outstanding)
        kept: set[int] = set()
        for first, last in held:
            kept.update(ordered[bisect_left(ordered, first) : bisect_right(ordered, last)])
        # What it looked at of those that were not sent is what it had of them before they were recalled.
        kept.difference_update(entry.sequence for entry in self.unsent)
        back = [sequence for sequence in ordered if sequence not in kept] if kept else ordered
        self.queue.drain(self, back, told)

    def reject(self, ranges: Ranges, reason: str) -> None:
        """Nobody is to get them again."""
        self.queue.reject(self, self.held(ranges), reason)

    def report(self, ranges: Ranges) -> None:
        """They are worked on: their deadlines begin anew."""
        self._renew(self.held(ranges))

    def held(self, ranges: Ranges) -> list[int]:
        """The outstanding sequences within the ranges; each has to name one, or one that was recalled."""
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
        """The same of ranges that are wider than what is held: the work is that of what is held, once."""
        ordered = sorted(self.outstanding)
        held: list[int] = []
        done = 0
        for first, last in sorted(map(tuple, ranges)):
            start, end = bisect_left(ordered, first), bisect_right(ordered, last)
            if start == end:
                self._check_recalled(first, last)
            # What an earlier range had is not looked at again.
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

    def cancel(self) -> None:
        """End it: what it holds is ready for others."""
        self.queue.leave(self)

    def detach(self, sequences: Sequence[int]) -> None:
        """Take deliveries away from it. The caller says where they are now."""
        self.queue.states.detach(self, sequences)
        if self.unsent:
            self._unsend(set(sequences))

    def _unsend(self, sequences: set[int]) -> None:
        """What was taken away before it was sent again is not sent, takes no credit and is no attempt."""
        done = [entry for entry in self.unsent if entry.sequence in sequences]
        if not done:
            return
        self.unsent = [entry for entry in self.unsent if entry.sequence not in sequences]
        for entry in done:
            entry.attempts -= 1
            self.credit.take(-1, -entry.bytes)
        self.count_missing()

    def count_missing(self) -> None:
        """See how much it still waits for, and whether that lets it have more."""
        self.missing_bytes = size_of([entry for entry in self.unsent if entry.record is None])
        if not self.is_waiting and id(self) in self.queue.consumers:
            self.queue.dispatcher.serve(self)

    # Deadlines

    def watch(self) -> None:
        """See to it that the first deadline is noticed."""
        if self._alarm is None and self.ack_timeout and self.outstanding:
            first = next(iter(self.outstanding.values()))
            self._alarm = self.queue.limits.timers.at(first.deadline_from + self.ack_timeout, self._look)

    def unwatch(self) -> None:
        """It holds nothing any more."""
        self.queue.limits.timers.cancel(self._alarm)
        self._alarm = None

    def recalled(self, sequences: list[int], reason: str) -> None:
        """Tell the peer what is no longer its own. It need not hear of what it was not sent."""
        unsent = {entry.sequence for entry in self.unsent}
        sent = [sequence for sequence in sequences if sequence not in unsent]
        if sent:
            self._remember(sent)
            self.queue.effects.send(self.session.peer, Recall(self.source, ranges_of(sent), reason))

    def _remember(self, recalled: list[int]) -> None:
        self._recalled_last.extend(recalled)
        self._recalled = sorted(self._recalled_last)

    def sent_late(self, entries: list[Entry]) -> None:
        """What waited for the disk is sent now: the time that the peer has for it begins."""
        self._renew([s for entry in entries if (s := entry.sequence) in self.outstanding])

    def _look(self) -> None:
        self._alarm = None
        now = self.queue.effects.now
        late: list[int] = []
        for sequence, entry in self.outstanding.items():
            if entry.deadline_from + self.ack_timeout > now:
                break
            late.append(sequence)
        # What has not been sent cannot be late.
        unsent = {entry.sequence for entry in self.unsent}
        self._renew([sequence for sequence in late if sequence in unsent])
        late = [sequence for sequence in late if sequence not in unsent]
        if late:
            self.recalled(late, "timeout")
            self.queue.limits.flush.note(self.queue, "timeout", len(late))
            self.queue.give_back(self, late, None)
        self.watch()

    def _renew(self, sequences: list[int]) -> None:
        now, outstanding = self.queue.effects.now, self.outstanding
        if len(sequences) < len(outstanding):
            entries = [*map(outstanding.pop, sequences)]
            outstanding.update(zip(sequences, entries, strict=True))
        else:
            entries = [*outstanding.values()]
        for entry in entries:
            entry.deadline_from = now
