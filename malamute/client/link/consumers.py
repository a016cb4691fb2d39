"""The consumers: subscriptions, the mailbox, replies, and requests. What both edges share of them.

All of them hand out messages from a filled buffer; the connection is asked only when the buffer is empty.
Nothing that was taken out of a buffer is ever held over a wait, so a wait that fails or is cancelled loses no
message: it is still there for the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic

from malamute.client.events import Gap
from malamute.client.link.driver import Driver
from malamute.client.options import Span, count, patience, seconds
from malamute.client.session.batch import is_stored, record_of
from malamute.client.session.message import Mail, Message, Rejection, ServiceRequest
from malamute.client.session.outbox import Command
from malamute.client.session.receipts import SentBase
from malamute.client.session.replies import PendingRequest
from malamute.client.session.sources import ACKS_MAX, ConsumerSource, Item, StreamSource
from malamute.errors import Closed, InvalidValue, MalamuteError, TimedOut
from malamute.protocol.batch import Body, Columns, Headers
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.position import broker_of
from malamute.protocol.texts import shown

ACK_DELAY = 0.1
"""Seconds that an acknowledgement waits at most while its consumer continues taking messages."""


PROGRESS_SECONDS = 5.0
"""How often progress is reported to a broker that names no ack timeout."""


class SubscriptionBase:
    """The messages of a stream that meet the criteria, in order."""

    def __init__(self, driver: Driver, source: StreamSource) -> None:
        self._driver = driver
        self._source = source
        self._ready: Iterator[Message] = iter(())
        self._fills = 0
        self._handled = (0, "")

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._source.stream

    @property
    def first(self) -> int:
        """The first sequence that could come, where the subscription began."""
        assert self._source.first is not None, "the broker names it before the subscription is handed out"
        return self._source.first

    @property
    def last(self) -> int | None:
        """The last sequence that was delivered, or reported as a gap; None before the first is known."""
        return self._source.last

    @property
    def store(self) -> str:
        """The store in which `last` counts: the id of the broker, and its incarnation if it has one."""
        return self._source.store

    @property
    def limited(self) -> bool:
        """Whether the broker's rules allow only a part of what was asked for: some subjects, or some rows."""
        return self._source.limited

    @property
    def gaps(self) -> int:
        """How many gaps were reported. `Client.on_event` has each with its range."""
        return self._source.gaps

    @property
    def recent_gaps(self) -> list[Gap]:
        """The latest gaps, a hundred at most, the oldest first. Each lies behind what came before it."""
        return [*self._source.recent_gaps]

    @property
    def placed_gaps(self) -> list[tuple[int, Gap]]:
        """The same, each with how many messages had come before it."""
        return [*zip(self._source.gap_places, self._source.recent_gaps, strict=True)]

    @property
    def popped(self) -> int:
        """How many messages were handed out, or are about to be."""
        return self._source.popped

    @property
    def state(self) -> str:
        """`live` or `replay`, as of the last switch; empty if there was none on this connection.

        A subscription that becomes `live` has had all that the stream held for it.
        """
        return self._source.state

    async def _fill(self, timeout: Span | None) -> bool:
        """Have something in `_ready`, waiting for it if need be. False at the end of the subscription."""
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
        # Another task may have filled it meanwhile.
        return self._fills != fills or self._refill()

    def _consume(self) -> None:
        # What was handed out is consumed when more is asked for.
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
        """A handler is done with this message: the cursor is to move behind it, when somebody waits."""
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
            # The cursor of this store is another one, and stands before all that came from here.
            return
        command = Command()
        driver.session.sending.commit(self.stream, self._source.cursor, sequence, command, store)
        await driver.ship()
        await driver.wait_for_broker(lambda: command.done, timeout, "the position was not confirmed")
        if command.error is not None and self._is_here(store):
            raise command.error

    def _is_here(self, store: str) -> bool:
        """Whether a store is the one of the broker, or not known."""
        return not store or broker_of(store) == broker_of(self._driver.session.inbox.store)

    def cancel(self) -> None:
        """End the subscription. What has come already can still be taken."""
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


