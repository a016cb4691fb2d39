"""Workers of Django Tasks as processes: one is killed, so is the broker, and a signal drains them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

django = pytest.importorskip("django", reason="django is not installed: see the extra django")
with pytest.MonkeyPatch.context() as patch:  # other tests start programs that are none of Django's
    patch.setenv("DJANGO_SETTINGS_MODULE", "django_program")
    django.setup()

import django_program_tasks as tasks  # noqa: E402
from django.conf import settings  # noqa: E402
from django.test import override_settings  # noqa: E402
from rig_daemon import Daemon, environment  # noqa: E402

from malamute.integrations.django.contract import TaskResultStatus, task_backends  # noqa: E402

PATIENCE = 60.0
HERE = Path(__file__).parent


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "broker").start()
    options = {**settings.TASKS["default"]["OPTIONS"], "url": daemon.url}
    with override_settings(TASKS={"default": {**settings.TASKS["default"], "OPTIONS": options}}):
        yield daemon
    daemon.close()


class Command:
    """`manage.py malamute_worker` as a process, with its children."""

    def __init__(self, url: str, *options: str) -> None:
        program = {**environment(), "DJANGO_TEST_URL": url, "DJANGO_SETTINGS_MODULE": "django_program"}
        command = [sys.executable, "-m", "django", "malamute_worker", "--skip-checks", *options]
        self.process = subprocess.Popen(command, cwd=HERE, env=program, start_new_session=True)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def command(daemon: Daemon) -> Iterator[Callable[..., Command]]:
    commands: list[Command] = []

    def start(*options: str) -> Command:
        commands.append(Command(daemon.url, *options))
        return commands[-1]

    yield start
    for one in commands:
        one.close()


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(file: Path, count: int) -> list[int]:
    """Return the processes that have begun the task, as soon as there are so many."""
    begun = Path(f"{file}.begun")
    until(lambda: begun.exists() and len(begun.read_text().split()) >= count)
    return [int(number) for number in begun.read_text().split()]


def test_a_task_of_a_killed_worker_runs_again_over_a_killed_broker_and_a_signal_drains(
    daemon: Daemon, command: Callable[..., Command], tmp_path: Path
) -> None:
    """Three deaths in one life of a task: starting processes takes longer than all of them."""
    held = tmp_path / "held"
    held.touch()
    result = tasks.hold.enqueue(str(held))
    waits = tasks.add.using(queue_name="slow").enqueue(1)
    workers = command("--queue", "default")
    (killed,) = lines(held, 1)
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    # Its parent replaces it.
    os.kill(killed, signal.SIGKILL)
    _, other = lines(held, 2)

    # The worker goes on over the death of the broker, and ends with the task at hand.
    daemon.kill()
    daemon.start()
    workers.process.send_signal(signal.SIGTERM)
    held.unlink()
    assert workers.process.wait(PATIENCE) == 0
    until(lambda: result.refresh() or result.is_finished)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, other)
    assert result.attempts == 2
    assert len(lines(held, 2)) == 2
    waits.refresh()
    assert waits.status == TaskResultStatus.READY

    # A burst ends when no task is ready.
    assert command("--burst").process.wait(PATIENCE) == 0
    waits.refresh()
    assert waits.return_value == 2
    client, box = task_backends["default"].client, task_backends["default"].mailbox("default")
    until(lambda: client.query("mailbox", name=box)["messages"] == 0)
    assert len(lines(held, 2)) == 2


def test_processes_end_after_their_tasks_and_with_their_parent(
    daemon: Daemon, command: Callable[..., Command], tmp_path: Path
) -> None:
    held = [tmp_path / name for name in ("a", "b")]
    results = []
    for file in held:
        file.touch()
        results.append(tasks.hold.enqueue(str(file)))
    workers = command("--queue", "default", "--concurrency", "2", "--max-tasks", "1")
    processes = [lines(file, 1)[0] for file in held]
    assert len({*processes}) == 2
    later = tasks.add.enqueue(1)
    held[0].unlink()
    until(lambda: results[0].refresh() or results[0].is_finished)
    # An orphan ends with the task at hand.
    workers.process.kill()
    workers.process.wait()
    held[1].unlink()
    until(lambda: results[1].refresh() or results[1].is_finished)
    client, box = task_backends["default"].client, task_backends["default"].mailbox("default")
    until(lambda: client.query("mailbox", name=box)["consumers"] == 0)
    assert results[1].return_value == processes[1]
    later.refresh()
    assert later.status == TaskResultStatus.READY
