"""Streams: messages in, chunks out, and each subscription either live or in replay.

What reaches a stream in one iteration becomes one *chunk*: numbered, encoded once, journaled as it is and
sent as it is to every subscription that takes all of it. Subscriptions with the same selector are one
group of the matching index; a batch costs one look-up for each subject, and one payload for each
distinct set of places in it, however many subscribers there are.

A subscription is LIVE while it has had all that it was to have: then it needs no position, and a chunk
that does not concern it costs nothing. When a delivery finds it without credit it moves to REPLAY with a
*cursor*, the first sequence that it has not had. With credit it is served from the cursor on, out of the
journal and then out of the chunks that are not on the disk yet. When the cursor is at the head, and there is
credit left, it is LIVE again, within one iteration and so without a gap.

Live deliveries do not wait for the disk. So that no sequence is ever used twice, every commit also
reserves a block of sequences ahead, and a chunk beyond the reserved block is held until the commit that
extends it; if the disk refuses that, nobody ever gets the chunk. After a crash the stream goes on behind the
block: the numbers left out are a GAP. A reader that had a chunk that the disk refuses is notified (`gaps`).

A stream without a journal stores nothing but this reservation, for a whole *epoch*. Those that are not
known yet share one that is stored when the broker begins; so none of them waits for the disk, not even for
its first message.

A `committed` subscription gets each chunk when it is on the disk. It is found with all others, when the
chunk comes, and noted at the chunk; so it costs no more than they do.

The times of the chunks never go back, over restarts too. Should the clock be behind the newest of them, they
go on from there at half the pace until it has caught up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from sys import maxsize
from typing import TYPE_CHECKING, Any

from malamute.core.identity.holdings import Holdings, Owners
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.metrics import Rate
from malamute.core.iteration.named_table import NamedTable
from malamute.core.iteration.stage import StoreStage
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.session.session import Session
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.audience import Audience
from malamute.core.stream.chunk import Loaded, chunk_bytes
from malamute.core.stream.chunk_part import ChunkPart
from malamute.core.stream.deleted import DeletedStreams
from malamute.core.stream.dispatch import Held, in_steps
from malamute.core.stream.expiry import WAITING_PACE, BirthTimes, TimesBefore
from malamute.core.stream.gaps import Gaps, Missing
from malamute.core.stream.reader_state import LIVE, REPLAY
from malamute.core.stream.replay import Replay
from malamute.core.stream.skipped import SkippedSequences
from malamute.core.stream.start import locate
from malamute.core.stream.subscription import Position, Reader, Subscription
from malamute.errors import CursorLost, InvalidValue, MalamuteError, NotFound, QuotaExceeded, TooMany
from malamute.matching import CacheBudget, Group, Groups, Selector
from malamute.protocol.batch import Columns, Frame, pack_stream_payload
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.limits import NUMBER_MAX, Limits
from malamute.protocol.messages import ANOTHER_STORE, Commit, Subscribe
from malamute.protocol.names import RESERVED_PREFIX
from malamute.protocol.position import StorePosition, broker_of
from malamute.protocol.start import AFTER, FIRST, NEW, SEQ, Start
from malamute.store.operations import (
    FLOOR,
    AppendChunk,
    Chunk,
    DeleteStream,
    DeleteValue,
    ForgetStream,
    NoteRefused,
    PutValue,
    Recovered,
    Reserve,
    Retain,
    Stranded,
    StreamState,
)
from malamute.store.policies import KEEP_ALL, StreamPolicy, StreamPolicyOf, StreamRetention
from malamute.store.tables import BEGINNINGS, CURSORS, OWNERS, RETENTIONS, SKIPPED

if TYPE_CHECKING:
    from malamute.core.identity.access import Permissions
    from malamute.core.iteration.recovery import Recovery

RESERVE = 1 << 18
"""Sequences reserved ahead of the last one with each commit."""

STREAMS_WORK = 1_000
"""Work that is left for chunks in any iteration."""

EPOCH = 1 << 32
"""The same for a stream without a journal, where no commit comes along: it lasts for more than an hour."""

BEHIND_BYTES = 16 << 20
"""Bytes of chunks that may wait to be offered, where matching them takes longer than they take to come."""

CURSOR_BYTES = 400
"""What a cursor takes beside its name, here and in the store's own tables."""


class CursorBudget:
    """The memory of the cursors of all streams, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self._bytes_max - self.bytes

    def check(self, name: str) -> None:
        """Raise `TooMany` unless there is room for one more cursor, of this name."""
        if self.bytes + cursor_bytes(name) > self._bytes_max:
            raise TooMany(f"too many cursors: those of all streams take {self.bytes} bytes")


class Cursors(StoredValues[str, int]):
    """The cursors of a stream, which are counted in bytes together with those of all others."""

    __slots__ = ("_budget", "reserved")

    def __init__(self, stage: StoreStage, budget: CursorBudget) -> None:
        super().__init__(stage)
        self._budget = budget
        self.reserved: Counter[str] = Counter()
        """How many changes are under way that may make a cursor, which has its room already."""

    def __setitem__(self, name: str, sequence: int) -> None:
        if not self._has_room(name):
            self._budget.bytes += cursor_bytes(name)
        super().__setitem__(name, sequence)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a cursor that may be there."""
        if name in self and name not in self.reserved:
            self._budget.bytes -= cursor_bytes(name)
        return super().pop(name, *default)

    def reserve(self, name: str) -> None:
        """Keep room for a cursor that may come, until `release`."""
        if not self._has_room(name):
            self._budget.bytes += cursor_bytes(name)
        self.reserved[name] += 1

    def release(self, name: str) -> None:
        """What may have made this cursor has done so, or failed."""
        self.reserved -= Counter((name,))
        if not self._has_room(name):
            self._budget.bytes -= cursor_bytes(name)

    def _has_room(self, name: str) -> bool:
        return name in self or name in self.reserved


