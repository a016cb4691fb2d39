"""A connection that reconnects: one link after the other, by the URLs and the backoff of the route.

    TRYING ──connected──▶ UP
       │ ▲                 │
       ▼ └───its time──┐   ▼
    (no answer) ─────▶ BROKEN

A connection alone is no answer: the broker behind it may hang, and libzmq shakes hands for it. So where there
are other URLs, UP is for good when the broker has `answered`.

There is no thread and no timer in it: the edge wakes up at `due`, and asks for the `changes`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from math import inf
from random import SystemRandom
from time import monotonic

from malamute.client.link.credentials import SocketOptions
from malamute.client.link.greeting import Inquiry
from malamute.client.link.link import NOBODY, OTHER_PROOF, AnyContext, Link
from malamute.client.session.route import Route
from malamute.errors import AccessRefused, OutOfSockets

ATTEMPT_SECONDS = 3.0
"""How long one URL may take to answer before the next one is tried."""

CHANCE = SystemRandom()
"""Of the system, so that a program which seeds `random` gets the same numbers with and without a client."""


class _Phase(enum.Enum):
    TRYING = "trying"
    UP = "up"
    BROKEN = "broken"


class Connection:
    """The links of one client.

    Raises `InvalidValue` for a URL that is none, when it is tried, and `OutOfSockets`.
    """

    def __init__(
        self,
        context: AnyContext,
        route: Route,
        identity: bytes,
        heartbeat: float,
        credentials: SocketOptions = NOBODY,
    ) -> None:
        self.route = route
        self.before_close: Callable[[], None] = lambda: None
        """Called before the socket of a link is closed, so that its files are not watched any more."""
        self._context = context
        self._identity = identity
        self._heartbeat = heartbeat
        self._credentials = credentials
        self._was_taken = False
        self._inquiry: Inquiry | None = None
        """What the last listener asks for at which a handshake failed without a reason."""
        self.url = route.next(0.0)[0]
        self.link = Link(context, self.url, identity, heartbeat, credentials)
        self._begun()

    def _begun(self) -> None:
        self.due = monotonic() + ATTEMPT_SECONDS
        self._phase = _Phase.TRYING

    def changes(self, now: float) -> Iterator[bool]:
        """What happened: True where a connection was made, False where it broke. Takes the next attempt.

        Raises:
            AccessRefused: the broker does not take this client.
        """
        for up in self.link.changes():
            if up:
                self._phase = _Phase.UP
                self.due = now + ATTEMPT_SECONDS if len(self.route.urls) > 1 else inf
                self._inquiry = None
                yield True
            elif self._phase is not _Phase.BROKEN:
                self._plan(now)
                yield False
        self._inquire()
        if now >= self.due:
            if self._phase is _Phase.UP:
                self._plan(now)
                yield False
            self._go_on(now)

    @property
    def taken(self) -> bool:
        """Whether a listener has taken a connection, in this attempt or one before."""
        return self._was_taken or self.link.taken

    def answered(self) -> None:
        """The broker has answered HELLO: this connection is the one to stay with."""
        self.route.arrived()
        if self._phase is _Phase.UP:
            self.due = inf

    def _inquire(self) -> None:
        """Find out whether a listener wants another proof, where libzmq does not say why a handshake failed.

        The answer is looked at when something else happens, with the next attempt at the latest.
        """
        asked = self._inquiry
        if asked is not None and asked.wants_another is not None:
            self._inquiry = None
            if asked.wants_another:
                raise AccessRefused(f"connection to {asked.url} is refused: {OTHER_PROOF}")
        if self.link.unexplained and self._inquiry is None:
            self.link.unexplained = False
            self._inquiry = self.link.inquire()

    def _plan(self, now: float) -> None:
        self._phase = _Phase.BROKEN
        self._next, wait = self.route.next(CHANCE.random())
        self.due = now + wait

    def _go_on(self, now: float) -> None:
        if self._phase is _Phase.TRYING:
            self._plan(now)
        if now >= self.due:
            try:
                link = Link(self._context, self._next, self._identity, self._heartbeat, self._credentials)
            except OutOfSockets:
                # There may be some again by the next attempt.
                self._plan(now)
                raise
            self._end()
            self.url, self.link = self._next, link
            self._begun()

    def _end(self) -> None:
        self._was_taken = self.taken
        self.before_close()
        self.link.close()

    def close(self) -> None:
        """Close it at once, for good."""
        self.due = inf
        self._end()
