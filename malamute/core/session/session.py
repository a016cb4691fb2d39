"""Sessions: which clients are connected, under which addresses, and which of their commands are done.

A session is one client object, named by the routing id that the client chose. It outlives connections:

    absent ──HELLO──▶ open ──lost──▶ away ──HELLO──▶ open …      away too long, or BYE ──▶ absent

A new HELLO takes back all that belongs to a connection (subscriptions, offers, credit, deliveries
under way), because frames may have been lost in either direction, and keeps what belongs to the session:
its `Numbers`. A client sends its unanswered commands again with their old numbers, and each is executed
once, in order. That holds over a crash of the broker, because the numbers are stored in the same
transaction as the messages that they numbered.

An address belongs to the session that asked for it last: a program that comes back after a crash must
not wait for its own ghost.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.identity.access import Permissions
from malamute.core.identity.quotas import QuotaTable, QuotaUsages, add_all
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.named_table import NamedTable
from malamute.core.iteration.stage import BacklogShare
from malamute.core.iteration.timers import Timer
from malamute.core.session.change_outcomes import Outcomes
from malamute.core.session.refusals import Refusals
from malamute.errors import (
    AccessRefused,
    AddressTaken,
    MalamuteError,
    Malformed,
    NotFound,
    NumberTooOld,
    TooMany,
    UnsupportedVersion,
)
from malamute.protocol.batch import pack, unpack
from malamute.protocol.fields import Number, Ranges, rule_of
from malamute.protocol.limits import CHANGES_MAX, Limits
from malamute.protocol.messages import (
    BY_TYPE,
    VERSION,
    Change,
    Commit,
    Error,
    Hello,
    Ok,
    Ping,
    Publish,
    Reply,
    Request,
    Send,
    Stored,
    Welcome,
    error_message,
)
from malamute.protocol.names import RESERVED_PREFIX, signature
from malamute.store.operations import DeleteValue, PutValue, Recovered, Stranded
from malamute.store.tables import NUMBERS, OUTCOMES, REFUSALS, SESSIONS

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.iteration.stage import WhenStored

Numbered = Publish | Send | Request | Reply | Commit
"""The commands that a session numbers and that STORED confirms. OK answers a CHANGE, which has one, too."""

CHANGE = BY_TYPE[Change].opcode


class Numbers:
    """What became of each numbered command of a session, and the user whose it is.

    If another one acts as that user, it is that of both: `by` is the other one.

    Numbers come without gaps, so `next` tells which were executed; those above `stored` wait for the
    disk. `refused` tells of those that were refused, back to `floor`: below it, a client cannot ask any more.
    """

    def __init__(self, next_number: int = 1, user: str = "", by: str = "") -> None:
        self.user = user
        self.by = by
        self.next = next_number
        self.stored = next_number - 1
        self.floor = 1
        self.settled = array("Q")
        """Runs of numbers, each by its first and last, whose answers the client had when it said HELLO."""
        self.refused = Refusals()
        self.refused_changed = False
        """Whether the store does not know of all that were refused."""
        self._outcomes: Outcomes | None = None

    @property
    def outcomes(self) -> Outcomes:
        """What became of its changes. Few sessions ask for any, so they are made when they are needed."""
        if self._outcomes is None:
            self._outcomes = Outcomes()
        return self._outcomes

    @property
    def outcomes_changed(self) -> bool:
        """Whether the store does not know of all of them."""
        return self._outcomes is not None and self._outcomes.changed

    def refuse(self, number: int, error: Error) -> None:
        """Remember that a number was refused, and how. Many alike in a row take no more than one."""
        self.floor = max(self.floor, self.refused.add(number, number, error.code, error.about) + 1)
        self.refused_changed = True

    def forget_before(self, number: int) -> None:
        """Drop what the client can no longer ask for."""
        self.floor = max(self.floor, number)
        self.refused.forget_before(self.floor)
        if self._outcomes is not None:
            self._outcomes.forget_before(self.floor)

    def skip_to(self, number: int) -> None:
        """The client has its answers to all before `number`, even if the store was set back since."""
        self.forget_before(number)
        if self.next < number:
            self.next, self.stored = number, number - 1

    def settle(self, ranges: Ranges) -> None:
        """The client has its answers to these, in order, even if the store was set back since."""
        self.settled = array("Q", chain.from_iterable(r for r in ranges if r[1] >= self.next))

    def skip_settled(self) -> None:
        """Go on behind those that come next and are settled."""
        for first, last in zip(self.settled[::2], self.settled[1::2], strict=True):
            if first <= self.next <= last:
                self.next = last + 1

    def is_settled(self, number: int) -> bool:
        """Whether the outcome of a number before the next one is known, and it was not refused."""
        return number <= self.stored

    def pack(self) -> bytes:
        """The form that is stored with each command. New refusals and outcomes are stored apart."""
        # The third is empty: earlier versions had other things there.
        names = (self.user, self.by) if self.by else (self.user,) if self.user else ()
        value: bytes = pack((self.next, self.floor, (), *names) if names else (self.next, self.floor))
        return value

    @classmethod
    def unpack(cls, value: bytes, refused: bytes = b"", outcomes: bytes = b"") -> Numbers:
        """Read the stored form: all that is in it is durable.

        Raises:
            Malformed: they are no numbers.
        """
        next_number, floor, *later = unpack(value)
        if not rule_of(Number).holds(next_number) or not rule_of(Number).holds(floor):
            raise Malformed("invalid numbers of a session: expected integers")
        numbers = cls(next_number, *later[1:])
        if later and later[0]:
            raise Malformed("invalid numbers of a session: some of them went to stores of an earlier version")
        if refused:
            numbers.refused = Refusals.unpack(refused)
        if outcomes:
            numbers._outcomes = Outcomes.unpack(outcomes)
        numbers.forget_before(floor)
        return numbers


class Run:
    """Numbers in a row that are confirmed together: commands of one kind, whose messages follow each other.

    `sequence` is that of the first message, and `following` the one that would continue the run.
    """

    __slots__ = ("command", "first", "following", "last", "sequence")

    def __init__(self, message: Numbered, count: int, sequence: int) -> None:
        self.command = type(message)
        self.first = self.last = message.number
        self.sequence = sequence
        self.following = sequence + count

    def append(self, message: Numbered, count: int, sequence: int) -> bool:
        """Add a command if it continues the run."""
        if sequence != self.following or type(message) is not self.command or message.number != self.last + 1:
            return False
        self.last += 1
        self.following += count
        return True


def session_name(peer: bytes) -> str:
    """A session's name for people. The id stays secret: a peer that knows it could take the session over."""
    return blake2b(peer, digest_size=8).hexdigest()


