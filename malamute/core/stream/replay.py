"""Replay: serving the subscriptions of a stream that are behind.

A subscription that is behind and has credit *wakes*. At the end of the iteration it is served from where its
cursor is: out of the chunks that wait for the disk, which are in memory, or by a read from the journal, whose
result comes in a later iteration. A read is bounded, and so is the number of reads in one iteration, so
readers take turns and memory stays within bounds however many there are.

A read and the readers served by it are a *pass*. Readers that wait at the same place share one. A reader that
is close in front of one joins it: it waits until those behind have come nearer, and where they meet all
become one pass, for which each chunk is decoded and looked up once. A reader joins once at each place, so a
follower delays it by one read at the most. No reader waits so for a costly selector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING

from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.stream.chunk import Loaded
from malamute.core.stream.expiry import BirthTimes
from malamute.core.stream.reader_state import REPLAY
from malamute.core.stream.subscription import Reader
from malamute.errors import MalamuteError
from malamute.matching import CompiledSelector, Group
from malamute.protocol.messages import NO_JOURNAL
from malamute.store.operations import Chunk, Damage, ReadChunks, ReadResult

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.stream.audience import Audience
    from malamute.core.stream.gaps import Gaps
    from malamute.core.stream.progress import StreamProgress

READ_BYTES = 1 << 20
"""How much of the journal one read brings."""

READS_MAX = 16
"""Reads that are handed out in one iteration, with those whose results are still being served."""

STEP = 2_000
"""Work between two looks at whether there is some left, in expressions to evaluate."""

SERVE_WORK = 20
"""The work of serving a reader beside finding and encoding its messages."""

PASS_WORK = 3
"""The work for a reader without messages."""

READERS_STEP = 500
"""Readers that are moved on between two looks at whether there is work left."""

READERS_PASSED = 1
"""Readers without a match that are moved on in a microsecond, of many that share a look-up."""

REACH_READS = 4
"""How far in front of a pass a reader may be to join it, in reads."""


class _Pass:
    """A read, and the readers served by it."""

    __slots__ = ("costly", "going", "outdated", "readers", "served", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.served = start - 1
        """The last message of the chunk that is being served, or before the first one."""
        self.readers: dict[int, Reader] = {}
        """All that wait for it to end."""
        self.going: dict[int, Reader] = {}
        """The readers that are to get the rest."""
        self.outdated = False
        """Whether messages were deleted since: nobody is served any more, and all read again."""
        self.costly = False
        """Whether a reader's selector is: no other is to wait for such a one without need."""

    def add(self, reader: Reader, *, costly: bool) -> None:
        self.readers[id(reader)] = self.going[id(reader)] = reader
        self.costly |= costly

    def remove(self, reader: Reader) -> None:
        self.readers.pop(id(reader), None)
        self.going.pop(id(reader), None)


