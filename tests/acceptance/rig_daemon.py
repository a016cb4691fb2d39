"""A broker as its users have it: a process of its own on a directory, that a test can stop and kill."""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from free_ports import free_port
from rig_process import FORKS, end, fork
from rig_waiting import PATIENCE

import malamute
from malamute.config import Config, LimitsConfig, ListenConfig, StorageConfig
from malamute.errors import MalamuteError
from malamute.server.daemon import run

MIB = 1024 * 1024
CLONE_NEWNET = 0x40000000
"""As Linux has it."""


def environment() -> dict[str, str]:
    """The environment in which a child process finds the same `malamute` as the test."""
    return {**os.environ, "PYTHONPATH": str(Path(malamute.__file__).parents[1])}


def small(size: int = 64 * MIB) -> Config:
    """A small store with limits that fit into it. All else is as users have it."""
    listen, limits = ListenConfig(connections=1000), LimitsConfig(message_bytes=size // 16)
    return Config(storage=StorageConfig(size=size), limits=limits, listen=listen)


def enter_namespace(name: str) -> None:
    """Have this thread, and all that it makes from now on, in the network namespace of this name."""
    with open(f"/run/netns/{name}") as opened:
        assert ctypes.CDLL(None).setns(opened.fileno(), CLONE_NEWNET) == 0, "no such namespace"


def serve(
    file: Path,
    log: Path,
    ready: Connection,
    files: int,
    namespace: str = "",
    overrides: Mapping[str, float] | None = None,
) -> None:
    """Run a broker, as the process that this is; `files` is how many it may open, if not 0.

    Overrides are limits in place of derived ones. The broker is in the network namespace of this name, if
    there is one.
    """
    if namespace:
        enter_namespace(namespace)
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 2)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    def read() -> Config:
        return replace(Config.load(file, {}), overrides=overrides or {})

    try:
        run(read(), ready.send, read)
    except MalamuteError as error:  # as the command line does
        print(f"error {error.code}: {error.text}", file=sys.stderr, flush=True)
        sys.exit(1)


class Daemon:
    """A broker process. `url` is where it listens, the same over all its restarts."""

    def __init__(
        self,
        directory: Path,
        config: Config | None = None,
        address: str = "127.0.0.1",
        namespace: str = "",
        data: Path | None = None,
    ) -> None:
        """Its data is in a directory of its own, unless there is one for that."""
        self.directory = directory
        self.url = f"tcp://{address}:{free_port()}"
        self._namespace, self._data = namespace, data or directory / "data"
        self._process: ForkServerProcess | None = None
        self.patience_seconds = PATIENCE
        """How long its start and its end may take."""
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "log.jsonl"
        self._log.touch()
        self.configure(config or small())

    def configure(self, config: Config) -> None:
        """Set the options for the next start; the directory is always this one's."""
        storage = replace(config.storage, directory=self._data)
        listen: ListenConfig = config.listen
        if listen.endpoints == ListenConfig().endpoints:
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
        assert self._process.pid is not None
        return self._process.pid

    def start(self, files: int = 0) -> "Daemon":
        """Start it, and return when clients can connect. `files` is how many it may open, if not 0."""
        assert self._process is None
        ready, said = FORKS.Pipe(duplex=False)
        with ready:
            with said:
                given = (self.file, self._log, said, files, self._namespace, self.config.overrides)
                self._process = fork(serve, *given)
            assert ready.poll(self.patience_seconds), f"the broker is not ready:\n{self.log}"
            try:
                ready.recv()
            except EOFError:
                raise AssertionError(f"the broker has ended:\n{self.log}") from None
        self._started = time.monotonic()
        return self

    @property
    def life_seconds(self) -> float:
        """For how long it has been there since its last start."""
        return time.monotonic() - self._started

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, or somebody else has ended it."""
        return self._process is None or self._process.exitcode is not None

    def kill(self) -> None:
        """End it at once. What it has given to the system stays, unlike at the end of the power."""
        assert self.end() == -signal.SIGKILL, self.log[-2000:]

    def end(self) -> int:
        """End it at once, if it has not ended by itself. Returns its exit code."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)
        return self.wait()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end, and see that it does so cleanly."""
        self.send_signal(number)
        code = self.wait()
        assert code == 0, f"the broker ended with {code}:\n{self.log}"

    def wait(self) -> int:
        """Wait for its end. Returns its exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.join(self.patience_seconds)
        code = process.exitcode
        end(process)
        assert code is not None, f"the broker does not end:\n{self.log}"
        return code

    def restart(self) -> None:
        """Stop it cleanly, and start it on the same port and directory."""
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
        if self._process is not None:
            end(self._process)
            self._process = None
        assert "Traceback" not in self.log, self.log
        assert '"exception"' not in self.log, self.log
