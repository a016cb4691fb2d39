"""The book of feeds: each matching message of a stream is one request of a service, from the feed's start on.

A feed is known by its service and its stream. Each start that an operator gives it begins a *course*: what
it has made requests of from there on. Over a crash the course goes on where the disk has it. Where it is when
an operator changes its criteria is not promised: what the stream has then is `unsure` if only one of the two
takes it.

A feed whose position the disk has lost rests until an operator deletes it, or sets it with a start: nobody
knows where it was. One whose position is back goes on from there, and makes those requests again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from math import inf
from typing import Any, NamedTuple, TypeGuard

from sim_damage import Damaged
from sim_origin import Author, Origin, Violation, body_of
from sim_puts import PutMessage
from sim_streams import Place, StreamBook
from sim_wants import WANTS, Wants, key_of

from malamute.core.feed.rule import FeedName, FeedRule
from malamute.store.commit import Append
from malamute.store.operations import (
    DeleteStream,
    DeleteValue,
    ForgetStream,
    Operation,
    PutValue,
    Recovered,
    StoredMessage,
)
from malamute.store.tables import CURSORS, FEEDS

PREFIX = "$feed/"

Name = tuple[str, str]
"""A service, which is the name of the feed, and a stream."""
Taken = tuple[int, bytes]
"""A message of a stream: its sequence and its body."""


def called(name: FeedName) -> Name:
    """What the book calls a feed."""
    return name.name, name.source.name


def is_fed(message: StoredMessage) -> bool:
    """Whether a feed has made a queued message."""
    return "source" in (message.properties or {})


def fed_name(queue: str, message: StoredMessage) -> bytes:
    """What names a request that a feed has made: its body is also that of the stream's message."""
    asked = message.properties or {}
    return f"fed {queue} {asked['source']} {asked['sequence']} ".encode() + body_of(message.record)


class Course:
    """What a feed does from one start on."""

    def __init__(self, start: int, head: int) -> None:
        self.start = start
        """The last sequence that is not its business."""
        self.head = head
        """Where the stream ended then."""
        self.position = start
        self.token = 0
        """The append that has what it took last."""
        self.under_way = 0
        """How much of that is not on the disk."""
        self.made: set[Taken] = set()
        self.stored: set[Taken] = set()
        self.unsure: set[Taken] = set()

    def copy(self) -> Course:
        """What the disk has of it."""
        other = Course(self.start, self.head)
        other.stored, other.unsure = set(self.stored), set(self.unsure)
        return other

    def go_back(self, position: int) -> None:
        """It goes on from an earlier position, and makes requests again of what is behind that."""
        self.start, self.position = min(self.start, position), position
        self.made = {taken for taken in self.made if taken[0] <= position}
        self.stored = {taken for taken in self.stored if taken[0] <= position}

    def doubt(self) -> None:
        """It may be anywhere behind its start, and make any of its requests again."""
        self.unsure |= self.stored
        self.made, self.stored = set(), set()
        self.position = self.start


class Feed:
    """A feed as it is in the broker."""

    def __init__(self, wants: Wants, course: Course | None = None) -> None:
        self.wants = wants
        self.course = course


def is_put(operation: Operation, table: str) -> TypeGuard[PutValue]:
    """Whether an operation sets a value of a table."""
    return isinstance(operation, PutValue) and operation.table == table


def name_of(operation: PutValue | DeleteValue) -> Name:
    """The feed that an operation on it or on its cursor is about."""
    return operation.key[1].removeprefix(PREFIX), operation.key[0]


class FeedCopy(NamedTuple):
    """What the book says of a moment of the disk."""

    stored: dict[Name, Wants]
    cursors: dict[Name, tuple[Course, int]]
    disabled: set[Name]


