"""The consumers: subscriptions, the mailbox, replies, and requests; the common part of both edges.

All of them hand out messages from a filled buffer; the connection is asked only when the buffer is empty. A
popped message is never held over a wait, so a wait that fails or is cancelled loses no message: the next call
returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic, time_ns
from typing import Any, NamedTuple

from malamute.client.events import Gap
from malamute.client.link.bucket import PutWithAck, change_key
from malamute.client.link.driver import Driver
from malamute.client.options import Span, checked, count, patience, seconds
from malamute.client.session.batch import is_stored, record_of
from malamute.client.session.codecs import BodyCodec
from malamute.client.session.message import Mail, Message, Rejection, ServiceRequest
from malamute.client.session.outbox import Command
from malamute.client.session.receipts import SentBase
from malamute.client.session.replies import PendingRequest
from malamute.client.session.sources import ACKS_MAX, ConsumerSource, Item, StreamSource
from malamute.errors import Closed, InvalidValue, MalamuteError, TimedOut
from malamute.protocol.batch import Columns, Headers
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.position import broker_of
from malamute.protocol.texts import shown

ACK_DELAY = 0.1
"""Maximum seconds that an acknowledgement waits while its consumer continues to receive messages."""


Message.clock = time_ns

PROGRESS_SECONDS = 5.0
"""Seconds between progress reports to a broker without an ack timeout."""


class HistoryEnd(NamedTuple):
    """The end of a history: its messages have a lower sequence, and an earlier time in ns."""

    sequence: int
    time_ns: int


class Credited:
    """A consumer with credit that may be changed while it is open."""

    _driver: Driver
    _source: StreamSource | ConsumerSource

    @property
    def credit(self) -> int:
        """The maximum of unprocessed messages at this client; -1 is without limit.

        More credit may be used at once. Less takes effect as messages are settled, or read from a
        subscription: until then no more are granted.

        Raises:
            InvalidValue: the credit is none, or the consumer has one without limit.
            Closed: the consumer is cancelled.
        """
        return self._source.window.messages

    @credit.setter
    def credit(self, credit: float) -> None:
        self._driver.do(self._set_credit, checked(credit=credit)["credit"])

    def _set_credit(self, credit: int) -> None:
        self._driver.session.inbox.resize(self._source, credit)
        self._driver.send()


class SubscriptionBase(Credited):
    """The messages of a stream that meet the criteria, in order."""

    _source: StreamSource

    def __init__(self, driver: Driver, source: StreamSource) -> None:
        self._driver = driver
        self._source = source
        self._ready: Iterator[Message] = iter(())
        self._fills = 0
        self._handled = (0, "")

    @property
    def stream(self) -> str:
        """Return the stream's name."""
        return self._source.stream

    @property
    def first(self) -> int:
        """Return the first sequence that could come, where the subscription began."""
        assert self._source.first is not None, "the broker names it before the subscription is handed out"
        return self._source.first

    @property
    def last(self) -> int | None:
        """Return the last delivered sequence, or the end of the last gap; None before the first is known."""
        return self._source.last

    @property
    def store(self) -> str:
        """Return the store of the sequence `last`: the id of the broker, with its incarnation if any."""
        return self._source.store

    @property
    def limited(self) -> bool:
        """Return whether the broker's rules limit the subscription to some subjects or some rows."""
        return self._source.limited

    @property
    def gaps(self) -> int:
        """Return the number of reported gaps. `Client.on_event` has each with its range."""
        return self._source.gaps

    @property
    def recent_gaps(self) -> list[Gap]:
        """Return the latest gaps, at most a hundred, the oldest first."""
        return [*self._source.recent_gaps]

    @property
    def placed_gaps(self) -> list[tuple[int, Gap]]:
        """Return the latest gaps, each with the number of messages that came before it."""
        return [*zip(self._source.gap_places, self._source.recent_gaps, strict=True)]

    @property
    def popped(self) -> int:
        """Return the number of messages handed out, with those of the present call."""
        return self._source.popped

    @property
    def state(self) -> str:
        """Return `live` or `replay`; empty while there is no connection.

        A subscription that is `live` has had all stored messages: one that begins with none is so at once.
        """
        return self._source.state

    async def _fill(self, timeout: Span | None) -> bool:
        """Fill `_ready`, waiting if need be. Return False at the end of the subscription."""
        driver, source, fills = self._driver, self._source, self._fills
        self._consume()
        if source.waiting:
            await driver.pause()
        else:
            await driver.wait(
                lambda: source.waiting or source.ended or self._fills != fills,
                timeout,
                f"no message of {source.stream!r}",
            )
        # Another task may have filled the buffer meanwhile.
        return self._fills != fills or self._refill()

    def _consume(self) -> None:
        # The next request for messages consumes those handed out before.
        driver, source = self._driver, self._source
        driver.check_owner()
        source.consume()
        driver.session.inbox.refill(source)
        driver.send()

    def _refill(self) -> bool:
        source = self._source
        if not source.waiting:
            if source.error is not None:
                raise source.error
            return False
        self._ready = source.pop_messages()
        self._fills += 1
        return True

    async def _receive(self, timeout: Span | None) -> Message:
        while True:
            for message in self._ready:
                return message
            if not await self._fill(timeout):
                raise Closed("subscription is cancelled, and no message of it is left: subscribe again")

    async def _take(self, most: int, timeout: Span | None) -> list[Message]:
        most, timeout = count("most", most, 0, NUMBER_MAX), patience("timeout", timeout)
        messages = [*islice(self._ready, most)]
        while not messages and most > 0:
            try:
                if not await self._fill(timeout):
                    return messages
            except TimedOut:
                return messages
            messages = [*islice(self._ready, most)]
        while len(messages) < most and self._source.waiting:
            self._consume()
            self._refill()
            messages += islice(self._ready, most - len(messages))
        return messages

    async def _history(self, end: HistoryEnd) -> tuple[list[Message], bool]:
        """Return the next messages before the end, and whether others may follow them."""
        driver, source = self._driver, self._source
        if self.first >= end.sequence:
            # A subscription that begins at the head never reports that it has arrived there.
            return [], False
        self._consume()
        if not source.waiting:
            await driver.wait(
                lambda: source.waiting or source.ended or source.state == "live",
                driver.timeout,
                f"no message of {source.stream!r}",
            )
        if not source.waiting:
            if source.error is not None:
                raise source.error
            return [], False
        messages = [*source.pop_messages()]
        found = [m for m in messages if m.sequence < end.sequence and m.time_ns < end.time_ns]
        is_there = not source.waiting and (source.last or 0) + 1 >= end.sequence
        return found, len(found) == len(messages) and not is_there

    async def _columns(self, timeout: Span | None, enough: Callable[[], object]) -> Columns | None:
        driver, source = self._driver, self._source
        self._consume()
        if not source.waiting:
            what = f"no message of {source.stream!r}"
            await driver.wait(lambda: source.waiting or source.ended or enough(), timeout, what)
        if not source.waiting:
            if source.error is not None:
                raise source.error
            return None
        return source.pop_columns()

    def handled(self, message: Message) -> None:
        """Note that a handler is done with a message: the cursor is moved at the next wait."""
        if self._source.cursor:
            self._handled = message.sequence, message.store
            self._driver.before_wait[self] = self._commit_handled
            self._driver.within(ACK_DELAY)

    def _commit_handled(self) -> bool:
        session = self._driver.session
        if session.error is not None or not session.outbox.room(numbered=True):
            return False
        del self._driver.before_wait[self]
        if self._is_here(self._handled[1]):
            sequence, store = self._handled
            session.sending.commit(self.stream, self._source.cursor, sequence, Command(awaited=False), store)
        return True

    async def _commit(self, message: Message | int, timeout: Span | None) -> None:
        if not self._source.cursor:
            raise InvalidValue("subscription without a cursor: subscribe with cursor=NAME")
        if not isinstance(message, int | Message):
            raise InvalidValue(f"invalid message {shown(message)}: expected a message or its sequence")
        timeout = patience("timeout", timeout)
        if isinstance(message, int):
            sequence, store = message, self._source.store
        else:
            sequence, store = message.sequence, message.store
        driver = self._driver
        await driver.make_room(numbered=True, timeout=timeout)
        if not self._is_here(store):
            # The cursor of this store is another one, and is before all messages from here.
            return
        command = Command()
        driver.session.sending.commit(self.stream, self._source.cursor, sequence, command, store)
        await driver.ship()
        await driver.wait_for_broker(lambda: command.done, timeout, "the position was not confirmed")
        if command.error is not None and self._is_here(store):
            raise command.error

    def _is_here(self, store: str) -> bool:
        """Return whether a store is the broker's, or unknown."""
        return not store or broker_of(store) == broker_of(self._driver.session.inbox.store)

    def cancel(self) -> None:
        """End the subscription. Messages already received can still be read."""
        _cancel(self._driver, self._source)

    def __repr__(self) -> str:
        state = "cancelled" if self._source.ended else "open"
        return f"<Subscription {self._source.stream!r} {state}, last {self._source.last}>"


