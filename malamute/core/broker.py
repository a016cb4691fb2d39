"""The core: commands in, effects out, without a socket, a disk or a clock.

The edge calls `receive` for each message (or `refuse` for bytes that were none), `stored` and `store_failed`
when the writer is done, and `answered` with the answers of the store; `lost` when a peer cannot be reached,
`blocked` and `unblocked` when its pipe is full and not full any more, and `tick` as time goes by. None of
them raises for a peer's fault: the peer gets a numbered ERROR, and nothing is changed. At the end of each
iteration the edge calls `ready` and carries out the effects.

The modules: this one composes the core, and has its events and the end of an iteration; `commands` are those
of clients, `startup` the recovery, `configuration` and `review` changes at run time, `admin` the queries and
changes of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from malamute.core import configuration, startup
from malamute.core.bucket.keys import KeyUsage
from malamute.core.bucket.table import Buckets
from malamute.core.commands import ClientCommands
from malamute.core.engines import Engines
from malamute.core.feed.table import Feeds
from malamute.core.identity.access import AccessControl
from malamute.core.identity.accounts import AccountDirectory
from malamute.core.identity.groups import GroupDirectory
from malamute.core.identity.holdings import Holdings
from malamute.core.identity.quotas import QuotaTable, QuotaUsages
from malamute.core.iteration.effects import ClockStep, Effects, LoadConfiguration, Question, Ready
from malamute.core.iteration.grace_period import ClockNote, GracePeriod, report_step
from malamute.core.iteration.health import Health
from malamute.core.iteration.recovery import Recovery
from malamute.core.iteration.settings import ConfigurationInForce, Settings
from malamute.core.iteration.timers import Timers
from malamute.core.link.table import Links
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.mailbox import Mailboxes
from malamute.core.queue.service import Services
from malamute.core.queue.table import close as close_queue
from malamute.core.queue.trackers import Trackers
from malamute.core.reports.audit import Audit
from malamute.core.reports.events import Events
from malamute.core.reports.refusal_reports import RefusalReports
from malamute.core.review import Review
from malamute.core.selector_numbers import SelectorNumbers
from malamute.core.session.answers import Answers
from malamute.core.session.selectors import SelectorBudget
from malamute.core.session.session import Session
from malamute.core.session.sessions import Sessions
from malamute.core.sources import Sources
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.duplicates import Duplicates
from malamute.core.stream.message_deletion import MessageDeletions
from malamute.core.stream.table import Streams
from malamute.errors import Failed, InternalError, MalamuteError
from malamute.matching import CacheBudget
from malamute.protocol.messages import BY_TYPE, Answer, Message, Query, error_message
from malamute.store.operations import EMPTY, Defect, Recovered, Stranded


class Core(Engines):
    """The broker without its edges. `now` is always seconds since the epoch, UTC, and never goes back."""

    def __init__(self, now: float, settings: Settings | None = None, recovered: Recovered = EMPTY) -> None:
        settings = settings or Settings()
        self.configuration = ConfigurationInForce(settings, now)
        limits = settings.limits
        self.effects = Effects(now, settings.seed)
        self.answers = Answers(self.effects, limits.answers_bytes)
        self.started = now
        self.selectors = SelectorBudget(limits)
        caches = CacheBudget(limits.caches_bytes)
        self.timers = Timers(partial(self.effects.fault, "a timer"))
        self.selector_numbers = SelectorNumbers()
        self.accounts = AccountDirectory(
            self.effects, settings.accounts, lambda user: self.review.account_changed(user)
        )
        self.groups = GroupDirectory(self.effects, lambda: self.review.groups_changed())
        self.quotas = QuotaTable(settings.access, self.accounts.groups_of)
        self._make_queues_and_streams(settings, recovered, caches)
        self._make_sessions(settings, recovered)
        self.recovery = Recovery(self.effects)
        self.feeds = Feeds(
            limits,
            self.streams,
            self.mailboxes,
            self.services,
            self.selectors,
            self.recovery,
            lambda source, rule: self.review.feed_selector(source, rule),
        )
        self.links = Links(
            self.streams, self.feeds, self.recovery, lambda rule: self.review.confirm_link(rule)
        )
        startup.restore(self, recovered)
        if settings.unjournaled:
            self.streams.begin_epoch()
        self._make_reports(settings)
        reserved = frozenset(stream.name for stream in self.streams.by_name.values() if stream.own)
        self.access = AccessControl(reserved, settings.access, self.accounts, self.groups)
        self.review = Review(self.effects, self.access, self.sessions, self.sources, self.feeds, self.links)
        for look in self.review.of_rules():
            look()
        self.old_key_connections = 0
        """How many connections came by the key that the broker had before."""
        self.commands = ClientCommands(self)
        # The loop calls them there: a method of this class would be one call more for each command.
        self.receive, self.refuse = self.commands.receive, self.commands.refuse
        startup.report(self, recovered)

    def _make_queues_and_streams(self, settings: Settings, recovered: Recovered, caches: CacheBudget) -> None:
        limits = settings.limits
        held, cursors_held, keys_held, bytes_held = (
            Holdings(name, self._quotas_of, self.accounts.there_are)
            for name in ("streams", "cursors", "bucket_keys", "bucket_bytes")
        )
        grace_period = GracePeriod(self.effects, self.timers, self._give_time_back)
        self.streams = Streams(
            self.effects,
            limits,
            settings.streams,
            caches,
            Ageing(self.effects, self.timers),
            recovered.incarnations,
            duplicates=Duplicates(self.effects, self.timers, grace_period, limits.published_ids_bytes),
            unjournaled=settings.unjournaled,
            broker=recovered.broker_id.hex(),
            held=held,
            cursors_held=cursors_held,
        )
        self.deletions = MessageDeletions(self.effects, self.timers, self.streams)
        self.health = Health(self.effects, self.timers)
        self.queue_limits = QueueLimits(
            self.effects, limits, self.timers, settings.queues, caches, recovered.incarnation
        )
        self.queue_limits.grace_period = grace_period
        self.clock_note = ClockNote(self.effects, grace_period)
        self.mailboxes = Mailboxes(self.queue_limits, settings.session_expiry)
        self.queue_limits.trackers = Trackers(self.mailboxes)
        self.services = Services(self.queue_limits, self.mailboxes)
        self.queues = {"mailbox": self.mailboxes, "service": self.services}
        self.buckets = Buckets(
            self.effects,
            self.timers,
            limits,
            settings.buckets,
            self.queue_limits.sequences,
            grace_period,
            KeyUsage(keys_held, bytes_held),
        )
        self.sources = Sources(self.effects, self.timers, self.selectors, self.streams, self.mailboxes)

    def _make_sessions(self, settings: Settings, recovered: Recovered) -> None:
        self.sessions = Sessions(
            self.effects,
            settings.limits,
            broker_id=recovered.broker_id,
            incarnation=recovered.incarnation,
            software=settings.software,
            urls=settings.urls,
            expiry=settings.session_expiry,
            probe=settings.probe_interval,
            release=self.sources.take_back,
            forget=self.mailboxes.forget,
            ack_timeout=lambda address: self.queue_limits.policy_of("mailbox", address).ack_timeout_seconds,
            quotas=self.quotas,
        )

    def _make_reports(self, settings: Settings) -> None:
        self.events = Events(
            self.effects,
            settings.limits,
            self.streams,
            self.queue_limits.settlement_log,
            lifecycle=settings.lifecycle_events,
            settled=settings.settled_events,
        )
        self.audit = Audit(self.effects, self.timers, self.streams, on=settings.audit)
        self.refusals = RefusalReports(self.effects, self.timers, self.quotas, self.audit)

    def _quotas_of(self, user: str) -> QuotaUsages:
        return self.quotas.of(user, (), self.effects.now)

    # Events in

    def connection_refused(self, origin: str, method: str, claimed: str, reason: str, now: float) -> None:
        """A connection was refused before a command came on it. `claimed` is who it said to be: any text."""
        self.effects.now = now
        self.effects.guard("a report of a refusal", self.refusals.connection, origin, method, claimed, reason)

    def owner_of(self, peer: bytes) -> str | None:
        """The user that was proved for the open session of a peer; None if there is none."""
        session = self.sessions.by_peer.get(peer)
        return session.proved_user if session is not None and session.open else None

    def stored(self, token: int, now: float) -> None:
        """Handle the commit of the append `token`, which is fsynced."""
        self.effects.now = now
        self.effects.stage.settle(token, None, now)
        # Most commits follow on others that went well.
        if self.health.failed_at:
            self.health.stored()

    def store_failed(self, token: int, error: MalamuteError, now: float) -> None:
        """Handle the failure of the append `token`."""
        self.effects.now = now
        why = error if isinstance(error, Failed) else InternalError(str(error))
        self.effects.stage.settle(token, why, now)
        self.health.store_failed(error)

    def answered(self, question: Question, result: Any, now: float) -> None:
        """The store has answered a question."""
        self.effects.now = now
        if isinstance(question, LoadConfiguration) and not question.dry_run:
            configuration.loaded(self, result)
        self.effects.answer(question, result)

    def reload(self, now: float) -> None:
        """Have the configuration read again, and go by it if it is good."""
        self.effects.now = now
        configuration.reload(self.effects, self.audit)

    def configure(self, settings: Settings, now: float) -> None:
        """Apply other settings from now on.

        Limits may be below the present usage, which stays; nothing is added until there is room again.
        """
        self.effects.now = now
        configuration.configure(self, settings)

    def damaged(self, defects: Sequence[Defect], now: float) -> None:
        """Handle damage that the store has met: values known here as well are stored again."""
        self.effects.now = now
        self.health.damaged(defects)
        for defect in defects:
            if defect.stranded is not None:
                self._store_again(defect.stranded)

    def _store_again(self, stranded: Stranded) -> None:
        """Have each engine store its part of the lost values once more."""
        self.accounts.store_again(stranded)
        self.groups.store_again(stranded)
        self.streams.store_again(stranded)
        self.queue_limits.store_again(stranded)
        self.mailboxes.store_again(stranded)
        self.services.store_again(stranded)
        self.sessions.confirmations.store_again(stranded)
        self.feeds.store_again(stranded)
        self.links.store_again(stranded)
        self.buckets.store_again(stranded)

    def lost(self, peer: bytes, now: float) -> None:
        """The peer cannot be reached."""
        self.effects.now = now
        self.effects.guard("the loss of a connection", self.sessions.lost, peer)

    def unsent(self, peer: bytes, message: Message, error: Exception, now: float) -> None:
        """Handle a message that could not be encoded."""
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
        """Handle a step of the wall clock: durations are unaffected; the times of messages may follow."""
        self.effects.now = now
        self.effects.ahead = step.ahead
        self.queue_limits.grace_period.note(step)
        self.clock_note.due = 0.0
        self.streams.begin_ageing()
        report_step(self.effects, step.what, step.seconds)

    def _give_time_back(self, seconds: float) -> None:
        """The clock was so much ahead when the broker started, and was set right since."""
        report_step(self.effects, "corrected", seconds)
        self.streams.times_before.give_back(seconds)
        self.buckets.give_time_back(seconds)
        for table in (self.mailboxes, self.services):
            for queue in table.by_name.values():
                queue.schedule.give_time_back(seconds)

    def tick(self, now: float) -> None:
        """Run the due timers."""
        self.effects.now = now
        if self.sessions.next_deadline() <= now:
            self.effects.guard("a look at the sessions", self.sessions.tick)
        self.timers.run(now)

    # The work of an iteration

    def next_deadline(self) -> float:
        """When `tick` has something to do, infinity for never; `now` or earlier if the next iteration has."""
        if self.streams.active or self.effects.chores:
            return self.effects.now
        sessions, timers = self.sessions.next_deadline(), self.timers.next_deadline()
        return sessions if sessions < timers else timers

    def ready(self) -> Ready:
        """End the iteration: return the appends, reads and sends."""
        # Most iterations have one command. Engines without work are not asked.
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
        if effects.events or effects.events_dropped or self.queue_limits.settlement_log.pending:
            self._publish_events()
        confirmations = self.sessions.confirmations
        if confirmations.pending or confirmations.at_once:
            confirmations.flush()
        if self.commands.refused_peers:
            self.commands.refused_peers.clear()
        if self.answers.given:
            self.answers.flush()
        if effects.stage.operations and effects.now >= self.clock_note.due:
            self.clock_note.store()
        return effects.finish()

    def _deliver(self) -> None:
        """Send the deliveries of consumers, and repair faults that this shows."""
        while True:
            for peer in self.queue_limits.flush.send():
                if (session := self.sessions.by_peer.get(peer)) is not None:
                    self.sessions.watch(session)
            if not self._mend():
                return

    def _publish_events(self) -> None:
        if not self.effects.guard("the broker's own events", self._flush_events):
            self.events.drop()

    def _flush_events(self) -> None:
        if self.events.flush():
            self.streams.flush()

    # Faults

    def _mend(self) -> bool:
        """End operations that a fault has left unfinished. Returns whether there were any."""
        effects = self.effects
        if not (effects.broken or effects.ended):
            return False
        broken, effects.broken = effects.broken, {}
        ended, effects.ended = effects.ended, []
        for source in ended:
            effects.guard("the end of a subscription", self.sources.end, source.session, source)
        for peer in broken:
            self.commands.begin_anew(peer)
        return bool(broken)

    def _guard_source(self, session: Session, action: Callable[[], None]) -> None:
        if not self.effects.guard("a full pipe", action):
            self.effects.broken[session.peer] = None

    def close(self) -> None:
        """Give back the sequences that were reserved and not used; the last `ready` is to follow."""
        guard = self.effects.guard
        self.refusals.close()
        guard("the end of the audit", self.audit.close)
        guard("the end of the events", self.events.stop)
        guard("the end of the streams", self.streams.flush)
        guard("the end of the feeds", self.feeds.close)
        guard("the end of the streams", self.streams.close)
        for queues in (self.mailboxes, self.services):
            for queue in queues.by_name.values():
                guard("the end of a queue", close_queue, queue)
        guard("the end of the buckets", self.buckets.close)
        guard("the end of the queues", self.queue_limits.sequences.close)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the writer of the store."""
        return not self.effects.stage.unsettled
