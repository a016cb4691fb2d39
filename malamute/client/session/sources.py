"""The client's view of sources of deliveries: streams, and queues (the mailbox, and offers to work).

A *stream source* has a position, `last`. Every delivery names the one before it (`after`); if that is not the
position, something was lost on the way and the session resumes. A GAP moves the position and is an event; one
behind the position reports that the broker has lost delivered messages. Batches stay columns until a consumer
pops a chunk of them; a chunk is consumed, and its credit due again, when the next one is popped. So a slow
consumer holds one window, and a fast one is never paused.

A *queue source* hands out single messages, each to be finished (acknowledged, or answered). A message is

    waiting      delivered, and not handed out yet
    held         handed out, and not finished
    outstanding  delivered on this connection and not finished: it can be acknowledged

When the connection breaks the broker takes back outstanding messages, and redelivers them later. Waiting
messages are dropped here. Held ones stay with their consumer, so their redelivery is a duplicate and not
handed out again. Messages finished in between, acknowledged or rejected, are settled as soon as they are
redelivered. Messages released in between are already in the queue. A RECALL takes back single messages in the
same way.

A request is completed by a reply, which may cross its own redelivery on the way. The order of the wire tells
the order at the broker: a reply refused before the redelivery arrives was late, and the request has to be
done again; otherwise the reply is good, and the redelivery that arrives afterwards is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

from malamute.client.events import Gap
from malamute.client.session.message import Message, Rejection
from malamute.client.session.window import Window
from malamute.errors import MalamuteError
from malamute.protocol.batch import Columns, Frame
from malamute.protocol.fields import Ranges
from malamute.protocol.limits import RANGES_MAX
from malamute.protocol.messages import Ack, Offer, Reject, Subscribe, Watch
from malamute.protocol.position import StorePosition
from malamute.protocol.start import NEW, SEQ, Start

CHUNK_MESSAGES = 1000
"""Maximum messages popped from a window at once."""

ACKS_MAX = 100
"""Maximum acknowledgements that wait to be sent."""

FINISHED_MAX = 100_000
"""Maximum messages remembered as finished while they could not be acknowledged. Further ones may be handed
out again."""

REPORTED_GAPS_MAX = 100
"""Maximum remembered gaps. Beyond it the oldest may be reported again."""

_UNCOUNTED = -1
"""In place of the size of an outstanding message that is not counted as held."""


class Source:
    """The common part of sources: an id, a window of credit, and an end."""

    def __init__(self, number: int, window: Window) -> None:
        self.number = number
        self.window = window
        self.open = False
        self.ended = False
        self.draining = False
        """Whether the source is draining: no more is to be consumed."""
        self.drains = 0
        """Number of unconfirmed drains: deliveries until then are no longer for this client."""
        self.error: MalamuteError | None = None

    def end(self, error: MalamuteError | None = None) -> None:
        """End the source."""
        self.ended = True
        self.error = error

    def restart(self) -> None:
        """Handle a lost connection: forget its state."""
        raise NotImplementedError

    def command(self) -> Subscribe | Offer | Watch:
        """Return the command that begins the source, or resumes it at its position."""
        raise NotImplementedError

    def opened(self, value: Any) -> None:
        """Note that the broker accepted that command."""
        self.open = True


class StreamSource(Source):
    """A subscription."""

    def __init__(self, number: int, window: Window, subscribe: Subscribe) -> None:
        super().__init__(number, window)
        self._subscribe = subscribe
        self.stream = subscribe.stream
        self.cursor = subscribe.cursor
        self.first: int | None = None
        self.last: int | None = None
        self.store = ""
        """The store of the position; empty before the broker has accepted the subscription."""
        self.had = 0
        """The sequence of the last received message; 0 before there is one."""
        self.waiting = 0
        self.popped = 0
        """Number of messages handed out, with those of the present call."""
        self.limited = self._narrowed = False
        self.gaps = 0
        self.recent_gaps: deque[Gap] = deque(maxlen=REPORTED_GAPS_MAX)
        self.gap_places: deque[int] = deque(maxlen=REPORTED_GAPS_MAX)
        """For each gap, the number of messages before it."""
        self.state = ""
        """`live` or `replay`, as the broker reported last; empty before the subscription is open."""
        self._reported: list[tuple[int, int]] = []
        """Reported gaps among received messages, with no two that touch."""
        self._batches: deque[tuple[Columns, str]] = deque()
        """The waiting deliveries, each with its store."""
        self._offset = 0
        self._chunk = (0, 0)
        self._asked = 0
        start = Start.parse(subscribe.start)
        self._begins_at_head = start.kind == NEW and not subscribe.cursor
        if start.kind == SEQ and not subscribe.cursor:
            self.last = start.value - 1

    def command(self) -> Subscribe:
        """Return SUBSCRIBE, from the position on if there is one."""
        subscribe = self._subscribe
        self._asked = 0 if self.last is None else self.last + 1
        if self.last is not None and self.store:
            # At another broker the subscription begins with its original start.
            subscribe = subscribe._replace(resume=str(StorePosition(self.last, self.store)))
        if self.first is not None:
            # The stream exists: one in memory exists again after a restart of the broker.
            subscribe = subscribe._replace(existing=False)
        credit, credit_bytes = self.window.grant()
        return subscribe._replace(credit=credit, credit_bytes=credit_bytes, had=self.had)

    def restart(self) -> None:
        """Keep waiting batches: the position is behind them."""
        self.open = False
        self.state = ""

    def opened(self, value: Any) -> None:
        """Accept the broker's position, if there is none yet.

        A first sequence below the requested one means that the broker has lost its store: all messages are
        new. One beyond means that there never was a message before it: the stream was created again.
        """
        super().opened(value)
        self.limited, self._narrowed = self._narrowed, False
        if type(value) is int and self.first is None:
            self.first = value
            if self._begins_at_head:
                self.state = "live"
        # The broker reports before that if it is live.
        self.state = self.state or "replay"
        if type(value) is int and (self.last is None or value < self._asked or value > self.last + 1):
            self.last = value - 1
            self.had = 0
            self._reported.clear()

    def narrow(self) -> None:
        """Note that the broker's next answer accepts only a part of the selection."""
        self._narrowed = True

    def deliver(self, after: int, columns: Columns) -> bool:
        """Accept a delivery. Return False, without a change, if it does not follow the one before."""
        if after != self.last or not len(columns):
            return False
        self.last = self.had = columns.each_sequence()[-1]
        self.window.arrived(len(columns), _size(columns.subjects, columns.records))
        self._batches.append((columns, self.store))
        self.waiting += len(columns)
        return True

    def gap(self, first: int, last: int) -> bool:
        """Note unavailable messages. Return False if the gap is already known.

        Messages at the position or before were delivered, then taken back; or a GAP of an older connection is
        read late, after a larger one that includes it.
        """
        is_news = self._is_news(first, last)
        if self.last is None or last > self.last:
            self.last = last
        elif not is_news:
            return False
        return True

    def begin_anew(self, last: int) -> None:
        """Continue behind `last` in another store than before."""
        self.last, self.had = last, 0
        self._reported.clear()

    def note_gap(self, gap: Gap) -> None:
        """Remember a gap behind the messages received until now."""
        self.gaps += 1
        self.recent_gaps.append(gap)
        self.gap_places.append(self.popped + self.waiting)

    def _is_news(self, first: int, last: int) -> bool:
        """Return whether a gap is new, and remember it."""
        near = [gap for gap in self._reported if gap[0] <= last + 1 and first <= gap[1] + 1]
        if any(gap[0] <= first and last <= gap[1] for gap in near):
            return False
        rest = [gap for gap in self._reported if gap not in near]
        firsts, lasts = zip((first, last), *near, strict=True)
        self._reported = [*rest, (min(firsts), max(lasts))][-REPORTED_GAPS_MAX:]
        return True

    def consume(self) -> None:
        """Count the last chunk as consumed."""
        self.window.consumed(*self._chunk)
        self._chunk = (0, 0)

    def pop_messages(self) -> Iterator[Message]:
        """Yield the next chunk of messages. The chunk counts as held until `consume`.

        Messages are made while the iterator is driven: a message that is dropped at once costs no memory.
        """
        most = left = self._chunk_messages()
        parts: list[Iterator[Message]] = []
        while self._batches and left:
            store = self._batches[0][1]
            part = self._cut(left)
            left -= len(part)
            parts.append(_messages(part, store))
        self.waiting -= most - left
        self.popped += most - left
        return parts[0] if len(parts) == 1 else chain.from_iterable(parts)

    def pop_columns(self) -> Columns:
        """Return a run of waiting messages as columns. The run counts as held until `consume`."""
        part = self._cut(self._chunk_messages())
        self.waiting -= len(part)
        self.popped += len(part)
        return part

    def pop_run(self, most: int, most_bytes: int) -> tuple[Columns, str, tuple[int, int]]:
        """Return waiting messages of one store as columns, the store, and their count and size.

        There are at most so many, and one, or not much more than so many bytes. The caller counts them as
        consumed, by `Window.consumed`, when they are safe elsewhere.
        """
        store = self._batches[0][1]
        parts = [self._cut(most)]
        count = len(parts[0])
        while count < most and self._chunk[1] < most_bytes and self._batches and self._batches[0][1] == store:
            parts.append(self._cut(most - count))
            count += len(parts[-1])
        self.waiting -= count
        self.popped += count
        size, self._chunk = self._chunk, (0, 0)
        return parts[0] if len(parts) == 1 else _joined(parts), store, size

    def _chunk_messages(self) -> int:
        # A quarter of the window: when it is consumed, the broker still has credit to go on with.
        window = self.window.messages
        return CHUNK_MESSAGES if window < 0 else min(CHUNK_MESSAGES, max(1, window // 4))

    def _cut(self, most: int) -> Columns:
        (batch, _), start = self._batches[0], self._offset
        stop = min(start + most, len(batch))
        if stop == len(batch):
            self._batches.popleft()
            self._offset = 0
        else:
            self._offset = stop
        part = batch if stop - start == len(batch) else _slice(batch, start, stop)
        messages, size_bytes = self._chunk
        self._chunk = messages + len(part), size_bytes + _size(part.subjects, part.records)
        return part


def _messages(part: Columns, store: str) -> Iterator[Message]:
    messages = map(
        Message,
        part.each_sequence(),
        part.each_time(),
        part.each_sender(),
        part.subjects,
        part.records,
        repeat(store),
    )
    return map(Message.expiring, messages, part.each_ttl()) if part.ttls else messages


def _size(subjects: Sequence[str], records: Sequence[Frame]) -> int:
    return sum(map(len, subjects)) + sum(map(len, records))


def _joined(parts: Sequence[Columns]) -> Columns:
    sequences, times = [*chain.from_iterable(part.each_sequence() for part in parts)], parts[-1].times
    senders = [*chain.from_iterable(part.all_senders() for part in parts)]
    subjects = [*chain.from_iterable(part.subjects for part in parts)]
    records = [*chain.from_iterable(part.records for part in parts)]
    return Columns(sequences, times if isinstance(times, int) else times[-1], senders, subjects, records)


def _slice(batch: Columns, start: int, stop: int) -> Columns:
    times, senders, ttls = batch.times, batch.senders, batch.ttls
    return Columns(
        batch.each_sequence()[start:stop],
        times if isinstance(times, int) else times[start:stop],
        senders if isinstance(senders, str) else senders[start:stop],
        batch.subjects[start:stop],
        batch.records[start:stop],
        ttls=ttls if isinstance(ttls, int) else ttls[start:stop],
    )


class Item(NamedTuple):
    """A queued message as it arrived."""

    sequence: int
    time_ns: int
    sender: str
    subject: str
    record: Frame
    attempts: int
    properties: Mapping[str, Any] | None


_item: Callable[[Iterable[Any]], Item] = partial(tuple.__new__, Item)  # as its class would, in C


class ConsumerSource(Source):
    """The mailbox, or an offer to work for a service."""

    def __init__(self, number: int, window: Window, offer: Offer | None = None) -> None:
        super().__init__(number, window)
        self._offer = offer
        self.name = "" if offer is None else offer.service
        """The service; empty for the mailbox."""
        self.ack_timeout = 0.0
        """Seconds after which the broker takes back messages without a settlement or a report; 0 is never."""
        self.waiting: deque[Item] = deque()
        self.closed = False
        """Whether the mailbox is open for replies and outcomes alone."""
        self.paused = False
        """Whether the mailbox has no credit, since neither mail nor replies are awaited."""
        self.outstanding: dict[int, int] = {}
        self._held: set[int] = set()
        self._finished: dict[int, Rejection | None] = {}
        self.answered: set[int] = set()
        """Requests whose reply may cross their redelivery."""
        self.acks = 0
        """Acknowledgements and rejections that wait to be sent."""
        self._acks: list[int] = []
        self._rejects: dict[int, Rejection] = {}

    def command(self) -> Offer:
        """Return OFFER, with the whole window: no message is outstanding on a new connection."""
        assert self._offer is not None
        credit, credit_bytes = self.window.grant()
        return self._offer._replace(credit=credit, credit_bytes=credit_bytes)

    def opened(self, value: Any) -> None:
        """Note that the broker accepted the offer, with the ack timeout in force."""
        super().opened(value)
        self.ack_timeout = value / 1000 if type(value) is int else 0.0

    def give_up(self) -> Ranges:
        """Stop, and release waiting messages. Return the held ones, as ranges.

        With more gaps than a command can name, the last range spans some of them.
        """
        self.waiting.clear()
        for sequence in [*self.outstanding.keys() - self._held]:
            self._drop(sequence)
        self.drains += 1
        ranges = ranges_of(self.outstanding)
        return [*ranges[0][:-1], [ranges[0][-1][0], ranges[-1][-1][1]]] if ranges else []

    def restart(self) -> None:
        """Handle a lost connection: the broker has taken back outstanding messages."""
        self.open = False
        self.drains = 0
        self.waiting.clear()
        self.window.forget()
        self.answered.clear()
        self._finished.update(dict.fromkeys(self._acks))
        self._finished.update(self._rejects)
        self._acks.clear()
        self._rejects.clear()
        self.acks = 0
        self.outstanding.clear()

    def arrive(self, columns: Columns, *, counted: bool = True) -> list[Item]:
        """Accept a delivery. Return its new items, which the caller stores.

        Items not counted as held use up no credit while they wait.
        """
        outstanding, new = self.outstanding, []
        count = self.window.arrived if counted else self.window.passed
        for item in map(_item, columns.rows()):
            if item.sequence in outstanding:
                # A second delivery of an outstanding message was left over from an older connection.
                continue
            size_bytes = len(item.subject) + len(item.record)
            count(1, size_bytes)
            outstanding[item.sequence] = size_bytes if counted else _UNCOUNTED
            # Only a redelivery can be a known message; a queue that was lost and created again counts from 1
            # again.
            if item.attempts == 1 or self._is_new(item):
                new.append(item)
        return new

    def _is_new(self, item: Item) -> bool:
        if item.sequence in self._acks or item.sequence in self._rejects:
            # The settlement made before the redelivery is good for this delivery, too.
            self._drop(item.sequence)
            return False
        if item.sequence in self._finished:
            self.finish(item.sequence, rejection=self._finished.pop(item.sequence))
            return False
        if item.sequence in self.answered:
            self.answered.discard(item.sequence)
            self.finish(item.sequence, acknowledge=False)
            return False
        return item.sequence not in self._held

    def is_due(self) -> bool:
        """Return whether a wait for a message is over."""
        return bool(self.waiting) or self.ended or self.draining or self.closed

    @property
    def has_one(self) -> bool:
        """Return whether a message waits to be handed out."""
        return bool(self.waiting) and not self.draining and not self.closed

    def hand_out(self) -> Item:
        """Return the next waiting message, which is held from now on."""
        item = self.waiting.popleft()
        self._held.add(item.sequence)
        return item

    def finish(self, sequence: int, *, acknowledge: bool = True, rejection: Rejection | None = None) -> None:
        """Acknowledge a message, or reject it, now or when it is redelivered.

        Without `acknowledge` a request is completed by its reply.
        """
        if not self._drop(sequence):
            if not acknowledge:
                if len(self.answered) < FINISHED_MAX:
                    self.answered.add(sequence)
            elif len(self._finished) < FINISHED_MAX:
                self._finished[sequence] = rejection
        elif rejection is not None:
            self._rejects[sequence] = rejection
            self.acks += 1
        elif acknowledge:
            self._acks.append(sequence)
            self.acks += 1

    def give_back(self, sequence: int) -> bool:
        """Return a message to the queue. The result is whether the broker has it still outstanding here."""
        return self._drop(sequence)

    def _drop(self, sequence: int) -> bool:
        """Hold a message no more. Return whether it was outstanding."""
        self._held.discard(sequence)
        size_bytes = self.outstanding.pop(sequence, None)
        if size_bytes is None:
            return False
        if size_bytes != _UNCOUNTED:
            self.window.consumed(1, size_bytes)
        return True

    def recall(self, ranges: Ranges, *, comes_again: bool) -> list[int]:
        """Handle a recall. Return the sequences that were outstanding here.

        Held messages stay in their owner's hands, since they may be redelivered while the handler is at work.
        """
        taken = self.outstanding_of(ranges)
        held = self._held.intersection(taken) if comes_again else ()
        for sequence in taken:
            self._drop(sequence)
        self._held.update(held)
        removed = set(taken)
        if removed:
            self.waiting = deque(item for item in self.waiting if item.sequence not in removed)
        return taken

    def outstanding_of(self, ranges: Ranges) -> list[int]:
        """Return the sequences of these ranges that are outstanding here."""
        return [s for first, last in ranges for s in self._within(first, last)]

    def _within(self, first: int, last: int) -> list[int]:
        if last - first < len(self.outstanding):
            return [sequence for sequence in range(first, last + 1) if sequence in self.outstanding]
        return [sequence for sequence in self.outstanding if first <= sequence <= last]

    def among_outstanding(self, sequences: Iterable[int]) -> list[int]:
        """Return the outstanding ones among these sequences."""
        return [sequence for sequence in sequences if sequence in self.outstanding]

    def release(self) -> bool:
        """Count no earlier arrival as held, so that replies may come past them. Return whether one did."""
        released = False
        for sequence, size_bytes in self.outstanding.items():
            if size_bytes != _UNCOUNTED:
                self.window.consumed(1, size_bytes)
                self.outstanding[sequence] = _UNCOUNTED
                released = True
        return released

    def pop_ranges(self) -> Ranges:
        """Return the acknowledgements for a command to carry; none if they are more than it may have."""
        acks = self._acks
        count = len(acks)
        if not 0 < count <= RANGES_MAX:
            return []
        self._acks = []
        self.acks -= count
        return ranges_of(acks)[0] if count > 1 else [[acks[0], acks[0]]]

    @property
    def acks_due(self) -> bool:
        """Return whether as many acknowledgements wait to be sent as messages are left here."""
        return self.acks >= len(self.outstanding)

    def pop_acks(self) -> list[Ack | Reject]:
        """Return the acknowledgements as few commands, and the rejections."""
        acks = [Ack(self.number, ranges) for ranges in ranges_of(self._acks)]
        rejects = [Reject(self.number, [[s, s]], *rejection) for s, rejection in self._rejects.items()]
        self._acks.clear()
        self._rejects.clear()
        self.acks = 0
        return [*acks, *rejects]


def ranges_of(sequences: Iterable[int]) -> list[Ranges]:
    """Return sequences as ranges, cut to the limit of one command."""
    ranges: list[list[int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    return [ranges[start : start + RANGES_MAX] for start in range(0, len(ranges), RANGES_MAX)]