class SessionSource(Protocol):
    """What a session has under a number: a subscription, its mailbox or an offer."""

    cost_bytes: int
    """What its selector takes of memory."""

    def grant(self, messages: int, size_bytes: int) -> None:
        """Take more credit."""

    def drain(self, held: Ranges, drained: WhenStored) -> None:
        """Take nothing more until there is credit again, and give back what is not `held`."""

    def block(self) -> None:
        """The peer takes no more for now."""

    def unblock(self) -> None:
        """The peer takes more again."""

    def cancel(self) -> None:
        """End it."""


class Session(BacklogShare):
    """One client, over all its connections."""

    may: Permissions
    """The principal since its last HELLO, and what it may do."""

    def __init__(self, peer: bytes, numbers: Numbers, now: float) -> None:
        self.peer = peer
        self.numbers = numbers
        self.address = ""
        self.sender = ""
        """The sender of what it publishes to streams: its address, or the signature of its user."""
        self.proved_user = ""
        """The user that the connection has proved: the one that it is of, or acts as."""
        self.origin = ""
        """The network address of its connection, where that is known."""
        self.software = ""
        self.open = False
        self.blocked = False
        self.review: Callable[[Session], None] | None = None
        """To be called before anything is done for it, as the rules have changed; None once that was done."""
        self.durable = False
        self.doubtful = False
        """Whether newer numbers of it may have been in a part of the store that is damaged.

        Its client has not learned of it yet.
        """
        self.since = now
        self.last_heard = now
        self.sources: dict[int, SessionSource] = {}
        self.selectors = self.selector_bytes = 0
        """How many of its sources have a selector, and what these take of memory."""
        self.holding = 0
        """Deliveries that wait for an ack or a reply."""
        self.sent = self.received = 0
        """Messages that it has sent and that were accepted, and that it was sent."""
        self.quotas: QuotaUsages = ()
        """The quotas that it counts for."""
        self.expiry: Timer | None = None
        """When the token of its user expires, if there is one."""

    @property
    def mailbox(self) -> str:
        """The name of the session's mailbox: its address, or a private one for replies."""
        return self.address or f"{RESERVED_PREFIX}session.{self.ident}"

    @cached_property
    def ident(self) -> str:
        """Its name for people."""
        return session_name(self.peer)

    def count_for(self, quotas: QuotaUsages) -> None:
        """Count for these quotas from now on, with all that it has."""
        has = {
            "sessions": 1,
            "connections": int(self.open),
            "sources": self.selectors,
            "selector_bytes": self.selector_bytes,
        }
        for name, count in has.items():
            add_all(self.quotas, name, -count)
            add_all(quotas, name, count)
        self.quotas = quotas

    def source(self, source_id: int) -> SessionSource:
        """The subscription or consumer with this id. Raises `NotFound`."""
        try:
            return self.sources[source_id]
        except KeyError:
            raise NotFound(f"this session has no source {source_id}") from None


