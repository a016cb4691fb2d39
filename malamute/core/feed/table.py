"""All feeds of a broker, and what operators do to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

from malamute.core.access import Principal
from malamute.core.feed.rule import FeedName, FeedRule
from malamute.core.feed.stream_feed import RETRY_SECONDS, StreamFeed
from malamute.core.feed.target import FeedTarget, QueueTarget, StreamTarget
from malamute.core.mailbox import Mailboxes
from malamute.core.queue.table import QueueTable
from malamute.core.recovery import Recovery
from malamute.core.selectors import SelectorBudget
from malamute.core.service import Services
from malamute.core.stored_values import StoredValues
from malamute.core.stream import Stream, Streams
from malamute.core.subscription import Position
from malamute.core.workflow import STORED, Workflow, run_workflow
from malamute.errors import InvalidValue, MalamuteError, TooMany, TryLater
from malamute.protocol.limits import Limits
from malamute.protocol.names import Place
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import CURSORS, FEEDS

if TYPE_CHECKING:
    from malamute.core.timers import Timer

STOPPED = "a feed is stopped: the rights of whoever has set it have ended; set it again"
"""What the log says of it."""

KEEP_SECONDS = 10.0
"""How often the position of a feed is stored that found nothing to take."""


class FeedReport(Protocol):
    """What a change of a feed calls in the iteration in which it is stored."""

    def __call__(self, sequence: int | None, *, created: bool) -> None:
        """Its position is this; a feed from a queue has none."""


class Feeds:
    """All feeds, by their sources and names."""

    def __init__(
        self,
        limits: Limits,
        streams: Streams,
        mailboxes: Mailboxes,
        services: Services,
        selectors: SelectorBudget,
        recovery: Recovery,
        refusal: Callable[[Principal, Place, Place], str],
    ) -> None:
        """`refusal` says why somebody may not feed one place from another, or is empty if he may."""
        self._refusal = refusal
        self.effects = streams.effects
        self.timers = services.limits.timers
        self.limits = limits
        self.streams = streams
        self._queues: dict[str, QueueTable] = {"mailbox": mailboxes, "service": services}
        self.selectors = selectors
        self.recovery = recovery
        self.by_name: dict[FeedName, StreamFeed] = {}
        self._by_source: dict[Place, list[StreamFeed]] = {}
        self.values: StoredValues[FeedName, bytes] = StoredValues(self.effects)
        """What the store has of each, and of those that could not be taken up."""
        self.waiting: dict[int, StreamFeed] = {}
        """Those that wait for room."""
        self.changing: Counter[FeedName] = Counter()
        """How many changes of each are under way."""
        self._being_stored: set[FeedName] = set()
        """Those that have a change under way to the disk: one change of a feed after the other."""
        self._coming: Counter[tuple[Place, Place]] = Counter()
        """From where to where those go that are being set."""
        self._keeper: Timer | None = None

    def restore(self, name: FeedName, value: bytes, *, doubtful: bool = False) -> None:
        """Take up a feed that the store kept, where it was.

        If its position is `doubtful`, a later one may have been in a part of the store that is damaged.

        Raises `InvalidSelector` for a family from outside that is not here any more, and `CursorLost` if its
        position is not known: what becomes of the feed is for the operator to say.
        """
        self.values[name] = value
        rule = FeedRule.parse(name.name, value)
        stream = self.streams.keep(name.source.name)
        stream.check_known(name.cursor)
        feed = self._add(name, rule, stream, self._kept_target(rule.target))
        done = stream.cursors.get(name.cursor, stream.next - 1)
        found = done
        if doubtful and rule.began and rule.began[0] < done <= rule.began[1]:
            done = rule.began[0]
        # The disk may not have reserved these sequences, so they are used again.
        done = min(done, stream.next - 1)
        if done < found:
            self._set_back(feed, done)
        feed.begin(Position(done + 1))

    def _set_back(self, feed: StreamFeed, done: int) -> None:
        """Store that a feed is before what the disk has of it, and again until the disk takes that."""
        cursors, cursor = feed.stream.cursors, feed.name.cursor
        cursors[cursor] = done
        feed.stream.commit(cursor, done)

        def stored(error: MalamuteError | None) -> None:
            if error is not None:
                self.timers.at(self.effects.now + RETRY_SECONDS, again)

        def again() -> None:
            # Whatever was stored meanwhile is where it is.
            if feed.open and not feed.resting and cursors.get(cursor) == done:
                self._set_back(feed, done)

        self.effects.when_stored(stored)

    # Places

    def target(self, place: Place) -> FeedTarget:
        """A place where a feed may put something, made if needed. Raises `TryLater` or `TooMany`."""
        if place.kind == "stream":
            return StreamTarget(self.streams.get(place.name))
        table = self._queues[place.kind]
        return QueueTarget(table.by_name.get(place.name) or table.create(place.name))

    def _kept_target(self, place: Place) -> FeedTarget:
        """The same, even past all limits: it was promised."""
        if place.kind == "stream":
            return StreamTarget(self.streams.keep(place.name))
        return QueueTarget(self._queues[place.kind].get_or_create(place.name))

    def drop_unused(self, target: FeedTarget) -> None:
        """Forget a place that was made in vain, unless somebody uses it by now."""
        if isinstance(target, QueueTarget):
            table = self._queues[target.place.kind]
            if table.by_name.get(target.place.name) is target.queue:
                table.drop_unused(target.queue)
        elif isinstance(target, StreamTarget) and not (target.stream.lasting or self.changes(target.place)):
            self.streams.drop_untouched(target.stream)

    # What there is

    def check(self, name: FeedName, target: Place) -> None:
        """Raise what stands against a feed."""
        feeds = self.by_name.keys() | self.changing.keys()
        if name not in feeds and len(feeds) >= self.limits.feeds:
            raise TooMany(f"too many feeds: expected at most {self.limits.feeds}")
        self.streams.check_cursor(name.source.name, name.cursor)
        way = self._way(target, name)
        if way is not None:
            circle = " > ".join(map(str, (name.source, *way)))
            raise InvalidValue(
                f"feed {name} to {target} would close a circle: {circle}; leave out one of them"
            )

    def _way(self, place: Place, new: FeedName) -> list[Place] | None:
        """The way that messages go from a place to the source of a new feed, if they do."""
        ends: dict[Place, list[Place]] = {}
        known = ((name.source, feed.rule.target) for name, feed in self.by_name.items() if name != new)
        for begin, end in (*known, *self._coming):
            ends.setdefault(begin, []).append(end)
        ways, seen = [[place]], {place}
        while ways:
            way = ways.pop()
            if way[-1] == new.source:
                return way
            beyond = [end for end in ends.get(way[-1], ()) if end not in seen]
            seen.update(beyond)
            ways += [[*way, end] for end in beyond]
        return None

    def claiming(self, source: Place) -> Iterator[StreamFeed]:
        """The feeds from a place that leave nothing of what they take to one that is the default there."""
        return (feed for feed in self._by_source.get(source, ()) if feed.rule.when == "match")

    def check_stream(self, stream: str) -> None:
        """Raise `TryLater` while a feed from this stream is being changed."""
        if self.changes(Place("stream", stream)):
            raise TryLater(f"a feed from the stream {stream!r} is being changed: retry after its answer")

    def of(self, place: Place) -> list[FeedName]:
        """The feeds from a place and to it, in order."""
        return sorted(n for n, feed in self.by_name.items() if place in (n.source, feed.rule.target))

    def check_no_target(self, place: Place) -> None:
        """Raise `TryLater` while a feed to a place is being set."""
        if any(target == place for _, target in self._coming):
            raise TryLater(f"a feed to {place} is being set: retry after its answer")

    def changes(self, source: Place) -> int:
        """How many changes of feeds from a place are under way."""
        return sum(count for name, count in self.changing.items() if name.source == source)

    def position(self, name: FeedName) -> int:
        """The last sequence that a feed is done with, 0 if nobody knows."""
        found = self.streams.by_name.get(name.source.name)
        return found.cursors.get(name.cursor, 0) if found is not None else 0

    def tell(self, what: str, name: FeedName, **details: Any) -> None:
        """Tell what happens to a feed, as an event."""
        self.effects.event(f"feed.{what}.{name.name}", source=str(name.source), **details)

    # Changes

    def forget(self, stream: str) -> None:
        """A stream is gone with this iteration, and with it the feeds from it that could not be taken up."""
        names = [name for name in self.values if name.source == Place("stream", stream)]
        for name in names:
            self.values.put(name, None)

        def gone(error: MalamuteError | None) -> None:
            for name in names if error is None else ():
                self.recovery.settled("feed", str(name))

        if names:
            self.effects.when_stored(gone)

    def put_again(self, stream: str) -> None:
        """Store the feeds from a stream again: what the store had of it is gone.

        Their positions, which are stored with that, stand for what they have put last.
        """
        source = Place("stream", stream)
        for name, feed in self.by_name.items():
            if name.source == source:
                feed.rely_on_last()
        for name, value in self.values.items():
            if name.source == source:
                self.effects.store(_put(name, value))

    def set(
        self,
        name: FeedName,
        rule: FeedRule,
        stream: Stream,
        target: FeedTarget,
        position: Position | None,
        report: FeedReport,
    ) -> None:
        """Make a feed, or change it. Without a position it goes on where it is, or begins at the head.

        It acts with the rights of who sets it, and begins again if it was stopped. `report` is called in the
        iteration that stores it; when that is done, it is in force.
        """
        self.selectors.check(rule.selector)
        if position is None and name not in self.by_name:
            stream.check_known(name.cursor)
        run_workflow(self.effects, self._set(name, rule, stream, target, position, report))

    def _set(
        self,
        name: FeedName,
        rule: FeedRule,
        stream: Stream,
        target: FeedTarget,
        position: Position | None,
        report: FeedReport,
    ) -> Workflow:
        cost_bytes, way, cursor = rule.selector.cost_bytes, (name.source, rule.target), name.cursor
        target.hold()  # so that it is not removed meanwhile
        stream.changing += 1
        stream.cursors.reserve(cursor)
        self._coming[way] += 1
        self.selectors.reserved_bytes += cost_bytes
        feed = yield from self._begin_change(name)
        if feed is None and position is None:
            # One that could not be taken up goes on where it was.
            known = name in self.values and cursor in stream.cursors
            position = Position(stream.cursors[cursor] + 1 if known else stream.next)
        done = stream.cursors[cursor] if position is None else position.first - 1
        head = stream.next
        if position is None:
            began = FeedRule.parse(name.name, self.values[name]).began
        else:
            began = (done, head - 1) if done < head - 1 else ()
        rule = rule._replace(began=began)
        value = rule.packed()
        self.effects.store(_put(name, value), PutValue(CURSORS, (stream.name, cursor), done))
        created = name not in self.values
        report(done, created=created)
        error = yield STORED
        self._end_change(name)
        target.release()
        stream.changing -= 1
        self._coming -= Counter((way,))
        if error is None:
            self.recovery.settled("feed", str(name))
            self.values[name] = value
            stream.cursors[cursor] = done
            stream.lost_cursors.discard(cursor)
            if feed is not None:
                feed.change(rule, target, position)
            else:
                assert position is not None, "a new feed has one"
                feed = self._add(name, rule, stream, target)
                feed.begin(position)
            if position is not None:
                # What has come since and is gone already is a gap.
                feed.head = head
            if created:
                self.tell("created", name, target=str(rule.target))
        stream.cursors.release(cursor)
        self.selectors.reserved_bytes -= cost_bytes
        if feed is not None:
            # They may have ended while it was being stored.
            self.review(feed)
            feed.resume()
        if error is not None:
            self.drop_unused(target)

    def review(self, feed: StreamFeed) -> None:
        """Stop a feed if the rights of whoever has set it have ended. An operator has to set it again."""
        name, rule = feed.name, feed.rule
        if rule.stopped or not feed.open:
            return
        reason = self._refusal(rule.setter, name.source, rule.target)
        if not reason:
            return
        feed.rule = rule._replace(stopped=reason)
        self.tell("stopped", name, user=rule.setter.user, reason=reason)
        self.effects.notice(
            STOPPED, feed=name.name, source=str(name.source), user=rule.setter.user, reason=reason
        )
        run_workflow(self.effects, self._stop(name, feed))

    def _stop(self, name: FeedName, feed: StreamFeed) -> Workflow:
        """Store that a feed is stopped, so that it is when the broker starts again."""
        yield from self._begin_change(name)
        error = None
        if feed.open and feed.rule.stopped:
            error = yield from self._store(name, feed.rule)
        self._end_change(name)
        if feed.open:
            feed.resume()
        if error is not None:
            self.timers.at(
                self.effects.now + RETRY_SECONDS, lambda: run_workflow(self.effects, self._stop(name, feed))
            )

    def _store(
        self, name: FeedName, rule: FeedRule
    ) -> Generator[Literal["stored"], Any, MalamuteError | None]:
        """Store another rule of a feed that has its position. Returns why it could not be stored."""
        # Its rights may have ended meanwhile, and where it began is known to the store alone.
        value = rule._replace(began=FeedRule.parse(name.name, self.values[name]).began).packed()
        self.effects.store(_put(name, value))
        error: MalamuteError | None = yield STORED
        if error is None:
            self.values[name] = value
        return error

    def switch(
        self, name: FeedName, report: FeedReport, failed: Callable[[MalamuteError], None], *, enabled: bool
    ) -> None:
        """Let a feed go on where it is, or rest there. `report` is as for `set`."""
        run_workflow(self.effects, self._switch(name, report, failed, enabled))

    def _switch(
        self, name: FeedName, report: FeedReport, failed: Callable[[MalamuteError], None], enabled: bool
    ) -> Workflow:
        feed = yield from self._begin_change(name)
        if feed is None:
            self._end_change(name)
            failed(name.missing)
            return
        report(self.position(name), created=False)
        error = yield from self._store(name, feed.rule._replace(enabled=enabled))
        self._end_change(name)
        if error is None and enabled != feed.rule.enabled:
            feed.rule = feed.rule._replace(enabled=enabled)
            self.tell("enabled" if enabled else "disabled", name)
        feed.resume()

    def _begin_change(self, name: FeedName) -> Generator[Literal["stored"], Any, StreamFeed | None]:
        """Wait for the change of this feed before, and for the outcome of what it has put; it rests then."""
        self.changing[name] += 1
        while name in self._being_stored:
            yield STORED
        self._being_stored.add(name)
        feed = self.by_name.get(name)
        if feed is not None:
            feed.resting = True
            while feed.unsettled:
                yield STORED
        return feed

    def _end_change(self, name: FeedName) -> None:
        self._being_stored.discard(name)
        self.changing -= Counter((name,))

    def store_again(self, name: FeedName) -> None:
        """The store has lost the position of a feed. It is stored once more, behind changes under way."""
        run_workflow(self.effects, self._store_again(name))

    def _store_again(self, name: FeedName) -> Workflow:
        feed = yield from self._begin_change(name)
        stream = self.streams.by_name.get(name.source.name)
        if stream is not None and name.cursor in stream.cursors:
            stream.commit(name.cursor, stream.cursors[name.cursor])
            yield STORED
        self._end_change(name)
        if feed is not None and feed.open:
            feed.resume()

    def delete(self, name: FeedName, report: FeedReport, failed: Callable[[MalamuteError], None]) -> None:
        """End a feed; what it has passed on stays. `report` is as for `set`."""

        def steps() -> Workflow:
            if not (yield from self.deletion(name, report)):
                failed(name.missing)

        run_workflow(self.effects, steps())

    def deletion(self, name: FeedName, report: FeedReport) -> Generator[Literal["stored"], Any, bool]:
        """End a feed, as a part of a workflow. Returns whether there was one; the disk may refuse it."""
        feed = yield from self._begin_change(name)
        if name not in self.values:
            self._end_change(name)
            return False
        source, cursor = name.source.name, name.cursor
        self.effects.store_bound(DeleteValue(FEEDS, (source, name.name)))
        self.effects.store_bound(DeleteValue(CURSORS, (source, cursor)))
        report(self.position(name), created=False)
        error = yield STORED
        self._end_change(name)
        if error is not None:
            if feed is not None:
                feed.resume()
            return True
        if feed is not None:
            feed.cancel()
            del self.by_name[name]
            self._by_source[name.source].remove(feed)
            if not self._by_source[name.source]:
                del self._by_source[name.source]
            self.waiting.pop(id(feed), None)
        self.recovery.settled("feed", str(name))
        self.values.pop(name, None)
        if (stream := self.streams.by_name.get(source)) is not None:
            stream.cursors.pop(cursor, None)
            stream.lost_cursors.discard(cursor)
        self.tell("deleted", name)
        return True

    def _add(self, name: FeedName, rule: FeedRule, stream: Stream, target: FeedTarget) -> StreamFeed:
        feed = self.by_name[name] = StreamFeed(self, name, rule, stream, target)
        self._by_source.setdefault(name.source, []).append(feed)
        if self._keeper is None:
            self._keep_later()
        return feed

    def wake(self) -> None:
        """Let those go on for which there is room again."""
        for feed in [*self.waiting.values()]:
            self.effects.guard("a feed", feed.wake)

    def _keep_later(self) -> None:
        self._keeper = self.timers.at(self.effects.now + KEEP_SECONDS, self._keep)

    def _keep(self) -> None:
        self._keeper = None
        self.keep()
        if self.by_name:
            self._keep_later()

    def keep(self) -> None:
        """Store how far each has looked."""
        for feed in self.by_name.values():
            self.effects.guard("a feed", feed.keep)


def _put(name: FeedName, value: bytes) -> PutValue:
    return PutValue(FEEDS, (name.source.name, name.name), value)
