"""Congestion control: how many bytes may be on their way, so that no queue stands on the path.

What is on its way beyond the *bandwidth-delay product* - what the path takes in a second, times the seconds
that an answer takes where nothing waits - only waits in a queue. The window is

    delivery rate * (2 * round trip + TARGET_SECONDS)

with the two estimates of BBR: the highest *delivery rate* of the last rounds and the shortest *round trip* of
the last two intervals. Twice the round trip, because answers come in bunches: while the broker handles one
half of what is on its way, the other is to arrive. The target is CoDel's word: the queueing delay that is
accepted, so that the path stays busy while a process waits for a processor. A window of this form needs no
phase of start-up: as long as the path takes all that it gets, each is at least twice the one before.

Only a sender that fills its window learns what the path takes; what others measure (BBR: they are
*application-limited*) says what they have sent.

Where the window is always full, a queue of our own stands in every round trip. So at the beginning of an
interval the window is the least one, until one round trip was measured with little before it.

Sources: BBR (Cardwell et al., ACM Queue 14/5, 2016; draft-cardwell-iccrg-bbr-congestion-control), its rate
samples (draft-cheng-iccrg-delivery-rate-estimation), CoDel (Nichols and Jacobson, ACM Queue 10/5, 2012).
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

TARGET_SECONDS = 0.015
"""The queueing delay that is accepted: some slices of the time that a system gives to one process."""

INITIAL_BYTES = 64 * 1024
"""The window until it was full for the first time."""

LEAST_BYTES = 4 * 1024
"""The least window. One command may always be on its way, however large it is."""

RATE_ROUNDS = 3
"""Round trips with a full window after which the rate of those before them is forgotten, or twice as many."""

INTERVAL_SECONDS = 1.0
INTERVAL_ROUND_TRIPS = 100
"""How long an interval is at least: a round trip with a small window must cost little of it."""

MARKS_A_ROUND_TRIP = 8
"""How many measurements begin within a round trip, at about the most."""

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
    """Whether little was on its way before."""


class CongestionWindow:
    """The window of what is sent and answered in order. Times are in seconds, from any beginning."""

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
        """How much may be without an answer. What is sent while there is less than that may go beyond."""
        self._most_bytes = most_bytes
        self._marks: deque[_Mark] = deque()
        self._sent = self._answered = 0
        self._answered_at = 0.0
        # Of each, the best before the current period, and of it.
        self._rates = 0.0, 0.0
        self._round_trips = inf, inf
        self._rounds = self._round_ends = 0
        self._interval_ends = 0.0
        self._probing = False
        """Whether the window is the least one, until a round trip was measured with little before it."""

    @property
    def rate(self) -> float:
        """The bytes that the path takes in a second; 0 while that is not known."""
        return max(self._rates)

    @property
    def round_trip(self) -> float:
        """The seconds until an answer where nothing waits; infinity while that is not known."""
        return min(self._round_trips)

    def observe(self, sent: int, answered: int, now: float) -> None:
        """Take note of how many bytes were sent and answered by now, since the beginning."""
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
