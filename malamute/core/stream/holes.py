"""The sequences in a stream that no message has, so that its messages can be counted.

A crash leaves out the sequences that were reserved, a restore those up to the new incarnation, and a chunk
that the disk refuses those that it had. Each is noted when it is made, and stored with the next chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HOLES_MAX = 100
"""Ranges that a stream remembers. Past it the two oldest become one, with the messages between them."""


class Holes:
    """Ranges of sequences without messages, in order, of which no two touch."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def restore(self, ranges: Iterable[Sequence[int]]) -> None:
        """Take up what was stored."""
        self.ranges = [(first, last) for first, last in ranges]

    def add(self, first: int, last: int) -> None:
        """Note that no message has these sequences."""
        near = [hole for hole in self.ranges if hole[0] <= last + 1 and first <= hole[1] + 1]
        others = [hole for hole in self.ranges if hole not in near]
        firsts, lasts = zip((first, last), *near, strict=True)
        self.ranges = sorted([*others, (min(firsts), max(lasts))])
        if len(self.ranges) > HOLES_MAX:
            (oldest, _), (_, end), *rest = self.ranges
            self.ranges = [(oldest, end), *rest]

    def forget_before(self, sequence: int) -> None:
        """Forget what lies before the first message that is kept."""
        self.ranges = [hole for hole in self.ranges if hole[1] >= sequence]

    def messages(self, after: int, last: int) -> int:
        """Return how many sequences behind `after`, up to `last`, have messages."""
        left_out = sum(max(0, min(hole[1], last) - max(hole[0] - 1, after)) for hole in self.ranges)
        return max(0, last - after - left_out)
