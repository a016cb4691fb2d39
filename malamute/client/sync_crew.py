"""Handlers in blocking programs: they run on threads of a crew, and the owner of the client serves them.

The owner's thread takes turns of the session all the while: it hands messages to threads that are free,
reports progress on what takes long, and settles what is done. So a handler may block for as long as it needs.

A handler may use its client. Whatever it calls becomes an *errand*: the coroutine of the call goes to the
owner's thread, is driven there, and the handler waits for its result. An errand that has to wait is suspended
and goes on in a later turn, so that one never holds up another.
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

from malamute.client.handling import Registration, settle, untouched
from malamute.client.message import Mail, Message
from malamute.client.sync_consumers import Mailbox, Subscription, Work
from malamute.client.sync_driver import BlockingDriver, Waiting, run
from malamute.errors import Closed, MalamuteError, TimedOut


class Post:
    """One handler at work: its consumer, and how many more messages it can take now."""

    def __init__(self, registration: Registration, consumer: Subscription | Mailbox | Work) -> None:
        self.registration = registration
        self.consumer = consumer
        self.free = registration.concurrency

    @property
    def ready(self) -> bool:
        """Whether a message waits and a thread is free."""
        return self.free > 0 and self.consumer.has_one()

    def take(self) -> Message:
        """The next message."""
        self.free -= 1
        return self.consumer.take_one()


class Job(NamedTuple):
    """A message in the hands of a handler."""

    post: Post
    message: Message
    result: Future[Any]


def _handle(job: Job) -> None:
    try:
        job.result.set_result(job.post.registration.handler(job.message))
    except BaseException as error:  # the owner raises it, or settles the message by it
        job.result.set_exception(error)


class _Errand:
    """A call that a handler made."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self.call = call
        self.result: Future[Any] = Future()
        self.waiting: Waiting | None = None
        self.deadline = inf


class Crew:
    """The threads of one `run`."""

    def __init__(self, driver: BlockingDriver, posts: Sequence[Post]) -> None:
        self._driver = driver
        self._posts = posts
        self._pool = ThreadPoolExecutor(
            sum(post.registration.concurrency for post in posts) or 1,
            "malamute-handler",
            initializer=self._enlist,
        )
        self._members: set[int] = set()
        self._jobs: dict[Job, float] = {}
        self._new: deque[_Errand] = deque()
        self._suspended: list[_Errand] = []
        self._failure: BaseException | None = None
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._stopping = False

    # In the threads of the crew

    def _enlist(self) -> None:
        self._members.add(threading.get_ident())

    def has(self, thread: int) -> bool:
        """Whether this thread is of the crew."""
        return thread in self._members

    def errand(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have a call made by the owner's thread, and wait for its result."""
        errand = _Errand(call)
        self._new.append(errand)
        self.ring()
        return errand.result.result()

    def ring(self) -> None:
        """Wake the owner up."""
        with suppress(OSError):
            self._outside.send(b"!")

    # In the owner's thread

    @property
    def door(self) -> int:
        """What becomes readable when it is rung."""
        return self._inside.fileno()

    def stop(self) -> None:
        """Take no more messages. `serve` returns when the handlers at work are done."""
        self._stopping = True
        self.ring()

    def serve(self) -> None:
        """Serve until `stop`, and until all that was begun is done.

        Raises what a handler of a stream raised, and what ended the session.
        """
        while not (self._stopping and not self._jobs and not self._suspended and not self._new):
            self._hear()
            self._drive_errands()
            self._settle_jobs()
            self._report()
            if not self._stopping:
                self._hand_out()
            with suppress(TimedOut):
                run(self._driver.wait(self._is_due, self._patience(), "nothing to do"))
            if self._failure is not None:
                raise self._failure

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while self._inside.recv(4096):
                pass

    def _is_due(self) -> bool:
        return bool(
            self._new
            or any(job.result.done() for job in self._jobs)
            or any(e.waiting is not None and e.waiting.done() for e in self._suspended)
            or (any(post.ready for post in self._posts) and not self._stopping)
            or (self._stopping and not self._jobs and not self._suspended)
        )

    def _patience(self) -> float | None:
        dues = [*self._jobs.values(), *(errand.deadline for errand in self._suspended)]
        due = min(dues, default=inf)
        return None if due == inf else max(0.0, due - monotonic())

    def _hand_out(self) -> None:
        for post in self._posts:
            while post.ready:
                job = Job(post, post.take(), Future())
                # It is known before it begins: what it does may interrupt this thread at once.
                self._jobs[job] = self._next_report(job)
                job.result.add_done_callback(lambda _: self.ring())
                self._pool.submit(_handle, job)

    def _next_report(self, job: Job) -> float:
        consumer = job.post.consumer
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
            job.post.free += 1
            error = job.result.exception()
            if error is not None and not isinstance(error, Exception):
                if isinstance(error, KeyboardInterrupt):
                    untouched(job.message)
                raise error
            result = None if error else job.result.result()
            errand = _Errand(
                settle(job.post.consumer, job.message, result, error, job.post.registration.on_error)
            )
            errand.result.add_done_callback(self._settled)
            self._new.append(errand)
        self._drive_errands()

    def _settled(self, result: Future[Any]) -> None:
        self._failure = self._failure or result.exception()

    def _drive_errands(self) -> None:
        while self._new:
            self._step(self._new.popleft())
        suspended, self._suspended = self._suspended, []
        now = monotonic()
        for errand in suspended:
            assert errand.waiting is not None
            if errand.waiting.done():
                self._step(errand)
            elif self._driver.session.error is not None:
                self._step(errand, self._driver.session.error)
            elif now >= errand.deadline:
                self._step(errand, errand.waiting.late())
            else:
                self._suspended.append(errand)

    def _step(self, errand: _Errand, error: MalamuteError | None = None) -> None:
        call = errand.call
        try:
            with self._driver.suspending():
                errand.waiting = call.send(None) if error is None else call.throw(error)
        except StopIteration as end:
            errand.result.set_result(end.value)
        except BaseException as error:  # it is the handler's, who made the call
            errand.result.set_exception(error)
        else:
            assert errand.waiting is not None
            timeout = errand.waiting.timeout
            errand.deadline = inf if timeout is None else monotonic() + timeout
            self._suspended.append(errand)

    def close(self) -> None:
        """End it. Handlers that are still at work get an error for whatever they ask of the client."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs:
            if not job.result.done():
                # Its handler has never begun, or it is left behind.
                untouched(job.message)
        for errand in (*self._suspended, *self._new):
            errand.call.close()
            if not errand.result.done():
                errand.result.set_exception(Closed("the client does not run its handlers any more"))
        self._suspended.clear()
        self._new.clear()
        self._inside.close()
        self._outside.close()
