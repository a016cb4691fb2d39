"""The book of streams: what each sequence holds, what is on the disk, and what every reader is owed.

What the broker hands to the disk tells which message has which sequence. A stream without a journal is
known by the deliveries to the auditor, a peer of the simulation's own that takes everything. A reader is owed
every message behind its position that it asked for, until it has it or a GAP reports it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from sys import maxsize
from typing import Any

from sim_clock import TimeBook, Wall
from sim_mail import MOMENT
from sim_origin import Author, Origin, Violation
from sim_wants import Wants

from malamute.client.session.sources import StreamSource
from malamute.core.broker import Core
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import Columns, unpack_payload
from malamute.protocol.messages import (
    ANOTHER_STORE,
    EXPIRED,
    OVERWRITTEN,
    RESTART,
    RESTORED,
    TAKEN_BACK,
    Deliver,
    Gap,
    Message,
)
from malamute.protocol.position import StorePosition
from malamute.store.operations import FLOOR, AppendChunk, Chunk, Recovered, Reserve
from malamute.store.policies import StreamRetention

AGEING_SECONDS = 12.0
"""How much later than needed what is too old leaves at the most: after a refusal of the disk."""


class Place:
    """One message of a stream. It is `alive` as long as it waits for the disk or is on it.

    `life` is that of the broker that gave it its sequence. It came at `born`, in seconds as the broker counts
    them, with `ttl` seconds to live; 0 is for ever. It `had_expired` if an earlier broker took it for
    that: the next one may not, where the clock was set back.
    """

    __slots__ = ("alive", "born", "had_expired", "life", "origin", "stored", "time_ns", "ttl")

    def __init__(self, origin: Origin, life: int, born: float, time_ns: int, ttl: int) -> None:
        self.origin = origin
        self.life = life
        self.born = born
        self.time_ns = time_ns
        self.ttl = ttl / 1000
        self.stored = False
        self.alive = True
        self.had_expired = False


class StreamBook:
    """What every stream holds, by sequence."""

    def __init__(self, author: Author, store: MemoryStore, no_journal: str, wall: Wall) -> None:
        self.author = author
        self.wall = wall
        self.store = store
        self.no_journal = no_journal
        self.places: dict[str, dict[int, Place]] = {}
        self.order: dict[str, list[int]] = {}
        self.ever_stored: set[bytes] = set()
        self.damaged: set[tuple[str, int]] = set()
        self.is_copy = False
        """Whether the store is the copy of an older one."""
        self.heads: dict[tuple[bytes, int], int] = {}
        """Where a stream ended when a subscription was last answered."""
        self.jumps: dict[str, float] = {}
        """How many seconds later than its time a chunk was committed, or a broker started. How much of that
        has passed is unknown, so the times of the stream pass at twice the pace until they are here."""
        self.forgetting: dict[str, int] = {}
        """Where streams ended when their deletion began: behind that the broker believes nothing reserved."""
        self.unsent: dict[str, set[int]] = {}
        """What the disk would not reserve: nobody learns of it before there is more."""
        self.times = TimeBook()
        self._reserved_at_start: dict[str, int] = {}
        self.incarnations: Sequence[int] = ()
        """Where the broker began anew after a restore."""
        self.began = wall.now
        """When the broker started, as it counts."""
        self.life = 0
        """How often the broker was killed."""
        self.reserved: dict[str, int] = {}
        """The reserved sequence of each stream when the broker started."""
        self.floor = 0
        """Behind it every stream begins that is new."""
        self.counts: dict[str, int] = {}
        """The fewest messages that an operator ever let a stream keep."""
        self.ages: dict[str, float] = {}
        """For how many seconds an operator lets a stream keep what it has; 0 is for ever."""
        self.unseen: set[int] = set()
        """What had expired of the stream without a journal before the auditor could be given it."""
        self._dropped: dict[str, int] = {}
        """Up to where an operator has dropped the history of a stream."""
        self._found: dict[bytes, tuple[str, int]] = {}
        self._numbers: dict[tuple[bytes, str], int] = {}
        self._waiting: dict[tuple[str, int], Sequence[int]] = {}
        self._told: dict[str, int] = {}
        self._were_expired: set[Place] = set()
        """Until time was given back in this iteration, in which that may have been reported to a reader."""

    # What the broker does

    def assign(self, stream: str, columns: Columns) -> None:
        """Messages have got their sequences."""
        places, order = self.places.setdefault(stream, {}), self.order.setdefault(stream, [])
        rows = zip(
            columns.each_sequence(),
            columns.subjects,
            columns.records,
            columns.each_sender(),
            columns.each_time(),
            columns.each_ttl(),
            strict=False,
        )
        for sequence, subject, record, sender, time_ns, ttl in rows:
            if order and sequence <= order[-1]:
                raise Violation("a sequence was used again", stream=stream, sequence=sequence, last=order[-1])
            origin = self.author.origin(record, stream, subject)
            self._check_origin(origin, stream, sequence, subject, sender)
            self._found[origin.body] = (stream, sequence)
            places[sequence] = Place(origin, self.life, self.wall.now, time_ns, ttl)
            order.append(sequence)

    def _check_origin(self, origin: Origin, stream: str, sequence: int, subject: str, sender: str) -> None:
        order = origin.order
        if (order.kind, order.target, origin.subject, origin.sender) != ("publish", stream, subject, sender):
            raise Violation("a stream holds what was not published to it", stream=stream, body=origin.body)
        if origin.body in self._found and not order.twice:
            raise Violation("a message came into a stream twice", body=origin.body, sequence=sequence)
        if origin.place and self._found.get(order.bodies[origin.place - 1]) != (stream, sequence - 1):
            raise Violation("a batch was torn apart", body=origin.body, sequence=sequence)
        if order.numbered and not order.twice and order.command is not None:
            key = (order.peer, stream)
            if order.command.number < self._numbers.get(key, 0):
                raise Violation("commands overtook each other", body=origin.body)
            self._numbers[key] = order.command.number

    def handed_out(self, append: AppendChunk) -> None:
        """The broker wants to store a chunk."""
        columns = unpack_payload(append.chunk.payload, append.chunk.large)
        self.assign(append.stream, columns)
        self._waiting[append.stream, append.chunk.first] = columns.each_sequence()

    def committed(self, append: AppendChunk) -> None:
        """A chunk is on the disk."""
        self.unsent.pop(append.stream, None)
        late = self.wall.now - append.chunk.time_ns / 1e9
        self.jumps[append.stream] = max(late, self.jumps.get(append.stream, 0.0))
        if append.chunk.first > self.forgetting.get(append.stream, 0):
            # What was on its way when the deletion began reserves nothing ahead.
            self.forgetting.pop(append.stream, None)
        self.times.committed(append)
        for sequence in self._waiting.pop((append.stream, append.chunk.first)):
            place = self.places[append.stream][sequence]
            place.stored = True
            self.ever_stored.add(place.origin.body)
            if place.origin.order.outcome is False and not place.origin.order.twice:
                raise Violation("a message was refused and then stored", body=place.origin.body)

    def failed(self, operation: AppendChunk | Reserve) -> None:
        """It could not be stored."""
        if isinstance(operation, AppendChunk):
            sequences = self._waiting.pop((operation.stream, operation.chunk.first))
            self._lose(operation.stream, sequences)
            state = self.store.status().streams.get(operation.stream)
            is_reserved = state is not None and operation.stream not in self.forgetting
            if not is_reserved or sequences[-1] > state.reserved:
                self.unsent.setdefault(operation.stream, set()).update(sequences)

    def begin_to_forget(self, stream: str) -> None:
        """The broker wants to delete a stream."""
        self.forgetting[stream] = self.last(stream)

    def purged(self, stream: str) -> None:
        """The history of a stream is gone from the disk."""
        stored = [sequence for sequence, place in self.places.get(stream, {}).items() if place.stored]
        self._dropped[stream] = max(stored, default=0)
        self.ages.pop(stream, None)

    def retained(self, stream: str, retention: StreamRetention) -> None:
        """A stream keeps as much as this."""
        self.ages[stream] = retention.age_seconds
        if retention.messages_max:
            self.counts[stream] = min(retention.messages_max, self.counts.get(stream, maxsize))

    def _lose(self, stream: str, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            place = self.places[stream][sequence]
            place.alive = False
            self._found.pop(place.origin.body, None)

    def died(self) -> None:
        """What was not committed is gone."""
        self.life += 1
        self.unsent.clear()
        self.forgetting.clear()
        self.unseen.clear()
        for places in self.places.values():
            for place in places.values():
                place.had_expired |= self.has_expired(place, MOMENT)
        for (stream, _), sequences in self._waiting.items():
            self._lose(stream, sequences)
        self._waiting.clear()
        self._lose(self.no_journal, self.order.get(self.no_journal, ()))
        self._numbers.clear()

    def started(self, recovered: Recovered) -> None:
        """A broker goes on behind what was reserved: nobody knows of anything behind that."""
        self.incarnations = recovered.incarnations
        for places in self.places.values():
            for place in places.values():
                # There is nothing to count by: the wall clock is believed.
                place.born = min(place.time_ns / 1e9, self.wall.now)
        self.began = self.wall.now
        self.jumps = {
            name: max(0.0, self.began - state.last_time / 1e9)
            for name, state in self.store.status().streams.items()
            if state.count
        }
        self._reserved_at_start = {
            name: max(state.reserved, recovered.incarnation) for name, state in recovered.streams.items()
        }
        self.floor = recovered.streams[FLOOR].reserved if FLOOR in recovered.streams else 0
        for stream, order in self.order.items():
            state = recovered.streams.get(stream)
            reserved = max(state.reserved if state else self.floor, recovered.incarnation)
            self.reserved[stream] = reserved
            told = self._told.get(stream, 0)
            if reserved < told:
                raise Violation("a sequence may be used again", stream=stream, told=told, reserved=reserved)
            if reserved < self.last(stream):
                for sequence in order[bisect_right(order, reserved) :]:
                    del self.places[stream][sequence]
                del order[bisect_right(order, reserved) :]

    def restored(
        self, store: MemoryStore, stored: Mapping[str, set[int]], damaged: set[tuple[str, int]]
    ) -> None:
        """A copy of the store takes its place: what is not `stored` there is gone."""
        self.store, self.damaged, self.is_copy = store, damaged, True
        for stream, places in self.places.items():
            kept = stored.get(stream, set())
            gone = {s for s, place in places.items() if place.stored and s not in kept}
            self._lose(stream, sorted(gone))
            self.times.forget(stream, gone)
            for sequence in gone:
                places[sequence].stored = False
                self.ever_stored.discard(places[sequence].origin.body)

    def give_time_back(self, seconds: float) -> None:
        """The clock was wrong when the broker started: what was there before came later."""
        for places in self.places.values():
            for place in places.values():
                if place.life < self.life:
                    if self.has_expired(place, MOMENT):
                        self._were_expired.add(place)
                    place.born = min(place.time_ns / 1e9 + seconds, self.began)

    def sent(self) -> None:
        """All was sent that the broker had decided until now, by the clock of before, too."""
        self._were_expired.clear()

    def told(self, stream: str, sequence: int) -> None:
        """Somebody knows a sequence: it may not be used again."""
        self._told[stream] = max(sequence, self._told.get(stream, 0))

    # What may be asked

    def has(self, body: bytes) -> bool:
        """Whether a message has ever had a sequence."""
        return body in self._found

    def owed(self, stream: str, wants: Wants, first: int, last: int) -> list[int]:
        """The sequences from `first` to `last` that somebody with these wishes is to have, or told of."""
        order = self.order.get(stream, [])
        places = self.places.get(stream, {})
        found = order[bisect_left(order, first) : bisect_right(order, last)]
        return [sequence for sequence in found if wants(places[sequence].origin)]

    def last(self, stream: str) -> int:
        """The last sequence that was ever used."""
        order = self.order.get(stream)
        return order[-1] if order else 0

    def first_kept(self, stream: str) -> int:
        """The first sequence that the ring has not dropped."""
        state = self.store.status().streams.get(stream)
        return max(state.first if state else 1, self._dropped.get(stream, 0) + 1)

    def is_there(self, stream: str, sequence: int) -> bool:
        """Whether a message is available: it is in the ring, or waits for the disk."""
        place = self.places[stream][sequence]
        if self.has_expired(place, MOMENT):
            return False
        kept = not place.stored or sequence >= self.first_kept(stream)
        return stream != self.no_journal and place.alive and kept and (stream, sequence) not in self.damaged

    def has_any(self, stream: str) -> bool:
        """Whether there is any message of a stream."""
        return any(self.is_there(stream, sequence) for sequence in self.order.get(stream, ()))

    def was_there(self, stream: str, sequence: int) -> bool:
        """Whether a message is available, and was when an earlier broker sent what comes only now."""
        return self.is_there(stream, sequence) and not self._had_expired(self.places[stream][sequence])

    def _had_expired(self, place: Place) -> bool:
        return place.had_expired or place in self._were_expired

    def has_expired(self, place: Place, late: float) -> bool:
        """Whether a message is unavailable, `late` seconds after now."""
        return 0 < place.ttl <= self.wall.now + late - place.born

    def check_fresh(self, stream: str, sequences: Sequence[int]) -> None:
        """What is sent has not expired."""
        places = self.places.get(stream, {})
        expired = [s for s in sequences if s in places and self.has_expired(places[s], -MOMENT)]
        if expired:
            raise Violation("a message came that has expired", stream=stream, sequences=expired)

    def check_committed(self, stream: str, sequences: Sequence[int]) -> None:
        """What goes to somebody who wants only what is on the disk is on the disk."""
        unstored = [s for s in sequences if not self.places[stream][s].stored]
        if unstored and stream != self.no_journal:
            raise Violation("a message came before it was committed", stream=stream, sequences=unstored)

    def _begun_behind(self, stream: str) -> int:
        """The last sequence that was reserved in a stream when the broker started."""
        return self._reserved_at_start.get(stream, max(self.floor, *self.incarnations, 0))

    def check_gap(self, stream: str, wants: Wants, gap: Gap, resume: str) -> None:
        """A gap reports what is unavailable, and nothing else."""
        begun = [number for number in self.incarnations if gap.first <= number <= gap.last]
        position = StorePosition.parse(resume)
        is_here = position is None or position.sequence <= self._begun_behind(stream)
        if gap.reason == ANOTHER_STORE and is_here:
            # A broker goes on with its store or with a copy: a position is one in it, if that was reserved.
            raise Violation("a position of this store was taken for one of another", stream=stream, gap=gap)
        if gap.reason == ANOTHER_STORE:
            # Its range is all that there is before the new beginning.
            return
        if begun and gap.reason in (OVERWRITTEN, RESTART):
            raise Violation("a restore was reported as if nothing was lost", stream=stream, gap=gap)
        for sequence in self.owed(stream, wants, gap.first, gap.last):
            if self.was_there(stream, sequence):
                raise Violation("a gap was sent for what is there", stream=stream, sequence=sequence, gap=gap)
            place = self.places[stream][sequence]
            if gap.reason == EXPIRED and not (self._had_expired(place) or self.has_expired(place, MOMENT)):
                raise Violation("a gap has another reason than it says", stream=stream, gap=gap)

    def check_aged(self, age_seconds: float) -> None:
        """All that is too old has left, of streams at rest, too."""
        for stream, state in self.store.status().streams.items():
            oldest = self.wall.now - state.first_time / 1e9
            age = self.ages.get(stream, age_seconds)
            late = AGEING_SECONDS + self.jumps.get(stream, 0.0)
            if age and state.count and stream in self.places and oldest > age + late:
                raise Violation("a stream at rest did not age", stream=stream, oldest=oldest)

    def check_store(self, kept_messages: int, *, ages: bool) -> None:
        """What the ring holds is what was committed: all of it, but the oldest when there is too much.

        Where it `ages` within a run, how much has left is for the tests of the ring to say.
        """
        for stream, places in self.places.items():
            if stream == self.no_journal:
                continue
            found = read_all(self.store, stream)
            first = self.first_kept(stream)
            stored = {
                s: p.origin.body for s, p in places.items() if p.stored and (stream, s) not in self.damaged
            }
            kept = {sequence: body for sequence, body in stored.items() if sequence >= first}
            if {s: self.author.origin(r, stream, subject).body for s, (subject, r) in found.items()} != kept:
                raise Violation("the ring does not hold what was committed", stream=stream)
            stored = {s: body for s, body in stored.items() if s > self._dropped.get(stream, 0)}
            most = min(kept_messages, self.counts.get(stream, maxsize))
            if (
                not ages
                and len(kept) < len(stored)
                and len(kept) + len(self.damaged) < min(most - 40, len(stored))
            ):
                raise Violation("the ring dropped too much", stream=stream, kept=len(kept))


def check_counts(core: Core, store: MemoryStore, damaged: set[tuple[str, int]]) -> None:
    """What lag is counted by is what is there, whatever was left out, refused or dropped."""
    for name, stream in core.streams.by_name.items():
        if not stream.journaled or name in {one for one, _ in damaged}:
            continue
        there = sorted(read_all(store, name))
        for place in {0, len(there) // 3, len(there) - 1, len(there)} if there else {0}:
            after = there[place - 1] if place > 0 else 0
            counted = stream.numbering.messages(after)
            if counted != len(there) - max(place, 0):
                raise Violation(
                    "messages are counted that are not there",
                    stream=name,
                    after=after,
                    counted=counted,
                    there=len(there) - max(place, 0),
                )


def read_all(store: MemoryStore, stream: str) -> dict[int, tuple[str, Any]]:
    messages: dict[int, tuple[str, Any]] = {}
    start = 1
    while found := store.read(stream, start, bytes_max=1 << 20).found:
        for chunk in found:
            if isinstance(chunk, Chunk):
                columns = unpack_payload(chunk.payload, chunk.large)
                rows = zip(columns.each_sequence(), columns.subjects, columns.records, strict=True)
                messages.update((sequence, (subject, record)) for sequence, subject, record in rows)
        start = found[-1].last + 1
    return messages


class Reader:
    """A subscription as its client sees it: what came and what was reported, against what is owed."""

    def __init__(self, book: StreamBook, source: StreamSource, wants: Wants, start: str, peer: bytes) -> None:
        self.book = book
        self.source = source
        self.wants = wants
        self.peer = peer
        self.position: int | None = source.last
        self.quiet = not start.startswith(("seq", "new"))
        self.scattered = start == "last-per-subject"
        self.head = 0
        self.arrived: deque[int] = deque()
        self.highest = 0
        """The highest sequence of those that ever arrived."""
        self.had: set[int] = set()
        """All that ever arrived, but what was reported as taken back."""
        self._told: list[tuple[int, int]] = []
        """The gaps that were reported, since the position went back the last time."""
        self._began = False
        self._last, self._waiting, self._gaps = source.last, 0, 0

    def look(self, message: Message) -> None:
        """The session has taken a message in: see what it made of it."""
        source = self.source
        if source.waiting > self._waiting:
            assert isinstance(message, Deliver)
            self._messages(unpack_payload(message.payload, message.large))
        elif source.gaps > self._gaps:
            assert isinstance(message, Gap)
            self._gap(message)
        elif source.last != self._last:
            self._opened()
        self._note()

    def _note(self) -> None:
        self._last, self._waiting, self._gaps = self.source.last, self.source.waiting, self.source.gaps

    def _opened(self) -> None:
        last = self.source.last
        assert last is not None
        # Where nobody knows of anything, sequences are used again; and so is a position there.
        if self._began and self.position is not None and last < min(self.position, self.highest):
            raise Violation("a subscription went back", stream=self.source.stream, to=last, frm=self.position)
        if not self._began:
            self.head = self.book.heads.get((self.peer, self.source.number), 0)
        if self.position is not None and not self.quiet:
            # Nothing ever was there, for it has had nothing yet.
            self._check_left_out(self.position + 1, last)
        if self.position is not None and last < self.position:
            self._told.clear()
        self.position = last

    def _check_left_out(self, first: int, last: int) -> None:
        """Nobody is sent on without a word past what he is owed."""
        if missing := self.book.owed(self.source.stream, self.wants, first, last):
            raise Violation(
                "a subscription passed over messages", stream=self.source.stream, missing=missing, to=last
            )

    def _messages(self, columns: Columns) -> None:
        assert self.position is not None
        sequences = list(columns.each_sequence())
        places = self.book.places.get(self.source.stream, {})
        rows = zip(sequences, columns.subjects, columns.records, columns.each_sender(), strict=False)
        for sequence, subject, record, sender in rows:
            place = places.get(sequence)
            origin = self.book.author.origin(record, self.source.stream, subject)
            if place is None or place.origin is not origin:
                raise Violation(
                    "a delivery is not what the stream holds", sequence=sequence, body=origin.body
                )
            if (origin.subject, origin.sender) != (subject, sender):
                raise Violation("a delivery was changed on its way", sequence=sequence, body=origin.body)
        self._check_owed(sequences)
        if 0 <= self.source.window.messages < self.source.waiting:
            raise Violation("a window holds more than its size", waiting=self.source.waiting)
        self._arrive(sequences)
        self._move(sequences[-1])

    def _arrive(self, sequences: list[int]) -> None:
        self.arrived += sequences
        self.had.update(sequences)
        self.highest = max(self.highest, sequences[-1])

    def _check_owed(self, sequences: list[int]) -> None:
        assert self.position is not None
        if sequences[0] <= self.position:
            raise Violation("a message came twice", stream=self.source.stream, sequence=sequences[0])
        owed = self._owed(sequences[-1], sequences[0], set(sequences))
        if owed != sequences:
            missing = sorted(set(owed) - set(sequences))
            rule = (
                "messages are missing without a word" if missing else "a message came that was not asked for"
            )
            raise Violation(rule, stream=self.source.stream, owed=owed, came=sequences)

    def _owed(self, last: int, first_came: int, came: set[int]) -> list[int]:
        assert self.position is not None
        stream = self.source.stream
        owed = self.book.owed(stream, self.wants, self.position + 1, last)
        if self.scattered:
            return [s for s in owed if s in came or s >= self.head]
        if self.quiet and owed and owed[0] < first_came:
            # Whoever begins with what is there is not told of what had gone before.
            # What a copy of the store has brought back was not there then.
            owed = [s for s in owed if s >= first_came or self._was_there(stream, s)]
        return owed

    def _was_there(self, stream: str, sequence: int) -> bool:
        return not self.book.is_copy and self.book.was_there(stream, sequence)

    def _gap(self, gap: Gap) -> None:
        assert self.position is not None
        if gap.reason == ANOTHER_STORE:
            if (gap.first, gap.last) != (1, self.position) or self.had:
                raise Violation("a subscription began anew elsewhere", gap=gap, position=self.position)
            return
        known = any(first <= gap.first and gap.last <= last for first, last in self._told)
        if known or gap.first > gap.last:
            raise Violation("a gap was sent twice, or of nothing", gap=gap, position=self.position)
        self._told.append((gap.first, gap.last))
        if gap.last <= self.position:
            gone = {sequence for sequence in self.had if gap.first <= sequence <= gap.last}
            if gone and gap.reason not in (TAKEN_BACK, RESTORED):
                raise Violation("a gap is of what came", gap=gap, came=sorted(gone))
            self.had -= gone
            return
        missing = [s for s in self._owed(gap.first - 1, gap.first, set()) if s < gap.first]
        if missing:
            raise Violation("a gap does not reach what is missing", gap=gap, missing=missing)
        self._move(gap.last)

    def _move(self, position: int) -> None:
        self.position = position
        self.quiet = False
        self._began = True

    def taken(self, sequences: Sequence[int]) -> None:
        """The program takes messages out of its window, in the order in which they arrived."""
        for sequence in sequences:
            if not self.arrived or self.arrived.popleft() != sequence:
                raise Violation("a client hands out other messages than came", sequence=sequence)
        self._note()

    def _check_had(self) -> None:
        """Whatever came and is no more was reported as taken back."""
        book, stream = self.book, self.source.stream
        if stream == book.no_journal:
            return
        places, kept = book.places.get(stream, {}), book.first_kept(stream)
        for sequence in self.had:
            place = places[sequence]
            if sequence >= kept and not place.alive:
                raise Violation("messages were taken back without a word", stream=stream, sequence=sequence)

    def check_complete(self) -> None:
        """At the end of a run there is nothing more to come."""
        if self.position is None:
            raise Violation("a subscription was never answered", stream=self.source.stream)
        self._check_had()
        head = self.book.last(self.source.stream)
        missing = self._owed(head, head + 1, set())
        unsent = self.book.unsent.get(self.source.stream, ())
        missing = [s for s in missing if s not in unsent]
        if missing and not (self.scattered and max(missing) < self.head):
            raise Violation("messages never came", stream=self.source.stream, missing=missing)
