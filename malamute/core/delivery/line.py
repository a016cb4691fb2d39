"""The order in which messages wait, and the lines that they wait in.

An *order* is a number: the smaller one goes first. It is the sequence, less `priority_step` for each step of
priority. So what is more important goes ahead of all that came up to so many messages before it, and as the
sequences rise, what was passed over is sooner or later ahead of everything new: the bound on starvation needs
no counter, and an order never changes. The priority follows behind the point, so that an order leads back to
the sequence and no two messages share one. Without a priority it is the sequence itself, which costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import floor, inf
from typing import TYPE_CHECKING

from malamute.matching import CacheBudget, Group, Groups, Index, Selector

if TYPE_CHECKING:
    from malamute.core.delivery.consumer import Consumer

STALE_MIN = 100
"""Messages taken by others that a backlog may hold before it is cleaned."""

PRIORITIES = 16
"""More than there are. A power of two: an order is exact as long as sequences have less than 49 bits."""

Order = float

OnFailure = Callable[[str, Exception], None]


def order_of(sequence: int, priority: int, step: int) -> Order:
    """The place of a message among those that wait."""
    return sequence - priority * step + priority / PRIORITIES if priority else sequence


def sequence_of(order: Order, step: int) -> int:
    """The sequence of the message in this place."""
    place = floor(order)
    return place + int((order - place) * PRIORITIES) * step


class Backlog:
    """Orders of messages that wait, the smallest first.

    Most come in their order and leave in it: a row for them costs the same whatever its length. Only those
    that come out of order, since they were here before or are more important, are in a heap.
    """

    __slots__ = ("_heap", "_row")

    def __init__(self) -> None:
        self._row: deque[Order] = deque()
        self._heap: list[Order] = []

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def add(self, order: Order) -> None:
        """Let a message wait."""
        row = self._row
        if not row or order > row[-1]:
            row.append(order)
        else:
            heappush(self._heap, order)

    def clean(self, waiting: int, waits: Callable[[Order], bool]) -> None:
        """Drop what other lines have taken, if it is most: a line without credit would gather it for ever.

        `waiting` says how many messages wait anywhere.
        """
        if len(self) > 2 * waiting + STALE_MIN:
            self._row = deque(sorted(filter(waits, {*self._row, *self._heap})))
            self._heap = []

    def take(self) -> list[Order]:
        """Take out all."""
        orders = [*self._row, *self._heap]
        self._row.clear()
        self._heap.clear()
        return orders

    @property
    def first(self) -> Order:
        """The smallest order; infinity if there is none."""
        return min(self._row[0] if self._row else inf, self._heap[0] if self._heap else inf)

    def pop(self) -> Order | None:
        """Take out the smallest order; None if there is none."""
        row, heap = self._row, self._heap
        if heap and (not row or heap[0] < row[0]):
            return heappop(heap)
        return row.popleft() if row else None


class Search:
    """The look at what waited before a line came, as far as it is needed; it can be broken off anywhere.

    All before `place` was looked at, and nothing from `end` on is its business.
    """

    __slots__ = ("end", "place")

    def __init__(self, end: int) -> None:
        self.place = 0
        self.end = end

    @property
    def done(self) -> bool:
        """Whether all was looked at."""
        return self.place >= self.end

    def knows(self, order: Order, step: int) -> bool:
        """Whether nothing that it has not looked at goes ahead of this one."""
        return self.done or order < self.place - (PRIORITIES - 1) * step


class Line:
    """The consumers with one selector, and what waits for them: one of the two is always empty.

    Most take everything, and their messages need not be matched one by one. While there is a `search`, what
    waits is not known yet, or not all of it.
    """

    __slots__ = ("consumers", "group", "search", "takes_all", "waiting")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.takes_all = any(criterion.family == "all" for criterion in group.selector.criteria)
        self.consumers: deque[Consumer] = deque()
        self.waiting = Backlog()
        self.search: Search | None = None


class Lines:
    """All lines of a queue. There is one for each selector, as long as it has a consumer."""

    def __init__(self, on_failure: OnFailure, caches: CacheBudget) -> None:
        """`on_failure` is told of a family of the index that fails."""
        self._on_failure = on_failure
        self._caches = caches
        self._lines: dict[int, Line] = {}
        self.takes_all = False
        """Whether any consumer takes everything."""
        # Most mailboxes of absent owners never have a consumer: no index for them.
        self._index: Index | None = None
        self.match: Callable[[str], Groups] = _nobody
        """The groups of consumers that take a subject; equal ones are the same object."""

    @property
    def awaiting(self) -> bool:
        """Whether any consumer waits for a message."""
        return any(line.consumers for line in self._lines.values())

    def of(self, groups: Groups) -> list[Line]:
        """The lines of these groups."""
        return [self._lines[group.number] for group in groups]

    def join(self, consumer: Consumer, selector: Selector) -> tuple[Line, bool]:
        """The line of a consumer that comes, and whether it is new."""
        if self._index is None:
            self._index = Index(on_failure=self._on_failure, caches=self._caches)
            self.match = self._index.match
        group = self._index.add(id(consumer), selector, consumer)
        is_new = group.number not in self._lines
        if is_new:
            line = self._lines[group.number] = Line(group)
            self.takes_all |= line.takes_all
        return self._lines[group.number], is_new

    def leave(self, consumer: Consumer) -> None:
        """A consumer goes."""
        assert self._index is not None
        self._index.remove(id(consumer))
        if not consumer.line.group.members:
            del self._lines[consumer.line.group.number]
            if consumer.line.takes_all:
                self.takes_all = any(line.takes_all for line in self._lines.values())


def _nobody(subject: str) -> Groups:
    return ()
