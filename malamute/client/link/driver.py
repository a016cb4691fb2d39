"""The driver: what both edges do with a session and its socket, in *iterations*.

An iteration takes what happened to the connection and what was received, calls the program's event handler,
and sends what the session has to say. The edges differ in one thing, how they wait: `sync/driver` polls in
the caller's thread, `aio/driver` lets an event loop watch the socket. So everything that waits is written
once, as coroutines over `Driver.wait`. On the blocking edge such a coroutine is never suspended.

A socket has one owner, so a call from another thread or from a forked child is refused. What one thread lends
to another is said in `sync/driver`; nothing else is shared between threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from weakref import WeakSet

from malamute.client.events import Connected, Event, log_event
from malamute.client.link.connection import Connection
from malamute.client.link.link import Link
from malamute.client.options import Span
from malamute.client.session.pacing import Backlog
from malamute.client.session.session import ClientSession, State
from malamute.errors import AccessRefused, Closed, ConnectionLost, InvalidValue, LinkError, TimedOut, TryLater
from malamute.protocol.batch import Frame

ITERATION_SECONDS = 0.001
"""How long commands may be given without a look at what was received. An iteration takes longer than sending
a small command. If the connection was replaced in that time, the broker refuses the number that left a gap,
and the session resyncs."""

FORKED = -1
"""The thread of a client that was made before a fork."""


class Driver:
    """A session and its connection. `timeout` in seconds is for calls that wait for the broker."""

    hold_seconds = inf
    """How soon what is held is sent at the latest, where anything runs while the caller is busy."""
    closed = True
    """Also before it has begun."""

    def __init__(self, session: ClientSession, connection: Connection, timeout: float) -> None:
        self.session = session
        self.connection = connection
        self.timeout = timeout
        self.on_event: Callable[[Event], object] = log_event
        self.events: deque[Event] = deque()
        """Those that the program is still to be given: some stay if it raises an exception at one."""
        self.before_wait: dict[object, Callable[[], bool]] = {}
        """What gives something to the session before anybody waits, by whose it is. Each returns whether that
        was all of it."""
        self.closed = False
        self.drain_due = False
        """Whether the session is to be drained when it is in nobody's hands."""
        self._iteration_due = 0.0
        self._backlog = Backlog()
        self._owner = threading.get_ident()
        drivers.add(self)

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
        return threading.get_ident() == self._owner or self._reclaim()

    def check_owner(self) -> None:
        """Raise `LinkError` unless the caller is the thread that owns this client."""
        if threading.get_ident() != self._owner and not self._reclaim():
            raise self.not_owner()

    def _reclaim(self) -> bool:
        """Take back what the owner has lent, if the caller is the owner. Returns whether it is."""
        return False

    def not_owner(self) -> LinkError:
        """The error of a caller that does not own this client."""
        if self._owner == FORKED:
            return LinkError("client was made before a fork: connect again in the child")
        return LinkError("client belongs to another thread: connect one client for each thread")

    def disown(self) -> None:
        """The process was forked, and this is the child."""
        self._owner = FORKED

    # The end of a client that nobody closes

    @property
    def thread(self) -> int:
        """The thread that uses this client."""
        return self._owner

    def take_over(self) -> None:
        """Let the caller own it: nobody else uses it any more."""
        self._owner = threading.get_ident()

    def iterate_alone(self) -> None:
        """Iterate where nothing of the edge runs any more."""
        Driver.iterate(self)

    # The iteration

    def iterate(self) -> None:
        """Take what is there and send what is to be sent, without waiting."""
        session, outbox, link = self.session, self.session.outbox, self.connection.link
        now = monotonic()
        self._iteration_due = now + ITERATION_SECONDS
        # A wait that is just over has looked at the connection, and one that stands has no next attempt.
        quiet, link.quiet = link.quiet and self.connection.due == inf, False
        # First of all: on a new connection nothing may go before HELLO.
        if not quiet and session.error is None:
            self._reconnect(now)
        if self.drain_due:
            self._drain_session()
        if outbox.queue:
            self.send()
        for frames in self.connection.link.receive():
            session.receive(frames)
        session.look_at_clock(now)
        events = self.events
        events += session.pop_events()
        while events:
            event = events.popleft()
            if type(event) is Connected:
                # Not before: one that cannot serve us must not be tried again and again at once.
                self.connection.answered()
            self.on_event(event)
        if outbox.queue:
            self.send()

    def _reconnect(self, now: float) -> None:
        try:
            for up in self.connection.changes(now):
                if up:
                    self.session.connected()
                else:
                    self.session.disconnected()
        except (AccessRefused, InvalidValue) as error:
            # A URL that is none: the others may be good, but the list is wrong, and its author should know.
            # A client that is refused once is refused again.
            self.session.end(error)

    def send(self) -> None:
        """Send what the session has to say, as far as the socket takes it."""
        outbox, link = self.session.outbox, self.connection.link
        while outbox.queue:
            begun = monotonic()
            frames = outbox.next_to_send()
            if frames is None or not link.send(frames):
                break
            outbox.sent()
            self._backlog.sent(begun, monotonic())

    def send_soon(self) -> None:
        """Send what the session has to say, before the caller waits for anything."""
        self.send()

    def send_or_hold(self) -> None:
        """Send what the session has to say, but hold what others can join while the broker is busy."""
        outbox = self.session.outbox
        if not outbox.may_wait or self._backlog.until - monotonic() <= self.hold_seconds:
            self.send()
        if outbox.queue:
            self.hold()

    def hold(self) -> None:
        """See that what waits is sent within `hold_seconds`."""
        raise NotImplementedError

    def publish_unconfirmed(self, stream: str, subject: str, record: Frame) -> bool:
        """Publish a message whose parts were checked, if nothing is in its way. Returns whether it was."""
        outbox, now = self.session.outbox, monotonic()
        if not outbox.flows or now >= self._iteration_due:
            return False
        outbox.publish(stream, subject, record, None)
        if self._backlog.until - now > self.hold_seconds and outbox.may_wait:
            self.hold()
        else:
            self.send()
            if outbox.queue:
                self.hold()
        return True

    def prepare(self) -> bool:
        """Send everything that waits for others: acknowledgements, and what publishers hold.

        Returns whether there was room for all of it.
        """
        self.session.inbox.acknowledge_all()
        all_given = True
        for give in tuple(self.before_wait.values()):
            all_given &= give()
        self.session.look_at_clock(monotonic())
        self.send_soon()
        return all_given

    def drain(self) -> None:
        """Drain the session in the next iteration. A signal handler may ask for it at any moment."""
        self.drain_due = True

    def _drain_session(self) -> None:
        self.drain_due = False
        self.session.inbox.drain()

    # Waiting

    async def wait(self, done: Callable[[], object], timeout: Span | None, what: str) -> None:
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

    async def wait_for_broker(self, done: Callable[[], object], timeout: Span | None, what: str) -> None:
        """Wait for an answer: `timeout` seconds, or the client's own time-out for None."""
        if not done():
            await self.wait(done, self.timeout if timeout is None else timeout, what)

    async def make_room(self, *, numbered: bool, timeout: Span | None = None) -> None:
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
                raise TryLater(f"{_waiting(session)}: {error.text}; retry later") from None
            raise ConnectionLost(
                f"broker is unreachable, and no more commands can be kept for it: {error.text}"
            ) from None

    async def ship(self) -> None:
        """Send what was just given to the session, waiting for a while if the socket takes no more.

        If it does not in that time, the command goes first later, and there is no room for another before.
        """
        now = monotonic()
        self.session.look_at_clock(now)
        if now < self._iteration_due:
            self.send_soon()
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
        self.session.end(Closed("client is closed: connect again"))
        self.connection.close()


def _waiting(session: ClientSession) -> str:
    """What waits for the broker."""
    flow = session.outbox.flow
    if flow.full:
        return f"{flow.under_way} bytes are on their way and are not taken up"
    return f"{len(session.outbox)} commands wait for their confirmation"


drivers: WeakSet[Driver] = WeakSet()
"""The drivers of this process."""


def _disown_all() -> None:
    for driver in drivers:
        driver.disown()


os.register_at_fork(after_in_child=_disown_all)
