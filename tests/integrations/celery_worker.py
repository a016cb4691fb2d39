"""A worker of Celery in a process of its own, which a test stops and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rig_daemon import Daemon, environment
from rig_waiting import PATIENCE, eventually

HERE = Path(__file__).parent


def url_of(daemon: Daemon) -> str:
    """The URL of a broker, as Celery has it."""
    return daemon.url.replace("tcp://", "malamute://")


def environment_of(daemon: Daemon, runs: Path) -> dict[str, str]:
    """The environment in which a process has the application of `celery_tasks`."""
    paths = os.pathsep.join([str(HERE), environment()["PYTHONPATH"]])
    return {
        **os.environ, "PYTHONPATH": paths, "CELERY_TASKS_URL": url_of(daemon), "CELERY_TASKS_RUNS": str(runs)
    }  # fmt: skip


class Worker:
    """A worker, and the file in which its tasks write their runs."""

    def __init__(self, daemon: Daemon, runs: Path, name: str, *options: str, pool: str = "prefork") -> None:
        self._log = (daemon.directory / f"{name}.log").open("w+")
        env = environment_of(daemon, runs)
        command = ["-m", "celery", "-A", "celery_tasks", "worker", "-P", pool, "-n", name, "-l", "info"]
        self.process = subprocess.Popen(
            [sys.executable, *command, *options], env=env, stdout=self._log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    @property
    def log(self) -> str:
        """All that it wrote."""
        return Path(self._log.name).read_text()

    def ready(self) -> Worker:
        """Wait until it consumes."""
        eventually(lambda: " ready." in self.log or self.process.poll() is not None, "the worker is ready")
        assert self.process.poll() is None, self.log
        return self

    def kill(self) -> None:
        """Kill its main process."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it cleanly."""
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.log

    def close(self) -> None:
        """End it and all its children, if they are there."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._log.close()