def _cancel(driver: Driver, source: StreamSource | ConsumerSource) -> None:
    driver.check_owner()
    if not source.ended and driver.session.error is None:
        driver.session.inbox.cancel(source)
        driver.send()
        driver.changed()


class QueueConsumer(Credited):
    """The common part of mailboxes and offers to work: single messages, each to be finished."""

    _source: ConsumerSource

    def __init__(self, driver: Driver, source: ConsumerSource) -> None:
        self._driver = driver
        self._source = source
        self._acknowledged_at = 0.0

    @property
    def queue(self) -> str:
        """Return the name of the service or of the mailbox."""
        return self._source.name or self._driver.session.address

    @property
    def waiting(self) -> int:
        """Return the number of received messages that wait to be handed out."""
        return len(self._source.waiting)

    @property
    def report_seconds(self) -> float:
        """Return the interval of progress reports on a message in work, in seconds."""
        return self._source.ack_timeout / 3 or PROGRESS_SECONDS

    def drain(self) -> None:
        """Receive no more: waiting messages are released unread, and held ones can still be settled.

        `cancel` ends the consumer after that.
        """
        driver = self._driver
        driver.check_owner()
        if driver.session.error is None:
            driver.session.inbox.drain_offer(self._source)
            driver.send()
            driver.changed()

    # Called by the messages

    def finish(self, message: Mail, rejection: Rejection | None = None) -> None:
        """Acknowledge one message, or reject it."""
        driver, source = self._driver, self._source
        driver.check_owner()
        source.finish(message.sequence, rejection=rejection)
        now = monotonic()
        # A loop sends them in time, so others may join them until they are half of what is here.
        is_due = source.acks_due if driver.has_timer else not source.waiting
        if is_due or source.acks >= ACKS_MAX or now - self._acknowledged_at >= ACK_DELAY:
            self._acknowledged_at = now
            driver.session.inbox.acknowledge(source)
            driver.session.inbox.refill(source)
            driver.send()
        else:
            # Acknowledgements carry the credit that is due.
            driver.within(ACK_DELAY)

    def finish_with(self, message: Mail, put: Any) -> Any:
        """Return a coroutine that acknowledges one message together with a put, and returns the revision."""
        return self._finish_with(message, PutWithAck.of(put))

    async def _finish_with(self, message: Mail, put: PutWithAck) -> int:
        driver, source, sequence = self._driver, self._source, message.sequence
        ranges = [[sequence, sequence]]
        revision = await change_key(driver, put.command(source.number, ranges), None)
        message.completed()
        source.give_back(sequence)
        driver.session.inbox.refill(source)
        driver.send()
        return int(revision)

    def give_back(self, message: Mail, delay_ms: int) -> None:
        """Return one message after a delay in milliseconds, or after the broker's backoff for -1."""
        self._driver.check_owner()
        self._driver.session.inbox.give_back(self._source, message.sequence, delay_ms)
        self._driver.send()

    def release(self, message: Mail) -> None:
        """Release one message as if it had never been delivered."""
        self._driver.check_owner()
        self._driver.session.inbox.release(self._source, message.sequence)
        self._driver.send()

    def report(self, message: Mail) -> None:
        """Report progress on one message."""
        self._driver.check_owner()
        self._driver.session.inbox.report(self._source, [message.sequence])
        self._driver.send()

    async def _next(self, timeout: Span | None, what: str) -> Item | None:
        """Return the next message, which is held from now on; None when the queue has ended."""
        driver, source = self._driver, self._source
        if source.waiting:
            driver.check_owner()
        else:
            await driver.wait(source.is_due, timeout, what)
        if driver.drain_due:
            driver.iterate()
        if source.waiting and not source.draining and not source.closed:
            return source.hand_out()
        if source.error is not None:
            raise source.error
        return None

    async def _next_ones(self, most: int, timeout: Span | None, what: str) -> list[Item]:
        """Return up to `most` of the next messages, after waiting for one; none after the timeout."""
        most, timeout = count("most", most, 1, NUMBER_MAX), patience("timeout", timeout)
        try:
            item = await self._next(timeout, what)
        except TimedOut:
            return []
        items = [] if item is None else [item]
        while items and len(items) < most and self._source.has_one:
            items.append(self._source.hand_out())
        return items


