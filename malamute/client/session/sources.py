"""The sources of deliveries, seen by the client: streams, and queues (the mailbox, and offers to work).

A *stream source* has a position, `last`. Every delivery names the one before it (`after`); if that is not the
position, something was lost on the way and the session resumes. A GAP moves the position and is an event; one
that lies behind the position says that the broker has lost what it had delivered. Batches stay columns until
a consumer pops a chunk of them; a chunk is consumed, and its credit due again, when the next one is popped.
So a slow consumer holds one window, and a fast one is never paused.

A *queue source* hands out single messages, each to be finished (acknowledged, or answered). A message is

    waiting      delivered, and not handed out yet
    held         handed out, and not finished
    outstanding  delivered on this connection and not finished: what the broker lets us acknowledge

When the connection breaks the broker takes back what is outstanding, and redelivers it later. What was
waiting here is dropped. What is held stays with its consumer, so its redelivery is a duplicate and not handed
out again. What was finished in between, acknowledged or rejected, is settled as soon as it is redelivered.
What was given back in between is where it belongs. A RECALL takes back single messages in the same way.

A request is completed by a reply, which may cross its own redelivery on the way. The order of the wire says
which came first at the broker: if the reply did, it is refused before the redelivery arrives, and the request
has to be done again; if not, the reply is good, and the redelivery that arrives afterwards is dropped.
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
from malamute.protocol.messages import Ack, Offer, Reject, Subscribe
from malamute.protocol.position import StorePosition
from malamute.protocol.start import SEQ, Start

CHUNK_MESSAGES = 1000
"""Messages taken out of a window at once, at most."""

ACKS_MAX = 100
"""Acknowledgements that wait to be sent, at most."""

FINISHED_MAX = 100_000
"""Messages remembered as finished while they could not be acknowledged. Past it they may be handed out
again."""

REPORTED_GAPS_MAX = 100
"""Gaps that are remembered as reported. Past it the oldest may be reported again."""

_UNCOUNTED = -1
"""In place of the size of an outstanding message that is not counted as held."""


class Source:
    """What all sources have: an id, a window of credit, and an end."""

    def __init__(self, number: int, window: Window) -> None:
        self.number = number
        self.window = window
        self.open = False
        self.ended = False
        self.draining = False
        """Whether nothing more is to be taken from here."""
        self.drains = 0
        """Drains that the broker has not confirmed: what comes until then is no longer for us."""
        self.error: MalamuteError | None = None

    def end(self, error: MalamuteError | None = None) -> None:
        """Nothing more comes from here."""
        self.ended = True
        self.error = error

    def restart(self) -> None:
        """The connection broke: forget what belonged to it."""
        raise NotImplementedError

    def command(self) -> Subscribe | Offer:
        """The command that begins it, or begins it again where it was."""
        raise NotImplementedError

    def opened(self, value: Any) -> None:
        """The broker accepted that command."""
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
        """The store that the position is of; empty before the broker has accepted the subscription."""
        self.had = 0
        """The last message that has come; 0 before there is one."""
        self.waiting = 0
        self.popped = 0
        """How many messages were handed out, or are about to be."""
        self.limited = self._narrowed = False
        self.gaps = 0
        self.recent_gaps: deque[Gap] = deque(maxlen=REPORTED_GAPS_MAX)
        self.gap_places: deque[int] = deque(maxlen=REPORTED_GAPS_MAX)
        """How many messages had come before each of them."""
        self.state = ""
        """`live` or `replay`, as the broker said it last; empty while it has said neither."""
        self._reported: list[tuple[int, int]] = []
        """The gaps in what had come, with no two that touch."""
        self._batches: deque[tuple[Columns, str]] = deque()
        """Return the waiting deliveries, and the store that they are of."""
        self._offset = 0
        self._chunk = (0, 0)
        self._asked = 0
        start = Start.parse(subscribe.start)
        if start.kind == SEQ and not subscribe.cursor:
            self.last = start.value - 1

    def command(self) -> Subscribe:
        """SUBSCRIBE, from the position on if there is one."""
        subscribe = self._subscribe
        self._asked = 0 if self.last is None else self.last + 1
        if self.last is not None and self.store:
            # At another broker it begins as it was asked for.
            subscribe = subscribe._replace(resume=str(StorePosition(self.last, self.store)))
        if self.first is not None:
            # The stream was there: one in memory is there again after a restart of the broker.
            subscribe = subscribe._replace(existing=False)
        credit, credit_bytes = self.window.grant()
        return subscribe._replace(credit=credit, credit_bytes=credit_bytes, had=self.had)

    def restart(self) -> None:
        """Batches that wait here are good: the position is behind them."""
        self.open = False
        self.state = ""

    def opened(self, value: Any) -> None:
        """Take the position that the broker names, if there is none yet.

        A first sequence below what was asked for means that the broker has lost its store: all of it is new.
        One beyond means that there never was anything before it: the stream was created again.
        """
        super().opened(value)
        self.limited, self._narrowed = self._narrowed, False
        if type(value) is int and self.first is None:
            self.first = value
        if type(value) is int and (self.last is None or value < self._asked or value > self.last + 1):
            self.last = value - 1
            self.had = 0
            self._reported.clear()

    def narrow(self) -> None:
        """The broker accepts a part of what was asked for, with its next answer."""
        self._narrowed = True

    def deliver(self, after: int, columns: Columns) -> bool:
        """Accept a delivery. Returns False, and changes nothing, if it does not follow the one before."""
        if after != self.last or not len(columns):
            return False
        self.last = self.had = columns.each_sequence()[-1]
        self.window.arrived(len(columns), _size(columns.subjects, columns.records))
        self._batches.append((columns, self.store))
        self.waiting += len(columns)
        return True

    def gap(self, first: int, last: int) -> bool:
        """These messages are unavailable. Returns False if that is known already.

        What lies at the position or before it was delivered, and was taken back; or a GAP of an older
        connection is read late, of which a larger one was the outcome.
        """
        is_news = self._is_news(first, last)
        if self.last is None or last > self.last:
            self.last = last
        elif not is_news:
            return False
        return True

    def begin_anew(self, last: int) -> None:
        """Go on behind `last` in another store than before."""
        self.last, self.had = last, 0
        self._reported.clear()

    def note_gap(self, gap: Gap) -> None:
        """Remember a gap behind what has come until now."""
        self.gaps += 1
        self.recent_gaps.append(gap)
        self.gap_places.append(self.popped + self.waiting)

    def _is_news(self, first: int, last: int) -> bool:
        """Whether a gap was not reported yet. It is from now on."""
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
        """Pop the next chunk of messages. It counts as held until `consume`.

        They are made while the iterator is driven: a message that is dropped at once costs no memory.
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
        """Pop a run of messages as columns, when some are waiting. It counts as held until `consume`."""
        part = self._cut(self._chunk_messages())
        self.waiting -= len(part)
        self.popped += len(part)
        return part

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
        """Seconds after which the broker takes back what is neither settled nor reported on; 0 is never."""
        self.waiting: deque[Item] = deque()
        self.closed = False
        """For the mailbox: whether it is open for replies and outcomes alone, and nobody takes mail."""
        self.paused = False
        """For the mailbox: whether it has no credit, since nobody takes or awaits anything."""
        self._outstanding: dict[int, int] = {}
        self._held: set[int] = set()
        self._finished: dict[int, Rejection | None] = {}
        self.answered: set[int] = set()
        """Requests whose reply may cross their redelivery."""
        self._acks: list[int] = []
        self._rejects: dict[int, Rejection] = {}

    def command(self) -> Offer:
        """OFFER, with the whole window: nothing is outstanding on a new connection."""
        assert self._offer is not None
        credit, credit_bytes = self.window.grant()
        return self._offer._replace(credit=credit, credit_bytes=credit_bytes)

    def opened(self, value: Any) -> None:
        """The broker accepted the offer, and named the ack timeout in force."""
        super().opened(value)
        self.ack_timeout = value / 1000 if type(value) is int else 0.0

    def give_up(self) -> Ranges:
        """Expect nothing more, and release what was not handed out. Returns what is still held, as ranges.

        There may be more gaps in that than a command can name: the last range spans some of them then.
        """
        self.waiting.clear()
        for sequence in [*self._outstanding.keys() - self._held]:
            self._drop(sequence)
        self.drains += 1
        ranges = ranges_of(self._outstanding)
        return [*ranges[0][:-1], [ranges[0][-1][0], ranges[-1][-1][1]]] if ranges else []

    def restart(self) -> None:
        """The broker has taken back what was outstanding."""
        self.open = False
        self.drains = 0
        self.waiting.clear()
        self.window.forget()
        self.answered.clear()
        self._finished.update(dict.fromkeys(self._acks))
        self._finished.update(self._rejects)
        self._acks.clear()
        self._rejects.clear()
        self._outstanding.clear()

    def arrive(self, columns: Columns, *, counted: bool = True) -> list[Item]:
        """Take a delivery. The result is what is new here; the caller puts it where it waits.

        What is not counted as held uses no credit up while it waits here.
        """
        return [item for item in map(_item, columns.rows()) if self._is_new(item, counted)]

    def _is_new(self, item: Item, counted: bool) -> bool:
        if item.sequence in self._outstanding:
            # The broker gives nothing out twice: the first one was left over from an older connection.
            return False
        size_bytes = len(item.subject) + len(item.record)
        self.window.arrived(1, size_bytes)
        self._outstanding[item.sequence] = size_bytes if counted else _UNCOUNTED
        if not counted:
            self.window.consumed(1, size_bytes)
        # Only a redelivery can be one of ours; a queue that was lost and created again counts from 1 again.
        if item.attempts == 1:
            return True
        if item.sequence in self._acks or item.sequence in self._rejects:
            # It was redelivered before it was said how it is settled, which is good for this delivery, too.
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

    @property
    def has_one(self) -> bool:
        """Whether there is a message for the program to take."""
        return bool(self.waiting) and not self.draining and not self.closed

    def hand_out(self) -> Item:
        """The next waiting message, which is held from now on."""
        item = self.waiting.popleft()
        self._held.add(item.sequence)
        return item

    def finish(self, sequence: int, *, acknowledge: bool = True, rejection: Rejection | None = None) -> None:
        """Acknowledge a message, or reject it, now or when it is redelivered.

        Not to `acknowledge` is for a request that is completed by its reply.
        """
        if not self._drop(sequence):
            if not acknowledge:
                if len(self.answered) < FINISHED_MAX:
                    self.answered.add(sequence)
            elif len(self._finished) < FINISHED_MAX:
                self._finished[sequence] = rejection
        elif rejection is not None:
            self._rejects[sequence] = rejection
        elif acknowledge:
            self._acks.append(sequence)

    def give_back(self, sequence: int) -> bool:
        """Give a message back to the queue. Returns whether the broker has it still outstanding here."""
        return self._drop(sequence)

    def _drop(self, sequence: int) -> bool:
        """Hold it no more. Returns whether it was outstanding."""
        self._held.discard(sequence)
        size_bytes = self._outstanding.pop(sequence, None)
        if size_bytes is not None and size_bytes != _UNCOUNTED:
            self.window.consumed(1, size_bytes)
        return size_bytes is not None

    def recall(self, ranges: Ranges, *, comes_again: bool) -> list[int]:
        """The broker took these back. The result is those that it had from here.

        What is held stays in its owner's hands, since it may be redelivered while its handler is at work.
        """
        taken = [s for first, last in ranges for s in self._within(first, last)]
        held = self._held.intersection(taken) if comes_again else ()
        for sequence in taken:
            self._drop(sequence)
        self._held.update(held)
        removed = set(taken)
        if removed:
            self.waiting = deque(item for item in self.waiting if item.sequence not in removed)
        return taken

    def _within(self, first: int, last: int) -> list[int]:
        if last - first < len(self._outstanding):
            return [sequence for sequence in range(first, last + 1) if sequence in self._outstanding]
        return [sequence for sequence in self._outstanding if first <= sequence <= last]

    def among_outstanding(self, sequences: Iterable[int]) -> list[int]:
        """Those of them that are outstanding."""
        return [sequence for sequence in sequences if sequence in self._outstanding]

    def release(self) -> None:
        """Count nothing that arrived before as held, so that more may come past it."""
        for sequence, size_bytes in self._outstanding.items():
            if size_bytes != _UNCOUNTED:
                self.window.consumed(1, size_bytes)
                self._outstanding[sequence] = _UNCOUNTED

    @property
    def acks(self) -> int:
        """How many acknowledgements and rejections wait to be sent."""
        return len(self._acks) + len(self._rejects)

    def pop_ranges(self) -> Ranges:
        """The acknowledgements for a command to carry; none if they are more than it may have."""
        if not 0 < len(self._acks) <= RANGES_MAX:
            return []
        (ranges,) = ranges_of(self._acks)
        self._acks.clear()
        return ranges

    def pop_acks(self) -> list[Ack | Reject]:
        """The acknowledgements as few commands, and the rejections."""
        acks = [Ack(self.number, ranges) for ranges in ranges_of(self._acks)]
        rejects = [Reject(self.number, [[s, s]], *rejection) for s, rejection in self._rejects.items()]
        self._acks.clear()
        self._rejects.clear()
        return [*acks, *rejects]


def ranges_of(sequences: Iterable[int]) -> list[Ranges]:
    """Sequences as ranges, cut to what one command may have."""
    ranges: list[list[int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    return [ranges[start : start + RANGES_MAX] for start in range(0, len(ranges), RANGES_MAX)]
