"""All feeds of a broker, and the changes of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from malamute.core.feed.feed import RETRY_SECONDS, Feed
from malamute.core.feed.queue_feed import QueueFeed
from malamute.core.feed.rule import FeedName, FeedRule
from malamute.core.feed.start import FeedStart
from malamute.core.feed.stream_feed import StreamFeed
from malamute.core.feed.target import FeedPlace, QueueTarget, StreamTarget
from malamute.core.iteration.recovery import Recovery
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.iteration.workflow import STORED, Stored, Workflow, run_workflow
from malamute.core.queue.mailbox import Mailboxes
from malamute.core.queue.service import Services
from malamute.core.queue.table import QueueTable
from malamute.core.session.selectors import SelectorBudget
from malamute.core.stream.subscription import Position
from malamute.core.stream.table import Streams
from malamute.errors import InvalidValue, MalamuteError, NotFound, TooMany, TryLater
from malamute.matching import Selector
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.limits import Limits
from malamute.protocol.names import Place
from malamute.store.operations import Recovered, Stranded
from malamute.store.tables import CURSORS, FEEDS, QUEUE_FEEDS

if TYPE_CHECKING:
    from malamute.core.iteration.timers import Timer

AnyFeed = TypeVar("AnyFeed", bound=Feed)

STOPPED = "a feed is stopped: the rights of the user who has set it have ended; set it again"
"""The words of the log."""

KEEP_SECONDS = 10.0
"""How often the position of a feed is stored that found nothing to take."""


class FeedReport(Protocol):
    """The function that a change of a feed calls in its iteration."""

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
        allowed: Callable[[Place, FeedRule], Selector],
    ) -> None:
        """`allowed` returns the selector that the setter's rights leave, or raises."""
        self.allowed = allowed
        self.effects = streams.effects
        self.timers = services.limits.timers
        self.limits = limits
        self.streams = streams
        self._queues: dict[str, QueueTable] = {"mailbox": mailboxes, "service": services}
        self.selectors = selectors
        self.recovery = recovery
        self.by_name: dict[FeedName, Feed] = {}
        self._by_source: dict[Place, list[Feed]] = {}
        self.values: StoredValues[FeedName, bytes] = StoredValues(self.effects.stage)
        """The stored values of all, unreadable ones included."""
        self.waiting: dict[int, Feed] = {}
        """Feeds that wait for room."""
        self.changing: Counter[FeedName] = Counter()
        """How many changes of each are under way."""
        self._being_stored: set[FeedName] = set()
        """Feeds with a change on its way to the disk: one change of a feed after the other."""
        self._coming: Counter[tuple[Place, Place]] = Counter()
        """From where to where those go that are being set."""
        self._keeper: Timer | None = None

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the feeds that the store kept, each where it was."""
        for table in (FEEDS, QUEUE_FEEDS):
            for key, value in recovered.table(table).items():
                name = FeedName.of(table, key)
                doubtful = (CURSORS, (name.source.name, name.cursor)) in recovered.doubtful
                recovery.take_up("feed", str(name), self._restore, name, value, doubtful)

    def _restore(self, name: FeedName, value: bytes, doubtful: bool) -> None:
        """Restore one feed.

        If its position is `doubtful`, a later one may have been in a part of the store that is damaged.

        Raises `InvalidSelector` for a plug-in family that is missing, and `CursorLost` for an unknown
        position, about which the operator decides.
        """
        self.values[name] = value
        rule = FeedRule.parse(name.name, value)
        if name.source.kind != "stream":
            queue = self._queues[name.source.kind].get_or_create(name.source.name)
            moving = QueueFeed(self, name, rule, queue, self._kept_target(rule))
            self._add(moving).begin()
            return
        stream = self.streams.keep(name.source.name)
        stream.cursors.check_known(name.cursor)
        feed = self._add(StreamFeed(self, name, rule, stream, self._kept_target(rule)))
        done = stream.cursors.get(name.cursor, stream.progress.next - 1)
        found = done
        if doubtful and rule.began and rule.began[0] < done <= rule.began[1]:
            done = rule.began[0]
        # The disk may not have reserved these sequences, so they are used again.
        done = min(done, stream.progress.next - 1)
        feed.done = done
        if done < found:
            self._set_back(feed, done)
        feed.begin(Position(done + 1))

    def _known(self, name: FeedName, feed: Feed | None) -> int | None:
        """The last sequence that a feed from a stream is done with, which may not have been taken up."""
        if isinstance(feed, StreamFeed):
            return feed.position
        stream = self.streams.by_name.get(name.source.name) if name.source.kind == "stream" else None
        if stream is None or name.cursor not in stream.cursors or name not in self.values:
            return None
        return stream.cursors[name.cursor]

    def _set_back(self, feed: StreamFeed, done: int) -> None:
        """Store an earlier position of a feed than the disk has, and retry until the disk takes it."""
        cursors, cursor = feed.stream.cursors, feed.name.cursor
        cursors[cursor] = done
        feed.stream.cursors.commit(cursor, done)

        def stored(error: MalamuteError | None) -> None:
            if error is not None:
                self.timers.at(self.effects.now + RETRY_SECONDS, again)

        def again() -> None:
            # A change stored meanwhile has the position.
            if feed.open and not feed.resting and cursors.get(cursor) == done:
                self._set_back(feed, done)

        self.effects.stage.when_stored(stored)

    # Places

    def source(self, place: Place) -> FeedPlace:
        """A place that a feed may take from, made if needed. Raises `TryLater` or `TooMany`."""
        return self.target(FeedRule((), "", target=place))

    def target(self, rule: FeedRule) -> FeedPlace:
        """The place where a feed is to put something, made if needed. Raises `TryLater` or `TooMany`."""
        kind, name = rule.target
        if kind == "stream":
            return StreamTarget(self.streams.get(name, rule.setter.user))
        table = self._queues[kind]
        return QueueTarget(table.by_name.get(name) or table.create(name), moves=rule.moves)

    def _kept_target(self, rule: FeedRule) -> FeedPlace:
        """The same, even past all limits: it was promised."""
        kind, name = rule.target
        if kind == "stream":
            return StreamTarget(self.streams.keep(name))
        return QueueTarget(self._queues[kind].get_or_create(name), moves=rule.moves)

    def drop_unused(self, *places: FeedPlace) -> None:
        """Forget places that were made in vain, unless somebody uses them by now."""
        for place in places:
            if isinstance(place, QueueTarget):
                table = self._queues[place.place.kind]
                if table.by_name.get(place.place.name) is place.queue:
                    table.drop_unused(place.queue)
            elif place.stream.idle and not self.changes(place.place):
                self.streams.drop_untouched(place.stream)

    # Feeds

    def check(self, name: FeedName, target: Place) -> None:
        """Raise the error of a feed that cannot be set.

        Raises:
            InvalidValue: messages would go in a circle.
            TooMany: there are as many feeds, or as much of cursors, as there may be.
        """
        feeds = self.by_name.keys() | self.changing.keys()
        if name not in feeds and len(feeds) >= self.limits.feeds:
            raise TooMany(f"too many feeds: expected at most {self.limits.feeds}")
        if name.source.kind == "stream":
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

    def claiming(self, source: Place) -> Iterator[Feed]:
        """Return the feeds from a source whose messages are not left to its default feed."""
        return (feed for feed in self._by_source.get(source, ()) if feed.rule.when != "default")

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

    def position(self, name: FeedName) -> int | None:
        """The last sequence that a feed is done with, 0 if nobody knows, and None if it has none."""
        if name.source.kind != "stream":
            return None
        found = self.streams.by_name.get(name.source.name)
        return found.cursors.get(name.cursor, 0) if found is not None else 0

    def report(self, what: str, name: FeedName, **details: Any) -> None:
        """Report an event of a feed."""
        self.effects.event(f"feed.{what}.{name.name}", source=str(name.source), **details)

    # Changes

    def forget(self, source: Place) -> None:
        """A place is gone with this iteration, and with it the feeds from it that could not be taken up."""
        names = [name for name in self.values if name.source == source]
        for name in names:
            self.values.put(name, None)
            if source.kind != "stream":
                # Values of a stream leave the store with it.
                self.effects.stage.store(*name.delete())

        def gone(error: MalamuteError | None) -> None:
            for name in names if error is None else ():
                self.recovery.settled("feed", str(name))

        if names:
            self.effects.stage.when_stored(gone)

    def put_again(self, stream: str) -> None:
        """Store the feeds from a stream again, as the store has lost them.

        Their positions, stored with that, cover their last messages.
        """
        source = Place("stream", stream)
        for name, feed in self.by_name.items():
            if name.source == source and isinstance(feed, StreamFeed):
                feed.rely_on_last()
        for name, value in self.values.items():
            if name.source == source:
                self.effects.stage.store(name.put(value))

    def set(
        self, name: FeedName, rule: FeedRule, start: FeedStart, target: FeedPlace, report: FeedReport
    ) -> None:
        """Make or change a feed, which continues at its position, or begins as `start` says.

        The feed acts with the rights of the `setter`, and resumes if it was stopped. `report` is called in
        the iteration that stores it; when that is done, it is in force.
        """
        self.selectors.check(rule.selector)
        run_workflow(self.effects, self._set(name, rule, start, target, report))

    def _set(
        self, name: FeedName, rule: FeedRule, start: FeedStart, target: FeedPlace, report: FeedReport
    ) -> Workflow:
        cost_bytes, way = rule.selector.cost_bytes, (name.source, rule.target)
        target.hold()  # so that it is not removed meanwhile
        start.hold()
        self._coming[way] += 1
        self.selectors.reserved_bytes += cost_bytes
        feed = yield from self._begin_change(name)
        before = self.values.get(name)
        rule = start.plan(rule, before, self._known(name, feed), at_work=feed is not None)
        value = rule.packed()
        self.effects.stage.store(name.put(value), *start.stored())
        created = name not in self.values
        report(start.done, created=created)
        error = yield STORED
        self._end_change(name)
        target.release()
        self._coming -= Counter((way,))
        if error is None:
            self.recovery.settled("feed", str(name))
            self.values[name] = value
            if feed is not None:
                start.change(feed, rule, target)
                self._look_again(name.source)
            else:
                feed = self._add(start.make(self, rule, target))
            if created:
                self.report("created", name, target=str(rule.target))
        start.release()
        self.selectors.reserved_bytes -= cost_bytes
        if feed is not None:
            # The rights may have ended while it was being stored.
            self.review(feed)
            feed.resume()
        if error is not None:
            self.drop_unused(target, start.source)

    def review(self, feed: Feed) -> None:
        """Narrow a feed to the messages that its setter may have.

        If those rights have ended, or nothing is left, it is stopped. An operator has to set it again.
        """
        if feed.rule.stopped or not feed.open:
            return
        try:
            feed.narrow(self.allowed(feed.name.source, feed.rule))
        except MalamuteError as error:
            self._refused(feed, error.text)

    def _refused(self, feed: Feed, reason: str) -> None:
        name, rule = feed.name, feed.rule
        feed.rule = rule._replace(stopped=reason)
        self.report("stopped", name, user=rule.setter.user, reason=reason)
        self.effects.notice(
            STOPPED, feed=name.name, source=str(name.source), user=rule.setter.user, reason=reason
        )
        run_workflow(self.effects, self._stop(name, feed))

    def _stop(self, name: FeedName, feed: Feed) -> Workflow:
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

    def _store(self, name: FeedName, rule: FeedRule) -> Generator[Stored, Any, MalamuteError | None]:
        """Store another rule of a feed that has its position. Returns why it could not be stored."""
        # Its rights may have ended meanwhile, and where it began is known to the store alone.
        value = rule._replace(began=FeedRule.parse(name.name, self.values[name]).began).packed()
        self.effects.stage.store(name.put(value))
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
            self.report("enabled" if enabled else "disabled", name)
        feed.resume()

    def _begin_change(self, name: FeedName) -> Generator[Stored, Any, Feed | None]:
        """Wait for an earlier change of this feed, and for its last messages; then it pauses."""
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

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: positions of feeds that are in it are stored once more.

        Of those that have none it is the rules.
        """
        names = [FeedName.of(QUEUE_FEEDS, key) for key in stranded.keys(QUEUE_FEEDS)]
        for stream, cursor in stranded.keys(CURSORS):
            if cursor.startswith(FEED_PREFIX):
                names.append(FeedName(Place("stream", stream), cursor.removeprefix(FEED_PREFIX)))
        for name in names:
            run_workflow(self.effects, self._store_again(name))

    def _store_again(self, name: FeedName) -> Workflow:
        """Store the lost values of a feed again, behind changes under way."""
        feed = yield from self._begin_change(name)
        stream = self.streams.by_name.get(name.source.name)
        if name.source.kind != "stream":
            if name in self.values:
                self.effects.stage.store(name.put(self.values[name]))
                yield STORED
        elif stream is not None and name.cursor in stream.cursors:
            stream.cursors.commit(name.cursor, stream.cursors[name.cursor])
            yield STORED
        self._end_change(name)
        if feed is not None and feed.open:
            feed.resume()

    def delete(self, name: FeedName, report: FeedReport, failed: Callable[[MalamuteError], None]) -> None:
        """Delete a feed; passed messages stay. `report` is as for `set`."""

        def steps() -> Workflow:
            error = yield from self.deletion(name, report)
            if isinstance(error, NotFound):
                failed(error)

        run_workflow(self.effects, steps())

    def deletion(self, name: FeedName, report: FeedReport) -> Generator[Stored, Any, MalamuteError | None]:
        """End a feed, as a part of a workflow. Returns why it has not ended, if so: `NotFound`, or the disk.

        `report` is called before the outcome is known.
        """
        feed = yield from self._begin_change(name)
        if name not in self.values:
            self._end_change(name)
            return name.missing
        for operation in name.delete():
            self.effects.stage.store_bound(operation)
        report(self.position(name), created=False)
        error: MalamuteError | None = yield STORED
        self._end_change(name)
        if error is not None:
            if feed is not None:
                feed.resume()
            return error
        if feed is not None:
            feed.cancel()
            del self.by_name[name]
            self._by_source[name.source].remove(feed)
            self._look_again(name.source)
            if not self._by_source[name.source]:
                del self._by_source[name.source]
        self.recovery.settled("feed", str(name))
        self.values.pop(name, None)
        stream = self.streams.by_name.get(name.source.name) if name.source.kind == "stream" else None
        if stream is not None:
            stream.cursors.pop(name.cursor, None)
            stream.cursors.lost.discard(name.cursor)
        self.report("deleted", name)
        return None

    def _look_again(self, source: Place) -> None:
        """Examine the messages that feeds of a queue left to a feed that has changed or ended."""
        for feed in self._by_source[source]:
            if isinstance(feed, QueueFeed) and feed.rule.when == "default":
                feed.begin()

    def _add(self, feed: AnyFeed) -> AnyFeed:
        self.by_name[feed.name] = feed
        self._by_source.setdefault(feed.name.source, []).append(feed)
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

    def close(self) -> None:
        """The broker ends: store how far each has looked, and put no more. There may be very much to put."""
        self.keep()
        for feed in self.by_name.values():
            feed.retry_at = inf
