"""A feed from a stream at work: a reader inside the broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.feed.target import FED_BYTES
from malamute.core.subscription import Position, Reader
from malamute.matching import CompiledSelector
from malamute.protocol.admin import FeedRow
from malamute.protocol.batch import headers_of

if TYPE_CHECKING:
    from malamute.core.chunk_part import ChunkPart
    from malamute.core.feed.rule import FeedName, FeedRule
    from malamute.core.feed.target import FeedTarget
    from malamute.core.selectors import SelectorBudget
    from malamute.core.stream import Stream
    from malamute.core.timers import Timers
    from malamute.errors import MalamuteError
    from malamute.matching.family import Headers
    from malamute.protocol.batch import Columns
    from malamute.protocol.names import Place

RETRY_SECONDS = 1.0
"""How long a feed waits when the disk has refused what it has put."""


class FeedOwner(Protocol):
    """All feeds, as far as one of them needs the others."""

    selectors: SelectorBudget
    timers: Timers
    waiting: dict[int, StreamFeed]
    """Those that wait for room."""

    def claiming(self, source: Place) -> Iterable[StreamFeed]:
        """The feeds from a place that leave nothing of what they take to one that is the default there."""

    def tell(self, what: str, name: FeedName, **details: Any) -> None:
        """Tell what happens to a feed, as an event."""


class StreamFeed(Reader):
    """One stream's messages on their way to one target."""

    stream: Stream

    def __init__(
        self, feeds: FeedOwner, name: FeedName, rule: FeedRule, stream: Stream, target: FeedTarget
    ) -> None:
        self.feeds = feeds
        self.name = name
        self.rule = rule
        self.target = target
        self.effects = stream.effects
        self.open = True
        self.resting = False
        """Whether it waits for the outcome of a change."""
        self.full = 0
        """The size of the message that has no room, in bytes, or 0."""
        self.retry_at = 0.0
        self._resume_at: float = 0
        self._token = 0
        """The append that has what was put last, until its outcome is known."""
        self._first = 0
        selector = rule.selector
        super().__init__(stream, selector)
        self.compiled = CompiledSelector(selector, stream.audience.failed)
        self._cost(selector.cost_bytes)
        target.hold()
        stream.replay.patient[id(self)] = self

    @property
    def read_by(self) -> tuple[str, str]:
        """No client, and the name of its cursor."""
        return "", self.name.cursor

    @property
    def ready(self) -> bool:
        """Whether it may put to its target what is at its cursor."""
        return (
            self.cursor <= self.stream.replay.durable
            and not self.resting
            and self.rule.active
            and not self.full
            and self.effects.now >= self.retry_at
            and self._token in (0, self.effects.token)
        )

    @property
    def unsettled(self) -> bool:
        """Whether the disk may yet refuse what it has put last."""
        return self._first > 0

    def rely_on_last(self) -> None:
        """Store this iteration only if what it has put last is stored."""
        if self._token:
            self.effects.rely_on(self._token)

    def cancel(self) -> None:
        """End it."""
        self.open = False
        self._cost(0)
        self.target.release()
        del self.stream.replay.patient[id(self)]
        super().cancel()

    def change(self, rule: FeedRule, target: FeedTarget, position: Position | None) -> None:
        """Go by another rule from now on, and from elsewhere if a position is given."""
        selector = rule.selector
        target.hold()
        self.target.release()
        self.rule, self.target = rule, target
        self.feeds.waiting.pop(id(self), None)
        self.full = 0
        self.group = self.stream.audience.modify(id(self), selector, self)
        self.compiled = CompiledSelector(selector, self.stream.audience.failed)
        self.stream.set_back(self)
        self._cost(selector.cost_bytes)
        if position is not None:
            self.stream.replay.rewind(self, 0)
            self.begin(position)

    def _cost(self, cost_bytes: int) -> None:
        self.feeds.selectors.take(cost_bytes - self.cost_bytes)
        self.cost_bytes = cost_bytes

    def resume(self) -> None:
        """Go on after a change."""
        self.resting = False
        self.unblock()

    def offer(self, part: ChunkPart) -> int:
        """Put as much of a part to the target as there is room for."""
        first = part.columns.each_sequence()[0]
        # What it takes, it takes in REPLAY: its position is where it goes on if the disk refuses that.
        if not self.cursor or first > self.stream.replay.durable:
            return first
        columns = self._unclaimed(part.columns) if self.rule.when == "default" else part.columns
        if not columns.subjects:
            return 0
        return self._offer(columns, part.time_ns)

    def _offer(self, columns: Columns, time_ns: int) -> int:
        sequences, target = columns.each_sequence(), self.target
        sizes = [
            len(subject) + len(record) + FED_BYTES
            for subject, record in zip(columns.subjects, columns.records, strict=True)
        ]
        place = 0
        while place < len(columns):
            room = target.room(sizes[place:]) if self.ready else 0
            if room:
                self._put(columns.take(range(place, place + room)))
                self.time_ns = time_ns
                place += room
            elif self.ready and target.never_fits(sizes[place]):
                self.skipped += 1
                self.missed(sequences[place], sequences[place], "too-large")
                place += 1
            else:
                if self.ready:
                    self._wait_for_room(sizes[place])
                return sequences[place]
        return 0

    def _unclaimed(self, columns: Columns) -> Columns:
        """Those of some messages that no other feed of the stream takes."""
        senders, claimed = columns.all_senders(), set[int]()

        def headers(places: Sequence[int]) -> Sequence[Headers]:
            return headers_of([columns.records[place] for place in places])

        for other in self.feeds.claiming(self.name.source):
            claimed.update(other.compiled.places(columns.subjects, senders, headers))
            self.effects.work -= other.compiled.take_spent()
        return columns.take([place for place in range(len(columns)) if place not in claimed])

    def _put(self, columns: Columns) -> None:
        sequences = columns.each_sequence()
        self.target.put(columns, self.name.source)
        self.stream.commit(self.name.cursor, sequences[-1])
        self.delivered += len(sequences)
        self._first = self._first or sequences[0]
        if not self._token:
            self._token = self.effects.token
            self.effects.when_stored(self._settled)

    def _settled(self, error: MalamuteError | None) -> None:
        first, self._first, self._token = self._first, 0, 0
        if not self.open:
            return
        if error is not None and first:
            self.stream.commit(self.name.cursor, first - 1)
            self.stream.replay.rewind(self, first)
            self._retry()
        self.unblock()

    def _retry(self) -> None:
        self.retry_at = self.effects.now + RETRY_SECONDS
        self.feeds.timers.at(self.retry_at, self.unblock)

    # Room

    def _wait_for_room(self, size_bytes: int) -> None:
        self.full = size_bytes
        self._resume_at = self.target.resume_at(size_bytes)
        self.feeds.waiting[id(self)] = self
        self.feeds.tell("full", self.name, messages=self.target.held)

    def wake(self) -> None:
        """Go on if there is room again."""
        has_room = self.target.held <= self._resume_at and self.target.room([self.full]) > 0
        if has_room or self.target.never_fits(self.full):
            self.full = 0
            del self.feeds.waiting[id(self)]
            self.feeds.tell("resumed", self.name)
            self.unblock()

    # Where it stands

    def keep(self) -> None:
        """Store how far it has looked, when it has found nothing to take for a while."""
        done = (self.cursor or self.stream.next_dispatch) - 1
        idle = self.began and not self.resting and not self._token
        if idle and done > self.stream.cursors.get(self.name.cursor, 0):
            self.announce_expired()
            self.stream.commit(self.name.cursor, done)

    def missed(self, first: int, last: int, reason: str) -> None:
        """Tell that messages could not be passed on."""
        self.feeds.tell("gap", self.name, first=first, last=last, reason=reason)

    def fail(self, error: MalamuteError) -> None:
        """Try again a little later, from where it is."""
        self._retry()

    def switched(self, state: str, sequence: int) -> None:
        """It falls behind whenever it waits for the disk, so it is nothing to tell."""

    def row(self) -> FeedRow:
        """What it does and where it stands, for people."""
        stream = self.stream
        # What is not on the disk is none of its business yet.
        lag = max(0, stream.replay.durable + 1 - self.cursor) if self.cursor else 0
        working = "full" if self.full else "replay" if lag else "live"
        return FeedRow(
            **self.rule.shown(self.name, working),
            sequence=stream.cursors.get(self.name.cursor, 0),
            lag=lag,
            taken=self.delivered,
            skipped=self.skipped,
            credit=self.target.credit,
        )
