"""Live delivery: chunks on their way to the readers of a stream that are LIVE.

A chunk is held until its sequences are reserved, so that no sequence is ever used twice; if the disk refuses
the reservation, no reader ever gets the chunk. Then it is offered to each reader that is LIVE, as far as
there is work for it in this iteration. Chunks that are *behind* with that have a limit of bytes, past which
each reader finds out for itself, in REPLAY.
A `committed` reader is noted at the chunk, and gets it when it is on the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from sys import maxsize
from typing import TYPE_CHECKING

from malamute.core.stream.chunk import Loaded
from malamute.core.stream.chunk_part import ChunkPart
from malamute.core.stream.dispatch import in_steps
from malamute.core.stream.reader_state import LIVE
from malamute.matching import Group, Groups

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.stream.audience import Audience
    from malamute.core.stream.progress import StreamProgress
    from malamute.core.stream.subscription import Reader

BEHIND_BYTES = 16 << 20
"""Bytes of chunks that may wait to be offered, where matching them takes longer than they take to come."""


class Held(deque[Loaded]):
    """Waiting chunks, in order, and their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def add(self, loaded: Loaded) -> None:
        """Let a chunk wait."""
        self.append(loaded)
        self.size_bytes += loaded.size_bytes

    def remove_first(self) -> Loaded:
        """Let the first of them go."""
        loaded = self.popleft()
        self.size_bytes -= loaded.size_bytes
        return loaded


