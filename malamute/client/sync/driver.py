"""The way a blocking program waits: iterations in the caller's own thread, with a poll between them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread, get_ident
from time import monotonic, sleep
from typing import Any, TypeVar

from malamute.client.link.calls import OwnerCall, OwnerCalls, PendingCall
from malamute.client.link.connection import Connection
from malamute.client.link.descriptor import Descriptor
from malamute.client.link.driver import FORKED, Driver
from malamute.client.link.leaving import dropped
from malamute.client.options import Span, seconds
from malamute.client.session.session import ClientSession
from malamute.errors import LinkError
from malamute.protocol.batch import Frame

T = TypeVar("T")

HOLD_SECONDS = 2e-4
"""Time for which a program that does something else leaves held commands behind."""

BLOCKED_SECONDS_MAX = 1.0
"""Maximum time until frames that a connection did not take are tried again for a program that does something
else: at first soon, and then ever less often."""

PENDING_SECONDS = 0.1
"""Maximum seconds for which acknowledgements and messages of publishers wait in a program with a loop of its
own."""

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


# The present call of the owner: none, one whose waits block, or one of the pool, which they suspend. Plain
# integers, since these are set with each call.
_NONE, _BLOCKS, _SUSPENDS = 0, 1, 2


# The owner has lent the socket.
_LENT = -2
_NO_THREAD = -3


class BlockingDriver(Driver):
    """A driver whose waits block.

    When a call returns that holds messages for others to join, it *lends* the socket: `Sender`, a thread of
    the process, sends them if the program makes no other call soon. Every other call finds that its thread is
    not the owner any more, reclaims the socket, and first sends held commands. So one thread at a time has
    the socket and the session, and calls that hold nothing know nothing of it.
    """

    hold_seconds = HOLD_SECONDS
    calls: OwnerCalls | None = None
    """The calls that the owner makes for other threads: those of handlers."""
    _descriptor: Descriptor | None = None
    """The file for another event loop, if there is one."""
    _dispatcher = 0
    """The thread of that loop."""
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
            if self._descriptor is not None:
                self._notify()
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
                self._notify_loop()
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
            if self._descriptor is not None:
                self._notify()
        raise AssertionError(_SUSPENDED)

    def _run_for_another(self, call: Coroutine[Any, Any, T]) -> T:
        calls = self.calls
        if calls is not None and get_ident() in calls.members:
            result: T = calls.call(call)
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
            if self._descriptor is not None:
                self._notify()

    # Another event loop

    def fileno(self) -> int:
        """Return a file that is readable when `dispatch` has something to do. Raises `Closed`."""
        descriptor = self._descriptor or self.do(self._open_descriptor)
        # A loop asks for it each time: that is no call.
        self.session.outbox.check()
        return descriptor.fileno()

    def _open_descriptor(self) -> Descriptor:
        self.check()
        self._descriptor = descriptor = Descriptor()
        self.has_timer = True
        self.connection.before_close = descriptor.unwatch
        return descriptor

    def dispatch(self) -> bool:
        """Iterate once, and return whether there is more to do.

        Raises:
            LinkError: another thread dispatches.
            MalamuteError: the error that ended the session.
        """
        if self._dispatcher not in (0, get_ident()):
            raise LinkError("client is dispatched by another thread: expected one loop for each client")
        self._dispatcher = get_ident()
        self.check()
        if self._descriptor is not None:
            self._descriptor.hear()
        self.prepare()
        self.link.wait(0.0, sending=bool(self.session.outbox.queue))
        self.iterate()
        if self.session.error is not None:
            raise self.session.error
        self.link.received = False
        return self._has_more()

    def _has_more(self) -> bool:
        link = self.link
        has_more = bool(self.events or link.wait(0.0, sending=bool(self.session.outbox.queue)))
        link.quiet = False
        return has_more

    def next_timeout(self) -> float | None:
        """Return the seconds until `dispatch` is due by itself; None if only the file tells that."""
        due, now = self.connection.due, monotonic()
        pending = any(source.acks for source in self.session.inbox.consumers.values())
        if pending or any(getattr(owner, "has_pending", True) for owner in self.before_wait):
            due = min(due, now + PENDING_SECONDS)
        return None if due == inf else max(0.0, due - now)

    def _notify_loop(self) -> None:
        """Notify the loop of a call that has received something, or leaves something to do."""
        if self.closed or self._descriptor is None:
            return
        self._descriptor.watch(self.link)
        if self.link.received or self._has_more():
            self._descriptor.ring()
        self.link.received = False

    _notify = _notify_loop
    """The same after each call."""

    def close(self) -> None:
        """Close the connection, and the file for another loop."""
        super().close()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()

    def drain(self) -> None:
        """Drain the session: now, or in the next iteration if a call of the owner is under way."""
        super().drain()
        if not self.closed and not self._call:
            # No iteration comes before: a handler of events could publish in the middle of the interrupted
            # call.
            self.do(self._drain_session)
            self.do(self.send)

    settle = do
    """The same for a settlement, whose result no caller needs."""

    def step(self, call: Coroutine[Any, Any, Any], error: BaseException | None) -> PendingCall:
        """Drive the call of another thread to its next wait: waits do not block, they suspend it."""
        interrupted = self._call
        self._call = _SUSPENDS
        try:
            waiting: PendingCall = call.send(None) if error is None else call.throw(error)
        finally:
            self._call = interrupted
        return waiting

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
            left, wake_fd = (by if by < connection.due else connection.due) - now, None
            if (calls := self.calls) is not None:
                calls.polling, wake_fd = True, calls.wake_fd
                left = min(left, calls.patience())
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


class SharedDriver(BlockingDriver):
    """A driver for any thread: one thread at a time owns the socket, for as long as its call takes.

    A call that finds the socket free owns it, and polls if it has to wait. While another thread owns it, the
    call is handed over to that one, which makes the calls of all threads. When its own call is over, it lets
    a thread whose call still waits own the socket. So a call of a free client costs a lock, and there is no
    thread in the background.
    """

    calls: OwnerCalls

    def __init__(self, session: ClientSession, connection: Connection, timeout: float) -> None:
        super().__init__(session, connection, timeout)
        self.calls = OwnerCalls(session, self.step)
        self.forked = False
        """Whether this is a child, and the client its parent's."""
        self.successor = Lock()
        """Held while a child of a fork connects anew."""

    def share(self) -> None:
        """Let any thread own the socket, once it is connected."""
        self._thread = _NO_THREAD
        self._release()

    # The owner

    def _acquire(self) -> bool:
        """Own the socket if no other thread does."""
        if not self._lock.acquire(blocking=False):
            return False
        self._owner = get_ident()
        return True

    def _notify(self) -> None:
        """Do nothing: `_release` notifies the loop, once for each time that a thread owned the socket."""

    def _release(self) -> None:
        """Own the socket no more: a thread whose call waits comes next."""
        calls = self.calls
        while True:
            if self._descriptor is not None:
                self._notify_loop()
            heir = calls.heir() if calls.new or calls.suspended else None
            self._owner = _LENT
            self._lock.release()
            if self._holds and self.session.outbox.queue and not self._sender_asked:
                self._holds, self._sender_asked = False, True
                sender().ask(self)
            if heir is not None:
                heir.open_gate()
                return
            # Calls that came after the look for an heir: their threads saw that the socket was owned.
            if not calls.new or not self._acquire():
                return
            calls.drive()

    def dispatch(self) -> bool:
        """Iterate once, for a loop of any thread; a thread in a call does it for that one."""
        self._dispatcher = 0
        return super().dispatch()

    # Calls

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in any thread.

        Raises:
            LinkError: the process was forked.
        """
        if get_ident() == self._owner:
            # A handler of events or of signals interrupts a call of its own thread.
            return super().run(call)
        if self.forked:
            call.close()
            raise self.not_owner()
        if not self._acquire():
            result: T = self._hand_over(call)
            return result
        try:
            return super().run(call)
        finally:
            self._release()

    def _hand_over(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have the owner make a call, or own the socket once that is free."""
        mine = OwnerCall(call)
        gate = mine.wait_here()
        self.calls.hand_over(mine)
        try:
            while not mine.done and not self._acquire():
                gate.acquire()
            if not mine.done:
                self._lead(mine)
        except BaseException:
            # A signal has interrupted the caller: its call ends, and it may have been the next owner.
            mine.abandoned = True
            self.calls.wake()
            self._drive()
            raise
        return mine.outcome()

    def _lead(self, mine: OwnerCall) -> None:
        """Make the calls of all threads until the caller's own is over."""
        calls, self._call = self.calls, _BLOCKS
        try:
            calls.drive()
            while not mine.done:
                try:
                    run(self.wait(lambda: mine.done, None, ""))
                except BaseException as error:  # of a handler, or of a signal: it belongs to this call
                    if error is self.session.error:
                        calls.drive()
                    else:
                        calls.step(mine, error)
        finally:
            self._call = _NONE
            self._release()

    def iterate(self) -> None:
        """Iterate, and make the calls of other threads go on."""
        super().iterate()
        if self._call != _SUSPENDS and (self.calls.new or self.calls.suspended or self.calls.polling):
            self.calls.hear()
            self.calls.drive()

    def _drive(self) -> None:
        """Make calls that were handed over, if no other thread does."""
        if self._acquire():
            try:
                self.calls.drive()
            finally:
                self._release()

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait, in any thread. Raises as `run`."""
        if get_ident() == self._owner:
            return super().do(function, *arguments)
        if self.forked or not self._acquire():
            return self.run(_do(function, arguments))
        try:
            return super().do(function, *arguments)
        finally:
            self._release()

    def settle(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Settle a message without waiting: the owner of the socket does it after its present step."""
        if get_ident() == self._owner:
            return super().do(function, *arguments)
        if self.forked:
            raise self.not_owner()
        if self.calls.new or not self._acquire():
            self.calls.hand_over(OwnerCall(_do(function, arguments)))
            self._drive()
            return None
        try:
            return super().do(function, *arguments)
        finally:
            self._release()

    def publish_unconfirmed(self, stream: str, subject: str, record: Frame) -> bool:
        """Publish a checked message, if nothing is in its way. Return whether it was published."""
        if self._owner != _LENT or not self._acquire():
            return False
        try:
            return Driver.publish_unconfirmed(self, stream, subject, record)
        finally:
            self._release()

    def send_lent(self) -> bool:
        """Send held commands, and then make calls that were handed over meanwhile."""
        blocked = super().send_lent()
        if self.calls.new:
            self._drive()
        return blocked

    def drain(self) -> None:
        """Drain the session: now, or in the next iteration if a call is under way in this thread."""
        self.drain_due = True
        if not self.closed and get_ident() != self._owner:
            self.do(self._drain_session)
            self.do(self.send)

    def renew(self, token: str) -> None:
        """Have the session go on with another token."""
        self.settle(self._renew, token)

    def _renew(self, token: str) -> None:
        self.session.renew(token)
        self.send()

    # Forks, and the end

    @property
    def is_owner(self) -> bool:
        """Whether the caller has the socket."""
        return get_ident() == self._owner

    def not_owner(self) -> LinkError:
        """Return the error of a caller in a child of a fork."""
        return LinkError(
            "consumer, publisher or message was made before a fork: make it anew in the child, by a call of "
            "its client"
        )

    def disown(self) -> None:
        """Note that the process was forked, and this is the child. A closed client stays closed."""
        self._lock, self.successor = RLock(), Lock()
        self.forked = not self.closed
        self._owner = FORKED if self.forked else _LENT

    @property
    def thread(self) -> int:
        """Return the thread that uses this client; the caller if none does."""
        return get_ident() if self._owner == _LENT else self._owner

    def take_over(self) -> None:
        """Make the caller the owner: no other thread uses the client any more."""
        if self._owner != get_ident():
            self._lock.acquire(timeout=self.timeout)
            self._owner = get_ident()

    def close(self) -> None:
        """Close the connection. Calls of other threads end with `Closed`."""
        super().close()
        self.calls.close_files()


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
