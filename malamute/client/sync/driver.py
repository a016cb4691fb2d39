"""The way a blocking program waits: iterations in the caller's own thread, with a poll between them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from math import inf
from queue import Empty, SimpleQueue
from threading import RLock, Thread, get_ident
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, TypeVar

from malamute.client.link.connection import Connection
from malamute.client.link.driver import Driver
from malamute.client.link.leaving import dropped
from malamute.client.options import Span, patience, seconds
from malamute.client.session.session import ClientSession
from malamute.errors import TimedOut
from malamute.protocol.batch import Frame

T = TypeVar("T")

HOLD_SECONDS = 2e-4
"""Time for which a program that does something else leaves held commands behind."""

BLOCKED_SECONDS_MAX = 1.0
"""Maximum time until frames that a connection did not take are tried again for a program that does something
else: at first soon, and then ever less often."""

RENEWAL_SECONDS = 0.1
"""How often it is looked whether a call that was under way has taken the new token."""

_SUSPENDED = "a call of the blocking edge was suspended"


def run(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose waits block, so that one step takes it to its end."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError(_SUSPENDED)


class PendingCall(NamedTuple):
    """The wait of a suspended call, until the deadline `by`. `timeout` is as the caller has given it."""

    done: Callable[[], object]
    by: float
    timeout: Span | None
    what: str

    def late(self) -> TimedOut:
        """Return the error after the timeout."""
        return TimedOut(f"{self.what}: nothing within {patience('timeout', self.timeout)} s")


# The present call of the owner: none, one whose waits block, or one of the pool, which they suspend. Plain
# integers, since these are set with each call.
_NONE, _BLOCKS, _SUSPENDS = 0, 1, 2


class OwnerCalls(Protocol):
    """Threads whose calls the owner makes for them: `HandlerPool` is one."""

    @property
    def wake_fd(self) -> int:
        """Return the file that becomes readable when a thread makes a call."""

    def has(self, thread: int) -> bool:
        """Return whether this thread is of the pool."""

    def owner_call(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have the owner's thread make a call, and wait for its result."""


# The owner has lent the socket.
_LENT = -2


class BlockingDriver(Driver):
    """A driver whose waits block.

    When a call returns that holds messages for others to join, it *lends* the socket: `Sender`, a thread of
    the process, sends them if the program makes no other call soon. Every other call finds that its thread is
    not the owner any more, reclaims the socket, and first sends held commands. So one thread at a time has
    the socket and the session, and calls that hold nothing know nothing of it.
    """

    hold_seconds = HOLD_SECONDS
    pool: OwnerCalls | None = None
    _call = _NONE
    """The session is changed in calls alone. A signal handler, or the program's handler of events, may call
    the client while another call is under way; so each call restores the former value."""

    def __init__(self, session: ClientSession, connection: Connection, timeout: float) -> None:
        super().__init__(session, connection, timeout)
        self._thread = self._owner
        # Held by the owner at all times, except while the socket is lent. A signal handler may run anywhere
        # in between, so the lock can be acquired again by the thread that has it.
        self._lock = RLock()
        self._lock.acquire()
        self._holds = self._sender_asked = False

    def publish_unconfirmed(self, stream: str, subject: str, record: Frame) -> bool:
        """Publish a checked message, if nothing is in its way. Return whether it was published."""
        if get_ident() != self._thread:
            return False
        interrupted = self._call
        self._call = _BLOCKS
        try:
            if self._owner != self._thread and not self._take_back():
                return False
            # Not by `super`, which is a tenth of the call.
            return Driver.publish_unconfirmed(self, stream, subject, record)
        finally:
            self._call = interrupted
            if self._holds:
                self._holds = False
                if interrupted:
                    # The interrupted call does not know of this message.
                    self.send()
                else:
                    self._lend()

    def hold(self) -> None:
        """Lend the socket when this call is over."""
        self._holds = True

    # Lending the socket

    def _lend(self) -> None:
        if self._owner != self._thread:
            # A signal handler has lent it already, or there was a fork.
            return
        self._owner = _LENT
        self._lock.release()
        # The order matters: the sender forgets the request first, and then looks whether the socket is lent.
        if not self._sender_asked:
            self._sender_asked = True
            sender().ask(self)

    def _take_back(self) -> bool:
        if self._owner != _LENT:
            return False
        self._lock.acquire()
        if self._owner == _LENT:
            self._owner = self._thread
        else:
            # By a signal handler, between the two.
            self._lock.release()
        return True

    def _reclaim(self) -> bool:
        """Reclaim the socket, and send held commands. Return whether the caller is the owner."""
        if get_ident() != self._thread or not self._take_back():
            return False
        self.send()
        return True

    __del__ = dropped

    @property
    def thread(self) -> int:
        """Return the thread that uses this client."""
        return self._thread if self._owner == _LENT else self._owner

    def take_over(self) -> None:
        """Make the caller the owner: no other thread uses the client any more."""
        if self._owner == _LENT:
            self._lock.acquire()
        self._thread = self._owner = get_ident()

    def send_lent(self) -> bool:
        """Send held commands, if the socket is lent. Return whether the connection takes no more."""
        self._sender_asked = False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._owner == _LENT and not self.closed:
                self.send()
                self._sender_asked = bool(self.session.outbox.queue)
            return self._sender_asked
        finally:
            self._lock.release()

    # Calls

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call; for a thread of the pool, in the owner's thread.

        Raises:
            LinkError: the caller is another thread, or the process was forked.
        """
        if get_ident() != self._owner and not self._reclaim():
            return self._run_for_another(call)
        interrupted = self._call
        self._call = _BLOCKS
        try:
            # As in `run`: another Python call would be a tenth of a short call of the client.
            call.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self._call = interrupted
        raise AssertionError(_SUSPENDED)

    def _run_for_another(self, call: Coroutine[Any, Any, T]) -> T:
        pool = self.pool
        if pool is not None and pool.has(get_ident()):
            result: T = pool.owner_call(call)
            return result
        call.close()
        raise self.not_owner()

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait; for a thread of the pool, in the owner's thread.

        Raises:
            LinkError: the caller is another thread, or the process was forked.

        """
        if get_ident() != self._owner and not self._reclaim():
            return self.run(_do(function, arguments))
        if self._call:
            return function(*arguments)
        self._call = _BLOCKS
        try:
            return function(*arguments)
        finally:
            self._call = _NONE

    def drain(self) -> None:
        """Drain the session: now, or in the next iteration if a call of the owner is under way."""
        super().drain()
        if not self.closed and not self._call:
            # No iteration comes before: a handler of events could publish in the middle of the interrupted
            # call.
            self.do(self._drain_session)
            self.do(self.send)

    @contextmanager
    def suspending(self) -> Iterator[None]:
        """Drive a call of the pool during the block: its waits do not block, they suspend it."""
        interrupted = self._call
        self._call = _SUSPENDS
        try:
            yield
        finally:
            self._call = interrupted

    async def wait(
        self, done: Callable[[], object], timeout: Span | None, what: str, *, by: float | None = None
    ) -> None:
        """Iterate until `done()`, with a poll between the iterations, for `timeout` seconds at the most."""
        if by is None:
            by = inf if timeout is None else monotonic() + seconds("timeout", timeout)
        if self._call == _SUSPENDS:
            self.prepare()
            waiting = PendingCall(done, by, timeout, what)
            while not done():
                await _suspend(waiting)
            return
        session, connection = self.session, self.connection
        while not done():
            if session.error is not None:
                raise session.error
            # A caller that waits has read all messages: its acknowledgements can be sent.
            self.prepare()
            now = monotonic()
            left = (by if by < connection.due else connection.due) - now
            wake_fd = None if self.pool is None else self.pool.wake_fd
            connection.link.wait(left, sending=bool(session.outbox.queue), wake_fd=wake_fd)
            self.iterate()
            if by <= now and not done():
                raise session.error or PendingCall(done, by, timeout, what).late()

    async def pause(self) -> None:
        """Do nothing: there are no other tasks."""

    def changed(self) -> None:
        """Do nothing: no wait runs while the caller is busy."""

    def within(self, delay: float) -> None:
        """Do nothing: pending commands are sent with the next wait."""


