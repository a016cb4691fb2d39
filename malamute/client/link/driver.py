"""The driver: the *iterations* of a session and its socket, for both edges.

An iteration handles changes of the connection and received commands, calls the program's event handler, and
sends the session's commands. The edges differ in one thing, how they wait: `sync/driver` polls in the
caller's thread, `aio/driver` lets an event loop watch the socket. So calls that wait are written once, as
coroutines over `Driver.wait`. On the blocking edge such a coroutine is never suspended.

A socket has one owner, so a call from another thread or from a forked child is refused. Lending between
threads is described in `sync/driver`; nothing else is shared between threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakSet

from malamute.client.events import Connected, Event, Moved, log_event
from malamute.client.link.connection import Connection
from malamute.client.link.link import Link
from malamute.client.link.renewal import Renewal
from malamute.client.options import Span
from malamute.client.session.codecs import BodyCodec
from malamute.client.session.pacing import Backlog
from malamute.client.session.session import ClientSession, State
from malamute.errors import AccessRefused, Closed, ConnectionLost, InvalidValue, LinkError, TimedOut, TryLater
from malamute.protocol.batch import Frame

ITERATION_SECONDS = 0.001
"""Seconds for which commands may be submitted, from the first one after an iteration on. An iteration takes
longer than sending a small command, and a call that waits makes one anyway. A broken connection takes no
command. If it was replaced, the broker refuses the number that left a gap, and the session resyncs.
"""

T = TypeVar("T")

FORKED = -1
"""The thread of a client made before a fork."""


class Driver:
    """A session and its connection. `timeout` in seconds is for calls that wait for the broker."""

    hold_seconds = inf
    """Maximum seconds until held commands are sent, where anything runs while the caller is busy."""
    codec: BodyCodec | None = None
    """The form of bodies that are neither bytes nor text."""
    closed = True
    """Also before `__init__` has run."""

    def __init__(self, session: ClientSession, connection: Connection, timeout: float) -> None:
        self.session = session
        self.connection = connection
        self.timeout = timeout
        self.on_event: Callable[[Event], object] = log_event
        self.events: deque[Event] = deque()
        """Events for the program: some stay if it raises an exception at one."""
        self.before_wait: dict[object, Callable[[], bool]] = {}
        """Functions called before a wait, by owner, which submit pending commands to the session. Each
        returns whether there was room for all.
        """
        self.closed = False
        self.drain_due = False
        """Whether the session is to be drained by the next iteration."""
        self._iteration_due = 0.0
        self._backlog = Backlog()
        self._owner = threading.get_ident()
        self.renewal: Renewal | None = None
        """The source of newer tokens, if the program gives one."""
        drivers.add(self)

    @property
    def link(self) -> Link:
        """Return the present link."""
        return self.connection.link

    def check(self) -> None:
        """Raise an error unless the client can be used: `LinkError`, `Closed`, or the session's error."""
        self.check_owner()
        self.session.outbox.check()

    @property
    def is_owner(self) -> bool:
        """Return whether the caller is the thread that owns this client."""
        return threading.get_ident() == self._owner or self._reclaim()

    def check_owner(self) -> None:
        """Raise `LinkError` unless the caller is the thread that owns this client."""
        if threading.get_ident() != self._owner and not self._reclaim():
            raise self.not_owner()

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait. Raises `LinkError` unless the caller owns this client."""
        self.check_owner()
        return function(*arguments)

    def _reclaim(self) -> bool:
        """Reclaim the socket that the owner has lent, if the caller is the owner. Return whether it is."""
        return False

    def not_owner(self) -> LinkError:
        """Return the error of a caller that does not own this client."""
        if self._owner == FORKED:
            return LinkError("client was made before a fork: connect again in the child")
        return LinkError(
            "client belongs to another thread: connect with threads='any', or one client for each thread"
        )

    def disown(self) -> None:
        """Note that the process was forked, and this is the child."""
        self._owner = FORKED

    # The end of a client that is not closed

    @property
    def thread(self) -> int:
        """Return the thread that uses this client."""
        return self._owner

    def take_over(self) -> None:
        """Make the caller the owner: no other thread uses the client any more."""
        self._owner = threading.get_ident()

    def iterate_alone(self) -> None:
        """Iterate without the edge, which is no longer running."""
        Driver.iterate(self)

    # The iteration

    def iterate(self) -> None:
        """Receive and send without waiting."""
        session, outbox, link = self.session, self.session.outbox, self.connection.link
        self._iteration_due = inf
        # A wait that is just over has looked at the connection, and one that stands has no next attempt.
        quiet, link.quiet = link.quiet and self.connection.due == inf, False
        # This comes first: on a new connection HELLO precedes everything.
        if not quiet and session.error is None:
            self._reconnect(monotonic())
        if self.drain_due:
            self._drain_session()
        if outbox.queue:
            self.send()
        for frames in self.connection.link.receive():
            session.receive(frames)
        if session.events or self.events:
            self._report()
        if outbox.queue or outbox.flow.questions:
            self.send()

    def _report(self) -> None:
        events = self.events
        events += self.session.pop_events()
        while events:
            event = events.popleft()
            if type(event) is Connected:
                # Not before this: a broker that cannot serve the client must not be tried again at once.
                self.connection.answered(self.session.urls)
            elif type(event) is Moved:
                self.connection.moved(event.urls, monotonic())
            self.on_event(event)

    def _reconnect(self, now: float) -> None:
        try:
            for up in self.connection.changes(now):
                if up:
                    self.session.connected()
                else:
                    self.session.disconnected()
        except (AccessRefused, InvalidValue) as error:
            # One invalid URL ends the session: the others may be good, but the list is wrong, and its author
            # should know. A refused client would be refused again.
            self.session.end(error)

    def send(self) -> None:
        """Send the session's commands, as far as the socket takes them."""
        outbox, link = self.session.outbox, self.connection.link
        flow = outbox.flow
        if flow.questions or flow.sent >= flow.ask_at:
            self.session.look_at_clock(monotonic())
        while outbox.queue:
            begun = monotonic()
            frames = outbox.next_to_send()
            if frames is None or not link.send(frames):
                break
            outbox.sent()
            self._backlog.sent(begun, monotonic())

    send_soon = send
    """Send the session's commands before the caller waits."""

    def send_or_hold(self) -> None:
        """Send the session's commands, but hold those that others can join while the broker is busy."""
        outbox = self.session.outbox
        if not outbox.may_wait or self._backlog.until - monotonic() <= self.hold_seconds:
            self.send()
        if outbox.queue:
            self.hold()

    def hold(self) -> None:
        """See that held commands are sent within `hold_seconds`."""
        raise NotImplementedError

    def publish_unconfirmed(self, stream: str, subject: str, record: Frame) -> bool:
        """Publish a checked message, if nothing is in its way. Return whether it was published."""
        outbox, now = self.session.outbox, monotonic()
        if not outbox.flows or now >= self._iteration_due:
            return False
        if self._iteration_due == inf:
            self._iteration_due = now + ITERATION_SECONDS
        outbox.publish(stream, subject, record, None)
        if self._backlog.until - now > self.hold_seconds and outbox.may_wait:
            self.hold()
        else:
            self.send()
            if outbox.queue:
                self.hold()
        return True

    def prepare(self) -> bool:
        """Submit all pending commands: acknowledgements, and batches of publishers.

        Returns whether there was room for all of them.
        """
        inbox = self.session.inbox
        for source in inbox.consumers.values():
            if source.acks:
                inbox.acknowledge(source)
        all_given = True
        if self.before_wait:
            for give in tuple(self.before_wait.values()):
                all_given &= give()
        if self.session.outbox.queue:
            self.send_soon()
        return all_given

    def drain(self) -> None:
        """Drain the session in the next iteration. A signal handler may call this at any moment."""
        self.drain_due = True

    def _drain_session(self) -> None:
        self.drain_due = False
        self.session.inbox.drain()

    def renew(self, token: str) -> None:
        """Have the session go on with another token. Another thread calls it, the owner may be busy."""
        raise NotImplementedError

    # Waiting

    async def wait(
        self, done: Callable[[], object], timeout: Span | None, what: str, *, by: float | None = None
    ) -> None:
        """Iterate until `done()` is true.

        Raises `TimedOut` after `timeout` seconds (None: never), and the error that ended the session. `by` is
        the deadline of a timeout that began before, which is checked then.
        """
        raise NotImplementedError

    async def pause(self) -> None:
        """Let other tasks run, where there are any."""
        raise NotImplementedError

    def changed(self) -> None:
        """Wake waits after a change by another call than an iteration."""
        raise NotImplementedError

    has_timer = False
    """Whether pending commands are sent in time, though the caller makes no other call."""

    def within(self, delay: float) -> None:
        """Send pending commands within this time, where anything runs while the caller is busy."""
        raise NotImplementedError

    async def wait_for_broker(self, done: Callable[[], object], timeout: Span | None, what: str) -> None:
        """Wait for an answer: `timeout` seconds, or the client's own timeout for None."""
        await self.wait(done, self.timeout if timeout is None else timeout, what)

    async def make_room(self, *, numbered: bool, timeout: Span | None = None) -> None:
        """Wait until one more command may be submitted.

        Raises `TryLater` when the broker does not confirm in time, `ConnectionLost` when it is away.
        """
        self.check_owner()
        session = self.session
        if session.outbox.refusal is not None:
            raise session.outbox.refusal
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
        """Send the command just submitted, waiting for a while if the socket takes no more.

        After that time the command stays first in the queue, and there is no room for another.
        """
        now = monotonic()
        if now < self._iteration_due:
            if self._iteration_due == inf:
                self._iteration_due = now + ITERATION_SECONDS
            self.send_soon()
        else:
            self.iterate()
            await self.pause()
        outbox = self.session.outbox
        if not outbox.queue or not outbox.blocked:
            return
        with suppress(TimedOut):
            await self.wait(lambda: not outbox.blocked, self.timeout, "the broker takes nothing")

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        if self.renewal is not None:
            self.renewal.stop()
        self.session.end(Closed("client is closed: connect again"))
        self.connection.close()


def _waiting(session: ClientSession) -> str:
    """Return the reason why a command waits for the broker."""
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
