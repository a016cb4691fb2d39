"""What a broker may take while it is tortured: of memory, of the disk, and of its clients' time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from history import PUBLISH, PUBLISHED, Record, Violation

QUIET, QUIET_OVER = "quiet", "quiet-over"
"""Nothing is done to anybody from here on, or again."""

GROWN_MIB = 320.0
"""Anonymous memory beyond that after the first episode. All hostile clients at once leave 220: sessions that
are remembered for a while, and thousands of streams and queues."""
STORE_SLACK_MIB = 16.0
"""Files beside that of the store, whose size is configured."""
QUIET_P99_SECONDS = 2.0
"""Of all confirmations that were waited for while nothing was done to anybody, 99 of 100 took no longer. This
is true time: clocks that run fast make no machine faster."""


class Measured(NamedTuple):
    """An episode: how long the broker has lived at its end, and what it takes."""

    life_seconds: float
    memory_mib: float
    store_mib: float
    quiet_seconds: Sequence[float]
    """How long each confirmation took while nothing was done to anybody, in order of length."""

    def quiet(self, share: float) -> float:
        """How long this share of the confirmations took at the most."""
        return self.quiet_seconds[int(share * (len(self.quiet_seconds) - 1))] if self.quiet_seconds else 0.0


def quiet_waits(history: Iterable[Record]) -> list[float]:
    """How long each publication took to be confirmed, within one quiet time. Seconds, in order.

    Requests are confirmed by their replies, which wait for a worker.
    """
    is_quiet, asked, waits = False, dict[tuple[str, str], int](), []
    for record in sorted(history):
        place = record.name, record.key
        if record.kind in (QUIET, QUIET_OVER):
            is_quiet = record.kind == QUIET
            asked.clear()
        elif record.kind == PUBLISH and is_quiet:
            asked[place] = record.at_ns
        elif record.kind == PUBLISHED and place in asked:
            waits.append((record.at_ns - asked.pop(place)) / 1e9)
    return sorted(waits)


def exceeded(first: Measured, now: Measured, size_mib: float, speed: int = 1) -> Iterator[Violation]:
    """The bounds that an episode exceeds, where `first` is the first one, and clocks run at this speed."""
    if (grown := now.memory_mib - first.memory_mib) > GROWN_MIB:
        yield Violation("memory", "broker", f"{now.memory_mib:.0f} MiB, {grown:.0f} more than at first")
    if now.store_mib > size_mib + STORE_SLACK_MIB:
        yield Violation("disk", "store", f"{now.store_mib:.0f} MiB, and {size_mib:.0f} are configured")
    if (p99 := now.quiet(0.99) / speed) > QUIET_P99_SECONDS:
        yield Violation("latency", "broker", f"99 of 100 confirmations took up to {p99:.2f} s")
