"""Brokers and commands, forked from a process that has imported all: that is most of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import IO, Any

FORKS = get_context("forkserver")


def _play(arguments: Sequence[str], environment: Mapping[str, str], out: Connection, errors: str) -> None:
    """Run the command, as the process that this is."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    os.dup2(out.fileno(), 1)
    _command(arguments, environment)


def play_on(
    terminal: Sequence[Connection],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str = ".",
) -> None:
    """Run the command with these for its input, its output and its errors, as the process that this is."""
    for number, file in enumerate(terminal):
        os.dup2(file.fileno(), number)
    for file in terminal:
        if not file.closed:  # one may be there twice
            file.close()
    os.chdir(directory)
    _command(arguments, environment)


def _command(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    from malamute.cli.root import cli

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    # The streams that the server of forks has made are not theirs.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    cli(list(arguments), prog_name="malamute")


class ForkedBroker:
    """The part of `subprocess.Popen` that `malamute.server.process` uses."""

    def __init__(
        self, command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **options: Any
    ) -> None:
        assert command[1:3] == ["-m", "malamute"]
        said, out = FORKS.Pipe(duplex=False)
        with said, out:
            self._process = FORKS.Process(
                target=_play, args=(command[3:], env, out, stderr.name), daemon=True
            )
            self._process.start()
            self.stdout = os.fdopen(os.dup(said.fileno()), encoding="utf-8")
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("malamute", seconds or 0.0)
        return code
