"""Actions at a time: one heap for the whole core.

`Core.next_deadline` tells the loop when the first timer is due, `Core.tick` runs the due ones. Setting a
timer costs the logarithm of how many there are; cancelling one leaves it in the heap, which is cleaned when
half of it is of that kind. A tick runs a bounded number, so that many timers of one moment do not hold up the
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import overload

TIMERS_PER_TICK = 500
"""Timers that one tick runs. The loop takes in other work before the rest of them."""

CANCELLED_MIN = 100
"""Cancelled timers that may stay in the heap however short it is."""


class Timer:
    """Something to be done at a time, unless it is cancelled before."""

    __slots__ = ("action", "due", "sequence")

    def __init__(self, due: float, action: Callable[..., None], sequence: int | None) -> None:
        self.due = due
        self.action: Callable[..., None] | None = action
        self.sequence = sequence


class Timers:
    """All timers. Times are seconds since the epoch, UTC; those of one time run as they were set."""

    def __init__(self, on_fault: Callable[[Exception], object]) -> None:
        """`on_fault` is called with the exception of an action: the others are run nevertheless."""
        self._on_fault = on_fault
        self._heap: list[tuple[float, int, Timer]] = []
        self._set = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    @overload
    def at(self, due: float, action: Callable[[], None]) -> Timer: ...

    @overload
    def at(self, due: float, action: Callable[[int], None], sequence: int) -> Timer: ...

    def at(self, due: float, action: Callable[..., None], sequence: int | None = None) -> Timer:
        """Set a timer. Its action is called with the sequence, if there is one.

        Millions of messages may wait for a time: a closure would take 300 bytes for each.
        """
        timer = Timer(due, action, sequence)
        self._set += 1
        heappush(self._heap, (due, self._set, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Let a timer go, if there is one and it has not run."""
        if timer is None or timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > len(self._heap) // 2 + CANCELLED_MIN:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now: float) -> None:
        """Run the due actions."""
        if not self._heap or self._heap[0][0] > now:
            return
        for _ in range(TIMERS_PER_TICK):
            if not self._heap or self._heap[0][0] > now:
                return
            timer = heappop(self._heap)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
                continue
            try:
                if timer.sequence is None:
                    action()
                else:
                    action(timer.sequence)
            except Exception as error:
                self._on_fault(error)

    def next_deadline(self) -> float:
        """When `run` has something to do; infinity for never."""
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else inf
