"""The session: the whole mind of a client, without a socket, a clock, a thread or chance.

An edge owns one session and one DEALER socket whose routing id is the session's `identity`. It tells what
happens to the connection (`connected`, `disconnected`) and what comes in (`receive`), and after each of these
and after each command it has to

    - send what `next_to_send` shows, calling `sent` for each that the socket took;
    - hand `take_events` to the user;
    - look again at whatever it waits for.

Commands never wait. They return something to look at (`Command.done`, `Source.open`, `Query.done`,
`Exchange.waiting`); the edge's only art is to wait until it has changed. When `error` is set the session is
over, and everything that was waited for has that error.

    LOST ──connected──▶ OPENING ──WELCOME──▶ READY ──▶ ENDED     by an error, or BYE and its OK
      ▲                    │ ▲                 │
      └────disconnected────┴─┼────────────────-┤
                             └─────resync──────┘

*Resync* is HELLO on a connection that still stands: for a hole in a source, for a command that reached a
broker which does not know us any more (405), for a number that left a hole (421). After WELCOME everything is
set up again, in one place (`_resume`), whether the connection was new or not: sources from their positions
with fresh credit, questions without answer, and all unsettled commands with their old numbers.
A resync that helps nothing is tried `RESYNCS_MAX` times, and then the session ends with the error.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from malamute.client.credit import Window
from malamute.client.events import Connected, Event, Gap, Lost, Recalled, Refusal, Slow, Switched
from malamute.client.outbox import WINDOW_COMMANDS, Command, Outbox, Tracking
from malamute.client.questions import Asking, Query, Questions
from malamute.client.replies import Awaited, Exchange
from malamute.client.sources import Item, QueueSource, Source, StreamSource, ranges_of
from malamute.errors import (
    Closed,
    ConnectionLost,
    InvalidName,
    InvalidValue,
    MalamuteError,
    Malformed,
    TooLarge,
    from_wire,
)
from malamute.protocol import messages as wire
from malamute.protocol.batch import split_large, unpack_payload
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import CRITERIA_MAX, PATTERN_BYTES_MAX, RECORD_LARGE_BYTES, Limits
from malamute.protocol.messages import BY_TYPE, MAILBOX, VERSION, Frame
from malamute.protocol.names import is_name

RESYNCS_MAX = 5
"""Resyncs in a row that brought nothing, before the session gives up."""

REPLIES_CREDIT = 1000
REPLIES_CREDIT_BYTES = 8 * 1024 * 1024
"""The window of a mailbox that is open for replies only."""

Criteria = Sequence[tuple[str, Any]]


class State(enum.Enum):
    """Where a session stands."""

    LOST = "lost"
    OPENING = "opening"
    READY = "ready"
    ENDED = "ended"


class Session:
    """One client, over all its connections."""

    def __init__(self, identity: bytes, *, address: str = "", software: str = "") -> None:
        if address and not is_name(address):
            raise InvalidName(f"no valid address: {address!r}")
        self.identity = identity
        self.address = address
        self.software = software
        self.state = State.LOST
        self.error: MalamuteError | None = None
        self.broker = b""
        self.limits = Limits()
        self.outbox = Outbox()
        self.mailbox: QueueSource | None = None
        self._mail_timeout = 0.0
        self.closing = False
        self._sources: dict[int, Source] = {}
        self._next_source = MAILBOX + 1
        self._questions = Questions()
        self._awaited = Awaited(f"{identity[:8].hex()}-")
        self._out: deque[tuple[Sequence[Frame], Command | None]] = deque()
        self._parked: deque[Command] = deque()
        self._parked_bytes = 0
        self._events: list[Event] = []
        self._resyncs = 0

    # Events in

    def connected(self) -> None:
        """The transport stands, anew or for the first time: say HELLO."""
        if self.state is not State.ENDED:
            self._hello("the connection to the broker was replaced")

    def disconnected(self) -> None:
        """The transport broke. It will be mended by itself."""
        if self.state in (State.OPENING, State.READY):
            self._drop("the connection to the broker broke")
            self.state = State.LOST
            self._resyncs = 0

    def receive(self, frames: Sequence[Frame]) -> None:
        """Take what came in. Never raises for what a broker sent."""
        try:
            message = decode(frames)
            handler = _HANDLERS[self.state].get(type(message))
            if handler is None:
                raise Malformed(f"{type(message).__name__} is not for a client")
            handler(self, message)
        except MalamuteError as error:
            self._events.append(Refusal(error))

    def _hello(self, reason: str) -> None:
        self._drop(reason)
        self.state = State.OPENING
        hello = wire.Hello([VERSION], self.address, self.software, self.outbox.unsettled)
        self._out.append((encode(hello), None))

    def _drop(self, reason: str) -> None:
        """Forget what was meant for the old connection; park what is not numbered."""
        if self.state is State.READY:
            self._events.append(Lost(reason))
        for _, command in self._out:
            if command is not None and not command.number:
                self._park(command)
        self._out.clear()
        for source in self._all_sources():
            source.restart()
        for command in (*self.outbox.commands(), *self._parked):
            if command.completes and (offer := self._offer(command)):
                offer.answered.add(command.completes[1])

    def _offer(self, command: Command) -> QueueSource | None:
        source = self._sources.get(command.completes[0]) if command.completes else None
        return source if isinstance(source, QueueSource) else None

    def _resync(self, error: MalamuteError) -> None:
        self._resyncs += 1
        if self._resyncs > RESYNCS_MAX:
            self._end(error)
        else:
            self._hello(f"the session has to be opened anew: {error}")

    def _welcome(self, welcome: wire.Welcome) -> None:
        self.state = State.READY
        self.broker = welcome.broker
        known = {name: n for name, n in welcome.limits.items() if name in Limits._fields}
        self.limits = Limits(**known)
        self._mail_timeout = welcome.limits.get("ack_timeout", 0) / 1000
        self.outbox.window_commands = max(1, min(WINDOW_COMMANDS, self.limits.unconfirmed))
        self._events.append(Connected(welcome.broker.hex(), welcome.resumed))
        self._resume()

    def _resume(self) -> None:
        for source in self._sources.values():
            self._control(source.command())
        if self.mailbox is not None:
            self.mailbox.ack_timeout = self._mail_timeout
            self._control(wire.Credit(MAILBOX, *self.mailbox.window.grant()))
        for asking in self._questions.asked():
            self._control(asking)
        for command in (*self.outbox.commands(), *self._parked):
            self._out.append((command.frames, command))
        self._parked.clear()
        self._parked_bytes = 0
        for ping in self._questions.pings():
            self._control(ping)
        if self.closing:
            self._control(wire.Bye())

    def _all_sources(self) -> list[Source]:
        mailbox = [] if self.mailbox is None else [self.mailbox]
        return [*self._sources.values(), *mailbox]

    def _end(self, error: MalamuteError) -> None:
        self.state = State.ENDED
        self.error = error
        self._out.clear()
        self._parked.clear()
        self.outbox.fail(error)
        self._questions.fail(error)
        self._awaited.fail(error)
        for source in self._all_sources():
            source.end(error)

    # What the edge has to do

    @property
    def clear(self) -> bool:
        """Whether a command may go to the socket at once: ready, and nothing waits before it."""
        return self.state is State.READY and not self._out

    @property
    def blocked(self) -> bool:
        """Whether something waits for a connection that stands, but takes no more."""
        return self.state is State.READY and bool(self._out)

    def next_to_send(self) -> Sequence[Frame] | None:
        """The frames to send next, or None. They stay next until `sent`."""
        return self._out[0][0] if self._out else None

    def sent(self) -> None:
        """The socket took what was next."""
        self._out.popleft()

    def take_events(self) -> Sequence[Event]:
        """What happened since the last call."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    # Commands that carry messages

    def room(self, *, numbered: bool) -> bool:
        """Whether one more command may be given: the window, or what may be parked, has room for it."""
        if self.blocked:
            return False
        return self.outbox.room if numbered else self._parked_bytes < self.outbox.window_bytes

    def publish(
        self, stream: str, subjects: Sequence[str], records: Sequence[Frame], command: Command | None = None
    ) -> None:
        """Publish to a stream; with `command`, confirmed."""
        if command is not None:
            command.count = len(subjects)
        self._carry(wire.Publish, stream, subjects, records, command)

    def send(
        self,
        address: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Send to a mailbox; with `command`, confirmed. All of them have the same `options`."""
        properties = [options] * len(subjects) if options else None
        self._carry(wire.Send, address, subjects, records, command, properties)

    def send_tracked(
        self, address: str, subject: str, record: Frame, command: Command, options: Mapping[str, Any]
    ) -> Tracking:
        """Send one message to a mailbox, confirmed, whose outcome comes to the tracking.

        The tracker may be among the options; otherwise it gets one. Raises `InvalidValue` without an address.
        """
        if not self.address:
            raise InvalidValue("a client without an address cannot learn an outcome: connect with one")
        tracker = options.get("tracker") or self._awaited.new_tracker()
        tracking = Tracking(tracker, command)
        self.send(address, [subject], [record], command, {**options, "tracker": tracker})
        self._awaited.track(tracking)
        if self.mailbox is None:
            self.open_mailbox(REPLIES_CREDIT, REPLIES_CREDIT_BYTES)
        return tracking

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """While somebody waits for an outcome, it can come past mail that nobody takes."""
        self._awaited.outcomes += 1
        self._make_way()
        try:
            yield
        finally:
            self._awaited.outcomes -= 1

    def _make_way(self) -> None:
        if self.mailbox is not None:
            self.mailbox.release()
            self.refill(self.mailbox)

    def withdraw(self, kind: str, name: str, correlation: int | str) -> Query:
        """Take back what was sent under a correlation and is not settled; the answer is how many."""
        return self._ask(lambda ref: wire.Withdraw(ref, kind, name, correlation))

    def request(
        self,
        service: str,
        subject: str,
        record: Frame,
        *,
        numbered: bool,
        options: Mapping[str, Any] | None = None,
    ) -> Exchange:
        """Send one request. The replies come to the exchange; `forget` it when they matter no more."""
        exchange = self._awaited.new_exchange()
        command = exchange.command if numbered else None
        properties = {**(options or {}), "correlation": exchange.correlation}
        self._carry(wire.Request, service, [subject], [record], command, [properties])
        if self.mailbox is None:
            self.open_mailbox(REPLIES_CREDIT, REPLIES_CREDIT_BYTES)
        if self._awaited.begin(exchange):
            # The reply may stand behind mail that nobody takes now.
            self._make_way()
        return exchange

    def reply(
        self,
        offer: QueueSource,
        sequence: int,
        record: Frame,
        command: Command | None = None,
        *,
        final: bool,
    ) -> None:
        """Reply to a request of an offer; with `command`, confirmed.

        A final reply completes the request, and frees its credit.
        """
        inline, large = split_large([record])
        number = 0 if command is None else self.outbox.next_number
        frames = encode(wire.Reply(offer.number, number, [sequence], [final], inline, large))
        numbered, command = command is not None, command or Command()
        command.completes = (offer.number, sequence) if final else None
        self._submit(command, frames, len(record), numbered=numbered)
        if final:
            offer.finish(sequence, acknowledge=False)
            self.refill(offer)

    def _carry(
        self,
        kind: Callable[..., wire.Message],
        target: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None,
        *more: Any,
    ) -> None:
        size_bytes = sum(map(len, records))
        if size_bytes > self.limits.message_bytes:
            raise TooLarge(f"{size_bytes} bytes in one command; {self.limits.message_bytes} is the most")
        if not is_name(target):
            raise InvalidName(f"no valid name: {target!r}")
        # Most commands have nothing large, and looking for it would take as long as encoding them.
        inline, large = split_large(records) if size_bytes >= RECORD_LARGE_BYTES else (records, ())
        number = 0 if command is None else self.outbox.next_number
        message = kind(target, number, subjects, inline, *more, large)
        self._submit(command or Command(), encode(message), size_bytes, numbered=command is not None)

    def _submit(self, command: Command, frames: Sequence[Frame], size_bytes: int, *, numbered: bool) -> None:
        self.check()
        if numbered:
            self.outbox.add(command, frames, size_bytes)
        else:
            command.frames, command.size_bytes = frames, size_bytes
        if self.state is State.READY:
            self._out.append((frames, command))
        elif not numbered:
            self._park(command)

    def _park(self, command: Command) -> None:
        self._parked.append(command)
        self._parked_bytes += command.size_bytes

    # Sources

    def commit(self, stream: str, cursor: str, sequence: int, command: Command) -> None:
        """Set a cursor of a stream behind a sequence, confirmed."""
        if not is_name(cursor):
            raise InvalidName(f"no valid name for a cursor: {cursor!r}")
        frames = encode(wire.Commit(stream, self.outbox.next_number, cursor, sequence))
        self._submit(command, frames, 0, numbered=True)

    def subscribe(
        self,
        stream: str,
        criteria: Criteria,
        *,
        where: str,
        start: str,
        credit: int,
        credit_bytes: int,
        cursor: str = "",
    ) -> StreamSource:
        """Subscribe. It stands when `open` is set, and was refused when `ended` is."""
        _check_criteria(stream, criteria)
        if cursor and not is_name(cursor):
            raise InvalidName(f"no valid name for a cursor: {cursor!r}")
        subscribe = wire.Subscribe(
            self._next_source, stream, [[*c] for c in criteria], where, start, cursor=cursor
        )
        source = StreamSource(self._next_source, Window(credit, credit_bytes), subscribe)
        self._begin(source)
        return source

    def offer(
        self, service: str, criteria: Criteria, *, credit: int, credit_bytes: int, ack_timeout: int = 0
    ) -> QueueSource:
        """Offer to work. It stands when `open` is set, and was refused when `ended` is.

        `ack_timeout` is in milliseconds, 0 for what the broker is configured for.
        """
        _check_criteria(service, criteria)
        offer = wire.Offer(self._next_source, service, [[*c] for c in criteria], ack_timeout=ack_timeout)
        source = QueueSource(self._next_source, Window(credit, credit_bytes), offer)
        self._begin(source)
        return source

    def _begin(self, source: Source) -> None:
        self.check()
        self._next_source += 1
        self._sources[source.number] = source
        if self.state is State.READY:
            self._control(source.command())

    def open_mailbox(self, credit: int, credit_bytes: int) -> QueueSource:
        """Begin to take mail, or go on with a window of this size."""
        self.check()
        if self.mailbox is None:
            self.mailbox = QueueSource(MAILBOX, Window(credit, credit_bytes))
            self.mailbox.ack_timeout = self._mail_timeout
            grant = self.mailbox.window.grant() if self.state is State.READY else (0, 0)
        else:
            grant = self.mailbox.window.resize(credit, credit_bytes)
        if grant != (0, 0):
            self._control(wire.Credit(MAILBOX, *grant))
        return self.mailbox

    def refill(self, source: Source) -> None:
        """Grant what is due, if anything is. To be called when something was consumed."""
        if self.state is not State.READY or source.ended:
            return
        # A mailbox that is drained still takes replies and outcomes.
        if (not source.draining or source is self.mailbox) and (grant := source.window.refill()):
            self._control(wire.Credit(source.number, *grant))

    def cancel(self, source: Source) -> None:
        """End a subscription or an offer. What it held goes back to the queue."""
        if not source.ended:
            source.end()
            self._sources.pop(source.number, None)
            self._control(wire.Cancel(source.number))

    def drain(self) -> None:
        """Take nothing more: end subscriptions, and give back untouched the requests that wait.

        What has come of a stream can still be taken, and what is held can still be settled. Mail stays here
        until the end: nobody else could have it. A session that ends takes nothing anyway.
        """
        if self.closing or self.error is not None:
            return
        for source in self._all_sources():
            source.draining = True
            if isinstance(source, QueueSource):
                self._release_waiting(source)
            else:
                self.cancel(source)

    def _release_waiting(self, source: QueueSource) -> None:
        while source.waiting and source is not self.mailbox:
            self.release(source, source.waiting.popleft().sequence)

    def acknowledge(self, source: QueueSource) -> None:
        """Send the acknowledgements that wait at a source."""
        if self.state is State.READY and source.acks:
            for ack in source.take_acks():
                self._control(ack)

    def acknowledge_all(self) -> None:
        """Send all acknowledgements that wait."""
        for source in self._all_sources():
            if isinstance(source, QueueSource) and source.acks:
                self.acknowledge(source)

    def give_back(self, source: QueueSource, sequence: int, delay: int) -> None:
        """Give a message back, to come again after `delay` milliseconds; -1 is for the broker to say."""
        if source.give_back(sequence):
            self._control(wire.Nak(source.number, [[sequence, sequence]], delay))
        self.refill(source)

    def release(self, source: QueueSource, sequence: int) -> None:
        """Give a message back as if it had never been delivered."""
        if source.give_back(sequence):
            self._control(wire.Release(source.number, [[sequence, sequence]]))
        self.refill(source)

    def report(self, source: QueueSource, sequences: Iterable[int]) -> None:
        """Report that these are still worked on, as far as they are ours."""
        for ranges in ranges_of(source.among_outstanding(sequences)):
            self._control(wire.Progress(source.number, ranges))

    def take_reply(self, exchange: Exchange) -> Item:
        """The next reply that waits at an exchange. It is acknowledged: nobody else could use it."""
        item = exchange.waiting.popleft()
        self._drop_mail(item)
        return item

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits for this exchange any more: what still comes for it is acknowledged and dropped."""
        if self._awaited.forget(exchange):
            while exchange.waiting:
                self.take_reply(exchange)

    def _drop_mail(self, item: Item) -> None:
        assert self.mailbox is not None
        self.mailbox.finish(item.sequence)
        self.refill(self.mailbox)

    # Other commands

    def query(self, topic: str, arguments: Mapping[str, Any], *, change: bool = False) -> Query:
        """Ask the broker about itself, or to change something. A change may be asked twice after a cut."""
        kind = wire.Change if change else wire.Query
        return self._ask(lambda ref: kind(ref, topic, arguments))

    def _ask(self, asking: Callable[[int], Asking]) -> Query:
        self.check()
        query = self._questions.ask(asking)
        self._control(query.asking)
        return query

    def ping(self) -> Query:
        """Ask whether everything before this has reached the broker."""
        self.check()
        ping = self._questions.ping()
        self._control(ping.asking)
        return ping

    def abandon(self, query: Query) -> None:
        """Nobody waits for this answer any more."""
        self._questions.abandon(query)

    def close(self) -> None:
        """Say BYE. The session has ended, with the error `Closed`, when the broker has answered."""
        if self.error is None and not self.closing:
            self.acknowledge_all()
            self.closing = True
            self._control(wire.Bye())

    def end(self, error: MalamuteError) -> None:
        """End it at once, without a word to the broker; nothing happens if it has ended."""
        if self.error is None:
            self._end(error)

    def check(self) -> None:
        """Raise what ended the session, if anything has."""
        if self.error is not None:
            raise self.error
        if self.closing:
            raise Closed("this client is closed")

    def _control(self, message: wire.Message) -> None:
        # While there is no connection nothing is kept: `_resume` sets it all up.
        if self.state is State.READY:
            self._out.append((encode(message), None))

    # Messages in

    def _stored(self, stored: wire.Stored) -> None:
        if self.outbox.stored(stored.ranges):
            self._resyncs = 0

    def _ok(self, ok: wire.Ok) -> None:
        if ok.about == _BYE:
            self._end(Closed("this client is closed"))
        elif ok.about in (_SUBSCRIBE, _OFFER) and (source := self._sources.get(ok.ref)):
            source.opened(ok.value)
        elif ok.about == _WITHDRAW:
            self._questions.answered(ok.ref, ok.value)

    def _deliver(self, deliver: wire.Deliver) -> None:
        source = self.mailbox if deliver.source == MAILBOX else self._sources.get(deliver.source)
        if source is None or not (source.open or source is self.mailbox):
            # Nothing comes before OK: it was left over from an older connection.
            return
        columns = unpack_payload(deliver.payload, deliver.large)
        if isinstance(source, StreamSource):
            self._deliver_stream(source, deliver.after, columns)
            return
        assert isinstance(source, QueueSource)
        self._resyncs = 0
        mailbox = source is self.mailbox
        # While somebody waits for a reply, mail that nobody takes must not use up the credit before it.
        awaited = bool(self._awaited)
        acks = source.acks
        for item in source.arrive(columns, counted=not (mailbox and awaited)):
            if not (mailbox and self._awaited.take(source, item)):
                source.waiting.append(item)
        if source.draining:
            self._release_waiting(source)
        if source.acks > acks:
            # It was finished before it came again: nobody will ask for more because of it.
            self.acknowledge(source)
        self.refill(source)

    def _deliver_stream(self, source: StreamSource, after: int, columns: Any) -> None:
        if source.deliver(after, columns):
            self._resyncs = 0
        else:
            text = f"a delivery of {source.stream!r} after {after} was expected after {source.last}"
            self._resync(ConnectionLost(text))

    def _recall(self, recall: wire.Recall) -> None:
        source = self.mailbox if recall.source == MAILBOX else self._sources.get(recall.source)
        if isinstance(source, QueueSource):
            taken = source.recall(recall.ranges, comes_again=recall.reason == "timeout")
            if taken:
                self._events.append(Recalled(source.name or self.address, tuple(taken), recall.reason))
            self.refill(source)

    def _gap(self, gap: wire.Gap) -> None:
        source = self._sources.get(gap.source)
        if isinstance(source, StreamSource) and source.open and source.gap(gap.last):
            self._events.append(Gap(source.stream, gap.first, gap.last, gap.reason))

    def _switch(self, switch: wire.Switch) -> None:
        source = self._sources.get(switch.source)
        if isinstance(source, StreamSource):
            self._events.append(Switched(source.stream, switch.state, switch.sequence))
            if switch.state == "replay" and source.window.spent:
                # It was live until its credit was used up: whoever takes its messages is too slow.
                self._events.append(Slow(source.stream, source.waiting))

    def _answer(self, answer: wire.Answer) -> None:
        self._questions.answered(answer.ref, answer.value)

    def _pong(self, pong: wire.Pong) -> None:
        self._questions.pong()

    def _ignore(self, message: wire.Message) -> None:
        """What belongs to the time before our last HELLO, or needs no answer."""

    def _refused(self, refused: wire.Error) -> None:
        error = from_wire(refused.code, refused.text)
        error.about, error.ref = refused.about, refused.ref
        if refused.about == _HELLO:
            self._end(error)
        elif refused.code in _RESYNC_CODES:
            if refused.about in _REFUSED and not refused.ref:
                self._events.append(Refusal(error))
            if self.state is State.READY:
                self._resync(error)
        elif not _REFUSED.get(refused.about, Session._nobody)(self, error):
            self._events.append(Refusal(error))

    def _command_refused(self, error: MalamuteError) -> bool:
        command = self.outbox.refused(error.ref, error)
        self._awaited.refused(command)
        if command is None:
            # Without a number nobody can tell what it was, and one error may stand for several commands;
            # it may have been a reply, so whatever is delivered again is to be done again.
            for source in self._sources.values():
                if isinstance(source, QueueSource):
                    source.answered.clear()
        elif command.completes and (offer := self._offer(command)):
            offer.answered.discard(command.completes[1])
        # Workers seldom look at the receipts of their replies, so those are told as an event too.
        return command is not None and error.about != _REPLY

    def _source_refused(self, error: MalamuteError) -> bool:
        source = self._sources.pop(error.ref, None)
        if source is not None:
            source.end(error)
        return source is not None

    def _query_refused(self, error: MalamuteError) -> bool:
        return self._questions.refused(error.ref, error)

    def _nobody(self, error: MalamuteError) -> bool:
        return False


def _check_criteria(name: str, criteria: Criteria) -> None:
    if not is_name(name):
        raise InvalidName(f"no valid name: {name!r}")
    if not 0 < len(criteria) <= CRITERIA_MAX:
        raise TooLarge(f"{len(criteria)} criteria; there may be 1 to {CRITERIA_MAX}")
    for family, pattern in criteria:
        if isinstance(pattern, str) and len(pattern.encode()) > PATTERN_BYTES_MAX:
            raise TooLarge(f"a pattern of the family {family!r} has more than {PATTERN_BYTES_MAX} bytes")


def _opcode(message: type[Any]) -> int:
    return BY_TYPE[message].opcode


_HELLO, _REPLY, _SUBSCRIBE, _OFFER, _BYE, _WITHDRAW = map(
    _opcode, (wire.Hello, wire.Reply, wire.Subscribe, wire.Offer, wire.Bye, wire.Withdraw)
)
_RESYNC_CODES = frozenset({405, 421})
"""The broker does not know the session, or a number left a hole: no outcome of the command it is about."""

_REFUSED: dict[int, Callable[[Session, MalamuteError], bool]] = {
    _opcode(wire.Publish): Session._command_refused,
    _opcode(wire.Send): Session._command_refused,
    _opcode(wire.Request): Session._command_refused,
    _REPLY: Session._command_refused,
    _opcode(wire.Commit): Session._command_refused,
    _SUBSCRIBE: Session._source_refused,
    _OFFER: Session._source_refused,
    _opcode(wire.Query): Session._query_refused,
    _opcode(wire.Change): Session._query_refused,
    _WITHDRAW: Session._query_refused,
}
"""Who is told of a refusal, by the command that it is about."""

_Handlers = dict[type[Any], Callable[[Session, Any], None]]

_STALE: _Handlers = {
    wire.Ok: Session._ignore,
    wire.Deliver: Session._ignore,
    wire.Gap: Session._ignore,
    wire.Switch: Session._ignore,
    wire.Recall: Session._ignore,
    wire.Ping: Session._ignore,
    wire.Pong: Session._ignore,
    wire.Stored: Session._stored,
    wire.Answer: Session._answer,
    wire.Error: Session._refused,
}
"""Without a WELCOME, only the outcomes of earlier commands count."""

_HANDLERS: dict[State, _Handlers] = {
    State.LOST: {**_STALE, wire.Welcome: Session._ignore},
    State.OPENING: {**_STALE, wire.Welcome: Session._welcome},
    State.READY: {
        wire.Welcome: Session._ignore,
        wire.Ok: Session._ok,
        wire.Error: Session._refused,
        wire.Stored: Session._stored,
        wire.Deliver: Session._deliver,
        wire.Gap: Session._gap,
        wire.Switch: Session._switch,
        wire.Recall: Session._recall,
        wire.Answer: Session._answer,
        wire.Ping: Session._ignore,
        wire.Pong: Session._pong,
    },
    State.ENDED: {message: Session._ignore for message in (*_STALE, wire.Welcome)},
}
