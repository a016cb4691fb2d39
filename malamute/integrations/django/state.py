"""The state of a task as JSON: the body of its message, and the value of its key in the bucket of results."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

from malamute.integrations.django.contract import Task, TaskError, TaskResult, TaskResultStatus

_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


class UnknownTask(Exception):
    """Raised for a state that is none, or whose task is not in this program."""


def packed(result: Any) -> bytes:
    """Return a result as JSON."""
    task = result.task
    state = {
        "task": task.module_path,
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": _moment(task.run_after),
        "id": result.id,
        "status": str(result.status.value),
        "args": result.args,
        "kwargs": result.kwargs,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
        "worker_ids": result.worker_ids,
        "return_value": result._return_value,
        **{name: _moment(getattr(result, name)) for name in _TIMES},
    }
    return json.dumps(state).encode()


def unpacked(state: bytes, alias: str) -> Any:
    """Return the result of a state, with its task. Raises `UnknownTask`."""
    try:
        return _result(json.loads(state), alias)
    except UnknownTask:
        raise
    except Exception as error:  # of foreign JSON, of the import, or of a task that its backend refuses
        raise UnknownTask(f"no task of Django: {type(error).__name__}: {error}") from error


def _result(found: dict[str, Any], alias: str) -> Any:
    task = import_string(found["task"])
    if not isinstance(task, Task):
        raise UnknownTask(f"{found['task']!r} is no task: expected a function with @task")
    result: Any = TaskResult(
        task=task.using(
            priority=found["priority"],
            queue_name=found["queue_name"],
            run_after=_time(found["run_after"]),
            backend=alias,
        ),
        id=found["id"],
        status=TaskResultStatus(found["status"]),
        args=found["args"],
        kwargs=found["kwargs"],
        backend=alias,
        errors=[TaskError(exception_class_path=path, traceback=lines) for path, lines in found["errors"]],
        worker_ids=found["worker_ids"],
        **{name: _time(found[name]) for name in _TIMES},
    )
    update(result, _return_value=found["return_value"])
    return result


def update(result: Any, **fields: Any) -> None:
    """Set fields of a result, which is frozen for programs."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def _moment(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(moment: str | None) -> datetime | None:
    return None if moment is None else datetime.fromisoformat(moment)
