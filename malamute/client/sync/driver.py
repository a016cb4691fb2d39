"""The way a blocking program waits: iterations in the caller's own thread, with a poll between them."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import get_ident
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from malamute.client.link.driver import Driver
from malamute.errors import TimedOut

T = TypeVar("T")


def run(call: Coroutine[Any, Any, T]) -> T:
    """Do what a coroutine says whose waits block, so that one step takes it to its end."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call of the blocking edge was suspended")


class Waiting(NamedTuple):
    """What a suspended call waits for. `timeout` is in seconds, None for no end."""

    done: Callable[[], object]
    timeout: float | None
    what: str

    def late(self) -> TimedOut:
        """The error when that did not come in time."""
        return TimedOut(f"{self.what}: nothing within {self.timeout} s")


class OwnerCalls(Protocol):
    """Threads whose calls the owner makes for them: `HandlerPool` is one."""

    @property
    def wake_fd(self) -> int:
        """What becomes readable when they do."""

    def has(self, thread: int) -> bool:
        """Whether this thread is of the pool."""

    def owner_call(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have a call made by the owner's thread, and wait for its result."""


class BlockingDriver(Driver):
    """A driver whose waits block."""

    pool: OwnerCalls | None = None
    _suspends = False
    _busy = False
    """Whether a call of the owner is under way. A signal handler, or the user's handler of events, may call
    the client then; each call restores what it found. The session is changed in such calls alone."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Do what a call says; for a thread of the pool, in the owner's thread.

        Raises:
            LinkError: the caller is another thread, or the process was forked.

        """
        if get_ident() != self._owner:
            pool = self.pool
            if pool is not None and pool.has(get_ident()):
                result: T = pool.owner_call(call)
                return result
            call.close()
            self.check_owner()
        suspends, self._suspends = self._suspends, False
        busy, self._busy = self._busy, True
        try:
            return run(call)
        finally:
            self._busy = busy
            self._suspends = suspends

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not wait; for a thread of the pool, in the owner's thread.

        Raises:
            LinkError: the caller is another thread, or the process was forked.

        """
        if get_ident() != self._owner:
            return self.run(_do(function, arguments))
        busy, self._busy = self._busy, True
        try:
            return function(*arguments)
        finally:
            self._busy = busy

    def drain(self) -> None:
        """Drain the session: now, or in the next iteration if a call of the owner is under way."""
        super().drain()
        if not self.closed and not self._busy:
            # Without a look at what was received: a handler of events could publish into what is interrupted.
            self.do(self._drain_session)
            self.do(self.send)

    @contextmanager
    def suspending(self) -> Iterator[None]:
        """While a call of the pool is driven: its waits do not block, they suspend it."""
        self._suspends = True
        try:
            yield
        finally:
            self._suspends = False

    async def wait(self, done: Callable[[], object], timeout: float | None, what: str) -> None:
        """Iterate until `done()`, with a poll between the iterations."""
        if self._suspends:
            self.prepare()
            waiting = Waiting(done, timeout, what)
            while not done():
                await _suspend(waiting)
            return
        deadline = inf if timeout is None else monotonic() + timeout
        while not done():
            if self.session.error is not None:
                raise self.session.error
            # A caller that waits has looked at all there was: its acknowledgements can be sent.
            self.prepare()
            now = monotonic()
            until = min(deadline, self.connection.due)
            sending = self.session.outbox.next_to_send() is not None
            wake_fd = None if self.pool is None else self.pool.wake_fd
            self.link.wait(None if until == inf else max(0.0, until - now), sending=sending, wake_fd=wake_fd)
            self.iterate()
            if deadline <= now and not done():
                raise self.session.error or Waiting(done, timeout, what).late()

    async def pause(self) -> None:
        """There is nobody else."""

    def changed(self) -> None:
        """Nobody waits while the caller is busy."""

    def within(self, seconds: float) -> None:
        """Nobody is there while the caller is busy: it goes with the next wait."""


async def _do(function: Callable[..., T], arguments: Sequence[Any]) -> T:
    return function(*arguments)


@types.coroutine
def _suspend(waiting: Waiting) -> Generator[Waiting, None, None]:
    yield waiting
