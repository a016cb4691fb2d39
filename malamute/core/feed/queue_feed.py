"""Feeds from a mailbox or a service at work: each moves messages out of the queue to its target.

A ready message is offered to the feeds of its queue before consumers: the first feed that matches and may
move it gets it, and goes to the end of their list. Two kinds of feeds take messages for which no consumer has
credit: one for the `overflow`, and the `default`, which leaves the messages of other feeds to these.

A moved message is put to the target and settled at the source in one iteration, and so in one commit. If the
disk refuses that, the message is at its source again, and nowhere else.

A queue has no positions: messages that no feed has taken are still there. A feed knows the messages it has
not examined: those from a time without room, or with the record on the disk; after a start or a change, all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from malamute.core.feed.feed import Feed, FeedOwner
from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.entry import size_of
from malamute.core.queue.paging import RUN_BYTES, RUN_MESSAGES, Records, records_of
from malamute.core.queue.state import PENDING, READY
from malamute.errors import MalamuteError
from malamute.matching import CompiledSelector
from malamute.protocol.admin import FeedRow
from malamute.protocol.batch import headers_of

if TYPE_CHECKING:
    from malamute.core.feed.rule import FeedName, FeedRule
    from malamute.core.feed.target import FeedPlace
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.options import Options
    from malamute.core.queue.queue import Queue
    from malamute.matching.family import Headers

MOVED = "moved"
"""The outcome at the source of a moved message."""


class QueueFeeds:
    """The feeds from one queue, as that sees them, in the order in which they take."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._feeds: list[QueueFeed] = []

    def join(self, feed: QueueFeed) -> None:
        """There is one more."""
        self._feeds.append(feed)
        self._queue.fed = self

    def leave(self, feed: QueueFeed) -> None:
        """One has ended."""
        self._feeds.remove(feed)
        if not self._feeds:
            self._queue.fed = None

    def claim(self, sequences: Sequence[int]) -> Sequence[int]:
        """Move ready messages as far as they may be moved. Returns the rest, for consumers."""
        entries = [*map(self._queue.entries.__getitem__, sequences)]
        wanted = {feed: feed.wanted(entries) for feed in self._feeds if feed.rule.when == "match"}
        shares = self._shares(entries, wanted) if len(wanted) > 1 else wanted
        for feed, share in shares.items():
            self._queue.effects.guard("a feed", feed.move, share)
        for feed, some in wanted.items():
            # Another one had no room for these.
            own = {*map(id, shares[feed])}
            feed.put_off([e.sequence for e in some if e.state == PENDING and id(e) not in own])
        return [entry.sequence for entry in entries if entry.state == PENDING]

    def _shares(
        self, entries: Sequence[Entry], wanted: Mapping[QueueFeed, Sequence[Entry]]
    ) -> dict[QueueFeed, list[Entry]]:
        """Yield the messages of each feed; feeds that want the same take turns."""
        shares: dict[QueueFeed, list[Entry]] = {feed: [] for feed in wanted}
        wants = {feed: {*map(id, some)} for feed, some in wanted.items()}
        for entry in entries:
            taker = next((feed for feed in self._feeds if id(entry) in wants.get(feed, ())), None)
            if taker is not None:
                shares[taker].append(entry)
                self._feeds.remove(taker)
                self._feeds.append(taker)
        return shares

    def look(self, sequences: Sequence[int]) -> None:
        """Offer messages that remain after the consumers had theirs."""
        for feed in [*self._feeds]:
            if feed.rule.when != "match":
                feed.put_off(sequences)
            feed.unblock()


