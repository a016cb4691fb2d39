"""Readers of a stream: their selectors and positions.

A `Reader` has a selector and a position. Its kinds take the messages: a `Subscription` passes them to a
session within its credit, a `Feed` (`feed.py`) puts them into the queue of a service.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from malamute.core.iteration.credit import CreditBalance
from malamute.core.session.session import Session
from malamute.core.stream.chunk_part import ChunkPart
from malamute.core.stream.reader_state import LIVE, REPLAY, STARTING, ReaderState, change, move
from malamute.matching import Group, Selector
from malamute.protocol.fields import Ranges
from malamute.protocol.messages import (
    BY_TYPE,
    EXPIRED,
    LIMITED,
    NOT_STORED,
    TAKEN_BACK,
    Delivery,
    Gap,
    Ok,
    Subscribe,
    Switch,
    error_message,
)

if TYPE_CHECKING:
    from collections import Counter

    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.stage import WhenStored
    from malamute.core.stream.audience import Audience
    from malamute.core.stream.progress import StreamProgress
    from malamute.errors import MalamuteError


_SUBSCRIBE = BY_TYPE[Subscribe].opcode

RUNS_MAX = 20
"""Runs of messages that have expired, or have not, that a reader in REPLAY is given in one step."""

RUN_WORK = 20
"""The work for each message beside finding it."""


class Position(NamedTuple):
    """Where a subscription begins: the messages `wanted`, if any, and then all from `sequence` on.

    At a quiet position nothing is announced as missing before the first message.
    """

    sequence: int
    quiet: bool = False
    wanted: Sequence[int] = ()

    @property
    def first(self) -> int:
        """The first sequence that can come."""
        return self.wanted[0] if self.wanted else self.sequence


class SourceStream(Protocol):
    """The part of a stream that a reader uses."""

    name: str
    own: bool
    effects: Effects
    audience: Audience
    progress: StreamProgress
    switches: Counter[str]

    def lag(self, reader: Reader) -> int:
        """Return how many messages a reader in REPLAY has before it; 0 for any other."""
        ...

    def wake(self, reader: Reader) -> None:
        """Serve a reader that is behind and has credit, at the end of this iteration."""

    def forget(self, reader: Reader) -> None:
        """A reader has ended."""


class Reader:
    """A reader of a stream, with its position.

    `reader_state` alone changes its state and its cursor. `after` is the last sequence that it was sent, or
    that was announced as missing. `head` is where the stream was when it began: while it is `quiet`, nothing
    is announced as missing before that. If single messages were asked for, they are `wanted`, and later ones
    begin at the head.
    """

    committed = False
    """Whether it takes durable messages only, though it is LIVE."""

    def __init__(self, stream: SourceStream, selector: Selector) -> None:
        self.stream = stream
        self.cost_bytes = 0
        """The memory of its selector in bytes."""
        self.state: ReaderState = STARTING
        self.start = self.after = self.cursor = 0
        self.quiet = self.began_quietly = False
        self.wanted: deque[int] = deque()
        self.head = 0
        self._expired = (0, 0)
        """The first and last expired message that are not reported yet; 0 is none."""
        self.reading = False
        """Whether it waits for a read of the journal."""
        self.joined = 0
        """Where it last joined a pass from further back; from there it goes on by itself."""
        self.delivered = 0
        self.skipped = 0
        self.time_ns = 0
        self.since = stream.effects.now
        self.group: Group = stream.audience.add(id(self), selector, self)

    def begin(self, position: Position) -> None:
        """Go on from a position: LIVE if it is the head."""
        self.wanted.extend(position.wanted)
        self.head = position.sequence if position.wanted else self.stream.progress.next
        self.start = position.first
        self.after = self.start - 1
        if self.start == self.stream.progress.next:
            change(self, "begin at head")
        else:
            change(self, "begin behind", self.start)
        self.quiet = self.began_quietly = position.quiet and self.state is REPLAY
        self._expired = (0, 0)
        self.unblock()

    open: bool
    """Whether it has not ended."""

    @property
    def read_by(self) -> tuple[str, str]:
        """Whose it is: the id of a client, and an address."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether it may be given a message."""
        raise NotImplementedError

    def offer(self, part: ChunkPart) -> int:
        """Take as much of a part as there is room for. Returns the first sequence left out, or 0."""
        raise NotImplementedError

    def give(self, part: ChunkPart) -> int:
        """Offer the unexpired messages of a part, in order, and note the expired ones. Returns as `offer`."""
        now = self.stream.effects.now
        if not part.columns.ttls or part.expires > now:
            if self._expired[0]:
                self.announce_expired()
            return self.offer(part)
        runs = part.runs(now)
        for some, is_expired in runs[:RUNS_MAX] if self.state is REPLAY else runs:
            if is_expired:
                self._note_expired(some.columns.each_sequence())
                continue
            self.announce_expired()
            if left := self.offer(some):
                return left
        self.stream.effects.replay_work -= RUN_WORK * min(len(runs), RUNS_MAX)
        if self.state is not REPLAY:
            self.announce_expired()
        elif len(runs) > RUNS_MAX:
            return runs[RUNS_MAX][0].columns.each_sequence()[0]
        return 0

    def _note_expired(self, sequences: Sequence[int]) -> None:
        # A reader that began at the oldest message does not miss those that had expired before.
        if self.began_quietly and not self.delivered:
            sequences = sequences[bisect_left(sequences, self.head) :]
        if sequences:
            self.skipped += len(sequences)
            self._expired = self._expired[0] or sequences[0], sequences[-1]

    def announce_expired(self) -> None:
        """Report the expired messages since the last delivery, as one gap."""
        (first, last), self._expired = self._expired, (0, 0)
        # An offer between may have ended it.
        if first and self.open:
            self.missed(first, last, EXPIRED)
            self.after = last

    def missed(self, first: int, last: int, reason: str) -> None:
        """Learn that messages are unavailable."""
        raise NotImplementedError

    def refused(self, part: ChunkPart, *, sent: bool) -> None:
        """Handle the refusal of messages by the disk, of a part that was `sent`, or held for it.

        In REPLAY the reader is notified when it comes there.
        """

    def switched(self, state: str, sequence: int) -> None:
        """Learn that it is LIVE or in REPLAY now."""
        raise NotImplementedError

    def fail(self, error: MalamuteError) -> None:
        """Learn that it cannot go on."""
        raise NotImplementedError

    def unblock(self) -> None:
        """Go on if there is a reason to."""
        if self.state is REPLAY and self.ready and not self.reading:
            self.stream.wake(self)

    def cancel(self) -> None:
        """End it."""
        change(self, "end")
        self.stream.audience.remove(id(self))
        self.stream.forget(self)

    def takes(self, first: int, places: Sequence[int]) -> Sequence[int]:
        """Return the places in a chunk that it is to get, from its cursor on; `first` is place 0."""
        before = self.cursor - first
        if before > 0:
            places = places[bisect_left(places, before) :]
        if not self.wanted:
            return places
        wanted = set(self.wanted)
        return [place for place in places if first + place in wanted]

    def move(self, sequence: int) -> None:
        """Move the cursor to a sequence, or to the next one that was asked for."""
        move(self, self._following(sequence) if self.wanted else sequence)
        # Messages between single ones that were asked for are not missing.
        self.quiet = bool(self.wanted)

    def _following(self, sequence: int) -> int:
        """Where to go on when all before `sequence` is done with."""
        while self.wanted and self.wanted[0] < sequence:
            self.wanted.popleft()
            if not self.wanted:
                sequence = max(sequence, self.head)
        return self.wanted[0] if self.wanted else sequence

    def rewind(self, sequence: int) -> None:
        """Go on at another sequence, in REPLAY, without a notice to its client."""
        change(self, "fall behind", sequence)
        self._expired = (0, 0)

    def restart(self) -> None:
        """Forget its position: `begin` has another one."""
        change(self, "restart")
        self._expired = (0, 0)

    def skip(self, last: int, reason: str) -> None:
        """Move the cursor past `last`, and report that the messages up to it are unavailable."""
        if self.quiet:
            move(self, self._following(max(self.cursor, min(last + 1, self.head))))
        if self.cursor > last:
            return
        self.announce_expired()
        self.began_quietly = False
        self.skipped += last - self.cursor + 1
        self.missed(self.cursor, last, reason)
        move(self, last + 1)
        self.after = last

    def fall_behind(self, cursor: int) -> None:
        """Move from LIVE to REPLAY at a cursor, notify its client, and go on if it can."""
        change(self, "fall behind", cursor)
        self._note_switch(cursor)
        self.unblock()

    def catch_up(self) -> None:
        """Move from REPLAY to LIVE, and notify its client."""
        sequence = self.cursor
        change(self, "catch up")
        self._note_switch(sequence)

    def _note_switch(self, sequence: int) -> None:
        self.quiet = self.began_quietly = False
        self.wanted.clear()
        self.stream.switches[self.state] += 1
        self.stream.effects.counters.switches[self.state] += 1
        self.switched(self.state, sequence)


