"""One stream: messages in, chunks out, and each subscription either live or in replay.

All messages of a stream in one iteration become one *chunk*: numbered, encoded once, journaled as it is and
sent as it is to every subscription that takes all of it. Subscriptions with the same selector are one group
of the matching index; a batch costs one look-up for each subject, and one payload for each distinct set of
places in it, however many subscribers there are.

A subscription is LIVE while it has had all that it was to have: then it needs no position, and a chunk
that does not concern it costs nothing. When a delivery finds it without credit it moves to REPLAY with a
*cursor*, the first sequence that it has not had. With credit it is served from the cursor on, out of the
journal and then out of the chunks that are not on the disk yet. When the cursor is at the head, and there is
credit left, it is LIVE again, within one iteration and so without a gap.

Live deliveries do not wait for the disk. So that no sequence is ever used twice, every commit also
reserves a block of sequences ahead, and a chunk beyond the reserved block is held until the commit that
extends it; if the disk refuses that, nobody ever gets the chunk. After a crash the stream goes on behind the
block: the numbers left out are a GAP. A reader that had a chunk that the disk refuses is notified (`gaps`).

A stream without a journal stores nothing but this reservation, for a whole *epoch*. Streams not yet
known share one that is stored when the broker begins; so none of them waits for the disk, not even for
its first message.

A `committed` subscription gets each chunk when it is durable. The reader is found with all others, when the
chunk comes, and noted at the chunk; so it costs no more than they do.

The times of the chunks never go back, over restarts too. If the clock is behind the newest of them, times
continue at half the pace until it has caught up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.metrics import Rate
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.audience import Audience
from malamute.core.stream.chunk import Loaded, chunk_bytes
from malamute.core.stream.cursors import CursorBudget, Cursors
from malamute.core.stream.expiry import WAITING_PACE, BirthTimes, TimesBefore
from malamute.core.stream.gaps import Gaps
from malamute.core.stream.live import LiveDelivery
from malamute.core.stream.numbering import Numbering
from malamute.core.stream.progress import StreamProgress
from malamute.core.stream.reader_state import REPLAY
from malamute.core.stream.replay import Replay
from malamute.errors import MalamuteError
from malamute.matching import CacheBudget
from malamute.protocol.batch import Columns, Frame, pack_stream_payload
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.operations import AppendChunk, Chunk, PutValue, Reserve, Retain, StreamState
from malamute.store.policies import StreamPolicy, StreamRetention
from malamute.store.tables import OWNERS, RETENTIONS, UNJOURNALED

if TYPE_CHECKING:
    from malamute.core.stream.subscription import Reader

RESERVE = 1 << 18
"""Sequences reserved ahead of the last one with each commit."""

EPOCH = 1 << 32
"""The same for a stream without a journal, where no commit comes along: it lasts for more than an hour."""


class SharedByStreams(NamedTuple):
    """The things that all streams of a broker have in common."""

    effects: Effects
    ageing: Ageing
    caches: CacheBudget
    cursors: CursorBudget
    retentions: StoredValues[str, StreamRetention]
    """How much of a stream is kept, where that was set at run time."""
    times_before: TimesBefore
    incarnations: Sequence[int]
    active: dict[str, Stream]
    """The streams that are to be flushed at the end of the iteration."""


class Stream:
    """One stream: its numbers, its chunks under way, and its readers."""

    def __init__(
        self,
        name: str,
        policy: StreamPolicy,
        shared: SharedByStreams,
        progress: StreamProgress,
        never_used: tuple[int, int],
        state: StreamState | None = None,
    ) -> None:
        """`state` is its stored state, and `never_used` the sequences before it that are free."""
        effects = shared.effects
        self.name, self.policy, self.effects, self.progress = name, policy, effects, progress
        self.own = name.startswith(RESERVED_PREFIX)
        """Whether it is the broker's: its readers make no events by reading."""
        self.journaled: bool = policy.journal
        self.committed = policy.committed
        """Whether its subscriptions get durable messages only, by the policy."""
        self._active, self._ageing, self._retentions = shared.active, shared.ageing, shared.retentions
        self.time_ns, self._clocked = state.time_ns if state else 0, effects.time_ns
        self.messages, self.rate = 0, Rate()
        self.switches: Counter[str] = Counter()
        """How often a reader has come to the head, or fallen behind it, by the state that it is in since."""
        self.made_by: str | None = None
        """The user that it counts for, if any."""
        self.lasting = state is not None
        """Whether it was made for more than to be read, and stays until it is deleted."""
        self.changing = self.feeds = 0
        """How many changes of feeds from it are under way, and how many feeds put something into it."""
        self._given_back = progress.next if self.journaled and not state else 0
        """Where it goes on if the broker shuts down cleanly and no more is stored of it."""
        self._unreserved = 0
        """The number of deletions that have taken back the reservation."""
        self._may_age = policy.retention.age_seconds > 0
        self._incoming: tuple[list[str], list[Frame], list[str]] = ([], [], [])
        self._ttl, self._ttls = self._policy_ttl(), list[int]()
        """The expiry of new messages by the policy, and of each message of this iteration, if any expires."""
        self._make_parts(shared, never_used, state.last if state else progress.first_kept - 1)
        if not self.journaled:
            self._begin_epoch(progress.next - 1)

    def _make_parts(self, shared: SharedByStreams, never_used: tuple[int, int], last_found: int) -> None:
        name, effects, progress, is_journaled = self.name, self.effects, self.progress, self.journaled
        self.audience = Audience(self._family_failed, shared.caches)
        self.cursors = Cursors(name, effects, shared.cursors)
        self.numbering = Numbering(name, effects, progress, never_used, journaled=is_journaled)
        self.gaps = Gaps(name, effects, progress, last_found, shared.incarnations, journaled=is_journaled)
        self._births = BirthTimes(progress.next, shared.times_before)
        self.live = LiveDelivery(effects, self.audience, progress, self.activate)
        self.replay = Replay(
            name,
            effects,
            self.audience,
            progress,
            self.gaps,
            self._births,
            self.activate,
            self.live.deliver,
            journaled=is_journaled,
        )
        self.wake, self.forget = self.replay.wake, self.replay.forget

    # Messages in

    def publish(self, sender: str, subjects: Sequence[str], records: Sequence[Frame], ttl: int = 0) -> int:
        """Take messages, to go out at the end of the iteration. Returns the sequence of the first.

        The messages expire after `ttl` milliseconds, or by the policy if that is sooner; 0 is never.
        """
        all_subjects, all_records, all_senders = self._incoming
        first = self.progress.next + len(all_subjects)
        if ttl or self._ttl:
            self._expire_after(ttl, len(subjects))
        all_subjects += subjects
        all_records += records
        all_senders += [sender] * len(subjects)
        self.activate()
        return first

    def _expire_after(self, ttl: int, count: int) -> None:
        """Have so many messages expire that are about to be taken, by the policy or by themselves."""
        ttl = min(filter(None, (ttl, self._ttl)))
        self._ttls += [*repeat(0, len(self._incoming[0]) - len(self._ttls)), *repeat(ttl, count)]

    def forward(self, senders: Sequence[str], subjects: Sequence[str], records: Sequence[Frame]) -> None:
        """Take a message of a feed, stored with this iteration, as the position of the feed is.

        The message expires by the policy.
        """
        if self._ttl:
            self._expire_after(0, len(subjects))
        all_subjects, all_records, all_senders = self._incoming
        all_subjects += subjects
        all_records += records
        all_senders += senders
        self.flush()
        if self.progress.behind:
            self.activate()

    def activate(self) -> None:
        """Flush this stream at the end of the iteration."""
        self._active[self.name] = self

    def flush(self) -> None:
        """Make a chunk of the messages of this iteration, store it and deliver it."""
        subjects, records, senders = self._incoming
        if not subjects:
            if self.progress.behind:
                self.live.dispatch()
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
        progress, effects = self.progress, self.effects
        first, count = progress.next, len(subjects)
        now = effects.time_ns
        self.time_ns, self._clocked = self._at(now), now
        sender = senders[0] if len(set(senders)) == 1 else senders
        columns = Columns(first, self.time_ns, sender, subjects, records)
        if self._ttls:
            columns = self._expiring(columns)
        payload, large = pack_stream_payload(columns)
        loaded = Loaded(Chunk(first, count, self.time_ns, payload, large), columns, effects.now)
        progress.next = first + count
        progress.last = progress.next - 1
        self.messages += count
        self.rate.add(count, effects.now)
        self._store(loaded)
        self.live.add(loaded)

    def _expiring(self, columns: Columns) -> Columns:
        """Return the new messages with their times to live."""
        ttls, self._ttls = self._ttls, []
        ttls += repeat(0, len(columns) - len(ttls))
        waits = self.time_ns > self.effects.time_ns
        self._births.note(self.progress.next, self.time_ns, self.effects.now, waits=waits)
        return Columns(*columns[:5], ttls=ttls[0] if len(set(ttls)) == 1 else ttls)

    def moment(self) -> int:
        """The time now as this stream has it, in nanoseconds UTC."""
        return self._at(self.effects.time_ns)

    def _at(self, now: int) -> int:
        return max(now, self.time_ns + max(0, now - self._clocked) // WAITING_PACE)

    def close(self) -> None:
        """Offer the held chunks, and return unused reserved sequences."""
        self.live.dispatch(wholly=True)
        if self.progress.next > self._given_back:
            self.effects.stage.store(Reserve(self.name, self.progress.next - 1))

    def _family_failed(self, family: str, error: Exception) -> None:
        self.effects.family_failed(family, error, self.audience.failures[family], stream=self.name)

    def store_maker(self) -> None:
        """Store who has made it, with the first that is stored of it."""
        if self.made_by and self.journaled:
            self.effects.stage.store(PutValue(OWNERS, (self.name, ""), self.made_by))

    def store_without_journal(self) -> None:
        """Store that it has no journal, whatever the configuration says."""
        self.effects.stage.store(PutValue(UNJOURNALED, (self.name,), True))

    def _store(self, loaded: Loaded) -> None:
        last, chunk, progress = loaded.chunk.last, loaded.chunk, self.progress
        size_bytes = chunk_bytes(chunk.count, loaded.size_bytes, chunk.large)
        if self.journaled:
            self.numbering.note(chunk)
            self.replay.unstored.append(loaded)
            self.effects.stage.store(
                AppendChunk(self.name, chunk, last + RESERVE, loaded.columns.subjects, self.policy.retention),
                size_bytes=size_bytes,
            )
            is_held, unreserved = last > progress.reserved, self._unreserved
            self.effects.stage.when_stored(
                lambda error: self._stored(last, unreserved, error), awaited=is_held
            )
        elif last + EPOCH // 2 > progress.reserved:
            self._begin_epoch(last, size_bytes if last > progress.reserved else 0)

    def _begin_epoch(self, last: int, held_bytes: int = 0) -> None:
        """Reserve sequences for a stream without a journal. Messages held meanwhile count as accepted."""
        self.effects.stage.store(Reserve(self.name, last + EPOCH), size_bytes=held_bytes)
        self.effects.stage.when_stored(lambda error: self._reserved(last, last + EPOCH, error))

    def _reserved(self, last: int, reserved: int, error: MalamuteError | None) -> None:
        if error is not None:
            self.live.refuse(last)
            return
        self.progress.reserved = max(self.progress.reserved, reserved)
        if self.live.held:
            self.live.dispatch()

    def _stored(self, last: int, unreserved: int, error: MalamuteError | None) -> None:
        if error is not None:
            self._refused(last)
            return
        # A deletion since then has taken back the reservation.
        self._reserved(last, last + RESERVE * (unreserved == self._unreserved), None)
        if self.numbering.unstored_from:
            self.numbering.stored(last)
        if self._may_age and (age_seconds := self.age_seconds):
            self._ageing.stored(age_seconds)
        self.replay.stored()

    def _refused(self, last: int) -> None:
        """Notify readers that the disk has refused a chunk."""
        # All LIVE readers have had the refused chunk, or none of them.
        self.live.dispatch(wholly=True)
        is_sent = self.progress.next_dispatch > last
        self.live.refuse(last)
        loaded = self.replay.refused()
        self.numbering.refused(loaded.chunk)
        if is_sent:
            self.live.announce_refused(loaded, sent=True)
        self.replay.advance()

    def unreserve(self) -> int:
        """Take back the reservation, for a deletion. Returns the first sequence behind it.

        The disk forgets the reservation with the name: new messages wait for one of their own.
        """
        first = self.progress.next
        if self.journaled:
            self._unreserved += 1
            self.progress.reserved = min(self.progress.reserved, first - 1)
        return first

    def forgotten(self, first: int) -> None:
        """Note that the store has forgotten the stream, which stays for its readers, if any."""
        if self.progress.next == first:
            self.progress.last = self.progress.last_stored = self.messages = 0
            self.lasting, self._given_back = False, first

    # How much is kept

    def configure(self, policy: StreamPolicy) -> None:
        """Go by another policy from now on."""
        if policy.retention != self.policy.retention:
            self.effects.stage.store(Retain(self.name, policy.retention))
            self._ageing.look_when_stored()
        self.policy, self.committed = policy, policy.committed
        self._ttl = self._policy_ttl()
        self.begin_ageing()

    def _policy_ttl(self) -> int:
        # Reports of the broker itself are not limited by a publisher's readers.
        return 0 if self.own else self.policy.ttl_ms

    @property
    def retention(self) -> StreamRetention | None:
        """How much of it is kept, if that was set at run time."""
        return self._retentions.get(self.name)

    @property
    def retention_source(self) -> str:
        """Return the source of its retention: `run time`, or the option of the configuration."""
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
        """Store a retention in place of the configured one."""
        self._retentions.put(self.name, retention)
        self.effects.stage.store(PutValue(RETENTIONS, (self.name,), retention))
        self.begin_ageing()
        self._ageing.look_when_stored()

    @property
    def unused(self) -> bool:
        """Whether nothing is kept of it, and nobody reads it."""
        return self.progress.first_kept > self.progress.last and not (
            self.cursors or len(self.audience) or self.feeds
        )

    @property
    def untouched(self) -> bool:
        """Whether nothing has ever come of it."""
        return self.unused and not (self.messages or self._incoming[0])

    @property
    def idle(self) -> bool:
        """Whether it is there for its readers alone, which have never had anything to read."""
        published = self.lasting or self.messages or self._incoming[0]
        return not published and self.progress.first_kept > self.progress.last

    def lag(self, reader: Reader, last: int = NUMBER_MAX) -> int:
        """Return how many messages a reader in REPLAY has before it, up to `last`; 0 for any other."""
        return self.numbering.messages(reader.cursor - 1, last) if reader.state is REPLAY else 0
