"""The ways by which messages come to a stream, and the circles among them.

A *way* has a hop for each place that messages pass, from the farthest one on: the broker, the stream, the
link or feed by which they go on, and the generation of that link, which is 0 for a feed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from malamute.protocol.admin import Way
from malamute.protocol.limits import HOPS_MAX, WAYS_MAX


def prolonged(ways: Iterable[Way], broker: str, stream: str, by: str, generation: int) -> Iterator[Way]:
    """Yield the ways that lead over a place, and the one that begins there."""
    hop = [broker, stream, by, generation]
    yield [hop]
    for way in ways:
        yield [*way, hop]


def one_of_each(ways: Iterable[Way]) -> list[Way]:
    """Return one way from each place, for an answer: some if there are more than it may have."""
    found: dict[tuple[str, str], Way] = {}
    for way in ways:
        broker, stream, *_ = way[0]
        if len(way) <= HOPS_MAX:
            found.setdefault((broker, stream), way)
    return [*found.values()][:WAYS_MAX]


def circle(ways: Iterable[Way], broker: str, stream: str) -> Way | None:
    """Return a way to a place that begins at the place itself, if there is one."""
    return next((way for way in ways if (way[0][0], way[0][1]) == (broker, stream)), None)


def newest(way: Way) -> int:
    """Return the generation of the link on a way that was set last."""
    return max(int(hop[3]) for hop in way)


def in_words(way: Way, broker: str, stream: str) -> str:
    """Return a way that ends at a place, in words."""
    hops = (f"{stream} at {broker[:8]} > {by} > " for broker, stream, by, _ in way)
    return f"{''.join(hops)}{stream} at {broker[:8]}"
