"""The streams by name: their stored state, and the work of each iteration for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from malamute.core.identity.holdings import Holdings
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.named_table import NamedTable
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.session.session import Session
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.cursors import CursorBudget
from malamute.core.stream.deleted import DeletedStreams
from malamute.core.stream.duplicates import Duplicates
from malamute.core.stream.expiry import TimesBefore
from malamute.core.stream.progress import StreamProgress
from malamute.core.stream.stream import EPOCH, SharedByStreams, Stream
from malamute.core.stream.subscription import Reader
from malamute.errors import InvalidValue, MalamuteError, NotFound, TooMany
from malamute.matching import CacheBudget
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Commit
from malamute.protocol.position import broker_of
from malamute.store.operations import (
    FLOOR,
    DeleteStream,
    ForgetStream,
    NoteRefused,
    Recovered,
    Reserve,
    Retain,
    Stranded,
    StreamState,
)
from malamute.store.policies import KEEP_ALL, StreamPolicy, StreamPolicyOf, StreamRetention
from malamute.store.tables import (
    BEGINNINGS,
    CURSORS,
    OWNERS,
    PUBLISHED,
    RETENTIONS,
    SKIPPED,
    UNJOURNALED,
)

if TYPE_CHECKING:
    from malamute.core.identity.access import Permissions
    from malamute.core.iteration.recovery import Recovery

STREAMS_WORK = 1_000
"""Work that is left for chunks in any iteration."""


class Streams:
    """The streams by name."""

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        policy_of: StreamPolicyOf,
        caches: CacheBudget,
        ageing: Ageing,
        incarnations: Sequence[int] = (),
        *,
        duplicates: Duplicates,
        unjournaled: bool = False,
        broker: str = "",
        held: Holdings | None = None,
        cursors_held: Holdings | None = None,
    ) -> None:
        """New streams begin behind the last of the `incarnations` of the store.

        `broker` is the id of the broker, which positions in its store name.

        `held` and `cursors_held` count the streams and cursors of users.
        """
        self.effects = effects
        self.deleted = DeletedStreams(effects.stage)
        self.incarnation = incarnations[-1] if incarnations else 0
        self.floor = 0
        """The highest sequence of all streams that were deleted. New ones begin behind it."""
        self.broker = broker
        self.duplicates = duplicates
        self.limits = limits
        self.held = held or Holdings("streams")
        self.cursors = CursorBudget(limits, cursors_held or Holdings("cursors"))
        self._policy_of = self._started_with = policy_of
        self.times_before = TimesBefore(effects.time_ns)
        self.epoch_end = 0
        """The reservation for new streams without a journal, which is the floor after a crash."""
        self._unjournaled = unjournaled
        self.by_name: NamedTable[Stream] = NamedTable()
        self.active: dict[str, Stream] = {}
        self.retentions: StoredValues[str, StreamRetention] = StoredValues(effects.stage)
        """How much of a stream is kept, where that was set at run time."""
        self.shared = SharedByStreams(
            effects,
            ageing,
            caches,
            self.cursors,
            self.retentions,
            self.times_before,
            incarnations,
            self.active,
        )

    def _make(self, name: str, state: StreamState | None = None, *, journal: bool = True) -> Stream:
        """Return a new stream, or one that the store has in this state; without a `journal` in any case."""
        begin = state.reserved if state else self.floor
        first_kept, last = (state.first, state.last) if state else (begin + 1, 0)
        progress = StreamProgress(max(begin, self.incarnation), first_kept, last)
        never_used = (1, 0) if state else (self.deleted.last(name) + 1, begin)
        policy = self.policy(name)
        if not journal:
            policy = policy._replace(journal=False)
        if last:
            # The durable store has it, whatever the rule says of new streams.
            policy = policy._replace(journal=True)
        stream = Stream(name, policy, self.shared, progress, never_used, state)
        if state is None and not stream.journaled:
            progress.reserved = max(progress.reserved, self.epoch_end)
        return stream

    def policy(self, name: str) -> StreamPolicy:
        """Return the policy of a stream. The store that it lies in is that of the start."""
        found = self.by_name.get(name)
        journal = self._started_with(name).journal if found is None else found.journaled
        return self._policy_of(name)._replace(journal=journal)

    def retention(self, name: str) -> StreamRetention:
        """How much of a stream is kept: as it was set at run time, or else as it is configured."""
        return self.retentions.get(name) or self.policy(name).retention

    def begin_ageing(self) -> None:
        """Schedule the drop of old messages, if any stream has a limit by age."""
        if any([stream.begin_ageing() for stream in self.by_name.values()]):
            self.shared.ageing.look_when_stored()

    def configure(self, policy_of: StreamPolicyOf, limits: Limits) -> None:
        """Go by other policies and limits from now on; `Stream.configure` does so for each stream."""
        self._policy_of, self.limits = policy_of, limits
        self.cursors.each_max = limits.cursors

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Restore the stored streams, with their cursors and values."""
        recovery.take_up("table", "deleted streams", self.deleted.restore, recovered)
        beginnings, skipped = recovered.table(BEGINNINGS), recovered.table(SKIPPED)
        unjournaled = recovered.table(UNJOURNALED)
        for name, state in recovered.streams.items():
            refused = recovered.refused.get(name, ())
            numbering = beginnings.get((name,), (1, 0)), skipped.get((name,), ())
            journal = (name,) not in unjournaled
            recovery.take_up("stream", name, self._restore, name, state, refused, numbering, journal)
        for (name, cursor), sequence in recovered.table(CURSORS).items():
            self.keep(name).cursors[cursor] = sequence
        for name, cursor in recovered.lost_keys(CURSORS):
            self.keep(name).cursors.lost.add(cursor)
        self._restore_values(recovered)
        published = recovered.table(PUBLISHED)
        recovery.take_up("table", "ids of messages", self.duplicates.restore, published, self.by_name)
        self.begin_ageing()

    def _restore_values(self, recovered: Recovered) -> None:
        """Restore the values of existing streams."""
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
        elif cursor in stream.cursors or cursor in stream.cursors.lost:
            stream.cursors.owners[cursor] = user

    def _restore(
        self,
        name: str,
        state: StreamState,
        refused: Sequence[NoteRefused],
        numbering: tuple[Any, Any],
        journal: bool,
    ) -> None:
        """Restore one stream, and the ranges that the disk had `refused`."""
        if name == FLOOR:
            self.floor = max(self.floor, state.reserved)
        else:
            stream = self.by_name[name] = self._make(name, state, journal=journal)
            stream.gaps.restore(refused)
            stream.numbering.restore(*numbering, refused)
            if stream.policy.retention != KEEP_ALL:
                self.effects.stage.store(Retain(name, stream.policy.retention))

    def store_again(self, stranded: Stranded) -> None:
        """The store has lost this: cursors of readers and ids that are in it are stored once more."""
        self.duplicates.store_again(stranded.keys(PUBLISHED))
        for name, cursor in stranded.keys(CURSORS):
            stream = self.by_name.get(name)
            # A feed sees to its own, as changes of it may be under way.
            if stream is not None and cursor in stream.cursors and not cursor.startswith(FEED_PREFIX):
                stream.cursors.commit(cursor, stream.cursors[cursor])
        for name, cursor in stranded.keys(OWNERS):
            stream = self.by_name.get(name)
            if stream is not None and cursor in stream.cursors.owners:
                owners = stream.cursors.owners
                owners.rely_on_changes(cursor.__eq__)
                stream.cursors.give(cursor, owners[cursor])
            elif stream is not None and not cursor:
                stream.store_maker()

    def free(self, name: str, last: int, following: int) -> None:
        """Store that a name is free with a deletion, and that sequences before `following` are used up.

        `last` is the last message that the stream had.
        """
        self.floor = max(self.floor, following - 1)
        self.deleted.add(name, last, self.floor)
        if self._unjournaled:
            self.begin_epoch()
        else:
            self.effects.stage.store(Reserve(FLOOR, self.floor))

    def begin_epoch(self) -> None:
        """Store the floor, and ahead of it the reservation of streams without a journal."""
        reserved = max(self.floor, self.incarnation) + EPOCH
        self.effects.stage.store(Reserve(FLOOR, reserved))

        def begun(error: MalamuteError | None) -> None:
            if error is None:
                self.epoch_end = max(self.epoch_end, reserved)

        self.effects.stage.when_stored(begun)

    def close(self) -> None:
        """Give back the sequences that were reserved and not used."""
        for stream in self.by_name.values():
            self.effects.guard("the end of a stream", stream.close)
        if self._unjournaled:
            self.effects.stage.store(Reserve(FLOOR, self.floor))

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
        if message.sequence >= stream.progress.next:
            raise InvalidValue(
                f"sequence {message.sequence} is beyond the head: expected at most {stream.progress.next - 1}"
            )
        stream.cursors.commit(message.cursor, message.sequence, may.principal.user)

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
            owner = found.cursors.owners.get(cursor, "") if found is not None else ""
            may.require_cursor("subscribe", stream, cursor, owner)
        if found is not None:
            found.cursors.check(cursor, user)
            return
        self.cursors.check(cursor)
        if user is not None:
            self.cursors.check_share(cursor, user)

    def get(self, name: str, user: str | None = None, *, journal: bool = True) -> Stream:
        """The stream of this name, made if needed; then it counts for the user, if it is one's.

        A new one is without a `journal` whatever the policy says.

        Raises `TooMany` or `QuotaExceeded`.
        """
        stream = self.by_name.get(name)
        if stream is None:
            if len(self.by_name) >= self.limits.streams:
                raise TooMany(f"too many streams: expected at most {self.limits.streams}")
            if user is not None:
                self.held.check(user, 1, self.limits.streams - len(self.by_name))
            stream = self._make(name, journal=journal)
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
                self.effects.stage.store(DeleteStream(stream.name), ForgetStream(stream.name))
            self.effects.event(f"stream.collected.{stream.name}")

    def trimmed(self, firsts: Mapping[str, int]) -> None:
        """The ring has dropped the oldest messages of some streams: these are their first ones now."""
        for name, first in firsts.items():
            if (stream := self.by_name.get(name)) is not None:
                stream.progress.first_kept = max(stream.progress.first_kept, first)

    def keep(self, name: str) -> Stream:
        """Return the stream of this name, made if needed: the broker's own, or one with promised values."""
        if name not in self.by_name:
            self.by_name[name] = self._make(name)
        self.by_name[name].lasting = True
        return self.by_name[name]

    def flush(self) -> None:
        """Send and store the messages of the iteration."""
        active = list(self.active.values())
        self.active.clear()
        # Work from earlier iterations leaves some for new messages.
        self.effects.work = max(self.effects.work, STREAMS_WORK)
        waiting: list[Stream] = []
        served: list[Stream] = []
        for stream in active:
            waits = stream.progress.behind and self.effects.work <= 0
            stream.flush()
            if stream.replay.waking:
                if self.effects.replay_work > 0:
                    self.effects.guard("replay", stream.replay.advance)
                else:
                    waits = True
            (waiting if waits else served).append(stream)
        # Readers not served are the first in the next iteration.
        for stream in [*waiting, *served]:
            if stream.progress.behind or stream.replay.waking:
                self.active.pop(stream.name, None)
                self.active[stream.name] = stream
