"""The sequences of a stream without messages, so that its messages can be counted.

A crash leaves out the sequences that were reserved, a restore those up to the new incarnation, and a chunk
that the disk refuses those that it had; and an operator may delete messages. Each range is noted at once, and
stored with every chunk from the next one on, until one of these is on the disk; that of deleted messages is
stored with the deletion. Of a refused chunk the writer stores its own note as well, with the next chunk that
the disk takes: the broker may be killed before it has learned of the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

SKIPPED_MAX = 100
"""Ranges that a stream remembers. Past it ranges with the fewest messages between them become one, which is
counted as a whole, and of which a part is estimated."""

Range = tuple[int, int, int]
"""The first and the last sequence, and how many of them have no message."""


class SkippedSequences:
    """Ranges of sequences without messages, in order, of which no two touch."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []

    def restore(self, ranges: Iterable[Sequence[int]]) -> None:
        """Restore the stored ranges."""
        self.ranges = [
            (first, last, skipped[0] if skipped else last - first + 1) for first, last, *skipped in ranges
        ]

    def add(self, first: int, last: int) -> None:
        """Note that no message has these sequences, some of which may be known."""
        known = sum(max(0, min(one[1], last) - max(one[0], first) + 1) for one in self.ranges)
        self._add([(first, last, max(0, last - first + 1 - known))])

    def delete(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that the messages of these sequences are deleted: each of them had one."""
        self._add([(first, last, last - first + 1) for first, last in ranges])

    def _add(self, ranges: Iterable[Range]) -> None:
        joined: list[Range] = []
        for one in sorted([*self.ranges, *ranges]):
            if joined and one[0] <= joined[-1][1] + 1:
                first, last, skipped = joined.pop()
                one = first, max(last, one[1]), skipped + one[2]
            joined.append(one)
        self.ranges = joined
        self._merge()

    def _merge(self) -> None:
        """Make one of the ranges with the fewest messages between them, of more than `SKIPPED_MAX`."""
        more = len(self.ranges) - SKIPPED_MAX
        if more <= 0:
            return
        between = [after[0] - before[1] for before, after in pairwise(self.ranges)]
        closed = {*sorted(range(len(between)), key=between.__getitem__)[:more]}
        merged = [self.ranges[0]]
        for place, one in enumerate(self.ranges[1:]):
            if place in closed:
                first, _, skipped = merged.pop()
                one = first, one[1], skipped + one[2]
            merged.append(one)
        self.ranges = merged

    def forget_before(self, sequence: int) -> None:
        """Forget the ranges before the first message."""
        self.ranges = [one for one in self.ranges if one[1] >= sequence]

    def messages(self, after: int, last: int) -> int:
        """Return how many sequences behind `after`, up to `last`, have messages."""
        left_out = 0
        for one in self.ranges:
            count = min(one[1], last) - max(one[0] - 1, after)
            if count > 0:
                left_out += one[2] * count // (one[1] - one[0] + 1)
        return max(0, last - after - left_out)
