"""The commands of clients: their states, permissions and handlers.

`STATES` is the protocol: the commands of each state of a session, and their handlers. An absent key is an
error of the protocol. `needs.ACCESS` beside it has the permission that each of them needs.

An engine executes each command. The common part of all commands is here: numbers, sizes and rates, the share
of the backlog, and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from malamute.core.admin.changes import Changes
from malamute.core.admin.queries import Queries
from malamute.core.bucket.entry import KEY_BYTES
from malamute.core.bucket.table import KeyOutcome
from malamute.core.engines import Engines
from malamute.core.identity.access import ANONYMOUS, Permissions, Principal
from malamute.core.identity.quotas import check_rates, consume_rates
from malamute.core.iteration.effects import Effects
from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.queue.purge import cancel, withdraw
from malamute.core.queue.source import QueueSource
from malamute.core.reports.events import report_worker
from malamute.core.review import check_offer
from malamute.core.session.confirmations import WITH_OUTCOME
from malamute.core.session.selectors import OFFER_BYTES, SUBSCRIPTION_BYTES
from malamute.core.session.session import Session
from malamute.core.stream.chunk import MESSAGE_BYTES, large_bytes
from malamute.core.stream.subscribing import subscribe
from malamute.errors import (
    AccessRefused,
    InvalidSelector,
    InvalidValue,
    MalamuteError,
    NotFound,
    NumberTooOld,
    TooLarge,
    TooMany,
    TryLater,
    UnexpectedCommand,
)
from malamute.matching import Selector
from malamute.protocol.batch import Frame
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Ack,
    Add,
    Answer,
    Bye,
    Cancel,
    Change,
    Commit,
    Credit,
    Delete,
    Drain,
    Error,
    Forward,
    Get,
    Hello,
    Message,
    Nak,
    Offer,
    Ok,
    Ping,
    Pong,
    Progress,
    Publish,
    Put,
    Query,
    Received,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Subscribe,
    Watch,
    Withdraw,
    error_message,
)


class ClientCommands:
    """Takes the commands of all clients, and answers those that are refused."""

    def __init__(self, core: Engines) -> None:
        self.effects = core.effects
        self.access = core.access
        self.sessions = core.sessions
        self.confirmations = core.sessions.confirmations
        self.streams = core.streams
        self.answers = core.answers
        self.buckets = core.buckets
        self.mailboxes = core.mailboxes
        self.services = core.services
        self.selectors = core.selectors
        self.timers = core.timers
        self.refusals = core.refusals
        self.queues = core.queues
        self.sources = core.sources
        self.review = core.review
        self.links = core.links
        self.queries = Queries(core)
        self.changes = Changes(core)
        self.refused_peers: set[bytes] = set()
        """Peers that have had an unnumbered error in this iteration."""
        self._message_bytes_max = core.configuration.settings.limits.message_bytes
        self._backlog_bytes_max = core.configuration.settings.limits.backlog_bytes
        self._answers_bytes_max = core.configuration.settings.limits.answers_bytes
        self._sender = core.access.of(ANONYMOUS)
        """The principal of the last HELLO, and its permissions."""
        self._origin = ""
        """From where that came."""

    def receive(
        self,
        peer: bytes,
        message: Message,
        now: float,
        principal: Principal = ANONYMOUS,
        origin: str = "",
    ) -> None:
        """Receive a message from a peer. `principal` is its identity, to which HELLO gives the session.

        Later messages on this connection are of the same principal, and need not name it. `origin` is its
        network address, where that is known.
        """
        self.effects.now = now
        command = type(message)
        session = self.sessions.by_peer.get(peer)
        if session is not None and session.review is not None and command is not Hello:
            session.review(session)
            session = self.sessions.by_peer.get(peer)
        state = "absent" if session is None else session.state
        handler = STATES[state].get(command)
        try:
            if handler is None:
                raise _unexpected(state, message)
            if session is not None:
                session.last_heard = now
                if session.doubtful:
                    # Only a client that has had WELCOME goes on: it knows that this is another session.
                    session.doubtful = command is Hello or not session.open
            if session is None or command is Hello:
                self._origin = origin
                may = self._identify(peer, session, message, principal)
            else:
                may = session.may
            needed = may.fast.get(command)
            if needed is None or message[needed[0]] in needed[1] or self._may(may, session, message):
                handler(self, peer, session, message)
        except MalamuteError as error:
            sender, report = self._sender.principal, self.refusals.command
            self.effects.guard("a report of a refusal", report, session, message, error, sender, self._origin)
            self.refuse(peer, _about(error, message), now)
        except Exception as error:
            fault = self.effects.fault(command.__name__.upper(), error)
            self.refuse(peer, _about(fault, message), now)
            if command not in UNATTACHED:
                self.begin_anew(peer)

    def _identify(
        self, peer: bytes, session: Session | None, message: Message, principal: Principal
    ) -> Permissions:
        """Return the permissions of a peer that says HELLO, or has no session.

        Raises:
            AccessRefused: the principal does not count any more, or may not act as it wants to.
        """
        self._sender = self.access.of(principal)
        if type(message) is Hello:
            if session is not None and session.proved_user != principal.user:
                # Even if this HELLO is refused, the routing id is its connection's now.
                self.sessions.lost(peer)
            # The connection may have been proved before an account was disabled.
            self.access.confirm(principal)
            if message.act_as:
                self._sender = self.access.of(self.access.act_as(principal, message.act_as))
        return self._sender

    def _may(self, may: Permissions, session: Session | None, message: Message) -> bool:
        """Check a command that is not known to be allowed. Returns False if its number was answered before.

        Raises:
            AccessRefused: the command is not allowed. NumberTooOld: the command is not allowed, and its
            number is out of order.
        """
        try:
            may.check(message)
        except AccessRefused:
            if session is not None and type(message) is Request and message.acks:
                self._acknowledge_piggybacked(session, message)
            number = getattr(message, "number", 0)
            if session is not None and number:
                admit = (
                    partial(self.confirmations.admit_change, about=about)
                    if (about := BY_TYPE[type(message)].opcode) in WITH_OUTCOME
                    else self.confirmations.admit
                )
                if not admit(session, number):
                    return False
            raise
        return True

    def refuse(self, peer: bytes, error: MalamuteError, now: float) -> None:
        """Send a peer the reason of a refusal, without another effect."""
        self.effects.now = now
        answer = error_message(error)
        if answer.about in NUMBERED and not self._note_refusal(peer, answer):
            return
        self.effects.refuse(peer, answer)

    def _note_refusal(self, peer: bytes, answer: Error) -> bool:
        """Remember how a number was refused. Returns whether the peer gets an answer."""
        if not answer.ref:
            # A peer that floods the broker without asking for answers gets one for all of an iteration.
            answered = peer in self.refused_peers
            self.refused_peers.add(peer)
            return not answered
        session = self.sessions.by_peer.get(peer)
        # A number that came too early, or before HELLO, has no outcome yet: it will be sent again.
        if session is not None and session.open and answer.code != NumberTooOld.code:
            self.confirmations.refuse(session, answer.ref, answer)
        return True

    def begin_anew(self, peer: bytes) -> None:
        """Take back the state of a connection after a fault, as if it was lost.

        The state of the session stays. The client is there: it repeats HELLO, and continues.
        """
        session = self.sessions.by_peer.get(peer)
        if session is not None and session.open:
            self.effects.guard("the end of a connection", self.sessions.lost, peer)
            self.effects.send(peer, _BEGIN_ANEW)

    # Handlers: the session

    def _hello(self, peer: bytes, session: Session | None, message: Hello) -> None:
        if message.renews:
            self._renew(session, message)
            return
        session = self.sessions.hello(peer, message, self._sender)
        session.origin = self._origin
        self._await_expiry(session)

    def _renew(self, session: Session | None, message: Hello) -> None:
        """Prolong a session by another token of its user, with the permissions of that token.

        Raises:
            UnexpectedCommand: the session is not open.
            AccessRefused: it belongs to another user.
        """
        if session is None or not session.open:
            raise UnexpectedCommand("HELLO that renews, and no session is open: expected one that opens it")
        self.sessions.renew(session, self._sender)
        self._await_expiry(session)
        self.review.of_session(session)
        if session.open:
            self.effects.send(session.peer, Ok(BY_TYPE[Hello].opcode, message.attempt))

    def _await_expiry(self, session: Session) -> None:
        self.timers.cancel(session.expiry)
        session.expiry = None
        expires_at = session.may.principal.expires_at
        if expires_at < inf:
            session.expiry = self.timers.at(expires_at, partial(self._expire, session))

    def _expire(self, session: Session) -> None:
        """The token of a session's user has expired."""
        user = session.may.principal.proved.user
        error = AccessRefused(f"the token of {user!r} has expired: connect with a new one")
        self.sessions.dismiss(session, error, "token expired")

    # Handlers: messages

    def _publish(self, peer: bytes, session: Session, message: Publish) -> None:
        if message.number and not self.confirmations.admit(session, message.number):
            return
        records = message.records
        size_bytes = self._check_size(records)
        if message.id and self._is_duplicate(session, message):
            return
        if session.quotas:
            amounts = len(records), size_bytes
            check_rates(session.quotas, amounts, self.effects.now)
        stream = self.streams.by_name.get(message.stream)
        if stream is None or stream.journaled or stream.progress.next > stream.progress.reserved:
            if stream is None:
                session.may.require("create", "stream", message.stream)
            taken = 2 * size_bytes + MESSAGE_BYTES * len(records)
            if size_bytes >= RECORD_LARGE_BYTES:
                taken -= large_bytes(records)
            self._hold(session, taken)
            stream = stream or self.streams.get(message.stream, session.may.principal.user)
        # Messages that wait for sequences wait for the disk, and an id for the message that had it first.
        waits = stream.journaled or stream.progress.next > stream.progress.reserved or message.id
        first = stream.publish(session.sender, message.subjects, records, message.ttl)
        session.sent += len(records)
        if session.quotas:
            consume_rates(session.quotas, amounts, self.effects.now)
        if message.number:
            self.confirmations.accept(session, message, len(records), first, in_memory=not waits)
        if message.id:
            self.streams.duplicates.add(session.may.principal.user, stream, message, first)

    def _is_duplicate(self, session: Session, message: Publish) -> bool:
        """Return whether the id of a command is known; the command is confirmed as the first one with it."""
        first = self.streams.duplicates.find(session.may.principal.user, message)
        if first and message.number:
            # No sequence follows 0, so that its run has no other command.
            self.confirmations.accept(session, message, first, -first)
        return first > 0

    def _forward(self, peer: bytes, session: Session, message: Forward) -> None:
        if not self.confirmations.admit(session, message.number):
            return
        records = message.records
        size_bytes = self._check_size(records)
        self.links.check_forward(message)
        amounts = len(records), size_bytes
        check_rates(session.quotas, amounts, self.effects.now)
        self._hold(session, 2 * size_bytes + MESSAGE_BYTES * len(records))
        first = self.links.forward(message)
        session.sent += len(records)
        consume_rates(session.quotas, amounts, self.effects.now)
        self.confirmations.accept(session, message, len(records), first)

    def _send(self, peer: bytes, session: Session, message: Send) -> None:
        self._numbered(session, message, self.mailboxes.send)

    def _request(self, peer: bytes, session: Session, message: Request) -> None:
        if message.acks:
            self._acknowledge_piggybacked(session, message)
        self._numbered(session, message, self.services.request)

    def _acknowledge_piggybacked(self, session: Session, message: Request) -> None:
        """Acknowledge the piggybacked deliveries of a request, as if an ACK had come before it."""
        if _was_answered(session, message):
            return
        acks = Ack(MAILBOX, message.acks)
        try:
            self._ack(session.peer, session, acks)
        except MalamuteError as error:
            self.refuse(session.peer, _about(error, acks), self.effects.now)

    def _reply(self, peer: bytes, session: Session, message: Reply) -> None:
        grants = (message.credit or message.credit_bytes) and not _was_answered(session, message)
        try:
            self._numbered(session, message, self.services.reply)
        finally:
            # The worker is done with the request, even if the reply is refused.
            if grants and isinstance(offer := session.sources.get(message.source), QueueSource):
                offer.grant(message.credit, message.credit_bytes)

    def _numbered(self, session: Session, message: Any, execute: Callable[[Session, Any], bool]) -> None:
        if message.number and not self.confirmations.admit(session, message.number):
            return
        records = message.records
        size_bytes = self._check_size(records)
        # A worker can always end its requests.
        quotas = session.quotas if type(message) is not Reply else ()
        if quotas:
            amounts = len(records), size_bytes
            check_rates(quotas, amounts, self.effects.now)
        self._hold(session, size_bytes + ENTRY_BYTES * len(records))
        in_memory = execute(session, message)
        session.sent += len(records)
        if quotas:
            consume_rates(quotas, amounts, self.effects.now)
        if message.number:
            self.confirmations.accept(session, message, 0, 0, in_memory=in_memory)

    def _check_size(self, records: Sequence[Frame]) -> int:
        size_bytes = sum(map(len, records))
        if size_bytes > self._message_bytes_max:
            raise TooLarge(
                f"command of {size_bytes} bytes is too large: expected at most {self._message_bytes_max}"
            )
        return size_bytes

    def _hold(self, session: Session, size_bytes: int) -> None:
        """Admit a command to the write backlog, unless all sessions, or this one, have too much there.

        A session may have as much there as it leaves to others, so the one that has least always gets
        through. A session with nothing there may send one command.
        """
        stage = self.effects.stage
        held = session.backlog_bytes + size_bytes
        if stage.backlog_bytes + held + size_bytes > self._backlog_bytes_max:
            self._check_backlog(session.backlog_bytes)
        session.backlog_bytes = held
        if not session.new_bytes:
            stage.backlog_shares.append(session)
        session.new_bytes += size_bytes

    def _check_backlog(self, held: int) -> None:
        if self.effects.stage.backlog_bytes > self._backlog_bytes_max:
            raise TryLater("write backlog is full: the disk is slower than the publishers; retry later")
        if held:
            raise TryLater(
                f"write backlog is full: the disk is slower than the publishers, "
                f"and {held} bytes of this session wait; retry later"
            )

    # Handlers: sources of a session, and their deliveries

    def _subscribe(self, peer: bytes, session: Session, message: Subscribe) -> None:
        self._check_source(session, message.source)
        asked = Selector.parse(message.criteria, message.where)
        selector = session.may.narrow("subscribe", "stream", message.stream, asked)
        if message.existing and message.stream not in self.streams.by_name:
            raise NotFound(f"there is no stream {message.stream!r}: publish to it, or create it, first")
        session.may.require_there("stream", message.stream, self.streams.by_name)
        cost = self.selectors.check(selector, session, SUBSCRIPTION_BYTES)
        subscribe(self.streams, session, message, selector, asked)
        self._acquire_selector(session, message.source, cost)

    def _offer(self, peer: bytes, session: Session, message: Offer) -> None:
        self._check_source(session, message.source)
        selector, table = Selector.parse(message.criteria), self.queues[message.kind]
        check_offer(session.may, table.kind, message.service, selector)
        if message.once and message.service not in table.by_name:
            # The answer creates nothing.
            self._answer_offer(session, message.source, 0)
            self.effects.send(peer, Ok(BY_TYPE[Cancel].opcode, message.source))
            return
        session.may.require_there(table.kind, message.service, table.by_name)
        cost = self.selectors.check(selector, session, OFFER_BYTES)
        if selector.needs_headers:
            raise InvalidSelector(
                "invalid criteria of an offer: expected families of subjects, not of headers"
            )
        queue = table.offered(message.service, session, temporary=message.temporary)
        offer = QueueSource(session, message.source, queue, selector, message.ack_timeout / 1000)
        session.sources[message.source] = offer
        self._acquire_selector(session, message.source, cost)
        self._answer_offer(session, message.source, offer.consumer.ack_timeout)
        report_worker("joined", offer)
        offer.grant(message.credit, message.credit_bytes)
        if message.once:
            self._end_idle(session, message.source, offer)

    def _answer_offer(self, session: Session, source: int, ack_timeout: float) -> None:
        self.effects.send(session.peer, Ok(BY_TYPE[Offer].opcode, source, round(ack_timeout * 1000)))

    def _end_idle(self, session: Session, source: int, offer: QueueSource) -> None:
        """End an offer for once, unless a message was found for it, or the search goes on."""
        consumer = offer.consumer
        if session.sources.get(source) is not offer or consumer.outstanding:
            return
        if consumer.is_searching:
            self.effects.later(lambda: self._end_idle(session, source, offer))
            return
        del session.sources[source]
        self.sources.end(session, offer)
        self.effects.send(session.peer, Ok(BY_TYPE[Cancel].opcode, source))

    def _acquire_selector(self, session: Session, source: int, cost: int) -> None:
        session.sources[source].cost_bytes = cost
        self.selectors.acquire(cost, session)

    def _check_source(self, session: Session, source: int) -> None:
        if source in session.sources:
            raise InvalidValue(f"source {source} is in use: expected a new id")
        if len(session.sources) - (MAILBOX in session.sources) >= self.sessions.limits.sources:
            raise TooMany(
                f"too many sources: expected at most {self.sessions.limits.sources} for each session"
            )

    def _cancel(self, peer: bytes, session: Session, message: Cancel) -> None:
        source = session.source(message.source)
        del session.sources[message.source]
        self.sources.end(session, source)
        self.effects.send(peer, Ok(BY_TYPE[Cancel].opcode, message.source))

    def _credit(self, peer: bytes, session: Session, message: Credit) -> None:
        mailbox = message.source == MAILBOX
        source = self.mailboxes.source(session) if mailbox else session.source(message.source)
        source.grant(message.messages, message.bytes)

    def _ack(self, peer: bytes, session: Session, message: Ack) -> None:
        source = _queue_source(session, message.source)
        try:
            source.acknowledge(message.ranges)
        finally:
            if message.credit or message.credit_bytes:
                source.grant(message.credit, message.credit_bytes)

    def _nak(self, peer: bytes, session: Session, message: Nak) -> None:
        delay = None if message.delay < 0 else message.delay / 1000
        _queue_source(session, message.source).give_back(message.ranges, delay)

    def _reject(self, peer: bytes, session: Session, message: Reject) -> None:
        source = _queue_source(session, message.source)
        (source.bounce if message.bounce else source.reject)(message.ranges, message.reason)

    def _progress(self, peer: bytes, session: Session, message: Progress) -> None:
        _queue_source(session, message.source).report(message.ranges)

    def _release(self, peer: bytes, session: Session, message: Release) -> None:
        _queue_source(session, message.source).release(message.ranges)

    def _drain(self, peer: bytes, session: Session, message: Drain) -> None:
        answer = Ok(BY_TYPE[Drain].opcode, message.source)

        def drained(error: MalamuteError | None) -> None:
            # Returned messages count no attempt over a crash either.
            if error is None:
                self.effects.send(peer, answer)
            else:
                self.effects.refuse(peer, error_message(error, answer.about, answer.ref))

        if message.source == MAILBOX and MAILBOX not in session.sources:
            drained(None)
        else:
            session.source(message.source).drain(message.held, drained)

    # Handlers: buckets

    def _get(self, peer: bytes, session: Session, message: Get) -> None:
        self.answers.check(session)
        self.answers.give(session, Answer(message.ref, self.buckets.get(message, self._answers_bytes_max)))

    def _put(self, peer: bytes, session: Session, message: Put) -> None:
        def execute() -> KeyOutcome:
            if not message.ranges:
                return self.buckets.put(session, message)
            source = _queue_source(session, message.source)
            held = source.consumer.held(message.ranges)
            outcome = self.buckets.put(session, message, bound=True)
            source.complete(held, bound=True)
            return outcome

        self._with_outcome(session, message, len(message.value), execute)

    def _delete(self, peer: bytes, session: Session, message: Delete) -> None:
        self._with_outcome(session, message, 0, lambda: self.buckets.delete(message))

    def _add(self, peer: bytes, session: Session, message: Add) -> None:
        self._with_outcome(session, message, 0, lambda: self.buckets.add(session, message))

    def _with_outcome(
        self,
        session: Session,
        message: Put | Delete | Add,
        size_bytes: int,
        execute: Callable[[], KeyOutcome],
    ) -> None:
        """Execute a change of a key once, and answer with its outcome."""
        about, number = BY_TYPE[type(message)].opcode, message.number
        if not self.confirmations.admit_change(session, number, about):
            return
        quotas = session.quotas
        if quotas:
            check_rates(quotas, (1, size_bytes), self.effects.now)
        self._hold(session, size_bytes + KEY_BYTES)
        outcome = execute()
        if quotas:
            consume_rates(quotas, (1, size_bytes), self.effects.now)
        if outcome.at_once:
            self.confirmations.settle_at_once(session, number, outcome.value, about)
        else:
            self.confirmations.begin_change(session, number)
            self.confirmations.decide_change(session, number, outcome.value, about=about)

    def _watch(self, peer: bytes, session: Session, message: Watch) -> None:
        self._check_source(session, message.source)
        cost = self.selectors.check_cost(self.buckets.watch_cost(message.keys), session)
        session.sources[message.source] = self.buckets.watch(session, message)
        self._acquire_selector(session, message.source, cost)
        self.effects.send(peer, Ok(BY_TYPE[Watch].opcode, message.source))

    # Handlers: all else

    def _withdraw(self, peer: bytes, session: Session, message: Withdraw) -> None:
        sender = session.address if message.kind == "mailbox" else session.mailbox
        queue = self.queues[message.kind].by_name.get(message.name)
        answer = _WithdrawalAnswer(self.effects, peer, message)
        if message.id:
            needed = SENDING[message.kind], message.kind, message.name
            session.may.require_some(*needed)
            if queue is not None:
                allow = partial(session.may.require, *needed)
                cancel(queue, message.id, allow, answer.keep, answer.report, answer.refuse)
                return
        elif queue is not None and sender:
            withdraw(queue, sender, message.correlation, answer.report, answer.refuse)
            return
        answer.report(0, 0)

    def _query(self, peer: bytes, session: Session, message: Query) -> None:
        self.queries.answer(session, message)

    def _change(self, peer: bytes, session: Session, message: Change) -> None:
        self.changes.make(session, message)

    def _commit(self, peer: bytes, session: Session, message: Commit) -> None:
        if message.number and not self.confirmations.admit(session, message.number):
            return
        self.streams.commit(session, message)
        if message.number:
            self.confirmations.accept(session, message, 0, 0)

    def _ping(self, peer: bytes, session: Session, message: Ping) -> None:
        self.effects.send(peer, Pong())

    def _received(self, peer: bytes, session: Session, message: Received) -> None:
        """Nothing to do: that it was heard is noted, and its window is the transport's."""

    def _bye(self, peer: bytes, session: Session, message: Bye) -> None:
        self.effects.send(peer, Ok(BY_TYPE[Bye].opcode, 0))
        self.sessions.end(session, "bye")


