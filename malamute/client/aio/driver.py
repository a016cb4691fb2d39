"""The way an asyncio program waits: the event loop watches the socket, and every wait is one future.

The loop calls `_look` when the socket shows that something changed. That is one iteration, after which every
wait whose condition has become true continues. So one wake-up of the loop costs one call for any number of
messages; a future is made for each wait, and never for a message.

A ZeroMQ socket shows a change by a file that is edge-triggered, and sending may swallow the sign. So after
each iteration the socket is asked whether there is more, and after each send another look is taken, once per
pass of the loop.

A cancelled wait leaves nothing behind: received messages stay with the session until they are popped, and
popping never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import get_ident
from time import monotonic

from malamute.client.link.connection import Connection
from malamute.client.link.driver import Driver
from malamute.client.link.leaving import dropped
from malamute.client.link.link import Link
from malamute.client.options import Span, patience, seconds
from malamute.client.session.session import ClientSession
from malamute.errors import LinkError, TimedOut
from malamute.protocol.batch import Frame

ROOM_SECONDS = 0.02
"""Seconds until a command without room is tried again."""


class AioDriver(Driver):
    """A driver on the running event loop. The next pass of the loop sends held commands."""

    hold_seconds = 1e-4

    def __init__(self, session: ClientSession, connection: Connection, timeout: float) -> None:
        super().__init__(session, connection, timeout)
        self._loop = asyncio.get_running_loop()
        self._waits: dict[asyncio.Future[None], tuple[Callable[[], object], float]] = {}
        """The present waits, each with its condition and its deadline."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        """The time at which the deadlines are looked at: the earliest one, or before it."""
        self._looking = False
        self._sending: asyncio.Handle | None = None
        self._send_at = 0.0
        self._reconnecting: asyncio.TimerHandle | None = None
        self._watched: tuple[Link, tuple[int, int]] | None = None
        self.connection.before_close = self._unwatch
        self._watch()

    def check_owner(self) -> None:
        """Raise `LinkError` unless the caller is in the thread, and on the loop, that owns this client."""
        try:
            if get_ident() == self._owner and asyncio.get_running_loop() is self._loop:
                return
        except RuntimeError:
            pass  # without a task, as in a signal handler
        super().check_owner()
        if not self._is_on_loop():
            raise LinkError(
                "client belongs to another event loop: connect one on each, such as in each asyncio.run"
            )

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            # Without a task, as in a signal handler.
            return not self._loop.is_closed()

    def publish_unconfirmed(self, stream: str, subject: str, record: Frame) -> bool:
        """Publish a checked message, if nothing is in its way. Return whether it was published."""
        return self._is_on_loop() and super().publish_unconfirmed(stream, subject, record)

    # Callbacks of the loop

    def _look(self) -> None:
        self._looking = False
        if not self.closed:
            self.iterate()

    def iterate(self) -> None:
        """Iterate, and wake waits."""
        connection = self.connection
        connection.link.wait(0.0, sending=False)
        try:
            super().iterate()
        finally:
            is_watched = self._watched is not None and self._watched[0] is connection.link
            if not is_watched or self._reconnecting is not None or connection.due != inf:
                self._watch()
            if self._waits:
                self._wake()
            self._look_again()

    def _look_again(self) -> None:
        """Look again if there is more to do: only then do the files tell what comes."""
        if self._looking or self.closed:
            return
        sending = bool(self.session.outbox.queue)
        if self.events or self.connection.link.wait(0.0, sending=sending):
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _wake(self) -> None:
        over = self.session.error is not None
        for future, (done, _) in self._waits.items():
            if not future.done() and (over or done()):
                future.set_result(None)

    def _watch(self) -> None:
        """Watch the files of the present link, and wake up when the next attempt is due."""
        link = self.connection.link
        if self._watched is None or self._watched[0] is not link:
            self._watched = link, link.files
            for file in link.files:
                self._loop.add_reader(file, self._look)
            self._look_soon()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            self._reconnecting = None
        if self.connection.due != inf:
            self._reconnecting = self._loop.call_later(
                max(0.0, self.connection.due - monotonic()), self._look
            )

    def _unwatch(self) -> None:
        if self._watched is not None:
            for file in self._watched[1]:
                self._loop.remove_reader(file)
            self._watched = None

    def drain(self) -> None:
        """Drain the session in the next pass of the loop, and wake it if a signal interrupted its sleep."""
        super().drain()
        self._loop.call_soon_threadsafe(self._look)

    def renew(self, token: str) -> None:
        """Have the next pass of the loop send HELLO with this token."""
        with suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(self._renew, token)

    def _renew(self, token: str) -> None:
        self.session.renew(token)
        self.send()

    def send(self) -> None:
        """Send the session's commands, then look for answers that arrived meanwhile."""
        super().send()
        self._look_again()

    __del__ = dropped

    def take_over(self) -> None:
        """Make the caller the owner: its loop is over, and all its waits with it."""
        super().take_over()
        self._looking, self._watched = True, None
        self._waits.clear()
        self._alarm_at = -inf

    def changed(self) -> None:
        """Check all waits again."""
        self._wake()

    def hold(self) -> None:
        """Have the next pass of the loop send held commands."""
        self._look_soon()

    def send_soon(self) -> None:
        """Send the session's commands in the next pass of the loop at the latest."""
        self.send_or_hold()

    # Waiting

    async def wait(
        self, done: Callable[[], object], timeout: Span | None, what: str, *, by: float | None = None
    ) -> None:
        """Run the loop until `done()`, for `timeout` seconds at most."""
        self.check_owner()
        if by is None:
            by = inf if timeout is None else monotonic() + seconds("timeout", timeout)
        while not done():
            if self.session.error is not None:
                raise self.session.error
            self.prepare()
            if by != inf and by <= monotonic():
                self.iterate()
                if not done():
                    raise self.session.error or TimedOut(
                        f"{what}: nothing within {patience('timeout', timeout)} s"
                    )
                return
            future = self._loop.create_future()
            self._waits[future] = done, by
            if by < self._alarm_at:
                self._set_alarm(by)
            try:
                await future
            finally:
                self._waits.pop(future, None)

    def _set_alarm(self, deadline: float) -> None:
        """Look at the deadlines at that time. One alarm serves all waits: most are over long before."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_later(deadline - monotonic(), self._give_up)

    def _give_up(self) -> None:
        self._alarm, self._alarm_at = None, inf
        now = monotonic()
        for future, (_, deadline) in self._waits.items():
            if deadline <= now and not future.done():
                future.set_result(None)
        if (earliest := min((at for _, at in self._waits.values() if at > now), default=inf)) < inf:
            self._set_alarm(earliest)

    async def pause(self) -> None:
        """Let the other tasks of the loop run."""
        await asyncio.sleep(0)

    has_timer = True

    def within(self, delay: float) -> None:
        """Send held commands within `delay` seconds, or earlier if an earlier call requested it."""
        due = self._loop.time() + delay
        if self._sending is not None:
            if self._send_at <= due:
                return
            self._sending.cancel()
        # The handle need not know the time: for the next moment uvloop has one without a timer.
        self._send_at = due
        self._sending = self._loop.call_at(due, self._send_now)

    def _send_now(self) -> None:
        self._sending = None
        if self.session.error is None and not self.prepare():
            self.within(ROOM_SECONDS)

    def close(self) -> None:
        """Close the connection; every call that waits is woken up."""
        for handle in (self._sending, self._reconnecting, self._alarm):
            if handle is not None:
                handle.cancel()
        super().close()
        self._wake()
