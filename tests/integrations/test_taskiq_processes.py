"""Workers of taskiq as processes: one is killed, and so is the broker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

taskiq = pytest.importorskip("taskiq", reason="taskiq is not installed: see the extra taskiq")

from rig_daemon import Daemon, environment  # noqa: E402

from malamute.integrations.taskiq import MalamuteBroker, MalamuteResultBackend  # noqa: E402

PATIENCE = 60.0
HERE = Path(__file__).parent


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "broker").start()
    yield daemon
    daemon.close()


def worker(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taskiq", "worker", "taskiq_program:broker", "--workers", "1"]
    options = ["--max-async-tasks", "2", "--log-level", "ERROR"]
    program = {**environment(), "TASKIQ_TEST_URL": url}
    return subprocess.Popen([*command, *options], cwd=HERE, env=program, start_new_session=True)


async def lines(file: Path, count: int) -> list[int]:
    """Return the processes that have begun the task, as soon as there are so many."""
    async with asyncio.timeout(PATIENCE):
        while not file.exists() or len(found := file.read_text().split()) < count:
            await asyncio.sleep(0.02)
    return [int(number) for number in found]


def test_a_task_of_a_killed_worker_runs_elsewhere_over_a_killed_broker_and_a_signal_drains(
    daemon: Daemon, tmp_path: Path
) -> None:
    """Three deaths in one life of a task: starting processes takes longer than all of them."""

    async def main() -> None:
        held = tmp_path / "held"
        held.touch()
        begun = Path(f"{held}.begun")
        results = MalamuteResultBackend[int](daemon.url)
        broker = MalamuteBroker(daemon.url).with_result_backend(results)

        @broker.task("hold")
        def hold(file: str) -> int:
            raise NotImplementedError

        await broker.startup()
        sent = await hold.kiq(str(held))
        first = worker(daemon.url)
        workers.append(first)
        (killed,) = await lines(begun, 1)
        second = worker(daemon.url)
        workers.append(second)
        # The parent would start another one in its place.
        os.kill(first.pid, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        _, other = await lines(begun, 2)
        assert other != killed

        # The worker has the task in hand, and keeps it over the death of the broker.
        daemon.kill()
        daemon.start()
        os.kill(second.pid, signal.SIGTERM)
        held.unlink()
        found = await sent.wait_result(timeout=PATIENCE, check_interval=0.05)
        assert found.return_value in (other, *(await lines(begun, 2)))
        await asyncio.to_thread(second.wait, PATIENCE)
        await broker.shutdown()

    workers: list[subprocess.Popen[bytes]] = []
    try:
        asyncio.run(main())
    finally:
        for process in workers:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
