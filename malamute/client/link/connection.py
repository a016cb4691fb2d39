"""A connection that reconnects: one link after the other, by the URLs and the backoff of the route.

    LOOKING ──address──▶ TRYING ──connected──▶ UP
      │  ▲                │  ▲                  │
      │  └────────────────│──┴────its time──┐   │
      ▼                   ▼                 │   ▼
    (no address) ───▶ (no answer) ────────▶ BROKEN

A connection alone is no answer: libzmq shakes hands also for a broker that hangs. So with several URLs, UP is
final only when the broker has `answered`.

There is no thread and no timer in it: the edge wakes up at `due`, and asks for the `changes`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from math import inf
from random import SystemRandom
from time import monotonic

from malamute.client.link.credentials import SocketOptions
from malamute.client.link.greeting import Inquiry
from malamute.client.link.link import NOBODY, OTHER_PROOF, AnyContext, Link
from malamute.client.session.route import Route
from malamute.errors import AccessRefused, InvalidValue, OutOfSockets

ATTEMPT_SECONDS = 3.0
"""Time for the answer of one URL before the next one is tried."""

LOOKING_SECONDS = 0.01
"""Time between two looks whether the address of a host is known. Most are known at the first."""

CHANCE = SystemRandom()
"""The system's random numbers: a client must not change the numbers of a program that seeds `random`."""


class _Phase(enum.Enum):
    LOOKING = "looking"
    TRYING = "trying"
    UP = "up"
    BROKEN = "broken"


class Connection:
    """The links of one client.

    Raises `InvalidValue` for an invalid URL, when it is tried, and `OutOfSockets`.
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
        """Called before the socket of a link is closed, so that its files are no longer watched."""
        self._context = context
        self._identity = identity
        self._heartbeat = heartbeat
        self._credentials = credentials
        self._was_taken = False
        self._inquiry: Inquiry | None = None
        """The inquiry at the last listener whose handshake failed without a reason."""
        self.url = route.next(0.0)[0]
        self.link = Link(context, self.url, identity, heartbeat, credentials)
        self._begun()

    def _begun(self) -> None:
        self._ends = monotonic() + self.route.patience(self.url, ATTEMPT_SECONDS)
        self._phase = _Phase.LOOKING
        self._look(monotonic())

    def _look(self, now: float) -> None:
        """Go on with the address of the host, if it is known."""
        if self.link.is_looking and now < self._ends:
            self.due = min(now + LOOKING_SECONDS, self._ends)
            return
        self._phase = _Phase.TRYING
        known = not self.link.is_looking and self.link.go_on()
        self.due = self._ends if known else now

    def changes(self, now: float) -> Iterator[bool]:
        """Yield changes: True for a new connection, False for a broken one. Begins the next attempt.

        Raises:
            AccessRefused: the broker refuses this client.
            InvalidValue: a URL is invalid.
        """
        try:
            yield from self._changes(now)
        except (AccessRefused, InvalidValue):
            # A broker has named this URL, and the others may be good.
            if not self.route.forget(self.url):
                raise
            self._plan(now)

    def _changes(self, now: float) -> Iterator[bool]:
        if self._phase is _Phase.LOOKING:
            self._look(now)
        for up in self.link.changes():
            if up:
                self._phase = _Phase.UP
                patience = self.route.patience(self.url, ATTEMPT_SECONDS)
                self.due = now + patience if len(self.route.urls) > 1 else inf
                self._inquiry = None
                yield True
            elif self._phase is not _Phase.BROKEN:
                if self._phase is _Phase.UP:
                    self.route.lost(self.url)
                self._plan(now)
                yield False
        self._inquire()
        if now >= self.due:
            if self._phase is not _Phase.BROKEN:
                was_up = self._phase is _Phase.UP
                self.route.silent(self.url)
                self._plan(now)
                if was_up:
                    yield False
            self._go_on(now)

    @property
    def taken(self) -> bool:
        """Return whether a listener has accepted a connection, in this attempt or an earlier one."""
        return self._was_taken or self.link.taken

    def answered(self, urls: Sequence[str]) -> None:
        """Note that the broker has answered HELLO, with the URLs of its pair: this connection is final."""
        self.route.arrived(self.url, urls)
        if self._phase is _Phase.UP:
            self.due = inf

    def moved(self, urls: Sequence[str], now: float) -> None:
        """Go on to another broker: this one is not the primary of its pair, which is at one of these URLs."""
        self.route.moved(urls)
        self._plan(now)

    def _inquire(self) -> None:
        """Ask a listener whether it wants another proof, where libzmq has no reason for a failed handshake.

        The answer is read at the next change, at the latest with the next attempt.
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
        if now >= self.due:
            self.url = self._next
            try:
                link = Link(self._context, self.url, self._identity, self._heartbeat, self._credentials)
            except OutOfSockets:
                # Sockets may be available by the next attempt.
                self._plan(now)
                raise
            self._end()
            self.link = link
            self._begun()

    def _end(self) -> None:
        self._was_taken = self.taken
        self.before_close()
        self.link.close()

    def close(self) -> None:
        """Close the connection at once, for good."""
        self.due = inf
        self._end()
