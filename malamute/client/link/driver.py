"""The driver: what both edges do with a session and its socket, in *iterations*.

An iteration takes what happened to the connection and what was received, calls the program's event handler,
and sends what the session has to say. The edges differ in one thing, how they wait: `sync/driver` polls in
the caller's thread, `aio/driver` lets an event loop watch the socket. So everything that waits is written
once, as coroutines over `Driver.wait`. On the blocking edge such a coroutine is never suspended.

Nothing is shared between threads and nothing is locked: a call from another thread or from a forked child is
refused, because a socket has one owner.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from weakref import WeakSet

from malamute.client.events import Connected, Event, log_event
from malamute.client.link.connection import Connection
from malamute.client.link.link import Link
from malamute.client.session.session import Session, State
from malamute.errors import Closed, ConnectionLost, InvalidValue, LinkError, TimedOut, TryLater
from malamute.protocol.batch import Frame

ITERATION_SECONDS = 0.001
"""How long commands may be given without a look at what was received. An iteration takes longer than sending
a small command. If the connection was replaced in that time, the broker refuses the number that left a gap,
and the session resyncs."""

_FORKED = -1


class Driver:
    """A session and its connection. `timeout` in seconds is for calls that wait for the broker."""

    def __init__(self, session: Session, connection: Connection, timeout: float) -> None:
        self.session = session
        self.connection = connection
        self.timeout = timeout
        self.on_event: Callable[[Event], object] = log_event
        self.before_wait: dict[object, Callable[[], None]] = {}
        """What is to be given to the session before anybody waits, by whose it is."""
        self.closed = False
        self.drain_due = False
        """Whether the session is to be drained when it is in nobody's hands."""
        self._iteration_due = 0.0
        self._owner = threading.get_ident()
        _drivers.add(self)

    @property
    def link(self) -> Link:
        """The connection of the moment."""
        return self.connection.link

    def check(self) -> None:
        """Raise unless the client can be used: `LinkError`, `Closed`, or what ended the session."""
        self.check_owner()
        self.session.outbox.check()

    @property
    def is_owner(self) -> bool:
        """Whether the caller is the thread that owns this client."""
        return threading.get_ident() == self._owner

    def check_owner(self) -> None:
        """Raise `LinkError` unless the caller is the thread that owns this client."""
        if threading.get_ident() != self._owner:
            if self._owner == _FORKED:
                raise LinkError("this client was made before a fork: connect again in the child")
            raise LinkError("this client belongs to another thread: connect one client for each thread")

    def disown(self) -> None:
        """The process was forked, and this is the child."""
        self._owner = _FORKED

    # The iteration

    def iterate(self) -> None:
        """Take what is there and send what is to be sent, without waiting."""
        session = self.session
        now = monotonic()
        self._iteration_due = now + ITERATION_SECONDS
        # First of all: on a new connection nothing may go before HELLO.
        if session.error is None:
            self._reconnect(now)
        if self.drain_due:
            self._drain_session()
        self.send()
        for frames in self.link.receive():
            session.receive(frames)
        for event in session.pop_events():
            if type(event) is Connected:
                # Not before: one that cannot serve us must not be tried again and again at once.
                self.connection.route.arrived()
            self.on_event(event)
        self.send()

    def _reconnect(self, now: float) -> None:
        try:
            for up in self.connection.changes(now):
                if up:
                    self.session.connected()
                else:
                    self.session.disconnected()
        except InvalidValue as error:
            # A URL that is none: the others may be good, but the list is wrong, and its author should know.
            self.session.end(error)

    def send(self) -> None:
        """Send what the session has to say, as far as the socket takes it."""
        outbox, link = self.session.outbox, self.link
        while (frames := outbox.next_to_send()) is not None and link.send(frames):
            outbox.sent()

    def send_unqueued(self, frame: Frame) -> bool:
        """Send a small command past the session. False if the connection takes none now."""
        return self.link.send_frame(frame)

    def prepare(self) -> None:
        """Send everything that waits for others: acknowledgements, and what publishers hold."""
        self.session.inbox.acknowledge_all()
        for prepare in tuple(self.before_wait.values()):
            prepare()
        self.send()

    def drain(self) -> None:
        """Drain the session in the next iteration. A signal handler may ask for it at any moment."""
        self.drain_due = True

    def _drain_session(self) -> None:
        self.drain_due = False
        self.session.inbox.drain()

    # Waiting

    async def wait(self, done: Callable[[], object], timeout: float | None, what: str) -> None:
        """Iterate until `done()`, which is true when this returns.

        Raises `TimedOut` after `timeout` seconds (None: never), and the error that ended the session.
        """
        raise NotImplementedError

    async def pause(self) -> None:
        """Let other tasks go on, where there are any."""
        raise NotImplementedError

    def changed(self) -> None:
        """What somebody may wait for was changed by another call than an iteration."""
        raise NotImplementedError

    def within(self, seconds: float) -> None:
        """Send what waits for others within this time, where anything runs while the caller is busy."""
        raise NotImplementedError

    async def wait_for_broker(self, done: Callable[[], object], timeout: float | None, what: str) -> None:
        """Wait for an answer: `timeout` seconds, or the client's own time-out for None."""
        if not done():
            await self.wait(done, self.timeout if timeout is None else timeout, what)

    async def make_room(self, *, numbered: bool, timeout: float | None = None) -> None:
        """Wait until one more command may be given.

        Raises `TryLater` when the broker does not confirm in time, `ConnectionLost` when it is away.
        """
        self.check()
        session = self.session
        if session.outbox.room(numbered=numbered):
            return
        try:
            await self.wait_for_broker(
                lambda: session.outbox.room(numbered=numbered), timeout, "room for one more command"
            )
        except TimedOut as error:
            if session.state is State.READY:
                text = f"{len(session.outbox)} commands wait for their confirmation: {error.text}"
                raise TryLater(text) from None
            raise ConnectionLost(
                f"the broker is away, and no more can be kept for it: {error.text}"
            ) from None

    async def ship(self) -> None:
        """Send what was just given to the session, waiting for a while if the socket takes no more.

        If it does not in that time, the command goes first later, and there is no room for another before.
        """
        if monotonic() < self._iteration_due:
            self.send()
        else:
            self.iterate()
            await self.pause()
        outbox = self.session.outbox
        if not outbox.blocked:
            return
        with suppress(TimedOut):
            await self.wait(lambda: not outbox.blocked, self.timeout, "the broker takes nothing")

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self.session.end(Closed("this client is closed"))
        self.connection.close()


_drivers: WeakSet[Driver] = WeakSet()


def _disown_all() -> None:
    for driver in _drivers:
        driver.disown()


os.register_at_fork(after_in_child=_disown_all)