class QueueConsumer:
    """What the mailbox and the offers to work share: single messages, each to be finished."""

    def __init__(self, driver: Driver, source: ConsumerSource) -> None:
        self._driver = driver
        self._source = source
        self._acknowledged_at = 0.0

    @property
    def waiting(self) -> int:
        """How many have come and were not taken yet."""
        return len(self._source.waiting)

    @property
    def report_seconds(self) -> float:
        """How often to report progress on a message that is still worked on, in seconds."""
        return self._source.ack_timeout / 3 or PROGRESS_SECONDS

    def drain(self) -> None:
        """Take no more: what waits here goes back unread, and what is held can still be settled.

        `cancel` ends it when that is done.
        """
        driver = self._driver
        driver.check_owner()
        if driver.session.error is None:
            driver.session.inbox.drain_offer(self._source)
            driver.send()
            driver.changed()

    # To be called by the messages themselves.

    def finish(self, message: Mail, rejection: Rejection | None = None) -> None:
        """Acknowledge one message, or reject it."""
        driver, source = self._driver, self._source
        driver.check_owner()
        source.finish(message.sequence, rejection=rejection)
        now = monotonic()
        if not source.waiting or source.acks >= ACKS_MAX or now - self._acknowledged_at >= ACK_DELAY:
            self._acknowledged_at = now
            driver.session.inbox.acknowledge(source)
        else:
            driver.within(ACK_DELAY)
        driver.session.inbox.refill(source)
        driver.send()

    def give_back(self, message: Mail, delay_ms: int) -> None:
        """Give one message back, for a while in milliseconds, or as long as the broker says for -1."""
        self._driver.check_owner()
        self._driver.session.inbox.give_back(self._source, message.sequence, delay_ms)
        self._driver.send()

    def release(self, message: Mail) -> None:
        """Give one message back untouched."""
        self._driver.check_owner()
        self._driver.session.inbox.release(self._source, message.sequence)
        self._driver.send()

    def report(self, message: Mail) -> None:
        """Report that one message is still worked on."""
        self._driver.check_owner()
        self._driver.session.inbox.report(self._source, [message.sequence])
        self._driver.send()

    async def _next(self, timeout: Span | None, what: str) -> Item | None:
        """The next message, which is held from now on; None when the queue has ended."""
        driver, source = self._driver, self._source
        driver.check_owner()
        if not source.waiting:
            await driver.wait(
                lambda: source.waiting or source.ended or source.draining or source.closed, timeout, what
            )
        if driver.drain_due:
            driver.iterate()
        if source.has_one:
            return source.hand_out()
        if source.error is not None:
            raise source.error
        return None


class MailboxBase(QueueConsumer):
    """The mail of the client's address, or of a mailbox that it consumes from, in order.

    With `auto_ack` a message is acknowledged when the next one is asked for. It is closed at the end of the
    last of its blocks: mail that was not returned to the program is released, as if it had never been
    delivered.
    """

    def __init__(self, driver: Driver, source: ConsumerSource, *, auto_ack: bool) -> None:
        super().__init__(driver, source)
        self.auto_ack = auto_ack
        self._blocks = 0
        self._current: Mail | None = None

    @property
    def closed(self) -> bool:
        """Whether it gives no more mail, until `Client.mailbox` opens it again."""
        return self._source.closed or self._source.ended

    def enter(self) -> None:
        """Begin a block: it stays open until this one has ended, too."""
        self._blocks += 1

    async def _receive(self, timeout: Span | None) -> Mail:
        timeout = patience("timeout", timeout)
        self.acknowledge()
        item = await self._next(timeout, "no mail")
        if item is None:
            raise Closed("mailbox is closed: open it again with Client.mailbox")
        mail = Mail(*item, self)
        if self.auto_ack:
            self._current = mail
        return mail

    def acknowledge(self) -> None:
        """With `auto_ack`: acknowledge what was handed out last, now."""
        current, self._current = self._current, None
        if current is not None:
            current.ack()

    def leave(self) -> None:
        """With `auto_ack`: leave what was handed out last unacknowledged; it will be redelivered."""
        self._current = None

    def drain(self) -> None:
        """Take no more: what waits here goes back unread, and what is held can still be settled."""
        if self._source.name:
            super().drain()
        else:
            # One's own may be opened again.
            self.cancel()

    def cancel(self) -> None:
        """End it, or the block: acknowledge what was handed out last, and give back the rest."""
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


