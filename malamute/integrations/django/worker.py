"""The workers: a process takes the tasks of one queue, one at a time; a parent starts several of them.

The result of a task and its acknowledgement are one commit. A worker that dies leaves its task to the next
one, and is replaced by the parent. After SIGTERM or SIGINT, and after the death of its parent, a worker ends
with the task at hand.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from traceback import format_exception
from typing import Any, TypeVar, cast

from django.db import close_old_connections, connections
from django.utils import timezone
from django.utils.crypto import get_random_string

import malamute
from malamute.integrations.django.backend import MalamuteBackend
from malamute.integrations.django.contract import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from malamute.integrations.django.state import UnknownTask, packed, unpacked, update

RESTART_SECONDS = 1.0
"""Pause before a worker that died is replaced."""

RETRY_SECONDS = 1.0
"""Pause before a call to a broker that is away is repeated."""

BURST_REPORT_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_REASON_CHARACTERS = 60
_TRACEBACK_CHARACTERS = 64 * 1024

Answer = TypeVar("Answer")

_log = logging.getLogger("malamute")


class TaskWorker:
    """One process at work on one queue."""

    def __init__(self, alias: str, queue_name: str, *, burst: bool, max_tasks: int | None) -> None:
        self._backend: MalamuteBackend = task_backends[alias]
        self._mailbox = self._backend.mailbox(queue_name)
        self._burst = burst
        self._left = max_tasks
        self._stopping = False
        self._id = get_random_string(32)
        self._held: malamute.Mail | None = None
        self._report_seconds = BURST_REPORT_SECONDS

    def run(self) -> None:
        """Run tasks until `stop`, for `burst` until none is ready, or until there were `max_tasks`."""
        self._client = self._patiently(lambda: self._backend.client)
        threading.Thread(target=self._report, daemon=True).start()
        for mail in self._received():
            self._held = mail
            close_old_connections()
            try:
                self._run(mail)
            finally:
                self._held = None
                close_old_connections()
            if self._left is not None:
                self._left -= 1
            if self._left == 0 or self._stopping:
                break

    def stop(self, *_: object) -> None:
        """Take no more tasks: the handler of a signal."""
        self._stopping = True
        if hasattr(self, "_client"):
            self._client.drain()

    def close(self) -> None:
        """Close the client of this process, when the broker has all settlements."""
        self._client.close()

    def _received(self) -> Iterator[malamute.Mail]:
        if self._burst:
            while (mail := self._client.get(self._mailbox)) is not None:
                yield mail
            return
        with self._client.consume(self._mailbox, auto_ack=False, credit=1) as box:
            self._report_seconds = box.report_seconds
            while not self._stopping:
                try:
                    mail = box.receive()
                except malamute.Closed:
                    return
                yield mail

    def _report(self) -> None:
        """Report progress on the task at hand, so that its ack timeout begins anew."""
        reported: malamute.Mail | None = None
        while True:
            time.sleep(self._report_seconds)
            mail = self._held
            # A task is reported when it has been at hand for a whole interval.
            if mail is not None and mail is reported and not mail.settled:
                mail.in_progress()
            reported = mail

    def _run(self, mail: malamute.Mail) -> None:
        try:
            state = mail.body
            if mail.redelivered:
                found = self._patiently(lambda: self._results.get(str(mail.correlation)))
                state = mail.body if found is None else found.value
            result = unpacked(state, self._backend.alias)
        except UnknownTask as error:
            _log.error("Message %r of %r is rejected: %s", mail.subject, self._mailbox, error)
            mail.reject(str(error)[:_REASON_CHARACTERS])
            return
        if result.is_finished:
            # A worker before has finished it, and could not acknowledge the message.
            mail.ack()
            return
        now = timezone.now()
        result.worker_ids.append(self._id)
        started = result.started_at or now
        update(result, status=TaskResultStatus.RUNNING, started_at=started, last_attempted_at=now)
        self._patiently(lambda: self._results.put(result.id, packed(result)))
        task_started.send(type(self._backend), task_result=result)
        self._call(mail, result)

    @property
    def _results(self) -> malamute.Bucket:
        return self._client.bucket(self._backend.bucket)

    def _call(self, mail: malamute.Mail, result: Any) -> None:
        task = result.task
        context = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except KeyboardInterrupt:
            mail.release()
            raise
        except BaseException:  # a task that calls sys.exit has failed, and the worker goes on
            self._failed(mail, result)
            return
        update(result, finished_at=timezone.now(), status=TaskResultStatus.SUCCESSFUL, _return_value=value)
        try:
            self._finish(mail, result)
        except malamute.Refused:
            # A result that is too large, for example.
            self._failed(mail, result)

    def _finish(self, mail: malamute.Mail, result: Any) -> None:
        state, ttl = packed(result), self._backend.result_ttl
        try:
            self._patiently(lambda: mail.ack(put=(self._backend.bucket, result.id, state, ttl)))
        except malamute.NotOutstanding:
            # The broker was killed, or the task was at hand for too long. The next worker finds the result.
            _log.warning("Task %s is in its queue again, and has its result already.", result.id)
            self._patiently(lambda: self._results.put(result.id, state, ttl=ttl))
        task_finished.send(type(self._backend), task_result=result)

    def _failed(self, mail: malamute.Mail, result: Any) -> None:
        """Settle a task that raised the present exception: it is tried again, or has failed."""
        error = sys.exc_info()[1]
        assert error is not None
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        traceback = "".join(format_exception(error))[-_TRACEBACK_CHARACTERS:]
        result.errors.append(TaskError(exception_class_path=path, traceback=traceback))
        retries = self._backend.retries
        if len(result.errors) <= len(retries):
            update(result, status=TaskResultStatus.READY, finished_at=None, _return_value=None)
            self._patiently(lambda: self._results.put(result.id, packed(result)))
            mail.nak(retries[len(result.errors) - 1])
            return
        failed = TaskResultStatus.FAILED
        update(result, status=failed, finished_at=timezone.now(), _return_value=None)
        try:
            self._finish(mail, result)
        except malamute.Refused as refused:
            _log.exception("The result of task %s cannot be stored.", result.id)
            mail.reject(str(refused)[:_REASON_CHARACTERS])

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of a call, again and again while the broker is away, unless this is to end."""
        while True:
            try:
                return call()
            except (malamute.LinkError, malamute.Failed) as error:
                if self._stopping or isinstance(error, malamute.Closed):
                    raise
                _log.warning("The broker is away, and the worker tries again: %s", error)
                time.sleep(RETRY_SECONDS)


