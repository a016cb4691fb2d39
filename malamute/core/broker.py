"""The core: every command in, everything to be done out, and no word to a socket, a disk or a clock.

The edge calls `receive` for each message (or `refuse` for bytes that were none), `stored` and `store_failed`
when the writer is done, and `answered` with what the store found. It calls `lost` when a peer cannot be
reached, `blocked` and `unblocked` when its pipe is full and not full any more, and `tick` as time goes by.
None of them raises for a peer's fault: the peer gets a numbered ERROR, and nothing is changed. At the end of
each iteration the edge calls `ready` and does what it says.

`STATES` is the protocol: which commands a session may send in which state, and what handles them.
An absent key is an error of the protocol. `access.ACCESS` beside it says what each of them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from malamute.core import startup
from malamute.core.access import ANONYMOUS, AccessControl, Permissions, Principal
from malamute.core.accounts import AccountDirectory
from malamute.core.admin import changes, queries
from malamute.core.answers import Answers
from malamute.core.audit import BY_SIGNAL, DONE, REFUSED, Audit, who
from malamute.core.effects import ClockStep, Effects, LoadConfiguration, Question, Ready
from malamute.core.engines import Engines
from malamute.core.events import Events, report_worker
from malamute.core.feed.feed import Feed
from malamute.core.feed.table import Feeds
from malamute.core.grace_period import ClockNote, GracePeriod
from malamute.core.health import Health
from malamute.core.mailbox import Mailboxes
from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.purge import withdraw
from malamute.core.queue.source import QueueSource
from malamute.core.queue.trackers import Trackers
from malamute.core.quotas import QuotaTable, check_rates, consume_rates
from malamute.core.recovery import Recovery
from malamute.core.refusal_log import ADDRESSES_MAX, Details, RefusalLog
from malamute.core.selectors import OFFER_BYTES, SUBSCRIPTION_BYTES, SelectorBudget
from malamute.core.service import Services
from malamute.core.session import Session, Sessions, SessionSource
from malamute.core.settings import ConfigurationLoaded, Settings
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.chunk import MESSAGE_BYTES, large_bytes
from malamute.core.stream.stream import Streams
from malamute.core.stream.subscription import Subscription
from malamute.core.timers import Timers
from malamute.core.workflow import GO_ON, Workflow, run_workflow
from malamute.errors import (
    AccessRefused,
    Failed,
    InternalError,
    InvalidSelector,
    InvalidValue,
    MalamuteError,
    NotFound,
    NumberTooOld,
    QuotaExceeded,
    TooLarge,
    TooMany,
    TryLater,
    UnexpectedCommand,
)
from malamute.matching import CacheBudget, Selector
from malamute.protocol.admin import FeedSet
from malamute.protocol.batch import Frame
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Ack,
    Answer,
    Bye,
    Cancel,
    Change,
    Commit,
    Credit,
    Drain,
    Error,
    Hello,
    Message,
    Nak,
    Offer,
    Ok,
    Ping,
    Pong,
    Progress,
    Publish,
    Query,
    Received,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Subscribe,
    Withdraw,
    error_message,
)
from malamute.protocol.names import Place
from malamute.store.operations import EMPTY, Defect, Recovered, Stranded
from malamute.store.policies import BaseKind

CLOCK_WORDS = {
    "stepped": "the wall clock was set; the times of messages follow when it has stood for a while",
    "returned": "the wall clock was set back to where it was",
    "corrected": "the wall clock was wrong at the start: what had ended by it goes on",
    "followed": "the times of messages follow the wall clock from now on",
}

CONFIGURED = "the configuration was loaded"

REVIEW_WORK = 100
"""What it takes to look at a session, at a source of it, or at a feed, when the rules have changed."""

CONFIGURE_WORK = 10
"""What it takes to have a stream or a queue go by another policy."""

SHOWN_MAX = 64
"""Characters that are shown of a name that nobody has proved."""


class Core(Engines):
    """The broker without its edges. `now` is always seconds since the epoch, UTC, and never goes back."""

    def __init__(self, now: float, settings: Settings | None = None, recovered: Recovered = EMPTY) -> None:
        self.settings = settings = settings or Settings()
        limits = settings.limits
        self.effects = Effects(now, settings.seed)
        self._refused_peers: set[bytes] = set()
        self.answers = Answers(self.effects, limits.answers_bytes)
        self._message_bytes_max = limits.message_bytes
        self._backlog_bytes_max = limits.backlog_bytes
        self.started = self.configured_at = now
        self.selectors = SelectorBudget(limits)
        caches = CacheBudget(limits.caches_bytes)
        self.timers = Timers(partial(self.effects.fault, "a timer"))
        self.streams = Streams(
            self.effects,
            limits,
            settings.streams,
            caches,
            recovered.incarnations,
            ageing=Ageing(self.effects, self.timers),
            unjournaled=settings.unjournaled,
        )
        self.health = Health(self.effects, self.timers)
        self.queue_limits = QueueLimits(
            self.effects, limits, self.timers, settings.queues, caches, recovered.incarnation
        )
        grace_period = GracePeriod(self.effects, self.timers, self._give_time_back)
        self.queue_limits.grace_period = grace_period
        self.clock_note = ClockNote(self.effects, grace_period)
        self.mailboxes = Mailboxes(self.queue_limits)
        self.queue_limits.trackers = Trackers(self.mailboxes)
        self.services = Services(self.queue_limits, self.mailboxes)
        self.quotas = QuotaTable(settings.access, self._groups_of_account)
        self.sessions = Sessions(
            self.effects,
            limits,
            broker_id=recovered.broker_id,
            incarnation=recovered.incarnation,
            software=settings.software,
            expiry=settings.session_expiry,
            probe=settings.probe_interval,
            release=self._take_back,
            forget=self.mailboxes.forget,
            ack_timeout=lambda address: self.settings.queues("mailbox", address).ack_timeout_seconds,
            quotas=self.quotas,
        )
        self.recovery = Recovery(self.effects)
        self.accounts = AccountDirectory(self.effects, settings.accounts, self._account_changed)
        self.feeds = Feeds(
            limits,
            self.streams,
            self.mailboxes,
            self.services,
            self.selectors,
            self.recovery,
            self._feed_refusal,
        )
        startup.restore(self, recovered)
        if settings.unjournaled:
            self.streams.begin_epoch()
        self.events = Events(
            self.effects,
            limits,
            self.streams,
            self.queue_limits.settlement_log,
            lifecycle=settings.lifecycle_events,
            settled=settings.settled_events,
        )
        self.audit = Audit(self.effects, self.timers, self.streams, on=settings.audit)
        own = frozenset(stream.name for stream in self.streams.by_name.values() if stream.own)
        self.access = AccessControl(own, settings.access, self.accounts)
        self._rules_in_force = self.access.in_force
        for feed in self.feeds.by_name.values():
            self.feeds.review(feed)
        self._refusals = RefusalLog(self.effects, self.timers, self._report_refusal)
        self._strangers = RefusalLog(self.effects, self.timers, self._report_refusal, ADDRESSES_MAX)
        """What peers were refused that did not come as far as a command, by their addresses."""
        self._exceeded = RefusalLog(self.effects, self.timers, self._report_exceeded)
        self._sender = self.access.of(ANONYMOUS)
        """The principal of the last HELLO, and what it may do."""
        self._origin = ""
        """From where that came."""
        startup.report(self, recovered)

    # Events in

    def receive(
        self,
        peer: bytes,
        message: Message,
        now: float,
        principal: Principal = ANONYMOUS,
        origin: str = "",
    ) -> None:
        """Take a message from a peer. `principal` is who it is; HELLO gives the session to it.

        What comes later on this connection is of the same principal, and need not say so. `origin` is the
        network address that it comes from, where that is known.
        """
        self.effects.now = now
        command = type(message)
        session = self.sessions.by_peer.get(peer)
        if session is not None and session.review is not None and command is not Hello:
            session.review(session)
            session = self.sessions.by_peer.get(peer)
        state = "absent" if session is None else "open" if session.open else "away"
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
                may = self._sender = self.access.of(principal)
                self._origin = origin
            else:
                may = session.may
            needed = may.fast.get(command)
            if needed is None or message[needed[0]] in needed[1] or self._may(may, session, message):
                handler(self, peer, session, message)
        except MalamuteError as error:
            self.effects.guard("the log of refusals", self._log_refusal, session, message, error)
            self.refuse(peer, _about(error, message), now)
        except Exception as error:
            fault = self.effects.fault(command.__name__.upper(), error)
            self.refuse(peer, _about(fault, message), now)
            if command not in UNATTACHED:
                self._begin_anew(peer)

    def _may(self, may: Permissions, session: Session | None, message: Message) -> bool:
        """Check what is not known to be allowed. False if the number of the command has been answered before.

        Raises:
            AccessRefused: it is not allowed.
            NumberTooOld: nor is it time for its number.
        """
        try:
            may.check(message)
        except AccessRefused:
            if session is not None and type(message) is Request and message.acks:
                self._acknowledge_piggybacked(session, message)
            number = getattr(message, "number", 0)
            if session is not None and number:
                admit = self.sessions.admit_change if type(message) is Change else self.sessions.admit
                if not admit(session, number):
                    return False
            raise
        return True

    def _log_refusal(self, session: Session | None, message: Message, error: MalamuteError) -> None:
        """Report a command that rules or quotas refuse in `$sys`, and a refused change in the audit."""
        wanted = type(message).__name__.lower()
        if isinstance(error, AccessRefused):
            by = self._who(session, message)
            action, rule = error.action or wanted, error.rule or error.text
            self._refusals.note(by["user"], {**by, "action": action, "target": error.target, "rule": rule})
        elif isinstance(error, QuotaExceeded):
            self.quotas.refused += 1
            by, owner = self._who(session, message), " ".join(error.owner)
            self._exceeded.note(by["user"], {**by, "action": wanted, "quota": error.limit, "owner": owner})
        # What comes too early, or before HELLO, has no outcome yet: it will be sent again.
        known = session is not None and session.open and not isinstance(error, NumberTooOld)
        if session is not None and known and type(message) is Change:
            self.audit.record(who(session), message.topic, message.arguments, REFUSED, error=error)

    def connection_refused(self, origin: str, method: str, claimed: str, reason: str, now: float) -> None:
        """A connection was refused before a command came on it: report it in `$sys`.

        `claimed` is who it said to be. That may be any text, so what could harm a reader of it is escaped.
        """
        self.effects.now = now
        target = f"user/{shown_name(claimed)}" if claimed else ""
        nobody = dict(user="", client="", address="")
        details = {**nobody, "method": method, "origin": origin, "action": "connect"}
        details.update(target=target, rule=reason)
        self.effects.guard("the log of strangers", self._strangers.note, origin, details)

    def _who(self, session: Session | None, message: Message) -> dict[str, str]:
        """The user, the client and the network address that a message comes from, as headers."""
        if session is not None and type(message) is not Hello:
            return who(session)
        # The user of a session of this name, if there is one, says nothing of the peer that asks for it.
        user, method = self._sender.principal.user, self._sender.principal.method
        address = getattr(message, "address", "")
        return dict(user=user, method=method, origin=self._origin, client="", address=address)

    def _report_refusal(self, details: Details, count: int) -> None:
        self._report("access.refused", details, count)

    def _report_exceeded(self, details: Details, count: int) -> None:
        self._report("quota.exceeded", details, count)

    def _report(self, what: str, details: Details, count: int) -> None:
        user = details["user"]
        self.effects.event(f"{what}.{user}" if user else what, **details, count=count)

    def owner_of(self, peer: bytes) -> str | None:
        """The user whose open session is that of a peer; None if there is none."""
        session = self.sessions.by_peer.get(peer)
        return session.numbers.user if session is not None and session.open else None

    def refuse(self, peer: bytes, error: MalamuteError, now: float) -> None:
        """Send a peer the reason why what it sent was refused. Nothing else happens."""
        self.effects.now = now
        answer = error_message(error)
        if answer.about in NUMBERED and not self._note_refusal(peer, answer):
            return
        self.effects.refuse(peer, answer)

    def _note_refusal(self, peer: bytes, answer: Error) -> bool:
        """Remember how a number was refused. Returns whether the peer gets an answer."""
        if not answer.ref:
            # A peer that floods the broker without asking for answers gets one for all of an iteration.
            answered = peer in self._refused_peers
            self._refused_peers.add(peer)
            return not answered
        session = self.sessions.by_peer.get(peer)
        # A number that came too early, or before HELLO, has no outcome yet: it will be sent again.
        if session is not None and session.open and answer.code != NumberTooOld.code:
            self.sessions.refuse(session, answer.ref, answer)
        return True

    def stored(self, token: int, now: float) -> None:
        """What `token` names is committed and fsynced."""
        self.effects.now = now
        self.effects.settle(token, None)
        self.events.stored()
        self.health.stored()

    def store_failed(self, token: int, error: MalamuteError, now: float) -> None:
        """What `token` names could not be stored."""
        self.effects.now = now
        self.effects.settle(token, error if isinstance(error, Failed) else InternalError(str(error)))
        self.events.store_failed(error)
        self.health.store_failed(error)

    def answered(self, question: Question, result: Any, now: float) -> None:
        """The store has answered a question."""
        self.effects.now = now
        if isinstance(question, LoadConfiguration) and not question.dry_run:
            self._loaded(result)
        self.effects.answer(question, result)

    def reload(self, now: float) -> None:
        """Have the configuration read again, and go by it if it is good."""
        self.effects.now = now
        record = partial(self.audit.record, BY_SIGNAL, "broker.reload", {})
        self.effects.ask(
            LoadConfiguration(),
            lambda loaded: record(DONE, after=changes.reloaded(loaded)),
            lambda error: record(REFUSED, error=error),
        )

    def _loaded(self, result: ConfigurationLoaded | MalamuteError) -> None:
        if isinstance(result, MalamuteError):
            self.config_error = str(result)
            self.effects.notice("the configuration is refused", error=str(result), code=result.code)
            return
        self.configure(result.settings, self.effects.now)
        self.config_error = ""
        self.configured_at, self.waiting_options = self.effects.now, result.waiting
        changed, waiting = list(result.changed), list(result.waiting)
        self.effects.notice(CONFIGURED, changed=changed, waiting_for_restart=waiting)
        self.effects.event("broker.configured", changed=" ".join(changed), waiting=" ".join(waiting))

    def configure(self, settings: Settings, now: float) -> None:
        """Go by other settings from now on.

        Limits may be lower than what is there: it stays, and nothing is added until there is room again.
        """
        self.effects.now = now
        self.settings, limits = settings, settings.limits
        self.streams.configure(settings.streams, limits)
        self.queue_limits.configure(settings.queues, limits)
        self.sessions.limits = self.feeds.limits = self.selectors.limits = limits
        accounts, rules = self.accounts.configure(settings.accounts), self.access.configure(settings.access)
        if accounts or rules:
            self.quotas.configure(settings.access)
            self._review_all()
        run_workflow(self.effects, self._configure_all(settings))

    def _account_changed(self, user: str) -> None:
        """A stored account is other than before: look at what its user has."""
        self.access.forget_user(user)
        # The change is to be answered before its own session ends.
        self.effects.later(partial(self._review_account, user))

    def _review_account(self, user: str) -> None:
        """Look at what a user has. Others are concerned if rules go in or out of force by that."""
        if self.access.in_force != self._rules_in_force:
            self._review_all()
            looks = chain(self._each_feed(), self._each_session())
        else:
            sessions = self.sessions.of_user(user)
            feeds = [feed for feed in self.feeds.by_name.values() if feed.rule.setter.user == user]
            looks = chain(
                (partial(self._review_feed, feed) for feed in feeds),
                (partial(self._review, session) for session in sessions),
            )
        run_workflow(self.effects, self._look(looks))

    def _review_all(self) -> None:
        """Have each session reviewed before anything else is done for it."""
        self._rules_in_force = self.access.in_force
        self.access.outdate()
        self.effects.reviewing = True
        for session in self.sessions.by_peer.values():
            session.review = self._review

    def _look(self, looks: Iterable[Callable[[], None]]) -> Workflow:
        """Look at one after the other, some of them in each iteration."""
        for look in looks:
            look()
            if self.effects.work <= 0:
                yield GO_ON

    def _configure_all(self, settings: Settings) -> Workflow:
        """Have all that there is go by the settings, some of it in each iteration.

        What something is done for goes by the rules of now before its turn comes (`Session.review`). Other
        settings that come meanwhile are for all that there is again, so this ends there.
        """
        looks = chain(self._each_feed(), self._each_session()) if self.effects.reviewing else ()
        for configure in chain(looks, self._each_queue(), self._each_stream()):
            configure()
            if self.effects.work <= 0:
                yield GO_ON
                if self.settings is not settings:
                    return

    def _each_feed(self) -> Iterator[Callable[[], None]]:
        for feed in [*self.feeds.by_name.values()]:
            yield partial(self._review_feed, feed)

    def _each_session(self) -> Iterator[Callable[[], None]]:
        generation = self.access.generation
        for session in [*self.sessions.by_peer.values()]:
            if session.review is not None:
                yield partial(session.review, session)
        # Otherwise decisions were outdated again meanwhile, and the review that began since then has not come
        # so far.
        if generation == self.access.generation:
            self.effects.reviewing = False

    def _each_queue(self) -> Iterator[Callable[[], None]]:
        for table in (self.mailboxes, self.services):
            for queue in [*table.by_name.values()]:
                self.effects.work -= CONFIGURE_WORK
                yield partial(table.configure, queue)

    def _each_stream(self) -> Iterator[Callable[[], None]]:
        for stream in [*self.streams.by_name.values()]:
            # One that was deleted meanwhile is not to be stored again.
            if self.streams.by_name.get(stream.name) is stream:
                self.effects.work -= CONFIGURE_WORK
                yield partial(stream.configure, self.streams.policy(stream.name))

    def _review(self, session: Session) -> None:
        """Take back what a session may not have any more, before anything else is done for it."""
        session.review = None
        self.effects.work -= REVIEW_WORK * (1 + len(session.sources))
        self.effects.guard("a look at what a session may do", self._review_session, session)

    def _review_feed(self, feed: Feed) -> None:
        """Stop a feed whose setter may not have it any more."""
        self.effects.work -= REVIEW_WORK
        self.effects.guard("a look at what a feed may do", self.feeds.review, feed)

    def _feed_refusal(self, setter: Principal, source: Place, target: Place) -> str:
        """Why a principal may not feed one place from another; empty if it may."""
        try:
            self.access.confirm_change(
                setter, Change(0, FeedSet.topic, {"source": str(source), "target": str(target)})
            )
        except AccessRefused as error:
            return error.text
        return ""

    def _groups_of_account(self, user: str) -> tuple[str, ...]:
        account = self.accounts.named(user)
        return () if account is None else account.groups

    def _review_session(self, session: Session) -> None:
        self.sessions.count_for_quotas(session)
        if not session.open:
            return
        session.may.renew()
        try:
            self.access.confirm(session.may.principal)
            if session.address:
                session.may.require("receive", "mailbox", session.address)
        except AccessRefused as error:
            self.sessions.dismiss(session, error, "access")
            return
        for number, source in [*session.sources.items()]:
            try:
                if isinstance(source, Subscription):
                    _review_subscription(session.may, source)
                elif number != MAILBOX and isinstance(source, QueueSource):
                    _check_offer(session.may, source.queue.kind, source.queue.name, source.selector)
            except AccessRefused as error:
                self.end_source(session, number, error)

    def end_source(self, session: Session, source: int, error: MalamuteError) -> None:
        """End a subscription or an offer of a session, and send it the reason."""
        ended = session.sources.pop(source)
        self._end_source(session, ended)
        command = Subscribe if isinstance(ended, Subscription) else Offer
        self.effects.refuse(session.peer, error_message(error, BY_TYPE[command].opcode, source))

    def damaged(self, defects: Sequence[Defect], now: float) -> None:
        """The store has met something that it cannot read. What is known here as well is stored again."""
        self.effects.now = now
        self.health.damaged(defects)
        for defect in defects:
            if defect.stranded is not None:
                self._store_again(defect.stranded)

    def _store_again(self, stranded: Stranded) -> None:
        """Have each engine store once more what it knows of this."""
        self.accounts.store_again(stranded)
        self.streams.store_again(stranded)
        self.queue_limits.store_again(stranded)
        self.mailboxes.store_again(stranded)
        self.services.store_again(stranded)
        self.sessions.store_again(stranded)
        self.feeds.store_again(stranded)

    def lost(self, peer: bytes, now: float) -> None:
        """The peer cannot be reached."""
        self.effects.now = now
        self.effects.guard("the loss of a connection", self.sessions.lost, peer)

    def unsent(self, peer: bytes, message: Message, error: Exception, now: float) -> None:
        """What the core wanted to be sent could not be encoded."""
        self.effects.now = now
        fault = self.effects.fault(f"sending {type(message).__name__.upper()}", error)
        if isinstance(message, Answer):
            self.effects.refuse(peer, error_message(fault, BY_TYPE[Query].opcode, message.ref))
        else:
            self.effects.broken[peer] = None

    def blocked(self, peer: bytes) -> None:
        """The peer takes no more messages for now: as if none of its sources had credit."""
        session = self.sessions.by_peer.get(peer)
        if session is not None:
            session.blocked = True
            for source in session.sources.values():
                self._guard_source(session, source.block)

    def unblocked(self, peer: bytes, now: float) -> None:
        """The peer takes messages again."""
        self.effects.now = now
        session = self.sessions.by_peer.get(peer)
        if session is not None and session.blocked:
            session.blocked = False
            for source in session.sources.values():
                self._guard_source(session, source.unblock)

    def clock(self, step: ClockStep, now: float) -> None:
        """The wall clock was set. What is counted goes on; the times of messages may follow."""
        self.effects.now = now
        self.effects.ahead = step.ahead
        self.queue_limits.grace_period.note(step)
        self.clock_note.due = 0.0
        self.streams.begin_ageing()
        self._tell_clock(step.what, step.seconds)

    def _give_time_back(self, seconds: float) -> None:
        """The clock was so much ahead when the broker started, and was set right since."""
        self._tell_clock("corrected", seconds)
        self.streams.times_before.give_back(seconds)
        for table in (self.mailboxes, self.services):
            for queue in table.by_name.values():
                queue.schedule.give_time_back(seconds)

    def _tell_clock(self, what: str, seconds: float) -> None:
        self.effects.notice(CLOCK_WORDS[what], seconds=seconds)
        self.effects.event(f"clock.{what}", seconds=seconds)

    def tick(self, now: float) -> None:
        """Do what has become due."""
        self.effects.now = now
        if self.sessions.next_deadline() <= now:
            self.effects.guard("a look at the sessions", self.sessions.tick)
        self.timers.run(now)

    # What there is to do

    def next_deadline(self) -> float:
        """When `tick` has something to do, infinity for never; `now` or earlier if the next iteration has."""
        if self.streams.active or self.effects.chores:
            return self.effects.now
        sessions, timers = self.sessions.next_deadline(), self.timers.next_deadline()
        return sessions if sessions < timers else timers

    def ready(self) -> Ready:
        """End the iteration: what is to be stored, read and sent."""
        # Most iterations are those of one command. What it does not concern is not asked.
        effects = self.effects
        if effects.chores:
            effects.go_on()
        if self.feeds.waiting:
            self.feeds.wake()
        if self.streams.active:
            self.streams.flush()
        flush = self.queue_limits.flush
        if flush.consumers or flush.noted or effects.broken or effects.ended:
            self._deliver()
        if self.events.waiting and not effects.guard("the broker's own events", self._flush_events):
            self.events.drop()
        if self.sessions.confirmations:
            self.sessions.flush()
        if self._refused_peers:
            self._refused_peers.clear()
        if self.answers.given:
            self.answers.flush()
        if effects.operations and effects.now >= self.clock_note.due:
            self.clock_note.store()
        return effects.finish()

    def _deliver(self) -> None:
        """Send what consumers were given, and mend what that brings to light."""
        while True:
            for peer in self.queue_limits.flush.send():
                if (session := self.sessions.by_peer.get(peer)) is not None:
                    self.sessions.watch(session)
            if not self._mend():
                return

    # Faults

    def _mend(self) -> bool:
        """Take apart what a fault has left half done. Returns whether there was anything."""
        effects = self.effects
        if not (effects.broken or effects.ended):
            return False
        broken, effects.broken = effects.broken, {}
        ended, effects.ended = effects.ended, []
        for source in ended:
            effects.guard("the end of a subscription", self._end_source, source.session, source)
        for peer in broken:
            self._begin_anew(peer)
        return bool(broken)

    def _begin_anew(self, peer: bytes) -> None:
        """A fault has left a connection half done: take back all that belongs to it, as if it was lost.

        What belongs to the session stays. The client is there: it says HELLO again, and goes on.
        """
        session = self.sessions.by_peer.get(peer)
        if session is not None and session.open:
            self.effects.guard("the end of a connection", self.sessions.lost, peer)
            self.effects.send(peer, _BEGIN_ANEW)

    def _guard_source(self, session: Session, action: Callable[[], None]) -> None:
        if not self.effects.guard("a full pipe", action):
            self.effects.broken[session.peer] = None

    def close(self) -> None:
        """Give back the sequences that were reserved and not used; the last `ready` is to follow."""
        guard = self.effects.guard
        guard("the end of the log of refusals", self._refusals.close)
        guard("the end of the log of strangers", self._strangers.close)
        guard("the end of the log of quotas", self._exceeded.close)
        guard("the end of the audit", self.audit.close)
        guard("the end of the events", self.events.stop)
        self.streams.flush()
        self.feeds.keep()
        guard("the end of the streams", self.streams.close)
        for queues in (self.mailboxes, self.services):
            for queue in queues.by_name.values():
                guard("the end of a queue", queue.close)
        guard("the end of the queues", self.queue_limits.sequences.close)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the writer."""
        return not self.effects.unsettled

    def _flush_events(self) -> None:
        if self.events.flush():
            self.streams.flush()

    # Handlers

    def _hello(self, peer: bytes, session: Session | None, message: Hello) -> None:
        session = self.sessions.hello(peer, message, self._sender)
        session.origin = self._origin
        expires_at = session.may.principal.expires_at
        if expires_at < inf:
            session.expiry = self.timers.at(expires_at, partial(self._expire, session))

    def _expire(self, session: Session) -> None:
        """The token of a session's user has expired."""
        error = AccessRefused(
            f"the token of {session.may.principal.user!r} has expired: connect with a new one"
        )
        self.sessions.dismiss(session, error, "token expired")

    def _publish(self, peer: bytes, session: Session, message: Publish) -> None:
        if message.number and not self.sessions.admit(session, message.number):
            return
        records = message.records
        size_bytes = self._check_size(records)
        if session.quotas:
            amounts = len(records), size_bytes
            check_rates(session.quotas, amounts, self.effects.now)
        stream = self.streams.by_name.get(message.stream)
        if stream is None or stream.journaled or stream.next > stream.reserved:
            if stream is None:
                session.may.require("create", "stream", message.stream)
            taken = 2 * size_bytes + MESSAGE_BYTES * len(records)
            self._hold(session, taken - large_bytes(records) if size_bytes >= RECORD_LARGE_BYTES else taken)
            stream = stream or self.streams.get(message.stream)
        first = stream.publish(session.address, message.subjects, records, message.ttl)
        if session.quotas:
            consume_rates(session.quotas, amounts, self.effects.now)
        if message.number:
            self.sessions.accept(session, message, len(records), first)

    def _send(self, peer: bytes, session: Session, message: Send) -> None:
        self._numbered(session, message, self.mailboxes.send)

    def _request(self, peer: bytes, session: Session, message: Request) -> None:
        if message.acks:
            self._acknowledge_piggybacked(session, message)
        self._numbered(session, message, self.services.request)

    def _acknowledge_piggybacked(self, session: Session, message: Request) -> None:
        """Acknowledge what is piggybacked on a request, as if an ACK had come before it."""
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
            # The worker is done with the request, whatever becomes of the reply.
            if grants and isinstance(offer := session.sources.get(message.source), QueueSource):
                offer.grant(message.credit, message.credit_bytes)

    def _numbered(self, session: Session, message: Any, execute: Callable[[Session, Any], None]) -> None:
        if message.number and not self.sessions.admit(session, message.number):
            return
        records = message.records
        size_bytes = self._check_size(records)
        # A worker can always end what it has begun.
        quotas = session.quotas if type(message) is not Reply else ()
        if quotas:
            amounts = len(records), size_bytes
            check_rates(quotas, amounts, self.effects.now)
        self._hold(session, size_bytes + ENTRY_BYTES * len(records))
        execute(session, message)
        if quotas:
            consume_rates(quotas, amounts, self.effects.now)
        if message.number:
            self.sessions.accept(session, message, 0, 0)

    def _check_size(self, records: Sequence[Frame]) -> int:
        size_bytes = sum(map(len, records))
        if size_bytes > self._message_bytes_max:
            raise TooLarge(
                f"command of {size_bytes} bytes is too large: expected at most {self._message_bytes_max}"
            )
        return size_bytes

    def _hold(self, session: Session, size_bytes: int) -> None:
        """Take in what waits for the disk, unless too much does: of all, or of this session.

        What a session has there may be as much as what it leaves to others, so the one that has least gets
        through whatever another one sends. A session that has nothing there may send one command.
        """
        effects = self.effects
        held = session.backlog_bytes + size_bytes
        if effects.backlog_bytes + held + size_bytes > self._backlog_bytes_max:
            self._check_backlog(session.backlog_bytes)
        session.backlog_bytes = held
        if not session.new_bytes:
            effects.backlog_shares.append(session)
        session.new_bytes += size_bytes

    def _check_backlog(self, held: int) -> None:
        if self.effects.backlog_bytes > self._backlog_bytes_max:
            raise TryLater("write backlog is full: the disk is slower than the publishers; retry later")
        if held:
            raise TryLater(
                f"write backlog is full: the disk is slower than the publishers, "
                f"and {held} bytes of this session wait; retry later"
            )

    def _subscribe(self, peer: bytes, session: Session, message: Subscribe) -> None:
        self._check_source(session, message.source)
        asked = Selector.parse(message.criteria, message.where)
        selector = session.may.narrow("subscribe", "stream", message.stream, asked)
        if message.existing and message.stream not in self.streams.by_name:
            raise NotFound(f"there is no stream {message.stream!r}: publish to it, or create it, first")
        session.may.require_there("stream", message.stream, self.streams.by_name)
        cost = self.selectors.check(selector, session, SUBSCRIPTION_BYTES)
        self.streams.subscribe(session, message, selector, asked)
        self._acquire_selector(session, message.source, cost)

    def _offer(self, peer: bytes, session: Session, message: Offer) -> None:
        self._check_source(session, message.source)
        selector, table = Selector.parse(message.criteria), self.queues_of(message.kind)
        _check_offer(session.may, table.kind, message.service, selector)
        session.may.require_there(table.kind, message.service, table.by_name)
        cost = self.selectors.check(selector, session, OFFER_BYTES)
        if selector.needs_headers:
            raise InvalidSelector(
                "invalid criteria of an offer: expected families of subjects, not of headers"
            )
        queue = table.get(message.service, quotas=session.quotas)
        offer = QueueSource(session, message.source, queue, selector, message.ack_timeout / 1000)
        session.sources[message.source] = offer
        self._acquire_selector(session, message.source, cost)
        ack_timeout_ms = round(offer.consumer.ack_timeout * 1000)
        self.effects.send(session.peer, Ok(BY_TYPE[Offer].opcode, message.source, ack_timeout_ms))
        report_worker("joined", offer)
        offer.grant(message.credit, message.credit_bytes)

    def _acquire_selector(self, session: Session, source: int, cost: int) -> None:
        session.sources[source].cost_bytes = cost
        self.selectors.acquire(cost, session)

    def _take_back(self, session: Session) -> None:
        """Take back all that belongs to a connection."""
        self.timers.cancel(session.expiry)
        session.expiry = None
        sources = list(session.sources.values())
        session.sources.clear()
        for source in sources:
            self.effects.guard("the end of a source", self._end_source, session, source)

    def _end_source(self, session: Session, source: SessionSource) -> None:
        if isinstance(source, QueueSource):
            report_worker("left", source)
        self.selectors.acquire(-source.cost_bytes, session)
        source.cancel()
        if isinstance(source, Subscription):
            self.streams.left(source)

    def _check_source(self, session: Session, source: int) -> None:
        if source in session.sources:
            raise InvalidValue(f"source {source} is in use: expected a new id")
        if len(session.sources) - (MAILBOX in session.sources) >= self.settings.limits.sources:
            raise TooMany(
                f"too many sources: expected at most {self.settings.limits.sources} for each session"
            )

    def _cancel(self, peer: bytes, session: Session, message: Cancel) -> None:
        source = session.source(message.source)
        del session.sources[message.source]
        self._end_source(session, source)
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
            # What was taken back counts no attempt over a crash either.
            if error is None:
                self.effects.send(peer, answer)
            else:
                self.effects.refuse(peer, error_message(error, answer.about, answer.ref))

        if message.source == MAILBOX and MAILBOX not in session.sources:
            drained(None)
        else:
            session.source(message.source).drain(message.held, drained)

    def _withdraw(self, peer: bytes, session: Session, message: Withdraw) -> None:
        table = self.queues_of(message.kind)
        sender = session.address if message.kind == "mailbox" else session.mailbox
        queue = table.by_name.get(message.name)
        opcode = BY_TYPE[Withdraw].opcode
        nothing = NotFound(f"no message of this sender has the correlation {message.correlation!r}")

        def refused(error: MalamuteError) -> None:
            self.effects.refuse(peer, error_message(error, opcode, message.ref))

        def report(count: int, before: int, *, final: bool = True, partial: bool = False) -> None:
            if partial:
                self.effects.send(peer, Ok(opcode, message.ref, count))
            elif final and not count:
                refused(nothing)
            elif final:
                self.effects.when_stored(lambda error: withdrawn(count if error is None else before, error))

        def withdrawn(count: int, error: MalamuteError | None) -> None:
            if error is not None and not count:
                refused(error)
            else:
                self.effects.send(peer, Ok(opcode, message.ref, count))

        if queue is not None and sender:
            withdraw(queue, sender, message.correlation, report, refused)
        else:
            report(0, 0)

    def _query(self, peer: bytes, session: Session, message: Query) -> None:
        queries.answer(self, session, message)

    def _change(self, peer: bytes, session: Session, message: Change) -> None:
        changes.change(self, session, message)

    def _commit(self, peer: bytes, session: Session, message: Commit) -> None:
        if message.number and not self.sessions.admit(session, message.number):
            return
        self.streams.commit(session, message)
        if message.number:
            self.sessions.accept(session, message, 0, 0)

    def _ping(self, peer: bytes, session: Session, message: Ping) -> None:
        self.effects.send(peer, Pong())

    def _received(self, peer: bytes, session: Session, message: Received) -> None:
        """Nothing to do: that it was heard is noted, and its window is the transport's."""

    def _bye(self, peer: bytes, session: Session, message: Bye) -> None:
        self.effects.send(peer, Ok(BY_TYPE[Bye].opcode, 0))
        self.sessions.end(session, "bye")