def cursor_bytes(name: str) -> int:
    """What a cursor of this name takes."""
    return CURSOR_BYTES + len(name.encode())


class Stream:
    """One stream: its numbers, what is under way, and its readers."""

    def __init__(self, name: str, owner: Streams, state: StreamState | None = None) -> None:
        self.name = name
        self._ageing = owner.ageing
        self.own = name.startswith(RESERVED_PREFIX)
        """Whether it is the broker's: its readers make no events by reading."""
        self.effects = owner.effects
        self.policy = owner.policy(name)
        self.journaled: bool = self.policy.journal
        self._active = owner.active
        self._cursors_max = owner.limits.cursors
        self.committed = self.policy.committed
        """Whether its subscriptions get only what is on the disk, unless they say so themselves."""
        self.audience = Audience(self._family_failed, owner.caches)
        begin = state.reserved if state else owner.floor
        self.reserved = max(begin, owner.incarnation)
        self.next: int = self.reserved + 1
        self._given_back = self.next if self.journaled and not state else 0
        """Where it goes on if the broker shuts down cleanly and no more is stored of it."""
        self.never_used = (owner.deleted.last(name) + 1, begin) if state is None else (1, 0)
        """The first and the last sequence in front of it that no stream of this name is known to have had."""
        self.skipped = SkippedSequences()
        self._last_chunked = state.last if state else 0
        self._skipped_from = 0
        """The first chunk that its newest ranges are stored with, or 0 if they are stored."""
        self.next_dispatch = self.next
        self.last_stored = state.last if state else 0
        self.first_kept = state.first if state else begin + 1
        self.last: int = state.last if state else 0
        """The newest message that was ever published."""
        self.time_ns = state.time_ns if state else 0
        self._clocked = self.effects.time_ns
        self.messages = 0
        self.rate = Rate()
        self.switches: Counter[str] = Counter()
        """How often a reader has come to the head, or fallen behind it, by the state that it is in since."""
        self._cursor_budget = owner.cursors
        self.cursors = Cursors(self.effects, owner.cursors)
        self._cursors_held = owner.cursors_held
        self.owners = Owners(self.effects, owner.cursors_held, cursor_bytes)
        """The users of the cursors that readers have."""
        self.made_by: str | None = None
        """The user that it counts for, if any."""
        self.lost_cursors: set[str] = set()
        """Those whose positions were in a part of the store that is damaged."""
        self._lost_going: Counter[str] = Counter()
        """Those of them that go with deletions under way."""
        self._retentions = owner.retentions
        self._may_age = self.policy.retention.age_seconds > 0
        self.lasting = state is not None
        """Whether it was made for more than to be read, and stays until it is deleted."""
        self.changing = 0
        """How many changes of feeds from it are under way."""
        self.feeds = 0
        """How many feeds put something into it."""
        self._deletions = 0
        self._incoming: tuple[list[str], list[Frame], list[str]] = ([], [], [])
        self._ttl = self._policy_ttl()
        self._ttls: list[int] = []
        """When what came in expires, as far as any of it does so."""
        self.births = BirthTimes(self.next, owner.times_before)
        self._held = Held()
        """What waits for its sequences to be reserved, or to be offered."""
        self.behind = False
        """Whether some of it waits for work that was left to a later iteration."""
        self._steps: Iterator[None] | None = None
        """The dispatch of the first of them, if that was broken off."""
        self._dropped: list[Loaded] = []
        """What the disk has refused before, of which nobody knows yet."""
        self.gaps = Gaps(self, state.last if state else begin, owner.incarnations)
        self.replay = Replay(self, self.gaps)
        self.wake, self.forget = self.replay.wake, self.replay.forget
        if not self.journaled:
            self._begin_epoch(self.next - 1)
            if state is None:
                self.reserved = max(self.reserved, owner.epoch_end)

    # Messages in

    def publish(self, sender: str, subjects: Sequence[str], records: Sequence[Frame], ttl: int = 0) -> int:
        """Take messages, to go out at the end of the iteration. Returns the sequence of the first.

        They expire after `ttl` milliseconds, or when the policy says so if that is sooner; 0 is never.
        """
        all_subjects, all_records, all_senders = self._incoming
        first = self.next + len(all_subjects)
        if ttl or self._ttl:
            self._expire_after(ttl, len(subjects))
        all_subjects += subjects
        all_records += records
        all_senders += [sender] * len(subjects)
        self.activate()
        return first

    def _expire_after(self, ttl: int, count: int) -> None:
        """So many messages that are about to be taken expire, by the policy or by themselves."""
        ttl = min(filter(None, (ttl, self._ttl)))
        self._ttls += [*repeat(0, len(self._incoming[0]) - len(self._ttls)), *repeat(ttl, count)]

    def forward(self, senders: Sequence[str], subjects: Sequence[str], records: Sequence[Frame]) -> None:
        """Take what a feed passes on. It is stored with this iteration, as the position of the feed is.

        It expires when the policy says so.
        """
        if self._ttl:
            self._expire_after(0, len(subjects))
        all_subjects, all_records, all_senders = self._incoming
        all_subjects += subjects
        all_records += records
        all_senders += senders
        self.flush()
        if self.behind:
            self.activate()

    def activate(self) -> None:
        """Flush this stream at the end of the iteration."""
        self._active[self.name] = self

    def flush(self) -> None:
        """Make a chunk of what came in this iteration, store it and deliver it."""
        subjects, records, senders = self._incoming
        if not subjects:
            if self.behind:
                self._dispatch()
            return
        self._incoming = ([], [], [])
        try:
            self._flush(subjects, records, senders)
        except Exception as error:
            # Its publishers learn that it was not stored.
            self._ttls = []
            self.effects.spoil("what was published", error)

    def _flush(self, subjects: list[str], records: list[Frame], senders: list[str]) -> None:
        if not self.messages:
            self.store_maker()
        self.time_ns = self.moment()
        self._clocked = self.effects.time_ns
        sender = senders[0] if len(set(senders)) == 1 else senders
        columns = Columns(self.next, self.time_ns, sender, subjects, records)
        if self._ttls:
            columns = self._expiring(columns)
        payload, large = pack_stream_payload(columns)
        chunk = Chunk(self.next, len(subjects), self.time_ns, payload, large)
        loaded = Loaded(chunk, columns, self.effects.now)
        self.next += len(subjects)
        self.last = self.next - 1
        self.messages += len(subjects)
        self.rate.add(len(subjects), self.effects.now)
        self._store(loaded)
        self._held.add(loaded)
        self._keep_up()
        self._dispatch()

    def _expiring(self, columns: Columns) -> Columns:
        """What came in with the times to live that it has."""
        ttls, self._ttls = self._ttls, []
        ttls += repeat(0, len(columns) - len(ttls))
        waits = self.time_ns > self.effects.time_ns
        self.births.note(self.next, self.time_ns, self.effects.now, waits=waits)
        return Columns(*columns[:5], ttls=ttls[0] if len(set(ttls)) == 1 else ttls)

    def moment(self) -> int:
        """The time now as this stream has it, in nanoseconds UTC."""
        now = self.effects.time_ns
        return max(now, self.time_ns + max(0, now - self._clocked) // WAITING_PACE)

    def close(self) -> None:
        """Offer what waits for that, and give back the sequences that were reserved and not used."""
        self._dispatch(wholly=True)
        if self.next > self._given_back:
            self.effects.store(Reserve(self.name, self.next - 1))

    def _family_failed(self, family: str, error: Exception) -> None:
        self.effects.family_failed(family, error, self.audience.failures[family], stream=self.name)

    def store_maker(self) -> None:
        """Store who has made it, with the first that is stored of it."""
        if self.made_by and self.journaled:
            self.effects.store(PutValue(OWNERS, (self.name, ""), self.made_by))

    def check_cursor(self, name: str, user: str | None = None) -> None:
        """Check that there is a cursor of this name, or room for one, which a user is to have.

        Raises:
            TooMany: there is no room.
            QuotaExceeded: the user has as many as its quota allows, or as it leaves to others.
        """
        if name in self.cursors or name in self.cursors.reserved:
            return
        known = self.cursors.keys() | self.cursors.reserved.keys() | self.lost_cursors
        if name not in known and len(known) >= self._cursors_max:
            raise TooMany(
                f"too many cursors of the stream {self.name!r}: expected at most {self._cursors_max}"
            )
        self._cursor_budget.check(name)
        if user is not None and name not in known:
            self._cursors_held.check(user, 1, self._cursors_max - len(known), self.owners.counts[user])
            self._cursors_held.check(user, cursor_bytes(name), self._cursor_budget.left)

    def check_known(self, cursor: str) -> None:
        """Raise `CursorLost` if there is a cursor of this name, and nobody knows where it stands."""
        if cursor in self.lost_cursors:
            raise CursorLost(
                f"position of the cursor {cursor!r} in the stream {self.name!r} was lost: set it again"
            )

    def commit(self, cursor: str, sequence: int, user: str | None = None) -> None:
        """Store that the reader with this cursor is done with all up to a sequence.

        A cursor that nobody with a name has is that of the first `user` who commits it.
        """
        if user is not None and not self.owners.get(cursor) and (user or cursor not in self.owners):
            self.give(cursor, user)
        self.cursors.put(cursor, sequence)
        self.effects.store(PutValue(CURSORS, (self.name, cursor), sequence))
        if cursor in self.lost_cursors:
            self._find_again(cursor)

    def give(self, cursor: str, user: str) -> None:
        """Store whose a cursor is."""
        self.owners.put(cursor, user)
        if user:
            self.effects.store(PutValue(OWNERS, (self.name, cursor), user))

    def _find_again(self, cursor: str) -> None:
        def found(error: MalamuteError | None) -> None:
            if error is None:
                self.lost_cursors.discard(cursor)

        self.effects.when_stored(found)

    def delete_cursor(self, cursor: str) -> None:
        """Forget a cursor, or one that is lost."""
        if self.owners.get(cursor):
            self.effects.store(DeleteValue(OWNERS, (self.name, cursor)))
        if cursor in self.owners:
            self.owners.put(cursor, None)
        self.cursors.put(cursor, None)
        self.effects.store(DeleteValue(CURSORS, (self.name, cursor)))
        if cursor in self.lost_cursors:
            self._find_again(cursor)

    def configure(self, policy: StreamPolicy) -> None:
        """Go by another policy from now on."""
        if policy.retention != self.policy.retention:
            self.effects.store(Retain(self.name, policy.retention))
            self._ageing.look_when_stored()
        self.policy, self.committed = policy, policy.committed
        self._ttl = self._policy_ttl()
        self.begin_ageing()

    def _policy_ttl(self) -> int:
        # What the broker reports of itself is not for any publisher's readers to outrun.
        return 0 if self.own else self.policy.ttl_ms

    @property
    def retention(self) -> StreamRetention | None:
        """How much of it is kept, if that was set at run time."""
        return self._retentions.get(self.name)

    @property
    def retention_source(self) -> str:
        """What says how much of it is kept: `run time`, or what in the configuration."""
        return self.policy.retention_source if self.retention is None else "run time"

    @property
    def age_seconds(self) -> float:
        """How old its messages may be; 0 is no limit."""
        return (self.retention or self.policy.retention).age_seconds

    def begin_ageing(self) -> bool:
        """Whether its messages get too old. From now on that is asked for each chunk, if they ever did."""
        self._may_age = self._may_age or self.age_seconds > 0
        return self._may_age

    def retain(self, retention: StreamRetention) -> None:
        """Store how much of it is kept, in place of what the configuration says."""
        self._retentions.put(self.name, retention)
        self.effects.store(PutValue(RETENTIONS, (self.name,), retention))
        self.begin_ageing()
        self._ageing.look_when_stored()

    def purge(self, purged: Callable[[], None]) -> None:
        """Drop the history. Its readers stay, and what was set for it."""
        # For the store it is another stream of the same name, which goes on with the old numbers.
        self.effects.store(DeleteStream(self.name))
        # A deletion changes the retention, be there one or not: it stands for all that goes with it.
        for values in (self.cursors, self.owners):
            values.rely_on_changes(lambda cursor: True)
        self._retentions.rely_on_changes(lambda stream: stream == self.name)
        # Nobody knows where the lost ones stood: their readers get a GAP for all of it.
        lost = self.lost_cursors - self._lost_going.keys()
        for cursor, sequence in [*self.cursors.items(), *((cursor, 0) for cursor in lost)]:
            self.commit(cursor, sequence)
        for cursor, user in [*self.owners.stored()]:
            self.give(cursor, user)
        self.store_maker()
        if self.retention is not None:
            self.retain(self.retention)
        self._drop_before(self.next, purged)

    def delete(self, deleted: Callable[[], None]) -> None:
        """Drop the history, and all that was set for it, and its name. What comes meanwhile is kept."""
        first = self.next
        if self.journaled:
            # The disk forgets what was reserved with the name: what comes meanwhile waits for its own.
            self._deletions += 1
            self.reserved = min(self.reserved, first - 1)

        lost = Counter(self.lost_cursors)
        self._lost_going += lost

        def gone() -> None:
            self.lost_cursors -= lost.keys()
            if self.next == first:
                self.last = self.last_stored = self.messages = 0
                # The store knows it no more: it is there for its readers, if it has any yet.
                self.lasting, self._given_back = False, first
            deleted()

        self.effects.store(DeleteStream(self.name), ForgetStream(self.name))
        for cursor in [*self.owners]:
            self.owners.put(cursor, None)
        for cursor in [*self.cursors]:
            self.cursors.put(cursor, None)
        self._retentions.put(self.name, None)
        self._drop_before(first, gone)

        def settled(error: MalamuteError | None) -> None:
            self._lost_going -= lost

        self.effects.when_stored(settled, awaited=False)

    def _drop_before(self, first: int, dropped: Callable[[], None]) -> None:
        """What this iteration stores drops what is before a sequence: it is gone when that is done."""

        def stored(error: MalamuteError | None) -> None:
            if error is None:
                self.first_kept = max(self.first_kept, first)
                dropped()

        self.effects.when_stored(stored)

    @property
    def unused(self) -> bool:
        """Whether nothing is kept of it, and nobody reads it."""
        return self.first_kept > self.last and not (self.cursors or len(self.audience) or self.feeds)

    @property
    def untouched(self) -> bool:
        """Whether nothing has ever come of it."""
        return self.unused and not (self.messages or self._incoming[0])

    @property
    def idle(self) -> bool:
        """Whether it is there for its readers alone, which have never had anything to read."""
        published = self.lasting or self.messages or self._incoming[0]
        return not published and self.first_kept > self.last

    def _store(self, loaded: Loaded) -> None:
        last = loaded.chunk.last
        chunk = loaded.chunk
        size_bytes = chunk_bytes(chunk.count, loaded.size_bytes, chunk.large)
        if self.journaled:
            self._note_skipped(chunk)
            if chunk.first == self.first_kept and self.never_used[0] <= self.never_used[1]:
                # Its readers are not to be notified of these after a restart either.
                self.effects.store(PutValue(BEGINNINGS, (self.name,), self.never_used))
            self.replay.unstored.append(loaded)
            self.effects.store(
                AppendChunk(
                    self.name,
                    loaded.chunk,
                    last + RESERVE,
                    loaded.columns.subjects,
                    self.policy.retention,
                ),
                size_bytes=size_bytes,
            )
            held = last > self.reserved
            deletions = self._deletions
            self.effects.when_stored(lambda error: self._stored(last, deletions, error), awaited=held)
        elif last + EPOCH // 2 > self.reserved:
            self._begin_epoch(last, size_bytes if last > self.reserved else 0)

    def restore_numbering(
        self, never_used: Sequence[int], skipped: Sequence[Sequence[int]], refused: Sequence[NoteRefused]
    ) -> None:
        """Take up which sequences have no messages, as the core and the writer have stored it."""
        self.never_used = never_used[0], never_used[1]
        self.skipped.restore(skipped)
        before = list(self.skipped.ranges)
        for note in refused:
            self.skipped.add(note.first, note.last)
        if self.skipped.ranges != before:
            self._skipped_from = self.next

    def _note_skipped(self, chunk: Chunk) -> None:
        """Store with a chunk what was left out before it."""
        before = max(self._last_chunked, self.first_kept - 1)
        if before < chunk.first - 1:
            self.skipped.add(before + 1, chunk.first - 1)
            self._skipped_from = chunk.first
        self._last_chunked = chunk.last
        # The chunk that had them first may be refused, and one behind it be the last before a crash.
        if self._skipped_from:
            self.skipped.forget_before(self.first_kept)
            self.effects.store(PutValue(SKIPPED, (self.name,), self.skipped.ranges))

    def lag(self, reader: Reader, last: int = NUMBER_MAX) -> int:
        """Return how many messages a reader in REPLAY has before it, up to `last`; 0 for any other."""
        return self.messages_behind(reader.cursor - 1, last) if reader.state is REPLAY else 0

    def messages_behind(self, sequence: int, last: int = NUMBER_MAX) -> int:
        """Return how many messages are there behind a sequence, up to another one: none without a journal."""
        if not self.journaled:
            return 0
        return self.skipped.messages(max(sequence, self.first_kept - 1), min(last, self.last))

    @property
    def stored_messages(self) -> int:
        """How many messages of it are on the disk."""
        return self.skipped.messages(self.first_kept - 1, self.last_stored)

    def _begin_epoch(self, last: int, held_bytes: int = 0) -> None:
        """Reserve sequences for a stream without a journal. What is held meanwhile counts as accepted."""
        self.effects.store(Reserve(self.name, last + EPOCH), size_bytes=held_bytes)
        self.effects.when_stored(lambda error: self._reserved(last, last + EPOCH, error))

    def _reserved(self, last: int, reserved: int, error: MalamuteError | None) -> None:
        if error is None:
            self.reserved = max(self.reserved, reserved)
        else:
            self._dispatch(wholly=True)
        if error is not None and self._held and self._held[0].chunk.last == last:
            # Its sequences may be given out once more after a crash: nobody may see them until they are
            # reserved with those behind them.
            self._dropped.append(self._held.remove_first())
        self._dispatch()

    def _stored(self, last: int, deletions: int, error: MalamuteError | None) -> None:
        if error is not None:
            # Each that is LIVE has had what the disk refuses now, or none of them.
            self._dispatch(wholly=True)
        sent = self.next_dispatch > self.replay.unstored[0].chunk.last
        # A deletion since then has taken back what was reserved ahead.
        self._reserved(last, last + RESERVE * (deletions == self._deletions), error)
        if error is None:
            if self._skipped_from <= last:
                self._skipped_from = 0
            if self._may_age and (age_seconds := self.age_seconds):
                self._ageing.stored(age_seconds)
            self.replay.stored()
            return
        loaded = self.replay.refused()
        self.skipped.add(loaded.chunk.first, loaded.chunk.last)
        self._skipped_from = self.next
        if sent:
            self._refused(loaded, sent=True)
        self.replay.advance()

    def _refused(self, loaded: Loaded, *, sent: bool) -> None:
        """Notify the readers that have a chunk, or were to have it, that it is not durable."""
        costly, work = self.audience.match_costly(loaded.columns, maxsize)
        self.effects.work -= work
        for matches in (self.audience.match(loaded.columns), costly):
            for group, part in self._parts(loaded, matches):
                for reader in group.members.values():
                    reader.refused(part, sent=sent)

    # Messages out

    def _dispatch(self, *, wholly: bool = False) -> None:
        """Offer what has its sequences reserved to LIVE readers, as far as there is work for it, or `wholly`.

        While it is `behind` with that, nobody becomes LIVE: each chunk is offered once to those that were
        before it.
        """
        while self._held and self._held[0].chunk.last <= self.reserved:
            if self.behind and self.effects.work <= 0 and not wholly:
                return
            loaded = self._held[0]
            while self._dropped:
                self._refused(self._dropped.pop(0), sent=False)
            try:
                if not self._offer_all(loaded, wholly=wholly):
                    self.behind = True
                    self.activate()
                    return
            except Exception as error:
                self.effects.fault("matching", error)
                self._fall_behind(loaded)
            self._dispatched()
        self.behind = False

    def _dispatched(self) -> None:
        """The first chunk that waited was offered to all."""
        self._steps = None
        self.next_dispatch = self._held.remove_first().chunk.last + 1

    def _offer_all(self, loaded: Loaded, *, wholly: bool) -> bool:
        """Offer a chunk to all that it is for. Returns whether that is done."""
        audience, effects = self.audience, self.effects
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
        """What waits to be offered has its limit: past it, each reader finds out for itself, in REPLAY."""
        if self.behind and self._held.size_bytes > BEHIND_BYTES:
            self._fall_behind(self._held[0])
            while self._held and self._held[0].chunk.last <= self.reserved:
                self._dispatched()
            self.behind = False

    def _fall_behind(self, loaded: Loaded) -> None:
        """Nobody knows whose a chunk is: let each reader find out for itself, out of the journal."""
        for group in self.audience.groups():
            for reader in group.members.values():
                self._set_back(reader, loaded)

    def set_back(self, reader: Reader) -> None:
        """A reader that takes other messages from now on looks for itself at what is being dispatched."""
        if self.behind:
            self._set_back(reader, self._held[0])

    def _set_back(self, reader: Reader, loaded: Loaded, sequence: int = 0) -> None:
        """Let a reader that is LIVE find out for itself from a chunk on, or from a sequence in it."""
        if reader.state is LIVE and reader.start <= loaded.chunk.last:
            sequence = sequence or loaded.chunk.first
            if reader.committed:
                # What it was to get when it is on the disk, it has not had yet.
                sequence = min(sequence, self.replay.known + 1)
            # What it has had already it does not get again.
            reader.fall_behind(max(reader.start, sequence, reader.after + 1))

    def _offer(self, loaded: Loaded, part: ChunkPart, readers: Collection[Reader]) -> None:
        """Offer messages of a chunk to the readers that they are for."""
        is_fresh = not loaded.columns.ttls or part.expires > self.effects.now
        # A review may end any of them.
        for subscription in [*readers] if len(readers) == 1 else self.effects.in_turn(readers):
            start = subscription.start
            if subscription.state is not LIVE or start > loaded.chunk.last:
                continue
            try:
                if subscription.committed and loaded.chunk.last > self.replay.durable:
                    loaded.later[id(subscription)] = subscription, part
                    self.effects.hurry()
                elif start > loaded.chunk.first:
                    subscription.fall_behind(start)
                elif left := subscription.offer(part) if is_fresh else subscription.give(part):
                    subscription.fall_behind(left)
            except Exception as error:
                subscription.fail(self.effects.fault("a live delivery", error))

    def _offer_costly(self, loaded: Loaded) -> None:
        """The same to readers that are costly to find. Those not found in this iteration fall behind."""
        matches, work = self.audience.match_costly(loaded.columns, self.effects.work // 2)
        self.effects.work -= work
        for group, part in self._parts(loaded, matches):
            self._offer(loaded, part, group.members.values())
        if len(matches) == loaded.chunk.count or not work:
            return
        for group in self.audience.costly_groups():
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
                reader.fail(self.effects.fault("a delivery", error))

    def _parts(self, loaded: Loaded, matches: Sequence[Groups]) -> list[tuple[Group, ChunkPart]]:
        """What each group gets of a chunk."""
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


def _behind_never_used(stream: Stream, start: Start) -> Start:
    """Begin with the first sequence that a stream can have, for a reader who asks for one before it."""
    first, last = stream.never_used
    return Start(SEQ, last + 1) if start.kind == SEQ and first <= start.value <= last else start


def _position_of(message: Subscribe) -> StorePosition | None:
    """Return the position of a subscription that stood before; None for a new one. Raises `InvalidValue`."""
    position = StorePosition.parse(message.resume)
    if message.resume and position is None:
        raise InvalidValue(f"invalid position {message.resume!r}: expected N@STORE")
    return position


class Streams:
    """All streams by name."""

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        policy_of: StreamPolicyOf,
        caches: CacheBudget,
        ageing: Ageing,
        incarnations: Sequence[int] = (),
        *,
        unjournaled: bool = False,
        broker: str = "",
        held: Holdings | None = None,
        cursors_held: Holdings | None = None,
    ) -> None:
        """New streams begin behind the last of the `incarnations` of the store.

        `broker` is the id of the broker, of whose store the positions in the streams are.

        What users have of streams and of cursors counts in `held` and in `cursors_held`.
        """
        self.effects = effects
        self.ageing = ageing
        self.deleted = DeletedStreams(effects)
        self.incarnations = incarnations
        self.incarnation = incarnations[-1] if incarnations else 0
        self.floor = 0
        """The highest sequence of all streams that were deleted. New ones begin behind it."""
        self.broker = broker
        self.limits = limits
        self.held = held or Holdings("streams")
        self.cursors_held = cursors_held or Holdings("cursors")
        self._policy_of = self._started_with = policy_of
        self.times_before = TimesBefore(effects.time_ns)
        self.caches = caches
        self.epoch_end = 0
        """What is reserved for streams without a journal that are new: so much is the floor after a crash."""
        self._unjournaled = unjournaled
        self.cursors = CursorBudget(limits.cursors_bytes)
        self.by_name: NamedTable[Stream] = NamedTable()
        self.active: dict[str, Stream] = {}
        self.retentions: StoredValues[str, StreamRetention] = StoredValues(effects)
        """How much of a stream is kept, where that was set at run time."""

    def policy(self, name: str) -> StreamPolicy:
        """The policy of a stream. Its journal is as it was when the broker started."""
        return self._policy_of(name)._replace(journal=self._started_with(name).journal)

    def retention(self, name: str) -> StreamRetention:
        """How much of a stream is kept: as it was set at run time, or else as it is configured."""
        return self.retentions.get(name) or self.policy(name).retention

    def begin_ageing(self) -> None:
        """Some streams may have what is too old, if any of them has a limit by age: see when that is."""
        if any([stream.begin_ageing() for stream in self.by_name.values()]):
            self.ageing.look_when_stored()

    def configure(self, policy_of: StreamPolicyOf, limits: Limits) -> None:
        """Go by other policies and limits from now on; `Stream.configure` does so for each stream."""
        self._policy_of, self.limits = policy_of, limits

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the streams that the store kept, with their cursors and what was set for them."""
        recovery.take_up("table", "deleted streams", self.deleted.restore, recovered)
        beginnings, skipped = recovered.table(BEGINNINGS), recovered.table(SKIPPED)
        for name, state in recovered.streams.items():
            refused = recovered.refused.get(name, ())
            numbering = beginnings.get((name,), (1, 0)), skipped.get((name,), ())
            recovery.take_up("stream", name, self._restore, name, state, refused, numbering)
        for (name, cursor), sequence in recovered.table(CURSORS).items():
            self.keep(name).cursors[cursor] = sequence
        for name, cursor in recovered.lost_keys(CURSORS):
            self.keep(name).lost_cursors.add(cursor)
        self._restore_values(recovered)
        self.begin_ageing()

    def _restore_values(self, recovered: Recovered) -> None:
        """Take up what is kept of the streams that are there."""
        for (name, cursor), user in recovered.table(OWNERS).items():
            self._restore_owner(name, cursor, str(user))
        for (name,), retention in recovered.table(RETENTIONS).items():
            self.keep(name)
            self.retentions[name] = StreamRetention.of(retention)

    def _restore_owner(self, name: str, cursor: str, user: str) -> None:
        stream = self.by_name.get(name)
        if stream is None:
            return
        if not cursor:
            stream.made_by = user
            self.held.add(user, 1, 1)
        elif cursor in stream.cursors or cursor in stream.lost_cursors:
            stream.owners[cursor] = user

    def _restore(
        self,
        name: str,
        state: StreamState,
        refused: Sequence[NoteRefused],
        numbering: tuple[Any, Any],
    ) -> None:
        """Take up one of them, and what the disk had `refused` of it."""
        if name == FLOOR:
            self.floor = max(self.floor, state.reserved)
        else:
            stream = self.by_name[name] = Stream(name, self, state)
            stream.gaps.restore(refused)
            stream.restore_numbering(*numbering, refused)
            if stream.policy.retention != KEEP_ALL:
                self.effects.store(Retain(name, stream.policy.retention))

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: cursors of readers that are in it are stored once more."""
        for name, cursor in stranded.keys(CURSORS):
            stream = self.by_name.get(name)
            # A feed sees to its own, as changes of it may be under way.
            if stream is not None and cursor in stream.cursors and not cursor.startswith(FEED_PREFIX):
                stream.commit(cursor, stream.cursors[cursor])
        for name, cursor in stranded.keys(OWNERS):
            stream = self.by_name.get(name)
            if stream is not None and cursor in stream.owners:
                stream.owners.rely_on_changes(cursor.__eq__)
                stream.give(cursor, stream.owners[cursor])
            elif stream is not None and not cursor:
                stream.store_maker()

    def delete(self, stream: Stream, deleted: Callable[[], None]) -> None:
        """Remove a stream that nobody reads. Its name is free then; its sequences are never used again."""

        def gone() -> None:
            if stream.retention is None and not stream.changing:
                self.drop_untouched(stream)
            deleted()

        last = stream.last
        stream.delete(gone)
        self.floor = max(self.floor, stream.next - 1)
        self.deleted.add(stream.name, last, self.floor)
        if self._unjournaled:
            self.begin_epoch()
        else:
            self.effects.store(Reserve(FLOOR, self.floor))

    def begin_epoch(self) -> None:
        """Store the floor, and ahead of it what streams may use that have no journal."""
        reserved = max(self.floor, self.incarnation) + EPOCH
        self.effects.store(Reserve(FLOOR, reserved))

        def begun(error: MalamuteError | None) -> None:
            if error is None:
                self.epoch_end = max(self.epoch_end, reserved)

        self.effects.when_stored(begun)

    def close(self) -> None:
        """Give back the sequences that were reserved and not used."""
        for stream in self.by_name.values():
            self.effects.guard("the end of a stream", stream.close)
        if self._unjournaled:
            self.effects.store(Reserve(FLOOR, self.floor))

    def found(self, name: str) -> Stream:
        """The stream of this name. Raises `NotFound`."""
        stream = self.by_name.get(name)
        if stream is None:
            raise NotFound(f"there is no stream {name!r}")
        return stream

    def commit(self, session: Session, message: Commit) -> None:
        """Store a named position. Raises `NotFound`, `InvalidValue` or `TooMany`."""
        stream, may = self.found(message.stream), session.may
        self.check_cursor(message.stream, message.cursor, may)
        stream.flush()
        if message.store and broker_of(message.store) != self.broker:
            raise InvalidValue(
                f"sequence {message.sequence} is of another store: expected one of {self.broker}"
            )
        if message.sequence >= stream.next:
            raise InvalidValue(
                f"sequence {message.sequence} is beyond the head: expected at most {stream.next - 1}"
            )
        stream.commit(message.cursor, message.sequence, may.principal.user)

    def check_cursor(self, stream: str, cursor: str, may: Permissions | None = None) -> None:
        """Check that a stream, which may not be there yet, has a cursor or room for it.

        Raises:
            TooMany: there is no room.
            AccessRefused: who is to use it `may` not do so.
            QuotaExceeded: who is to use it has as many as may be.
        """
        found = self.by_name.get(stream)
        user = None if may is None else may.principal.user
        if may is not None:
            owner = found.owners.get(cursor, "") if found is not None else ""
            may.require_cursor("subscribe", stream, cursor, owner)
        if found is not None:
            found.check_cursor(cursor, user)
            return
        self.cursors.check(cursor)
        if user is not None:
            self.cursors_held.check(user, cursor_bytes(cursor), self.cursors.left)

    def get(self, name: str, user: str | None = None) -> Stream:
        """The stream of this name, made if needed; then it counts for the user, if it is one's.

        Raises `TooMany` or `QuotaExceeded`.
        """
        stream = self.by_name.get(name)
        if stream is None:
            if len(self.by_name) >= self.limits.streams:
                raise TooMany(f"too many streams: expected at most {self.limits.streams}")
            if user is not None:
                self.held.check(user, 1, self.limits.streams - len(self.by_name))
            stream = Stream(name, self)
            stream.made_by = user
            self.add(stream)
            self.effects.event(f"stream.created.{name}")
        return stream

    def add(self, stream: Stream) -> None:
        """A stream is there, and counts for the user who has made it."""
        self.by_name[stream.name] = stream
        if stream.made_by is not None:
            self.held.add(stream.made_by, 1, 1)

    def drop_untouched(self, stream: Stream) -> None:
        """Forget a stream that was deleted, or made in vain, unless somebody uses it by now."""
        if stream.untouched and self.by_name.get(stream.name) is stream:
            del self.by_name[stream.name]
            self.active.pop(stream.name, None)
            if stream.made_by is not None:
                self.held.add(stream.made_by, -1, -1)

    def left(self, reader: Reader) -> None:
        """A reader has left: was it the last one of a stream in which nothing ever was, that goes too."""
        stream = self.by_name.get(reader.stream.name)
        if stream is reader.stream and stream.idle and stream.untouched and not stream.changing:
            self.drop_untouched(stream)
            if not stream.journaled:
                self.effects.store(DeleteStream(stream.name), ForgetStream(stream.name))
            self.effects.event(f"stream.collected.{stream.name}")

    def trimmed(self, firsts: Mapping[str, int]) -> None:
        """The ring has dropped the oldest messages of some streams: these are their first ones now."""
        for name, first in firsts.items():
            if (stream := self.by_name.get(name)) is not None:
                stream.first_kept = max(stream.first_kept, first)

    def keep(self, name: str) -> Stream:
        """The stream of this name, made if needed: the broker's own, or what was promised something."""
        if name not in self.by_name:
            self.by_name[name] = Stream(name, self)
        self.by_name[name].lasting = True
        return self.by_name[name]

    def subscribe(
        self, session: Session, message: Subscribe, selector: Selector, asked: Selector
    ) -> Subscription:
        """Begin a subscription to what is allowed of what was asked for.

        Raises:
            InvalidSelector, InvalidValue, TooMany: it cannot be.
        """
        start, resumed = Start.parse(message.start), _position_of(message)
        user = session.may.principal.user
        if message.cursor and resumed is None:
            self.check_cursor(message.stream, message.cursor, session.may)
        stream = self.get(message.stream, user)
        # What came before it in this iteration is not new to it.
        stream.flush()
        start, message, is_foreign = self._resolve(stream, start, resumed, message)
        committed = stream.journaled and (message.committed or stream.committed)
        subscription = Subscription(
            session, message.source, stream, selector, asked, message.had, committed=committed
        )
        session.sources[message.source] = subscription
        subscription.credit.grant(message.credit, message.credit_bytes)

        def look(position: Position) -> None:
            stream.gaps.taken_back(message.had, lambda taken_back: begin(position, taken_back))

        def begin(position: Position, taken_back: Sequence[Missing]) -> None:
            if subscription.open:
                if message.cursor and message.cursor not in stream.cursors:
                    try:
                        # Others may have come meanwhile.
                        stream.check_cursor(message.cursor, user)
                    except (TooMany, QuotaExceeded) as error:
                        subscription.fail(error)
                        return
                    stream.commit(message.cursor, position.first - 1, user)
                subscription.accept(position)
                if is_foreign:
                    subscription.missed(1, position.first - 1, ANOTHER_STORE)
                for missing in taken_back:
                    subscription.missed(*missing)
                subscription.begin(position)

        with self.effects.failing(subscription.fail):
            locate(stream, start, subscription.group, look)
        return subscription

    def _resolve(
        self, stream: Stream, start: Start, resumed: StorePosition | None, message: Subscribe
    ) -> tuple[Start, Subscribe, bool]:
        """Find where a subscription begins in this store, and whether its position was one in another store.

        Raises `CursorLost`.
        """
        if resumed is not None and self._is_here(resumed, stream):
            message = message._replace(cursor="")
            return self._anew(stream, Start(SEQ, resumed.sequence + 1), message), message, False
        if is_foreign := resumed is not None:
            message = message._replace(had=0)
        stream.check_known(message.cursor)
        if (done := stream.cursors.get(message.cursor)) is not None:
            return _behind_never_used(stream, Start(SEQ, done + 1)), message, is_foreign
        if start.kind == AFTER:
            position = StorePosition(start.value, start.store)
            if not self._is_here(position, stream):
                return Start(FIRST), message._replace(had=0), True
            start = Start(SEQ, position.sequence + 1)
            if position.sequence:
                # Who has had something of this name is to learn what was deleted since.
                return self._anew(stream, start, message), message, False
        start = self._anew(stream, start, message)
        return start if message.had else _behind_never_used(stream, start), message, is_foreign

    def _anew(self, stream: Stream, start: Start, message: Subscribe) -> Start:
        """Begin at the head of a stream that was made anew for its readers, if nothing was before that."""
        anew = stream.idle and not (message.had or message.cursor)
        used = max(self.incarnation, self.deleted.last(stream.name))
        return Start(NEW) if anew and start.kind == SEQ and start.value > used else start

    def _is_here(self, position: StorePosition, stream: Stream) -> bool:
        """Whether a position is one in this store.

        An older incarnation of the broker has given out none beyond what this one begins behind. So what lies
        beyond the head is of one that this store does not know.
        """
        return position.broker == self.broker and (position.sequence < stream.next or stream.idle)

    def flush(self) -> None:
        """Send and store what the iteration brought."""
        active = list(self.active.values())
        self.active.clear()
        # What goes on from earlier iterations leaves something for what comes to a stream now.
        self.effects.work = max(self.effects.work, STREAMS_WORK)
        waiting: list[Stream] = []
        served: list[Stream] = []
        for stream in active:
            waits = stream.behind and self.effects.work <= 0
            stream.flush()
            if self.effects.replay_work > 0:
                self.effects.guard("replay", stream.replay.advance)
            else:
                waits = True
            (waiting if waits else served).append(stream)
        # What has not been served is the first in the next iteration.
        for stream in [*waiting, *served]:
            if stream.behind or stream.replay.waking:
                self.active.pop(stream.name, None)
                self.active[stream.name] = stream