class Replay:
    """The subscriptions of one stream that are behind."""

    def __init__(
        self,
        name: str,
        effects: Effects,
        audience: Audience,
        progress: StreamProgress,
        gaps: Gaps,
        births: BirthTimes,
        activate: Callable[[], None],
        deliver: Callable[[Loaded], None],
        *,
        journaled: bool,
    ) -> None:
        """`activate` has it advance at the end of the iteration.

        `deliver` gives a chunk that is on the disk to the readers that waited for that.
        """
        self._name = name
        self._effects = effects
        self._audience = audience
        self._progress = progress
        self._gaps = gaps
        self._births = births
        self._activate = activate
        self._deliver = deliver
        self._journaled = journaled
        self.waking: dict[int, Reader] = {}
        self.unstored: deque[Loaded] = deque()
        """Chunks that wait for the disk, in order."""
        self.patient: dict[int, Reader] = {}
        """Readers that wait for messages on their way to the disk."""
        self._selectors: dict[Group, CompiledSelector] = {}
        """Made ready for those that are behind."""
        self._passes: list[_Pass] = []
        """The passes under way."""
        self._reach = 0
        """How many messages the last read brought."""

    def wake(self, subscription: Reader) -> None:
        """Serve a subscription that is behind and has credit, at the end of this iteration."""
        self.waking[id(subscription)] = subscription
        self._activate()

    def forget(self, subscription: Reader) -> None:
        """A subscription has ended."""
        self.waking.pop(id(subscription), None)
        self.patient.pop(id(subscription), None)
        self._selectors.pop(subscription.group, None)

    def leave(self, subscription: Reader) -> None:
        """Take a reader out of the reads that it waits for: it goes on from another sequence."""
        for under_way in self._passes:
            under_way.remove(subscription)
        self.waking.pop(id(subscription), None)
        subscription.reading = False

    def read_again(self) -> None:
        """End all passes, since messages were deleted that a read may have brought before."""
        for under_way in self._passes:
            under_way.outdated = True
            under_way.going.clear()

    def advance(self) -> None:
        """Serve those that woke up, from memory or with a read from the journal."""
        for subscription in list(self.waking.values()):
            if self._effects.replay_work <= 0:
                return
            if not subscription.open:
                # The pass has failed in this iteration, at whose end it is ended.
                del self.waking[id(subscription)]
                continue
            try:
                self._advance(subscription)
            except Exception as error:
                self._fail(subscription, error)

    def _fail(self, subscription: Reader, error: Exception) -> None:
        """A fault ends the one subscription that met it."""
        self.waking.pop(id(subscription), None)
        subscription.fail(self._effects.fault("replay", error))

    def stored(self) -> None:
        """The oldest chunk that waited for the disk is on it."""
        loaded, progress = self.unstored[0], self._progress
        progress.durable = progress.known = loaded.chunk.last
        if loaded.later:
            self._deliver(loaded)
        self._wake_patient()
        # A reader that waits is served while the chunk is in memory, which saves reading it back.
        if self.waking:
            self.advance()
        self.unstored.popleft()
        progress.last_stored = loaded.chunk.last

    def refused(self) -> Loaded:
        """The oldest chunk that waited for the disk was refused by it."""
        loaded = self.unstored.popleft()
        self._progress.known = loaded.chunk.last
        self._gaps.refuse(loaded.chunk.first, loaded.chunk.last)
        self._wake_patient()
        return loaded

    def _wake_patient(self) -> None:
        for reader in self.patient.values():
            reader.unblock()

    def _advance(self, subscription: Reader) -> None:
        progress = self._progress
        head = progress.next_dispatch
        if not self._journaled:
            subscription.skip(head - 1, NO_JOURNAL)
        if subscription.committed:
            head = min(head, progress.known + 1)
        while subscription.ready and subscription.cursor < head:
            if self._effects.replay_work <= 0:
                # The others have their turn before it goes on.
                self.waking[id(subscription)] = self.waking.pop(id(subscription))
                return
            if subscription.cursor <= progress.last_stored:
                self._read(subscription)
                return
            loaded = self._in_memory(subscription.cursor, head)
            if loaded is None:
                subscription.skip(head - 1, self._gaps.reason(subscription.cursor, head - 1))
            else:
                self._serve(subscription, loaded)
        if subscription.ready and progress.behind:
            # The reader becomes LIVE when no chunk is under way to LIVE ones.
            return
        del self.waking[id(subscription)]
        if subscription.ready:
            self._catch_up(subscription)

    def _catch_up(self, subscription: Reader) -> None:
        """Make a reader at the head LIVE, unless it waits for single messages."""
        subscription.announce_expired()
        if subscription.committed and subscription.wanted:
            self.patient[id(subscription)] = subscription
            return
        if subscription.committed:
            self._note_later(subscription)
            self.patient.pop(id(subscription), None)
        self._selectors.pop(subscription.group, None)
        subscription.catch_up()

    def _in_memory(self, sequence: int, head: int) -> Loaded | None:
        """The chunk before `head` that waits for the disk and holds `sequence`, or else the next one."""
        for loaded in self.unstored:
            if sequence <= loaded.chunk.last < head:
                return loaded
        return None

    def _note_later(self, subscription: Reader) -> None:
        """Have a reader wait for messages on their way to the disk."""
        for loaded in self.unstored:
            if (
                max(self._progress.known, subscription.cursor - 1)
                < loaded.chunk.last
                < self._progress.next_dispatch
            ):
                selector = self._selector(subscription.group)
                selected = loaded.places(selector, 0, loaded.chunk.count)
                places = subscription.takes(loaded.chunk.first, selected)
                if places:
                    loaded.later[id(subscription)] = subscription, loaded.part(places)
                work = SERVE_WORK + selector.pop_spent() + loaded.pop_spent()
                self._effects.replay_work -= work

    def _read(self, subscription: Reader) -> None:
        """Have it wait for a read that is under way, or else for its own if there may be one more."""
        effects = self._effects
        costly = self._audience.is_costly(subscription.group)
        under_way = self._pass_for(subscription, costly=costly)
        if under_way is None and len(effects.reads) + effects.replaying < READS_MAX:
            under_way = self._begin_pass(subscription)
        if under_way is not None:
            del self.waking[id(subscription)]
            subscription.reading = True
            under_way.add(subscription, costly=costly)

    def _pass_for(self, subscription: Reader, *, costly: bool) -> _Pass | None:
        """The nearest pass that begins where a reader is, or that it joins."""
        cursor = subscription.cursor
        near = [
            some
            for some in self._passes
            if some.start <= cursor and some.served < cursor and not some.outdated
        ]
        found = max(near, key=attrgetter("served", "start"), default=None)
        if found is None or found.start == cursor:
            return found
        if subscription.joined == cursor or cursor - found.served > REACH_READS * self._reach:
            return None
        if costly or found.costly or subscription.wanted:
            return None
        subscription.joined = cursor
        return found

    def _begin_pass(self, subscription: Reader) -> _Pass:
        # Single messages lie far apart: a longer read would be in vain.
        size_bytes = 1 if subscription.wanted else READ_BYTES
        under_way = _Pass(subscription.cursor)
        self._passes.append(under_way)
        # The read may miss messages stored meanwhile.
        self._effects.ask(
            ReadChunks(self._name, under_way.start, size_bytes),
            partial(self._replayed, under_way, self._progress.last_stored),
            partial(self._not_replayed, under_way),
        )
        return under_way

    def _replayed(self, under_way: _Pass, last: int, result: ReadResult) -> None:
        """Serve the result of a read; `last` was on the disk at its request."""
        self._progress.first_kept = max(self._progress.first_kept, result.first)
        if result.found:
            self._reach = result.found[-1].last + 1 - under_way.start
        self._effects.replaying += 1
        run_workflow(self._effects, self._replay(under_way, last, result))

    def _replay(self, under_way: _Pass, last: int, result: ReadResult) -> Workflow:
        """Serve the readers of a pass, as far as there is work in each iteration."""
        going = under_way.going
        try:
            for found in result.found:
                under_way.served = found.last
                if isinstance(found, Damage):
                    yield from self._skip_all(going, found)
                elif under_way.outdated or found.last >= self._progress.next_dispatch:
                    # The read has overtaken the answer of the commit. Chunks held for that answer are offered
                    # to all readers LIVE then, and each of these will be.
                    break
                else:
                    yield from self._serve_all(going, found)
                # A reader that has not had all of this must not get the following messages. A new read serves
                # it.
                for key in [key for key, reader in going.items() if reader.cursor <= under_way.served]:
                    del going[key]
        finally:
            self._passes.remove(under_way)
            self._effects.replaying -= 1
        for subscription in under_way.readers.values():
            if not subscription.open:
                continue
            subscription.reading = False
            if not result.found:
                subscription.skip(last, self._gaps.reason(subscription.cursor, last))
            subscription.unblock()

    def _skip_all(self, going: dict[int, Reader], damage: Damage) -> Workflow:
        """Notify the readers of a pass of unavailable messages."""
        while self._effects.replay_work <= 0:
            yield GO_ON
        self._effects.replay_work -= PASS_WORK * len(going)
        for subscription in [*going.values()]:
            if subscription.open and subscription.ready:
                subscription.skip(damage.last, damage.reason)

    def _not_replayed(self, under_way: _Pass, error: MalamuteError) -> None:
        """A read came to nothing: the readers that waited for it learn why."""
        self._passes.remove(under_way)
        for subscription in under_way.readers.values():
            if subscription.open:
                subscription.reading = False
                if subscription.cursor > under_way.start:
                    # Its own messages lie further on.
                    subscription.unblock()
                else:
                    subscription.fail(error)

    def _serve_all(self, going: dict[int, Reader], chunk: Chunk) -> Workflow:
        """Serve a chunk to the readers that are ready for it."""
        loaded = Loaded.read(chunk)
        if loaded.columns.ttls:
            loaded.born = self._births.counted(chunk.first, chunk.time_ns)
        effects = self._effects
        shared = self._audience.shares(len({subscription.group for subscription in going.values()}))
        readers = [*going.values()]
        step = STEP if shared else chunk.count
        for start, number in product(range(0, chunk.count, step), range(0, len(readers), READERS_STEP)):
            while effects.replay_work <= 0:
                yield GO_ON
            some = readers[number : number + READERS_STEP]
            stop = min(start + step, chunk.count)
            for subscription in self._move_on(going, some, loaded, start, stop) if shared else some:
                try:
                    # Between two steps one may end, or be rewound.
                    while id(subscription) in going and subscription.open and subscription.ready:
                        if subscription.cursor >= chunk.first + stop:
                            break
                        if effects.replay_work > 0:
                            self._serve(subscription, loaded, shared=shared)
                        else:
                            yield GO_ON
                except Exception as error:
                    self._fail(subscription, error)

    def _move_on(
        self, going: dict[int, Reader], readers: list[Reader], loaded: Loaded, start: int, stop: int
    ) -> list[Reader]:
        """Move readers past some places of a chunk that have nothing for them. Returns the others."""
        try:
            found = loaded.shared(self._audience, start, stop)
        except Exception:
            # Each of them meets it for itself.
            return readers
        first, after = loaded.chunk.first + start, loaded.chunk.first + stop
        places_of = self._audience.places_of
        left: list[Reader] = []
        for reader in readers:
            if reader.cursor < first or places_of(reader.group, found) != ():
                left.append(reader)
            elif reader.cursor < after and id(reader) in going:
                reader.move(after)
        self._effects.replay_work -= len(readers) // READERS_PASSED + loaded.pop_spent()
        return left

    def _serve(self, subscription: Reader, loaded: Loaded, *, shared: bool = False) -> None:
        """Serve a chunk, or as much of it as is looked at in one step, from the cursor on.

        If it is `shared` by many, its messages are looked up for all of them.
        """
        chunk = loaded.chunk
        if subscription.cursor < chunk.first:
            subscription.skip(chunk.first - 1, self._gaps.reason(subscription.cursor, chunk.first - 1))
        if shared:
            start = (subscription.cursor - chunk.first) // STEP * STEP
            stop = min(start + STEP, chunk.count)
            audience = self._audience
            places = audience.places_of(subscription.group, loaded.shared(audience, start, stop))
            if places is not None:
                self._pass(subscription, loaded, places, stop)
                return
        selector = self._selector(subscription.group)
        start, stop = 0, chunk.count
        if selector.work:
            start = max(subscription.cursor - chunk.first, 0)
            stop = min(stop, start + max(1, STEP // selector.work))
        self._pass(subscription, loaded, loaded.places(selector, start, stop), stop)
        self._effects.replay_work -= selector.pop_spent()

    def _pass(self, subscription: Reader, loaded: Loaded, places: Sequence[int], stop: int) -> None:
        """Offer the messages at some places of a chunk to a reader, and be done with all before `stop`."""
        first = loaded.chunk.first
        places = subscription.takes(first, places) if places else ()
        left = subscription.give(loaded.part(places)) if places else 0
        # A review of its session may have ended it.
        if subscription.state is REPLAY:
            subscription.move(left or first + stop)
        # Others may share the work of finding and encoding its messages.
        self._effects.replay_work -= (SERVE_WORK if places else PASS_WORK) + loaded.pop_spent()

    def _selector(self, group: Group) -> CompiledSelector:
        selector = self._selectors.get(group)
        if selector is None:
            selector = self._selectors[group] = CompiledSelector(group.selector, self._audience.failed)
        return selector