class _WithdrawalAnswer:
    """The answer to a WITHDRAW, once it is stored."""

    def __init__(self, effects: Effects, peer: bytes, message: Withdraw) -> None:
        self._effects = effects
        self._peer = peer
        self._message = message
        self._in_flight = 0

    def keep(self, in_flight: int) -> None:
        """So many messages under the id stay with their consumers."""
        self._in_flight = in_flight

    def refuse(self, error: MalamuteError) -> None:
        """Nothing was withdrawn."""
        answer = error_message(error, BY_TYPE[Withdraw].opcode, self._message.ref)
        self._effects.refuse(self._peer, answer)

    def report(self, count: int, before: int, *, final: bool = True, partial: bool = False) -> None:
        """Answer, after the commit if it has any message."""
        if partial:
            self._send(count)
        elif final and not count and not self._message.id:
            words = f"no message of this sender has the correlation {self._message.correlation!r}"
            self.refuse(NotFound(words))
        elif final and not count:
            self._send(0)
        elif final:
            self._effects.stage.when_stored(
                lambda error: self._stored(count if error is None else before, error)
            )

    def _stored(self, count: int, error: MalamuteError | None) -> None:
        if error is not None and not count:
            self.refuse(error)
        else:
            self._send(count)

    def _send(self, count: int) -> None:
        value = [count, self._in_flight] if self._message.id else count
        self._effects.send(self._peer, Ok(BY_TYPE[Withdraw].opcode, self._message.ref, value))


