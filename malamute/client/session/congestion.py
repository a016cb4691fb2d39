"""Congestion control: the bytes that may be in flight, so that no queue builds up on the path.

Bytes in flight beyond the *bandwidth-delay product* - the bytes that the path takes in a second, times the
seconds of an answer without queues - only wait in a queue. The window is

    delivery rate * (2 * round trip + TARGET_SECONDS)

with the two estimates of BBR: the highest *delivery rate* of the last rounds and the shortest *round trip* of
the last two intervals. Twice the round trip, because answers come in bunches: while the broker handles one
half of the bytes in flight, the other is to arrive. The target is CoDel's term: the accepted queueing delay,
so that the path stays busy while a process waits for a processor. A window of this form needs no phase of
start-up: as long as the path takes all that it gets, each is at least twice the one before.

Only a sender that fills its window learns the rate of the path; others (BBR: they are *application-limited*)
measure their own rate.

Where the window is always full, every round trip includes the sender's own queue. So at the beginning of an
interval the window is the least one, until one round trip was measured with little before it.

Sources: BBR (Cardwell et al., ACM Queue 14/5, 2016; draft-cardwell-iccrg-bbr-congestion-control), its rate
samples (draft-cheng-iccrg-delivery-rate-estimation), CoDel (Nichols and Jacobson, ACM Queue 10/5, 2012).
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

TARGET_SECONDS = 0.015
"""The accepted queueing delay: some slices of the time that a system gives to one process."""

INITIAL_BYTES = 64 * 1024
"""The window until it was full for the first time."""

LEAST_BYTES = 4 * 1024
"""The minimum window. One command may always be in flight, however large it is."""

RATE_ROUNDS = 3
"""Round trips with a full window after which the rate of earlier ones is forgotten; up to twice as many."""

INTERVAL_SECONDS = 1.0
INTERVAL_ROUND_TRIPS = 100
"""Minimum round trips of an interval: a round trip with a small window must cost little of it."""

MARKS_A_ROUND_TRIP = 8
"""Approximate maximum of measurements that begin within a round trip."""

_INSTANT = 1e-6
"""The time between two moments that a clock cannot tell apart."""


class _Mark(NamedTuple):
    """A moment of sending, from which a round trip and a rate are measured."""

    sent: int
    at: float
    answered: int
    answered_at: float
    limited: bool
    """Whether the window was full then."""
    alone: bool
    """Whether few bytes were in flight before."""


class CongestionWindow:
    """The window of bytes that are sent and answered in order. Times are in seconds, from any beginning."""

    __slots__ = (
        "_answered",
        "_answered_at",
        "_interval_ends",
        "_marks",
        "_most_bytes",
        "_probing",
        "_rates",
        "_round_ends",
        "_round_trips",
        "_rounds",
        "_sent",
        "bytes",
    )

    def __init__(self, most_bytes: int) -> None:
        self.bytes = min(INITIAL_BYTES, most_bytes)
        """The bytes that may be without an answer. The command that reaches this limit may exceed it."""
        self._most_bytes = most_bytes
        self._marks: deque[_Mark] = deque()
        self._sent = self._answered = 0
        self._answered_at = 0.0
        # Of each, the best before the current period, and the best of the current one.
        self._rates = 0.0, 0.0
        self._round_trips = inf, inf
        self._rounds = self._round_ends = 0
        self._interval_ends = 0.0
        self._probing = False
        """Whether the window is the minimum, until a round trip with little in flight was measured."""

    @property
    def rate(self) -> float:
        """Return the bytes that the path takes in a second; 0 while that is unknown."""
        return max(self._rates)

    @property
    def round_trip(self) -> float:
        """Return the seconds until an answer without queues; infinity while that is unknown."""
        return min(self._round_trips)

    def observe(self, sent: int, answered: int, now: float) -> None:
        """Note the bytes sent and answered until now, since the beginning."""
        if answered > self._answered:
            self._measure(answered, now)
        if sent > self._sent:
            self._mark(sent, now)

    def _mark(self, sent: int, now: float) -> None:
        before = self._sent - self._answered
        if not before:
            # The time since the last answer says nothing about the path.
            self._answered_at = now
        marks = self._marks
        limited, alone = sent - self._answered >= self.bytes, before < LEAST_BYTES
        if limited or not marks or now - marks[-1].at >= self.round_trip / MARKS_A_ROUND_TRIP:
            marks.append(_Mark(sent, now, self._answered, self._answered_at, limited, alone))
        self._sent = sent

    def _measure(self, answered: int, now: float) -> None:
        self._answered, self._answered_at = answered, now
        marks, limited, alone = self._marks, False, False
        mark = None
        while marks and marks[0].sent <= answered:
            mark = marks.popleft()
            limited |= mark.limited
            alone |= mark.alone
        if mark is not None:
            if limited:
                self._note_rate(mark, now)
            self._note_round_trip(now - mark.at, now, alone=alone)
            self._resize()

    def _note_rate(self, mark: _Mark, now: float) -> None:
        rate = (self._answered - mark.answered) / max(now - mark.answered_at, _INSTANT)
        before, lately = self._rates
        if mark.answered >= self._round_ends:
            self._round_ends = self._answered
            self._rounds += 1
            if self._rounds % RATE_ROUNDS == 0:
                before, lately = lately, 0.0
        self._rates = before, max(lately, rate)

    def _note_round_trip(self, seconds: float, now: float, *, alone: bool) -> None:
        before, lately = self._round_trips
        if alone:
            self._probing = False
        if now >= self._interval_ends:
            before, lately = lately, seconds
            self._interval_ends = now + max(INTERVAL_SECONDS, INTERVAL_ROUND_TRIPS * min(before, lately))
            self._probing = True
        self._round_trips = before, min(lately, seconds)

    def _resize(self) -> None:
        if self.rate:
            wanted = int(self.rate * (2 * self.round_trip + TARGET_SECONDS))
            self.bytes = min(LEAST_BYTES if self._probing else max(LEAST_BYTES, wanted), self._most_bytes)