class MailboxBase(QueueConsumer):
    """The mail of the client's address, or of a mailbox that it consumes from, in order.

    With `auto_ack` a message is acknowledged when the next one is requested. The mailbox is closed at the end
    of the last of its blocks: unread mail is released, as if it had never been delivered.
    """

    def __init__(self, driver: Driver, source: ConsumerSource, *, auto_ack: bool) -> None:
        super().__init__(driver, source)
        self.auto_ack = auto_ack
        self._blocks = 0
        self._current: list[Mail] = []

    @property
    def closed(self) -> bool:
        """Return whether the mailbox is closed; `Client.mailbox` opens it again."""
        return self._source.closed or self._source.ended

    def enter(self) -> None:
        """Begin a block: the mailbox stays open until this block has ended, too."""
        self._blocks += 1

    async def _receive(self, timeout: Span | None) -> Mail:
        timeout = patience("timeout", timeout)
        self.acknowledge()
        item = await self._next(timeout, "no mail")
        if item is None:
            raise Closed("mailbox is closed: open it again with Client.mailbox")
        return self._handed_out([item])[0]

    async def _take(self, most: int, timeout: Span | None) -> list[Mail]:
        self.acknowledge()
        return self._handed_out(await self._next_ones(most, timeout, "no mail"))

    def _handed_out(self, items: list[Item]) -> list[Mail]:
        mail = [Mail(*item, self) for item in items]
        if self.auto_ack:
            self._current = mail
        return mail

    def acknowledge(self) -> None:
        """With `auto_ack`: acknowledge the messages handed out last, now."""
        current, self._current = self._current, []
        for mail in current:
            mail.ack()

    def leave(self) -> None:
        """With `auto_ack`: leave the messages handed out last unacknowledged, to be redelivered."""
        self._current = []

    def drain(self) -> None:
        """Receive no more: waiting messages are released unread, and held ones can still be settled."""
        if self._source.name:
            super().drain()
        else:
            # The client's own mailbox may be opened again.
            self.cancel()

    def cancel(self) -> None:
        """End the mailbox, or the block: acknowledge the message handed out last, and release the others."""
        driver = self._driver
        driver.check_owner()
        self._blocks = max(0, self._blocks - 1)
        if driver.session.error is None:
            self.acknowledge()
            if not self._blocks:
                if self._source.name:
                    driver.session.inbox.cancel(self._source)
                else:
                    driver.session.inbox.close_mailbox()
                driver.send()
                driver.changed()

    def _leave(self, *, failed: bool) -> None:
        if failed:
            self.leave()
        self.cancel()