Handler = Callable[[Core, bytes, Any, Any], None]

STATES: dict[str, dict[type[Any], Handler]] = {
    "absent": {Hello: Core._hello},
    "away": {Hello: Core._hello},
    "open": {
        Hello: Core._hello,
        Publish: Core._publish,
        Send: Core._send,
        Request: Core._request,
        Reply: Core._reply,
        Subscribe: Core._subscribe,
        Offer: Core._offer,
        Cancel: Core._cancel,
        Credit: Core._credit,
        Ack: Core._ack,
        Nak: Core._nak,
        Reject: Core._reject,
        Progress: Core._progress,
        Release: Core._release,
        Drain: Core._drain,
        Withdraw: Core._withdraw,
        Query: Core._query,
        Ping: Core._ping,
        Received: Core._received,
        Bye: Core._bye,
        Commit: Core._commit,
        Change: Core._change,
    },
}

UNATTACHED = frozenset((Query, Change, Ping, Withdraw, Commit))
"""Commands that touch nothing of their connection, so that a fault in one leaves it as it was."""

_BEGIN_ANEW = Error(UnexpectedCommand.code, "a fault of the broker's own has ended this: say HELLO again")

NUMBERED = frozenset(BY_TYPE[message].opcode for message in (Publish, Send, Request, Reply, Commit, Change))
"""Opcodes of the commands whose `ref` is a number of the session."""


