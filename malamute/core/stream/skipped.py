"""The sequences of a stream without messages, so that its messages can be counted.

A crash leaves out the sequences that were reserved, a restore those up to the new incarnation, and a chunk
that the disk refuses those that it had. Each range is noted at once, and stored with every chunk from the
next one on, until one of these is on the disk. Of a refused chunk the writer stores its own note as well,
with the next chunk that the disk takes: the broker may be killed before it has learned of the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SKIPPED_MAX = 100
"""Ranges that a stream remembers. Past it the two oldest become one, with the messages between them."""


class SkippedSequences:
    """Ranges of sequences without messages, in order, of which no two touch."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def restore(self, ranges: Iterable[Sequence[int]]) -> None:
        """Restore the stored ranges."""
        self.ranges = [(first, last) for first, last in ranges]

    def add(self, first: int, last: int) -> None:
        """Note that no message has these sequences."""
        near = [one for one in self.ranges if one[0] <= last + 1 and first <= one[1] + 1]
        others = [one for one in self.ranges if one not in near]
        firsts, lasts = zip((first, last), *near, strict=True)
        self.ranges = sorted([*others, (min(firsts), max(lasts))])
        if len(self.ranges) > SKIPPED_MAX:
            (oldest, _), (_, end), *rest = self.ranges
            self.ranges = [(oldest, end), *rest]

    def forget_before(self, sequence: int) -> None:
        """Forget the ranges before the first message."""
        self.ranges = [one for one in self.ranges if one[1] >= sequence]

    def messages(self, after: int, last: int) -> int:
        """Return how many sequences behind `after`, up to `last`, have messages."""
        left_out = sum(max(0, min(one[1], last) - max(one[0] - 1, after)) for one in self.ranges)
        return max(0, last - after - left_out)