class SingleBase(QueueConsumer):
    """The offer that one message came by, which ends when the message is settled."""

    def finish(self, message: Mail, rejection: Rejection | None = None) -> None:
        """Acknowledge the message, or reject it."""
        super().finish(message, rejection)
        _cancel(self._driver, self._source)

    def give_back(self, message: Mail, delay_ms: int) -> None:
        """Return the message after a delay in milliseconds, or after the broker's backoff for -1."""
        super().give_back(message, delay_ms)
        _cancel(self._driver, self._source)

    def release(self, message: Mail) -> None:
        """Release the message as if it had never been delivered."""
        super().release(message)
        _cancel(self._driver, self._source)


class WorkerBase(QueueConsumer):
    """Requests to a service, each to be answered."""

    @property
    def message_bytes(self) -> int:
        """Return the broker's limit for one message."""
        return self._driver.session.sending.limits.message_bytes

    @property
    def codec(self) -> BodyCodec | None:
        """Return the codec of the client."""
        return self._driver.codec

    async def _answer(
        self, request: ServiceRequest, body: Any, headers: Headers | None, *, final: bool, assurance: str
    ) -> Command:
        stored = is_stored(assurance)
        record = record_of(headers, body)
        driver = self._driver
        await driver.make_room(numbered=stored)
        # Another thread may have answered it meanwhile.
        request.answerer()
        command = driver.session.sending.reply(
            self._source, request.sequence, record, Command() if stored else None, final=final
        )
        if final:
            request.completed()
        if not stored:
            command.done = True
        await driver.ship()
        return command

    async def _wait(self, command: Command, timeout: Span | None) -> None:
        await self._driver.wait(lambda: command.done, timeout, "waiting for a confirmation")

    def cancel(self) -> None:
        """Cancel the offer: unfinished requests return to the queue."""
        _cancel(self._driver, self._source)