class FeedBook:
    """All feeds."""

    def __init__(self, author: Author, streams: StreamBook, no_journal: str) -> None:
        self.author = author
        self.streams = streams
        self.no_journal = no_journal
        self.feeds: dict[Name, Feed] = {}
        self.requests = 0
        """How many were stored."""
        self._stored: dict[Name, Wants] = {}
        """The feeds on the disk."""
        self._disabled: set[Name] = set()
        """Those of them that rest."""
        self._cursors: dict[Name, tuple[Course, int]] = {}
        """Where the disk has them. It may have refused a feed and taken this, or the other way about."""
        self.lost: set[Name] = set()
        """The feeds whose positions the disk has lost."""
        self._asked: dict[Name, list[tuple[Any, str]]] = {}
        """What operators asked for: the criteria with the condition, and the start."""
        self._wanted: dict[int, tuple[Name, Any]] = {}
        """What an operation means that is not stored yet, by its identity."""
        self._undone: dict[int, tuple[Name, Feed | None]] = {}
        """What a feed is again if the disk refuses an operation, by its identity."""
        self._changed: list[tuple[Name, Wants, Wants]] = []
        """Changes on the disk, which the broker makes when it learns that: the criteria before and after."""
        self._changed_before: list[tuple[Name, Wants, Wants]] = []
        """Those that were there an iteration ago: an answer of the reader may have come before that."""
        self._began: PutValue | None = None
        self._purged: Counter[str] = Counter()
        """How often it drops the history of each stream."""
        self._again: Counter[Name] = Counter()
        """How often it stores each lost feed again."""
        self._found: set[Name] = set()
        """Lost feeds of which the broker knows since a purge where they go on."""
        self._resting: dict[int, Name] = {}
        """The feeds that are stored again and stay lost, by the identity of what does that."""
        self._last: dict[tuple[str, str], int] = {}
        """The last of an append that tells of each cursor, by its identity."""
        self._reserved: dict[str, int] = {}
        """Of each stream, up to where the last broker may have used its sequences."""
        self._incarnation = 0
        """Up to where sequences may have been used before a restore."""
        self._told: dict[Name, set[Taken]] = {}
        """What feeds have told that they cannot have."""
        self._denied: list[tuple[Name, int, Origin]] = []
        """Of that in this iteration, what is there."""

    # What operators and the broker do

    def asked(self, arguments: Mapping[str, Any]) -> None:
        """An operator wants a feed, or another one."""
        name = arguments["feed"], arguments["source"].removeprefix("stream/")
        key = key_of(arguments["criteria"], arguments["where"])
        self._asked.setdefault(name, []).append((key, arguments.get("start", "")))

    def begin(self, append: Append) -> None:
        """The broker wants to store all of this."""
        # A stream that is forgotten as well is deleted: nothing is stored again with it.
        self._purged = Counter(o.stream for o in append.operations if isinstance(o, DeleteStream))
        self._purged -= Counter(o.stream for o in append.operations if isinstance(o, ForgetStream))
        self._again.clear()
        self._last = {o.key: id(o) for o in append.operations if is_put(o, CURSORS)}
        self._doubt_changed()

    def handed_out(self, operation: Operation) -> None:
        """The broker wants to store something, in this order. Requests come by `take`."""
        began, self._began = self._began, None
        if is_put(operation, FEEDS):
            self._put(operation)
        elif isinstance(operation, DeleteValue) and operation.table == FEEDS:
            name = name_of(operation)
            if name not in self.feeds:
                raise Violation("a feed was deleted that is not there", feed=operation)
            self._undone[id(operation)] = name, self.feeds.pop(name)
        elif is_put(operation, CURSORS) and operation.key[1].startswith(PREFIX):
            # Otherwise only whether it rests was changed.
            same = began is not None and name_of(began) == name_of(operation)
            self._put_cursor(operation, began if same else None)

    def _put_cursor(self, operation: PutValue, began: PutValue | None) -> None:
        name = name_of(operation)
        if name not in self.feeds:
            raise Violation("a cursor of a feed that is not there", cursor=operation)
        if began is None and self._last[operation.key] != id(operation):
            # A purge stores where it was; what the disk refused meanwhile comes behind that.
            return
        if began is None and self.feeds[name].course is None:
            # A purge has dropped whatever it may have left. It rests until it is set or the next start.
            self._wanted[id(operation)] = name, Course(operation.value, self._head(name))
            return
        if began is not None and self._begins(name, operation.value):
            self._begin(name, operation.value)
        else:
            self._advance(name, operation.value)
            if began is not None and self._has_start(name):
                # It may have begun anew where it was: what goes before it has had that is not told.
                self._course(name).head = self._head(name)
        self._wanted[id(operation)] = name, self.feeds[name].course

    def _put(self, put: PutValue) -> None:
        name = name_of(put)
        rule = FeedRule.parse(name[0], put.value)
        key = key_of(rule.criteria, rule.where)
        again = self._again[name] < self._purged[name[1]]
        if again and name in self.lost and self.feeds[name].wants is WANTS[key]:
            # It is stored again with its stream, by each purge, whoever asked for it before it was lost. What
            # comes behind that is an operator's, who sets the same once more.
            self._again[name] += 1
            self._wanted[id(put)] = name, WANTS[key]
            self._resting[id(put)] = name
            return
        if name[1] == self.no_journal or key not in [asked for asked, _ in self._asked.get(name, ())]:
            raise Violation("a feed that nobody asked for", feed=name, criteria=key)
        wants = WANTS[key]
        before = self.feeds.get(name)
        self._undone[id(put)] = name, before and Feed(before.wants, before.course)
        if name not in self.feeds:
            self.feeds[name] = Feed(wants)
        else:
            self._change(name, self.feeds[name], wants)
        self._wanted[id(put)] = name, wants
        self._began = put

    def _begins(self, name: Name, position: int) -> bool:
        """Whether a feed that was made or changed begins anew. One without a start goes on where it is."""
        course = self.feeds[name].course
        return course is None or (position != course.position and self._has_start(name))

    def _has_start(self, name: Name) -> bool:
        """Whether any operator gave it a start."""
        return any(start for _, start in self._asked[name])

    def _change(self, name: Name, feed: Feed, wants: Wants) -> None:
        """Of what the stream has now, the old criteria may hold or the new ones: who knows how far it was."""
        self._doubt(name, feed.course, feed.wants, wants)
        feed.wants = wants

    def _doubt(self, name: Name, course: Course | None, *wants: Wants) -> None:
        """Nobody knows which of these criteria hold of what the stream has now."""
        if course is not None:
            course.unsure |= {
                (sequence, place.origin.body)
                for sequence, place in self._places(name, course.start)
                if len({each(place.origin) for each in wants}) > 1
            }

    def _places(self, name: Name, after: int, last: float = inf) -> list[tuple[int, Place]]:
        """The messages of a stream behind a sequence, up to another."""
        order, places = self.streams.order.get(name[1], []), self.streams.places.get(name[1], {})
        return [(s, places[s]) for s in order[bisect_right(order, after) : bisect_right(order, last)]]

    def _begin(self, name: Name, position: int) -> None:
        feed, head = self.feeds[name], self._head(name)
        if name in self.lost and name not in self._found and not self._has_start(name):
            raise Violation("a feed whose position is lost begins anywhere", feed=name, position=position)
        if position > head:
            raise Violation("a feed begins beyond the head", feed=name, position=position, head=head)
        feed.course = Course(position, head)

    def _head(self, name: Name) -> int:
        """The sequence behind which a stream goes on."""
        reserved = self._reserved.get(name[1], 0)
        return max(self.streams.last(name[1]), reserved, self.streams.floor, self._incarnation)

    def _advance(self, name: Name, sequence: int) -> None:
        """A feed has had all up to a sequence."""
        course = self._course(name)
        if sequence < course.position:
            raise Violation("a feed went back", feed=name, position=course.position, to=sequence)
        self._check_passed(name, sequence)
        course.position = sequence

    def _course(self, name: Name) -> Course:
        course = self.feeds[name].course
        assert course is not None
        return course

    def _check_passed(self, name: Name, last: int) -> None:
        """Of what lies up to a sequence all was taken that was to be taken."""
        left = self._left(name, self._course(name).position, last)
        if left:
            raise Violation("a feed passed over a message", feed=name, left=left, to=last)

    def _left(self, name: Name, after: int, last: float = inf) -> list[int]:
        feed, course, told = self.feeds[name], self._course(name), self._told.get(name, ())
        left = []
        for sequence, place in self._places(name, after, last):
            taken = sequence, place.origin.body
            done = taken in course.made or taken in told or taken in course.unsure
            # Whoever begins with what is there is not told of what had gone before.
            quiet = sequence <= course.head and not self.streams.is_there(name[1], sequence)
            if place.stored and feed.wants(place.origin) and not done and not quiet:
                left.append(sequence)
        return left

    def take(self, put: PutMessage, token: int) -> None:
        """A feed makes a request, in the append with this token."""
        asked = put.message.properties or {}
        name, sequence = (put.queue, asked["source"].removeprefix("stream/")), asked["sequence"]
        feed = self.feeds.get(name)
        if feed is None or feed.course is None:
            raise Violation("a request of a feed that is not there", feed=name, sequence=sequence)
        course, place = feed.course, self.streams.places.get(name[1], {}).get(sequence)
        origin = self.author.origin(put.message.record)
        if place is None or place.origin is not origin:
            raise Violation("a request of what the stream does not hold", feed=name, sequence=sequence)
        if not place.stored:
            raise Violation("a request of what is not on the disk", feed=name, sequence=sequence)
        taken = sequence, origin.body
        if taken in course.made:
            raise Violation("a message became a request twice", feed=name, sequence=sequence)
        if sequence <= course.position:
            raise Violation("a feed went back", feed=name, position=course.position, to=sequence)
        if not feed.wants(origin) and taken not in course.unsure:
            raise Violation("a request that a feed was not to make", feed=name, sequence=sequence)
        subject = put.message.subject
        if asked.get("key", "") not in ("", subject, subject.partition(".")[0]):
            raise Violation("a feed has made another key", feed=name, key=asked["key"], subject=subject)
        if name in self._disabled:
            raise Violation("a feed that is disabled takes a message", feed=name, sequence=sequence)
        if course.under_way and course.token != token:
            raise Violation("a feed went on before its requests were stored", feed=name, sequence=sequence)
        self._check_passed(name, sequence - 1)
        course.made.add(taken)
        course.position = sequence
        course.token = token
        course.under_way += 1
        self._wanted[id(put)] = name, (course, taken)

    def missed(self, service: str, stream: str, first: int, last: int) -> None:
        """The broker tells that a feed could not have something. It may be one that is about to be stored."""
        name = service, stream
        for sequence, place in self._places(name, first - 1, last):
            self._told.setdefault(name, set()).add((sequence, place.origin.body))
            if self.streams.is_there(stream, sequence):
                self._denied.append((name, sequence, place.origin))

    def iterated(self) -> None:
        """An iteration is over."""
        for name, sequence, origin in self._denied:
            if self.feeds[name].wants(origin) and sequence > self._course(name).start:
                raise Violation("a feed left out what is there", feed=name, sequence=sequence)
        self._denied.clear()
        self._doubt_changed()
        self._changed_before, self._changed = self._changed, []

    def _doubt_changed(self) -> None:
        """What came while a change was on its way may be looked at with the old criteria or the new ones."""
        for name, before, after in [*self._changed_before, *self._changed]:
            if name in self.feeds:
                self._doubt(name, self.feeds[name].course, before, after)

    # What the disk does

    def committed(self, operation: Operation) -> None:
        """It is on the disk."""
        _, before = self._undone.pop(id(operation), (None, None))
        if isinstance(operation, DeleteValue) and operation.table == FEEDS:
            self._stored.pop(name_of(operation), None)
            self._disabled.discard(name_of(operation))
            self.lost.discard(name_of(operation))
            return
        if isinstance(operation, DeleteStream):
            self._stored = {
                name: wants for name, wants in self._stored.items() if name[1] != operation.stream
            }
            self._cursors = {name: at for name, at in self._cursors.items() if name[1] != operation.stream}
            kept = {*self._resting.values()}
            gone = {name for name in self.lost - kept if name[1] == operation.stream}
            self.lost -= gone
            self._found -= gone
            # One that was set meanwhile is another one.
            self.feeds = {
                n: feed for n, feed in self.feeds.items() if n not in gone or feed.course is not None
            }
            return
        if isinstance(operation, DeleteValue) and operation.table == CURSORS:
            if operation.key[1].startswith(PREFIX):
                self._cursors.pop(name_of(operation), None)
            return
        name, meant = self._wanted.pop(id(operation), (None, None))
        if name is None:
            return
        self._take_stored(operation, name, meant, before)

    def _take_stored(self, operation: Operation, name: Name, meant: Any, before: Feed | None) -> None:
        if is_put(operation, FEEDS):
            self._stored[name] = meant
            self._disabled.discard(name)
            if not FeedRule.parse(name[0], operation.value).enabled:
                self._disabled.add(name)
            self._resting.pop(id(operation), None)
            if before is not None:
                self._changed.append((name, before.wants, meant))
        elif isinstance(operation, PutMessage):
            course, taken = meant
            course.under_way -= 1
            course.stored.add(taken)
            self.requests += 1
        elif is_put(operation, CURSORS):
            self._cursors[name] = meant, operation.value
            if name in self.feeds and self.feeds[name].course is not None:
                self.lost.discard(name)
            else:
                self._found.add(name)

    def failed(self, append: Append) -> None:
        """It could not be stored: the feed is where it was."""
        for operation in append.operations:
            self._resting.pop(id(operation), None)
            _, meant = self._wanted.pop(id(operation), (None, None))
            undone, before = self._undone.pop(id(operation), (None, None))
            if undone is not None and before is None:
                del self.feeds[undone]
            elif undone is not None and before is not None:
                # It has rested meanwhile: it goes on as if nothing had been asked.
                self.feeds[undone] = before
            if isinstance(operation, PutMessage) and meant is not None:
                course, taken = meant
                course.under_way -= 1
                course.made.discard(taken)
                course.position = min(course.position, taken[0] - 1)
            elif is_put(operation, CURSORS) and meant is not None:
                self._go_back(meant, operation)

    def _go_back(self, course: Course, refused: PutValue) -> None:
        """It has looked as far as the disk has it, if that was refused and nothing came behind it."""
        name = name_of(refused)
        stored, position = self._cursors.get(name, (course, course.start))
        if course.position == refused.value and stored is course:
            course.position = min(course.position, position)

    def died(self) -> None:
        """The broker is killed: the feeds are those on the disk, and where they are there."""
        self._wanted.clear()
        self._resting.clear()
        self._found.clear()
        self._undone.clear()
        self._denied.clear()
        self._changed.clear()
        self._changed_before.clear()
        self._began = None
        lost, self.feeds = self.feeds, {}
        for name, wants in self._stored.items():
            feed = self.feeds[name] = Feed(wants)
            if name not in self._cursors:
                continue
            course, position = self._cursors[name]
            feed.course = course
            course.under_way = 0
            course.made = set(course.stored)
            course.position = position
            if name in lost:
                feed.wants = lost[name].wants
                self._change(name, feed, wants)
            beyond = [sequence for sequence, _ in course.stored if sequence > position]
            if beyond:
                raise Violation(
                    "a request was stored without the position of its feed", feed=name, beyond=beyond
                )

    def damaged(self, found: Damaged) -> None:
        """The next broker finds positions damaged on the disk. None is there."""
        for stream, cursor in found.lost:
            if cursor.startswith(PREFIX):
                name = cursor.removeprefix(PREFIX), stream
                self._cursors.pop(name, None)
                self.feeds[name].course = None
        for (stream, cursor), position in found.back.items():
            name = cursor.removeprefix(PREFIX), stream
            if cursor.startswith(PREFIX):
                course, last = self._cursors[name]
                self._cursors[name] = course, position
                if position <= last:
                    course.go_back(position)

    def copy(self) -> FeedCopy:
        """What is on the disk now."""
        cursors = {name: (course.copy(), at) for name, (course, at) in self._cursors.items()}
        return FeedCopy(dict(self._stored), cursors, set(self._disabled))

    def restored(self, before: FeedCopy) -> None:
        """A copy of the store takes its place, with no broker there. Feeds go on from where they were."""
        self._stored = dict(before.stored)
        self._disabled = set(before.disabled)
        self._cursors = {name: (course.copy(), at) for name, (course, at) in before.cursors.items()}
        self.feeds = {}

    def stranded(self, cursors: Sequence[tuple[str, str]]) -> None:
        """The disk has lost cursors while a broker runs. What it does not store again is lost later."""
        for stream, cursor in cursors:
            self._cursors.pop((cursor.removeprefix(PREFIX), stream), None)

    def started(self, recovered: Recovered) -> None:
        """A broker starts on what the disk holds. A stream may have gone back: see `StreamBook.started`."""
        cursors = recovered.table(CURSORS)
        found = {(f, s): cursors.get((s, PREFIX + f)) for s, f in recovered.table(FEEDS)}
        if found != {name: self._cursors.get(name, (None, None))[1] for name in self._stored}:
            raise Violation("a feed was lost", found=found)
        lost = {(c.removeprefix(PREFIX), s) for s, c in recovered.lost_keys(CURSORS) if c.startswith(PREFIX)}
        for name in lost - self.lost:
            # What it takes is known, and no more where it was to begin.
            self._asked[name] = [(asked, "") for asked, _ in self._asked.get(name, ())]
        self.lost = lost
        self._incarnation = recovered.incarnation
        self._reserved = {name: state.reserved for name, state in recovered.streams.items()}
        for name, feed in self.feeds.items():
            if name in self.lost:
                continue
            head = self._head(name)
            course = feed.course = feed.course or Course(head, head)
            course.start, course.head = min(course.start, head), min(course.head, head)
            course.position = min(course.position, head)
            if (CURSORS, (name[1], PREFIX + name[0])) in recovered.doubtful:
                course.doubt()

    @property
    def running(self) -> Set[Name]:
        """Those of which it is known where they are."""
        return self.feeds.keys() - self.lost

    def check_done(self, without_room: Collection[Name]) -> None:
        """At the end each message has become a request, of each feed that takes it and has room."""
        for name in self.running - set(without_room) - self._disabled:
            left = self._left(name, self._course(name).start)
            if left:
                raise Violation("messages never became requests", feed=name, left=left)