class Subscription(Reader):
    """A subscription of a session to a stream."""

    def __init__(
        self,
        session: Session,
        source: int,
        stream: SourceStream,
        selector: Selector,
        asked: Selector,
        had: int = 0,
        *,
        committed: bool = False,
    ) -> None:
        self.session = session
        self.source = source
        self.had = had
        """The last message that it had on an older connection."""
        self.committed = committed
        self.asked = asked
        """The requested selector, of which it takes the allowed part."""
        self.credit = CreditBalance()
        super().__init__(stream, selector)

    @property
    def read_by(self) -> tuple[str, str]:
        """Whose it is: the id of the client, and its address."""
        return self.session.ident, self.session.address

    @property
    def limited(self) -> bool:
        """Whether it takes less than its client asked for."""
        taken, asked = self.group.selector, self.asked
        return taken.where != asked.where or {*taken.criteria} != {*asked.criteria}

    def accept(self, position: Position, *, announced: bool) -> None:
        """Notify the client where it begins, and before that if it is limited, or LIVE at once."""
        send, peer = self.stream.effects.send, self.session.peer
        if announced and position.first == self.stream.progress.next:
            send(peer, Switch(self.source, LIVE, position.first))
        if self.limited:
            # A client of an older version knows no such state, and goes on.
            send(peer, Switch(self.source, LIMITED, position.first))
        send(peer, Ok(_SUBSCRIBE, self.source, position.first))

    @property
    def open(self) -> bool:  # type: ignore[override]  # the session knows it
        """Whether the session still has it."""
        return self.session.sources.get(self.source) is self

    @property
    def ready(self) -> bool:
        """Whether it may be sent a message."""
        return self.credit.open and not self.session.blocked

    def grant(self, messages: int, size_bytes: int) -> None:
        """Add credit, and wake for waiting messages."""
        self.credit.grant(messages, size_bytes)
        self.unblock()

    def drain(self, held: Ranges, drained: WhenStored) -> None:
        """Take nothing more until there is credit again. Nothing of it goes back anywhere."""
        self.credit.clear()
        drained(None)

    def block(self) -> None:
        """Nothing to do: each delivery asks whether it is `ready`."""

    def offer(self, part: ChunkPart) -> int:
        """Send as much of a part as there is credit for. Returns the first sequence left out, or 0."""
        if self.session.review is not None:
            self.session.review(self.session)
            if not self.open:
                return 0
        credit = self.credit
        if self.session.blocked:
            room = 0
        elif credit.messages >= part.count and credit.bytes >= part.size_bytes:
            room = part.count
        else:
            room = credit.room(part.sizes())
        if room == part.count:
            self._send(part)
            return 0
        if room:
            self._send(ChunkPart(part.columns.take(range(room))))
        return part.columns.each_sequence()[room]

    def _send(self, part: ChunkPart) -> None:
        self.credit.consume(part.count, part.size_bytes)
        self.delivered += part.count
        effects = self.stream.effects
        effects.counters.delivered["stream"] += part.count
        self.session.received += part.count
        effects.send(self.session.peer, Delivery(self.source, self.after, part))
        self.after = part.columns.each_sequence()[-1]
        self.time_ns = part.time_ns

    def refused(self, part: ChunkPart, *, sent: bool) -> None:
        """Notify the client of messages taken back, or unavailable."""
        sequences = part.columns.each_sequence()
        if sent and not self.committed:
            had = [s for s in sequences if s <= self.had or self._has_had(s)]
            if had:
                self.missed(had[0], had[-1], TAKEN_BACK)
        elif self.state is LIVE and sequences[-1] >= self.start:
            first = max(sequences[0], self.start)
            self.skipped += sequences[-1] - first + 1
            self.missed(first, sequences[-1], NOT_STORED)
            self.after = sequences[-1]

    def _has_had(self, sequence: int) -> bool:
        is_past = self.state is LIVE or (self.state is REPLAY and sequence < self.cursor)
        return is_past and self.start <= sequence

    def fail(self, error: MalamuteError) -> None:
        """End it, and send the client the reason."""
        if self.open:
            del self.session.sources[self.source]
            change(self, "end")
            self.stream.effects.ended.append(self)
            self.stream.effects.refuse(self.session.peer, error_message(error, _SUBSCRIBE, self.source))

    def missed(self, first: int, last: int, reason: str) -> None:
        """Notify the client that messages are unavailable."""
        self.stream.effects.counters.gaps[reason] += 1
        self.stream.effects.send(self.session.peer, Gap(self.source, first, last, reason))
        self._report("gap", first=first, last=last, reason=reason)

    def switched(self, state: str, sequence: int) -> None:
        """Notify the client that it is LIVE or in REPLAY now."""
        self.stream.effects.send(self.session.peer, Switch(self.source, state, sequence))
        self._report(state, sequence=sequence)

    def _report(self, what: str, **details: Any) -> None:
        stream, session = self.stream, self.session
        # A reader of the events would read of its own reading for ever.
        if not stream.own:
            stream.effects.event(
                f"subscription.{what}.{stream.name}",
                client=session.ident,
                address=session.address,
                source=self.source,
                **details,
            )