async def outcome_of(driver: Driver, delivery: SentBase, timeout: Span | None) -> str:
    """Wait for the final state of a message, for `timeout` seconds at most.

    Raises its refusal, and `TimedOut`.
    """
    with driver.session.sending.expecting():
        await driver.wait(lambda: delivery.done, timeout, "no outcome")
    # An early next request carries the acknowledgement.
    driver.within(ACK_DELAY)
    return delivery.outcome


class ReplyStream(SentBase):
    """The replies to one request, and its outcome. The timeout counts from the request on.

    Dropping the stream ends the wait for replies.
    """

    _ended = True
    """Also before the stream has begun."""

    def __init__(self, driver: Driver, pending: PendingRequest, timeout: Span | None) -> None:
        self._command = pending.command
        self._tracking = pending.tracking
        self._driver = driver
        self._pending = pending
        self._timeout = driver.timeout if timeout is None else seconds("timeout", timeout)
        self._deadline = monotonic() + self._timeout
        self._ended = False

    def __del__(self) -> None:
        # This runs in any thread: the session forgets the request at its next iteration.
        if not self._ended:
            self._driver.session.pending_replies.abandoned.append(self._pending)

    async def _next(self) -> Mail | None:
        """Return the next reply; None after the final one, and at an end of the request without one."""
        pending, driver = self._pending, self._driver
        try:
            if pending.waiting:
                driver.check_owner()
            else:
                await driver.wait(self._is_due, self._timeout, "no final reply", by=self._deadline)
            if self._ended:
                return None
            if not pending.waiting and pending.command.error is not None:
                raise pending.command.error
            if not pending.waiting:
                # The outcome comes behind the replies in the mailbox, so no reply is missing.
                self.cancel()
                return None
        except MalamuteError as error:
            self.cancel()
            if isinstance(error, TimedOut):
                raise TimedOut(f"no final reply within {self._timeout} s") from None
            raise
        session = driver.session
        assert session.inbox.mailbox is not None
        reply = Mail(*session.pending_replies.pop(pending, session.inbox.mailbox), None)
        # An early next request carries the acknowledgement.
        driver.within(ACK_DELAY)
        if pending.complete and not pending.waiting:
            self._end()
        return reply

    def _is_due(self) -> bool:
        tracking = self._tracking
        return (
            bool(self._pending.waiting)
            or self._command.error is not None
            or self._ended
            or (tracking is not None and tracking.done)
        )

    async def _outcome(self, timeout: Span | None) -> str:
        return await outcome_of(self._driver, self, timeout)

    async def _stored(self, timeout: Span | None) -> None:
        command = self._command
        await self._driver.wait_for_broker(lambda: command.done, timeout, "waiting for the confirmation")
        if command.error is not None:
            raise command.error

    def cancel(self) -> None:
        """Stop waiting for replies: later ones are dropped."""
        self._driver.check_owner()
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._driver.session.sending.forget(self._pending)
        self._driver.changed()