class RenewingDriver(BlockingDriver):
    """A driver that lends the socket after each call, so that `Renewal` can use it while the program is busy.

    While a call is under way, its next iteration sends HELLO with the new token.
    """

    _fresh = ""
    """A token that the session does not have yet."""

    @property
    def is_owner(self) -> bool:
        """Whether the caller has the socket; a call takes it back, and lends it again."""
        return get_ident() == self._owner

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Do what a call says, as `BlockingDriver` does."""
        interrupted = self._call
        try:
            return super().run(call)
        finally:
            self._lend_after(interrupted)

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait, as `BlockingDriver` does."""
        interrupted = self._call
        try:
            return super().do(function, *arguments)
        finally:
            self._lend_after(interrupted)

    def _lend_after(self, interrupted: int) -> None:
        if not interrupted and get_ident() == self._owner and not self.closed:
            self._lend()

    def iterate(self) -> None:
        """Iterate, with the newest token."""
        self._take_fresh()
        super().iterate()

    def _take_fresh(self) -> None:
        token, self._fresh = self._fresh, ""
        if token:
            self.session.renew(token)

    def renew(self, token: str) -> None:
        """Have the session go on with another token: at once if the socket is lent, or with an iteration."""
        self._fresh = token
        while self._fresh and not self.closed:
            if self._lock.acquire(timeout=RENEWAL_SECONDS):
                try:
                    if self._owner == _LENT and not self.closed:
                        self._take_fresh()
                        self.send()
                finally:
                    self._lock.release()


class Sender:
    """A thread that sends held commands of blocking programs while they do something else."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[BlockingDriver] = SimpleQueue()
        Thread(target=self._run, name="malamute-sender", daemon=True).start()

    def ask(self, driver: BlockingDriver) -> None:
        """Have the held commands of a driver sent soon."""
        self._asked.put(driver)

    def _run(self) -> None:
        drivers: list[BlockingDriver] = []
        pause: float | None = None
        while True:
            with suppress(Empty):
                drivers.append(self._asked.get(timeout=pause))
            sleep(HOLD_SECONDS)
            drivers += [self._asked.get() for _ in range(self._asked.qsize())]
            drivers = [driver for driver in drivers if _send_lent(driver)]
            pause = min(2 * (pause or HOLD_SECONDS), BLOCKED_SECONDS_MAX) if drivers else None


def _send_lent(driver: BlockingDriver) -> bool:
    # The owner finds out about a broken connection with the next call.
    with suppress(Exception):
        return driver.send_lent()
    return False


sender = cache(Sender)
"""The sender of this process."""

# In a forked child there is no such thread.
os.register_at_fork(after_in_child=sender.cache_clear)


async def _do(function: Callable[..., T], arguments: Sequence[Any]) -> T:
    return function(*arguments)


@types.coroutine
def _suspend(waiting: PendingCall) -> Generator[PendingCall, None, None]:
    yield waiting
