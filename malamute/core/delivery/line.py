"""The order in which messages wait, and the lines that they wait in.

An *order* is a number: the smaller one goes first. It is the sequence, less `priority_step` for each step of
priority. So what is more important goes ahead of all that came up to so many messages before it, and as the
sequences rise, what was passed over is sooner or later ahead of everything new: the bound on starvation needs
no counter, and an order never changes. In its last bits an order has the priority, so that it leads back
to the sequence and no two messages share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malamute.core.delivery.consumer import Consumer
    from malamute.matching import Group

STALE_MIN = 100
"""Messages taken by others that a backlog may hold before it is cleaned."""

PRIORITY_BITS = 4
"""Bits of an order that hold the priority. Without one, an order is the sequence moved by so many."""

_MASK = (1 << PRIORITY_BITS) - 1


def order_of(sequence: int, priority: int, step: int) -> int:
    """The place of a message among those that wait."""
    return (sequence - priority * step) << PRIORITY_BITS | priority


def sequence_of(order: int, step: int) -> int:
    """The sequence of the message in this place."""
    return (order >> PRIORITY_BITS) + (order & _MASK) * step


class Backlog:
    """Orders of messages that wait, the smallest first.

    Most come in their order and leave in it: a row for them costs the same whatever its length. Only those
    that come out of order, since they were here before or are more important, are in a heap.
    """

    __slots__ = ("_heap", "_row")

    def __init__(self, orders: Iterable[int] = ()) -> None:
        self._row = deque(sorted(orders))
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def add(self, order: int, ready: set[int]) -> None:
        """Let a message wait; `ready` are those that wait anywhere.

        What another line has taken stays here: a line without credit would gather it for ever.
        """
        row, heap = self._row, self._heap
        if not row or order > row[-1]:
            row.append(order)
        else:
            heappush(heap, order)
        if len(row) + len(heap) > 2 * len(ready) + STALE_MIN:
            self._row = deque(sorted(ready.intersection(row) | ready.intersection(heap)))
            self._heap = []

    def take(self) -> list[int]:
        """Take out all."""
        orders = [*self._row, *self._heap]
        self._row.clear()
        self._heap.clear()
        return orders

    @property
    def first(self) -> float:
        """The smallest order; infinity if there is none."""
        return min(self._row[0] if self._row else inf, self._heap[0] if self._heap else inf)

    def pop(self) -> int | None:
        """Take out the smallest order; None if there is none."""
        row, heap = self._row, self._heap
        if heap and (not row or heap[0] < row[0]):
            return heappop(heap)
        return row.popleft() if row else None


class Line:
    """The consumers with one selector, and what waits for them: one of the two is always empty."""

    __slots__ = ("consumers", "group", "waiting")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.consumers: deque[Consumer] = deque()
        self.waiting = Backlog()
