"""A broker in a process of its own, as `malamute broker run` starts it: for the demo and the benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from malamute.errors import MalamuteError

STOP_SECONDS = 30.0
"""Seconds that a broker may take to stop before it is killed."""


class BrokerProcess:
    """Process `pid` of a broker on a data directory, at `url` and all other `endpoints`.

    The context manager stops it.

    `options` are further options of `malamute broker run`.

    Raises:
        MalamuteError: The broker did not start; the text is its last log line.

    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.endpoints: list[str] = []
        self.pid = 0

    def __enter__(self) -> Self:
        log = self.directory / "broker.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                self._command(),
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                start_new_session=True,  # a Control-C is for us; we stop it
                text=True,
            )
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        if not line:
            process.wait()
            raise MalamuteError(f"the broker did not start: {_reason(log.read_text().strip())}")
        self._process, self.pid = process, process.pid
        # A client has no use for the mechanism of a listener.
        self.endpoints = [endpoint.rpartition("+")[2] for endpoint in json.loads(line)["endpoints"]]
        self.url = self.endpoints[0]
        return self

    def _command(self) -> Sequence[str]:
        where = ["--data", str(self.directory / "data"), "--listen", "tcp://127.0.0.1:*"]
        return [sys.executable, "-m", "malamute", "broker", "run", "--json", *where, *self._options]

    def wait(self, seconds: float) -> int:
        """Wait until the process has ended by itself. Returns its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reason(log: str) -> str:
    """Return the logged error of a broker that did not start, or else its whole log."""
    try:
        error = json.loads(log.rpartition("\n")[2])["error"]
        return f"{error['text']} (error {error['code']})"
    except (ValueError, KeyError, TypeError):
        return log


def environment() -> dict[str, str]:
    """Return the environment of a broker: without options, and with the path of this package."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    plain = {k: v for k, v in os.environ.items() if not (k.startswith("MALAMUTE_") and "__" in k)}
    return {**plain, "PYTHONPATH": os.pathsep.join(paths)}