class TaskProcesses:
    """The parent of the processes: `concurrency` for each queue."""

    def __init__(
        self, alias: str, queues: Sequence[str], concurrency: int, *, burst: bool, max_tasks: int | None
    ) -> None:
        self._workers = [
            TaskWorker(alias, name, burst=burst, max_tasks=max_tasks)
            for name in queues
            for _ in range(concurrency)
        ]
        self._processes: dict[int, tuple[ForkProcess, TaskWorker]] = {}
        self._stopping = False

    def run(self) -> None:
        """Return when all processes have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # A connection of the database is of one process.
        connections.close_all()
        for worker in self._workers:
            self._start(worker)
        while self._processes:
            for ended in wait(list(self._processes)):
                process, worker = self._processes.pop(cast(int, ended))
                process.join()
                if process.exitcode and not self._stopping:
                    _log.error("A worker ended with %s, and is replaced.", process.exitcode)
                    time.sleep(RESTART_SECONDS)  # no event: a handler of a signal may not set one safely
                    if not self._stopping:
                        self._start(worker)

    def _start(self, worker: TaskWorker) -> None:
        process = multiprocessing.get_context("fork").Process(target=_child, args=(worker, os.getpid()))
        process.start()
        self._processes[process.sentinel] = (process, worker)
        if self._stopping:
            process.terminate()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for process, _worker in [*self._processes.values()]:
            process.terminate()


def _child(worker: TaskWorker, parent: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
    worker.run()
    worker.close()
