"""A feed from a stream at work: a reader inside the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malamute.core.feed.feed import Feed, FeedOwner
from malamute.core.feed.key import keys_of
from malamute.core.feed.target import FED_BYTES
from malamute.core.queue.entry import PROPERTY_BYTES
from malamute.core.stream.reader_state import LIVE, REPLAY
from malamute.core.stream.subscription import Position, Reader
from malamute.matching import CompiledSelector, Selector
from malamute.protocol.admin import FeedRow
from malamute.protocol.batch import headers_of

if TYPE_CHECKING:
    from malamute.core.feed.rule import FeedName, FeedRule
    from malamute.core.feed.target import FeedPlace
    from malamute.core.stream.chunk_part import ChunkPart
    from malamute.core.stream.stream import Stream
    from malamute.errors import MalamuteError
    from malamute.matching.family import Headers
    from malamute.protocol.batch import Columns


class StreamFeed(Reader, Feed):
    """One stream's messages on their way to one target."""

    stream: Stream

    def __init__(
        self, feeds: FeedOwner, name: FeedName, rule: FeedRule, stream: Stream, target: FeedPlace
    ) -> None:
        Feed.__init__(self, feeds, name, rule, target, stream.effects)
        self._token = 0
        """The append with its last messages, until the outcome is known."""
        self._first = self._last = 0
        self.done = 0
        """The last sequence that it is done with, as its target has it if that is in another store."""
        selector = rule.selector
        Reader.__init__(self, stream, selector)
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
        """Whether it may pass the message at its cursor."""
        return (
            self.cursor <= self.stream.progress.durable
            and self.free
            and self._token in (0, self.effects.stage.token)
        )

    @property
    def unsettled(self) -> bool:
        """Whether the disk may yet refuse its last messages."""
        return self._first > 0

    @property
    def position(self) -> int:
        """The last sequence that it is done with."""
        return self.stream.cursors.get(self.name.cursor, self.done)

    def rely_on_last(self) -> None:
        """Store this iteration only if its last messages are stored."""
        if self._token:
            self.effects.stage.rely_on(self._token)

    def cancel(self) -> None:
        """End it."""
        self._let_go()
        del self.stream.replay.patient[id(self)]
        super().cancel()

    def change(self, rule: FeedRule, target: FeedPlace, position: Position | None) -> None:
        """Go by another rule from now on, and from elsewhere if a position is given."""
        self._go_by(rule, target)
        self._take(rule.selector)
        if position is not None:
            self.done = position.first - 1
            self.stream.replay.leave(self)
            self.restart()
            self.begin(position)

    @property
    def limited(self) -> bool:
        """Whether it takes a part of its rule's messages, by the rights of its setter."""
        return self.group.selector != self.rule.selector

    def narrow(self, selector: Selector) -> None:
        """Use this selector from now on, at the same position."""
        if selector != self.group.selector:
            was_limited = self.limited
            self._take(selector)
            if was_limited or self.limited:
                self.feeds.report("limited", self.name, user=self.rule.setter.user, limited=self.limited)

    def _take(self, selector: Selector) -> None:
        self.group = self.stream.audience.modify(id(self), selector, self)
        self.compiled = CompiledSelector(selector, self.stream.audience.failed)
        self._cost(selector.cost_bytes)
        self.stream.live.set_back(self)

    def offer(self, part: ChunkPart) -> int:
        """Put as much of a part to the target as there is room for."""
        first = part.columns.each_sequence()[0]
        # A feed takes messages in REPLAY: if the disk refuses them, it continues at its position.
        if self.state is not REPLAY or first > self.stream.progress.durable:
            return first
        columns = self._unclaimed(part.columns) if self.rule.when == "default" else part.columns
        if not columns.subjects:
            return 0
        return self._offer(columns, part.time_ns)

    def _offer(self, columns: Columns, time_ns: int) -> int:
        sequences = columns.each_sequence()
        fed_bytes = FED_BYTES + (PROPERTY_BYTES if self.rule.key else 0)
        sizes = [
            len(subject) + len(record) + fed_bytes
            for subject, record in zip(columns.subjects, columns.records, strict=True)
        ]

        def put(first: int, last: int) -> None:
            self._put(columns.take(range(first, last)))
            self.time_ns = time_ns

        def miss(place: int) -> None:
            self.skipped += 1
            self.missed(sequences[place], sequences[place], "too-large")

        done = self._pass_on(sizes, put, miss)
        return sequences[done] if done < len(sequences) else 0

    def _unclaimed(self, columns: Columns) -> Columns:
        """Return the messages that no other feed of the stream takes."""
        senders, claimed = columns.all_senders(), set[int]()

        def headers(places: Sequence[int]) -> Sequence[Headers]:
            return headers_of([columns.records[place] for place in places])

        for other in self.feeds.claiming(self.name.source):
            claimed.update(other.compiled.places(columns.subjects, senders, headers))
            self.effects.work -= other.compiled.pop_spent()
        return columns.take([place for place in range(len(columns)) if place not in claimed])

    def _put(self, columns: Columns) -> None:
        sequences = columns.each_sequence()
        self.target.put(columns, self.name.source, keys_of(self.rule.key, columns))
        self.stream.cursors.commit(self.name.cursor, sequences[-1])
        self.delivered += len(sequences)
        self._first, self._last = self._first or sequences[0], sequences[-1]
        if not self._token:
            self._token = self.effects.stage.token
            self.effects.stage.when_stored(self._settled)

    def _settled(self, error: MalamuteError | None) -> None:
        first, self._first, self._token = self._first, 0, 0
        if not self.open:
            return
        if error is not None and first:
            self.stream.cursors.commit(self.name.cursor, first - 1)
            self.stream.replay.leave(self)
            self.rewind(first)
            self._retry()
        self.unblock()

    # Where it stands

    def keep(self) -> None:
        """Store how far it has looked, when it has found nothing to take for a while."""
        done = (self.cursor if self.state is REPLAY else self.stream.progress.next_dispatch) - 1
        idle = self.state in (REPLAY, LIVE) and not self.resting and not self._token
        if idle and done > self.stream.cursors.get(self.name.cursor, 0):
            self.announce_expired()
            self.done = done
            self.stream.cursors.commit(self.name.cursor, done)

    def missed(self, first: int, last: int, reason: str) -> None:
        """Report that messages could not be passed on."""
        self.feeds.report("gap", self.name, first=first, last=last, reason=reason)

    def fail(self, error: MalamuteError) -> None:
        """Try again a little later, from where it is."""
        self._retry()

    def switched(self, state: str, sequence: int) -> None:
        """Report nothing: a feed falls behind at every commit."""

    def row(self) -> FeedRow:
        """Return its rule, state and position, for people."""
        stream = self.stream
        # Messages that are not durable do not count yet.
        lag = stream.lag(self, stream.progress.durable)
        working = "full" if self.full else "replay" if lag else "live"
        return FeedRow(
            **self.rule.shown(self.name, working),
            limited=self.limited,
            sequence=stream.cursors.get(self.name.cursor, 0),
            lag=lag,
            taken=self.delivered,
            skipped=self.skipped,
            credit=self.target.credit,
        )
