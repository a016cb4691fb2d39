"""Feeds: a service queue that a stream fills. Each matching message becomes exactly one request.

Ordinary subscriptions of the stream get their copies beside it, at once (COPY); the request goes to one of
the workers, when it has credit (MOVE). A feed is a reader of the stream like a subscription, inside the
broker. Its position is the cursor `$feed/SERVICE` of the stream, stored in the transaction that stores the
requests, so a crash neither loses one nor makes one twice. Its credit is the room in the queue: when the
queue is full, the feed falls into REPLAY and goes on out of the ring when there is room, so a publisher
is never slowed. What the ring has dropped meanwhile is announced by the event `feed.gap`.

A feed takes a message when it is on the disk: what could not be stored must not become a request. And it
waits for the outcome of what it has put before it puts more in a later iteration. So when the disk refuses
it, it goes back to the first of these messages, and nothing behind them is in the queue yet.

A feed that an operator has begun in the past had later positions before. Where the store is damaged, one of
those may come back in place of what it had stored since. So it is stored with the feed where it began and
where the stream ended then: a position between the two that may be old is none, and the feed begins again.

What an operator does to a feed is done when it is on the disk: until then it rests, and if the disk refuses,
it goes on as it was. A feed and its position are stored and deleted together. So a feed on the disk has its
own position, and never that of an earlier feed of the same name.

A feed acts with the rights of whoever has set it. When they end, by other rules, with his account or with the
key of his token, it is stopped where it is, over restarts, until an operator sets it again.

The sender of such a request is that of the message, and its properties name the stream and the sequence.
Nobody waits for an answer: the final reply completes it, and replies go nowhere.

Source: COPY and MOVE are those of the Xump notes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from malamute.core.access import ANONYMOUS, Principal
from malamute.core.chunk_part import ChunkPart
from malamute.core.queue.entry import ENTRY_BYTES, PROPERTY_BYTES, Entry
from malamute.core.queue.queue import Queue
from malamute.core.recovery import Recovery
from malamute.core.selectors import SelectorBudget
from malamute.core.service import Services
from malamute.core.stored_values import StoredValues
from malamute.core.stream import Stream, Streams
from malamute.core.subscription import Position, Reader
from malamute.core.workflow import STORED, Workflow, run_workflow
from malamute.errors import InvalidName, MalamuteError, NotFound, TooMany, TryLater
from malamute.matching import Selector
from malamute.protocol.admin import FeedRow
from malamute.protocol.batch import Columns, pack, unpack
from malamute.protocol.limits import Limits
from malamute.protocol.names import is_name
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import CURSORS, FEEDS

if TYPE_CHECKING:
    from malamute.core.timers import Timer

CURSOR_PREFIX = "$feed/"

RETRY_SECONDS = 1.0
"""How long a feed waits when the disk has refused its requests."""

STOPPED = "a feed is stopped: the rights of whoever has set it have ended; set it again"
"""What the log says of it."""

KEEP_SECONDS = 10.0
"""How often the position of a feed is stored that found nothing to take."""


def origin(stream: str, sequence: int) -> dict[str, Any]:
    """The properties of a request that a stream has made."""
    return {"stream": stream, "sequence": sequence}


FED_BYTES = ENTRY_BYTES + PROPERTY_BYTES * len(origin("", 0))
"""What a request of a feed takes of the limits beyond its subject and its record."""


class Feed(Reader):
    """One stream's messages on their way into one service's queue."""

    stream: Stream

    def __init__(
        self, feeds: Feeds, stream: Stream, queue: Queue, selector: Selector, setter: Principal
    ) -> None:
        self.feeds = feeds
        self.setter = setter
        """Who has set it: it acts with his rights."""
        self.stopped = ""
        """Why it takes nothing until an operator sets it again: his rights have ended."""
        self.effects = stream.effects
        self.queue = queue
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
        super().__init__(stream, selector)
        self._cost(selector.cost_bytes)
        queue.feeds += 1
        stream.replay.patient[id(self)] = self

    @property
    def name(self) -> str:
        """The name of its cursor."""
        return CURSOR_PREFIX + self.queue.name

    @property
    def read_by(self) -> tuple[str, str]:
        """No client, and the name of its cursor."""
        return "", self.name

    @property
    def ready(self) -> bool:
        """Whether it may put into the queue what is at its cursor."""
        return (
            self.cursor <= self.stream.replay.durable
            and not (self.resting or self.stopped)
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
        self.queue.feeds -= 1
        del self.stream.replay.patient[id(self)]
        super().cancel()

    def change(self, selector: Selector, position: Position | None) -> None:
        """Take other messages from now on, or go on from elsewhere."""
        self.group = self.stream.audience.modify(id(self), selector, self)
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
        """Put as much of a part into the queue as there is room for."""
        columns = part.columns
        sequences = columns.each_sequence()
        # What it takes, it takes in REPLAY: its position is where it goes on if the disk refuses that.
        if not self.cursor or sequences[0] > self.stream.replay.durable:
            return sequences[0]
        sizes = [size + FED_BYTES for size in part.sizes()]
        place = 0
        while place < part.count:
            room = self._room(sizes[place:]) if self.ready else 0
            if room:
                self._put(columns.take(range(place, place + room)))
                self.time_ns = part.time_ns
                place += room
            elif self.ready and self._never_fits(sizes[place]):
                self.skipped += 1
                self.missed(sequences[place], sequences[place], "too-large")
                place += 1
            else:
                if self.ready:
                    self._wait_for_room(sizes[place])
                return sequences[place]
        return 0

    def _put(self, columns: Columns) -> None:
        sequences = columns.each_sequence()
        senders = columns.senders if isinstance(columns.senders, list) else [columns.senders] * len(columns)
        first, time = self.queue.next_sequence, self.effects.time_ns
        rows = zip(sequences, senders, columns.subjects, columns.records, strict=True)
        requests = [
            Entry((first + place, time, sender, subject, record, origin(self.stream.name, sequence)))
            for place, (sequence, sender, subject, record) in enumerate(rows)
        ]
        self.queue.put(requests, confirmed=True)
        self.stream.commit(self.name, sequences[-1])
        self.delivered += len(requests)
        self._first = self._first or sequences[0]
        if not self._token:
            self._token = self.effects.token
            self.effects.when_stored(self._settled)

    def _settled(self, error: MalamuteError | None) -> None:
        first, self._first, self._token = self._first, 0, 0
        if not self.open:
            return
        if error is not None and first:
            self.stream.commit(self.name, first - 1)
            self.stream.replay.rewind(self, first)
            self.retry_at = self.effects.now + RETRY_SECONDS
            self.queue.limits.timers.at(self.retry_at, self.unblock)
        self.unblock()

    # Room

    def _fits(self, count: int, size_bytes: int, *, others: bool = True) -> bool:
        """Whether there is room for messages in the queue, and in all of them together if `others` count."""
        limits = self.queue.limits
        try:
            (limits.check if others else limits.check_queue)(self.queue.usage, count, size_bytes)
        except TryLater:
            return False
        return True

    def _room(self, sizes: Sequence[int]) -> int:
        """How many of the messages with these sizes have room in the queue."""
        totals = [*accumulate(sizes)]
        if self._fits(len(sizes), totals[-1]):
            return len(sizes)
        return bisect_left(range(len(sizes)), True, key=lambda i: not self._fits(i + 1, totals[i]))

    def _never_fits(self, size_bytes: int) -> bool:
        """Whether not even an empty queue has room for such a message."""
        return size_bytes > self.queue.usage.policy.bytes_max

    def _wait_for_room(self, size_bytes: int) -> None:
        self.full = size_bytes
        # A read from the journal for each message that leaves the queue would be a waste.
        held = len(self.queue.entries)
        self._resume_at = inf if self._fits(1, size_bytes, others=False) else held * 7 // 8
        self.feeds.waiting[id(self)] = self
        self.effects.event(f"feed.full.{self.queue.name}", stream=self.stream.name, messages=held)

    def wake(self) -> None:
        """Go on if there is room again."""
        has_room = len(self.queue.entries) <= self._resume_at and self._fits(1, self.full)
        if has_room or self._never_fits(self.full):
            self.full = 0
            del self.feeds.waiting[id(self)]
            self.effects.event(f"feed.resumed.{self.queue.name}", stream=self.stream.name)
            self.unblock()

    # Where it stands

    def keep(self) -> None:
        """Store how far it has looked, when it has found nothing to take for a while."""
        done = (self.cursor or self.stream.next_dispatch) - 1
        idle = self.began and not self.resting and not self._token
        if idle and done > self.stream.cursors.get(self.name, 0):
            self.announce_expired()
            self.stream.commit(self.name, done)

    def missed(self, first: int, last: int, reason: str) -> None:
        """Tell that messages could not be made requests."""
        self.effects.event(
            f"feed.gap.{self.queue.name}", stream=self.stream.name, first=first, last=last, reason=reason
        )

    def fail(self, error: MalamuteError) -> None:
        """Try again a little later, from where it is."""
        self.retry_at = self.effects.now + RETRY_SECONDS
        self.queue.limits.timers.at(self.retry_at, self.unblock)

    def switched(self, state: str, sequence: int) -> None:
        """It falls behind whenever it waits for the disk, so it is nothing to tell."""

    def row(self) -> FeedRow:
        """What it does and where it stands, for people."""
        stream, selector = self.stream, self.group.selector
        # What is not on the disk is none of its business yet.
        lag = max(0, stream.replay.durable + 1 - self.cursor) if self.cursor else 0
        return FeedRow(
            service=self.queue.name,
            stream=stream.name,
            criteria=[[*criterion] for criterion in selector.criteria],
            where=selector.where,
            state="stopped" if self.stopped else "full" if self.full else "replay" if lag else "live",
            sequence=stream.cursors.get(self.name, 0),
            lag=lag,
            requests=self.delivered,
            skipped=self.skipped,
            user=self.setter.user,
            reason=self.stopped,
        )


class _StoredFeed(NamedTuple):
    """What is stored of a feed. Of what an earlier version has stored nobody knows who has set it."""

    criteria: Sequence[Any]
    where: str
    setter: Principal = ANONYMOUS
    stopped: str = ""
    began: Sequence[int] = ()
    """Where it began in the past: the position, and the last sequence of the stream then."""

    @classmethod
    def parse(cls, value: bytes) -> Self:
        found = cls(*unpack(value))
        return found if found.setter is ANONYMOUS else found._replace(setter=Principal.of(found.setter))

    def packed(self) -> bytes:
        value: bytes = pack((self.criteria, self.where, self.setter.stored(), self.stopped, self.began))
        return value


def feed_name(service: str, stream: str) -> str:
    """The name of a feed in reports."""
    return f"{service} from {stream}"


def no_feed(service: str, stream: str) -> NotFound:
    """The error for a feed that is not there."""
    return NotFound(f"there is no feed from the stream {stream!r} to the service {service!r}")


class FeedReport(Protocol):
    """What a change of a feed calls in the iteration in which it is stored."""

    def __call__(self, sequence: int, *, created: bool) -> None:
        """Its position is this."""


class Feeds:
    """All feeds, by service and stream."""

    def __init__(
        self,
        limits: Limits,
        streams: Streams,
        services: Services,
        selectors: SelectorBudget,
        recovery: Recovery,
        refusal: Callable[[Principal, str, str], str],
    ) -> None:
        """`refusal` says why somebody may not feed a service from a stream, or is empty if he may."""
        self._refusal = refusal
        self.effects = streams.effects
        self.limits = limits
        self.streams = streams
        self.services = services
        self.selectors = selectors
        self.recovery = recovery
        self.by_name: dict[tuple[str, str], Feed] = {}
        self.values: StoredValues[tuple[str, str], bytes] = StoredValues(self.effects)
        """What the store has of each, and of those that could not be taken up."""
        self.waiting: dict[int, Feed] = {}
        """Those that wait for room."""
        self.changing: Counter[tuple[str, str]] = Counter()
        """How many changes of each are under way."""
        self._being_stored: set[tuple[str, str]] = set()
        """Those that have a change under way to the disk: one change of a feed after the other."""
        self._keeper: Timer | None = None

    def restore(self, service: str, stream_name: str, value: bytes, *, doubtful: bool = False) -> None:
        """Take up a feed that the store kept, where it was.

        If its position is `doubtful`, a later one may have been in a part of the store that is damaged.

        Raises `InvalidSelector` for a family from outside that is not here any more, and `CursorLost` if its
        position is not known: what becomes of the feed is for the operator to say.
        """
        self.values[service, stream_name] = value
        known = _StoredFeed.parse(value)
        selector = Selector.parse(known.criteria, known.where)
        stream = self.streams.keep(stream_name)
        stream.check_known(CURSOR_PREFIX + service)
        feed = self._add(self.services.get_or_create(service), stream, selector, known.setter)
        feed.stopped = known.stopped
        done = stream.cursors.get(feed.name, stream.next - 1)
        found = done
        if doubtful and known.began and known.began[0] < done <= known.began[1]:
            done = known.began[0]
        # The disk may not have reserved these sequences, so they are used again.
        done = min(done, stream.next - 1)
        if done < found:
            self._set_back(feed, done)
        feed.begin(Position(done + 1))

    def _set_back(self, feed: Feed, done: int) -> None:
        """Store that a feed is before what the disk has of it, and again until the disk takes that."""
        cursors = feed.stream.cursors
        cursors[feed.name] = done
        feed.stream.commit(feed.name, done)

        def stored(error: MalamuteError | None) -> None:
            if error is not None:
                self.services.limits.timers.at(self.effects.now + RETRY_SECONDS, again)

        def again() -> None:
            # Whatever was stored meanwhile is where it is.
            if feed.open and not feed.resting and cursors.get(feed.name) == done:
                self._set_back(feed, done)

        self.effects.when_stored(stored)

    def check(self, service: str, stream: str) -> None:
        """Raise what stands against a feed."""
        if not is_name(CURSOR_PREFIX + service):
            raise InvalidName(f"the name of a service with feeds is at most 249 bytes: {service!r}")
        feeds = self.by_name.keys() | self.changing.keys()
        if (service, stream) not in feeds and len(feeds) >= self.limits.feeds:
            raise TooMany(f"too many feeds: expected at most {self.limits.feeds}")
        self.streams.check_cursor(stream, CURSOR_PREFIX + service)

    def check_stream(self, stream: str) -> None:
        """Raise `TryLater` while a feed from this stream is being changed."""
        if self.changes(stream):
            raise TryLater(f"a feed from the stream {stream!r} is being changed: retry after its answer")

    def changes(self, stream: str) -> int:
        """How many changes of feeds from this stream are under way."""
        return sum(count for (_, name), count in self.changing.items() if name == stream)

    def position(self, service: str, stream: str) -> int:
        """The last sequence that a feed is done with, 0 if nobody knows."""
        found = self.streams.by_name.get(stream)
        return found.cursors.get(CURSOR_PREFIX + service, 0) if found is not None else 0

    def forget(self, stream: str) -> None:
        """A stream is gone with this iteration, and with it the feeds from it that could not be taken up."""
        names = [name for name in self.values if name[1] == stream]
        for name in names:
            self.values.put(name, None)

        def gone(error: MalamuteError | None) -> None:
            for name in names if error is None else ():
                self.recovery.settled("feed", feed_name(*name))

        if names:
            self.effects.when_stored(gone)

    def put_again(self, stream: str) -> None:
        """Store the feeds from a stream again: what the store had of it is gone.

        Their positions, which are stored with that, stand for what they have put last.
        """
        for (_, name), feed in self.by_name.items():
            if name == stream:
                feed.rely_on_last()
        for (service, name), value in self.values.items():
            if name == stream:
                self.effects.store(PutValue(FEEDS, (name, service), value))

    def set(
        self,
        service: str,
        stream: Stream,
        criteria: Sequence[Any],
        where: str,
        position: Position | None,
        report: FeedReport,
        setter: Principal,
    ) -> None:
        """Make a feed, or change it. Without a position it goes on where it is, or begins at the head.

        It acts with the rights of the `setter`, and begins again if it was stopped. `report` is called in the
        iteration that stores it; when that is done, it is in force.
        """
        selector = Selector.parse(criteria, where)
        self.selectors.check(selector)
        if position is None and (service, stream.name) not in self.by_name:
            stream.check_known(CURSOR_PREFIX + service)
        queue, wanted = self.services.get(service), _StoredFeed(criteria, where, setter)
        run_workflow(self.effects, self._set(queue, stream, selector, wanted, position, report))

    def _set(
        self,
        queue: Queue,
        stream: Stream,
        selector: Selector,
        wanted: _StoredFeed,
        position: Position | None,
        report: FeedReport,
    ) -> Workflow:
        name = queue.name, stream.name
        cursor = CURSOR_PREFIX + queue.name
        queue.feeds += 1  # so that it is not removed meanwhile
        stream.changing += 1
        stream.cursors.reserve(cursor)
        self.selectors.reserved_bytes += selector.cost_bytes
        feed = yield from self._begin_change(name)
        if feed is None and position is None:
            # One that could not be taken up goes on where it was.
            known = name in self.values and cursor in stream.cursors
            position = Position(stream.cursors[cursor] + 1 if known else stream.next)
        done = stream.cursors[cursor] if position is None else position.first - 1
        head = stream.next
        if position is None:
            began = _StoredFeed.parse(self.values[name]).began
        else:
            began = (done, head - 1) if done < head - 1 else ()
        value = wanted._replace(began=began).packed()
        self.effects.store(
            PutValue(FEEDS, (stream.name, queue.name), value), PutValue(CURSORS, (stream.name, cursor), done)
        )
        created = name not in self.values
        report(done, created=created)
        error = yield STORED
        self._end_change(name)
        queue.feeds -= 1
        stream.changing -= 1
        if error is None:
            self.recovery.settled("feed", feed_name(*name))
            self.values[name] = value
            stream.cursors[cursor] = done
            stream.lost_cursors.discard(cursor)
            if feed is not None:
                feed.change(selector, position)
                feed.setter, feed.stopped = wanted.setter, ""
            else:
                assert position is not None, "a new feed has one"
                feed = self._add(queue, stream, selector, wanted.setter)
                feed.begin(position)
            if position is not None:
                # What has come since and is gone already is a gap.
                feed.head = head
            if created:
                self.effects.event(f"feed.created.{queue.name}", stream=stream.name)
        stream.cursors.release(cursor)
        self.selectors.reserved_bytes -= selector.cost_bytes
        if feed is not None:
            # They may have ended while it was being stored.
            self.review(feed)
            feed.resume()
        else:
            self.services.drop_unused(queue)

    def review(self, feed: Feed) -> None:
        """Stop a feed if the rights of whoever has set it have ended. An operator has to set it again."""
        service, stream = feed.queue.name, feed.stream.name
        if feed.stopped or not feed.open or not (reason := self._refusal(feed.setter, service, stream)):
            return
        feed.stopped = reason
        self.effects.event(f"feed.stopped.{service}", stream=stream, user=feed.setter.user, reason=reason)
        self.effects.notice(STOPPED, service=service, stream=stream, user=feed.setter.user, reason=reason)
        run_workflow(self.effects, self._stop((service, stream), feed))

    def _stop(self, name: tuple[str, str], feed: Feed) -> Workflow:
        """Store that a feed is stopped, so that it is when the broker starts again."""
        yield from self._begin_change(name)
        error = None
        if feed.open and feed.stopped:
            value = _StoredFeed.parse(self.values[name])._replace(stopped=feed.stopped).packed()
            self.effects.store(PutValue(FEEDS, (name[1], name[0]), value))
            error = yield STORED
            if error is None:
                self.values[name] = value
        self._end_change(name)
        if feed.open:
            feed.resume()
        if error is not None:
            self.services.limits.timers.at(
                self.effects.now + RETRY_SECONDS,
                lambda: run_workflow(self.effects, self._stop(name, feed)),
            )

    def _begin_change(self, name: tuple[str, str]) -> Generator[Literal["stored"], Any, Feed | None]:
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

    def _end_change(self, name: tuple[str, str]) -> None:
        self._being_stored.discard(name)
        self.changing -= Counter((name,))

    def store_again(self, service: str, stream: str) -> None:
        """The store has lost the position of a feed. It is stored once more, behind changes under way."""
        run_workflow(self.effects, self._store_again((service, stream)))

    def _store_again(self, name: tuple[str, str]) -> Workflow:
        feed = yield from self._begin_change(name)
        cursor, stream = CURSOR_PREFIX + name[0], self.streams.by_name.get(name[1])
        if stream is not None and cursor in stream.cursors:
            stream.commit(cursor, stream.cursors[cursor])
            yield STORED
        self._end_change(name)
        if feed is not None and feed.open:
            feed.resume()

    def delete(
        self, service: str, stream: str, report: FeedReport, failed: Callable[[MalamuteError], None]
    ) -> None:
        """End a feed; the requests that it made stay. `report` is as for `set`."""
        run_workflow(self.effects, self._delete((service, stream), report, failed))

    def _delete(
        self, name: tuple[str, str], report: FeedReport, failed: Callable[[MalamuteError], None]
    ) -> Workflow:
        service, stream_name = name
        cursor = CURSOR_PREFIX + service
        feed = yield from self._begin_change(name)
        if name not in self.values:
            self._end_change(name)
            failed(no_feed(*name))
            return
        self.effects.store_bound(DeleteValue(FEEDS, (stream_name, service)))
        self.effects.store_bound(DeleteValue(CURSORS, (stream_name, cursor)))
        report(self.position(*name), created=False)
        error = yield STORED
        self._end_change(name)
        if error is not None:
            if feed is not None:
                feed.resume()
            return
        if feed is not None:
            feed.cancel()
            del self.by_name[name]
            self.waiting.pop(id(feed), None)
        self.recovery.settled("feed", feed_name(*name))
        self.values.pop(name, None)
        if (stream := self.streams.by_name.get(stream_name)) is not None:
            stream.cursors.pop(cursor, None)
            stream.lost_cursors.discard(cursor)
        self.effects.event(f"feed.deleted.{service}", stream=stream_name)

    def _add(self, queue: Queue, stream: Stream, selector: Selector, setter: Principal) -> Feed:
        feed = self.by_name[queue.name, stream.name] = Feed(self, stream, queue, selector, setter)
        if self._keeper is None:
            self._keep_later()
        return feed

    def wake(self) -> None:
        """Let those go on for which there is room again."""
        for feed in [*self.waiting.values()]:
            self.effects.guard("a feed", feed.wake)

    def _keep_later(self) -> None:
        self._keeper = self.services.limits.timers.at(self.effects.now + KEEP_SECONDS, self._keep)

    def _keep(self) -> None:
        self._keeper = None
        self.keep()
        if self.by_name:
            self._keep_later()

    def keep(self) -> None:
        """Store how far each has looked."""
        for feed in self.by_name.values():
            self.effects.guard("a feed", feed.keep)
