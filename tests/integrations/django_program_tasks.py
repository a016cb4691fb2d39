"""Tasks of the site `django_program`."""

import os
import time
from pathlib import Path
from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

ran: list[Any] = []
"""Notes of the tasks of this process."""


@task()
def add(a: int, b: int = 1) -> int:
    return a + b


@task()
async def add_async(a: int) -> int:
    return a + 1


@task()
def note(value: Any) -> None:
    ran.append(value)


@task()
def fail(kind: str = "ValueError") -> None:
    ran.append("fail")
    raise {"ValueError": ValueError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[kind](
        "This task failed"
    )


@task()
def odd(size: int) -> Any:
    return "a" * size if size else lambda: True


@task(takes_context=True)
def context_of(context: Any) -> list[Any]:
    return [context.task_result.id, context.attempt]


@task()
def hold(file: str) -> int:
    """Wait while the file is there, after a line with the process in another one."""
    with Path(f"{file}.begun").open("a") as begun:
        begun.write(f"{os.getpid()}\n")
    while Path(file).exists():
        time.sleep(0.02)
    return os.getpid()


def plain() -> None:
    """No task."""
