"""Where a feed begins, or goes on, while that is being stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.feed.queue_feed import QueueFeed
from malamute.core.feed.rule import FeedName, FeedRule
from malamute.core.feed.stream_feed import StreamFeed
from malamute.core.stream.subscription import Position
from malamute.store.operations import Operation, PutValue
from malamute.store.tables import CURSORS

if TYPE_CHECKING:
    from malamute.core.feed.feed import Feed, FeedOwner
    from malamute.core.feed.target import FeedPlace, QueueTarget, StreamTarget


class StreamStart:
    """The start of a feed from a stream: at a position, or where it was."""

    def __init__(self, name: FeedName, source: StreamTarget, position: Position | None) -> None:
        self.source: FeedPlace = source
        self._name = name
        self._stream = source.stream
        self._position = position
        self._head = 0
        self.done: int | None = None

    def hold(self) -> None:
        """Keep its stream, and room for its cursor."""
        self._stream.changing += 1
        self._stream.cursors.reserve(self._name.cursor)

    def release(self) -> None:
        """Release the hold: the feed is set, or refused."""
        self._stream.changing -= 1
        self._stream.cursors.release(self._name.cursor)

    def plan(self, rule: FeedRule, value: bytes | None, done: int | None, *, at_work: bool) -> FeedRule:
        """Return the rule to store, with its beginning in the past, if any.

        The store has `value` of an existing feed, which may be `at_work`; `done` is its position, if that is
        known.
        """
        stream = self._stream
        if self._position is None and not at_work:
            # One that could not be taken up goes on where it was.
            known = value is not None and done is not None
            self._position = Position(done + 1 if known and done is not None else stream.progress.next)
        self._head = stream.progress.next
        if self._position is None:
            assert value is not None, "one at work is stored"
            self.done = done
            return rule._replace(began=FeedRule.parse(self._name.name, value).began)
        begin = self.done = self._position.first - 1
        return rule._replace(began=(begin, self._head - 1) if begin < self._head - 1 else ())

    def stored(self) -> tuple[Operation, ...]:
        """Its position."""
        return (PutValue(CURSORS, (self._stream.name, self._name.cursor), self.done),)

    def _commit(self) -> None:
        assert self.done is not None, "the position is planned"
        self._stream.cursors[self._name.cursor] = self.done
        self._stream.cursors.lost.discard(self._name.cursor)

    def make(self, feeds: FeedOwner, rule: FeedRule, target: FeedPlace) -> Feed:
        """Begin at its position."""
        assert self._position is not None, "a new feed has one"
        self._commit()
        feed = StreamFeed(feeds, self._name, rule, self._stream, target)
        feed.done = self._position.first - 1
        feed.begin(self._position)
        # Later messages that are gone already are a gap.
        feed.head = self._head
        return feed

    def change(self, feed: Feed, rule: FeedRule, target: FeedPlace) -> None:
        """Go on at its position, or where it is."""
        assert isinstance(feed, StreamFeed), "it is from a stream"
        self._commit()
        feed.change(rule, target, self._position)
        if self._position is not None:
            feed.head = self._head


class QueueStart:
    """The start of a feed from a mailbox or a service: it has no position there."""

    done: int | None = None

    def __init__(self, name: FeedName, source: QueueTarget) -> None:
        self.source: FeedPlace = source
        self._name = name
        self._queue = source.queue

    def hold(self) -> None:
        """Keep its queue."""
        self.source.hold()

    def release(self) -> None:
        """Release the hold: the feed is set, or refused."""
        self.source.release()

    def plan(self, rule: FeedRule, value: bytes | None, done: int | None, *, at_work: bool) -> FeedRule:
        """Return the rule to store."""
        return rule

    def stored(self) -> tuple[Operation, ...]:
        """Nothing but the rule."""
        return ()

    def make(self, feeds: FeedOwner, rule: FeedRule, target: FeedPlace) -> Feed:
        """Begin with all that is there."""
        feed = QueueFeed(feeds, self._name, rule, self._queue, target)
        feed.begin()
        return feed

    def change(self, feed: Feed, rule: FeedRule, target: FeedPlace) -> None:
        """Go on."""
        assert isinstance(feed, QueueFeed), "it is from a queue"
        feed.change(rule, target)


FeedStart = StreamStart | QueueStart
"""A feed that is being set. `done` is the last sequence that it is done with, if any."""