class QueueFeed(Feed):
    """One queue's messages on their way to one target."""

    def __init__(
        self, feeds: FeedOwner, name: FeedName, rule: FeedRule, queue: Queue, target: FeedPlace
    ) -> None:
        super().__init__(feeds, name, rule, target, queue.effects)
        self.queue = queue
        self.moved = self.skipped = 0
        self._ahead = BitMap64()
        """The messages not examined yet."""
        self._at_work = False
        self._unstored_bytes = 0
        """Its messages on the way to the disk: while these are many, it takes no more."""
        self._compile(rule)
        target.hold()
        queue.feeds += 1
        (queue.fed or QueueFeeds(queue)).join(self)

    def _compile(self, rule: FeedRule) -> None:
        selector = rule.selector
        self.compiled = CompiledSelector(selector, self.queue.dispatcher.family_failed)
        self._by_record = rule.when == "default" or selector.needs_headers
        self._cost(selector.cost_bytes)

    def begin(self) -> None:
        """Look at all that waits, from the next iteration on."""
        self._ahead = self.queue.entries.all_sequences()
        self.effects.later(self.unblock)

    def change(self, rule: FeedRule, target: FeedPlace) -> None:
        """Go by another rule from now on."""
        self._compile(rule)
        self._go_by(rule, target)

    def cancel(self) -> None:
        """End it."""
        self._let_go()
        self.queue.feeds -= 1
        assert self.queue.fed is not None, "a queue has lost its feeds"
        self.queue.fed.leave(self)

    def resume(self) -> None:
        """Go on after a change, from the first message on."""
        self._ahead = self.queue.entries.all_sequences()
        super().resume()

    @property
    def ready(self) -> bool:
        """Whether it may move something."""
        return self.open and self.free

    # New messages

    def wanted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the messages that it takes of new ones; others are examined later."""
        if not self.ready or self._ahead:
            self.put_off([entry.sequence for entry in entries])
            return []
        here = [entry for entry in entries if entry.record is not None]
        if len(here) < len(entries):
            self.put_off([entry.sequence for entry in entries if entry.record is None])
        return self._matching(here, _records_of(here))

    def move(self, entries: Sequence[Entry]) -> None:
        """Move messages, whose records are in memory, as far as there is room."""
        if entries:
            self.put_off(self._move(entries, _records_of(entries)))

    def put_off(self, sequences: Sequence[int]) -> None:
        """Look at these later. While it rests that is of no use: then it will look at all."""
        if self.rule.active and not self.resting:
            self._ahead.update(sequences)
            if len(self._ahead) > 2 * len(self.queue.entries) + RUN_MESSAGES:
                self._ahead = self._waiting()

    # Waiting messages

    def _waiting(self) -> BitMap64:
        """Return the present messages that are not examined yet."""
        return self._ahead & self.queue.entries.all_sequences()

    def unblock(self) -> None:
        """Examine the remaining messages."""
        if self._ahead and self.ready and not self._at_work:
            run_workflow(self.effects, self._work())

    def _work(self) -> Workflow:
        self._at_work = True
        try:
            while self._ahead and self.ready and self._unstored_bytes < RUN_BYTES:
                if self.effects.work <= 0:
                    yield GO_ON
                else:
                    yield from self._look_at(self._next_run())
        except MalamuteError:
            # The records are on the disk, and are asked for again.
            self._retry()
        finally:
            self._at_work = False

    def _next_run(self) -> list[Entry]:
        """Return the next messages to examine, as many as may be in memory at once."""
        some = [*islice(self._ahead, RUN_MESSAGES)]
        self.effects.work -= len(some)
        entries = [entry for entry in map(self.queue.entries.get, some) if entry is not None]
        waiting = [entry for entry in entries if entry.state == READY]
        # The others are offered when they come back.
        self._ahead -= BitMap64(some) - BitMap64([entry.sequence for entry in waiting])
        fits = sum(total <= RUN_BYTES for total in accumulate(entry.bytes for entry in waiting))
        return waiting[: max(fits, 1)]

    def _look_at(self, run: Sequence[Entry]) -> Workflow:
        rule = self.rule
        found = run if self._by_record else self._matching(run, {})
        records: Records = {}
        if found and self._has_room(found[0]):
            records = yield from records_of(self.queue.kind, self.queue.name, found)
        if not self.ready or self.rule is not rule:
            return
        # Somebody may have had some meanwhile.
        found = [entry for entry in found if entry.state == READY]
        if lost := [entry.sequence for entry in found if entry.sequence not in records]:
            self.queue.lose(lost)
        found = [entry for entry in found if entry.sequence in records]
        left = self._move(self._matching(found, records) if self._by_record else found, records)
        self._ahead -= BitMap64([entry.sequence for entry in run]) - BitMap64(left)

    def _has_room(self, entry: Entry) -> bool:
        """Whether it may go on with a message; otherwise it waits for room."""
        size_bytes = self.target.size_of(entry)
        if self.target.room([size_bytes]) or self.target.never_fits(size_bytes):
            return True
        self._wait_for_room(size_bytes)
        return False

    def _matching(self, entries: Sequence[Entry], records: Records) -> list[Entry]:
        """Return the messages that it takes; without records if its selector needs none."""
        subjects = [entry.subject for entry in entries]
        senders = [entry.sender for entry in entries]

        def headers(places: Sequence[int]) -> Sequence[Headers]:
            return headers_of([records[entries[place].sequence] for place in places])

        def places_of(feed: Feed) -> list[int]:
            found = feed.compiled.places(subjects, senders, headers)
            self.effects.work -= feed.compiled.pop_spent()
            return found

        found = places_of(self)
        if self.rule.when == "default" and found:
            claimed = {place for other in self.feeds.claiming(self.name.source) for place in places_of(other)}
            found = [place for place in found if place not in claimed]
        matching = [entries[place] for place in found]
        if self.target.keeps_outcomes:
            return matching
        tracked = {*self.queue.settlement.tracked([entry.sequence for entry in matching])}
        return [entry for entry in matching if entry.sequence not in tracked] if tracked else matching

    # Moving

    def _move(self, entries: Sequence[Entry], records: Records) -> list[int]:
        """Move messages as far as there is room. Returns the sequences of the others."""

        def put(first: int, last: int) -> None:
            self._put(entries[first:last], records)

        def miss(place: int) -> None:
            self.skipped += 1
            sequence = entries[place].sequence
            self.feeds.report("gap", self.name, first=sequence, last=sequence, reason="too-large")

        done = self._pass_on([*map(self.target.size_of, entries)], put, miss)
        return [entry.sequence for entry in entries[done:]]

    def _put(self, entries: Sequence[Entry], records: Records) -> None:
        queue, sequences = self.queue, [entry.sequence for entry in entries]
        asked = _take_options(queue, sequences) if self.target.keeps_options else {}
        counted = queue.sent_by.hand_over(entries)
        self._unstored_bytes += size_of(entries)
        self.target.move(entries, records, self.name.source, asked, counted)
        self.effects.stage.when_stored(partial(self._stored, entries, asked, counted))
        queue.limits.flush.note(queue.usage, MOVED, len(sequences))
        queue.settlement.settle(sequences, MOVED, f"moved to {self.target.place}", bound=True)
        self.moved += len(entries)

    def _stored(
        self,
        entries: Sequence[Entry],
        asked: Mapping[int, Options],
        counted: Mapping[int, QuotaUsages],
        error: MalamuteError | None,
    ) -> None:
        """Handle the outcome of its messages: refused ones are at their source again."""
        self._unstored_bytes -= size_of(entries)
        if error is not None:
            _count_again(self.queue, entries, asked, counted)
            if self.open:
                self._retry()
        self.unblock()

    # Where it stands

    def row(self) -> FeedRow:
        """Return its rule, state and progress, for people."""
        lag = len(self._waiting())
        working = "full" if self.full else "replay" if lag else "live"
        return FeedRow(
            **self.rule.shown(self.name, working),
            sequence=None,
            lag=lag,
            taken=self.moved,
            skipped=self.skipped,
            credit=self.target.credit,
        )


def _records_of(entries: Sequence[Entry]) -> Records:
    """The records of messages that are in memory."""
    return {entry.sequence: entry.record for entry in entries if entry.record is not None}


def _take_options(queue: Queue, sequences: Sequence[int]) -> dict[int, Options]:
    """Take the options of messages that go to another queue, which adopts them, out of a queue."""
    asked = {s: o for s in sequences if (o := queue.options.get(s)) is not None} if queue.options else {}
    for sequence, options in asked.items():
        queue.forget_options(queue.entries[sequence])
        # An identity makes a duplicate in this queue only.
        options.identity = ""
    return asked


def _count_again(
    queue: Queue,
    entries: Sequence[Entry],
    asked: Mapping[int, Options],
    counted: Mapping[int, QuotaUsages],
) -> None:
    """Restore options and quotas of messages that another queue has not taken after all."""
    for entry in entries:
        if entry.sequence not in queue.entries:
            continue
        if entry.sequence in asked:
            queue.adopt(entry, asked[entry.sequence])
        if entry.sequence in counted:
            queue.sent_by.add([entry], counted[entry.sequence])