def shown_name(text: str) -> str:
    """A name that anybody may have chosen, for others to see: short, and without what is not printable."""
    short = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in short)


def _was_answered(session: Session, message: Request | Reply) -> bool:
    """Whether it is sent again: what is piggybacked on it was taken, or is of an older connection."""
    return 0 < message.number < session.numbers.next


def _check_offer(may: Permissions, kind: BaseKind, name: str, selector: Selector) -> None:
    """Raise `AccessRefused` for an offer of more than is allowed: requests go to any worker that offers.

    Rules say nothing of the senders of mail: a user who may receive from a mailbox may have all of it.
    """
    if kind == "mailbox":
        may.require("receive", kind, name)
    elif may.narrow("offer", kind, name, selector) != selector:
        raise AccessRefused(f"offer to {name!r} is wider than the rules allow: expected fewer subjects")


def _review_subscription(may: Permissions, subscription: Subscription) -> None:
    """Raise `AccessRefused` if a subscription has what is not allowed any more."""
    stream, selector = subscription.stream.name, subscription.group.selector
    narrowed = may.narrow("subscribe", "stream", stream, subscription.asked)
    if selector not in (narrowed, may.narrow("subscribe", "stream", stream, selector)):
        raise AccessRefused("the rules have changed, and allow less than this subscription has")


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
