"""A path to a broker, simulated naively: what a congestion window is held against.

Commands wait in one queue for a server with a rate, and are answered in bunches: a bunch is what was served
while the one before it was on its way to be answered. Nothing here knows how a window is found.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from malamute.client.session.congestion import CongestionWindow

UNBOUNDED = 1 << 40


class Served(NamedTuple):
    sender: Sender
    at: float
    size: int
    waited: float


class Path:
    """`rate` is in bytes a second, at a time; `delay` the seconds of one direction, `bunch` those of a bunch.

    A bunch takes up to `jitter` times as long again. During a stall, from and to a time, nothing is served.
    """

    def __init__(
        self,
        rate: float | Callable[[float], float],
        delay: float = 0.0001,
        *,
        bunch: float = 0.0,
        jitter: float = 0.0,
        stall: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.rate = rate if callable(rate) else lambda now: rate
        self.delay, self.bunch, self.jitter, self.stall = delay, bunch, jitter, stall
        self.now = 0.0
        self.served: list[Served] = []
        self._random = random.Random(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._queue: deque[tuple[Sender, int, float]] = deque()
        self._busy = self._bunching = False
        self._bunch: list[tuple[Sender, int]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def send(self, sender: Sender, size: int) -> None:
        def arrive() -> None:
            self._queue.append((sender, size, self.now))
            self._serve()

        self.at(self.now + self.delay, arrive)

    def _serve(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        sender, size, came = self._queue.popleft()
        begins = self.now
        if self.stall[0] <= begins < self.stall[1]:
            begins = self.stall[1]

        def done() -> None:
            self._busy = False
            self.served.append(Served(sender, self.now, size, begins - came))
            self._bunch.append((sender, size))
            self._answer()
            self._serve()

        self.at(begins + size / self.rate(begins), done)

    def _answer(self) -> None:
        if self._bunching or not self._bunch:
            return
        self._bunching = True
        bunch, self._bunch = self._bunch, []

        def answered() -> None:
            self._bunching = False
            for sender in dict.fromkeys(sender for sender, _ in bunch):
                size = sum(size for one, size in bunch if one is sender)
                self.at(self.now + self.delay, lambda sender=sender, size=size: sender.answer(size))
            self._answer()

        self.at(self.now + self.bunch * self._random.uniform(1, 1 + self.jitter), answered)

    def throughput(self, begin: float, end: float, sender: Sender | None = None) -> float:
        """The bytes served in a second, of a sender or of all."""
        return sum(
            one.size for one in self.served if begin <= one.at < end and sender in (None, one.sender)
        ) / (end - begin)

    def queueing_delays(self, begin: float, end: float) -> list[float]:
        """The seconds that each command waited for the server, in order."""
        return sorted(one.waited for one in self.served if begin <= one.at < end)


class Sender:
    """Sends commands of one size as its window lets it; with `rate` no more bytes a second than that."""

    def __init__(
        self, path: Path, size: int, *, rate: float = 0.0, begin: float = 0.0, most: int = UNBOUNDED
    ) -> None:
        self.window = CongestionWindow(most)
        self.sent = self.answered = self.under_way_max = 0
        self._path, self._size, self._rate = path, size, rate
        self._due = begin
        path.at(begin, self._go)

    def _go(self) -> None:
        path = self._path
        while self.sent - self.answered < self.window.bytes:
            if self._rate and path.now < self._due:
                path.at(self._due, self._go)
                return
            self.sent += self._size
            self.under_way_max = max(self.under_way_max, self.sent - self.answered)
            self.window.observe(self.sent, self.answered, path.now)
            path.send(self, self._size)
            if self._rate:
                self._due += self._size / self._rate

    def answer(self, size: int) -> None:
        self.answered += size
        self.window.observe(self.sent, self.answered, self._path.now)
        self._go()
