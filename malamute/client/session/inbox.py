"""The sources of one session: its subscriptions, its offers to work and its mailbox, with their deliveries.

Each source counts for itself (`sources`); commands for the broker go to the outbox. No command is sent while
the session is not open: `resume` sets every source up again, from its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from malamute.client.events import Event, Gap, Limited, Recalled, Slow, Switched
from malamute.client.options import Criteria, check_name
from malamute.client.session.outbox import Outbox
from malamute.client.session.plain import plain
from malamute.client.session.replies import PendingReplies
from malamute.client.session.sources import (
    ACKS_MAX,
    ConsumerSource,
    Source,
    StreamSource,
    ranges_of,
)
from malamute.client.session.watching import WatchSource
from malamute.client.session.window import Window
from malamute.errors import Closed, ConnectionLost, InvalidValue, MalamuteError, TooLarge
from malamute.protocol import messages as wire
from malamute.protocol.batch import Columns, unpack_payload
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.limits import CRITERIA_MAX, PATTERN_BYTES_MAX
from malamute.protocol.messages import MAILBOX
from malamute.protocol.names import Kind
from malamute.protocol.texts import shown


class Inbox:
    """The sources of one session. Events go to `emit`, replies and outcomes to `pending_replies`."""

    def __init__(
        self,
        address: str,
        outbox: Outbox,
        pending_replies: PendingReplies,
        emit: Callable[[Event], None],
    ) -> None:
        self.mailbox: ConsumerSource | None = None
        self.store = ""
        """The store of the broker, in which sequences count; empty before the first WELCOME."""
        self._address = address
        self._outbox = outbox
        self._pending_replies = pending_replies
        self._emit = emit
        self._sources: dict[int, Source] = {}
        self.consumers: dict[int, ConsumerSource] = {}
        """The offers among the sources, and the mailbox."""
        self._next_source = MAILBOX + 1
        self._closing = False
        self.mail_unread = False
        """Whether waiting mail is to be released as soon as no reply is awaited."""
        self._mail_timeout = 0.0

    # Begin and end

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
        committed: bool = False,
        existing: bool = False,
    ) -> StreamSource:
        """Subscribe. The result is accepted when `open` is set, and was refused when `ended` is.

        Raises:
            InvalidName: the name of the stream or the cursor is invalid.
            TooLarge: the criteria are empty, or too many.
            InvalidValue: another value cannot be sent. The call has no effect then.
        """
        check_name("name", stream)
        if cursor:
            check_name("cursor", cursor)
        subscribe = plain(
            wire.Subscribe(
                self._next_source,
                stream,
                _pairs_of(criteria),
                where,
                start,
                credit,
                credit_bytes,
                cursor,
                committed=committed,
                existing=existing,
            )
        )
        window = Window(subscribe.credit, subscribe.credit_bytes)
        source = StreamSource(self._next_source, window, subscribe)
        self._begin(source)
        return source

    def offer(
        self,
        name: str,
        criteria: Criteria,
        *,
        credit: int,
        credit_bytes: int,
        ack_timeout: int = 0,
        kind: Kind = "service",
        temporary: bool = False,
        once: bool = False,
    ) -> ConsumerSource:
        """Offer to work for a service, or to consume from a mailbox.

        The offer is accepted when `open` is set, and was refused when `ended` is. `ack_timeout` is in
        milliseconds, 0 for the broker's own.
        """
        check_name("name", name)
        offer = plain(
            wire.Offer(
                self._next_source,
                name,
                _pairs_of(criteria),
                credit,
                credit_bytes,
                ack_timeout=ack_timeout,
                kind=kind,
                temporary=temporary,
                once=once,
            )
        )
        source = ConsumerSource(self._next_source, Window(offer.credit, offer.credit_bytes), offer)
        self._begin(source)
        self.consumers[source.number] = source
        return source

    def watch(self, bucket: str, keys: Sequence[str]) -> WatchSource:
        """Watch keys of a bucket. Accepted and refused as an offer."""
        source = WatchSource(self._next_source, plain(wire.Watch(self._next_source, bucket, keys)))
        self._begin(source)
        return source

    def changed(self, changed: wire.Changed) -> None:
        """Take the states of watched keys."""
        source = self._sources.get(changed.source)
        if isinstance(source, WatchSource) and source.open:
            source.changed(changed.rows)

    def _begin(self, source: Source) -> None:
        self._outbox.check()
        self._next_source += 1
        self._sources[source.number] = source
        if self._outbox.ready:
            self._outbox.say(source.command())

    def resize(self, source: Source, credit: int) -> None:
        """Change the window of a source in messages. Less takes effect as messages are consumed.

        Raises:
            InvalidValue: the window cannot be granted, or the source has one without limit.
            Closed: the source has ended.
        """
        self._outbox.check()
        if source.ended:
            raise Closed("consumer is cancelled, and has no credit any more: open another one")
        window = source.window
        _, credit, _ = plain(wire.Credit(source.number, credit))
        if window.messages == UNLIMITED != credit:
            raise InvalidValue(
                f"invalid credit {credit}: the consumer has one without limit; open another with this credit"
            )
        self._resize(source, credit, window.bytes)

    def _resize(self, source: Source, credit: int, credit_bytes: int) -> None:
        grant = source.window.resize(credit, credit_bytes)
        paused = source is self.mailbox and self.mailbox.paused
        if grant != (0, 0) and not (source.drains or source.draining or paused):
            self._outbox.say(wire.Credit(source.number, *grant))

    def open_mailbox(self, credit: int, credit_bytes: int) -> ConsumerSource:
        """Open the mailbox, or resize its window.

        Raises:
            InvalidValue: the window cannot be granted, and is unchanged.
        """
        self._outbox.check()
        _, credit, credit_bytes = plain(wire.Credit(MAILBOX, credit, credit_bytes))
        if self.mailbox is None:
            self.mailbox = ConsumerSource(MAILBOX, Window(credit, credit_bytes))
            self.consumers[MAILBOX] = self.mailbox
            self.mailbox.ack_timeout = self._mail_timeout
            self._fund_mailbox()
        else:
            self._resize(self.mailbox, credit, credit_bytes)
            if self.mailbox.paused:
                self._fund_mailbox()
        self.mailbox.closed = self.mail_unread = False
        return self.mailbox

    def open_for_replies(self, credit: int, credit_bytes: int) -> None:
        """Open the mailbox for replies and outcomes; the window is for one that was not open before."""
        if self.mailbox is None:
            self.open_mailbox(credit, credit_bytes).closed = True
        elif self.mailbox.paused:
            self._fund_mailbox()

    def _fund_mailbox(self) -> None:
        """Grant the mailbox its window: now, or when its drain is confirmed."""
        mailbox = self.mailbox
        assert mailbox is not None
        mailbox.paused = False
        if self._outbox.ready and not mailbox.drains:
            self._outbox.say(wire.Credit(MAILBOX, *mailbox.window.grant()))

    def close_mailbox(self) -> None:
        """Consume no more mail.

        Waiting mail is released as soon as no reply or outcome is awaited. Until then it would only be
        redelivered, since replies and outcomes are behind it.
        """
        if self.mailbox is not None and not self.mailbox.closed:
            self.mailbox.closed = self.mail_unread = True
            self.return_mail()

    def return_mail(self) -> None:
        """Release waiting mail, if that is due."""
        if self.mail_unread and not self._pending_replies and not self._closing:
            assert self.mailbox is not None
            self.mail_unread = False
            self.mailbox.paused = True
            self._drain(self.mailbox)

    def cancel(self, source: Source) -> None:
        """End a subscription or an offer. Its unsettled messages return to the queue."""
        if not source.ended:
            if isinstance(source, ConsumerSource):
                self._drain(source)
            source.end()
            self._forget(source.number)
            self._outbox.say(wire.Cancel(source.number))

    def ended(self, number: int) -> None:
        """Note that the broker has ended an offer: nothing was ready for it."""
        if source := self._forget(number):
            source.end()

    def _forget(self, number: int) -> Source | None:
        self.consumers.pop(number, None)
        return self._sources.pop(number, None)

    def drain(self) -> None:
        """Consume no more: end subscriptions, and release waiting requests.

        Delivered messages of a stream can still be read, and held ones can still be settled. Mail stays here
        until its block is left, or until the end. An ended session has nothing to drain.
        """
        if self._outbox.refusal is not None:
            return
        for source in self._all():
            if not isinstance(source, ConsumerSource):
                self.cancel(source)
                source.draining = True
            elif source is self.mailbox:
                source.draining = True
            else:
                self.drain_offer(source)

    def drain_offer(self, source: ConsumerSource) -> None:
        """Consume no more requests of an offer, and release waiting ones. Held ones can still be settled."""
        if not (source.draining or source.ended):
            self._drain(source)
        source.draining = True

    def close(self) -> None:
        """Prepare the end of the session: waiting messages are released, mail too."""
        self._closing = True
        for source in self._all():
            source.draining = True
            if isinstance(source, ConsumerSource):
                self._drain(source)

    def _drain(self, source: ConsumerSource) -> None:
        if self._outbox.ready:
            for ack in source.pop_acks():
                self._outbox.say(ack)
            self._outbox.say(wire.Drain(source.number, source.give_up()))

    def drained(self, number: int) -> None:
        """Handle the broker's confirmation of a drain.

        The source gets no more deliveries, and its waiting messages are back in the queue.
        """
        source = self.mailbox if number == MAILBOX else self._sources.get(number)
        if source is None or not source.drains:
            return
        source.drains -= 1
        mailbox = self.mailbox
        if source is mailbox and not mailbox.drains and not mailbox.paused and not self._closing:
            # The source is in use again.
            self._fund_mailbox()

    @property
    def is_drained(self) -> bool:
        """Return whether the broker has confirmed all drains."""
        return not any(source.drains for source in self._all())

    def _all(self) -> list[Source]:
        mailbox = [] if self.mailbox is None else [self.mailbox]
        return [*self._sources.values(), *mailbox]

    # Commands about messages

    def refill(self, source: Source) -> None:
        """Grant due credit, if any. To be called after consuming."""
        if grant := self.grant_due(source):
            self._outbox.say(wire.Credit(source.number, *grant))

    def grant_due(self, source: Source) -> tuple[int, int] | None:
        """Return the due messages and bytes of credit, if any, for a command to grant."""
        if not self._outbox.ready or source.ended or source.drains or self._closing:
            return None
        if source is self.mailbox:
            # A drained mailbox still receives replies and outcomes.
            return None if self.mailbox.paused else source.window.refill()
        return None if source.draining else source.window.refill()

    def let_past(self) -> None:
        """Let replies and outcomes be delivered past unread mail."""
        mailbox = self.mailbox
        if mailbox is not None and mailbox.paused:
            mailbox.release()
            self._fund_mailbox()
        elif mailbox is not None and mailbox.outstanding and mailbox.release():
            self.refill(mailbox)

    def acknowledge(self, source: ConsumerSource) -> None:
        """Send the waiting acknowledgements of a source; the first carries the credit that is due there."""
        if self._outbox.ready and source.acks:
            for ack in source.pop_acks():
                if isinstance(ack, wire.Ack) and (grant := self.grant_due(source)):
                    ack = ack._replace(credit=grant[0], credit_bytes=grant[1])
                self._outbox.say(ack)

    def acknowledge_all(self) -> None:
        """Send all waiting acknowledgements."""
        for source in self.consumers.values():
            if source.acks:
                self.acknowledge(source)

    def give_back(self, source: ConsumerSource, sequence: int, delay_ms: int) -> None:
        """Have a message redelivered after `delay_ms`; with -1 after the broker's backoff."""
        nak = plain(wire.Nak(source.number, [[sequence, sequence]], delay_ms))
        if source.give_back(sequence):
            self._outbox.say(nak)
        self.refill(source)

    def release(self, source: ConsumerSource, sequence: int) -> None:
        """Release a message as if it had never been delivered."""
        if source.give_back(sequence):
            self._outbox.say(wire.Release(source.number, [[sequence, sequence]]))
        self.refill(source)

    def report(self, source: ConsumerSource, sequences: Iterable[int]) -> None:
        """Report progress on messages, as far as they are outstanding here."""
        for ranges in ranges_of(source.among_outstanding(sequences)):
            self._outbox.say(wire.Progress(source.number, ranges))

    # Deliveries and answers

    def deliver(self, deliver: wire.Deliver) -> bool:
        """Handle a delivery. Return whether its source exists.

        Raises `ConnectionLost` after a lost delivery before it, without a change of state.
        """
        number = deliver.source
        queue = self.consumers.get(number)
        source = queue or self._sources.get(number)
        if source is None or not (source.open or number == MAILBOX):
            # A delivery before OK is left over from an older connection.
            return False
        columns = unpack_payload(deliver.payload, deliver.large)
        if source.drains:
            # The delivery crossed the drain: the broker has taken it back.
            return True
        if queue is not None:
            self._deliver_queued(queue, columns)
        elif isinstance(source, StreamSource) and not source.deliver(deliver.after, columns):
            raise ConnectionLost(
                f"a delivery of {source.stream!r} after {deliver.after} was expected after {source.last}"
            )
        return True

    def _deliver_queued(self, source: ConsumerSource, columns: Columns) -> None:
        replies = self._pending_replies
        mailbox = source is self.mailbox
        # While a reply is awaited, unread mail must not use up the credit before it.
        awaited = mailbox and bool(replies.requests or replies.outcomes)
        acks = source.acks
        new = source.arrive(columns, counted=not awaited)
        for item in new:
            if not (mailbox and replies.accept(source, item)):
                source.waiting.append(item)
        settled = source.acks > acks
        if settled and not (awaited and source.acks < ACKS_MAX):
            # The message was settled earlier. A waiting call acknowledges it with its own command; no other
            # call would.
            self.acknowledge(source)
        if (awaited or settled or len(new) < len(columns.subjects)) and source.window.is_low():
            self.refill(source)

    def recall(self, recall: wire.Recall) -> None:
        """Drop the messages that the broker recalled."""
        source = self.mailbox if recall.source == MAILBOX else self._sources.get(recall.source)
        if isinstance(source, ConsumerSource):
            if recall.reason == wire.CANCELLED:
                taken = source.outstanding_of(recall.ranges)
            else:
                taken = source.recall(recall.ranges, comes_again=recall.reason == "timeout")
            if taken:
                self._emit(Recalled(source.name or self._address, tuple(taken), recall.reason))
            self.refill(source)

    def gap(self, gap: wire.Gap) -> None:
        """Advance behind unavailable messages."""
        source = self._sources.get(gap.source)
        if not (isinstance(source, StreamSource) and source.open):
            return
        is_another = gap.reason == wire.ANOTHER_STORE
        if is_another:
            source.begin_anew(gap.last)
        if is_another or source.gap(gap.first, gap.last):
            store = self.store if is_another else ""
            source.note_gap(Gap(source.stream, gap.first, gap.last, gap.reason, store))
            self._emit(source.recent_gaps[-1])

    def switch(self, switch: wire.Switch) -> None:
        """Report that a subscription is live, or in replay, or note that it is limited."""
        source = self._sources.get(switch.source)
        if isinstance(source, StreamSource) and switch.state == wire.LIMITED:
            source.narrow()
        elif isinstance(source, StreamSource):
            source.state = switch.state
            if not source.open:
                # The subscription begins so: nothing has switched.
                return
            self._emit(Switched(source.stream, switch.state, switch.sequence))
            if switch.state == "replay" and source.window.spent:
                # The subscription was live until its credit was used up: its consumer is too slow.
                self._emit(Slow(source.stream, source.waiting))

    def opened(self, number: int, value: Any) -> None:
        """Note that the broker accepted a subscription or an offer."""
        if source := self._sources.get(number):
            was_limited = isinstance(source, StreamSource) and source.limited
            source.opened(value)
            if isinstance(source, StreamSource):
                source.store = self.store
            if isinstance(source, StreamSource) and source.limited and not was_limited:
                self._emit(Limited(source.stream))

    def refused(self, number: int, error: MalamuteError) -> bool:
        """Note that the broker refused a subscription or an offer. Return whether it was known."""
        source = self._forget(number)
        if source is not None:
            source.end(error)
        return source is not None

    def reply_refused(self, completes: tuple[int, int] | None) -> None:
        """Note a refused final reply: its request has to be answered again when it is redelivered.

        None stands for an unnumbered reply, which the error does not identify, and one error may stand for
        several: so every redelivered request is answered again.
        """
        if completes is not None:
            number, sequence = completes
            if offer := self._offer(number):
                offer.answered.discard(sequence)
            return
        for source in self._sources.values():
            if isinstance(source, ConsumerSource):
                source.answered.clear()

    def _offer(self, number: int) -> ConsumerSource | None:
        source = self._sources.get(number)
        return source if isinstance(source, ConsumerSource) else None

    # Reconnects

    def restart(self, replies: Iterable[tuple[int, int]]) -> None:
        """Reset the sources after a lost connection. `replies` are requests with an unsent final reply."""
        for source in self._all():
            source.restart()
        for number, sequence in replies:
            if offer := self._offer(number):
                offer.answered.add(sequence)

    def resume(self, mail_timeout: float) -> None:
        """Set all sources up again from their positions, in an open session. `mail_timeout` is in seconds."""
        if self._closing:
            return
        for source in self._sources.values():
            command = source.command()
            # A drained mailbox is open for replies alone.
            if source.draining and not isinstance(command, wire.Watch):
                command = command._replace(credit=0, credit_bytes=0)
            self._outbox.say(command)
        self._mail_timeout = mail_timeout
        if self.mailbox is not None:
            self.mailbox.ack_timeout = mail_timeout
            if not self.mailbox.paused:
                self._fund_mailbox()

    def fail(self, error: MalamuteError) -> None:
        """End all sources with an error."""
        for source in self._all():
            source.end(error)


def _pairs_of(criteria: Criteria) -> list[list[Any]]:
    try:
        pairs = [[family, pattern] for family, pattern in criteria]
    except (TypeError, ValueError):
        raise InvalidValue(
            f"invalid criteria {shown(criteria)}: expected pairs of a family and a pattern, such as "
            "[('topic', 'temp.*')]"
        ) from None
    if not 0 < len(pairs) <= CRITERIA_MAX:
        raise TooLarge(f"{len(pairs)} criteria: expected 1 to {CRITERIA_MAX}")
    for family, pattern in pairs:
        if isinstance(pattern, str) and len(pattern.encode("utf-8", "replace")) > PATTERN_BYTES_MAX:
            raise TooLarge(
                f"pattern of family {shown(family)} is too large: expected at most {PATTERN_BYTES_MAX} bytes"
            )
    return pairs
