"""The consumer groups of a queue, and the ready queue of each: the messages that wait for its consumers.

A *rank* is a number, the smaller one first: the sequence, less `priority_step` for each step of priority. So
an important message goes ahead of all that came up to so many messages before it, and as the sequences rise,
an overtaken message is sooner or later ahead of all new ones: the bound on starvation needs no counter, and a
rank never changes. The priority follows behind the point, so that a rank leads back to the sequence and no
two messages share one. Without a priority it is the sequence itself, which costs nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import floor, inf
from typing import Generic, TypeVar

from malamute.matching import CacheBudget, Group, Groups, Index, Selector

C = TypeVar("C")

STALE_MIN = 100
"""Messages taken by others that a ready queue may hold before it is compacted."""

PRIORITIES = 16
"""More than there are. A power of two: a rank is exact as long as sequences have less than 49 bits."""

Rank = float

OnFailure = Callable[[str, Exception], None]


def rank_of(sequence: int, priority: int, step: int) -> Rank:
    """The place of a message among those that wait."""
    return sequence - priority * step + priority / PRIORITIES if priority else sequence


def sequence_of(rank: Rank, step: int) -> int:
    """The sequence of the message in this place."""
    place = floor(rank)
    return place + int((rank - place) * PRIORITIES) * step


class ReadyQueue:
    """The ready queue: ranks of messages that wait, the smallest first.

    Most come in their order and leave in it: a row for them costs the same at any length. Only those that
    come out of order, since they were here before or are more important, are in a heap.
    """

    __slots__ = ("_heap", "_in_order")

    def __init__(self) -> None:
        self._in_order: deque[Rank] = deque()
        self._heap: list[Rank] = []

    def __len__(self) -> int:
        return len(self._in_order) + len(self._heap)

    def add(self, rank: Rank) -> None:
        """Let a message wait."""
        row = self._in_order
        if not row or rank > row[-1]:
            row.append(rank)
        else:
            heappush(self._heap, rank)

    def compact(self, waiting: int, waits: Callable[[Rank], bool]) -> None:
        """Drop messages that other groups have taken, if they are most.

        `waiting` says how many messages wait anywhere.
        """
        if len(self) > 2 * waiting + STALE_MIN:
            self._in_order = deque(sorted(filter(waits, {*self._in_order, *self._heap})))
            self._heap = []

    def pop_all(self) -> list[Rank]:
        """Take out all."""
        ranks = [*self._in_order, *self._heap]
        self._in_order.clear()
        self._heap.clear()
        return ranks

    @property
    def first(self) -> Rank:
        """The smallest rank; infinity if there is none."""
        row, heap = self._in_order, self._heap
        if heap and (not row or heap[0] < row[0]):
            return heap[0]
        return row[0] if row else inf

    def pop(self) -> Rank | None:
        """Pop the smallest rank; None if there is none."""
        row, heap = self._in_order, self._heap
        if heap and (not row or heap[0] < row[0]):
            return heappop(heap)
        return row.popleft() if row else None


class Search:
    """The search of messages that waited before a group came, as far as needed; it can pause anywhere.

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

    def known_before(self, step: int) -> Rank:
        """The rank that nothing which it has not looked at goes ahead of."""
        return inf if self.done else self.place - (PRIORITIES - 1) * step


class ConsumerGroup(Generic[C]):
    """The consumers with one selector, and their ready messages: one of the two is always empty.

    Most take everything, and their messages need not be matched one by one. While there is a `search`, the
    ready messages are not all known yet.
    """

    __slots__ = ("matched", "ready", "search", "takes_all", "waiting")

    def __init__(self, group: Group) -> None:
        self.matched = group
        self.takes_all = any(criterion.family == "all" for criterion in group.selector.criteria)
        self.waiting: deque[C] = deque()
        self.ready = ReadyQueue()
        self.search: Search | None = None


class ConsumerGroups(Generic[C]):
    """All consumer groups of a queue. There is one for each selector, as long as it has a consumer."""

    def __init__(self, on_failure: OnFailure, caches: CacheBudget) -> None:
        """`on_failure` is called with a family of the index that fails."""
        self._on_failure = on_failure
        self._caches = caches
        self.by_number: dict[int, ConsumerGroup[C]] = {}
        self.takes_all = False
        """Whether any consumer takes everything."""
        # Most mailboxes of absent owners never have a consumer: no index for them.
        self._index: Index | None = None
        self.match: Callable[[str], Groups] = _nobody
        """The groups of consumers that take a subject; equal ones are the same object."""

    def join(self, consumer: C, selector: Selector) -> tuple[ConsumerGroup[C], bool]:
        """The group of a consumer that comes, and whether it is new."""
        if self._index is None:
            self._index = Index(on_failure=self._on_failure, caches=self._caches)
            self.match = self._index.match
        group = self._index.add(id(consumer), selector, consumer)
        is_new = group.number not in self.by_number
        if is_new:
            new = self.by_number[group.number] = ConsumerGroup(group)
            self.takes_all |= new.takes_all
        return self.by_number[group.number], is_new

    @property
    def failures(self) -> Counter[str]:
        """How often each family of the index has failed."""
        return self._index.failures if self._index is not None else Counter()

    def leave(self, consumer: C, group: ConsumerGroup[C]) -> None:
        """A consumer leaves its group."""
        assert self._index is not None
        self._index.remove(id(consumer))
        if not group.matched.members:
            del self.by_number[group.matched.number]
            if group.takes_all:
                self.takes_all = any(other.takes_all for other in self.by_number.values())


def _nobody(subject: str) -> Groups:
    return ()
