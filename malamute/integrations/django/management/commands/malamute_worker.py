"""The command `manage.py malamute_worker`: it runs tasks until it is asked to end."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from malamute.integrations.django.backend import MalamuteBackend
from malamute.integrations.django.contract import task_backends
from malamute.integrations.django.worker import TaskProcesses


class Command(BaseCommand):
    """Run the tasks of a backend."""

    help = "Run tasks. SIGTERM and Control-C let each process end with the task at hand."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        parser.add_argument(
            "--queue", action="append", help="a queue; may be repeated (default: all of QUEUES)"
        )
        parser.add_argument(
            "--concurrency", type=int, default=1, help="processes for each queue (default: 1)"
        )
        parser.add_argument("--burst", action="store_true", help="end when no task is ready")
        parser.add_argument("--max-tasks", type=int, help="end each process after as many tasks")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the workers. Raises `CommandError` for wrong options."""
        alias, queues = options["backend"], options["queue"]
        if alias not in task_backends.settings:
            raise CommandError(f"unknown backend {alias!r}: expected {', '.join(task_backends.settings)}")
        backend = task_backends[alias]
        if not isinstance(backend, MalamuteBackend):
            raise CommandError(f"TASKS[{alias!r}] is {type(backend).__name__}: expected MalamuteBackend")
        queues = sorted(backend.queues) if queues is None else list(dict.fromkeys(queues))
        if not queues:
            raise CommandError("QUEUES is empty, which allows any queue: expected --queue NAME")
        if backend.queues and (unknown := [name for name in queues if name not in backend.queues]):
            known = ", ".join(sorted(backend.queues))
            raise CommandError(f"queue {unknown[0]!r} is not in QUEUES: expected {known}")
        for name in ("concurrency", "max_tasks"):
            if options[name] is not None and options[name] < 1:
                raise CommandError(f"invalid --{name.replace('_', '-')} {options[name]}: expected 1 or more")
        TaskProcesses(
            alias, queues, options["concurrency"], burst=options["burst"], max_tasks=options["max_tasks"]
        ).run()
