"""The backend of Django Tasks: tasks are messages of shared mailboxes, results are keys of a bucket.

A queue is the mailbox of its name, with the prefix before it. The subject of a message is the path of its
task; its `id` and its correlation are the id of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from threading import Lock
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

import malamute
from malamute.integrations.django.contract import (
    BaseTaskBackend,
    TaskException,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from malamute.integrations.django.state import UnknownTask, packed, unpacked, update

RESULT_SECONDS = 24 * 3600

_clients: dict[str, malamute.Client] = {}
_connecting = Lock()


class TaskNotEnqueued(TaskException):
    """Raised for a task that the broker did not take: its cause is the error of the broker or the client."""


def _is_span(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_OPTIONS: Mapping[str, tuple[Any, Any, str]] = {
    "url": ("tcp://127.0.0.1:9999", lambda url: bool(url) and isinstance(url, str | list | tuple), "a URL"),
    "prefix": ("django.", _is_text, "text"),
    "result_ttl": (
        RESULT_SECONDS,
        lambda ttl: ttl is None or (_is_span(ttl) and ttl > 0),
        "seconds above 0, or None",
    ),
    "retries": (
        (),
        lambda waits: isinstance(waits, list | tuple) and all(map(_is_span, waits)),
        "the seconds before each further try, such as [1, 10, 60]",
    ),
    "on_commit": (False, lambda flag: isinstance(flag, bool), "True or False"),
    "connect": (
        {},
        lambda options: isinstance(options, dict) and "threads" not in options and "address" not in options,
        "a map of options of malamute.connect, such as {'timeout': 2}, without threads and address",
    ),
}
"""OPTIONS of the setting: the default, the test and the expectation of each."""


class MalamuteBackend(BaseTaskBackend):
    """Backend of Django Tasks on a Malamute broker."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := self.options.keys() - _OPTIONS.keys():
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: unknown option {min(unknown)!r}: expected {', '.join(_OPTIONS)}"
            )
        given = {name: self.options.get(name, default) for name, (default, _, _) in _OPTIONS.items()}
        for name, (_, fits, expected) in _OPTIONS.items():
            if not fits(given[name]):
                raise ImproperlyConfigured(
                    f"TASKS[{alias!r}]: invalid option {name}={given[name]!r}: expected {expected}"
                )
        self.url: str | Sequence[str] = given["url"]
        self.prefix: str = given["prefix"]
        self.result_ttl: float | None = given["result_ttl"]
        self.retries: Sequence[float] = given["retries"]
        self.on_commit: bool = given["on_commit"]
        self._connect: dict[str, Any] = given["connect"]

    @property
    def client(self) -> malamute.Client:
        """Return the client of this process for the broker: Django has a backend for each thread.

        Raises as `malamute.connect`.
        """
        name = repr((self.url, sorted(self._connect.items())))
        with _connecting:
            if name not in _clients:
                _clients[name] = malamute.connect(self.url, threads="any", **self._connect)
            return _clients[name]

    def mailbox(self, queue_name: str) -> str:
        """Return the mailbox of a queue."""
        return f"{self.prefix}{queue_name}"

    @property
    def bucket(self) -> str:
        """Return the name of the bucket of results."""
        return f"{self.prefix}results"

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, and return its result, with the status READY.

        With the option `on_commit` the task is sent when the transaction of the default database commits.

        Raises:
            InvalidTask: the task cannot be run here, or its queue is not in QUEUES.
            TypeError: an argument is no JSON.
            TaskNotEnqueued: the broker did not take the task.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        # An argument that is no JSON is an error of the caller, and not of the commit.
        packed(result)
        if self.on_commit:
            transaction.on_commit(partial(self._send, result))
        else:
            self._send(result)
        return result

    def _send(self, result: Any) -> None:
        task = result.task
        update(result, enqueued_at=timezone.now())
        options: dict[str, Any] = {}
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            options["at"] = task.run_after if aware else timezone.make_aware(task.run_after)
        state = packed(result)
        try:
            results = self.client.bucket(self.bucket)
            results.put(result.id, state)
            try:
                self.client.send(
                    self.mailbox(task.queue_name),
                    task.module_path,
                    state,
                    id=result.id,
                    correlation=result.id,
                    priority=(int(task.priority) + 100) * 9 // 200,
                    **options,
                )
            except malamute.Refused:
                results.delete(result.id)
                raise
        except malamute.MalamuteError as error:
            raise TaskNotEnqueued(f"task {task.module_path} was not enqueued: {error}") from error
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return a result. Raises `TaskResultDoesNotExist`, also for a task that is not in this program."""
        try:
            found = self.client.bucket(self.bucket).get(str(result_id))
        except malamute.InvalidName:
            found = None
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            return unpacked(found.value, self.alias)
        except UnknownTask as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error}") from error

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Return what is wrong: a missing right is an error, a broker that does not answer is a warning."""
        try:
            client = self.client
            results = client.bucket(self.bucket)
            # A command that changes nothing is refused as one that would.
            probes = [partial(results.get, "check"), partial(results.delete, "check")]
            names = map(self.mailbox, sorted(self.queues))
            probes += [partial(client.cancel, "mailbox", name, id="check") for name in names]
            return [found for probe in probes for found in self._refusal(probe)]
        except (malamute.LinkError, malamute.Failed) as error:
            hint = "start the broker, or correct the option url"
            return [checks.Warning(f"TASKS[{self.alias!r}]: {error}", hint=hint, id="malamute.W001")]
        except malamute.MalamuteError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]: {error}", hint=error.hint, id="malamute.E001")]

    def _refusal(self, probe: Any) -> Iterable[checks.CheckMessage]:
        try:
            probe()
        except malamute.Refused as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", hint=error.hint, id="malamute.E002")
