"""All sessions: HELLO, the loss of a connection, the end, and the peers that are probed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from malamute.core.identity.access import Permissions
from malamute.core.identity.quotas import QuotaTable, QuotaUsages, add_all
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.named_table import NamedTable
from malamute.core.session.confirmations import Confirmations
from malamute.core.session.numbers import Numbers, numbers_in
from malamute.core.session.probes import IDLE_PROBES, Probes
from malamute.core.session.session import Session, session_name
from malamute.core.session.state import change
from malamute.errors import (
    AccessRefused,
    AddressTaken,
    MalamuteError,
    TooMany,
    UnsupportedVersion,
)
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    BY_TYPE,
    VERSION,
    Error,
    Hello,
    Ping,
    Welcome,
)
from malamute.protocol.names import signature
from malamute.store.operations import DeleteValue, Recovered
from malamute.store.tables import NUMBERS, SESSIONS

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery


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
        urls: Sequence[str],
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
        """The sessions of each user with a name."""
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._software = software
        self._urls = [*urls]
        self._expiry = expiry
        self._release = release
        self._forget = forget
        self._ack_timeout = ack_timeout
        self._away: OrderedDict[bytes, float] = OrderedDict()
        self.confirmations = Confirmations(effects, limits, self.by_peer)
        self._probes = (Probes(probe), Probes(probe * IDLE_PROBES))

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the sessions that the store remembers, until they are resumed or expire."""
        for peer, part in recovered.table(SESSIONS):
            if part == NUMBERS:
                recovery.take_up("session", session_name(peer), self._restore, peer, recovered)

    def _restore(self, peer: bytes, recovered: Recovered) -> None:
        """Restore one session. If its last stored state is doubtful, WELCOME says that it is another."""
        session = Session(peer, numbers_in(recovered, peer), self.effects.now)
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
        change(session, "hello")
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
            self._urls,
        )
        self.effects.send(peer, welcome)
        return session

    def renew(self, session: Session, may: Permissions) -> None:
        """Give an open session the permissions of another token of its user; it keeps its messages.

        Raises:
            AccessRefused: The token is of another user, or acts as another one.
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
        """Take back the messages of an unreachable peer, and wait for it to resume."""
        session = self.by_peer.get(peer)
        if session is not None and session.open:
            self._leave(session)
            self._away[peer] = self.effects.now + self._expiry
            self._report("left", session, reason="lost")

    def _leave(self, session: Session) -> None:
        change(session, "leave")
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
        session.ending = True
        if session.open:
            self._leave(session)
        self._report("expired" if reason == "expired" else "left", session, reason=reason)
        self._forget(session)
        change(session, "end")
        self._away.pop(session.peer, None)
        self._remove(session.peer)
        if session.durable:
            self.effects.stage.store(DeleteValue(SESSIONS, (session.peer,)))
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


def _check_quotas(quotas: QuotaUsages, replaced: set[Session]) -> None:
    """Raise `QuotaExceeded` unless there may be a session in the place of these."""
    for usage in quotas:
        counted = [session for session in replaced if usage in session.quotas]
        usage.check("connections", 1 - sum(session.open for session in counted))
        usage.check("sessions", 1 - len(counted))
