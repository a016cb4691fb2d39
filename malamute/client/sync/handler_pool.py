"""Handlers in blocking programs: they run on threads of a pool, and the owner of the client serves them.

The owner's thread keeps the session going all the while: it hands messages to threads that are free, reports
progress on long work, and settles finished messages. So a handler may block for as long as it needs.

A handler may use its client. Each of its calls becomes an *owner call*, which the owner's thread makes
(`link/calls`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from malamute.client.link.calls import OwnerCall, OwnerCalls
from malamute.client.link.handlers import Registration, settle, untouched
from malamute.client.session.message import Mail, Message
from malamute.client.sync.consumers import Mailbox, Subscription, Work
from malamute.client.sync.driver import BlockingDriver
from malamute.errors import Closed, TimedOut


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


class HandlerPool:
    """The threads of one `run`."""

    def __init__(self, driver: BlockingDriver, slots: Sequence[HandlerSlot]) -> None:
        self._driver = driver
        self._slots = slots
        self._drives = driver.calls is None
        """Whether it makes the calls of the handlers. A client for any thread makes them itself."""
        self._calls = driver.calls or OwnerCalls(driver.session, driver.step)
        driver.calls = self._calls
        self._executor = ThreadPoolExecutor(
            sum(slot.registration.concurrency for slot in slots) or 1,
            "malamute-handler",
            initializer=self._enlist,
        )
        self._jobs: dict[Job, float] = {}
        self._unsettled = 0
        """Settlements that are not over."""
        self._failure: BaseException | None = None
        self._stopping = False

    def _enlist(self) -> None:
        """Note a thread of the pool, in that thread."""
        self._calls.members.add(threading.get_ident())

    def stop(self) -> None:
        """Receive no more messages. `serve` returns when the running handlers are done."""
        self._stopping = True
        self._calls.wake()

    # In the owner's thread

    async def serve(self) -> None:
        """Serve until `stop`, and until all begun work is done.

        Raises the error of a stream handler, or of the session.
        """
        while not self._is_over:
            self._calls.hear()
            self._drive()
            self._settle_jobs()
            self._report()
            if not self._stopping:
                self._hand_out()
            # Before the wait: a Control-C in the middle of a settlement is one, and nothing else may come.
            self._check()
            with suppress(TimedOut):
                await self._driver.wait(self._is_due, self._patience(), "nothing to do")
        self._check()

    def _check(self) -> None:
        """Raise the failure of a settlement."""
        if self._failure is not None:
            raise self._failure

    @property
    def _is_over(self) -> bool:
        has_calls = self._drives and bool(self._calls.new or self._calls.suspended)
        return self._stopping and not (self._jobs or self._unsettled or has_calls)

    def _drive(self) -> None:
        if self._drives:
            self._calls.drive()

    def _is_due(self) -> bool:
        return bool(
            (self._drives and self._calls.is_due())
            or any(job.result.done() for job in self._jobs)
            or (any(slot.ready for slot in self._slots) and not self._stopping)
            or self._is_over
            or self._failure is not None
        )

    def _patience(self) -> float | None:
        calls = self._calls.patience() if self._drives else inf
        due = min(self._jobs.values(), default=inf)
        left = min(calls, due - monotonic())
        return None if left == inf else max(0.0, left)

    def _hand_out(self) -> None:
        for slot in self._slots:
            while slot.ready:
                job = Job(slot, slot.pop(), Future())
                # The job is registered before it begins: its calls may interrupt this thread at once.
                self._jobs[job] = self._next_report(job)
                job.result.add_done_callback(lambda _: self._calls.wake())
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
            settlement = settle(job.slot.consumer, job.message, result, error, job.slot.registration)
            self._unsettled += 1
            self._calls.new.append(OwnerCall(settlement, self._settled))
        self._drive()

    def _settled(self, settlement: OwnerCall) -> None:
        self._unsettled -= 1
        self._failure = self._failure or settlement.error

    def close(self) -> None:
        """End the pool. Handlers that are still at work get an error for any call of the client."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs:
            if not job.result.done():
                # The handler has never begun, or is left behind.
                untouched(job.message)
        if self._drives:
            self._driver.calls = None
            self._calls.close(Closed("client runs no handlers any more: settle messages inside Client.run"))
