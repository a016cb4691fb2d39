"""Calls that one thread makes for others: handed over, driven, and suspended while they wait.

A call is a coroutine over the driver. The thread that owns the socket drives all of them: a call that has to
wait is suspended and continues in a later iteration, so that one never holds up another. A thread whose call
is driven elsewhere waits at the gate of its call.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakMethod

from malamute.client.options import Span, patience
from malamute.client.session.session import ClientSession
from malamute.errors import MalamuteError, TimedOut


class PendingCall(NamedTuple):
    """The wait of a suspended call, until the deadline `by`. `timeout` is as the caller has given it."""

    done: Callable[[], object]
    by: float
    timeout: Span | None
    what: str

    def late(self) -> TimedOut:
        """Return the error after the timeout."""
        return TimedOut(f"{self.what}: nothing within {patience('timeout', self.timeout)} s")


Step = Callable[[Coroutine[Any, Any, Any], BaseException | None], PendingCall]
"""Drives a coroutine to its next wait, which is the result; with an error, by raising that in it."""


class OwnerCall:
    """A call of a thread. `ended` is called where it is driven, with its result."""

    __slots__ = ("abandoned", "call", "done", "ended", "error", "gate", "result", "waiting")

    def __init__(
        self, call: Coroutine[Any, Any, Any], ended: Callable[[OwnerCall], None] | None = None
    ) -> None:
        self.call = call
        self.ended = ended
        self.waiting: PendingCall | None = None
        self.done = self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.gate: Lock | None = None
        """The gate at which its thread waits, if one does."""

    def wait_here(self) -> Lock:
        """Return a gate that is closed until the thread of this call is to look again."""
        self.gate = Lock()
        self.gate.acquire()
        return self.gate

    def open_gate(self) -> None:
        """Let the thread of this call look again."""
        gate = self.gate
        if gate is not None and gate.locked():
            gate.release()

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Note the result, or the error."""
        self.result, self.error, self.done = result, error, True
        if self.ended is not None:
            self.ended(self)
        self.open_gate()

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class OwnerCalls:
    """The calls of other threads, at the thread that owns the socket."""

    def __init__(self, session: ClientSession, step: Step) -> None:
        self._session = session
        # Weak, so that a client that its program drops has left at once.
        self._step = WeakMethod(step)
        self.members: set[int] = set()
        """The threads whose calls these are, for a client of one thread."""
        self.new: deque[OwnerCall] = deque()
        """Calls that have not begun; any thread appends."""
        self.suspended: dict[OwnerCall, None] = {}
        """Calls that wait, in order."""
        self.polling = self._driving = False
        """Whether the owner may be asleep."""
        # Sockets and not a pipe: a late write to a closed one reaches no file that has its number now.
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)

    # In other threads

    def call(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have the owner make a call, and wait for its result."""
        owner_call = OwnerCall(call)
        gate = owner_call.wait_here()
        self.hand_over(owner_call)
        gate.acquire()
        return owner_call.outcome()

    def hand_over(self, owner_call: OwnerCall) -> None:
        """Have the owner make a call soon."""
        self.new.append(owner_call)
        self.wake()

    def wake(self) -> None:
        """Wake the owner up, if it is asleep."""
        if self.polling:
            with suppress(OSError):
                self._outside.send(b"!")

    # In the owner's thread

    @property
    def wake_fd(self) -> int:
        """Return the file that becomes readable when the owner is to wake up."""
        return self._inside.fileno()

    def hear(self) -> None:
        """Note that the owner is awake."""
        self.polling = False
        with suppress(OSError):
            while len(self._inside.recv(4096)) == 4096:
                pass

    def is_due(self) -> bool:
        """Return whether any call can continue."""
        return bool(self.new) or any(
            call.abandoned or call.waiting is None or call.waiting.done() for call in self.suspended
        )

    def patience(self) -> float:
        """Return the seconds until a call can continue or its wait is over; inf without any."""
        if self.new:
            return 0.0
        due = min((c.waiting.by for c in self.suspended if c.waiting is not None), default=inf)
        return due if due == inf else max(0.0, due - monotonic())

    def drive(self) -> None:
        """Make each call go on as far as it can."""
        if self._driving:
            # A handler of events calls the client within one of these calls.
            return
        self._driving = True
        try:
            self._drive()
        finally:
            self._driving = False

    def _drive(self) -> None:
        while self.new:
            self.step(self.new.popleft())
        now, over = monotonic(), self._session.error
        for owner_call in [*self.suspended]:
            waiting = owner_call.waiting
            assert waiting is not None
            if owner_call.abandoned or waiting.done():
                self.step(owner_call)
            elif over is not None:
                self.step(owner_call, over)
            elif now >= waiting.by:
                self.step(owner_call, waiting.late())

    def step(self, owner_call: OwnerCall, error: BaseException | None = None) -> None:
        """Make one call go on until it waits again; with an error, by raising that in it."""
        try:
            if owner_call.abandoned:
                owner_call.call.close()
                raise StopIteration
            step = self._step()
            assert step is not None, "the driver makes the calls"
            owner_call.waiting = step(owner_call.call, error)
        except StopIteration as end:
            self.suspended.pop(owner_call, None)
            owner_call.end(end.value)
        except BaseException as raised:  # it belongs to the thread that made the call
            self.suspended.pop(owner_call, None)
            owner_call.end(error=raised)
        else:
            self.suspended[owner_call] = None

    def heir(self) -> OwnerCall | None:
        """Return a call whose thread waits, and could own the socket in place of the present owner."""
        for owner_call in (*self.suspended, *self.new):
            if owner_call.gate is not None and not owner_call.abandoned:
                return owner_call
        return None

    def close(self, error: MalamuteError) -> None:
        """End the open calls with an error."""
        for owner_call in (*self.suspended, *self.new):
            owner_call.call.close()
            owner_call.end(error=error)
        self.suspended.clear()
        self.new.clear()
        self.close_files()

    def close_files(self) -> None:
        """Close the files: no thread calls any more."""
        self._inside.close()
        self._outside.close()