SENDING = {"mailbox": "send", "service": "request"}
"""The action of sending a message, by the kind of the queue."""

Handler = Callable[[ClientCommands, bytes, Any, Any], None]

STATES: dict[str, dict[type[Any], Handler]] = {
    "absent": {Hello: ClientCommands._hello},
    "away": {Hello: ClientCommands._hello},
    "open": {
        Hello: ClientCommands._hello,
        Publish: ClientCommands._publish,
        Forward: ClientCommands._forward,
        Send: ClientCommands._send,
        Request: ClientCommands._request,
        Reply: ClientCommands._reply,
        Subscribe: ClientCommands._subscribe,
        Offer: ClientCommands._offer,
        Cancel: ClientCommands._cancel,
        Credit: ClientCommands._credit,
        Ack: ClientCommands._ack,
        Nak: ClientCommands._nak,
        Reject: ClientCommands._reject,
        Progress: ClientCommands._progress,
        Release: ClientCommands._release,
        Drain: ClientCommands._drain,
        Withdraw: ClientCommands._withdraw,
        Query: ClientCommands._query,
        Ping: ClientCommands._ping,
        Received: ClientCommands._received,
        Bye: ClientCommands._bye,
        Commit: ClientCommands._commit,
        Change: ClientCommands._change,
        Get: ClientCommands._get,
        Put: ClientCommands._put,
        Delete: ClientCommands._delete,
        Add: ClientCommands._add,
        Watch: ClientCommands._watch,
    },
}