class WorkerBase(QueueConsumer):
    """Requests to a service, each to be answered."""

    @property
    def message_bytes(self) -> int:
        """The most that the broker takes in one message."""
        return self._driver.session.sending.limits.message_bytes

    async def _answer(
        self, request: ServiceRequest, body: Body, headers: Headers | None, *, final: bool, assurance: str
    ) -> Command:
        command, stored = Command(), is_stored(assurance)
        record = record_of(headers, body)
        request.check_open()
        driver = self._driver
        await driver.make_room(numbered=stored)
        request.check_open()
        driver.session.sending.reply(
            self._source, request.sequence, record, command if stored else None, final=final
        )
        if final:
            request.completed()
        if not stored:
            command.settle()
        await driver.ship()
        return command

    async def _wait(self, command: Command, timeout: Span | None) -> None:
        await self._driver.wait(lambda: command.done, timeout, "waiting for a confirmation")

    def cancel(self) -> None:
        """Work no more: requests that are not finished go back to the queue."""
        _cancel(self._driver, self._source)


async def outcome_of(driver: Driver, delivery: SentBase, timeout: Span | None) -> str:
    """Wait until nothing more can be known of a message, for `timeout` seconds at the most.

    Raises what it was refused with, and `TimedOut`.
    """
    with driver.session.sending.expecting():
        await driver.wait(lambda: delivery.done, timeout, "no outcome")
    # The next request carries the acknowledgement, if one is made soon.
    driver.within(ACK_DELAY)
    return delivery.outcome


class ReplyStream(SentBase):
    """The replies to one request, as they come, and how it ended. The time counts from the request on.

    When it is dropped, no more replies are awaited.
    """

    _ended = True
    """Also before it has begun."""

    def __init__(self, driver: Driver, pending: PendingRequest, timeout: Span | None) -> None:
        super().__init__(pending.command, pending.tracking)
        self._driver = driver
        self._pending = pending
        self._timeout = driver.timeout if timeout is None else seconds("timeout", timeout)
        self._deadline = monotonic() + self._timeout
        self._ended = False

    def __del__(self) -> None:
        # In whichever thread: the session forgets it when it next hears or asks something.
        if not self._ended:
            self._driver.session.pending_replies.abandoned.append(self._pending)

    async def _next(self) -> Mail | None:
        """The next reply; None after the final one, and when the request is known to have ended without."""
        pending, driver = self._pending, self._driver
        driver.check_owner()
        if self._ended:
            return None
        try:
            if not pending.waiting:
                await driver.wait(self._is_due, max(0.0, self._deadline - monotonic()), "no final reply")
            if self._ended:
                return None
            if not pending.waiting and pending.command.error is not None:
                raise pending.command.error
            if not pending.waiting:
                # Its outcome stands behind its replies in the mailbox: none is to come.
                self.cancel()
                return None
        except MalamuteError as error:
            self.cancel()
            if isinstance(error, TimedOut):
                raise TimedOut(f"no final reply within {self._timeout} s") from None
            raise
        reply = Mail(*driver.session.sending.pop_reply(pending), None)
        # The next request carries the acknowledgement, if one is made soon.
        driver.within(ACK_DELAY)
        if reply.final:
            self.cancel()
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

    def cancel(self) -> None:
        """Wait for no more replies: what still comes is dropped."""
        self._driver.check_owner()
        self._ended = True
        self._driver.session.sending.forget(self._pending)
        self._driver.changed()
