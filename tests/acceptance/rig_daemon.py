"""A broker as its users have it: a process of its own on a directory, that a test can stop and kill."""

import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from rig_waiting import PATIENCE

import malamute
from malamute.config import Config, Limits, Listen, Storage

MIB = 1024 * 1024

PROGRAM = """
import sys
from pathlib import Path

from malamute.config import Config
from malamute.server.daemon import run

if sys.stdin.readline():
    run(Config.load(Path(sys.argv[1]), {}), lambda endpoints: print(*endpoints, flush=True))
"""
"""The daemon. It has everything imported when it waits for a line, so that a restart takes no second."""


def environment() -> dict[str, str]:
    """The environment in which a child process finds the same `malamute` as the test."""
    return {**os.environ, "PYTHONPATH": str(Path(malamute.__file__).parents[1])}


def free_port() -> int:
    """A port that nobody uses, and that no outgoing connection is ever given.

    A client that tries to reach a dead broker on a port of that range may one day reach itself.
    """
    chance = random.SystemRandom()
    for _ in range(200):
        port = chance.randrange(15_000, 30_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("200 ports are all in use")


def small(size: int = 64 * MIB) -> Config:
    """A small store with limits that fit into it, and heartbeats that soon find out who hangs."""
    queues = size // 8
    limits = Limits(message_bytes=queues // 2, queue_bytes=queues, queues_bytes=queues, sessions=1000)
    listen = Listen(heartbeat_interval=0.5, heartbeat_timeout=1.5)
    return Config(listen=listen, storage=Storage(size=size), limits=limits)


class Daemon:
    """A broker process. `url` is where it listens, the same over all its restarts."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.directory = directory
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None
        self._next: subprocess.Popen[str] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "log.jsonl"
        self._log.touch()
        self.configure(config or small())

    def configure(self, config: Config) -> None:
        """Set the options for the next start; the directory is always this one's."""
        storage = replace(config.storage, directory=self.directory / "data")
        listen: Listen = config.listen
        if listen.endpoints == Listen().endpoints:
            listen = replace(listen, endpoints=(self.url,))
        self.config = replace(config, storage=storage, listen=listen)
        self.file.write_text(self.config.toml())

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.directory / "malamute.toml"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def prepare(self) -> None:
        """Have the next process ready, waiting for its turn."""
        if self._next is None:
            self._next = self._spawn()

    def limit_files(self, files: int) -> None:
        """Let the next process open no more files than these."""
        self.prepare()
        assert self._next is not None
        resource.prlimit(self._next.pid, resource.RLIMIT_NOFILE, (files, files))

    def _spawn(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )

    def start(self) -> "Daemon":
        """Start it, and return when clients can connect."""
        assert self._process is None
        self._process, self._next = self._next or self._spawn(), None
        stdin, stdout = _pipes(self._process)
        stdin.write("\n")
        stdin.flush()
        assert select.select([stdout], [], [], PATIENCE)[0], f"the broker is not ready:\n{self.log}"
        assert stdout.readline().split(), f"the broker has ended:\n{self.log}"
        return self

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, as the power of the machine would."""
        self.send_signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end, and see that it does so in good order."""
        self.send_signal(number)
        code = self.wait()
        assert code == 0, f"the broker ended with {code}:\n{self.log}"

    def wait(self) -> int:
        """Wait for its end. Returns its exit code."""
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"the broker does not end:\n{self.log}") from None
        finally:
            _release(process)

    def restart(self) -> None:
        """Stop it in good order, and start it on the same port and directory."""
        self.stop()
        self.start()

    @property
    def log(self) -> str:
        """All that it wrote to standard error."""
        return self._log.read_text()

    @property
    def anonymous_mib(self) -> float:
        """Its anonymous memory: what it holds itself, without the mapped file of the store."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("this system tells no RssAnon")

    def close(self) -> None:
        """End whatever runs, without a word. Fails if the broker ever met a fault of its own."""
        for process in (self._process, self._next):
            if process is not None:
                process.kill()
                process.wait()
                _release(process)
        self._process = self._next = None
        assert "Traceback" not in self.log, self.log
        assert '"exception"' not in self.log, self.log


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _release(process: subprocess.Popen[str]) -> None:
    for pipe in _pipes(process):
        pipe.close()