class Sessions:
    """All sessions by their peers, and the open ones by their addresses."""

    def __init__(
        self,
        effects: Effects,
        limits: Limits,
        *,
        broker_id: bytes,
        incarnation: int,
        software: str,
        expiry: float,
        probe: float,
        release: Callable[[Session], None],
        forget: Callable[[Session], None],
        ack_timeout: Callable[[str], float],
        quotas: QuotaTable,
    ) -> None:
        self.effects = effects
        self.limits = limits
        self.quotas = quotas
        self.by_peer: dict[bytes, Session] = {}
        self.by_ident: NamedTable[Session] = NamedTable()
        self.by_address: dict[str, Session] = {}
        self._by_user: dict[str, dict[bytes, Session]] = {}
        """Those of each user who has a name."""
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._software = software
        self._expiry = expiry
        self._release = release
        self._forget = forget
        self._ack_timeout = ack_timeout
        self._away: OrderedDict[bytes, float] = OrderedDict()
        self.confirmations: dict[Session, list[Run]] = {}
        self._probes = (Probes(probe), Probes(probe * IDLE_PROBES))

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the sessions that the store remembers, until they are resumed or expire."""
        for peer, part in recovered.table(SESSIONS):
            if part == NUMBERS:
                recovery.take_up("session", session_name(peer), self._restore, peer, recovered)

    def _restore(self, peer: bytes, recovered: Recovered) -> None:
        """Take up one of them. If it is doubtful what it had stored last, WELCOME says that it is another."""
        session = Session(peer, _numbers_in(recovered, peer), self.effects.now)
        session.durable = True
        session.doubtful = (SESSIONS, (peer, NUMBERS)) in recovered.doubtful
        self._add(session)
        self._away[peer] = self.effects.now + self._expiry
        self.count_for_quotas(session)

    def count_for_quotas(self, session: Session) -> None:
        """Have a session count for the quotas that its user is under now."""
        groups = session.may.principal.groups if session.open else ()
        session.count_for(self.quotas.of(session.numbers.user, groups, self.effects.now))

    def of_user(self, user: str) -> list[Session]:
        """The sessions of a user who has a name, and those in which that user acts as another one."""
        return [*self._by_user.get(user, {}).values()]

    def _add(self, session: Session) -> None:
        self.by_peer[session.peer] = session
        self.by_ident[session.ident] = session
        for user in {session.numbers.user, session.numbers.by} - {""}:
            self._by_user.setdefault(user, {})[session.peer] = session

    def _remove(self, peer: bytes) -> None:
        session = self.by_peer.pop(peer, None)
        if session is None:
            return
        # A peer that tries long enough finds an id whose name for people is that of another.
        if self.by_ident.get(session.ident) is session:
            del self.by_ident[session.ident]
        for user in {session.numbers.user, session.numbers.by} - {""}:
            del self._by_user[user][peer]
            if not self._by_user[user]:
                del self._by_user[user]

    def hello(self, peer: bytes, hello: Hello, may: Permissions) -> Session:
        """Open a session with these permissions, or open it again.

        Raises:
            UnsupportedVersion: none of the versions is spoken here.
            AccessRefused: the session, or the one that has the address now, belongs to another user.
            TooMany: there are as many sessions as may be.
            QuotaExceeded: its user, or one of the user's groups, has as many as it may.
        """
        if VERSION not in hello.versions:
            raise UnsupportedVersion(f"unsupported version: expected {VERSION} among the versions")
        session = self.by_peer.get(peer)
        user, by = may.principal.user, may.principal.by_user
        if session is not None and (session.numbers.user, session.numbers.by) != (user, by):
            # Its own connection has lost the routing id to this one: nothing of the session may go there.
            self.lost(peer)
            raise AccessRefused("this session belongs to another user")
        older = self.by_address.get(hello.address)
        if older is not None and older.numbers.user != user:
            raise AccessRefused(f"the address {hello.address!r} is in use by another user")
        resumed = session is not None and not session.doubtful
        quotas = self.quotas.of(user, may.principal.groups, self.effects.now)
        if quotas:
            _check_quotas(quotas, {one for one in (session, older) if one is not None})
        if session is None:
            if len(self.by_peer) >= self.limits.sessions:
                raise TooMany(f"too many sessions: expected at most {self.limits.sessions}")
            session = Session(peer, Numbers(hello.unsettled, user, by), self.effects.now)
            self._add(session)
        elif session.open:
            self._leave(session)
        session.numbers.skip_to(hello.unsettled)
        session.numbers.settle(hello.settled)
        self._take_address(session, hello.address)
        session.sender = signature(user) if hello.signed else hello.address
        session.count_for(quotas)
        session.may = may
        session.proved_user = may.principal.proved.user
        session.review = None
        session.open = True
        add_all(quotas, "connections", 1)
        session.software = hello.software
        session.since = self.effects.now
        self._away.pop(peer, None)
        self.watch(session)
        self._report("connected", session, software=session.software, resumed=resumed)
        ack_timeout_ms = round(self._ack_timeout(session.mailbox) * 1000)
        limits = {**self.limits._asdict(), "ack_timeout": ack_timeout_ms}
        welcome = Welcome(
            VERSION,
            bytes.fromhex(session.ident),
            self._broker_id,
            resumed,
            self._software,
            limits,
            hello.attempt,
            self._incarnation,
            user,
        )
        self.effects.send(peer, welcome)
        return session

    def renew(self, session: Session, may: Permissions) -> None:
        """Give an open session the permissions of another token of its user; it keeps what it holds.

        Raises:
            AccessRefused: the token is of another user, or acts as another one.
        """
        if (session.numbers.user, session.numbers.by) != (may.principal.user, may.principal.by_user):
            raise AccessRefused("this session belongs to another user")
        session.may = may

    def _take_address(self, session: Session, address: str) -> None:
        older = self.by_address.get(address) if address else None
        if older is not None and older is not session:
            error = AddressTaken(f"address {address!r} was taken over by a newer session")
            self.dismiss(older, error, "takeover")
        if session.address != address:
            self._forget(session)
        session.address = address
        if address:
            self.by_address[address] = session

    def lost(self, peer: bytes) -> None:
        """The peer cannot be reached: take back what it holds, and wait for it to resume."""
        session = self.by_peer.get(peer)
        if session is not None and session.open:
            self._leave(session)
            self._away[peer] = self.effects.now + self._expiry
            self._report("left", session, reason="lost")

    def _leave(self, session: Session) -> None:
        session.open = session.blocked = False
        add_all(session.quotas, "connections", -1)
        self._release(session)
        if self.by_address.get(session.address) is session:
            del self.by_address[session.address]
        for probes in self._probes:
            probes.cancel(session)

    def dismiss(self, session: Session, error: MalamuteError, reason: str) -> None:
        """End a session that its client has not ended, and send the client the reason if it is there."""
        if session.open:
            self.effects.send(session.peer, Error(error.code, error.text, BY_TYPE[Hello].opcode))
        self.end(session, reason)

    def end(self, session: Session, reason: str) -> None:
        """Forget a session for good. The reason is for its readers."""
        session.count_for(())
        if session.open:
            self._leave(session)
        self._report("expired" if reason == "expired" else "left", session, reason=reason)
        self._forget(session)
        self._away.pop(session.peer, None)
        self._remove(session.peer)
        if session.durable:
            self.effects.store(DeleteValue(SESSIONS, (session.peer,)))
        self.effects.closed.append(session.peer)

    def _report(self, what: str, session: Session, **details: Any) -> None:
        name = session.address or session.ident
        self.effects.event(f"client.{what}.{name}", id=session.ident, address=session.address, **details)

    def tick(self) -> None:
        """End the sessions that stayed away too long, and probe those that are silent."""
        while self._away and next(iter(self._away.values())) <= self.effects.now:
            peer, _ = self._away.popitem(last=False)
            if not self.effects.guard("the end of a session", self.end, self.by_peer[peer], "expired"):
                self._remove(peer)
        busy, idle = self._probes
        for session in [*busy.due(self.effects.now), *idle.due(self.effects.now)]:
            self.effects.send(session.peer, Ping())
            self.watch(session)

    def watch(self, session: Session) -> None:
        """Probe a session: often while it holds work that another could do, seldom otherwise."""
        busy, idle = self._probes
        if session.open and session.holding:
            busy.start(session, self.effects.now)
        if session.open:
            idle.start(session, self.effects.now)

    def next_deadline(self) -> float:
        """When `tick` has something to do, in seconds since the epoch; infinity for never."""
        busy, idle = self._probes
        first = busy.next_deadline if busy.next_deadline < idle.next_deadline else idle.next_deadline
        return min(first, next(iter(self._away.values()))) if self._away else first

    # Numbers and confirmations

    def admit(self, session: Session, number: int) -> bool:
        """Whether a numbered command is to be executed; if it was before, it is answered again.

        Raises:
            NumberTooOld: it leaves a gap, or is too far behind the newest one.
        """
        numbers = session.numbers
        if number > numbers.next:
            numbers.skip_settled()
        if number == numbers.next:
            return True
        if number > numbers.next:
            raise NumberTooOld(f"number {number} leaves a gap: expected {numbers.next}")
        if number < max(numbers.floor, numbers.next - self.limits.unconfirmed):
            raise NumberTooOld(f"number {number} is too old: the newest is {numbers.next - 1}")
        if refusal := numbers.refused.answer(number):
            self.effects.send(session.peer, refusal)
        elif numbers.is_settled(number):
            self.effects.send(session.peer, Stored([[number, number, 0]]))
        return False

    def accept(self, session: Session, message: Numbered, count: int, sequence: int) -> None:
        """A numbered command was executed: confirm it once this iteration is stored.

        `sequence` is that of the first of its `count` stream messages; both are 0 for other commands.
        """
        confirmations = self.confirmations
        session.numbers.next = message.number + 1
        runs = confirmations.get(session)
        if runs is None:
            runs = confirmations[session] = []
        elif runs and runs[-1].append(message, count, sequence):
            return
        runs.append(Run(message, count, sequence))

    def refuse(self, session: Session, number: int, error: Error) -> None:
        """A numbered command was refused."""
        numbers = session.numbers
        if number > numbers.next:
            numbers.skip_settled()
        if number == numbers.next:
            numbers.next = number + 1
            numbers.forget_before(number - self.limits.unconfirmed)
            numbers.refuse(number, error)
        elif error.about == CHANGE and numbers.outcomes.drop(number):
            numbers.refuse(number, error)

    # Changes

    def admit_change(self, session: Session, number: int) -> bool:
        """Whether a change is to be executed; if it was before, it is answered again, now or when it is done.

        Raises `NumberTooOld` as for all numbers, and for an outcome that is not kept any more; `TooMany`
        when as many wait for their answers as may.
        """
        outcomes = session.numbers.outcomes
        if number in outcomes.running:
            return False
        if number in outcomes.decided:
            self.effects.send(session.peer, Ok(CHANGE, number, outcomes.decided[number]))
            return False
        if number in outcomes.undecided:
            return True
        if number < session.numbers.next and session.numbers.refused.answer(number) is None:
            raise NumberTooOld(
                f"outcome of change {number} is no longer kept: expected one of the last {CHANGES_MAX}"
            )
        if self.admit(session, number):
            if len(outcomes.undecided) >= CHANGES_MAX:
                raise TooMany(
                    f"too many changes: {CHANGES_MAX} of this session are under way; wait for their answers"
                )
            return True
        return False

    def begin_change(self, session: Session, number: int) -> None:
        """A change is executed: from now on it is undecided, over a crash too."""
        numbers = session.numbers
        if number == numbers.next:
            numbers.next = number + 1
            numbers.forget_before(number - self.limits.unconfirmed)
        numbers.outcomes.begin(number)
        self.confirmations.setdefault(session, [])

    def decide_change(
        self,
        session: Session,
        number: int,
        value: Any,
        *,
        final: bool = True,
        otherwise: Any = None,
    ) -> None:
        """A change has come to this, all of it in this iteration: store it beside that, and answer then.

        One that is not `final` goes on, and this is its outcome if it cannot. If this cannot be stored it has
        come to `otherwise`, or was refused.
        """
        if number and self._lives(session):
            session.numbers.outcomes.decide(number, value)
            self.confirmations.setdefault(session, [])

        def stored(error: MalamuteError | None) -> None:
            if error is not None and otherwise is None:
                self.fail_change(session, number, error)
                return
            outcomes = session.numbers.outcomes
            outcomes.running.discard(number)
            if error is not None and number in outcomes.decided:
                outcomes.decide(number, otherwise)
            self._answer(session, Ok(CHANGE, number, value if error is None else otherwise))

        if final:
            self.effects.when_stored(stored)

    def fail_change(self, session: Session, number: int, error: MalamuteError) -> None:
        """A change was refused, and nothing was changed."""
        answer = error_message(error, CHANGE, number)
        if number and session.numbers.outcomes.drop(number):
            session.numbers.refuse(number, answer)
        self.effects.counters.refuse(answer.code, self.effects.now)
        self._answer(session, answer)

    def _answer(self, session: Session, answer: Ok | Error) -> None:
        """Answer a session, unless another one of its peer has begun with numbers of its own."""
        if self.by_peer.get(session.peer, session) is session:
            self.effects.send(session.peer, answer)

    def flush(self) -> None:
        """Store the numbers of this iteration beside the messages, and confirm them when that is done."""
        confirmations, self.confirmations = self.confirmations, {}
        try:
            for session in confirmations:
                self._store(session)
        except Exception as error:
            self.effects.spoil("the numbers of a session", error)
        # Behind what `_store` waits for: what was not stored has to be known when it is stored again.
        self.effects.when_stored(lambda error: self._confirm(confirmations, error))

    def _store(self, session: Session) -> None:
        if not self._lives(session):
            return
        numbers = session.numbers
        session.durable = True
        self.effects.store(PutValue(SESSIONS, (session.peer, NUMBERS), numbers.pack()))
        if numbers.refused_changed:
            numbers.refused_changed = False
            self.effects.store(PutValue(SESSIONS, (session.peer, REFUSALS), numbers.refused.pack()))
            self.effects.when_stored(lambda error: self._refusals_stored(numbers, error), awaited=False)
        if numbers.outcomes_changed:
            numbers.outcomes.changed = False
            self.effects.store(PutValue(SESSIONS, (session.peer, OUTCOMES), numbers.outcomes.pack()))
            self.effects.when_stored(lambda error: self._outcomes_stored(numbers, error), awaited=False)

    def store_again(self, stranded: Stranded) -> None:
        """A store has lost this: sessions that are in it are stored once more.

        One in doubt is not: as new as the damage, it would be in doubt no more after a restart, and its
        client would never be notified.
        """
        for peer in {peer for peer, *_ in stranded.keys(SESSIONS)}:
            session = self.by_peer.get(peer)
            if session is not None and not session.doubtful:
                session.numbers.refused_changed = session.numbers.outcomes.changed = True
                self._store(session)

    def _refusals_stored(self, numbers: Numbers, error: MalamuteError | None) -> None:
        numbers.refused_changed |= error is not None

    def _outcomes_stored(self, numbers: Numbers, error: MalamuteError | None) -> None:
        numbers.outcomes.changed |= error is not None

    def _lives(self, session: Session) -> bool:
        return self.by_peer.get(session.peer) is session

    def _confirm(self, confirmations: dict[Session, list[Run]], error: MalamuteError | None) -> None:
        for session, runs in confirmations.items():
            if not self._lives(session):
                continue
            if error is None and runs:
                session.numbers.stored = runs[-1].last
                self.effects.send(session.peer, Stored([[run.first, run.last, run.sequence] for run in runs]))
            elif error is not None:
                self._unstored(session, runs, error)
                # What was handed out meanwhile has these numbers as stored.
                self._store(session)

    def _unstored(self, session: Session, runs: list[Run], error: MalamuteError) -> None:
        for run in runs:
            opcode = BY_TYPE[run.command].opcode
            for number in range(run.first, run.last + 1):
                answer = Error(error.code, error.text, opcode, number)
                session.numbers.refuse(number, answer)
                self.effects.send(session.peer, answer)


def _numbers_in(recovered: Recovered, peer: bytes) -> Numbers:
    """The numbers of a session as one store has them."""
    values = recovered.table(SESSIONS)
    return Numbers.unpack(*(values.get((peer, part), b"") for part in (NUMBERS, REFUSALS, OUTCOMES)))


def _check_quotas(quotas: QuotaUsages, replaced: set[Session]) -> None:
    """Raise `QuotaExceeded` unless there may be a session in the place of these."""
    for usage in quotas:
        counted = [session for session in replaced if usage in session.quotas]
        usage.check("connections", 1 - sum(session.open for session in counted))
        usage.check("sessions", 1 - len(counted))


PROBES_TOGETHER = 1 / 64
"""Sessions that are to be probed within this part of the interval are probed together: with thousands of
them, waking up for each would cost several times what its probe does."""

IDLE_PROBES = 30
"""A session that holds no work is probed so many times as seldom as one that holds some."""


class Probes:
    """Sessions in the order in which they are to be probed; one interval for all of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.next_deadline = inf
        """When the next probe is due; infinity for never."""
        # A plain dict finds its first entry by passing all that were taken out before it.
        self._deadlines: OrderedDict[bytes, tuple[float, Session]] = OrderedDict()

    def start(self, session: Session, now: float) -> None:
        """Probe a session one interval from now, unless it waits for a probe already."""
        if session.peer not in self._deadlines:
            self._deadlines[session.peer] = (now + self._interval, session)
            self._look()

    def cancel(self, session: Session) -> None:
        """Do not probe it."""
        if self._deadlines.pop(session.peer, None) is not None:
            self._look()

    def due(self, now: float) -> list[Session]:
        """The sessions whose time has come, with those for which it is about to; they no longer wait."""
        due: list[Session] = []
        if self.next_deadline > now:
            return due
        last = now + self._interval * PROBES_TOGETHER
        while self._deadlines and (first := next(iter(self._deadlines.values())))[0] <= last:
            due.append(first[1])
            del self._deadlines[first[1].peer]
        self._look()
        return due

    def _look(self) -> None:
        """Note when the first of them is due."""
        self.next_deadline = next(iter(self._deadlines.values()))[0] if self._deadlines else inf