UNATTACHED = frozenset((Query, Change, Ping, Withdraw, Commit, Get, Delete, Add))
"""Commands that touch nothing of their connection, so that a fault in one leaves it as it was."""

_BEGIN_ANEW = Error(UnexpectedCommand.code, "a fault of the broker's own has ended this: say HELLO again")

NUMBERED = WITH_OUTCOME.union(
    BY_TYPE[message].opcode for message in (Publish, Forward, Send, Request, Reply, Commit)
)
"""Opcodes of the commands whose `ref` is a number of the session."""


def _was_answered(session: Session, message: Request | Reply) -> bool:
    """Return whether a command is repeated, so that its piggybacked fields are ignored."""
    return 0 < message.number < session.numbers.next


def _queue_source(session: Session, source_id: int) -> QueueSource:
    source = session.source(source_id)
    if not isinstance(source, QueueSource):
        raise NotFound(f"source {source_id} is a subscription: expected the mailbox or an offer")
    return source


def _unexpected(state: str, message: Message) -> MalamuteError:
    name = type(message).__name__.upper()
    if state == "open":
        return UnexpectedCommand(f"{name} from a client: only the broker sends it")
    return UnexpectedCommand(f"{name} before HELLO: expected HELLO first")


def _about(error: MalamuteError, message: Message) -> MalamuteError:
    spec = BY_TYPE[type(message)]
    error.about = spec.opcode
    error.ref = message[spec.ref] if spec.ref >= 0 else 0  # type: ignore[assignment]  # a ref is a number
    return error
