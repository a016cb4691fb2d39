"""The way of a chunk to LIVE readers: the part that each is to get, found and offered step by step.

Looking up a new subject takes microseconds, or tens of them if a thousand selectors take it, and a part that
nobody else gets is encoded for one. So a large chunk with many different readers may take far longer than one
iteration may be held up, and is dispatched in steps: a generator looks up some of its subjects, or offers
it to some of its readers, charges the work, and yields when none is left. No reader gets anything of a chunk
before all of it was looked up, so each still gets its part of it as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from malamute.core.iteration.effects import Effects
from malamute.core.stream.audience import Audience
from malamute.core.stream.chunk import Loaded
from malamute.core.stream.chunk_part import ChunkPart
from malamute.matching import Group, Groups

if TYPE_CHECKING:
    from malamute.core.stream.subscription import Reader

STEP_MESSAGES = 50
"""Messages that are looked up before it is asked whether there is work left, at the least."""

STEP_READERS = 50
"""Readers that are offered a part before that is asked."""

OFFER_WORK = 4
"""The work of offering a part to a reader."""

REFERENCES = 16
"""Places or groups that are noted for one unit of work."""

PARTS_BYTES = 1 << 20
"""Bytes of parts that are kept for other readers of the same."""

Offer = Callable[[Loaded, ChunkPart, Sequence["Reader"]], None]


def in_steps(effects: Effects, audience: Audience, loaded: Loaded, offer: Offer) -> Iterator[None]:
    """Dispatch a chunk to plain readers, and yield whenever the work of an iteration is used up.

    `offer` is called for some readers at a time. Readers that come meanwhile are none of its business.
    """
    found: dict[int, tuple[Groups, list[int]]] = {}
    for _ in _look_up(effects, audience, loaded, found):
        yield
    by_group: dict[Group, list[list[int]]] = {}
    for groups, places in found.values():
        for group in groups:
            by_group.setdefault(group, []).append(places)
        effects.work -= 1 + len(groups) // REFERENCES
        if effects.work <= 0:
            yield
    parts = _Parts(effects, loaded)
    for group, runs in by_group.items():
        part = parts.get(runs)
        members = group.members.values()
        # Up to one step, `offer` sees to it.
        readers = iter([*members] if len(members) <= STEP_READERS else effects.in_turn(members))
        while some := [*islice(readers, 1 if effects.reviewing else STEP_READERS)]:
            offer(loaded, part, [reader for reader in some if reader.open])
            effects.work -= OFFER_WORK * len(some)
            if effects.work <= 0:
                yield


def _look_up(
    effects: Effects, audience: Audience, loaded: Loaded, found: dict[int, tuple[Groups, list[int]]]
) -> Iterator[None]:
    """Find the places of each distinct result. Equal results are one object, until a selector changes."""
    stop, count = 0, loaded.chunk.count
    while stop < count:
        # So many that all of them could be new.
        step = max(effects.work // (2 + len(audience) // REFERENCES), STEP_MESSAGES)
        start, stop = stop, min(stop + step, count)
        for place, groups in enumerate(audience.match(loaded.columns, start, stop), start):
            known = found.get(id(groups))
            if known is not None:
                known[1].append(place)
            elif groups:
                found[id(groups)] = (groups, [place])
        effects.work -= (stop - start) // REFERENCES + audience.pop_work()
        if effects.work <= 0:
            yield


class _Parts:
    """The parts of a chunk; some of them are kept for other readers of the same."""

    def __init__(self, effects: Effects, loaded: Loaded) -> None:
        self._effects = effects
        self._loaded = loaded
        self._kept: dict[tuple[int, ...], ChunkPart] = {}
        self._kept_bytes = 0

    def get(self, runs: list[list[int]]) -> ChunkPart:
        """The messages at all of these places. The same runs are the same part."""
        same = tuple(map(id, runs))
        part = self._kept.get(same)
        if part is None:
            places = runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs))
            part = self._loaded.part(places)
            self._keep(same, part)
        self._effects.work -= len(runs) // REFERENCES + self._loaded.pop_spent()
        return part

    def _keep(self, same: tuple[int, ...], part: ChunkPart) -> None:
        if self._kept_bytes > PARTS_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[same] = part
        self._kept_bytes += part.size_bytes