class LiveDelivery:
    """The chunks of one stream that are on their way to readers that are LIVE."""

    def __init__(
        self, effects: Effects, audience: Audience, progress: StreamProgress, activate: Callable[[], None]
    ) -> None:
        """`activate` has it go on in the next iteration."""
        self._effects = effects
        self._audience = audience
        self._progress = progress
        self._activate = activate
        self.held = Held()
        """Chunks that wait for their sequences to be reserved, or to be offered."""
        self._steps: Iterator[None] | None = None
        """The dispatch of the first of them, if that was broken off."""
        self._dropped: list[Loaded] = []
        """Chunks that the disk has refused before anyone had them, and of which no reader knows yet."""

    def add(self, loaded: Loaded) -> None:
        """Add a new chunk, and offer the chunks that may be offered."""
        self.held.add(loaded)
        if self._progress.behind:
            self._keep_up()
        self.dispatch()

    def refuse(self, last: int) -> None:
        """Learn that the disk has refused to reserve the sequences up to this last message of a chunk."""
        self.dispatch(wholly=True)
        if self.held and self.held[0].chunk.last == last:
            # Its sequences may be given out once more after a crash: nobody may see them until they are
            # reserved with those behind them.
            self._dropped.append(self.held.remove_first())
        self.dispatch()

    def announce_refused(self, loaded: Loaded, *, sent: bool) -> None:
        """Notify the readers that have a chunk, or were to have it, that it is not durable."""
        costly, work = self._audience.match_costly(loaded.columns, maxsize)
        self._effects.work -= work
        for matches in (self._audience.match(loaded.columns), costly):
            for group, part in self._parts(loaded, matches):
                for reader in group.members.values():
                    reader.refused(part, sent=sent)

    def dispatch(self, *, wholly: bool = False) -> None:
        """Offer chunks with reserved sequences to LIVE readers, as far as there is work for it, or `wholly`.

        While it is `behind` with that, no reader becomes LIVE: each chunk is offered once to the earlier LIVE
        ones.
        """
        progress = self._progress
        while self.held and self.held[0].chunk.last <= progress.reserved:
            if progress.behind and self._effects.work <= 0 and not wholly:
                return
            loaded = self.held[0]
            while self._dropped:
                self.announce_refused(self._dropped.pop(0), sent=False)
            try:
                if not self._offer_all(loaded, wholly=wholly):
                    progress.behind = True
                    self._activate()
                    return
            except Exception as error:
                self._effects.fault("matching", error)
                self._fall_behind(loaded)
            self._dispatched()
        progress.behind = False

    def _dispatched(self) -> None:
        """Let the first chunk that is held go: it was offered to all."""
        self._steps = None
        self._progress.next_dispatch = self.held.remove_first().chunk.last + 1

    def _offer_all(self, loaded: Loaded, *, wholly: bool) -> bool:
        """Offer a chunk to all that it is for. Returns whether that is done."""
        audience, effects = self._audience, self._effects
        readers = len(audience)
        if not readers and self._steps is None:
            return True
        at_once = self._steps is None and not effects.reviewing
        if at_once and loaded.chunk.count * readers <= effects.work:
            for group, part in self._parts(loaded, audience.match(loaded.columns)):
                self._offer(loaded, part, group.members.values())
            effects.work -= audience.pop_work()
        else:
            self._steps = self._steps or in_steps(effects, audience, loaded, self._offer)
            for _ in self._steps:
                if not wholly:
                    return False
        self._offer_costly(loaded)
        return True

    def _keep_up(self) -> None:
        """Have each reader find out for itself, in REPLAY, if more waits to be offered than may."""
        if self.held.size_bytes > BEHIND_BYTES:
            self._fall_behind(self.held[0])
            while self.held and self.held[0].chunk.last <= self._progress.reserved:
                self._dispatched()
            self._progress.behind = False

    def _fall_behind(self, loaded: Loaded) -> None:
        """Have each reader find out for itself whether a chunk is for it: matching has failed."""
        for group in self._audience.groups():
            for reader in group.members.values():
                self._set_back(reader, loaded)

    def set_back(self, reader: Reader) -> None:
        """Move a reader with a new selector to REPLAY, out of the dispatch under way."""
        if self._progress.behind:
            self._set_back(reader, self.held[0])

    def _set_back(self, reader: Reader, loaded: Loaded, sequence: int = 0) -> None:
        """Let a reader that is LIVE find out for itself from a chunk on, or from a sequence in it."""
        if reader.state is LIVE and reader.start <= loaded.chunk.last:
            sequence = sequence or loaded.chunk.first
            if reader.committed:
                # The reader has not had messages that it gets once they are durable.
                sequence = min(sequence, self._progress.known + 1)
            # Delivered messages are not delivered again.
            reader.fall_behind(max(reader.start, sequence, reader.after + 1))

    def _offer(self, loaded: Loaded, part: ChunkPart, readers: Collection[Reader]) -> None:
        """Offer messages of a chunk to the readers that they are for."""
        is_fresh = not loaded.columns.ttls or part.expires > self._effects.now
        # A review may end any of them.
        for subscription in [*readers] if len(readers) == 1 else self._effects.in_turn(readers):
            start = subscription.start
            if subscription.state is not LIVE or start > loaded.chunk.last:
                continue
            try:
                if subscription.committed and loaded.chunk.last > self._progress.durable:
                    loaded.later[id(subscription)] = subscription, part
                    self._effects.stage.hurry()
                elif start > loaded.chunk.first:
                    subscription.fall_behind(start)
                elif left := subscription.offer(part) if is_fresh else subscription.give(part):
                    subscription.fall_behind(left)
            except Exception as error:
                subscription.fail(self._effects.fault("a live delivery", error))

    def _offer_costly(self, loaded: Loaded) -> None:
        """Offer a chunk to readers that are costly to find. The others of them fall behind."""
        matches, work = self._audience.match_costly(loaded.columns, self._effects.work // 2)
        self._effects.work -= work
        for group, part in self._parts(loaded, matches):
            self._offer(loaded, part, group.members.values())
        if len(matches) == loaded.chunk.count or not work:
            return
        for group in self._audience.costly_groups():
            for subscription in group.members.values():
                self._set_back(subscription, loaded, loaded.chunk.first + len(matches))

    def deliver(self, loaded: Loaded) -> None:
        """Deliver a chunk that is on the disk to the readers that waited for that."""
        for reader, part in loaded.later.values():
            # One that has fallen behind meanwhile gets it when it comes there.
            if not reader.open or reader.state is not LIVE:
                continue
            try:
                if left := reader.start if reader.start > loaded.chunk.first else reader.give(part):
                    reader.fall_behind(left)
            except Exception as error:
                reader.fail(self._effects.fault("a delivery", error))

    def _parts(self, loaded: Loaded, matches: Sequence[Groups]) -> list[tuple[Group, ChunkPart]]:
        """Return the part of a chunk that each group gets."""
        if len(matches) == loaded.chunk.count and len(set(map(id, matches))) == 1:
            part = loaded.part() if matches[0] else None
            return [(group, part) for group in matches[0]] if part else []
        places: dict[Group, list[int]] = {}
        for place, groups in enumerate(matches):
            for group in groups:
                places.setdefault(group, []).append(place)
        parts: dict[tuple[int, ...], ChunkPart] = {}
        for taken in set(map(tuple, places.values())):
            parts[taken] = loaded.part(taken)
        return [(group, parts[tuple(taken)]) for group, taken in places.items()]
