"""Handlers in blocking programs: they run on threads of a pool, and the owner of the client serves them.

The owner's thread keeps the session going all the while: it hands messages to threads that are free, reports
progress on long work, and settles finished messages. So a handler may block for as long as it needs.

A handler may use its client. Each of its calls becomes an *owner call*: the coroutine of the call goes to the
owner's thread, is driven there, and the handler waits for its result. An owner call that has to wait is
suspended and continues in a later iteration, so that one never holds up another.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from malamute.client.link.handlers import Registration, settle, untouched
from malamute.client.session.message import Mail, Message
from malamute.client.sync.consumers import Mailbox, Subscription, Work
from malamute.client.sync.driver import BlockingDriver, PendingCall, run
from malamute.errors import Closed, MalamuteError, TimedOut


class HandlerSlot:
    """One handler at work: its consumer, and the number of messages that it can accept now."""

    def __init__(self, registration: Registration, consumer: Subscription | Mailbox | Work) -> None:
        self.registration = registration
        self.consumer = consumer
        self.free = registration.concurrency

    @property
    def ready(self) -> bool:
        """Return whether a message waits and a thread is free."""
        return self.free > 0 and self.consumer.has_one()

    def pop(self) -> Message:
        """Return the next message."""
        self.free -= 1
        return self.consumer.pop_one()


class Job(NamedTuple):
    """A message in the hands of a handler."""

    slot: HandlerSlot
    message: Message
    result: Future[Any]


def _handle(job: Job) -> None:
    try:
        job.result.set_result(job.slot.registration(job.message))
    except BaseException as error:  # the owner raises it, or settles the message by it
        job.result.set_exception(error)


class _OwnerCall:
    """A call of the client by a handler."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self.call = call
        self.result: Future[Any] = Future()
        self.waiting: PendingCall | None = None
        self.deadline = inf


class HandlerPool:
    """The threads of one `run`."""

    def __init__(self, driver: BlockingDriver, slots: Sequence[HandlerSlot]) -> None:
        self._driver = driver
        self._slots = slots
        self._executor = ThreadPoolExecutor(
            sum(slot.registration.concurrency for slot in slots) or 1,
            "malamute-handler",
            initializer=self._enlist,
        )
        self._members: set[int] = set()
        self._jobs: dict[Job, float] = {}
        self._new: deque[_OwnerCall] = deque()
        self._suspended: list[_OwnerCall] = []
        self._failure: BaseException | None = None
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._stopping = False

    # In the threads of the pool

    def _enlist(self) -> None:
        self._members.add(threading.get_ident())

    def has(self, thread: int) -> bool:
        """Return whether this thread is of the pool."""
        return thread in self._members

    def owner_call(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have the owner's thread make a call, and wait for its result."""
        owner_call = _OwnerCall(call)
        self._new.append(owner_call)
        self.wake_owner()
        return owner_call.result.result()

    def wake_owner(self) -> None:
        """Wake the owner up."""
        with suppress(OSError):
            self._outside.send(b"!")

    # In the owner's thread

    @property
    def wake_fd(self) -> int:
        """Return the file that becomes readable when the owner is to wake up."""
        return self._inside.fileno()

    def stop(self) -> None:
        """Receive no more messages. `serve` returns when the running handlers are done."""
        self._stopping = True
        self.wake_owner()

    def serve(self) -> None:
        """Serve until `stop`, and until all begun work is done.

        Raises the error of a stream handler, or of the session.
        """
        while not (self._stopping and not self._jobs and not self._suspended and not self._new):
            self._hear()
            self._drive_owner_calls()
            self._settle_jobs()
            self._report()
            if not self._stopping:
                self._hand_out()
            # Before the wait: a Control-C in the middle of a settlement is one, and nothing else may come.
            if self._failure is not None:
                raise self._failure
            with suppress(TimedOut):
                run(self._driver.wait(self._is_due, self._patience(), "nothing to do"))

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while self._inside.recv(4096):
                pass

    def _is_due(self) -> bool:
        return bool(
            self._new
            or any(job.result.done() for job in self._jobs)
            or any(e.waiting is not None and e.waiting.done() for e in self._suspended)
            or (any(slot.ready for slot in self._slots) and not self._stopping)
            or (self._stopping and not self._jobs and not self._suspended)
        )

    def _patience(self) -> float | None:
        dues = [*self._jobs.values(), *(owner_call.deadline for owner_call in self._suspended)]
        due = min(dues, default=inf)
        return None if due == inf else max(0.0, due - monotonic())

    def _hand_out(self) -> None:
        for slot in self._slots:
            while slot.ready:
                job = Job(slot, slot.pop(), Future())
                # The job is registered before it begins: its calls may interrupt this thread at once.
                self._jobs[job] = self._next_report(job)
                job.result.add_done_callback(lambda _: self.wake_owner())
                self._executor.submit(_handle, job)

    def _next_report(self, job: Job) -> float:
        consumer = job.slot.consumer
        return inf if isinstance(consumer, Subscription) else monotonic() + consumer.report_seconds

    def _report(self) -> None:
        now = monotonic()
        for job, due in self._jobs.items():
            if now >= due:
                assert isinstance(job.message, Mail)
                job.message.in_progress()
                self._jobs[job] = self._next_report(job)

    def _settle_jobs(self) -> None:
        for job in [job for job in self._jobs if job.result.done()]:
            del self._jobs[job]
            job.slot.free += 1
            error = job.result.exception()
            if error is not None and not isinstance(error, Exception):
                if isinstance(error, KeyboardInterrupt):
                    untouched(job.message)
                raise error
            result = None if error else job.result.result()
            owner_call = _OwnerCall(
                settle(job.slot.consumer, job.message, result, error, job.slot.registration)
            )
            owner_call.result.add_done_callback(self._settled)
            self._new.append(owner_call)
        self._drive_owner_calls()

    def _settled(self, result: Future[Any]) -> None:
        self._failure = self._failure or result.exception()

    def _drive_owner_calls(self) -> None:
        while self._new:
            self._step(self._new.popleft())
        suspended, self._suspended = self._suspended, []
        now = monotonic()
        for owner_call in suspended:
            assert owner_call.waiting is not None
            if owner_call.waiting.done():
                self._step(owner_call)
            elif self._driver.session.error is not None:
                self._step(owner_call, self._driver.session.error)
            elif now >= owner_call.deadline:
                self._step(owner_call, owner_call.waiting.late())
            else:
                self._suspended.append(owner_call)

    def _step(self, owner_call: _OwnerCall, error: MalamuteError | None = None) -> None:
        call = owner_call.call
        try:
            with self._driver.suspending():
                owner_call.waiting = call.send(None) if error is None else call.throw(error)
        except StopIteration as end:
            owner_call.result.set_result(end.value)
        except BaseException as error:  # the error belongs to the handler, which made the call
            owner_call.result.set_exception(error)
        else:
            assert owner_call.waiting is not None
            owner_call.deadline = owner_call.waiting.by
            self._suspended.append(owner_call)

    def close(self) -> None:
        """End the pool. Handlers that are still at work get an error for any call of the client."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs:
            if not job.result.done():
                # The handler has never begun, or is left behind.
                untouched(job.message)
        for owner_call in (*self._suspended, *self._new):
            owner_call.call.close()
            if not owner_call.result.done():
                owner_call.result.set_exception(
                    Closed("client runs no handlers any more: settle messages inside Client.run")
                )
        self._suspended.clear()
        self._new.clear()
        self._inside.close()
        self._outside.close()
